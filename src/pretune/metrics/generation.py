"""Scores of generated text: ROUGE-1, -2 and -L (Lin, 2004), equal to the package rouge-score, BLEU and chrF.

ROUGE: tokens are runs of a-z and 0-9 in lower case, so text in other scripts has no tokens and scores 0, as in
rouge-score. F1 of shared n-grams (with multiplicity), or of the longest common subsequence. For several references the
best counts, separately for each score. A corpus score is the mean over its examples.

BLEU and chrF are those of sacrebleu (Post, 2018), the extra `bleu`, as fractions: 0.271 for its 27.1. Do not tokenize
text beforehand: sacrebleu does that (13a for BLEU).
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import Any

from pretune.core.errors import DataError, import_extra
from pretune.metrics import check_pairs, harmonic_mean, to_texts

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


_TOKEN = re.compile("[a-z0-9]+")

PrecisionRecallF1 = tuple[float, float, float]
"""Precision, recall, F1."""


def rouge(
    gold: Iterable[str | Sequence[str]], predictions: Iterable[str], *, use_stemmer: bool = False
) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L, as F1.

    A text without tokens scores 0, even against itself; so does ROUGE-2 of a text with one token.

    >>> rouge(["the cat sat"], ["the cat"])["rouge1"]
    0.8
    """
    left, right = check_pairs(gold, predictions)
    rows = [score_text(reference, text, use_stemmer=use_stemmer) for reference, text in zip(left, right, strict=True)]
    return {name: math.fsum(row[name][2] for row in rows) / len(rows) for name in rows[0]}


def rouge_l(gold: Iterable[str | Sequence[str]], predictions: Iterable[str]) -> float:
    """ROUGE-L alone: F1 of the longest common subsequence of words."""
    return rouge(gold, predictions)["rougeL"]


def rouge_stemmed(gold: Iterable[str | Sequence[str]], predictions: Iterable[str]) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L over Porter stems, the usual setting for summaries."""
    return rouge(gold, predictions, use_stemmer=True)


def score_text(
    gold: str | Sequence[str], prediction: str, *, use_stemmer: bool = False
) -> dict[str, PrecisionRecallF1]:
    """Return precision, recall and F1 of one text by each ROUGE, against its best reference."""
    references = to_texts(gold)
    if not references:
        raise DataError("an example has no reference; at least one is needed")
    tokens = tokenise(prediction, use_stemmer=use_stemmer)
    rows = [_score_tokens(tokenise(reference, use_stemmer=use_stemmer), tokens) for reference in references]
    return {name: max((row[name] for row in rows), key=lambda figures: figures[2]) for name in rows[0]}


def tokenise(text: str, *, use_stemmer: bool = False) -> list[str]:
    """Tokenize as ROUGE does; words of more than three letters are stemmed.

    >>> tokenise("Flies flew (2x)!", use_stemmer=True)
    ['fli', 'flew', '2x']
    """
    tokens = _TOKEN.findall(text.lower())
    return [stem(token) if len(token) > 3 else token for token in tokens] if use_stemmer else tokens


def compute_lcs_length(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the length of the longest common subsequence, bit-parallel (Hyyrö, 2004).

    >>> compute_lcs_length("abcde", "xbyde")
    3
    """
    positions: dict[str, int] = {}
    for i, token in enumerate(left):
        positions[token] = positions.get(token, 0) | 1 << i
    full = (1 << len(left)) - 1
    column = full  # a bit is 0 where the length increases
    for token in right:
        same = column & positions.get(token, 0)
        column = ((column + same) | (column - same)) & full
    return len(left) - column.bit_count()


def _score_tokens(gold: list[str], predictions: list[str]) -> dict[str, PrecisionRecallF1]:
    return {
        "rouge1": _score_ngrams(gold, predictions, 1),
        "rouge2": _score_ngrams(gold, predictions, 2),
        "rougeL": _compute_scores(compute_lcs_length(gold, predictions), len(gold), len(predictions)),
    }


def _score_ngrams(gold: list[str], predictions: list[str], n: int) -> PrecisionRecallF1:
    left, right = (Counter(zip(*(side[i:] for i in range(n)), strict=False)) for side in (gold, predictions))
    return _compute_scores((left & right).total(), left.total(), right.total())


def _compute_scores(n_shared: int, n_gold: int, n_predicted: int) -> PrecisionRecallF1:
    precision, recall = n_shared / max(n_predicted, 1), n_shared / max(n_gold, 1)
    return precision, recall, harmonic_mean(precision, recall)


def bleu(gold: Iterable[str | Sequence[str]], predictions: Iterable[str], **settings: Any) -> float:
    """Corpus BLEU (Papineni et al., 2002) by sacrebleu, with its settings.

    0 if some n-gram order has no n-grams at all, as for texts of under four tokens.
    """
    outputs, references = _transpose_references(gold, predictions)
    return float(_import_sacrebleu().corpus_bleu(outputs, references, **settings).score) / 100


def chrf(gold: Iterable[str | Sequence[str]], predictions: Iterable[str], **settings: Any) -> float:
    """Corpus chrF (Popović, 2015) by sacrebleu: F of character n-grams; `word_order=2` is chrF++."""
    outputs, references = _transpose_references(gold, predictions)
    return float(_import_sacrebleu().corpus_chrf(outputs, references, **settings).score) / 100


def _transpose_references(gold: Iterable[Any], predictions: Iterable[str]) -> tuple[list[str], list[list[str | None]]]:
    """Return the outputs, and their first, second, … references; None for missing ones."""
    left, outputs = check_pairs(gold, predictions)
    references = [to_texts(entry) for entry in left]
    if [] in references:
        raise DataError(f"example {references.index([])} has no reference; at least one is needed")
    return outputs, [list(stream) for stream in zip_longest(*references)]


def _import_sacrebleu() -> Any:
    return import_extra("sacrebleu", "bleu", "BLEU and chrF need")
