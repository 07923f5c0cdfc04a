"""Scoring: log-probabilities of texts, or spans of them, by token, for models of any shape.

    score(model, ["The cat is asleep.", "The cat are asleep."])                        # one log-probability per text
    compute_token_logprobs(model, encode_passages(tokenizer, texts, spans)).logprobs   # of every token of the spans

Passages are packed into rows without padding, and the head runs at targets only.

Nothing synchronizes with the device before a part is done. The body runs in the requested precision; the head and the
softmax in fp32 at least, a block of rows at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pretune.core import log
from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.log import format_count
from pretune.core.types import IGNORE_INDEX, Batch, Targets
from pretune.data.layout import PackedBatch, pack_batches
from pretune.data.sequences import Bools, Ints, Sequences, compute_offsets, compute_starts, spread
from pretune.inference.scoring_queries import (
    CausalScoring,
    EncoderDecoderScoring,
    MaskedNextScoring,
    MaskedScoring,
    Passages,
    ScoringMethod,
    encode_passages,
)
from pretune.inference.text_model import (
    CPU_BATCH_TOKENS,
    check_outputs,
    eval_mode,
    get_predictive_model,
    get_tokenizer,
    map_batches,
)
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
    tokens of a word are masked together with an earlier one. `bidirectional` is for decoders that were trained with
    `masked_next`: they score a token from both sides.
    """

    conditional: bool = False
    rest: bool = True
    bidirectional: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"
    tokens: int | None = None  # per batch; None: by device


MIN_BATCH_TOKENS = 1024
"""Smallest batch tried after running out of memory."""

BATCH_TOKENS = {"cuda": 1 << 16, "cpu": CPU_BATCH_TOKENS}
BLOCK_BYTES = {"cuda": 1 << 30, "cpu": 8 << 20}
"""Maximum size of the logits computed at once."""

DEFAULT_SCORING = ScoringConfig()
"""Default options."""


class TargetLogProbs(NamedTuple):
    """Log-probabilities [M] of the targets, and whether each was the most probable token."""

    logprobs: NDArray[np.float64]
    is_argmax: Bools


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
    backward: bool = False,
) -> TokenLogProbs:
    """Compute the log-probability of every scored token; with `deduplicate` equal inputs are computed once.

    `backward` is for a model of two directions: each token given those after it. The passages are then reversed.
    """
    language_model = get_predictive_model(model, backward=backward)
    method = build_scoring_method(language_model, get_tokenizer(model), config)
    if backward:
        method = CausalScoring(tuple(token for token, _ in get_tokenizer(model).template.suffix))
    max_length = get_max_length(language_model)
    fitted_passages = passages.fit(None if max_length is None else method.get_max_passage(max_length))
    offsets = compute_offsets(fitted_passages.span_lengths)
    logprobs, is_argmax = np.full(int(offsets[-1]), np.nan), np.zeros(int(offsets[-1]), dtype=np.bool_)
    device = language_model.tokens.weight.device.type
    size = config.tokens or BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"])
    scored_tokens = 0

    def add_progress(count: int) -> None:
        nonlocal scored_tokens
        scored_tokens = min(scored_tokens + count, len(logprobs))
        if on_progress is not None:
            on_progress(scored_tokens, len(logprobs))

    with eval_mode(language_model):
        for part in method.build_queries(fitted_passages):
            scored_tokens = int(part.token_index[0]) if len(part.token_index) else 0
            result, size = _score_part(language_model, part.sequences, size, config, deduplicate, add_progress)
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
    on_progress: Callable[[int], None],
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


