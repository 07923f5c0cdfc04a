"""Word vectors: lookup, averages, neighbors, and the text format of word2vec; files of vectors of texts.

    vectors = WordVectors.load("vectors.txt")
    vectors["film"], vectors.find_nearest("film"), vectors.average(["A fine film."])

A file has the header `count width` (GloVe's has none), then one word per line with its numbers. Untrusted files are
safe: they are read line by line, and the header is checked against the file size before memory is allocated.
"""

import io as memory
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from pretune.core import io
from pretune.core.errors import DataError, UsageError, import_extra
from pretune.core.io import atomic_write, open_regular
from pretune.text.language import UNSPACED_LETTERS

Floats = NDArray[np.float32]

MAX_LINE = 1 << 20
"""Maximum bytes of a line: a word and about 50,000 numbers."""
_WORD = re.compile(r"\w+(?:['’]\w+)*")
_HEADER = re.compile(rb"([0-9]{1,12}) ([0-9]{1,6}) ?\r?\n?")


def split_words(text: str) -> list[str]:
    """Return the lowercase words of a text in NFC, without punctuation; an apostrophe inside a word belongs to it.

    In scripts without spaces between words (kana, Han, Thai) every character is a word.

    >>> split_words("Don't stop: it's 5 o'clock!"), split_words("好电影 by Ann")
    (["don't", 'stop', "it's", '5', "o'clock"], ['好', '电', '影', 'by', 'ann'])
    """
    if text.isascii():
        return _WORD.findall(text.lower())
    return _compile_word().findall(unicodedata.normalize("NFC", text).lower())


@cache
def _compile_word() -> re.Pattern[str]:
    r"""Return the pattern of words: letters and digits with their combining marks, which `\w` does not match."""
    combining_marks = "".join(
        character for character in map(chr, range(0x300, 0x1F000)) if unicodedata.category(character) in ("Mn", "Mc")
    )
    letters = rf"[^\W{UNSPACED_LETTERS}]"
    word = rf"{letters}+(?:[{combining_marks}]+{letters}*)*"
    return re.compile(rf"(?=\w)[{UNSPACED_LETTERS}][{combining_marks}]*|{word}(?:['’]{word})*")


