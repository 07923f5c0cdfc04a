"""Porter stemmer (1980) with NLTK's extensions, as in rouge-score.

    stem("relational") == "relat"     stem("flies") == "fli"     stem("dying") == "die"

A word is a sequence of consonants and vowels, `[C](VC){m}[V]`; m is its measure. Each step applies the first rule of
its table whose ending fits, if the measure of the rest of the word is large enough.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

_IRREGULAR = {
    "skies": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "innings": "inning",
    "outings": "outing",
    "cannings": "canning",
    **{word: word for word in ("sky", "news", "inning", "outing", "canning", "howe", "proceed", "exceed", "succeed")},
}


def _parse_rules(text: str) -> list[tuple[str, str]]:
    """Parse rules "ending>replacement": "ational>ate ness>"."""
    return [(ending, new) for ending, _, new in (rule.partition(">") for rule in text.split())]


_PLURAL_RULES = _parse_rules("sses>ss ies>i ss>ss s>")
_STEP_2_RULES = _parse_rules(
    "ational>ate tional>tion enci>ence anci>ance izer>ize bli>ble alli>al entli>ent eli>e ousli>ous ization>ize "
    "ation>ate ator>ate alism>al iveness>ive fulness>ful ousness>ous aliti>al iviti>ive biliti>ble fulli>ful"
)
_STEP_3_RULES = _parse_rules("icate>ic ative> alize>al iciti>ic ical>ic ful> ness>")
_STEP_4_RULES = _parse_rules(
    "al> ance> ence> er> ic> able> ible> ant> ement> ment> ent> ion> ou> ism> ate> iti> ous> ive> ize>"
)


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Return the stem of a word in lower case; words of one or two letters are unchanged.

    >>> [stem(word) for word in ("caresses", "agreed", "hopping", "happy", "conditional", "adjustment")]
    ['caress', 'agre', 'hop', 'happi', 'condit', 'adjust']
    """
    if word in _IRREGULAR or len(word) <= 2:
        return _IRREGULAR.get(word, word)
    word = _strip_past(_strip_plural(word))
    if word[-1:] == "y" and len(word) > 2 and _find_consonants(word)[-2]:
        word = word[:-1] + "i"
    word = _apply_step_2(word)
    word = _replace_suffix(word, _STEP_3_RULES, 0)
    if word.endswith("ion"):  # only after s or t
        word = word[:-3] if _measure(word[:-3]) > 1 and word[-4] in "st" else word
    else:
        word = _replace_suffix(word, _STEP_4_RULES, 1)
    return _apply_step_5(word)


def _strip_plural(word: str) -> str:
    return word[:-1] if word.endswith("ies") and len(word) == 4 else _replace_suffix(word, _PLURAL_RULES, -1)


def _strip_past(word: str) -> str:
    """Remove -ed and -ing, and repair the ending."""
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        rest = word.removesuffix(ending)
        if rest != word and not all(_find_consonants(rest)):
            break
    else:
        return word
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if _has_double_ending(rest):
        return rest if rest[-1] in "lsz" else rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _has_short_ending(rest) else rest


def _apply_step_2(word: str) -> str:
    if word.endswith("alli") and _measure(word[:-4]) > 0:
        return _apply_step_2(word[:-2])
    if word.endswith("logi"):  # measured including the l
        return word[:-1] if _measure(word[:-3]) > 0 else word
    return _replace_suffix(word, _STEP_2_RULES, 0)


def _apply_step_5(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _has_short_ending(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word


def _replace_suffix(word: str, rules: Iterable[tuple[str, str]], min_measure: int) -> str:
    """Apply the first rule whose ending fits, if the measure of the rest is above `min_measure`."""
    for ending, new in rules:
        if word.endswith(ending):
            rest = word.removesuffix(ending)
            return rest + new if _measure(rest) > min_measure else word
    return word


def _find_consonants(word: str) -> list[bool]:
    """Return which letters are consonants: not a, e, i, o, u, nor a y after a consonant."""
    flags: list[bool] = []
    for letter in word:
        flags.append(letter not in "aeiou" and not (letter == "y" and flags != [] and flags[-1]))
    return flags


def _measure(word: str) -> int:
    """Return how often consonants follow vowels."""
    flags = _find_consonants(word)
    return sum(not current and following for current, following in pairwise(flags))


def _has_double_ending(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _find_consonants(word)[-1]


def _has_short_ending(word: str) -> bool:
    """Return whether a word ends in consonant, vowel, consonant other than w, x, y; or is a vowel and a consonant."""
    flags = _find_consonants(word)
    return flags == [False, True] or (flags[-3:] == [True, False, True] and word[-1] not in "wxy")
