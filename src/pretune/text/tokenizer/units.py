"""Units of text that can be tokenized independently: a word with its leading white space.

For nearly all tokenizers the tokens of a text are the concatenated tokens of its units, so each distinct unit is
encoded once and then looked up (`pretune.text.tokenizer.cache`). A unit starts at a space, tab or line break that
follows anything else. Text is not split at other white space or control characters: some tokenizers drop these and
join their neighbours, and a run of mixed white space belongs together.
"""

import re
from itertools import product

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
