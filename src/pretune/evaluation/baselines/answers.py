"""Baselines for answers: the first words of a text, and for questions a sliding window over the passage.

For multiple choice: the most frequent position, and the option most similar to the text.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pretune.core.config import spec
from pretune.evaluation.baselines.base import Baseline, TfIdf, load_vectors
from pretune.evaluation.embedding import normalize_rows
from pretune.tasks.example import Example, Examples, Prediction

WORD = re.compile(r"\w+(?:['\u2019]\w+)*")

AnswerFinder = Callable[[str, str], str]
"""Function from a question and its passage to an answer."""


class SpanBaseline(Baseline):
    """Base class of baselines that find the answer in a passage; it is none if most questions have none."""

    def fit(self, train: Examples, length: int) -> AnswerFinder:
        """Return the finder of answers of `length` words."""
        raise NotImplementedError

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Fit on answered questions and answer others."""
        lengths = [len(_split_words(example.answers[0])) for example in train if example.answers]
        if 2 * len(lengths) < len(train):
            return [Prediction(text="")] * len(test)
        find = self.fit(train, max(round(float(np.median(lengths))) if lengths else 1, 1))
        return [Prediction(text=find(example.text, example.pair or "")) for example in test]


@spec
class FirstWords(SpanBaseline):
    """First words of the passage, or no answer if most questions have none."""

    def fit(self, train: Examples, length: int) -> AnswerFinder:
        def find(question: str, passage: str) -> str:
            ends = [match.end() for match in WORD.finditer(passage)][:length]
            return passage[: ends[-1]] if ends else ""

        return find


@spec
class NearWords(SpanBaseline):
    """Words near those of the question, or no answer if most questions have none.

    A window of words closest to rare words of the question (a sliding window: Richardson, 2013), without words of the
    question.
    """

    def fit(self, train: Examples, length: int) -> AnswerFinder:
        """Count the passages of each word."""
        passages = {example.pair or "" for example in train}
        passage_counts = Counter(word for passage in passages for word in set(_split_words(passage)))
        rarity = {word: np.log((2 + len(passages)) / (1 + count)) for word, count in passage_counts.items()}
        unknown = float(np.log(2 + len(passages)))

        def find(question: str, passage: str) -> str:
            places = [match.span() for match in WORD.finditer(passage)]
            words, question_words = _split_words(passage), set(_split_words(question))
            count = min(length, len(words))
            if not count:
                return ""
            weight = np.array([rarity.get(word, unknown) if word in question_words else 0.0 for word in words])
            start = _find_best_start(weight, np.array([word in question_words for word in words]), count)
            return passage[places[start][0] : places[start + count - 1][1]]

        return find


@spec
class LeadWords(Baseline):
    """First words of the text, as many as in the answers."""

    display_name: ClassVar[str] = "first_words"

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Measure the answers, and return as many words of other texts."""
        mean = round(float(np.mean([len((example.target or "").split()) for example in train])))
        return [Prediction(text=" ".join(example.text.split()[: max(mean, 1)])) for example in test]


@spec
class FrequentAnswer(Baseline):
    """Most frequent reference."""

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Count the references, and return the most frequent one."""
        counts = Counter(example.target or "" for example in train)
        answer = min(counts, key=lambda text: (-counts[text], text))
        return [Prediction(text=answer)] * len(test)


def _split_words(text: str) -> list[str]:
    return [match.group().lower() for match in WORD.finditer(text)]


def _find_best_start(weight: NDArray[np.float64], in_question: NDArray[np.bool_], count: int) -> int:
    """Return the first window whose neighbours have the most weight, closer words counting more."""
    starts = np.arange(len(weight) - count + 1)
    positions = np.flatnonzero(weight)
    left_distance = np.maximum(starts[:, None] - positions[None], 0)
    right_distance = np.maximum(positions[None] - (starts[:, None] + count - 1), 0)
    scores = (weight[positions] / (1 + left_distance + right_distance)).sum(1)
    inside = np.concatenate(([0], np.cumsum(in_question)))
    scores -= 1e6 * (inside[count:] - inside[:-count])
    return int(np.argmax(scores))


@spec
class FrequentPlace(Baseline):
    """Most frequent position of the right option."""

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Count the positions of the right options."""
        counts = Counter(int(example.label or 0) for example in train)
        best = min(counts, key=lambda position: (-counts[position], position))
        sizes = [len(example.choices) for example in test]
        return [_choose(np.eye(size)[min(best, size - 1)].tolist()) for size in sizes]


@spec
class SimilarWords(Baseline):
    """Option most similar to the text by TF-IDF."""

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Count the words of all texts and options."""
        table = TfIdf([" ".join(_get_texts(example)) for example in [*train, *test]])
        predictions = []
        for example in test:
            rows = table([f"{example.text} {example.pair or ''}", *example.choices])
            predictions.append(_choose(np.asarray((rows[1:] @ rows[0].T).todense()).ravel().tolist()))
        return predictions


@spec
class SimilarVectors(Baseline):
    """Option most similar to the text by averaged static vectors."""

    display_name: ClassVar[str] = "vectors"
    vectors: str | None = None  # file in word2vec's or GloVe's text format; None: trained on the task's texts

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Read the vectors, or train them on all texts and options."""
        texts = [text for example in [*train, *test] for text in _get_texts(example) if text.strip()]
        vectors = load_vectors(self.vectors, texts, seed)
        predictions = []
        for example in test:
            rows = normalize_rows(vectors.average([f"{example.text} {example.pair or ''}", *example.choices]))
            predictions.append(_choose((rows[1:] @ rows[0]).tolist()))
        return predictions


def _get_texts(example: Example) -> list[str]:
    return [example.text, example.pair or "", *example.choices]


def _choose(scores: list[float]) -> Prediction:
    return Prediction(label=int(np.argmax(scores)), scores=tuple(scores))
