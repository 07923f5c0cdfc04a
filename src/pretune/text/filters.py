"""Filters: pure functions from a text to a cleaned one, or to None to drop it.

The rules for lines and pages are those of C4 (Raffel et al., 2020, section 2.2) and MassiveText (Rae et al., 2021,
appendix A.1), extended to punctuation of other scripts. A filter may have one option, a keyword, which a list of names
sets with "=": "short_pages=50".
"""

import re
import unicodedata
from collections.abc import Callable

from pretune.text.language import guess_language
from pretune.text.sentences import split_sentences

# NOTE: the escapes are controls and lone surrogates; line breaks are kept.
_CONTROL_CLASS = "\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff\ud800-\udfff"
_CONTROLS_OR_BREAKS = re.compile(f"[{_CONTROL_CLASS}\x0b-\r\x1c-\x1e\x85\u2028\u2029]")
_CONTROLS = re.compile(f"[{_CONTROL_CLASS}]")
_BREAKS = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_NEWLINES = re.compile(r"\n{3,}")
_CITATION = re.compile(r"\[(?:\d{1,3}|edit|citation needed|note \d+|who\?|when\?)\]", re.IGNORECASE)
_SENTENCE_ENDS = (*".!?…。！？」』؟۔।॥။።\"”’»'",)
_POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_SYMBOLS = re.compile(r"[^\w\s.,;:!?'\"()\-–—“”‘’„«»…¿¡।。，、；：？！「」『』（）《》·]")
_NO_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f]")  # scripts written without spaces


def nfc(text: str) -> str | None:
    """Normalize to Unicode form C: one way to write "é"."""
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def nfkc(text: str) -> str | None:
    """Normalize to Unicode form KC: also "ﬁ" to "fi", "²" to "2", full-width letters to plain ones."""
    return text if unicodedata.is_normalized("NFKC", text) else unicodedata.normalize("NFKC", text)


def remove_controls(text: str) -> str | None:
    """Remove control characters, byte order marks and lone surrogates; other line breaks become newlines."""
    return _CONTROLS.sub("", _BREAKS.sub("\n", text)) if _CONTROLS_OR_BREAKS.search(text) else text


def normalise_spaces(text: str) -> str | None:
    """Collapse runs of spaces, strip lines, and keep at most one empty line in a row."""
    lines = "\n".join([" ".join(line.split()) for line in text.split("\n")]).strip("\n")
    return _NEWLINES.sub("\n\n", lines) if "\n\n\n" in lines else lines


def remove_citations(text: str) -> str | None:
    """Remove marks of Wikipedia such as [1] and [citation needed] (C4)."""
    return _CITATION.sub("", text) if "[" in text else text


def remove_unfinished_lines(text: str) -> str | None:
    """Remove lines that do not end in a full stop, question mark, exclamation mark or closing quote (C4)."""
    return _filter_lines(text, lambda line: line.rstrip(" \t)]}*_").endswith(_SENTENCE_ENDS))


def remove_short_lines(text: str, *, min_words: int = 5) -> str | None:
    """Remove lines of fewer than `min_words` words (C4)."""
    return _filter_lines(text, lambda line: count_words(line) >= min_words)


def remove_policy_lines(text: str) -> str | None:
    """Remove lines about JavaScript, cookies and terms of use (C4)."""
    lower = text.lower()
    if "javascript" not in lower and not any(policy in lower for policy in _POLICIES):
        return text
    return _filter_lines(text, lambda line: not any(word in line.lower() for word in ("javascript", *_POLICIES)))


def drop_lorem_ipsum(text: str) -> str | None:
    """Drop pages with "lorem ipsum" (C4)."""
    return None if "lorem ipsum" in text.lower() else text


def drop_curly_braces(text: str) -> str | None:
    """Drop pages with a curly brace, which contain code (C4)."""
    return None if "{" in text else text


def drop_short_pages(text: str, *, min_words: int = 50) -> str | None:
    """Drop pages of fewer than `min_words` words (MassiveText)."""
    return text if count_words(text) >= min_words else None


def drop_few_sentences(text: str, *, min_sentences: int = 3) -> str | None:
    """Drop pages of fewer than `min_sentences` sentences (C4)."""
    return text if len(split_sentences(text)) >= min_sentences else None


def drop_symbol_pages(text: str, *, max_share: float = 0.1) -> str | None:
    """Drop pages with more than `max_share` of characters that are neither letters nor punctuation."""
    symbols = _SYMBOLS.findall(text)
    if len(symbols) <= max_share * len(text):
        return text
    combining_count = sum(
        unicodedata.category(symbol)[0] == "M" for symbol in symbols
    )  # vowel signs, as in Hindi, are letters
    return text if len(symbols) - combining_count <= max_share * len(text) else None


def drop_repeated_lines(text: str, *, max_share: float = 0.3) -> str | None:
    """Drop pages with more than `max_share` of repeated lines (MassiveText)."""
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    return text if len(lines) - len({*lines}) <= max_share * len(lines) else None


def drop_other_languages(text: str, *, lang: str = "en") -> str | None:
    """Drop pages in another language than `lang`, as guessed by `pretune.text.language`."""
    return text if guess_language(text) == lang else None


def _filter_lines(text: str, keep: Callable[[str], bool]) -> str | None:
    """Return the lines to keep, with empty lines; None if nothing remains."""
    remaining = "\n".join(line for line in text.split("\n") if not line.strip() or keep(line)).strip("\n")
    return remaining if remaining.strip() else None


def count_words(text: str) -> int:
    """Count words; in scripts without spaces, two characters count as one word."""
    count = len(text.split())
    return count if text.isascii() else count + len(_NO_SPACES.findall(text)) // 2
