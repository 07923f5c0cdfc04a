"""Settings, sources and tokenizer of prepared data, their fingerprint and their changes."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretune.core.config import from_dict, spec, to_dict
from pretune.core.errors import DataError, PretuneError, UsageError
from pretune.text.cleaning import resolve_filters
from pretune.text.corpora import Corpus, CorpusSource
from pretune.text.neardup import NearDuplicates
from pretune.text.sentences import SPLITTERS

FORMAT = 2
"""Of the steps from text to shards: another number makes other data of the same text."""

MAX_VALID_TOKENS = 5_000_000
"""The most tokens that are held out; more would make every evaluation slower and none better."""

MIN_VALID_DOCUMENTS, MIN_VALID_TOKENS = 2, 2048
"""A usable validation split: two documents, for objectives that read pairs, and a batch of a run on a CPU."""

MAX_VALID_SHARE = 0.1
"""The share of all tokens that is held out at most to make a validation split usable."""


@spec
class PrepareConfig:
    """Every choice that decides which bytes come out. How many processes do the work is not one of them."""

    by: str = "auto"
    field: str | None = None
    errors: str = "strict"
    clean: tuple[str, ...] = ()
    near: float | None = None
    holdout: float = 0.01
    lang: str = "auto"
    sentences: str = "rules"
    licence: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse what cannot be, before anything is read."""
        for name in self.clean:
            resolve_filters(name)
        if self.near is not None:
            NearDuplicates(self.near)
        SPLITTERS.get(self.sentences)
        if self.lang != "auto" and not self.lang.replace("-", "").isalpha():
            raise UsageError(f"lang must be 'auto' or a code such as 'en', got '{self.lang[:40]}'")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings, the tokenizer's hash, and every source with the hash of its content."""

    settings: PrepareConfig
    tokenizer: str
    train: tuple[tuple[str, str], ...]
    valid: tuple[tuple[str, str], ...]

    @classmethod
    def from_corpus(cls, settings: PrepareConfig, tokenizer: str, corpus: Corpus, valid: Corpus | None) -> "Recipe":
        """Hash the content of all sources."""
        train = tuple((source.name, _hash_source(source)) for source in corpus.sources)
        valid_hashes = tuple((source.name, _hash_source(source)) for source in valid.sources) if valid else ()
        return cls(settings, tokenizer, train, valid_hashes)

    @property
    def names(self) -> tuple[str, ...]:
        """The sources as documents number them: those to train on, then those to validate on."""
        return tuple(name for name, _ in (*self.train, *self.valid))

    @property
    def fingerprint(self) -> str:
        """Equal only where the data is."""
        return hashlib.sha256(
            json.dumps([FORMAT, self.tokenizer, self.to_dict()], allow_nan=False).encode()
        ).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Settings and sources, JSON-ready; the tokenizer's hash has a place of its own in data.json."""
        corpus = {"train": [list(pair) for pair in self.train], "valid": [list(pair) for pair in self.valid]}
        values = {name: value for name, value in to_dict(self.settings).items() if name != "kind"}
        return {"version": FORMAT, **values, "corpus": corpus}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], tokenizer: str, origin: str) -> "Recipe":
        """The recipe that `to_dict` wrote into a file; `where` names it."""
        data = dict(settings)
        if data.pop("version", None) != FORMAT:
            raise DataError(f"{origin}: was prepared by another version of pretune; prepare it again (--overwrite)")
        corpus = data.pop("corpus", None)
        try:
            pairs = {split: tuple((str(n), str(d)) for n, d in corpus[split]) for split in ("train", "valid")}
            return cls(from_dict(PrepareConfig, data, location=""), tokenizer, pairs["train"], pairs["valid"])
        except (PretuneError, TypeError, KeyError, ValueError):
            raise DataError(f"{origin}: its 'settings' are damaged; prepare it again (--overwrite)") from None

    def describe_change(self, previous: "Recipe") -> str | None:
        """In words, the first thing that is not as it was; None where nothing differs."""
        if self.tokenizer != previous.tokenizer:
            return f"the tokenizer is {self.tokenizer[:12]}…, it was {previous.tokenizer[:12]}…"
        new_values, old_values = to_dict(self.settings), to_dict(previous.settings)
        for name in new_values:
            if new_values[name] != old_values[name]:
                return f"{name} is {_format_value(new_values[name])}, it was {_format_value(old_values[name])}"
        return _describe_source_change("", self.train, previous.train) or _describe_source_change(
            "validation ", self.valid, previous.valid
        )


def parse_share(value: str | float) -> float:
    """A share from 0 to 1, out of a number or of text such as '1%'.

    >>> parse_share("0.5%"), parse_share("0.01"), parse_share(0)
    (0.005, 0.01, 0.0)
    """
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise UsageError(f"holdout must be a share such as '1%' or 0.01, got '{text[:40]}'")
    return number


def _hash_source(source: CorpusSource) -> str:
    identities = [item.compute_identity() for item in source.items]
    return hashlib.sha256(json.dumps(identities, allow_nan=False).encode()).hexdigest()


def _describe_source_change(
    kind: str, current: Sequence[tuple[str, str]], previous: Sequence[tuple[str, str]]
) -> str | None:
    """The first source that came, went, changed or stands elsewhere."""
    old, new = dict(previous), dict(current)
    for name, digest in current:
        if name not in old:
            return f"the {kind}source '{name}' is new"
        if old[name] != digest:
            return f"the {kind}source '{name}' has changed"
    for name, _ in previous:
        if name not in new:
            return f"the {kind}source '{name}' is gone"
    return None if list(current) == list(previous) else f"the {kind}sources are in another order"


def _format_value(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else "none" if value is None else str(value)
