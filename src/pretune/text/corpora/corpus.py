"""Corpora: ordered sources of documents, validated before any work starts.

Datasets of the Hugging Face Hub are streamed: `hf:name/config:split:column`; needs the extra `hub`.

    hf:roneneldan/TinyStories                               the split `train`, the text column chosen as in any table
    hf:Salesforce/wikitext/wikitext-103-raw-v1:train:text
    hf:wikitext/wikitext-2-raw-v1:validation                a name without owner: tried if `owner/name` does not exist

The content is not hashed. The identity of such a source is its name with the version and sizes that the Hub reports.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pretune.core.errors import DataError, PretuneError, UsageError, import_extra, suggest
from pretune.core.hub import is_repository
from pretune.text.corpora.builtin import BUILTINS
from pretune.text.corpora.builtin import PREFIX as BUILTIN
from pretune.text.corpora.document import Document, DocumentBoundary, choose_field
from pretune.text.corpora.file_discovery import PAIR, FileFinder, format_path, open_pairs
from pretune.text.corpora.items import FULL_SPAN, CorpusFile, CorpusItem, Span, Stamp, WholeItem, make_documents
from pretune.text.corpora.streams import COMPRESSION, Errors

HUB = "hf:"


@dataclass(frozen=True, slots=True)
class HubDataset(WholeItem):
    """A dataset of the Hub, and the column to read."""

    name: str  # as typed
    path: str
    config: str | None
    split: str
    column: str
    facts: tuple[str, ...]  # version and sizes, as reported by the Hub

    @property
    def bytes(self) -> None:
        """Size on disk: unknown."""

    def read_documents(self, source: int, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[Document]:
        return make_documents(self._read_texts(), source, f"{self.name}:row ", counts)

    def compute_identity(self) -> list[object]:
        return [self.name, self.path, self.config, self.split, self.column, *self.facts]

    def list_stamps(self) -> list[Stamp]:
        return []

    def _read_texts(self) -> Iterator[tuple[str, int]]:
        number = 0
        try:
            for number, row in enumerate(_load(self.path, self.config, self.split), 1):
                text = row.get(self.column)
                if text is not None and not isinstance(text, str):
                    raise DataError(f"{self.name}:row {number}: column '{self.column}' does not hold text")
                yield text or "", number
        except PretuneError:
            raise
        except Exception as fault:  # any network error
            raise DataError(f"{self.name}: reading stopped after row {number}: {_format_fault(fault)}") from fault


def parse_address(address: str) -> tuple[list[tuple[str, str | None]], str, str | None]:
    """Return the candidate datasets as (path, config) in order, then the split and the column.

    >>> parse_address("hf:owner/name/config:train:text")
    ([('owner/name', 'config')], 'train', 'text')
    >>> parse_address("hf:one/two")
    ([('one/two', None), ('one', 'two')], 'train', None)
    """
    name, *rest = address.removeprefix(HUB).split(":")
    parts = name.split("/")
    if len(parts) > 3 or len(rest) > 2 or not all(is_repository(part) for part in parts):
        raise UsageError(
            f"'{address}': expected 'hf:name/config:split:column', such as 'hf:roneneldan/TinyStories:train'"
        )
    options: list[tuple[str, str | None]] = [(name, None)]
    if len(parts) == 2:
        options.append((parts[0], parts[1]))
    elif len(parts) == 3:
        options = [("/".join(parts[:2]), parts[2])]
    split, column = (*rest, "", "")[:2]
    return options, split or "train", column or None


def open_hub_dataset(address: str, field: str | None) -> HubDataset:
    """Find a dataset and its column; only its description is loaded."""
    options, split, column = parse_address(address)
    faults: list[str] = []
    for path, config in options:
        try:
            dataset = _load(path, config, split)
        except PretuneError:
            raise
        except Exception as fault:  # the library and the network have dozens of error types
            faults.append(f"'{path}'{f' ({config})' if config else ''}: {_format_fault(fault)}")
            continue
        return HubDataset(
            address, path, config, split, _choose_column(dataset, column or field, address), _get_facts(dataset, split)
        )
    raise DataError(f"{address}: cannot open the dataset; {'; '.join(faults)}")


def _load(path: str, config: str | None, split: str) -> Iterable[Mapping[str, object]]:
    if Path(path).exists():  # the library would read the local path
        raise UsageError(f"'{HUB}{path}': the local path '{path}' would be read instead; omit {HUB} to read it")
    datasets = import_extra("datasets", "hub", f"'{HUB}{path}': needs")
    dataset: Iterable[Mapping[str, object]] = datasets.load_dataset(path, name=config, split=split, streaming=True)
    return dataset


def _choose_column(dataset: Iterable[Mapping[str, object]], column: str | None, address: str) -> str:
    features = getattr(dataset, "features", None)
    if features:
        columns = {name: getattr(kind, "dtype", None) in ("string", "large_string") for name, kind in features.items()}
    else:
        columns = {name: isinstance(value, str) for name, value in next(iter(dataset), {}).items()}
    text_column = choose_field(columns, column, address)
    if not columns[text_column]:
        raise DataError(f"{address}: column '{text_column}' does not hold text")
    return text_column


def _get_facts(dataset: Any, split: str) -> tuple[str, ...]:
    info = getattr(dataset, "info", None)
    split_info = (getattr(info, "splits", None) or {}).get(split)
    return str(getattr(info, "version", None)), str(getattr(split_info, "num_examples", None))


def _format_fault(fault: Exception) -> str:
    return f"{type(fault).__name__}: {' '.join(str(fault).split())[:200]}"


def is_held_out(text: str, share: float) -> bool:
    """Return whether a text is in the held-out share (0 to 1), by a 64-bit hash of its content (BLAKE2b).

        >>> [is_held_out(text, 0.5) for text in ("one", "two", "three", "four")]
        [True, False, True, True]

    Order, neighbours, machine and parallel reading do not matter, and equal texts are always on the same side.
    """
    if not 0 <= share <= 1:
        raise UsageError(f"the held-out share must be from 0 to 1, got {share}")
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


@dataclass(frozen=True, slots=True)
class CorpusSource:
    """An input: file, folder, glob, two sides of parallel text, a built-in corpus, a Hub dataset, or a custom item."""

    name: str
    kind: Literal["file", "folder", "glob", "pair", "builtin", "hub", "given"]
    path: str | None  # of a file or folder
    bytes: int | None  # on disk, possibly compressed; None if unknown
    licence: str | None
    items: tuple[CorpusItem, ...]  # in order


@dataclass(frozen=True, slots=True)
class CorpusPart:
    """Unit of work for one process: a file, or a range of one that starts and ends with documents."""

    source: int
    item: CorpusItem
    span: Span
    errors: Errors

    def read_documents(self, counts: Counter[str] | None = None) -> Iterator[Document]:
        """Yield the documents in order; skipped ones are added to `counts`."""
        return self.item.read_documents(self.source, self.span, self.errors, Counter() if counts is None else counts)


class Corpus:
    """Ordered sources that can be read repeatedly; built by `open_corpus`."""

    def __init__(
        self, sources: Sequence[CorpusSource], skip_counts: Mapping[str, int], errors: Errors = "strict"
    ) -> None:
        self.sources = tuple(sources)
        self._skip_counts = Counter(skip_counts)
        self._errors = errors
        self._pass_counts: dict[int, Counter[str]] = {}

    @property
    def bytes(self) -> int | None:
        """Size of all sources on disk; None if one is unknown."""
        sizes = [source.bytes for source in self.sources]
        return None if None in sizes else sum(size or 0 for size in sizes)

    @property
    def text_bytes(self) -> int | None:
        """Size of the text, of compressed files estimated; None if one is unknown."""
        if self.bytes is None:
            return None
        items = (item for source in self.sources for item in source.items)
        compressed_bytes = sum(item.bytes for item in items if isinstance(item, CorpusFile) and item.format.compression)
        return self.bytes + (COMPRESSION - 1) * compressed_bytes

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of skipped items: files when the corpus was opened, documents in the latest pass over each source."""
        total = sum(self._pass_counts.values(), self._skip_counts.copy())
        return {reason: count for reason, count in sorted(total.items()) if count}

    def read_documents(self, source: int | None = None) -> Iterator[Document]:
        """Yield all documents, or those of one source, always in the same order."""
        for index in range(len(self.sources)) if source is None else (source,):
            counts = self._pass_counts[index] = Counter()
            for item in self.sources[index].items:
                yield from item.read_documents(index, FULL_SPAN, self._errors, counts)

    def plan_parts(self, n_bytes: int) -> list[CorpusPart]:
        """Return parts for parallel readers, each of about `n_bytes` if the text can be split."""
        if n_bytes < 1:
            raise UsageError(f"a part must have at least 1 byte, got {n_bytes}")
        return [
            CorpusPart(index, item, span, self._errors)
            for index, source in enumerate(self.sources)
            for item in source.items
            for span in item.plan_spans(n_bytes)
        ]

    def list_stamps(self) -> Iterator[Stamp]:
        """Yield the stamps of all files, as of opening the corpus; see `FileSnapshot`."""
        return (stamp for source in self.sources for item in source.items for stamp in item.list_stamps())

    def compute_fingerprint(self) -> str:
        """Return a SHA-256 over names, sizes, content and settings: equal only if the documents are."""
        try:
            identity = [[source.name, [item.compute_identity() for item in source.items]] for source in self.sources]
        except OSError as fault:
            raise DataError(f"{fault.filename}: can no longer be read: {fault.strerror}") from fault
        return hashlib.sha256(
            json.dumps([identity, self._errors], ensure_ascii=True, allow_nan=False).encode()
        ).hexdigest()


