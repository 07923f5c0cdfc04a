"""Vectors of words: look-up, averages, neighbours, and the text format of word2vec."""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pretune.adapt.static.words import words_of
from pretune.core.errors import DataError, UsageError
from pretune.core.io import atomic_write

Floats = NDArray[np.float32]


class Vectors:
    """One vector a word, in the order of the words (as trained here: by falling frequency).

        vectors = Word2Vec().train(texts)
        vectors["film"], vectors.unknown, vectors.nearest("film")
        vectors.average(["A fine film.", "It rained."])      # [2, W]

    A word that is not there has the vector `unknown`, the mean of all, as GloVe's does. Averages of texts leave unknown
    words out; a text without any known word has zeros.
    """

    def __init__(self, words: Sequence[str], matrix: Floats) -> None:
        if matrix.ndim != 2 or len(words) != len(matrix) or not len(words):
            raise UsageError(f"expected a vector for each of {len(words)} words, found an array {matrix.shape}")
        self.words: tuple[str, ...] = tuple(words)
        self.matrix: Floats = np.ascontiguousarray(matrix, dtype=np.float32)
        self.index: Mapping[str, int] = {word: i for i, word in enumerate(self.words)}
        if len(self.index) < len(self.words):
            raise UsageError(f"a word has two vectors: {len(self.words)} words, {len(self.index)} of them different")

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
        """The vector of every word that is not there: the mean of all."""
        return np.asarray(self.matrix.mean(axis=0, dtype=np.float64), dtype=np.float32)

    @cached_property
    def _unit(self) -> Floats:
        return np.asarray(self.matrix / np.maximum(np.linalg.norm(self.matrix, axis=1, keepdims=True), 1e-12))

    def average(self, texts: Iterable[str | Sequence[str]]) -> Floats:
        """The mean vector of the known words of each text (or list of words) `[texts, W]`."""
        rows = [self._ids(text) for text in texts]
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        out = np.zeros((len(rows), self.width), dtype=np.float32)
        for i in np.flatnonzero(lengths):
            out[i] = self.matrix[rows[i]].mean(axis=0)
        return out

    def nearest(self, word: str, count: int = 10) -> list[tuple[str, float]]:
        """The words whose vectors point the same way most, by cosine, without the word itself."""
        query = self[word] / max(float(np.linalg.norm(self[word])), 1e-12)
        scores = self._unit @ query
        order = np.argsort(-scores, kind="stable")[: count + 1]
        return [(self.words[i], float(scores[i])) for i in order if self.words[i] != word][:count]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the text format of word2vec: a line `words width`, then a line a word. What is read back is equal."""
        for word in self.words:
            if not word or word.split() != [word]:
                raise UsageError(f"the word {word!r} cannot stand in a word2vec file, where spaces part the columns")
        # NOTE: numpy writes the shortest decimal that is read back as the same number of 32 bits.
        lines = [f"{word} {' '.join(row.astype(str))}\n" for word, row in zip(self.words, self.matrix, strict=True)]
        atomic_write(path, f"{len(self)} {self.width}\n" + "".join(lines))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Vectors":
        """Read the text format of word2vec, or that of GloVe, which has no first line."""
        file = Path(path)
        try:
            # NOTE: not splitlines(), for which characters that may stand in a word end a line.
            lines = file.read_bytes().decode("utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file}: no text file of vectors can be read there: {error}") from None
        head = lines[0].split()
        said = (int(head[0]), int(head[1])) if len(head) == 2 and all(map(str.isdecimal, head)) else None
        body = [(number, line.rstrip(" \r").split(" ")) for number, line in enumerate(lines, 1) if line.strip(" \r")]
        body = body[1:] if said else body
        width = said[1] if said else len(body[0][1]) - 1 if body else 0
        if not body or width < 1 or (said and said[0] != len(body)):
            expected = f"{said[0]} vectors of width {said[1]}" if said else "vectors, one a line"
            raise DataError(f"{file}: expected {expected}, found {len(body)}; is the file whole?")
        matrix = np.stack([_row(file, number, fields, width) for number, fields in body])
        return cls([fields[0] for _, fields in body], matrix)

    def _ids(self, text: str | Sequence[str]) -> list[int]:
        found = words_of(text) if isinstance(text, str) else text
        return [i for word in found if (i := self.index.get(word)) is not None]


def _row(file: Path, number: int, fields: list[str], width: int) -> Floats:
    """One vector out of a line's fields, the first of which is the word."""
    try:
        values = np.array(fields[1:], dtype=np.float32)
    except ValueError as error:
        raise DataError(f"{file}:{number}: the vector of '{fields[0][:40]}': {error}") from None
    if len(values) != width or not np.isfinite(values).all():
        raise DataError(
            f"{file}:{number}: '{fields[0][:40]}' has {len(values)} numbers, expected {width} finite ones; "
            "is it a text file of word2vec or GloVe?"
        )
    return values
