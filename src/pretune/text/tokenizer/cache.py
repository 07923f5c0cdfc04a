"""Cached tokenization: each distinct unit of text is encoded once and then looked up.

The library encodes about 1.7 MB of English per second and core (WordPiece, lower case, the machine of docs/results.md).
Words repeat: looked up in a table and concatenated by numpy, they are several times as fast, with the same ids. Text
whose units do not repeat (Chinese, hexadecimal) falls back to the library after a short trial.

A unit is a word with its leading white space: for nearly all tokenizers the tokens of a text are the concatenated
tokens of its units. A unit starts at a space, tab or line break that follows anything else. Text is not split at other
white space or control characters: some tokenizers drop these and join their neighbours, and a run of mixed white space
belongs together.
"""

import re
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain, islice, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from pretune.core.errors import DataError
from pretune.text.tokenizer.files import translate_errors

_SPACE = " \t\n\r"
_CONTROL_CLASS = (
    "\0-\x08\x0b\x0c\x0e-\x1f\x7f-\xa0\xad\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufff9-\ufffd"
)
_UNIT = re.compile(f"[{_SPACE}]*(?:[^{_SPACE}{_CONTROL_CLASS}]+|[{_CONTROL_CLASS}][{_SPACE}]*)+|[{_SPACE}]+")
_CUT_POINT = re.compile(f"[^{_SPACE}{_CONTROL_CLASS}](?=[{_SPACE}])")
_SURROGATE = re.compile("[\ud800-\udfff]")


def split_units(text: str) -> list[str]:
    """Split a text into units; joined they are the text.

    >>> split_units("Two  words,\\nthree.")
    ['Two', '  words,', '\\nthree.']
    """
    return _UNIT.findall(text)


def split_simple_units(text: str) -> list[str] | None:
    """Split a simple text (single spaces and line breaks only) quickly, or return None.

    All units but the first lack their leading space; those that start with a line break are complete.

    >>> split_simple_units("Two words,\\nthree."), split_simple_units("Two  words")
    (['Two', 'words,', '\\nthree.'], None)
    """
    flat = text.replace("\n", " ")
    if "  " in flat or flat[:1] in ("", " ") or flat[-1] == " " or not flat.isprintable():
        return None
    return (text if flat == text else text.replace("\n", " \n")).split(" ")


def split_pieces(text: str, size: int) -> list[str]:
    """Split a text into pieces of about `size` characters that start at units."""
    pieces, start = [], 0
    while len(text) - start > size:
        cut = _CUT_POINT.search(text, start + size)
        if cut is None:
            break
        pieces.append(text[start : cut.end()])
        start = cut.end()
    return [*pieces, text[start:]]


def is_separate(previous: str, unit: str) -> bool:
    """Return whether two units remain separate when concatenated."""
    last = previous[-1]
    return unit[0] in _SPACE and last != " " and last < "\ufff0" and last.isprintable()


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


_ALPHABET = ("a", "B", "9", ".", "'", "中", "é", "\u0301", " ", "\n", "\t", "\u00a0", "\u200b", "\x07", "#", "▁")
_RUNS = ("  ", " \n", "\n\n", "\u00a0 ", " \u00a0")
_SENTENCES = ("It's  here,\n\n\tthere - 3.14 (or 1,000)... \n\n  \n", "  don't\r\nstop \u3000 中文 text 👩‍👩‍👧 ")


def make_probes() -> list[str]:
    """Return every short mix of awkward characters, to test a tokenizer."""
    short = ["".join(letters) for n in (1, 2, 3) for letters in product(_ALPHABET, repeat=n)]
    runs = [f"{left}{run}{right}" for run in _RUNS for left, right in product(_ALPHABET, repeat=2)]
    words = ["".join(letters) for letters in product(("ab", " ", "\n", "é."), repeat=5)]
    return [*short, *runs, *words, *_SENTENCES]


MAX_UNITS = 2**18
"""Maximum number of cached units."""
MAX_CHARACTERS = 2**23
"""Maximum number of cached characters; then the table is cleared. It takes about 60 MB."""
JOINED_CHARACTERS = 8192
"""New units are encoded in texts of about this many characters."""
TRIAL_CHARACTERS, REST_BATCHES = 2**20, 16
"""Characters of the trial, after which a batch of mostly new units sends this many batches to the library."""


_IS_SPACE = np.array([*map(str.isspace, map(chr, range(0x3001))), False])
"""White-space characters by code; the last entry stands for all higher codes."""


