"""Log-probabilities of the scored tokens of passages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.data.sequences import Bools, Ints, Sequences, compute_offsets
from pretune.inference.scoring.packed_forward import BATCH_TOKENS, TargetLogProbs, compute_target_logprobs
from pretune.inference.scoring.passages import Passages, encode_passages
from pretune.inference.scoring.queries import CausalScoring, EncoderDecoderScoring, MaskedScoring, ScoringMethod
from pretune.inference.text_model import eval_mode, get_language_model, get_tokenizer
from pretune.models.model import LanguageModel
from pretune.objectives.base import Vocabulary
from pretune.text.tokenizer import Tokenizer

Number = TypeVar("Number", np.int64, np.float64)

ProgressCallback = Callable[[int, int], None]
"""Called with the number of finished tokens and the total."""


@spec
class ScoringConfig:
    """Scoring options.

    `conditional` is for encoder-decoders: they read the context of the span and generate the span, as after training on
    inputs and outputs; without it they fill a mask, as in pre-training. `rest` is for bidirectional models: the later
    tokens of a word are masked together with an earlier one.
    """

    conditional: bool = False
    rest: bool = True
    precision: Literal["float32", "bfloat16"] = "float32"
    tokens: int | None = None  # per batch; None: by device


MIN_BATCH_TOKENS = 1024
"""Smallest batch tried after running out of memory."""

DEFAULT_SCORING = ScoringConfig()
"""Default options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogProbs:
    """Log-probabilities of S passages with J scored tokens in total."""

    logprobs: NDArray[np.float64]  # [J] natural logarithms; NaN for a token without context
    is_argmax: Bools  # [J] the token was the most probable one
    offsets: Ints  # [S + 1] of the passages
    truncated_passages: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, passage: int) -> NDArray[np.float64]:
        """Return the log-probabilities of one passage."""
        return self.logprobs[self.offsets[passage] : self.offsets[passage + 1]]

    @property
    def counts(self) -> Ints:
        """Number of tokens with a probability, per passage [S]."""
        return self._sum_by_passage((~np.isnan(self.logprobs)).astype(np.int64))

    @property
    def sums(self) -> NDArray[np.float64]:
        """Log-probability of each passage [S]."""
        return self._sum_by_passage(np.nan_to_num(self.logprobs, nan=0.0))

    @property
    def is_greedy(self) -> Bools:
        """True for passages whose tokens were all the most probable ones [S]."""
        return np.asarray(self._sum_by_passage(self.is_argmax.astype(np.int64)) == np.diff(self.offsets))

    def _sum_by_passage(self, values: NDArray[Number]) -> NDArray[Number]:
        """Sum over passages, which are never empty."""
        return np.asarray(np.add.reduceat(values, self.offsets[:-1])) if len(self) else values[:0]


def compute_token_logprobs(
    model: nn.Module,
    passages: Passages,
    config: ScoringConfig = DEFAULT_SCORING,
    on_progress: ProgressCallback | None = None,
    *,
    deduplicate: bool = False,
) -> TokenLogProbs:
    """Compute the log-probability of every scored token; with `deduplicate` equal inputs are computed once."""
    language_model = get_language_model(model)
    method = build_scoring_method(language_model, get_tokenizer(model), config)
    max_length = get_max_length(language_model)
    fitted_passages = passages.fit(None if max_length is None else method.get_max_passage(max_length))
    offsets = compute_offsets(fitted_passages.span_lengths)
    logprobs, is_argmax = np.full(int(offsets[-1]), np.nan), np.zeros(int(offsets[-1]), dtype=np.bool_)
    device = language_model.tokens.weight.device.type
    size = config.tokens or BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"])
    with eval_mode(model):
        for part in method.build_queries(fitted_passages):
            scored_tokens = int(part.token_index[0]) if len(part.token_index) else 0
            result, size = _score_part(
                language_model,
                part.sequences,
                size,
                config,
                deduplicate,
                _accumulate_progress(scored_tokens, len(logprobs), on_progress),
            )
            logprobs[part.token_index], is_argmax[part.token_index] = result.logprobs, result.is_argmax
    return TokenLogProbs(
        logprobs=logprobs, is_argmax=is_argmax, offsets=offsets, truncated_passages=fitted_passages.truncated_texts
    )


def _score_part(
    model: LanguageModel,
    part: Sequences,
    size: int,
    config: ScoringConfig,
    deduplicate: bool,
    on_progress: Callable[[int], None] | None,
) -> tuple[TargetLogProbs, int]:
    """Score a part in batches of `size` tokens, or fewer if memory runs out; returns the size used."""
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
    """Return a callback that adds the tokens of a part to those finished before."""
    if on_progress is None:
        return None
    scored_tokens = start

    def add_progress(count: int) -> None:
        nonlocal scored_tokens
        scored_tokens = min(scored_tokens + count, total)
        on_progress(scored_tokens, total)

    return add_progress


def score(model: nn.Module, texts: Sequence[str], *, config: ScoringConfig = DEFAULT_SCORING) -> list[float]:
    """Return the log-probability of each text; for an encoder the pseudo-log-likelihood.

    pt.score(model, ["The cat is asleep.", "The cat are asleep."])      # the first should be higher
    """
    if not texts:
        return []
    scores: list[float] = compute_token_logprobs(
        model, encode_passages(get_tokenizer(model), texts), config
    ).sums.tolist()
    return scores


def get_max_length(model: LanguageModel) -> int | None:
    """Return the maximum sequence length: positions or training context, minus a prefix."""
    max_length = model.spec.max_length or model.spec.context
    prefix_length = max(stack.prefix_length for stack in (model.encoder, model.decoder) if stack is not None)
    return None if max_length is None else max_length - prefix_length


def is_bidirectional(model: LanguageModel) -> bool:
    """Return True if a model scores a token from both sides, with a copy of the text for every token."""
    return model.shape in ("encoder", "two-stream")


def build_scoring_method(
    model: LanguageModel, tokenizer: Tokenizer, config: ScoringConfig = DEFAULT_SCORING
) -> ScoringMethod:
    """Return the scoring method of a model's shape."""
    if model.head is None:
        alternative = "its generator" if model.detector is not None else "a model pre-trained with one"
        raise UsageError(f"cannot score: the model has no vocabulary head; use {alternative}")
    if model.prompt is not None:
        raise UsageError("cannot score a model with a tuned prompt; use its base model")
    vocabulary, template = Vocabulary.from_tokenizer(tokenizer, start=model.spec.special.start), tokenizer.template
    if model.shape == "decoder":
        lead = tuple(token for token, _ in template.prefix)
        return CausalScoring(lead or (() if vocabulary.start is None else (vocabulary.start,)))
    if model.shape == "two-stream":
        return MaskedScoring(template, None, config.rest)
    if model.shape == "encoder":
        return MaskedScoring(template, vocabulary.require("mask", "scoring with an encoder"), config.rest)
    start, mask = vocabulary.require_start("scoring with an encoder-decoder"), vocabulary.find("mask")
    if config.conditional:
        return EncoderDecoderScoring(template, (start,))
    if tokenizer.sentinels:
        sentinel = tokenizer.sentinels[0]
        return EncoderDecoderScoring(template, (start, sentinel), (sentinel,))
    if mask is None:
        raise UsageError("cannot score by infilling: the model has neither sentinels nor a mask; use conditional=True")
    return EncoderDecoderScoring(template, (start, *(token for token, _ in template.prefix)), (mask,), whole_text=True)
