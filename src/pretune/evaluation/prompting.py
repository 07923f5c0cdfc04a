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
from pretune.evaluation.prompts import PromptTemplate, RenderedPrompt, get_options, render_prompt
from pretune.evaluation.shots import count_fitting
from pretune.inference.scoring import DEFAULT_SCORING, ScoringConfig, compute_token_logprobs, encode_passages
from pretune.inference.scoring.logprobs import build_scoring_method, get_max_length
from pretune.inference.text_model import get_language_model, get_tokenizer
from pretune.tasks.example import Example

CONTENT_FREE_INPUTS = ("N/A", "", "[MASK]")
"""Texts that say nothing."""

BATCH_EXAMPLES = 256
"""So many examples are put in words at a time."""

BLANK = "____"

Floats = NDArray[np.float64]


@spec
class ChoiceConfig:
    """How answers are compared: by the sum of log-probabilities, or by the mean over tokens or bytes."""

    length: Literal["sum", "token", "byte"] = "sum"
    calibrate: bool = False


DEFAULT_CHOICE = ChoiceConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceScores:
    """For each example the scores of its options, and the same unnormalised; what was lost on the way."""

    scores: list[Floats]
    sums: list[Floats]
    dropped_shots: Sequence[int]  # shots that did not fit, of each example
    truncated: int  # texts that were too long even without shots


