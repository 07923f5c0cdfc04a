"""A corpus: sources in their order, each a stream of documents, all of it checked before any work begins."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pretune.core.errors import DataError, UsageError, suggest
from pretune.text.corpora.builtin import BUILTINS
from pretune.text.corpora.builtin import PREFIX as BUILTIN
from pretune.text.corpora.decoding import Errors
from pretune.text.corpora.document import Document
from pretune.text.corpora.file_discovery import FileFinder, format_path
from pretune.text.corpora.formats import DocumentBoundary
from pretune.text.corpora.heldout import flag_held_out
from pretune.text.corpora.hub import PREFIX as HUB
from pretune.text.corpora.hub import open_hub_dataset
from pretune.text.corpora.items import FULL_SPAN, CorpusItem, Span
from pretune.text.corpora.pairs import PREFIX as PAIR
from pretune.text.corpora.pairs import open_pairs
from pretune.text.corpora.snapshot import Stamp


@dataclass(frozen=True, slots=True)
class CorpusSource:
    """One input, as it was given: a file, all files of a folder or glob, two sides of parallel text, a built-in corpus,
    a Hub data set, or an item that was made elsewhere.
    """

    name: str
    kind: Literal["file", "folder", "glob", "pair", "builtin", "hub", "given"]
    path: str | None  # of a file or folder
    bytes: int | None  # on the disk, compressed where it is; None where nobody knows
    weight: float
    licence: str | None
    items: tuple[CorpusItem, ...]  # what it is made of, in order


@dataclass(frozen=True, slots=True)
class CorpusPart:
    """A piece of work for one process: a whole file, or a stretch of one that begins and ends with documents."""

    source: int
    item: CorpusItem
    span: Span
    errors: Errors

    def read_documents(self, counts: Counter[str] | None = None) -> Iterator[Document]:
        """The documents in their order; what is left out is added to `counts`."""
        return self.item.read_documents(self.source, self.span, self.errors, Counter() if counts is None else counts)


class Corpus:
    """Several sources, read in order, as often as one likes; made by `open_corpus`."""

    def __init__(self, sources: Sequence[CorpusSource], skipped: Mapping[str, int], errors: Errors = "strict") -> None:
        self.sources = tuple(sources)
        self._skipped = Counter(skipped)
        self._errors = errors
        self._pass_counts: dict[int, Counter[str]] = {}

    @property
    def bytes(self) -> int | None:
        """The size of all sources on the disk; None where one is not known."""
        sizes = [source.bytes for source in self.sources]
        return None if None in sizes else sum(size or 0 for size in sizes)

    @property
    def counts(self) -> dict[str, int]:
        """What was left out: files when the corpus was opened, documents in the latest pass over each source."""
        total = sum(self._pass_counts.values(), self._skipped.copy())
        return {reason: count for reason, count in sorted(total.items()) if count}

    def read_documents(self, source: int | None = None) -> Iterator[Document]:
        """All documents, or those of one source, in an order that is always the same."""
        for index in range(len(self.sources)) if source is None else (source,):
            met = self._pass_counts[index] = Counter()
            for item in self.sources[index].items:
                yield from item.read_documents(index, FULL_SPAN, self._errors, met)

    def split(self, share: float = 0.01) -> Iterator[tuple[Document, bool]]:
        """All documents, each with whether it is held out for validation, by its content (`held_out`)."""
        return flag_held_out(self.read_documents(), share)

    def plan_parts(self, n_bytes: int) -> list[CorpusPart]:
        """Work for parallel readers, each of about `n_bytes` where the text can be cut; together, all documents."""
        if n_bytes < 1:
            raise UsageError(f"a part must have at least 1 byte, found {n_bytes}")
        return [
            CorpusPart(index, item, span, self._errors)
            for index, source in enumerate(self.sources)
            for item in source.items
            for span in item.plan_spans(n_bytes)
        ]

    def list_stamps(self) -> Iterator[Stamp]:
        """The files of all sources, as they were when the corpus was opened; see `Snapshot`."""
        return (stamp for source in self.sources for item in source.items for stamp in item.list_stamps())

    def compute_fingerprint(self) -> str:
        """A SHA-256 over names, sizes, content and how it is read: equal only when the documents are."""
        try:
            whole = [[source.name, [item.compute_identity() for item in source.items]] for source in self.sources]
        except OSError as fault:
            raise DataError(f"{fault.filename}: cannot be read any more: {fault.strerror}") from fault
        return hashlib.sha256(
            json.dumps([whole, self._errors], ensure_ascii=True, allow_nan=False).encode()
        ).hexdigest()


def open_corpus(
    inputs: Sequence[str | CorpusItem],
    *,
    by: DocumentBoundary = "auto",
    field: str | None = None,
    weights: Mapping[str, float] | None = None,
    errors: Errors = "strict",
) -> Corpus:
    """Find and check all that is named: files, folders, globs, `pair:A,B`, `builtin:NAME`, `hf:NAME/…:SPLIT:COLUMN`.

    What is no name is an item, as `items` has them.
    `by` says what makes a document, `field` where a table has its text; `weights` has a number for some of the inputs,
    1 being the weight of the others. With errors="replace" bytes that are no text become U+FFFD and are counted.
    """
    names = [given if isinstance(given, str) else given.name for given in inputs]
    _check_inputs(inputs if isinstance(inputs, str) else names, by, field, weights or {}, errors)
    finder = FileFinder(by, field, errors)
    sources: list[CorpusSource] = []
    for called, given in zip(names, inputs, strict=True):
        weight = float((weights or {}).get(called, 1.0))
        name = format_path(called)
        if not isinstance(given, str):
            sources.append(CorpusSource(name, "given", None, given.bytes, weight, None, (given,)))
        elif given.startswith(PAIR):
            pairs = open_pairs(given, errors)
            sources.append(CorpusSource(name, "pair", None, pairs.bytes, weight, None, (pairs,)))
        elif given.startswith(BUILTIN):
            item = BUILTINS.get(given.removeprefix(BUILTIN))()
            item.check()
            sources.append(CorpusSource(name, "builtin", None, item.bytes, weight, item.licence, (item,)))
        elif given.startswith(HUB):
            sources.append(CorpusSource(name, "hub", None, None, weight, None, (open_hub_dataset(given, field),)))
        else:
            kind, files = finder.find_files(given)
            size = sum(file.bytes for file in files)
            sources.append(
                CorpusSource(name, kind, None if kind == "glob" else given, size, weight, None, tuple(files))
            )
    return Corpus(sources, finder.skip_counts, errors)


def _check_inputs(
    inputs: Sequence[str], by: DocumentBoundary, field: str | None, weights: Mapping[str, float], errors: Errors
) -> None:
    if isinstance(inputs, str):
        raise UsageError(f"inputs must be a list, found the text '{inputs[:60]}'; put it into brackets")
    if not inputs:
        raise DataError("no corpus was given; name files, folders or globs, or 'builtin:docs'")
    for value, known, noun in ((by, DocumentBoundary, "by"), (errors, Errors, "errors")):
        if value not in get_args(known):
            allowed = ", ".join(f"'{option}'" for option in get_args(known))
            raise UsageError(f"unknown {noun}='{value}'{suggest(str(value), get_args(known))} (known: {allowed})")
    if field is not None and by not in ("auto", "field"):
        raise UsageError(f"field='{field}' and by='{by}' exclude each other; leave one away")
    for name, weight in weights.items():
        if name not in inputs:
            raise UsageError(f"a weight is given for '{name}', which is no input{suggest(name, inputs)}")
        if not (weight > 0 and math.isfinite(weight)):
            raise UsageError(f"the weight of '{name}' must be a number above 0, found {weight}")
    twice = [given for given, count in Counter(inputs).items() if count > 1]
    if twice:
        raise UsageError(f"'{twice[0]}' is given twice, which would repeat its text; leave one away")
