"""The fast way from texts to tokens: each distinct unit of text is encoded once and looked up ever after.

The library encodes about 1.7 MB of English a second and core (WordPiece, lower case, the machine of docs/results.md).
Words repeat; found again in a table and laid end to end by numpy, they come several times as fast, with the same ids.
Text whose units do not repeat (Chinese, hexadecimal) takes the library's way after a short trial.
"""

from array import array
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from pretune.core.errors import DataError
from pretune.text.tokenizer.errors import translate_errors
from pretune.text.tokenizer.units import is_separate, make_probes, replace_surrogates, split_simple_units, split_units

MAX_UNITS = 2**18
"""The units kept at most, and …"""
MAX_CHARACTERS = 2**23
"""… their characters; then the table starts anew. This is some 60 MB."""
JOINED_CHARACTERS = 8192
"""New units are encoded in texts of about so many characters."""
TRIAL_CHARACTERS, REST_BATCHES = 2**20, 16
"""After so many characters a batch that is mostly new is the last, and so many batches go the library's way."""


_IS_SPACE = np.array([*(chr(code).isspace() for code in range(0x3001)), False])
"""Which characters are white space, by code; the last stands for all above."""


class FlatTokens(NamedTuple):
    """Flat tokens of several texts: T tokens, D texts."""

    ids: NDArray[np.uint32]  # [T]
    counts: NDArray[np.int64]  # [D] tokens per text
    word_start: NDArray[np.bool_]  # [T]
    starts: NDArray[np.int32]  # [T] the character at which a token starts, white space before it left out


def encode_directly(raw: Tokenizer, texts: Sequence[str], wordless: bool = False) -> FlatTokens:
    """The library's own way. Without words from it (`wordless`) one starts at every token with white space before."""
    with translate_errors(DataError, "this tokenizer has no tokens for a text"):
        try:
            found = raw.encode_batch(texts, add_special_tokens=False)
        except TypeError:  # NOTE: said of anything that is not UTF-8
            texts = [replace_surrogates(text) for text in texts]
            found = raw.encode_batch(texts, add_special_tokens=False)
    counts = np.fromiter(map(len, found), np.int64, len(found))
    total, first = int(counts.sum()), np.cumsum(counts) - counts
    ids = np.fromiter(chain.from_iterable(e.ids for e in found), np.uint32, total)
    spans = np.fromiter(chain.from_iterable(chain.from_iterable(e.offsets for e in found)), np.int64, 2 * total)
    # The texts end to end: where a token starts and ends there, and whether a character is white space.
    base = np.repeat(np.cumsum([0, *map(len, texts)])[:-1], counts)
    start, end = spans[::2] + base, spans[1::2] + base
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
    space = np.append(_IS_SPACE[np.minimum(codes, len(_IS_SPACE) - 1)], False)
    word_start = (start < end) & space[start] if wordless else _find_word_starts(found, total)
    word_start[first[counts > 0]] = True
    while (more := (start + 1 < end) & space[start]).any():
        start = start + more
    return FlatTokens(ids, counts, word_start, (start - base).astype(np.int32))


def _find_word_starts(encodings: Sequence[Encoding], total: int) -> NDArray[np.bool_]:
    """Where the number of the word changes; a token without one is a word of its own."""
    numbers = chain.from_iterable(e.word_ids for e in encodings)
    words = np.fromiter((-1 if word is None else word for word in numbers), np.int64, total)
    return np.asarray((np.diff(words, prepend=-1) != 0) | (words < 0))


def encode_units(raw: Tokenizer, units: Sequence[str]) -> FlatTokens:
    """The tokens of units, counted per unit; they are joined to longer texts first, which takes half the time."""
    texts: list[str] = []
    first, size = 0, 0
    for i, unit in enumerate(units):
        if i > first and (size > JOINED_CHARACTERS or not is_separate(units[i - 1], unit)):
            texts.append("".join(units[first:i]))
            first, size = i, 0
        size += len(unit)
    texts.append("".join(units[first:]))
    found = encode_directly(raw, texts)
    # All units lie end to end, as do the texts made of them: a token belongs to the unit that its start lies in.
    openings = np.cumsum([0, *map(len, units)])[:-1]
    bases = np.cumsum([0, *map(len, texts)])[:-1]
    place = found.starts + np.repeat(bases, found.counts)
    unit_of = np.searchsorted(openings, place, "right") - 1
    counts = np.bincount(unit_of, minlength=len(units))
    found.word_start[(np.cumsum(counts) - counts)[counts > 0]] = True
    return FlatTokens(found.ids, counts, found.word_start, (place - openings[unit_of]).astype(np.int32))


