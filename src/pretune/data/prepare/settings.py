"""Settings, sources, licences and tokenizer of prepared data, and their fingerprint."""

import fnmatch
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretune.core.config import from_dict, spec, to_dict
from pretune.core.errors import DataError, PretuneError, UsageError, suggest
from pretune.data.prepared_data import SourceRecord
from pretune.data.shards import DataIndex
from pretune.text.cleaning import resolve_filters
from pretune.text.corpora import Corpus
from pretune.text.corpora.corpus import check_reading_options
from pretune.text.neardup import NearDuplicates
from pretune.text.sentences import SPLITTERS

FORMAT = 2
"""Version of the preparation; incremented when the same text and settings give other data."""

MAX_VALID_TOKENS = 5_000_000
"""Maximum number of tokens that are held out; more make evaluation slower, but not better."""

MIN_VALID_DOCUMENTS, MIN_VALID_TOKENS = 2, 2048
"""Minimum size of a usable validation split: two documents for pair objectives, and one batch of a CPU run."""

MAX_VALID_SHARE = 0.1
"""Maximum share of all tokens that is held out to reach the minimum size."""


@spec
class PrepareConfig:
    """Settings that determine the output; `prepare` documents them. The number of processes is not one of them."""

    by: str = "auto"
    field: str | None = None
    errors: str = "strict"
    clean: tuple[str, ...] = ()
    near: float | None = None
    holdout: float = 0.01
    lang: str = "auto"
    sentences: str = "rules"
    licence: tuple[str, ...] = ()
    keep: float | None = None

    def check(self) -> None:
        """Raise a UsageError for invalid values."""
        check_reading_options(self.by, self.field, self.errors)
        for name in self.clean:
            resolve_filters(name)
        if self.near is not None:
            NearDuplicates(self.near)
        SPLITTERS.get(self.sentences)
        if self.lang != "auto" and not self.lang.replace("-", "").isalpha():
            raise UsageError(f"lang must be 'auto' or a code such as 'en', got '{self.lang[:40]}'")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings, the hash of the tokenizer, and the name and content hash of every source."""

    settings: PrepareConfig
    tokenizer: str  # SHA-256
    train: tuple[tuple[str, str], ...]  # (name, SHA-256) of each source
    valid: tuple[tuple[str, str], ...]
    reference: tuple[tuple[str, str], ...] = ()  # good text of the quality filter

    @classmethod
    def from_corpus(
        cls, settings: PrepareConfig, tokenizer: str, corpus: Corpus, valid: Corpus | None, reference: Corpus | None
    ) -> "Recipe":
        """Build the recipe of the corpora; reads all sources to hash their content."""
        hashes = [_hash_sources(part) if part else () for part in (corpus, valid, reference)]
        return cls(settings, tokenizer, *hashes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources in the order of source numbers: training sources, then validation sources."""
        return tuple(name for name, _ in (*self.train, *self.valid))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the recipe; equal only for equal data."""
        return hashlib.sha256(
            json.dumps([FORMAT, self.tokenizer, self.to_dict()], allow_nan=False).encode()
        ).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return settings and sources, JSON-ready, without the hash of the tokenizer: data.json has a field for it."""
        pairs = {"train": self.train, "valid": self.valid, "reference": self.reference}
        corpus = {name: [list(pair) for pair in part] for name, part in pairs.items() if part or name != "reference"}
        values = {name: value for name, value in to_dict(self.settings).items() if name != "kind"}
        if not self.reference:  # NOTE: the fingerprint of data without a filter is that of earlier releases
            del values["keep"]
        return {"version": FORMAT, **values, "corpus": corpus}

    @classmethod
    def from_index(cls, index: DataIndex, path: Path) -> "Recipe":
        """Restore a recipe from data.json at `path`; raise a DataError if it is damaged, or from another version."""
        data = dict(index.settings)
        if data.pop("version", None) != FORMAT:
            raise DataError(f"{path}: was prepared by another version of pretune; prepare the data again (--overwrite)")
        corpus = data.pop("corpus", None)
        try:
            corpus.setdefault("reference", [])
            pairs = [tuple((str(n), str(d)) for n, d in corpus[split]) for split in ("train", "valid", "reference")]
            settings = from_dict(PrepareConfig, data, location="")
            return cls(settings, index.tokenizer_sha256, *pairs)
        except (PretuneError, AttributeError, TypeError, KeyError, ValueError):
            raise DataError(f"{path}: 'settings' is damaged; prepare the data again (--overwrite)") from None

    def describe_change(self, previous: "Recipe") -> str | None:
        """Return a description of the first difference from `previous`, or None if both are equal."""
        if self.tokenizer != previous.tokenizer:
            return f"the tokenizer is {self.tokenizer[:12]}…, it was {previous.tokenizer[:12]}…"
        new_values, old_values = to_dict(self.settings), to_dict(previous.settings)
        for name in new_values:
            if new_values[name] != old_values[name]:
                return f"{name} is {format_value(new_values[name])}, it was {format_value(old_values[name])}"
        change = _describe_source_change("", self.train, previous.train)
        change = change or _describe_source_change("validation ", self.valid, previous.valid)
        return change or _describe_source_change("reference ", self.reference, previous.reference)


