"""ROUGE-1, -2 and -L (Lin, 2004), equal to the package rouge-score.

Texts are cut into runs of a-z and 0-9 in lower case, so text of other scripts has no tokens and scores 0, as there. F1
of shared n-grams (each counted as often as both have it), or of the longest common subsequence. Of several references
the best counts, for each figure by itself. A corpus has the mean over its examples.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from pretune.core.errors import DataError
from pretune.metrics.checks import check_pairs, harmonic_mean, to_texts
from pretune.metrics.porter import stem

_TOKEN = re.compile("[a-z0-9]+")

PrecisionRecallF1 = tuple[float, float, float]
"""Precision, recall, F1."""


def rouge(
    gold: Iterable[str | Sequence[str]], predicted: Iterable[str], *, use_stemmer: bool = False
) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L, as F1.

    A text without tokens scores 0, also against itself; so does ROUGE-2 of one without two.

    >>> rouge(["the cat sat"], ["the cat"])["rouge1"]
    0.8
    """
    left, right = check_pairs(gold, predicted)
    rows = [score_text(reference, text, use_stemmer=use_stemmer) for reference, text in zip(left, right, strict=True)]
    return {name: math.fsum(row[name][2] for row in rows) / len(rows) for name in rows[0]}


def rouge_stemmed(gold: Iterable[str | Sequence[str]], predicted: Iterable[str]) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L over Porter's stems, as summaries are mostly scored."""
    return rouge(gold, predicted, use_stemmer=True)


def score_text(gold: str | Sequence[str], predicted: str, *, use_stemmer: bool = False) -> dict[str, PrecisionRecallF1]:
    """Precision, recall and F1 of one text by each ROUGE, against the reference that suits it best."""
    references = to_texts(gold)
    if not references:
        raise DataError("an example has no reference; one or more are needed")
    tokens = tokenise(predicted, use_stemmer=use_stemmer)
    rows = [_score_tokens(tokenise(reference, use_stemmer=use_stemmer), tokens) for reference in references]
    return {name: max((row[name] for row in rows), key=lambda figures: figures[2]) for name in rows[0]}


def tokenise(text: str, *, use_stemmer: bool = False) -> list[str]:
    """The tokens that ROUGE sees; words of over three letters are stemmed.

    >>> tokenise("Flies flew (2x)!", stemmed=True)
    ['fli', 'flew', '2x']
    """
    found = _TOKEN.findall(text.lower())
    return [stem(token) if len(token) > 3 else token for token in found] if use_stemmer else found


def compute_lcs_length(left: Sequence[str], right: Sequence[str]) -> int:
    """The length of the longest common subsequence; a column of its table is the bits of a number (Hyyrö, 2004).

    >>> compute_lcs_length("abcde", "xbyde")
    3
    """
    where: dict[str, int] = {}
    for at, token in enumerate(left):
        where[token] = where.get(token, 0) | 1 << at
    full = (1 << len(left)) - 1
    column = full  # a bit is 0 where the column's length steps up
    for token in right:
        same = column & where.get(token, 0)
        column = ((column + same) | (column - same)) & full
    return len(left) - column.bit_count()


def _score_tokens(gold: list[str], predicted: list[str]) -> dict[str, PrecisionRecallF1]:
    return {
        "rouge1": _score_ngrams(gold, predicted, 1),
        "rouge2": _score_ngrams(gold, predicted, 2),
        "rougeL": _compute_scores(compute_lcs_length(gold, predicted), len(gold), len(predicted)),
    }


def _score_ngrams(gold: list[str], predicted: list[str], n: int) -> PrecisionRecallF1:
    left, right = (Counter(zip(*(side[i:] for i in range(n)), strict=False)) for side in (gold, predicted))
    return _compute_scores((left & right).total(), left.total(), right.total())


def _compute_scores(n_shared: int, n_gold: int, n_predicted: int) -> PrecisionRecallF1:
    precision, recall = n_shared / max(n_predicted, 1), n_shared / max(n_gold, 1)
    return precision, recall, harmonic_mean(precision, recall)