class FlatTokens(NamedTuple):
    """Flat tokens of several texts: T tokens, D texts."""

    ids: NDArray[np.uint32]  # [T]
    counts: NDArray[np.int64]  # [D] tokens per text
    word_start: NDArray[np.bool_]  # [T]
    starts: NDArray[np.int32]  # [T] character at which a token starts, without white space before it


def encode_directly(raw: Tokenizer, texts: Sequence[str], wordless: bool = False) -> FlatTokens:
    """Encode texts with the library. If `wordless`, a word starts at every token preceded by white space."""
    with translate_errors(DataError, "the tokenizer cannot encode a text"):
        try:
            encodings = raw.encode_batch(texts, add_special_tokens=False)
        except TypeError:  # NOTE: raised for text that is not valid UTF-8
            texts = [replace_surrogates(text) for text in texts]
            encodings = raw.encode_batch(texts, add_special_tokens=False)
    counts = np.fromiter(map(len, encodings), np.int64, len(encodings))
    total, first = int(counts.sum()), np.cumsum(counts) - counts
    ids = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.uint32, total)
    spans = np.fromiter(chain.from_iterable(chain.from_iterable(e.offsets for e in encodings)), np.int64, 2 * total)
    # The concatenated texts: start and end of tokens in them, and whether a character is white space.
    base = np.repeat(np.cumsum([0, *map(len, texts)])[:-1], counts)
    start, end = spans[::2] + base, spans[1::2] + base
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
    space = np.append(_IS_SPACE[np.minimum(codes, len(_IS_SPACE) - 1)], False)
    word_start = (start < end) & space[start] if wordless else _find_word_starts(encodings, total)
    word_start[first[counts > 0]] = True
    while (is_space := (start + 1 < end) & space[start]).any():
        start = start + is_space
    return FlatTokens(ids, counts, word_start, (start - base).astype(np.int32))


def _find_word_starts(encodings: Sequence[Encoding], total: int) -> NDArray[np.bool_]:
    """Return where the word number changes; a token without one is a word of its own."""
    numbers = chain.from_iterable(e.word_ids for e in encodings)
    words = np.fromiter((-1 if word is None else word for word in numbers), np.int64, total)
    return np.asarray((np.diff(words, prepend=-1) != 0) | (words < 0))


def encode_units(raw: Tokenizer, units: Sequence[str]) -> FlatTokens:
    """Return the tokens of units, counted per unit; they are joined into longer texts first, which halves the time."""
    texts: list[str] = []
    first, size = 0, 0
    for i, unit in enumerate(units):
        if i > first and (size > JOINED_CHARACTERS or not is_separate(units[i - 1], unit)):
            texts.append("".join(units[first:i]))
            first, size = i, 0
        size += len(unit)
    texts.append("".join(units[first:]))
    tokens = encode_directly(raw, texts)
    # Units and the texts made of them are concatenated: a token belongs to the unit in which it starts.
    unit_starts = np.cumsum([0, *map(len, units)])[:-1]
    text_starts = np.cumsum([0, *map(len, texts)])[:-1]
    positions = tokens.starts + np.repeat(text_starts, tokens.counts)
    owners = np.searchsorted(unit_starts, positions, "right") - 1
    counts = np.bincount(owners, minlength=len(units))
    tokens.word_start[(np.cumsum(counts) - counts)[counts > 0]] = True
    return FlatTokens(tokens.ids, counts, tokens.word_start, (positions - unit_starts[owners]).astype(np.int32))


def is_separable(raw: Tokenizer) -> bool:
    """Return whether the tokens of a text are those of its units, tested on every short mix of awkward characters."""
    if raw.pre_tokenizer is None or getattr(raw.model, "dropout", None) is not None:
        return False  # pieces may cross words or be random
    normal = raw.normalizer.normalize_str("of the") if raw.normalizer is not None else "of the"
    if len(raw.pre_tokenizer.pre_tokenize_str(normal)) < 2:
        return False
    texts = make_probes()
    units = [unit for text in texts for unit in split_units(text)]
    try:
        from_texts, from_units = encode_directly(raw, texts), encode_units(raw, units)
        from_single_units = encode_directly(raw, units)
    except DataError:  # closed vocabulary
        return False
    counts = np.add.reduceat(from_units.counts, np.cumsum([0, *(len(split_units(text)) for text in texts)])[:-1])
    unit_columns: Iterable[tuple[Any, Any]] = zip(from_single_units, from_units, strict=True)
    return (
        np.array_equal(from_texts.ids, from_units.ids)
        and np.array_equal(from_texts.counts, counts)
        and all(np.array_equal(*columns) for columns in unit_columns)
    )