def score(model: nn.Module, texts: Sequence[str], *, config: ScoringConfig = DEFAULT_SCORING) -> list[float]:
    """Return the log-probability of each text; for an encoder the pseudo-log-likelihood.

    pt.score(model, ["The cat is asleep.", "The cat are asleep."])      # the first should be higher
    """
    if not texts:
        return []
    result = compute_token_logprobs(model, encode_passages(get_tokenizer(model), texts), config)
    if result.truncated_passages:
        count, total = result.truncated_passages, format_count(len(texts), "texts")
        log.warn(f"{count:,} of {total} longer than the model reads: only their start is scored")
    return [*result.sums.tolist()]


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
    if model.spec.reads_backward:
        raise UsageError("cannot score: the model reads texts from their end; use the model of the other direction")
    if model.prompt is not None:
        raise UsageError("cannot score a model with a tuned prompt; use its base model")
    vocabulary, template = Vocabulary.from_tokenizer(tokenizer, start=model.spec.special.start), tokenizer.template
    if model.shape == "decoder" and config.bidirectional:
        mask = vocabulary.require("mask", "scoring from both sides")
        return MaskedNextScoring(template, mask, config.rest)
    if config.bidirectional and model.shape not in ("encoder", "two-stream"):
        raise UsageError(f"cannot score from both sides: the model is of the shape '{model.shape}', not a decoder")
    if model.shape == "decoder":
        lead = tuple(token for token, _ in template.prefix)
        return CausalScoring(lead or (() if vocabulary.start is None else (vocabulary.start,)))
    if model.shape == "two-stream":
        return MaskedScoring(template, None, config.rest)
    if model.shape == "encoder":
        return MaskedScoring(template, vocabulary.require("mask", "scoring with an encoder"), config.rest)
    start, blank = vocabulary.require_start("scoring with an encoder-decoder"), vocabulary.find("mask")
    if config.conditional:
        return EncoderDecoderScoring(template, (start,))
    if tokenizer.sentinels:
        sentinel = tokenizer.sentinels[0]
        return EncoderDecoderScoring(template, (start, sentinel), (sentinel,))
    if blank is None:
        raise UsageError("cannot score by infilling: the model has neither sentinels nor a mask; use conditional=True")
    return EncoderDecoderScoring(template, (start, *(token for token, _ in template.prefix)), (blank,), whole_text=True)


@torch.no_grad()
def compute_target_logprobs(
    model: LanguageModel,
    sequences: Sequences,
    *,
    tokens: int,
    precision: torch.dtype | None = None,
    deduplicate: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> TargetLogProbs:
    """Compute the log-probability of every target, in batches of about `tokens` tokens; a tie is not an argmax.

    With `deduplicate` equal inputs are computed once, whatever their targets: a question with several answers of one
    token. `on_progress` is called with the number of targets of each batch.
    """
    target_index, representatives = TargetIndex.from_sequences(sequences, deduplicate)
    inputs = replace(sequences, targets=None).take(representatives)
    device = model.tokens.weight.device

    def compute(part: PackedBatch) -> tuple[Ints, tuple[Tensor, Tensor]]:
        batch_target_ids, targets = target_index.select(part, inputs.lengths[part.indices])
        device_batch = replace(part.batch, targets=targets).to(device)
        with torch.autocast(device.type, precision, enabled=precision is not None):
            states = model.states(device_batch)
        return batch_target_ids, compute_logprobs(model, states, device_batch)

    target_ids: list[Ints] = []
    results: list[tuple[Tensor, Tensor]] = []
    parts = pack_batches(inputs, tokens=tokens, device=device.type)
    for batch_target_ids, values in map_batches(compute, parts, tokens=tokens, device=device):
        results.append(values)
        target_ids.append(batch_target_ids)
        if on_progress is not None:
            on_progress(len(batch_target_ids))
    logprobs, is_argmax = np.empty(len(target_index.labels)), np.empty(len(target_index.labels), dtype=np.bool_)
    if results:
        order = np.concatenate(target_ids)
        logprobs[order] = torch.cat([values for values, _ in results]).double().cpu().numpy()
        is_argmax[order] = torch.cat([values for _, values in results]).cpu().numpy()
    check_outputs(logprobs, "log-probabilities")
    return TargetLogProbs(logprobs, is_argmax)


@dataclass(frozen=True, slots=True)
class TargetIndex:
    """Targets of each distinct sequence: positions and labels, ordered by sequence.

    A position may have several labels.
    """

    starts: Ints  # [S] first target of each sequence
    counts: Ints  # [S]
    positions: Ints  # [M] within the sequence
    labels: Ints  # [M]
    target_ids: Ints  # [M] index of the target in the original sequences

    @classmethod
    def from_sequences(cls, sequences: Sequences, deduplicate: bool) -> tuple["TargetIndex", Ints]:
        """Collect the targets of sequences; returns also the indices of the sequences to compute."""
        assert sequences.targets is not None
        every = np.arange(len(sequences))
        representatives, groups = find_distinct(sequences) if deduplicate else (every, every)
        positions = np.flatnonzero(sequences.targets != IGNORE_INDEX)
        owner = groups[np.repeat(np.arange(len(sequences)), sequences.lengths)[positions]]
        order = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=len(representatives))
        sequence_positions = sequences.compute_positions()[positions]
        return cls(
            compute_starts(counts), counts, sequence_positions[order], sequences.targets[positions][order], order
        ), representatives

    def select(self, part: PackedBatch, lengths: Ints) -> tuple[Ints, Targets]:
        """Return the ids of the targets in a batch of sequences of these lengths, and their positions in it."""
        index = spread(self.starts[part.indices], self.counts[part.indices])
        inside = np.repeat(compute_starts(lengths), self.counts[part.indices]) + self.positions[index]
        positions = torch.from_numpy(part.token_positions[inside])
        targets = Targets(index=positions, labels=torch.from_numpy(self.labels[index]))
        return self.target_ids[index], targets


