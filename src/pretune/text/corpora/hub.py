"""Datasets of the Hugging Face Hub, streamed: `hf:name/config:split:column`; needs the extra `hub`.

    hf:roneneldan/TinyStories                               the split `train`, the text column chosen as in any table
    hf:Salesforce/wikitext/wikitext-103-raw-v1:train:text
    hf:wikitext/wikitext-2-raw-v1:validation                a name without owner: tried if `owner/name` does not exist

The content is not hashed. The identity of such a source is its name with the version and sizes that the Hub reports.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretune.core.errors import DataError, PretuneError, UsageError, import_extra
from pretune.core.hub import is_repository
from pretune.text.corpora.document import Document, choose_field
from pretune.text.corpora.items import FULL_SPAN, Span, Stamp, make_documents
from pretune.text.corpora.streams import Errors

PREFIX = "hf:"


@dataclass(frozen=True, slots=True)
class HubDataset:
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

    def plan_spans(self, n_bytes: int) -> list[Span]:
        return [FULL_SPAN]

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
    name, *rest = address.removeprefix(PREFIX).split(":")
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


def _load(path: str, config: str | None, split: str) -> Iterable[Mapping[str, Any]]:
    if Path(path).exists():  # the library would read the local path
        raise UsageError(f"'{PREFIX}{path}': the local path '{path}' would be read instead; omit {PREFIX} to read it")
    datasets = import_extra("datasets", "hub", f"'{PREFIX}{path}': needs")
    dataset: Iterable[Mapping[str, Any]] = datasets.load_dataset(path, name=config, split=split, streaming=True)
    return dataset


def _choose_column(dataset: Iterable[Mapping[str, Any]], column: str | None, address: str) -> str:
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