class _UnitTable(dict[str, int]):
    """Row of each unit; a missing unit gets the next row and is noted as new."""

    def __init__(self) -> None:
        super().__init__()
        self.new_units: list[str] = []

    def __missing__(self, unit: str) -> int:
        row = self[unit] = len(self)
        self.new_units.append(unit)
        return row


class _SpacedUnits(dict[str, int]):
    """Row of units without their leading space, as `split_simple_units` returns them."""

    def __init__(self, units: _UnitTable) -> None:
        super().__init__()
        self.units = units

    def __missing__(self, part: str) -> int:
        row = self[part] = self.units[part if part[0] == "\n" else " " + part]
        return row


class UnitCache:
    """Cache of a tokenizer whose texts can be encoded unit by unit."""

    def __init__(self, raw: Tokenizer) -> None:
        self.raw = raw
        self.seen_characters = 0  # characters
        self.rest_batches = 0  # remaining batches for the library
        self._clear()

    def _clear(self) -> None:
        self.units = _UnitTable()
        self.spaced_units = _SpacedUnits(self.units)
        self.unit_characters = 0
        # Per unit (after a leading 0: end of its tokens, and its characters), and per token of all units.
        self.bounds, self.sizes = array("q", [0]), array("i")
        self.ids, self.starts, self.word_start = array("I"), array("i"), bytearray()

    def encode(self, texts: Sequence[str]) -> FlatTokens:
        """Return all tokens of the texts."""
        if self.rest_batches:
            self.rest_batches -= 1
            return encode_directly(self.raw, texts)
        if len(self.units) > MAX_UNITS or self.unit_characters > MAX_CHARACTERS:
            self._clear()
        try:
            rows, ends = self._look_up(texts)
            self._encode_new_units(sum(map(len, texts)))
        except BaseException:  # remove units that have a row but no tokens
            self._clear()
            raise
        return self._gather(np.frombuffer(rows, np.int64), np.frombuffer(ends, np.int64))

    def _look_up(self, texts: Sequence[str]) -> "tuple[array[int], array[int]]":
        """Return the row of every unit, and per text the end of its units."""
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
        """Encode new units; if they are most of the text, disable the cache for some batches."""
        new = self.units.new_units
        if not new:
            return
        tokens = encode_units(self.raw, new)
        sizes = array("i", map(len, new))
        self.seen_characters += size
        self.unit_characters += sum(sizes)
        if self.seen_characters > TRIAL_CHARACTERS and 2 * sum(sizes) > size:
            self.rest_batches = REST_BATCHES
        self.sizes += sizes
        self.bounds.frombytes((np.cumsum(tokens.counts) + self.bounds[-1]).tobytes())
        self.ids.frombytes(tokens.ids.tobytes())
        self.starts.frombytes(tokens.starts.tobytes())
        self.word_start += tokens.word_start.tobytes()
        self.units.new_units = []

    def _gather(self, rows: NDArray[np.int64], ends: NDArray[np.int64]) -> FlatTokens:
        bounds, sizes = np.frombuffer(self.bounds, np.int64), np.frombuffer(self.sizes, np.int32)
        first = bounds[rows]
        counts = bounds[rows + 1] - first
        ends_of_tokens = np.cumsum(counts)
        total = int(ends_of_tokens[-1]) if len(ends_of_tokens) else 0
        pick = np.repeat(first - ends_of_tokens + counts, counts) + np.arange(total)
        # Start of a unit in its text: the characters of the preceding units of that text.
        length = sizes[rows].astype(np.int64)
        start = np.cumsum(length) - length
        per_text = np.diff(ends, prepend=0)
        opening = np.concatenate([start, [0]])[ends - per_text]  # a text may have no units
        start -= np.repeat(opening, per_text)
        stops = np.concatenate([[0], ends_of_tokens])[ends]
        return FlatTokens(
            np.frombuffer(self.ids, np.uint32)[pick],
            np.diff(stops, prepend=0),
            np.frombuffer(self.word_start, np.bool_)[pick],
            np.frombuffer(self.starts, np.int32)[pick] + np.repeat(start, counts).astype(np.int32),
        )
