"""Data sets of the Hugging Face Hub, streamed: `hf:name/config:split:column`, behind the extra `hub`.

    hf:roneneldan/TinyStories                               the split `train`, the column found as in any table
    hf:Salesforce/wikitext/wikitext-103-raw-v1:train:text
    hf:wikitext/wikitext-2-raw-v1:validation                a name without owner: tried when `owner/name` is not there

The content is not hashed: it is not here. The identity of such a source is its name with the version and sizes that the
Hub states.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretune.core.errors import DataError, PretuneError, UsageError
from pretune.core.hub import is_repository
from pretune.text.corpora.decoding import Errors
from pretune.text.corpora.document import Document
from pretune.text.corpora.fields import choose_field
from pretune.text.corpora.items import WHOLE, Span, rows
from pretune.text.corpora.snapshot import Stamp

PREFIX = "hf:"


@dataclass(frozen=True, slots=True)
class Hub:
    """A data set, as the Hub knows it, and the column to read."""

    name: str  # as it was typed
    path: str
    config: str | None
    split: str
    column: str
    facts: tuple[str, ...]  # version and sizes, as the Hub states them

    @property
    def bytes(self) -> None:
        """Nobody knows before all of it has come."""

    def documents(self, source: int, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[Document]:
        return rows(self._texts(), source, f"{self.name}:row ", counts)

    def spans(self, n_bytes: int) -> list[Span]:
        return [WHOLE]

    def identity(self) -> list[object]:
        return [self.name, self.path, self.config, self.split, self.column, *self.facts]

    def stamps(self) -> list[Stamp]:
        return []

    def _texts(self) -> Iterator[tuple[str, int]]:
        number = 0
        try:
            for number, row in enumerate(_load(self.path, self.config, self.split), 1):
                text = row.get(self.column)
                if text is not None and not isinstance(text, str):
                    raise DataError(f"{self.name}:row {number}: column '{self.column}' holds no text")
                yield text or "", number
        except PretuneError:
            raise
        except Exception as fault:  # the network, in all its forms
            raise DataError(f"{self.name}: reading stopped after row {number}: {_one_line(fault)}") from fault


def parse(given: str) -> tuple[list[tuple[str, str | None]], str, str | None]:
    """The data sets a name may mean, as (path, config) to be tried in turn, then the split and the column.

    >>> parse("hf:owner/name/config:train:text")
    ([('owner/name', 'config')], 'train', 'text')
    >>> parse("hf:one/two")
    ([('one/two', None), ('one', 'two')], 'train', None)
    """
    name, *rest = given.removeprefix(PREFIX).split(":")
    parts = name.split("/")
    if len(parts) > 3 or len(rest) > 2 or not all(is_repository(part) for part in parts):
        raise UsageError(
            f"'{given}': expected 'hf:name/config:split:column', such as 'hf:roneneldan/TinyStories:train'"
        )
    options: list[tuple[str, str | None]] = [(name, None)]
    if len(parts) == 2:
        options.append((parts[0], parts[1]))
    elif len(parts) == 3:
        options = [("/".join(parts[:2]), parts[2])]
    split, column = (*rest, "", "")[:2]
    return options, split or "train", column or None


def open_hub(given: str, field: str | None) -> Hub:
    """Find a data set and its column; nothing but its description is loaded."""
    options, split, column = parse(given)
    faults: list[str] = []
    for path, config in options:
        try:
            found = _load(path, config, split)
        except PretuneError:
            raise
        except Exception as fault:  # the library has dozens of kinds, and the network more
            faults.append(f"'{path}'{f' ({config})' if config else ''}: {_one_line(fault)}")
            continue
        return Hub(given, path, config, split, _column(found, column or field, given), _facts(found, split))
    raise DataError(f"{given}: cannot be opened; {'; '.join(faults)}")


def _load(path: str, config: str | None, split: str) -> Iterable[Mapping[str, Any]]:
    if Path(path).exists():  # the library would read that, whatever it is
        raise UsageError(
            f"'{PREFIX}{path}': '{path}' is here, and would be read instead of the Hub's; leave {PREFIX} out"
        )
    try:
        import datasets
    except ImportError:
        raise UsageError(f"'{PREFIX}{path}': the Hub needs the extra 'hub': pip install 'pretune[hub]'") from None
    found: Iterable[Mapping[str, Any]] = datasets.load_dataset(path, name=config, split=split, streaming=True)
    return found


def _column(found: Iterable[Mapping[str, Any]], column: str | None, given: str) -> str:
    features = getattr(found, "features", None)
    if features:
        columns = {name: getattr(kind, "dtype", None) in ("string", "large_string") for name, kind in features.items()}
    else:
        columns = {name: isinstance(value, str) for name, value in next(iter(found), {}).items()}
    chosen = choose_field(columns, column, given)
    if not columns[chosen]:
        raise DataError(f"{given}: column '{chosen}' does not hold text")
    return chosen


def _facts(found: Any, split: str) -> tuple[str, ...]:
    info = getattr(found, "info", None)
    known = (getattr(info, "splits", None) or {}).get(split)
    return str(getattr(info, "version", None)), str(getattr(known, "num_examples", None))


def _one_line(fault: Exception) -> str:
    return f"{type(fault).__name__}: {' '.join(str(fault).split())[:200]}"
