"""What prepared data is made of: settings, sources and tokenizer; one fingerprint over all of it, and what changed."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretune.core.config import from_dict, spec, to_dict
from pretune.core.errors import DataError, PretuneError, UsageError
from pretune.text.cleaning import named_filters
from pretune.text.corpora import Corpus, Source
from pretune.text.neardup import NearDuplicates
from pretune.text.sentences import SPLITTERS

FORMAT = 2
"""Of the steps from text to shards: another number makes other data of the same text."""

VALID = 5_000_000
"""The most tokens that are held out; more would make every evaluation slower and none better."""

MIN_VALID_DOCUMENTS, MIN_VALID_TOKENS = 2, 2048
"""A usable validation split: two documents, for objectives that read pairs, and a batch of a run on a CPU."""

MAX_VALID_SHARE = 0.1
"""The share of all tokens that is held out at most to make a validation split usable."""


@spec
class Settings:
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
            named_filters(name)
        if self.near is not None:
            NearDuplicates(self.near)
        SPLITTERS.get(self.sentences)
        if self.lang != "auto" and not self.lang.replace("-", "").isalpha():
            raise UsageError(f"lang is 'auto' or a code such as 'en', found '{self.lang[:40]}'")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings, the tokenizer's hash, and every source with the hash of its content."""

    settings: Settings
    tokenizer: str
    train: tuple[tuple[str, str], ...]
    valid: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, settings: Settings, tokenizer: str, corpus: Corpus, valid: Corpus | None) -> "Recipe":
        """Hash the content of all sources."""
        train = tuple((source.name, _identity(source)) for source in corpus.sources)
        held = tuple((source.name, _identity(source)) for source in valid.sources) if valid else ()
        return cls(settings, tokenizer, train, held)

    @property
    def names(self) -> tuple[str, ...]:
        """The sources as documents number them: those to train on, then those to validate on."""
        return tuple(name for name, _ in (*self.train, *self.valid))

    @property
    def fingerprint(self) -> str:
        """Equal only where the data is."""
        return hashlib.sha256(json.dumps([FORMAT, self.tokenizer, self.plain()], allow_nan=False).encode()).hexdigest()

    def plain(self) -> dict[str, Any]:
        """Settings and sources, JSON-ready; the tokenizer's hash has a place of its own in data.json."""
        corpus = {"train": [list(pair) for pair in self.train], "valid": [list(pair) for pair in self.valid]}
        chosen = {name: value for name, value in to_dict(self.settings).items() if name != "kind"}
        return {"version": FORMAT, **chosen, "corpus": corpus}

    @classmethod
    def read(cls, settings: Mapping[str, Any], tokenizer: str, where: str) -> "Recipe":
        """The recipe that `plain` wrote into a file; `where` names it."""
        data = dict(settings)
        if data.pop("version", None) != FORMAT:
            raise DataError(f"{where}: was prepared by another version of pretune; prepare it again (--overwrite)")
        corpus = data.pop("corpus", None)
        try:
            pairs = {split: tuple((str(n), str(d)) for n, d in corpus[split]) for split in ("train", "valid")}
            return cls(from_dict(Settings, data, where=""), tokenizer, pairs["train"], pairs["valid"])
        except (PretuneError, TypeError, KeyError, ValueError):
            raise DataError(f"{where}: its 'settings' are damaged; prepare it again (--overwrite)") from None

    def change(self, since: "Recipe") -> str | None:
        """In words, the first thing that is not as it was; None where nothing differs."""
        if self.tokenizer != since.tokenizer:
            return f"the tokenizer is {self.tokenizer[:12]}…, it was {since.tokenizer[:12]}…"
        now, then = to_dict(self.settings), to_dict(since.settings)
        for name in now:
            if now[name] != then[name]:
                return f"{name} is {_shown(now[name])}, it was {_shown(then[name])}"
        return _moved("", self.train, since.train) or _moved("validation ", self.valid, since.valid)


def share(value: str | float) -> float:
    """A share from 0 to 1, out of a number or of text such as '1%'.

    >>> share("0.5%"), share("0.01"), share(0)
    (0.005, 0.01, 0.0)
    """
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise UsageError(f"holdout is a share such as '1%' or 0.01, found '{text[:40]}'")
    return number


def _identity(source: Source) -> str:
    whole = [item.identity() for item in source.items]
    return hashlib.sha256(json.dumps(whole, allow_nan=False).encode()).hexdigest()


def _moved(kind: str, now: Sequence[tuple[str, str]], then: Sequence[tuple[str, str]]) -> str | None:
    """The first source that came, went, changed or stands elsewhere."""
    old, new = dict(then), dict(now)
    for name, digest in now:
        if name not in old:
            return f"the {kind}source '{name}' is new"
        if old[name] != digest:
            return f"the {kind}source '{name}' has changed"
    for name, _ in then:
        if name not in new:
            return f"the {kind}source '{name}' is gone"
    return None if list(now) == list(then) else f"the {kind}sources are in another order"


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else "none" if value is None else str(value)
