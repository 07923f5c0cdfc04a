"""The filters: small pure functions from a text to a better one, or to None when it should be dropped.

The rules for lines and pages are those of C4 (Raffel et al., 2020, section 2.2) and MassiveText (Rae et al., 2021,
appendix A.1), with the punctuation of scripts other than Latin. A filter may have one option, a keyword, which a list
of names sets with "=": "short_pages=50".
"""

import re
import unicodedata
from collections.abc import Callable

from pretune.text.language import guess_language
from pretune.text.sentences import split_sentences

# NOTE: the escapes are for controls and halves of surrogate pairs; some are line breaks, which are kept as such.
_CONTROL_CLASS = "\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff\ud800-\udfff"
_CONTROLS_OR_BREAKS = re.compile(f"[{_CONTROL_CLASS}\x0b-\r\x1c-\x1e\x85\u2028\u2029]")
_CONTROLS = re.compile(f"[{_CONTROL_CLASS}]")
_BREAKS = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_NEWLINES = re.compile(r"\n{3,}")
_CITATION = re.compile(r"\[(?:\d{1,3}|edit|citation needed|note \d+|who\?|when\?)\]", re.IGNORECASE)
_SENTENCE_ENDS = (*".!?…。！？」』؟۔।॥။።\"”’»'",)
_POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_SYMBOLS = re.compile(r"[^\w\s.,;:!?'\"()\-–—“”‘’„«»…¿¡।。，、；：？！「」『』（）《》·]")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f]")  # scripts written without spaces


def nfc(text: str) -> str | None:
    """Unicode normal form C: one way to write "é"."""
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def nfkc(text: str) -> str | None:
    """Unicode normal form KC: also "ﬁ" to "fi", "²" to "2", full-width letters to plain ones."""
    return text if unicodedata.is_normalized("NFKC", text) else unicodedata.normalize("NFKC", text)


def remove_controls(text: str) -> str | None:
    """Control characters, byte order marks and halves of characters removed; other line breaks become newlines."""
    return _CONTROLS.sub("", _BREAKS.sub("\n", text)) if _CONTROLS_OR_BREAKS.search(text) else text


def normalise_spaces(text: str) -> str | None:
    """One space for every run of them, none at the ends of lines, at most one empty line between lines."""
    lines = "\n".join([" ".join(line.split()) for line in text.split("\n")]).strip("\n")
    return _NEWLINES.sub("\n\n", lines) if "\n\n\n" in lines else lines


def remove_citations(text: str) -> str | None:
    """Marks of Wikipedia such as [1] and [citation needed] removed (C4)."""
    return _CITATION.sub("", text) if "[" in text else text


def remove_unfinished_lines(text: str) -> str | None:
    """Lines removed that do not end in a full stop, question mark, exclamation mark or closing quote (C4)."""
    return _filter_lines(text, lambda line: line.rstrip(" \t)]}*_").endswith(_SENTENCE_ENDS))


def remove_short_lines(text: str, *, min_words: int = 5) -> str | None:
    """Lines of fewer than `least` words removed (C4)."""
    return _filter_lines(text, lambda line: count_words(line) >= min_words)


def remove_policy_lines(text: str) -> str | None:
    """Lines about JavaScript, cookies and terms of use removed (C4)."""
    lower = text.lower()
    if "javascript" not in lower and not any(policy in lower for policy in _POLICIES):
        return text
    return _filter_lines(text, lambda line: not any(word in line.lower() for word in ("javascript", *_POLICIES)))


def drop_lorem_ipsum(text: str) -> str | None:
    """Pages with "lorem ipsum" dropped (C4)."""
    return None if "lorem ipsum" in text.lower() else text


def drop_curly_braces(text: str) -> str | None:
    """Pages with a curly brace dropped, for they hold code (C4)."""
    return None if "{" in text else text


def drop_short_pages(text: str, *, min_words: int = 50) -> str | None:
    """Pages of fewer than `least` words dropped (MassiveText)."""
    return text if count_words(text) >= min_words else None


def drop_few_sentences(text: str, *, min_sentences: int = 3) -> str | None:
    """Pages of fewer than `least` sentences dropped (C4)."""
    return text if len(split_sentences(text)) >= min_sentences else None


def drop_symbol_pages(text: str, *, max_share: float = 0.1) -> str | None:
    """Pages dropped where more than the share `most` of characters are symbols, neither letters nor punctuation."""
    found = _SYMBOLS.findall(text)
    if len(found) <= max_share * len(text):
        return text
    marks = sum(unicodedata.category(symbol)[0] == "M" for symbol in found)  # vowel signs, as in Hindi, are letters
    return text if len(found) - marks <= max_share * len(text) else None


def drop_repeated_lines(text: str, *, max_share: float = 0.3) -> str | None:
    """Pages dropped where more than the share `most` of lines were there before (MassiveText)."""
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    return text if len(lines) - len({*lines}) <= max_share * len(lines) else None


def drop_other_languages(text: str, *, lang: str = "en") -> str | None:
    """Pages dropped that seem to be in another language than `only`; a guess (`pretune.text.drop_other_languages`)."""
    return text if guess_language(text) == lang else None


def _filter_lines(text: str, keep: Callable[[str], bool]) -> str | None:
    """The lines to keep, empty ones between them included; None when nothing is left."""
    kept = "\n".join(line for line in text.split("\n") if not line.strip() or keep(line)).strip("\n")
    return kept if kept.strip() else None


def count_words(text: str) -> int:
    """How many words a text has; where a script has no spaces, two characters count as one."""
    count = len(text.split())
    return count if text.isascii() else count + len(_UNSPACED.findall(text)) // 2
