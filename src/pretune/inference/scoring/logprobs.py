"""From a model and passages to the log-probability of every judged token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.data.ragged import Bools, Ints, compute_offsets
from pretune.data.sequences import Sequences
from pretune.inference.scoring.packed_forward import BATCH_TOKENS, TargetLogProbs, compute_target_logprobs
from pretune.inference.scoring.passages import Passages, encode_passages
from pretune.inference.scoring.queries import (
    CausalScoring,
    ConditionalScoring,
    InfillScoring,
    MaskedScoring,
    ScoringMethod,
    SentinelScoring,
    SpecialTokenFrame,
    TwoStreamScoring,
)
from pretune.inference.text_model import eval_mode, get_language_model, get_tokenizer
from pretune.models.model import LanguageModel
from pretune.objectives.base import Vocabulary
from pretune.text.templates import SpecialPart, TokenTemplate
from pretune.text.tokenizer import Tokenizer

Number = TypeVar("Number", np.int64, np.float64)

ProgressCallback = Callable[[int, int], None]
"""Told how many judged tokens are done, and of how many."""


@spec
class ScoringConfig:
    """How a model is asked, where there is a choice.

    `given` is for encoder-decoders: they read what is around the judged stretch and write it, as after training on
    inputs and outputs; without it they fill a blank, as in pre-training. `rest` is for models that read both ways: the
    later tokens of a word are hidden with an earlier one.
    """

    given: bool = False
    rest: bool = True
    precision: Literal["float32", "bfloat16"] = "float32"
    tokens: int | None = None  # of a batch; by the device where it is None


MIN_BATCH_TOKENS = 1024
"""Batches of fewer tokens are not tried where memory runs out."""

DEFAULT_SCORING = ScoringConfig()
"""As it is asked by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogProbs:
    """What a model says of S passages, J judged tokens in all."""

    logprobs: NDArray[np.float64]  # [J] natural logarithms; NaN where nothing is read before a token
    is_argmax: Bools  # [J] whether it was the likeliest of all
    offsets: Ints  # [S + 1] of the passages
    truncated_passages: int  # passages that were too long, and lost tokens

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, passage: int) -> NDArray[np.float64]:
        """The log-probabilities of one passage's tokens."""
        return self.logprobs[self.offsets[passage] : self.offsets[passage + 1]]

    @property
    def counts(self) -> Ints:
        """[S] how many tokens of each passage have a probability."""
        return self._sum_by_passage((~np.isnan(self.logprobs)).astype(np.int64))

    @property
    def sums(self) -> NDArray[np.float64]:
        """[S] the log-probability of each passage."""
        return self._sum_by_passage(np.nan_to_num(self.logprobs, nan=0.0))

    @property
    def is_greedy(self) -> Bools:
        """[S] whether every token of a passage was the likeliest."""
        return np.asarray(self._sum_by_passage(self.is_argmax.astype(np.int64)) == np.diff(self.offsets))

    def _sum_by_passage(self, values: NDArray[Number]) -> NDArray[Number]:
        """Sums over passages, each of which has a token or more."""
        return np.asarray(np.add.reduceat(values, self.offsets[:-1])) if len(self) else values[:0]


def compute_token_logprobs(
    model: nn.Module,
    passages: Passages,
    config: ScoringConfig = DEFAULT_SCORING,
    on_progress: ProgressCallback | None = None,
    *,
    deduplicate: bool = False,
) -> TokenLogProbs:
    """The log-probability of every judged token; `alike` where it pays to look for passages that are read alike."""
    below = get_language_model(model)
    form = build_scoring_method(below, get_tokenizer(model), config)
    longest = get_max_length(below)
    fitted = passages.fit(None if longest is None else form.room(longest))
    offsets = compute_offsets(fitted.span_lengths)
    logs, first = np.full(int(offsets[-1]), np.nan), np.zeros(int(offsets[-1]), dtype=np.bool_)
    device = below.tokens.weight.device.type
    size = config.tokens or BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"])
    with eval_mode(model):
        for part in form.ask(fitted):
            done = int(part.token_index[0]) if len(part.token_index) else 0
            found, size = _score_part(
                below, part.sequences, size, config, deduplicate, _accumulate_progress(done, len(logs), on_progress)
            )
            logs[part.token_index], first[part.token_index] = found.logprobs, found.is_argmax
    return TokenLogProbs(logprobs=logs, is_argmax=first, offsets=offsets, truncated_passages=fitted.truncated_texts)