@dataclass(slots=True)
class Prompter:
    """A model, a prompt, and the shots that come before every question."""

    model: nn.Module
    prompt: PromptTemplate
    shots: Sequence[Example] = ()
    scoring: ScoringConfig = DEFAULT_SCORING
    end: str = field(init=False)
    _shot_texts: list[str] = field(init=False)  # shots in words
    _shot_lengths: list[int] = field(init=False)  # and their tokens
    _content_free: dict[tuple[int, tuple[str, ...]], Floats] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        shape = get_language_model(self.model).shape
        self.end = "" if shape == "decoder" or self.scoring.given else "."
        self._shot_texts = [self._render_shot(shot) + self.prompt.join for shot in self.shots]
        self._shot_lengths = self._count_tokens(self._shot_texts)

    def score_choices(
        self,
        examples: Sequence[Example],
        config: ChoiceConfig = DEFAULT_CHOICE,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> ChoiceScores:
        """How likely each option of each example is."""
        if config.calibrate and self.prompt.judged != "answer":
            raise UsageError("this task is judged by what is after the answer, which cannot be calibrated")
        if not examples:
            raise DataError("there are no examples to evaluate; is the file empty?")
        scores: list[Floats] = []
        sums: list[Floats] = []
        dropped: list[int] = []
        cut = 0
        for low in range(0, len(examples), BATCH_EXAMPLES):
            slab = examples[low : low + BATCH_EXAMPLES]
            kept = self._count_fitting_shots(slab)
            found, lengths, lost = self._compute_logprobs(slab, kept)
            cut += lost
            dropped += [len(self.shots) - count for count in kept]
            sums += found
            for example, count, logs, size in zip(slab, kept, found, lengths, strict=True):
                units = {
                    "sum": np.ones_like(logs),
                    "token": size,
                    "byte": _count_bytes(get_options(self.prompt, example)),
                }
                score = logs / units[config.length]
                scores.append(score - self._compute_content_free(example, count, config) if config.calibrate else score)
            if on_progress is not None:
                on_progress(len(scores), len(examples))
        return ChoiceScores(scores=scores, sums=sums, dropped_shots=dropped, truncated=cut)

    def render(self, example: Example) -> str:
        """What the model reads for an example, with the blank shown, and the answers it may choose."""
        (kept,) = self._count_fitting_shots([example])
        question = render_prompt(self.prompt, example, BLANK, self.end).text
        return "".join(self._shot_texts[len(self._shot_texts) - kept :]) + question

    def _render_shot(self, shot: Example) -> str:
        if shot.label is None:
            raise DataError(f"a shot has no label: {shot.text[:60]!r}")
        return render_prompt(self.prompt, shot, get_options(self.prompt, shot)[int(shot.label)], self.end).text

    def _count_fitting_shots(self, examples: Sequence[Example]) -> list[int]:
        """How many shots fit before each example, with its longest answer."""
        longest = get_max_length(get_language_model(self.model))
        if longest is None or not self.shots:
            return [len(self.shots)] * len(examples)
        room = build_scoring_method(get_language_model(self.model), get_tokenizer(self.model), self.scoring).room(
            longest
        )
        texts = [
            render_prompt(self.prompt, example, max(get_options(self.prompt, example), key=len), self.end).text
            for example in examples
        ]
        return [count_fitting(self._shot_lengths, room - size) for size in self._count_tokens(texts)]

    def _count_tokens(self, texts: Sequence[str]) -> list[int]:
        """How many tokens texts have, and one more: where texts meet they may be cut otherwise."""
        if not texts:
            return []
        found = get_tokenizer(self.model).encode_batch(texts, literal=True)
        return [int(n) + 1 for n in np.diff(found.offsets)]

    def _compute_logprobs(
        self, examples: Sequence[Example], shot_counts: Sequence[int]
    ) -> tuple[list[Floats], list[Floats], int]:
        """For each example the log-probabilities of its options, and the tokens of what is judged."""
        texts: list[str] = []
        stretches: list[tuple[int, int]] = []
        for said in self._render_questions(examples, shot_counts):
            texts.append(said.text)
            stretches.append((said.start, said.stop))
        whole = bool(self.prompt.answers)
        asked = encode_passages(get_tokenizer(self.model), texts, stretches, single_unit=whole)
        found = compute_token_logprobs(self.model, asked, self.scoring, deduplicate=True)
        edges = np.cumsum([len(get_options(self.prompt, example)) for example in examples])[:-1]
        return np.split(found.sums, edges), np.split(found.counts.astype(np.float64), edges), found.truncated_passages

    def _render_questions(self, examples: Sequence[Example], shot_counts: Sequence[int]) -> Iterator[RenderedPrompt]:
        for example, count in zip(examples, shot_counts, strict=True):
            before = "".join(self._shot_texts[len(self._shot_texts) - count :])
            for option in get_options(self.prompt, example):
                said = render_prompt(self.prompt, example, option, self.end)
                yield RenderedPrompt(before + said.text, len(before) + said.start, len(before) + said.stop)

    def _compute_content_free(self, example: Example, shot_count: int, config: ChoiceConfig) -> Floats:
        """The log-probabilities of the options where nothing is asked."""
        key = shot_count, get_options(self.prompt, example)
        if key not in self._content_free:
            empty = [make_content_free(example, text) for text in CONTENT_FREE_INPUTS]
            found, lengths, _ = self._compute_logprobs(empty, [shot_count] * len(empty))
            units = [
                {"sum": np.ones_like(size), "token": size, "byte": _count_bytes(key[1])}[config.length]
                for size in lengths
            ]
            self._content_free[key] = average_content_free(
                [logs / unit for logs, unit in zip(found, units, strict=True)]
            )
        return self._content_free[key]


def make_content_free(example: Example, text: str) -> Example:
    """An example that says nothing; its options are as they were."""
    facts: Mapping[str, str] = dict.fromkeys(example.facts, text)
    return replace(example, text=text, pair=None if example.pair is None else text, facts=facts, label=None)


def average_content_free(logs: Sequence[Floats]) -> Floats:
    """log p_nothing: the probabilities among the options for each text that says nothing, averaged.

    >>> np.exp(average_content_free([np.log([0.2, 0.2]), np.log([0.3, 0.1])])).round(3).tolist()
    [0.625, 0.375]
    """
    return np.asarray(np.log(np.mean([softmax(each) for each in logs], axis=0)))


def softmax(scores: Floats) -> Floats:
    """What scores mean among the options alone.

    >>> softmax(np.log([0.02, 0.06])).round(3).tolist()
    [0.25, 0.75]
    """
    shifted = np.exp(scores - scores.max())
    return np.asarray(shifted / shifted.sum())


def _count_bytes(texts: Sequence[str]) -> Floats:
    return np.array([float(len(text.encode())) for text in texts])
