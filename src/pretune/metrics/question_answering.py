"""Exact match and F1 of answers as SQuAD's own scripts score them (Rajpurkar et al., 2016 and 2018), and ReCoRD's.

Gold holds each question's accepted answers, of which the best match counts; predicted is one text per question. Both
are compared without case, punctuation, articles and extra spaces; F1 is that of their bags of words.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from pretune.core.errors import DataError
from pretune.metrics.checks import check_finite, check_pairs, harmonic_mean, to_texts
from pretune.metrics.classification import average_scores

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)

Answers = str | Sequence[str]


def normalise(text: str) -> str:
    """A text as SQuAD compares it.

    >>> normalise("The  Denver-Broncos!")
    'denverbroncos'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_score(gold: str, predicted: str) -> float:
    """1 where both are the same once normalised, else 0."""
    return float(normalise(gold) == normalise(predicted))


def token_f1(gold: str, predicted: str) -> float:
    """F1 of the words of two texts; 0 where either has none, as SQuAD 1.1.

    >>> token_f1("Denver Broncos", "the Broncos")
    0.6666666666666666
    """
    left, right = normalise(gold).split(), normalise(predicted).split()
    same = (Counter(left) & Counter(right)).total()
    return harmonic_mean(same / len(right), same / len(left)) if same else 0.0


def exact_match(gold: Iterable[Answers], predicted: Iterable[str]) -> float:
    """The share of answers that equal an accepted one, by SQuAD's normalisation."""
    left, right = _check_answers(gold, predicted)
    return _mean(exact_score, left, right)


def squad(gold: Iterable[Answers], predicted: Iterable[str]) -> dict[str, float]:
    """SQuAD 1.1: F1 of words, and exact match; every question has an answer.

    NOTE: an answer that normalisation empties ("The") has F1 0 even against itself, as in SQuAD's own script.
    """
    left, right = _check_answers(gold, predicted)
    return {"f1": _mean(token_f1, left, right), "exact_match": _mean(exact_score, left, right)}


def record(gold: Iterable[Answers], predicted: Iterable[str]) -> dict[str, float]:
    """ReCoRD (Zhang et al., 2018): F1 and exact match of the entity, averaged, as SuperGLUE does."""
    return average_scores(**squad(gold, predicted))


def squad2(
    gold: Iterable[Answers | None], predicted: Iterable[str], *, no_answer: Iterable[float] | None = None
) -> dict[str, float]:
    """SQuAD 2.0: questions without accepted answers want an empty prediction.

    `no_answer` scores how surely each question has no answer, on any scale. The best F1 and exact match that some
    threshold gives are then reported too, with it: answers whose score lies above it are taken back. Choose it on dev.

    >>> squad2([["Paris"], []], ["paris", "Rome"], no_answer=[-3.0, 2.0])["best_f1"]
    1.0
    """
    left, right = check_pairs(gold, predicted)
    left = [[text for text in to_texts(answers) if normalise(text)] for answers in left]
    rows = {
        name: _score_best(match, left, right)
        for name, match in (("f1", _squad2_token_f1), ("exact_match", exact_score))
    }
    found = {name: math.fsum(row) / len(row) for name, row in rows.items()}
    if no_answer is not None:
        doubts = check_finite("no-answer score", check_pairs(no_answer, right)[0])
        for name, row in rows.items():
            found[f"best_{name}"], found[f"best_{name}_threshold"] = find_best_threshold(left, row, doubts)
    return found


def find_best_threshold(
    gold: Sequence[Sequence[str]], scores: Sequence[float], no_answer: Sequence[float]
) -> tuple[float, float]:
    """The best mean score that a threshold on `no_answer` gives, and the lowest such threshold.

    `scores` are those without any. Questions with equal `no_answer` are taken back together or not at all; where
    nothing should be answered, the threshold lies just below the smallest. SQuAD's script splits ties and says 0 there.
    """
    # All are taken back first, which is right where there is no answer; then they are let through in order of doubt.
    total = best = float(sum(not answers for answers in gold))
    threshold = math.nextafter(min(no_answer), -math.inf)
    order = sorted(range(len(scores)), key=no_answer.__getitem__)
    for doubt, tied in groupby(order, key=no_answer.__getitem__):
        total += math.fsum(scores[at] - (not gold[at]) for at in tied)
        if total > best + 1e-9:
            best, threshold = total, doubt
    return best / len(scores), threshold


def _squad2_token_f1(gold: str, predicted: str) -> float:
    """SQuAD 2.0's F1: where either has no words, both must have none."""
    return token_f1(gold, predicted) if normalise(gold) and normalise(predicted) else exact_score(gold, predicted)


def _check_answers(gold: Iterable[Any], predicted: Iterable[str]) -> tuple[list[list[str]], list[str]]:
    left, right = check_pairs(gold, predicted)
    accepted = [to_texts(answers) for answers in left]
    if [] in accepted:
        raise DataError(f"question {accepted.index([])} has no accepted answer; use squad2 where some have none")
    return accepted, right


def _score_best(match: Callable[[str, str], float], gold: list[list[str]], predicted: list[str]) -> list[float]:
    """Each prediction's score against the accepted answer that suits it best; against "" where there is none."""
    return [max(match(text, p) for text in g or [""]) for g, p in zip(gold, predicted, strict=True)]


def _mean(match: Callable[[str, str], float], gold: list[list[str]], predicted: list[str]) -> float:
    return math.fsum(_score_best(match, gold, predicted)) / len(gold)