def find_distinct(sequences: Sequences) -> tuple[Ints, Ints]:
    """Find equal inputs; returns the first index of each group, and the group of every sequence.

    >>> texts = Sequences(tokens=np.array([5, 6, 5, 5, 6]), offsets=np.array([0, 2, 3, 5]))
    >>> [part.tolist() for part in find_distinct(texts)]
    [[0, 1], [0, 1, 0]]
    """
    groups: dict[tuple[bytes, ...], int] = {}
    keys = _list_keys(sequences)
    if sequences.source is not None:
        keys = [key + source_key for key, source_key in zip(keys, _list_keys(sequences.source), strict=True)]
    group_ids = np.array([groups.setdefault(key, len(groups)) for key in keys], dtype=np.int64)
    return np.unique(group_ids, return_index=True)[1], group_ids


def _list_keys(sequences: Sequences) -> list[tuple[bytes, ...]]:
    """Return the tokens, segments and order of each sequence as bytes."""
    columns = [sequences.tokens, sequences.segments, sequences.order]
    return [
        tuple(column[start:stop].tobytes() for column in columns if column is not None)
        for start, stop in pairwise(sequences.offsets.tolist())
    ]


def compute_logprobs(model: LanguageModel, states: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities [M] of the targets, and whether each is the unique maximum."""
    assert model.head is not None and batch.targets is not None
    labels = model.close_labels(batch.targets.labels)
    weight = model.tokens.weight if model.head.weight is None else model.head.weight
    dtype = torch.promote_types(weight.dtype, torch.float32)
    size = max(BLOCK_BYTES.get(labels.device.type, BLOCK_BYTES["cpu"]) // (weight.shape[0] * dtype.itemsize), 16)
    logprobs, is_argmax = [], []
    with torch.autocast(labels.device.type, enabled=False):
        target_states = states.index_select(0, batch.targets.index).to(weight.dtype)
        rows = model.get_logit_factors(target_states)[0].to(dtype)
        table, bias = weight.to(dtype), None if model.head.bias is None else model.head.bias.to(dtype)
        for start in range(0, rows.shape[0], size):
            logits = F.linear(rows[start : start + size], table, bias)
            target_logits = logits.gather(1, labels[start : start + size, None])
            is_argmax.append((logits >= target_logits).sum(1) == 1)
            logprobs.append(target_logits[:, 0] - logits.logsumexp(1))
    if not logprobs:
        return rows.new_empty(0), labels.new_empty(0, dtype=torch.bool)
    return torch.cat(logprobs), torch.cat(is_argmax)