def open_corpus(
    inputs: Sequence[str | CorpusItem],
    *,
    by: DocumentBoundary = "auto",
    field: str | None = None,
    errors: Errors = "strict",
) -> Corpus:
    """Find and validate inputs: files, folders, globs, `pair:A,B`, `builtin:NAME`, `hf:NAME/…:SPLIT:COLUMN`.

    An input that is not a string is an item (`items.CorpusItem`). `by` is the unit of a document, `field` the text
    field of tables. With errors="replace", invalid bytes become U+FFFD and are counted.
    """
    names = [item if isinstance(item, str) else item.name for item in inputs]
    _check_inputs(inputs if isinstance(inputs, str) else names, by, field, errors)
    finder = FileFinder(by, field, errors)
    sources: list[CorpusSource] = []
    for entry_name, entry in zip(names, inputs, strict=True):
        name = format_path(entry_name)
        if not isinstance(entry, str):
            sources.append(CorpusSource(name, "given", None, entry.bytes, None, (entry,)))
        elif entry.startswith(PAIR):
            pairs = open_pairs(entry, errors)
            sources.append(CorpusSource(name, "pair", None, pairs.bytes, None, (pairs,)))
        elif entry.startswith(BUILTIN):
            builtin = BUILTINS.get(entry.removeprefix(BUILTIN))()
            builtin.check()
            sources.append(CorpusSource(name, "builtin", None, builtin.bytes, builtin.licence, (builtin,)))
        elif entry.startswith(HUB):
            sources.append(CorpusSource(name, "hub", None, None, None, (open_hub_dataset(entry, field),)))
        else:
            kind, files = finder.find_files(entry)
            size = sum(file.bytes for file in files)
            sources.append(CorpusSource(name, kind, None if kind == "glob" else entry, size, None, tuple(files)))
    return Corpus(sources, finder.skip_counts, errors)


def _check_inputs(inputs: Sequence[str], by: DocumentBoundary, field: str | None, errors: Errors) -> None:
    if isinstance(inputs, str):
        raise UsageError(f"inputs must be a list, got the string '{inputs[:60]}'; put it into brackets")
    if not inputs:
        raise DataError("no corpus; pass files, folders or globs, or 'builtin:docs'")
    check_reading_options(by, field, errors)
    duplicates = [entry for entry, count in Counter(inputs).items() if count > 1]
    if duplicates:
        raise UsageError(f"'{duplicates[0]}' is listed twice, which would repeat its text; remove one")


def check_reading_options(by: str, field: str | None, errors: str) -> None:
    """Raise a UsageError for values that `open_corpus` does not allow."""
    for value, option_type, noun in ((by, DocumentBoundary, "by"), (errors, Errors, "errors")):
        if value not in get_args(option_type):
            options = ", ".join(f"'{option}'" for option in get_args(option_type))
            raise UsageError(
                f"unknown {noun}='{value}'{suggest(str(value), get_args(option_type))} (allowed: {options})"
            )
    if field is not None and by not in ("auto", "field"):
        raise UsageError(f"field='{field}' and by='{by}' exclude each other; omit one")
