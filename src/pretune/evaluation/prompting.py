"""Prompted evaluation without training: the likeliest answer to an example after some solved ones.

    zero-shot    Review: a gorgeous film            one-shot    Review: dull and long
                 Sentiment: ____                                Sentiment: negative

                                                                Review: a gorgeous film
                                                                Sentiment: ____

The answer is scored given all text before it by a decoder, in place of masks by an encoder (cloze), and as the fill of
a blank by an encoder-decoder, both with a full stop after it. For classes the sum of log-probabilities counts, for
choices (whose lengths differ) by default the mean over tokens (Brown et al., 2020); a tie counts as wrong.

Contextual calibration (Zhao et al., 2021) removes the model's preference for some answers: their probabilities for
content-free inputs ("N/A", "[MASK]" and an empty text, averaged) are divided out: q = p / p_content_free.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError
from pretune.evaluation import Truncation
from pretune.evaluation.prompts import (
    PromptTemplate,
    RenderedPrompt,
    RenderedShots,
    get_options,
    render_prompt,
)
from pretune.inference.scoring import (
    DEFAULT_SCORING,
    ScoringConfig,
    build_scoring_method,
    compute_token_logprobs,
    get_max_length,
)
from pretune.inference.scoring_queries import encode_passages
from pretune.inference.text_model import get_predictive_model, get_tokenizer
from pretune.metrics.numeric import softmax
from pretune.tasks.example import Example, Examples

CONTENT_FREE_INPUTS = ("N/A", "", "[MASK]")
"""Inputs without content."""

BATCH_EXAMPLES = 256
"""Examples rendered at a time."""

BLANK = "____"

Floats = NDArray[np.float64]


@spec
class ChoiceConfig:
    """Comparison of answers: by the sum of log-probabilities, or by the mean over tokens or bytes."""

    length: Literal["sum", "token", "byte"] = "sum"
    calibrate: bool = False


DEFAULT_CHOICE = ChoiceConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceScores:
    """Scores of the options of each example, normalized and unnormalized, and what was truncated."""

    scores: list[Floats]
    sums: list[Floats]
    truncation: Truncation


@dataclass(slots=True)
class Prompter:
    """A model, a prompt, and the shots before every question."""

    model: nn.Module
    prompt: PromptTemplate
    shots: Examples = ()
    scoring: ScoringConfig = DEFAULT_SCORING
    end: str = field(init=False)
    _rendered_shots: RenderedShots = field(init=False)
    _content_free: dict[tuple[int, tuple[str, ...]], Floats] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        shape = get_predictive_model(self.model).shape
        self.end = "" if shape == "decoder" or self.scoring.conditional else "."
        shot_texts = [self._render_shot(shot) + self.prompt.join for shot in self.shots]
        self._rendered_shots = RenderedShots(get_tokenizer(self.model), shot_texts)

    def score_choices(
        self,
        examples: Examples,
        config: ChoiceConfig = DEFAULT_CHOICE,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> ChoiceScores:
        """Score each option of each example."""
        if config.calibrate and self.prompt.scored_part != "answer":
            raise UsageError("calibration needs a prompt that scores the answer, not the text after it")
        if not examples:
            raise DataError("no examples to evaluate; is the file empty?")
        scores: list[Floats] = []
        sums: list[Floats] = []
        dropped_shots: list[int] = []
        truncated_texts = 0
        for low in range(0, len(examples), BATCH_EXAMPLES):
            chunk = examples[low : low + BATCH_EXAMPLES]
            shot_counts = self._count_fitting_shots(chunk)
            logprobs, units, truncated_count = self._compute_logprobs(chunk, shot_counts, config.length)
            truncated_texts += truncated_count
            dropped_shots += [len(self.shots) - count for count in shot_counts]
            sums += logprobs
            for example, count, logs, size in zip(chunk, shot_counts, logprobs, units, strict=True):
                score = logs / size
                scores.append(score - self._compute_content_free(example, count, config) if config.calibrate else score)
            if on_progress is not None:
                on_progress(len(scores), len(examples))
        return ChoiceScores(scores=scores, sums=sums, truncation=Truncation(dropped_shots, truncated_texts))

    def render(self, example: Example) -> str:
        """Return the model's input for an example, with the blank shown."""
        (shot_count,) = self._count_fitting_shots([example])
        return self._rendered_shots.join(shot_count) + render_prompt(self.prompt, example, BLANK, self.end).text

    def _render_shot(self, shot: Example) -> str:
        if shot.label is None:
            raise DataError(f"a shot has no label: {shot.text[:60]!r}")
        return render_prompt(self.prompt, shot, get_options(self.prompt, shot)[int(shot.label)], self.end).text

    def _count_fitting_shots(self, examples: Examples) -> list[int]:
        """Return the number of shots that fit before each example with its longest answer."""
        if not self.shots:
            return [0] * len(examples)
        language_model = get_predictive_model(self.model)
        room = max_length = get_max_length(language_model)
        if max_length is not None:
            method = build_scoring_method(language_model, get_tokenizer(self.model), self.scoring)
            room = method.get_max_passage(max_length) - 1
        longest_answers = [max(get_options(self.prompt, example), key=len) for example in examples]
        questions = [
            render_prompt(self.prompt, example, answer, self.end).text
            for example, answer in zip(examples, longest_answers, strict=True)
        ]
        return self._rendered_shots.count_fitting(questions, room)

    def _compute_logprobs(
        self, examples: Examples, shot_counts: Sequence[int], length: Literal["sum", "token", "byte"]
    ) -> tuple[list[Floats], list[Floats], int]:
        """Return log-probabilities and lengths of the options of each example, and the truncated texts.

        The length is that of the scored part, without the space before it: its tokens or bytes; 1 for sums.
        """
        rendered_prompts = [*self._render_questions(examples, shot_counts)]
        texts = [rendered_prompt.text for rendered_prompt in rendered_prompts]
        spans = [(rendered_prompt.start, rendered_prompt.stop) for rendered_prompt in rendered_prompts]
        is_single_unit = bool(self.prompt.answers)
        passages = encode_passages(get_tokenizer(self.model), texts, spans, single_unit=is_single_unit)
        logprobs = compute_token_logprobs(self.model, passages, self.scoring, deduplicate=True)
        edges = np.cumsum([len(get_options(self.prompt, example)) for example in examples])[:-1]
        lengths = np.ones(len(texts))
        if length == "token":
            lengths = logprobs.counts.astype(np.float64)
        elif length == "byte":
            parts = [text[start:stop].lstrip(" ") for text, (start, stop) in zip(texts, spans, strict=True)]
            lengths = np.array([float(len(part.encode())) for part in parts])
        return np.split(logprobs.sums, edges), np.split(lengths, edges), logprobs.truncated_passages

    def _render_questions(self, examples: Examples, shot_counts: Sequence[int]) -> Iterator[RenderedPrompt]:
        for example, count in zip(examples, shot_counts, strict=True):
            context = self._rendered_shots.join(count)
            for option in get_options(self.prompt, example):
                rendered_prompt = render_prompt(self.prompt, example, option, self.end)
                yield RenderedPrompt(
                    context + rendered_prompt.text,
                    len(context) + rendered_prompt.start,
                    len(context) + rendered_prompt.stop,
                )

    def _compute_content_free(self, example: Example, shot_count: int, config: ChoiceConfig) -> Floats:
        """Return the log-probabilities of the options for content-free inputs."""
        key = shot_count, get_options(self.prompt, example)
        if key not in self._content_free:
            empty = [make_content_free(example, text) for text in CONTENT_FREE_INPUTS]
            logprobs, units, _ = self._compute_logprobs(empty, [shot_count] * len(empty), config.length)
            self._content_free[key] = average_content_free(
                [logs / size for logs, size in zip(logprobs, units, strict=True)]
            )
        return self._content_free[key]


def make_content_free(example: Example, text: str) -> Example:
    """Return an example with content-free text and the same options."""
    facts: Mapping[str, str] = dict.fromkeys(example.facts, text)
    return replace(example, text=text, pair=None if example.pair is None else text, facts=facts, label=None)


def average_content_free(logs: Sequence[Floats]) -> Floats:
    """Return log p_content_free: the mean of the options' probabilities over the content-free inputs.

    >>> np.exp(average_content_free([np.log([0.2, 0.2]), np.log([0.3, 0.1])])).round(3).tolist()
    [0.625, 0.375]
    """
    return np.asarray(np.log(np.mean([softmax(row) for row in logs], axis=0)))