def parse_share(value: str | float, name: str = "holdout") -> float:
    """Parse a share from 0 to 1, given as a number or as text such as "1%"; raise a UsageError for other values.

    >>> parse_share("0.5%"), parse_share("0.01"), parse_share(0)
    (0.005, 0.01, 0.0)
    """
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise UsageError(f"{name} must be a share from 0 to 1, such as '1%' or 0.01, got '{text[:40]}'")
    return number


def _hash_sources(corpus: Corpus) -> tuple[tuple[str, str], ...]:
    identities = [[item.compute_identity() for item in source.items] for source in corpus.sources]
    digests = [hashlib.sha256(json.dumps(part, allow_nan=False).encode()).hexdigest() for part in identities]
    return tuple(zip((source.name for source in corpus.sources), digests, strict=True))


def _describe_source_change(
    kind: str, current: Sequence[tuple[str, str]], previous: Sequence[tuple[str, str]]
) -> str | None:
    """Return a description of the first added, changed, removed or moved source, or None; `kind` precedes "source"."""
    old, new = dict(previous), dict(current)
    for name, digest in current:
        if name not in old:
            return f"the {kind}source '{name}' was added"
        if old[name] != digest:
            return f"the {kind}source '{name}' has changed"
    for name, _ in previous:
        if name not in new:
            return f"the {kind}source '{name}' was removed"
    return None if list(current) == list(previous) else f"the order of the {kind}sources has changed"


def format_value(value: object) -> str:
    """Return a setting as text."""
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else "none" if value is None else str(value)


def state_licences(sources: Sequence[SourceRecord], statements: Sequence[str]) -> list[SourceRecord]:
    """Return the descriptions of sources with their licences set.

    A `PATTERN=TEXT` statement overrides the licence of every matching source; the last matching pattern wins. A text
    without a pattern applies only to sources without a known licence.

    Raises:
        UsageError: A statement has no text, or its pattern matches no source.

    >>> state_licences([{"name": "a", "licence": None}, {"name": "b", "licence": None}], ["MIT", "b=own"])
    [{'name': 'a', 'licence': 'MIT'}, {'name': 'b', 'licence': 'own'}]
    """
    names = [str(source["name"]) for source in sources]
    licences = [source["licence"] for source in sources]
    for statement in sorted(statements, key=lambda text: "=" in text):  # stable: first the texts without a pattern
        pattern, equals, text = statement.partition("=") if "=" in statement else ("*", "", statement)
        if not text.strip():
            raise UsageError(
                f"licence '{statement[:60]}' has no text; write TEXT, or PATTERN=TEXT for matching sources"
            )
        numbers = [number for number, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern)]
        if not numbers:
            hint = suggest(pattern, names) or "; write *=TEXT for all sources"
            raise UsageError(f"licence '{statement[:60]}': no source matches '{pattern[:60]}'{hint}")
        for number in numbers:
            if equals or sources[number]["licence"] is None:
                licences[number] = text.strip()
    return [{**source, "licence": licence} for source, licence in zip(sources, licences, strict=True)]
