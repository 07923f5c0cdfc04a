"""Stage: all tokenized documents on disk, in order, before deduplication and the validation split.

    STAGE/slice.json         number of the slice, number of slices, and counts
    STAGE/units-00000.bin    .npy arrays of every chunk: unfinished, tokens, document ends, sentence starts, word bits
    STAGE/keys.npy …         one row per document: hash, length, size, source, held out, signature, quality

Without `--shard`, `prepare` writes one stage, then writes the splits from it (`dedup_split`) and deletes it. With
`--shard i/n` the stage is published, and `merge` writes the splits from all stages. Both run the same code on the same
documents, so they give the same bytes.
"""

import contextlib
import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pretune.core.config import read_record
from pretune.core.errors import CheckpointError, DataError
from pretune.core.io import check_manifest, open_regular, resolve_inside, translate_write_errors, write_json
from pretune.core.io import remove as remove_file
from pretune.data.prepare.encoding import Chunk, Ints, digests_to_keys
from pretune.data.prepared_data import SLICE_FILE, SliceFile
from pretune.data.shards.files import AtomicWriter, NpyWriter, open_npy, read_npy

_MAX_FILE_BYTES = 2**28  # bytes after which a new file starts; files are deleted one by one as they are read
_COLUMNS = {"keys": "<u8", "lengths": "<i8", "sizes": "<i8", "sources": "<u2", "held": "|b1", "signatures": "<u4"}
_SCORES_COLUMN = {"scores": "<f4"}  # with a quality filter only
_SIDES_COLUMN = "sides"  # optional column: written only if a document has two sides

Rows = dict[str, NDArray[Any]]
"""Values by column, one or one row per document."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The arrays of a chunk, read from disk: T tokens, D documents, S sentences."""

    ids: NDArray[np.unsignedinteger]  # [T]
    ends: Ints  # [D] end of each document
    sentences: Ints  # [S] start of each sentence
    words: NDArray[np.bool_]  # [T] True if the token starts a word
    is_unfinished: bool  # the last document continues in the next piece


class StageWriter(AtomicWriter):
    """Writer of a stage; chunks are added in order. `facts` are additional fields of slice.json."""

    def __init__(self, folder: Path, facts: Mapping[str, object]) -> None:
        self.folder, self.facts = folder, facts
        self.documents = self.tokens = self.characters = 0
        self.counts: Counter[str] = Counter()
        self.languages: Counter[str] = Counter()
        columns = {**_COLUMNS, **(_SCORES_COLUMN if "quality" in facts else {})}
        self._columns = {name: NpyWriter(folder / f"{name}.npy", kind) for name, kind in columns.items()}
        self._names: list[str] = []
        self._file = self._open_next_file()
        self._open_rows: list[Rows] = []  # of the chunks of a document that continues in the next one

    def add(self, chunk: Chunk) -> None:
        """Append a chunk."""
        if self._file.tell() >= _MAX_FILE_BYTES:
            with translate_write_errors(self.folder / self._names[-1]):
                self._file.close()
            self._file = self._open_next_file()
        # NOTE: np.save into the file itself would report a full disk without error number and path.
        buffer = io.BytesIO()
        for values in (np.array([chunk.is_unfinished]), chunk.ids, chunk.ends, chunk.sentences, chunk.words):
            np.save(buffer, values, allow_pickle=False)
        with translate_write_errors(self.folder / self._names[-1]):
            self._file.write(buffer.getbuffer())
        self.counts += chunk.counts
        self.languages += chunk.languages
        self.tokens += len(chunk.ids)
        self.characters += chunk.characters
        self._open_rows.append(_build_rows(chunk))
        if not chunk.is_unfinished:
            self._append(_join_rows(self._open_rows))
            self._open_rows = []

    def close(self) -> None:
        """Complete all files and write slice.json."""
        with translate_write_errors(self.folder / self._names[-1]):
            self._file.close()
        for column in self._columns.values():
            column.close()
        totals = {"documents": self.documents, "tokens": self.tokens, "units": self._names}
        counts = {"counts": dict(sorted(self.counts.items())), "languages": dict(sorted(self.languages.items()))}
        write_json(self.folder / SLICE_FILE, {**totals, **counts, **self.facts})

    def abandon(self) -> None:
        """Close all files without completing them."""
        for column in self._columns.values():
            column.abandon()
        with contextlib.suppress(OSError):  # full disk; already reported
            self._file.close()

    def _open_next_file(self) -> Any:
        self._names.append(f"units-{len(self._names):05}.bin")
        path = self.folder / self._names[-1]
        with translate_write_errors(path):
            return path.open("xb")

    def _append(self, rows: Rows) -> None:
        """Append rows to the columns; create the column of sides at the first document with two sides."""
        if rows[_SIDES_COLUMN].any() and _SIDES_COLUMN not in self._columns:
            self._columns[_SIDES_COLUMN] = NpyWriter(self.folder / f"{_SIDES_COLUMN}.npy", "<i8")
            self._columns[_SIDES_COLUMN].append(np.zeros(self.documents, dtype=np.int64))
        self.documents += len(rows["lengths"])
        for name, column in self._columns.items():
            if name in rows:
                column.append(rows[name].ravel())


