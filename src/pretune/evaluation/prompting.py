"""Tasks without training: an example in words, some solved ones before it, and which answer the model finds likeliest.

    zero-shot    Review: a gorgeous film            one-shot    Review: dull and long
                 Sentiment: ____                                Sentiment: negative

                                                                Review: a gorgeous film
                                                                Sentiment: ____

A decoder judges the answer by all that is before it; an encoder in the place of masks (cloze), an encoder-decoder as
what fills a blank, both with a full stop after it. Among classes the sum of the log-probabilities counts, among choices
(whose lengths differ) by default the mean of the tokens (Brown et al., 2020); a tie is wrong, and counted.

Contextual calibration (Zhao et al., 2021): models prefer some answers whatever is asked. How much is found by asking
about nothing ("N/A", "[MASK]" and an empty text, averaged), and divided out: q = p / p_nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError
from pretune.evaluation.prompts import Prompt, Put, options, put
from pretune.evaluation.shots import fitting
from pretune.inference.scoring import PLAIN, Asking, judge, passages
from pretune.inference.scoring.logprobs import form_of, limit
from pretune.inference.text_model import body, tokenizer_of
from pretune.tasks.example import Example

NOTHING = ("N/A", "", "[MASK]")
"""Texts that say nothing."""

SLAB = 256
"""So many examples are put in words at a time."""

BLANK = "____"

Floats = NDArray[np.float64]


@spec
class Choosing:
    """How answers are compared: by the sum of log-probabilities, or by the mean over tokens or bytes."""

    length: Literal["sum", "token", "byte"] = "sum"
    calibrate: bool = False


BY_SUM = Choosing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """For each example the scores of its options, and the same unnormalised; what was lost on the way."""

    scores: list[Floats]
    sums: list[Floats]
    dropped: Sequence[int]  # shots that did not fit, of each example
    cut: int  # texts that were too long even without shots


@dataclass(slots=True)
class Prompter:
    """A model, a prompt, and the shots that come before every question."""

    model: nn.Module
    prompt: Prompt
    shots: Sequence[Example] = ()
    asking: Asking = PLAIN
    end: str = field(init=False)
    _shown: list[str] = field(init=False)  # shots in words
    _sizes: list[int] = field(init=False)  # and their tokens
    _nothing: dict[tuple[int, tuple[str, ...]], Floats] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        shape = body(self.model).shape
        self.end = "" if shape == "decoder" or self.asking.given else "."
        self._shown = [self._solved(shot) + self.prompt.join for shot in self.shots]
        self._sizes = self._tokens(self._shown)

    def choose(
        self,
        examples: Sequence[Example],
        choosing: Choosing = BY_SUM,
        tell: Callable[[int, int], None] | None = None,
    ) -> Chosen:
        """How likely each option of each example is."""
        if choosing.calibrate and self.prompt.judged != "answer":
            raise UsageError("this task is judged by what is after the answer, which cannot be calibrated")
        if not examples:
            raise DataError("there are no examples to evaluate; is the file empty?")
        scores: list[Floats] = []
        sums: list[Floats] = []
        dropped: list[int] = []
        cut = 0
        for low in range(0, len(examples), SLAB):
            slab = examples[low : low + SLAB]
            kept = self._kept(slab)
            found, lengths, lost = self._judged(slab, kept)
            cut += lost
            dropped += [len(self.shots) - count for count in kept]
            sums += found
            for example, count, logs, size in zip(slab, kept, found, lengths, strict=True):
                units = {"sum": np.ones_like(logs), "token": size, "byte": _bytes(options(self.prompt, example))}
                score = logs / units[choosing.length]
                scores.append(score - self._preference(example, count, choosing) if choosing.calibrate else score)
            if tell is not None:
                tell(len(scores), len(examples))
        return Chosen(scores=scores, sums=sums, dropped=dropped, cut=cut)

    def text(self, example: Example) -> str:
        """What the model reads for an example, with the blank shown, and the answers it may choose."""
        (kept,) = self._kept([example])
        question = put(self.prompt, example, BLANK, self.end).text
        return "".join(self._shown[len(self._shown) - kept :]) + question

    def _solved(self, shot: Example) -> str:
        if shot.label is None:
            raise DataError(f"a shot has no label: {shot.text[:60]!r}")
        return put(self.prompt, shot, options(self.prompt, shot)[int(shot.label)], self.end).text

    def _kept(self, examples: Sequence[Example]) -> list[int]:
        """How many shots fit before each example, with its longest answer."""
        longest = limit(body(self.model))
        if longest is None or not self.shots:
            return [len(self.shots)] * len(examples)
        room = form_of(body(self.model), tokenizer_of(self.model), self.asking).room(longest)
        texts = [
            put(self.prompt, example, max(options(self.prompt, example), key=len), self.end).text
            for example in examples
        ]
        return [fitting(self._sizes, room - size) for size in self._tokens(texts)]

    def _tokens(self, texts: Sequence[str]) -> list[int]:
        """How many tokens texts have, and one more: where texts meet they may be cut otherwise."""
        if not texts:
            return []
        found = tokenizer_of(self.model).encode_batch(texts, literal=True)
        return [int(n) + 1 for n in np.diff(found.offsets)]

    def _judged(self, examples: Sequence[Example], kept: Sequence[int]) -> tuple[list[Floats], list[Floats], int]:
        """For each example the log-probabilities of its options, and the tokens of what is judged."""
        texts: list[str] = []
        stretches: list[tuple[int, int]] = []
        for said in self._questions(examples, kept):
            texts.append(said.text)
            stretches.append((said.start, said.stop))
        whole = bool(self.prompt.answers)
        asked = passages(tokenizer_of(self.model), texts, stretches, whole=whole)
        found = judge(self.model, asked, self.asking, alike=True)
        edges = np.cumsum([len(options(self.prompt, example)) for example in examples])[:-1]
        return np.split(found.sums, edges), np.split(found.counts.astype(np.float64), edges), found.cut

    def _questions(self, examples: Sequence[Example], kept: Sequence[int]) -> Iterator[Put]:
        for example, count in zip(examples, kept, strict=True):
            before = "".join(self._shown[len(self._shown) - count :])
            for option in options(self.prompt, example):
                said = put(self.prompt, example, option, self.end)
                yield Put(before + said.text, len(before) + said.start, len(before) + said.stop)

    def _preference(self, example: Example, kept: int, choosing: Choosing) -> Floats:
        """The log-probabilities of the options where nothing is asked."""
        key = kept, options(self.prompt, example)
        if key not in self._nothing:
            empty = [nothing(example, text) for text in NOTHING]
            found, lengths, _ = self._judged(empty, [kept] * len(empty))
            units = [
                {"sum": np.ones_like(size), "token": size, "byte": _bytes(key[1])}[choosing.length] for size in lengths
            ]
            self._nothing[key] = preference([logs / unit for logs, unit in zip(found, units, strict=True)])
        return self._nothing[key]


def nothing(example: Example, text: str) -> Example:
    """An example that says nothing; its options are as they were."""
    facts: Mapping[str, str] = dict.fromkeys(example.facts, text)
    return replace(example, text=text, pair=None if example.pair is None else text, facts=facts, label=None)


def preference(logs: Sequence[Floats]) -> Floats:
    """log p_nothing: the probabilities among the options for each text that says nothing, averaged.

    >>> np.exp(preference([np.log([0.2, 0.2]), np.log([0.3, 0.1])])).round(3).tolist()
    [0.625, 0.375]
    """
    return np.asarray(np.log(np.mean([probabilities(each) for each in logs], axis=0)))


def probabilities(scores: Floats) -> Floats:
    """What scores mean among the options alone.

    >>> probabilities(np.log([0.02, 0.06])).round(3).tolist()
    [0.25, 0.75]
    """
    shifted = np.exp(scores - scores.max())
    return np.asarray(shifted / shifted.sum())


def _bytes(texts: Sequence[str]) -> Floats:
    return np.array([float(len(text.encode())) for text in texts])
