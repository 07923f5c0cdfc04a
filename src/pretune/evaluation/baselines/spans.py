"""Baselines for answers that stand in a passage: its first words, and the words nearest to those of the question."""

import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pretune.core.config import spec

WORD = re.compile(r"\w+(?:['\u2019]\w+)*")

Answers = Sequence[str | None]
"""What is right, one each; None where there is no answer."""
AnswerFinder = Callable[[Sequence[tuple[str, str]]], list[str]]
"""From questions with their passages to answers; "" is none."""


@spec
class FirstWords:
    """The first words of the passage, as many as answers have; none where most questions have none."""

    def fit(self, questions: Sequence[tuple[str, str]], answers: Answers) -> AnswerFinder:
        """Look at the answers."""
        length, none = _measure_answers(answers)

        def first(passage: str) -> str:
            found = [match.end() for match in WORD.finditer(passage)][:length]
            return passage[: found[-1]] if found else ""

        return lambda asked: ["" if none else first(passage) for _, passage in asked]


@spec
class NearWords:
    """As many words as answers have, where rare words of the question are near (a sliding window: Richardson, 2013).

    Words of the question are no part of the answer. Where most questions have none, none is given.
    """

    def fit(self, questions: Sequence[tuple[str, str]], answers: Answers) -> AnswerFinder:
        """Count in how many passages each word stands."""
        length, none = _measure_answers(answers)
        passages = {passage for _, passage in questions}
        met = Counter(word for passage in passages for word in set(_split_words(passage)))
        rarity = {word: np.log((2 + len(passages)) / (1 + count)) for word, count in met.items()}
        unknown = float(np.log(2 + len(passages)))

        def find(question: str, passage: str) -> str:
            places = [match.span() for match in WORD.finditer(passage)]
            words, wanted = _split_words(passage), set(_split_words(question))
            count = min(length, len(words))
            if not count:
                return ""
            weight = np.array([rarity.get(word, unknown) if word in wanted else 0.0 for word in words])
            start = _find_best_start(weight, np.array([word in wanted for word in words]), count)
            return passage[places[start][0] : places[start + count - 1][1]]

        return lambda asked: ["" if none else find(*one) for one in asked]


def _measure_answers(answers: Answers) -> tuple[int, bool]:
    """How many words answers have, and whether most questions have none."""
    there = [len(_split_words(answer)) for answer in answers if answer is not None]
    return max(round(float(np.median(there))) if there else 1, 1), 2 * len(there) < len(answers)


def _split_words(text: str) -> list[str]:
    return [match.group().lower() for match in WORD.finditer(text)]


def _find_best_start(weight: NDArray[np.float64], in_question: NDArray[np.bool_], count: int) -> int:
    """The first word of the stretch whose neighbours weigh most, the nearer the more; the first of equals."""
    starts = np.arange(len(weight) - count + 1)
    there = np.flatnonzero(weight)
    before = np.maximum(starts[:, None] - there[None], 0)
    after = np.maximum(there[None] - (starts[:, None] + count - 1), 0)
    scores = (weight[there] / (1 + before + after)).sum(1) if len(there) else np.zeros(len(starts))
    inside = np.concatenate(([0], np.cumsum(in_question)))
    scores -= 1e6 * (inside[count:] - inside[:-count])
    return int(np.argmax(scores))
