"""Rule-based sentence splitting, for languages written with and without spaces.

    >>> text = 'Dr. Smith paid $3.50. "Why?" he asked. 我去。你呢？'
    >>> starts = split_sentences(text)
    >>> [text[start:end] for start, end in zip(starts, [*starts[1:], None])]
    ['Dr. Smith paid $3.50. ', '"Why?" he asked. ', '我去。', '你呢？']

One regular expression finds every candidate; the words on both sides decide. Good enough for next-sentence and
sentence-order objectives and for sentence permutation: docs/results.md has the numbers.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from pretune.core.registry import Registry
from pretune.text.language import read_word_lists

Splitter = Callable[[str, str], list[int]]
"""(text, language) -> the offsets at which sentences start; the first is 0 unless the text is empty."""

SPLITTERS: Registry[Splitter] = Registry(
    "sentence splitter",
    {
        "rules": "pretune.text.sentences:split_rules",
        "lines": "pretune.text.sentences:split_lines",
        "naive": "pretune.text.sentences:split_naive",
    },
)

_EMOTICON = r"[:;=]['-]?[)(DP\]]+(?![\w/])"  # :-)
# NOTE: the pattern starts with one character set, which the engine searches much faster than alternatives.
_END = re.compile(
    rf"""
    [.!?…‥؟۔।॥։።။។。！？｡\n:;=]
    (?:
      (?<=[.!?…‥؟۔।॥։።။។]) (?<![.!?…‥][.!?…‥]) [.!?…‥]*+
      (?P<close> ["'”’“»«›‹)\]}}]*+ (?:[ \xa0\u202f]?»(?=\s)|[ ]{_EMOTICON})? ) (?P<space> \s+ )
    | (?<=[。！？｡]) [。！？｡…]*+ (?P<wide> [”’」』）】》〉"'\])]* ) \s*
    | (?<=\n) (?P<line> \s* )
    | (?<=\s[:;=]) ['-]?[)(DP\]]+(?![\w/]) (?P<face> \s+ )
    )
    """,
    re.VERBOSE,
)
_WORD = re.compile(r"[^\W_][\w'’-]*")
_INITIALS = re.compile(r"[^\W\d_](?:\.[^\W\d_])*")
_OPENERS = " \t\"'“‘„«‹([{¿¡*_#•–—-"
_CONTINUERS = frozenset(",;:)]}”’%/+=.!?…")  # no sentence ends before these
_QUOTE_CONTINUERS = frozenset("とっなのはがをにで，、：；")  # 「そうだ。」と言った
_SHORT_WORDS = {*"as at be by do go he if in is it me my of on or so to up us we".split()}  # noqa: SIM905
_INTERJECTIONS = {*"ah alas bah eh ha hark lo nay no o oh well what why yes".split()}  # noqa: SIM905
_LINE = re.compile(r"\S[^\n]*")
_NAIVE = re.compile(r"(?<=[.!?])\s+")
_BULLETS = ("- ", "* ", "• ", "– ")
_MAX_LINE_WIDTH = 120  # texts with longer lines are not hard-wrapped
_ORDINALS = frozenset({"de", "cs", "pl", "fi", "tr", "da", "no", "nb", "hu", "sk", "sl", "hr", "et", "lv", "sv"})


@dataclass(frozen=True, slots=True)
class Abbreviations:
    """Abbreviations of a language, and typical first words of its sentences (`word_lists/abbreviations.txt`)."""

    non_final: frozenset[str]
    numbers: frozenset[str]
    ambiguous: frozenset[str]
    starters: frozenset[str]
    ordinals: bool  # "3. Oktober": a full stop marks an ordinal number
    loose: bool  # a sentence may start in lower case after ! and ?; not in French: "! dit-il"


@cache
def get_abbreviations(lang: str) -> Abbreviations:
    """Return the lists of a language (ISO 639-1 code); only the common ones if it has none."""
    code, lists = lang.lower().partition("-")[0], read_word_lists("abbreviations.txt")
    words = {
        kind: frozenset(lists.get(("all", kind), []) + lists.get((code, kind), []))
        for kind in ("non_final", "numbers", "ambiguous", "starters")
    }
    return Abbreviations(**words, ordinals=code in _ORDINALS, loose=code == "en")


def split_sentences(text: str, lang: str = "en", splitter: str = "rules") -> list[int]:
    """Return the character offsets at which sentences start; the first is 0 unless the text is empty."""
    return SPLITTERS.get(splitter)(text, lang)


def split_lines(text: str, lang: str = "en") -> list[int]:
    """Split at lines that are not empty, for text that is already split."""
    starts = [match.start() for match in _LINE.finditer(text)]
    return [0, *starts[1:]] if text else []


def split_naive(text: str, lang: str = "en") -> list[int]:
    """Split after every full stop, exclamation or question mark followed by a space: a baseline."""
    return [0, *(match.end() for match in _NAIVE.finditer(text) if match.end() < len(text))] if text else []


def split_rules(text: str, lang: str = "en") -> list[int]:
    """Split by punctuation, abbreviations, initials, numbers, quotes and lines."""
    if not text:
        return []
    words, starts, lines = get_abbreviations(lang), [0], None
    first = len(text) - len(text.lstrip())
    for match in _END.finditer(text):
        kind, end = match.lastgroup, match.end()
        if end == len(text):
            break
        if end <= first:
            continue
        if kind == "wide":
            ends: bool | None = not match["wide"] or text[end] not in _QUOTE_CONTINUERS
        elif kind == "face":
            ends = not text[end].islower()
        else:
            ends = None
            if text.find("\n", match.start(), end) >= 0:
                lines = lines or _LineBreaks(text)
                ends = lines.ends_sentence(match.start(), end)
            if ends is None:
                ends = kind == "space" and _is_sentence_end(text, match, starts[-1], words)
        if ends:
            starts.append(end)
    return starts


def _is_sentence_end(text: str, match: re.Match[str], start: int, words: Abbreviations) -> bool:
    """Return whether a sentence that started at `start` ends with this punctuation, given the surrounding words."""
    position, end = match.start(), match.end()
    following = text[end]
    if following in _CONTINUERS:
        return False
    stop, close = text[position : match.start("close")], match["close"]
    if following in "»›" and (end + 1 == len(text) or text[end + 1].isspace()):
        return False  # French closes with it; German opens with it
    lower = following.islower() and not text.startswith(("http", "www."), end)
    if stop != ".":
        if "!" in stop or "?" in stop:
            if not lower:
                return True
            # "Why?" he asked. "Ah! what a hand." But on the web: "are you sure? i am."
            first_words = text[max(start, position - 9) : position].strip(_OPENERS).lower()
            return words.loose and not close and first_words not in _INTERJECTIONS
        return not lower or stop[0] not in ".…‥"
    if close:
        return not lower
    previous_words = text[max(start, position - 40) : position].split()
    if not previous_words:
        return True
    word = previous_words[-1].lstrip("\"'“‘«([{-–—")
    low = word.lower()
    if low in words.non_final and not (len(word) == 1 and word.isupper()):
        return False
    next_at = end
    while next_at < len(text) and text[next_at] in _OPENERS:
        next_at += 1
    next_word = _WORD.match(text, next_at)
    follower = next_word[0] if next_word else ""
    starter = follower[:1].isupper() and follower.lower().replace("’", "'") in words.starters
    if follower[:1].isdigit() and low in words.numbers:
        return False
    if low in words.ambiguous or word in words.ambiguous or _INITIALS.fullmatch(word):
        return starter and not (len(word) == 1 and len(previous_words) < 2)
    if word.isdigit() or len(word) == 1:
        prefix = text[max(start, position - 40) : position - len(word)].rstrip(_OPENERS)
        if len(word) <= 3 and (not prefix or prefix[-1] in ":;"):
            return False  # 1. The number of an item
        if words.ordinals and len(word) <= 2 and not starter:
            return False  # am 3. Oktober
    if lower:
        return low in _SHORT_WORDS or (len(word) > 2 and word.replace("-", "").isalpha())
    return True


class _LineBreaks:
    """Meaning of newlines in a text: the end of a paragraph, or only of a wrapped line."""

    def __init__(self, text: str) -> None:
        self.text = text
        lines = [line for line in text[: 2**16].split("\n") if line and not line.isspace()]
        lengths = sorted(len(line.rstrip()) for line in lines)
        self.width = lengths[int(0.95 * (len(lengths) - 1))] if lengths else 0
        self.is_caseless = sum(line.lstrip()[0].islower() for line in lines) > 0.8 * len(lines)

    def ends_sentence(self, start: int, end: int) -> bool | None:
        """Return whether the newlines in [start, end) end a sentence; None if the punctuation decides."""
        if self.text.count("\n", start, end) > 1 or self.text[end : end + 2] in _BULLETS:
            return True
        if 40 <= self.width <= _MAX_LINE_WIDTH:
            newline = self.text.index("\n", start)
            line = newline - self.text.rfind("\n", 0, newline) - 1
            next_word = self.text[end : end + _MAX_LINE_WIDTH].split(None, 1)[0]
            if line + 1 + len(next_word) > self.width:
                return None  # the next word did not fit: the line was wrapped
        if self.text[end].islower() and not self.is_caseless:
            return None
        return True