def is_separable(raw: Tokenizer) -> bool:
    """Whether the tokens of a text are those of its units, tried on every short mix of awkward characters."""
    if raw.pre_tokenizer is None or getattr(raw.model, "dropout", None) is not None:
        return False  # pieces may cross words, or differ from call to call
    normal = raw.normalizer.normalize_str("of the") if raw.normalizer is not None else "of the"
    if len(raw.pre_tokenizer.pre_tokenize_str(normal)) < 2:
        return False
    texts = make_probes()
    units = [unit for text in texts for unit in split_units(text)]
    try:
        whole, parts, alone = encode_directly(raw, texts), encode_units(raw, units), encode_directly(raw, units)
    except DataError:  # a closed vocabulary
        return False
    counts = np.add.reduceat(parts.counts, np.cumsum([0, *(len(split_units(text)) for text in texts)])[:-1])
    facts: list[tuple[NDArray[Any], NDArray[Any]]] = [(whole.ids, parts.ids), (whole.counts, counts)]
    facts += [(alone.ids, parts.ids), (alone.counts, parts.counts)]
    facts += [(alone.word_start, parts.word_start), (alone.starts, parts.starts)]
    return all(np.array_equal(one, other) for one, other in facts)


class _UnitTable(dict[str, int]):
    """Unit -> its row; one that is not there gets the next row and is noted as new."""

    def __init__(self) -> None:
        super().__init__()
        self.new_units: list[str] = []

    def __missing__(self, unit: str) -> int:
        row = self[unit] = len(self)
        self.new_units.append(unit)
        return row


class _SpacedUnits(dict[str, int]):
    """The same for units without the space they start with, as `split_simple_units` gives them."""

    def __init__(self, units: _UnitTable) -> None:
        super().__init__()
        self.units = units

    def __missing__(self, part: str) -> int:
        row = self[part] = self.units[part if part[0] == "\n" else " " + part]
        return row


class UnitCache:
    """The table of one tokenizer whose texts may be encoded unit by unit."""

    def __init__(self, raw: Tokenizer) -> None:
        self.raw = raw
        self.seen_characters = 0  # characters
        self.rest_batches = 0  # so many more batches go the library's way
        self._clear()

    def _clear(self) -> None:
        self.units = _UnitTable()
        self.spaced_units = _SpacedUnits(self.units)
        self.unit_characters = 0
        # Per unit (after a leading 0: where its tokens end, and its characters), and per token of all units.
        self.bounds, self.sizes = array("q", [0]), array("i")
        self.ids, self.starts, self.word_start = array("I"), array("i"), bytearray()

    def encode(self, texts: Sequence[str]) -> FlatTokens:
        """All tokens of the texts."""
        if self.rest_batches:
            self.rest_batches -= 1
            return encode_directly(self.raw, texts)
        if len(self.units) > MAX_UNITS or self.unit_characters > MAX_CHARACTERS:
            self._clear()
        try:
            rows, ends = self._look_up(texts)
            self._encode_new_units(sum(map(len, texts)))
        except BaseException:  # units with a row and no tokens must not stay
            self._clear()
            raise
        return self._gather(np.frombuffer(rows, np.int64), np.frombuffer(ends, np.int64))

    def _look_up(self, texts: Sequence[str]) -> "tuple[array[int], array[int]]":
        """The row of every unit, and per text where its units end."""
        rows, ends = array("q"), array("q")
        for text in texts:
            simple = split_simple_units(text)
            if simple is None:
                rows.extend(map(self.units.__getitem__, split_units(text)))
            else:
                rows.append(self.units[simple[0]])
                rows.extend(map(self.spaced_units.__getitem__, islice(simple, 1, None)))
            ends.append(len(rows))
        return rows, ends

    def _encode_new_units(self, size: int) -> None:
        """Encode the new units; where they are most of the text, it is not worth the table."""
        new = self.units.new_units
        if not new:
            return
        found = encode_units(self.raw, new)
        sizes = array("i", map(len, new))
        self.seen_characters += size
        self.unit_characters += sum(sizes)
        if self.seen_characters > TRIAL_CHARACTERS and 2 * sum(sizes) > size:
            self.rest_batches = REST_BATCHES
        self.sizes += sizes
        self.bounds.frombytes((np.cumsum(found.counts) + self.bounds[-1]).tobytes())
        self.ids.frombytes(found.ids.tobytes())
        self.starts.frombytes(found.starts.tobytes())
        self.word_start += found.word_start.tobytes()
        self.units.new_units = []

    def _gather(self, rows: NDArray[np.int64], ends: NDArray[np.int64]) -> FlatTokens:
        bounds, sizes = np.frombuffer(self.bounds, np.int64), np.frombuffer(self.sizes, np.int32)
        first = bounds[rows]
        counts = bounds[rows + 1] - first
        after = np.cumsum(counts)
        total = int(after[-1]) if len(after) else 0
        pick = np.repeat(first - after + counts, counts) + np.arange(total)
        # Where a unit starts in its text: the characters of the units before it in that text.
        length = sizes[rows].astype(np.int64)
        start = np.cumsum(length) - length
        per_text = np.diff(ends, prepend=0)
        opening = np.concatenate([start, [0]])[ends - per_text]  # a text may have no units
        start -= np.repeat(opening, per_text)
        stops = np.concatenate([[0], after])[ends]
        return FlatTokens(
            np.frombuffer(self.ids, np.uint32)[pick],
            np.diff(stops, prepend=0),
            np.frombuffer(self.word_start, np.bool_)[pick],
            np.frombuffer(self.starts, np.int32)[pick] + np.repeat(start, counts).astype(np.int32),
        )