class WordVectors:
    """Vectors by word, in a fixed order (as trained by pretune: by decreasing frequency).

        vectors = Word2Vec().train(texts)
        vectors["film"], vectors.unknown, vectors.find_nearest("film")
        vectors.average(["A fine film.", "It rained."])      # [2, W]

    An unknown word has the vector `unknown`, the mean of all, as in GloVe. Averages of texts skip unknown words; a text
    without known words gets zeros.
    """

    def __init__(self, words: Sequence[str], matrix: Floats) -> None:
        if matrix.ndim != 2 or len(words) != len(matrix) or not len(words):
            raise UsageError(f"expected one vector for each of {len(words)} words, got an array {matrix.shape}")
        self.words: tuple[str, ...] = tuple(words)
        self.matrix: Floats = np.ascontiguousarray(matrix, dtype=np.float32)
        self.index: Mapping[str, int] = {word: i for i, word in enumerate(self.words)}
        if len(self.index) < len(self.words):
            raise UsageError(f"words must be unique: {len(self.words)} words, {len(self.index)} of them distinct")

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.index

    def __getitem__(self, word: str) -> Floats:
        i = self.index.get(word)
        return self.unknown if i is None else self.matrix[i]

    @property
    def width(self) -> int:
        return int(self.matrix.shape[1])

    @cached_property
    def unknown(self) -> Floats:
        """Vector of unknown words: the mean of all."""
        return np.asarray(self.matrix.mean(axis=0, dtype=np.float64), dtype=np.float32)

    @cached_property
    def _unit_vectors(self) -> Floats:
        return np.asarray(self.matrix / np.maximum(np.linalg.norm(self.matrix, axis=1, keepdims=True), 1e-12))

    def average(self, texts: Iterable[str | Sequence[str]]) -> Floats:
        """Return the mean vector of the known words of each text (or list of words) `[texts, W]`."""
        rows = [self._look_up_ids(text) for text in texts]
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        out = np.zeros((len(rows), self.width), dtype=np.float32)
        for i in np.flatnonzero(lengths):
            out[i] = self.matrix[rows[i]].mean(axis=0)
        return out

    def find_nearest(self, word: str, count: int = 10) -> list[tuple[str, float]]:
        """Return the nearest words by cosine similarity, without the word itself."""
        if count < 1:
            raise UsageError(f"the number of neighbors must be >= 1, got {count}")
        query = self[word] / max(float(np.linalg.norm(self[word])), 1e-12)
        scores = self._unit_vectors @ query
        order = np.argsort(-scores, kind="stable")[: count + 1]
        return [(self.words[i], float(scores[i])) for i in order if self.words[i] != word][:count]

    def compare(self, first: str, second: str) -> float:
        """Return the cosine of the vectors of two words."""
        left, right = self[first].astype(np.float64), self[second].astype(np.float64)
        return float(left @ right) / max(float(np.linalg.norm(left) * np.linalg.norm(right)), 1e-12)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the text format of word2vec: a line `count width`, then a line per word. Values are exact."""
        for word in self.words:
            if not word or word.split() != [word]:
                raise UsageError(f"cannot save the word {word!r}: word2vec files separate columns by spaces")
        # NOTE: numpy writes the shortest decimal that is parsed to the same float32.
        lines = [f"{word} {' '.join(row.astype(str))}\n" for word, row in zip(self.words, self.matrix, strict=True)]
        atomic_write(path, f"{len(self)} {self.width}\n" + "".join(lines))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "WordVectors":
        """Load the text format of word2vec or GloVe (without a header)."""
        file = Path(path)
        try:
            with BufferedReader(open_regular(file)) as stream:
                return cls(*_read_vectors(file, stream))
        except (OSError, ValueError) as error:  # ValueError: a null byte in the name
            raise DataError(f"{file}: cannot read word vectors: {error}") from None

    def _look_up_ids(self, text: str | Sequence[str]) -> list[int]:
        words = split_words(text) if isinstance(text, str) else text
        return [i for word in words if (i := self.index.get(word)) is not None]


def is_word_vectors(path: str | os.PathLike[str]) -> bool:
    """Detect a text file of word vectors by its first line: `count width`, or a word and its numbers."""
    try:
        with BufferedReader(open_regular(path)) as stream:
            line = stream.readline(MAX_LINE)
    except (OSError, ValueError):
        return False
    if _HEADER.fullmatch(line):
        return True
    fields = line.rstrip(b" \r\n").split(b" ")
    try:
        return len(fields) > 2 and bool(np.isfinite(np.array(fields[1:], dtype=np.float32)).all())
    except ValueError:
        return False


def _read_vectors(file: Path, stream: BinaryIO) -> tuple[list[str], Floats]:
    """Read the words and their matrix; memory is at most twice the size of the file."""
    size = os.fstat(stream.fileno()).st_size
    header = _HEADER.fullmatch(stream.readline(MAX_LINE))
    count, width = (int(header[1]), int(header[2])) if header else (None, None)
    if header is None:
        stream.seek(0)
    elif not count or not width or count * (2 * width + 2) > size + 1:  # per word: a letter, spaces, digits, a newline
        raise DataError(f"{file}: expected {count} vectors of width {width}, got {size} bytes; is the file complete?")
    words: list[str] = []
    line_numbers: dict[str, int] = {}
    rows: list[Floats] = []
    matrix = np.empty((count or 0, width or 0), dtype=np.float32)
    for number, line in _read_lines(file, stream, 1 + (header is not None)):
        fields = line.split(" ")
        width = width or len(fields) - 1
        if width < 1:
            raise DataError(f"{file}:{number}: '{fields[0][:40]}' has no numbers; is it a file of word vectors?")
        if (first_line := line_numbers.setdefault(fields[0], number)) != number:
            raise DataError(f"{file}:{number}: duplicate word '{fields[0][:40]}', first in line {first_line}")
        row = _parse_row(file, number, fields, width)
        if count is None:
            rows.append(row)
        elif len(words) < count:
            matrix[len(words)] = row
        words.append(fields[0])
    if not words or (count is not None and count != len(words)):
        expected_content = "one vector per line" if count is None else f"{count} vectors of width {width}"
        raise DataError(f"{file}: expected {expected_content}, got {len(words)}; is the file complete?")
    return words, np.stack(rows) if count is None else matrix


def _read_lines(file: Path, stream: BinaryIO, first: int) -> Iterator[tuple[int, str]]:
    """Yield the non-empty lines with their numbers."""
    for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE), b""), first):
        if len(line) == MAX_LINE:
            raise DataError(f"{file}:{number}: line of {MAX_LINE:,} bytes or more; is it a file of word vectors?")
        try:
            text = line.decode("utf-8").rstrip(" \r\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{file}:{number}: not UTF-8 ({error.reason} at byte {error.start} of the line)") from None
        if text:
            yield number, text


def _parse_row(file: Path, number: int, fields: list[str], width: int) -> Floats:
    """Parse the vector of a line; the first field is the word."""
    try:
        values = np.array(fields[1:], dtype=np.float32)
    except ValueError as error:
        raise DataError(f"{file}:{number}: invalid vector of '{fields[0][:40]}': {error}") from None
    if len(values) != width or not np.isfinite(values).all():
        raise DataError(
            f"{file}:{number}: '{fields[0][:40]}' has {len(values)} numbers, expected {width} finite numbers; "
            "is it a text file of word2vec or GloVe?"
        )
    return values


def write_vectors(path: Path, vectors: NDArray[np.float32], texts: Sequence[str], ids: Sequence[str]) -> None:
    """Write vectors `[n, W]` atomically, in the format of the file name's suffix."""
    if path.suffix == ".npy":
        buffer = memory.BytesIO()
        np.save(buffer, vectors, allow_pickle=False)
        io.atomic_write(path, buffer.getbuffer().tobytes())
    elif path.suffix == ".jsonl":
        rows = zip(ids, texts, vectors, strict=True)
        lines = (
            json.dumps({"id": name, "text": text, "vector": row.tolist()}, ensure_ascii=False, allow_nan=False)
            for name, text, row in rows
        )
        io.atomic_write(path, "".join(f"{line}\n" for line in lines))
    elif path.suffix == ".parquet":
        io.atomic_write(path, _encode_parquet(vectors, texts, ids))
    else:
        raise UsageError(f"unsupported format '{path}'; use .npy, .jsonl or .parquet")


def _encode_parquet(vectors: NDArray[np.float32], texts: Sequence[str], ids: Sequence[str]) -> bytes:
    pa = import_extra("pyarrow", "parquet", "writing Parquet needs")
    parquet = import_extra("pyarrow.parquet", "parquet", "writing Parquet needs")
    rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    buffer = memory.BytesIO()
    parquet.write_table(pa.table({"id": pa.array(ids), "text": pa.array(texts), "vector": rows}), buffer)
    return buffer.getvalue()
