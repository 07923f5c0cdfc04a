"""Exact match and F1 of answers as in the official SQuAD scripts (Rajpurkar et al., 2016 and 2018), and ReCoRD's.

Gold holds the accepted answers of each question, of which the best match counts; predictions are one text per
question. Both are compared without case, punctuation, articles and extra spaces; F1 is that of their bags of words.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from pretune.core.errors import DataError
from pretune.metrics import check_finite, check_pairs, harmonic_mean, to_texts
from pretune.metrics.classification import average_scores

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_TRIVIA_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation + "\u2018\u2019\u00b4`", " "))

Answers = str | Sequence[str]


def normalise(text: str) -> str:
    """Normalize a text as SQuAD does.

    >>> normalise("The  Denver-Broncos!")
    'denverbroncos'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_score(gold: str, prediction: str) -> float:
    """Return 1 if both texts are equal after normalization, else 0."""
    return float(normalise(gold) == normalise(prediction))


def token_f1(gold: str, prediction: str) -> float:
    """F1 of the words of two texts; 0 if either has none, as in SQuAD 1.1.

    >>> token_f1("Denver Broncos", "the Broncos")
    0.6666666666666666
    """
    left, right = normalise(gold).split(), normalise(prediction).split()
    same = (Counter(left) & Counter(right)).total()
    return harmonic_mean(same / len(right), same / len(left)) if same else 0.0


def exact_match(gold: Iterable[Answers], predictions: Iterable[str]) -> float:
    """Share of answers that equal an accepted one, after SQuAD's normalization."""
    left, right = _check_answers(gold, predictions)
    return _mean(exact_score, left, right)


def squad(gold: Iterable[Answers], predictions: Iterable[str]) -> dict[str, float]:
    """SQuAD 1.1: F1 of words, and exact match; every question has an answer.

    NOTE: an answer that normalization empties ("The") has F1 0 even against itself, as in SQuAD's script.
    """
    left, right = _check_answers(gold, predictions)
    return {"f1": _mean(token_f1, left, right), "exact_match": _mean(exact_score, left, right)}


def triviaqa(gold: Iterable[Answers], predictions: Iterable[str]) -> dict[str, float]:
    """TriviaQA (Joshi et al., 2017): exact match and F1 of words against the best alias.

    Its normalization turns punctuation and underscores into spaces, where SQuAD's removes punctuation.

    >>> triviaqa([["Jay-Z", "Shawn Carter"]], ["jay z"])
    {'exact_match': 1.0, 'f1': 1.0}
    """
    left, right = _check_answers(gold, predictions)
    left = [[text.translate(_TRIVIA_PUNCTUATION) for text in answers] for answers in left]
    right = [text.translate(_TRIVIA_PUNCTUATION) for text in right]
    return {"exact_match": _mean(exact_score, left, right), "f1": _mean(token_f1, left, right)}


def coqa(gold: Iterable[Answers], predictions: Iterable[str]) -> dict[str, float]:
    """CoQA (Reddy et al., 2019): F1 of words and exact match over all turns.

    With several references a prediction is scored against all but one of them, in turn, and the scores are averaged,
    so that it is comparable with a human answer, which cannot be compared with itself.

    >>> coqa([["white", "a white kitten"]], ["white"])
    {'f1': 0.8333333333333333, 'exact_match': 0.5}
    """
    left, right = _check_answers(gold, predictions)
    scores: dict[str, float] = {}
    for name, match in (("f1", _squad2_token_f1), ("exact_match", exact_score)):
        rows = [[match(text, p) for text in answers] for answers, p in zip(left, right, strict=True)]
        scores[name] = math.fsum(_average_best_of_rest(row) for row in rows) / len(rows)
    return scores


def _average_best_of_rest(scores: Sequence[float]) -> float:
    """Return the maximum without each score in turn, averaged; of a single score, itself."""
    if len(scores) == 1:
        return scores[0]
    return math.fsum(max([*scores[:i], *scores[i + 1 :]]) for i in range(len(scores))) / len(scores)