def _score_part(
    model: LanguageModel,
    part: Sequences,
    size: int,
    config: ScoringConfig,
    deduplicate: bool,
    on_progress: Callable[[int], None] | None,
) -> tuple[TargetLogProbs, int]:
    """A part, in batches of so many tokens, or of fewer where there is no memory for them; and of how many."""
    precision = torch.bfloat16 if config.precision == "bfloat16" else None
    while True:
        try:
            return compute_target_logprobs(
                model, part, tokens=size, precision=precision, deduplicate=deduplicate, on_progress=on_progress
            ), size
        except torch.OutOfMemoryError:
            if size <= MIN_BATCH_TOKENS:
                raise
            size //= 2
            torch.cuda.empty_cache()


def _accumulate_progress(start: int, total: int, on_progress: ProgressCallback | None) -> Callable[[int], None] | None:
    """Adds up what is done of a part, and tells it with what was done before."""
    if on_progress is None:
        return None
    done = start

    def told(count: int) -> None:
        nonlocal done
        done = min(done + count, total)
        on_progress(done, total)

    return told


def score(model: nn.Module, texts: Sequence[str], *, config: ScoringConfig = DEFAULT_SCORING) -> list[float]:
    """The log-probability of each text; of an encoder the pseudo-log-likelihood.

    pt.score(model, ["The cat is asleep.", "The cat are asleep."])      # the first should be higher
    """
    if not texts:
        return []
    found: list[float] = compute_token_logprobs(
        model, encode_passages(get_tokenizer(model), texts), config
    ).sums.tolist()
    return found


def get_max_length(model: LanguageModel) -> int | None:
    """How long a sequence may be: what positions allow, or what the model is made for; less a prefix, if it has one."""
    longest = model.spec.max_length or model.spec.context
    taken = max(stack.prefix_length for stack in (model.encoder, model.decoder) if stack is not None)
    return None if longest is None else longest - taken


def is_bidirectional(model: LanguageModel) -> bool:
    """Whether it judges a token by what is on both sides of it, in a copy of the text for every token."""
    return model.shape in ("encoder", "two-stream")


def build_scoring_method(
    model: LanguageModel, tokenizer: Tokenizer, config: ScoringConfig = DEFAULT_SCORING
) -> ScoringMethod:
    """How a model of its shape is asked."""
    if model.head is None:
        one = "its generator" if model.detector is not None else "a model that was pre-trained with one"
        raise UsageError(f"this model has no vocabulary head, so no word has a probability; use {one}")
    if model.prompt is not None:
        raise UsageError("a model with a tuned prompt is made for its task; score the model that it was tuned on")
    vocabulary, frame = (
        Vocabulary.from_tokenizer(tokenizer, start=model.spec.special.start),
        build_frame(tokenizer.template),
    )
    if model.shape == "decoder":
        lead = tuple(token for token, _ in frame.prefix)
        return CausalScoring(lead or (() if vocabulary.start is None else (vocabulary.start,)))
    if model.shape == "two-stream":
        return TwoStreamScoring(frame, config.rest)
    if model.shape == "encoder":
        return MaskedScoring(frame, vocabulary.require("mask", "scoring with an encoder"), config.rest)
    start, mask = vocabulary.require_start("scoring with an encoder-decoder"), vocabulary.find("mask")
    if config.given:
        return ConditionalScoring(frame, start)
    if tokenizer.sentinels:
        return SentinelScoring(frame, start, tokenizer.sentinels[0])
    if mask is None:
        raise UsageError("this encoder-decoder has neither sentinels nor a mask to put in a blank; ask with given=True")
    return InfillScoring(frame, start, mask)


def build_frame(template: TokenTemplate) -> SpecialTokenFrame:
    """What a tokenizer puts before and after one text."""
    at = next(at for at, part in enumerate(template.single) if not isinstance(part, SpecialPart))
    marks = [(part.token, part.segment) if isinstance(part, SpecialPart) else (0, 0) for part in template.single]
    return SpecialTokenFrame(tuple(marks[:at]), tuple(marks[at + 1 :]), template.single[at].segment)