def _build_rows(chunk: Chunk) -> Rows:
    """Return the rows of the documents of a chunk."""
    rows: Rows = {
        "keys": chunk.keys,
        "lengths": np.diff(chunk.ends, prepend=0),
        "sizes": chunk.sizes,
        "sources": chunk.sources,
        "held": chunk.is_held_out,
        _SIDES_COLUMN: chunk.sides,
    }
    optional_rows = {"signatures": chunk.signatures, "scores": chunk.scores}
    return {**rows, **{name: values for name, values in optional_rows.items() if values is not None}}


def _join_rows(parts: list[Rows]) -> Rows:
    """Return the row of a document in several chunks; its key is the hash of the keys of its pieces."""
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate([part["keys"] for part in parts]).astype(">u8")
    row: Rows = {**parts[0], "keys": digests_to_keys([hashlib.blake2b(keys.tobytes(), digest_size=16).digest()])}
    for name in ("lengths", "sizes"):
        row[name] = np.sum([part[name] for part in parts], axis=0)
    if "signatures" in row:  # the MinHash signature of a union is the minimum of the signatures
        row["signatures"] = np.minimum.reduce([part["signatures"] for part in parts])
    return row


UNIT_NAME = r"units-\d{5,9}\.bin"


class StageReader:
    """Reader of a complete stage.

    `number` and `count` are the i and n of slice i/n. `documents` is the number of stored documents, `counts` the
    numbers of read, skipped and filtered ones, `languages` the characters per language, `facts` all of slice.json.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        record = read_record(SliceFile, folder / SLICE_FILE, DataError)
        self.facts = record
        self.documents, self.counts = record["documents"], Counter(record["counts"])
        self.languages = Counter(record["languages"])
        self.number, self.count = record["shard"]
        self._units = [resolve_inside(folder, name, DataError, folder / SLICE_FILE) for name in record["units"]]

    @classmethod
    def open(cls, folder: Path) -> "StageReader":
        """Open a published slice; raise a DataError if it is not one, or a file differs from the manifest."""
        if not (folder / SLICE_FILE).is_file():
            raise DataError(
                f"{folder}: has no {SLICE_FILE}, so it is not a slice; make one with `pretune prepare --shard i/n`"
            )
        try:
            check_manifest(folder)
        except CheckpointError as fault:
            raise DataError(f"{fault}; or prepare the slice again") from None
        return cls(folder)

    def read_column(self, name: str) -> NDArray[Any]:
        """Return a column with one value per document; `keys` and `signatures` have one row per document."""
        path = self.folder / f"{name}.npy"
        if name == "keys":
            return open_npy(path, _COLUMNS[name], 2 * self.documents).reshape(self.documents, 2)
        if name == _SIDES_COLUMN:
            exists = path.is_file()
            return open_npy(path, "<i8", self.documents) if exists else np.zeros(self.documents, dtype=np.int64)
        if name == "signatures":
            values = open_npy(path, _COLUMNS[name])
            return values.reshape(self.documents, len(values) // max(self.documents, 1))
        return open_npy(path, {**_COLUMNS, **_SCORES_COLUMN}[name], self.documents)

    def iter_pieces(self, *, remove: bool = False) -> Iterator[Piece]:
        """Yield all chunks in order; with `remove`, delete each file after its last chunk."""
        for path in self._units:
            with io.BufferedReader(_open_unit(path)) as file:
                size = os.fstat(file.fileno()).st_size
                while file.tell() < size:
                    yield _read_piece(file, path)
            if remove:
                remove_file(self.folder, path.name, UNIT_NAME)


def _open_unit(path: Path) -> io.FileIO:
    try:
        return open_regular(path)
    except OSError as fault:
        raise DataError(f"{path}: cannot be read: {fault.strerror}; prepare the slice again") from fault


def _read_piece(file: BinaryIO, path: Path) -> Piece:
    """Read the next piece; its documents and sentences lie inside its tokens."""
    head = read_npy(file, path, "|b1")
    ids = read_npy(file, path, "<u2", "<u4")
    ends, sentences = read_npy(file, path, "<i8"), read_npy(file, path, "<i8")
    words = read_npy(file, path, "|u1")
    lengths = np.diff(ends, prepend=0, append=len(ids))
    if len(head) != 1 or 8 * len(words) < len(ids) or (lengths < 0).any():
        raise DataError(f"{path}: its documents do not fit its tokens; prepare the slice again")
    if len(sentences) and not 0 <= sentences.min() <= sentences.max() <= len(ids):
        raise DataError(f"{path}: its sentences do not fit its tokens; prepare the slice again")
    return Piece(ids, ends, sentences, np.unpackbits(words, count=len(ids)).astype(bool), bool(head[0]))