def answer_f1(gold: Iterable[Answers], predictions: Iterable[str]) -> float:
    """F1 of the words of a response and its best reference, averaged, as for dialogue (Dinan et al., 2020)."""
    return _mean(token_f1, *_check_answers(gold, predictions))


def record(gold: Iterable[Answers], predictions: Iterable[str]) -> dict[str, float]:
    """ReCoRD (Zhang et al., 2018): mean of F1 and exact match of the entity, as in SuperGLUE."""
    return average_scores(**squad(gold, predictions))


def squad2(
    gold: Iterable[Answers | None], predictions: Iterable[str], *, no_answer: Iterable[float] | None = None
) -> dict[str, float]:
    """SQuAD 2.0: questions without accepted answers expect an empty prediction.

    `no_answer` holds scores, on any scale, that a question has no answer. The best F1 and exact match over thresholds
    are then reported too, with the threshold: answers with a higher score are withdrawn. Choose it on dev.

    >>> squad2([["Paris"], []], ["paris", "Rome"], no_answer=[-3.0, 2.0])["best_f1"]
    1.0
    """
    left, right = check_pairs(gold, predictions)
    left = [[text for text in to_texts(answers) if normalise(text)] for answers in left]
    rows = {
        name: _score_best(match, left, right)
        for name, match in (("f1", _squad2_token_f1), ("exact_match", exact_score))
    }
    scores = {name: math.fsum(row) / len(row) for name, row in rows.items()}
    if no_answer is not None:
        doubts = check_finite("no-answer score", check_pairs(no_answer, right)[0])
        for name, row in rows.items():
            scores[f"best_{name}"], scores[f"best_{name}_threshold"] = find_best_threshold(left, row, doubts)
    return scores


def find_best_threshold(
    gold: Sequence[Sequence[str]], scores: Sequence[float], no_answer: Sequence[float]
) -> tuple[float, float]:
    """Return the best mean score over thresholds on `no_answer`, and the lowest such threshold.

    `scores` are those without a threshold. Questions with equal `no_answer` are withdrawn together; if nothing is to be
    answered, the threshold is just below the smallest. SQuAD's script splits ties and returns 0 there.
    """
    # Start with all answers withdrawn, which is correct for questions without answers; then admit them by rising score.
    total = best = float(sum(not answers for answers in gold))
    threshold = math.nextafter(min(no_answer), -math.inf)
    order = sorted(range(len(scores)), key=no_answer.__getitem__)
    for score, rows in groupby(order, key=no_answer.__getitem__):
        total += math.fsum(scores[i] - (not gold[i]) for i in rows)
        if total > best + 1e-9:
            best, threshold = total, score
    return best / len(scores), threshold


def _squad2_token_f1(gold: str, prediction: str) -> float:
    """F1 of SQuAD 2.0: if either has no words, both must have none."""
    return token_f1(gold, prediction) if normalise(gold) and normalise(prediction) else exact_score(gold, prediction)


def _check_answers(gold: Iterable[Any], predictions: Iterable[str]) -> tuple[list[list[str]], list[str]]:
    left, right = check_pairs(gold, predictions)
    accepted_answers = [to_texts(answers) for answers in left]
    if [] in accepted_answers:
        raise DataError(
            f"question {accepted_answers.index([])} has no accepted answer; use squad2 for unanswerable questions"
        )
    return accepted_answers, right


def _score_best(match: Callable[[str, str], float], gold: list[list[str]], predictions: list[str]) -> list[float]:
    """Score each prediction against its best accepted answer; against "" if there is none."""
    return [max(match(text, p) for text in g or [""]) for g, p in zip(gold, predictions, strict=True)]


def _mean(match: Callable[[str, str], float], gold: list[list[str]], predictions: list[str]) -> float:
    return math.fsum(_score_best(match, gold, predictions)) / len(gold)
