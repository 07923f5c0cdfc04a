"""Language identification by script and frequent words: a guess for tags and counts, not for evaluation.

A script used by one language of the table decides at once (Greek, Thai, Hangul, kana). For Latin, Cyrillic and Arabic
letters, function words decide, a third of running text. One long sentence is mostly enough; a few words are "und", and
a language not in the table is "und" or confused with a related one. Accuracy: tests/text/test_language.py.
"""

import re
import unicodedata
from collections import Counter
from functools import cache
from importlib import resources

UNKNOWN = "und"
"""ISO 639 code of an undetermined language."""

_SAMPLE_CHARACTERS = 5_000  # characters used
_MIN_KNOWN_SHARE = 0.06  # minimum share of known words
_SCRIPTS = {
    "latin": "A-Za-zÀ-ɏḀ-ỿ",
    "cyrillic": "Ѐ-ӿ",
    "arabic": "\u0620-\u06ff",
    "han": "\u3400-\u9fff\U00020000-\U0003134f",
    "ja": "\u3040-\u30ff",
    "ko": "\uac00-\ud7a3\u1100-\u11ff",
    "el": "Ͱ-Ͽἀ-῿",
    "he": "\u05d0-\u05ea",
    "hi": "\u0900-\u097f",
    "th": "\u0e00-\u0e7f",
    "bn": "\u0980-\u09ff",
    "ta": "\u0b80-\u0bff",
    "te": "\u0c00-\u0c7f",
    "ka": "\u10a0-\u10ff",
    "hy": "\u0530-\u058f",
}
UNSPACED_LETTERS = r"\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f\U00020000-\U0003134f"
"""Ranges of a regular expression: characters of scripts without spaces between words (kana, Han, Thai)."""
_LETTERS = {name: re.compile(f"[{letters}]+") for name, letters in _SCRIPTS.items()}
_NOT_LATIN = re.compile(r"[^\x00-\u036f\u1e00-\u206f]+")


@cache
def read_word_lists(name: str) -> dict[tuple[str, str], list[str]]:
    """Read a file of `text/word_lists`: words by section, such as `[en numbers]`; lines with # are comments."""
    text = resources.files("pretune.text").joinpath("word_lists", name).read_text(encoding="utf-8")
    lists: dict[tuple[str, str], list[str]] = {}
    for section in re.findall(r"^\[(\S+) (\S+)\]\n([^\[]*)", text, re.MULTILINE):
        lists[section[0], section[1]] = section[2].split()
    return lists


@cache
def _get_weights(script: str) -> dict[str, list[tuple[str, float]]]:
    """Return the weights of a script's known words by language; words shared by several languages weigh less."""
    owners: dict[str, list[str]] = {}
    for (word_script, lang), words in read_word_lists("frequent_words.txt").items():
        for word in words if word_script == script else ():
            owners.setdefault(word, []).append(lang)
    return {word: [(lang, 1 / len(langs)) for lang in langs] for word, langs in owners.items()}


def guess_language(text: str) -> str:
    """Return the likely ISO 639-1 code of a text, or `UNKNOWN`.

    >>> guess_language("Der Mensch ist frei geboren, und überall liegt er in Ketten.")
    'de'
    """
    sample = text[:_SAMPLE_CHARACTERS]
    letters = _count_scripts(sample)
    if not letters:
        return UNKNOWN
    script = max(letters, key=lambda name: letters[name])
    if script in ("han", "ja"):  # Japanese uses both
        return "ja" if letters.get("ja", 0) > 0.05 * letters.get("han", 0) else "zh"
    return _guess_by_words(sample, script) if _get_weights(script) else script


def _count_scripts(sample: str) -> dict[str, int]:
    """Count the letters of each script."""
    non_latin = "".join(_NOT_LATIN.findall(sample))
    counts = {"latin": sum(map(len, _LETTERS["latin"].findall(sample)))}
    if non_latin:
        counts |= {
            name: sum(map(len, letters.findall(non_latin))) for name, letters in _LETTERS.items() if name != "latin"
        }
    return {name: count for name, count in counts.items() if count}


def _guess_by_words(sample: str, script: str) -> str:
    words = _LETTERS[script].findall(unicodedata.normalize("NFC", sample).lower())
    weights, score = _get_weights(script), dict[str, float]()
    for word, count in Counter(words).items():
        for lang, weight in weights.get(word, ()):
            score[lang] = score.get(lang, 0.0) + weight * count
    best, *runners_up = sorted(score.items(), key=lambda pair: -pair[1]) or [(UNKNOWN, 0.0)]
    sure = best[1] >= max(1.5, _MIN_KNOWN_SHARE * len(words)) and (not runners_up or best[1] > 1.2 * runners_up[0][1])
    return best[0] if sure else UNKNOWN
