"""`PreparedData`: prepared data on disk, returned by `prepare` and accepted by `pretrain`."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from pretune.core.api import PathResult
from pretune.core.config import Count, Ge, Le, Number, read_record
from pretune.core.errors import DataError, UsageError, refuse_broken_link
from pretune.core.io import OWNERS, atomic_directory, list_files, recover, remove_abandoned
from pretune.data.shards import DataIndex, Shards, read_index

CARD_FILE, SLICE_FILE = "card.json", "slice.json"


class CardSplit(TypedDict):
    """The amount of text in a split."""

    tokens: Count
    documents: Count
    bytes: Count


class SourceAmounts(TypedDict, total=False):
    """The amount of text of a source in the training split."""

    documents: Count
    tokens: Count


class CardSource(TypedDict):
    """A text source."""

    name: str
    licence: NotRequired[str | None]
    train: NotRequired[SourceAmounts]


class CardTokenizer(TypedDict):
    """The tokenizer of prepared data."""

    vocab: Count


class FilterCounts(TypedDict):
    """Documents by what a filter did with them."""

    changed: Count
    dropped: Count


class CardSample(TypedDict):
    """The start of a document."""

    document: Count
    source: str
    text: str


class QualityFit(TypedDict):
    """Samples of a quality filter, and its accuracy on held-out documents."""

    reference_documents: Count
    corpus_documents: Count
    accuracy: Number | None


class QualitySource(TypedDict):
    """Documents of a source before and after a quality filter, and their mean score."""

    source: str
    documents: Count
    kept_documents: Count
    score: Number


class QualityExample(TypedDict):
    """The start of a document that a quality filter kept or dropped."""

    is_kept: bool
    score: Number
    source: str
    text: str


class CardQuality(QualityFit):
    """Outcome of a quality filter."""

    keep: Number | None
    shift: Number
    kept_documents: Count
    dropped_documents: Count
    sources: list[QualitySource]
    examples: list[QualityExample]


class CardFile(TypedDict):
    """card.json of prepared data."""

    splits: dict[str, CardSplit]
    sources: list[CardSource]
    languages: NotRequired[dict[str, Number] | None]
    skipped: NotRequired[dict[str, Count] | None]
    filters: NotRequired[dict[str, FilterCounts]]
    dropped: NotRequired[dict[str, Count] | None]
    lacking: NotRequired[str | None]
    quality: NotRequired[CardQuality | None]
    samples: NotRequired[list[CardSample]]
    tokenizer: NotRequired[CardTokenizer | None]
    command: NotRequired[str]
    fingerprint: NotRequired[str]


SliceNumber = Annotated[int, Ge(1), Le(999_999)]


class SourceRecord(TypedDict):
    """A text source of a slice."""

    name: str
    kind: str
    files: Count
    bytes: Count | None
    licence: str | None


class SliceFile(TypedDict):
    """The content of slice.json."""

    documents: Count
    counts: dict[str, Count]
    languages: dict[str, Count]
    shard: tuple[SliceNumber, SliceNumber]
    units: list[str]
    sources: list[SourceRecord]
    opened: dict[str, Count]
    quality: NotRequired[QualityFit]


@dataclass(frozen=True, slots=True)
class PreparedData(PathResult):
    """A directory of prepared data; accepted wherever its path is.

    data = pt.prepare(["books/"], tokenizer=tok, out="data/books")
    data.tokens, data.card["languages"], data.open_shards("valid")
    """

    path: Path
    index: DataIndex
    is_new: bool = field(default=True, compare=False)  # False if the directory was already up to date

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, is_new: bool = False) -> "PreparedData":
        """Open an existing directory of prepared data.

        Raises:
            DataError: The directory is not prepared data, or the size or type of a file is wrong.
        """
        folder = Path(path)
        index = read_index(folder)
        for split in index.splits:
            Shards.open(folder, split, verify=False)
        return cls(folder, index, is_new)

    @property
    def tokens(self) -> int:
        """Number of training tokens."""
        return self.index.splits["train"].tokens if "train" in self.index.splits else 0

    @property
    def vocab(self) -> int:
        return self.index.vocab

    @property
    def fingerprint(self) -> str:
        return self.index.fingerprint

    @property
    def tokenizer(self) -> Path:
        """Directory of the tokenizer that produced the data."""
        return self.path / "tokenizer"

    @property
    def card(self) -> dict[str, Any]:
        """The content of card.json."""
        return {**read_record(CardFile, self.path / CARD_FILE, DataError)}

    @property
    def slice(self) -> str | None:
        """Slice as "i/n", such as "1/4"; None for complete data. A slice has no splits until it is merged."""
        if not (self.path / SLICE_FILE).is_file():
            return None
        return "/".join(str(number) for number in read_record(SliceFile, self.path / SLICE_FILE, DataError)["shard"])

    def open_shards(self, split: str = "train") -> Shards:
        """Open the shards of a split."""
        return Shards.open(self.path, split)

    def to_dict(self) -> dict[str, Any]:
        """Return a summary, JSON-ready."""
        counts = ("documents", "tokens", "sentences", "bytes", "pairs")
        return {
            "path": str(self.path),
            "made": self.is_new,
            "slice": self.slice,
            "fingerprint": self.fingerprint,
            "vocab": self.vocab,
            "dtype": self.index.dtype,
            "sources": list(self.index.sources),
            "splits": {
                name: {count: getattr(split, count) for count in counts} for name, split in self.index.splits.items()
            },
        }


@contextlib.contextmanager
def publish_directory(out: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary directory that becomes `out`; remove files of older prepared data, never other files.

    Without `overwrite`, `out` must be empty or absent.

    Raises:
        UsageError: `out` contains files that are not prepared data.
    """
    refuse_broken_link(out)
    recover(out)
    remove_abandoned(out)
    foreign = [name for name in list_files(out) if not OWNERS["data"].pattern.fullmatch(name)]
    if foreign and overwrite:
        raise UsageError(
            f"cannot overwrite '{out}': it contains '{foreign[0]}', which is not prepared data; "
            "move that file or choose another --out"
        )
    with atomic_directory(out, overwrite=overwrite, owner="data") as folder:
        yield folder
