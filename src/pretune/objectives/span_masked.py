"""Span masking: mask spans of whole words, predict them from both sides and from their boundaries alone.

Paper: Joshi et al. (2020), SpanBERT. A text is split into runs of words with geometric lengths (p 0.2, at most 10: 3.8
words on average); runs are masked in random order until the rate is reached. As in the released code the last one is
cut there, even inside a word. Mask, random token or original is decided once per span.
ALBERT (Lan et al., 2020) masks n-grams of up to three words, and decides per token.
Input: sentences, documents or pairs. Siblings: `masked` masks tokens or words; `span_corruption` removes spans.

    text     An  American  football  game  .          one span of three words
    tokens   An  [MASK]    [MASK]   [MASK]  .
    targets  -   American  football  game   -         the boundary objective reads "An" and "." only
    blanks  -1   0         0         0     -1
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pretune.core.config import Gt, Lt, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch, Loss
from pretune.data.sampling import Counters, to_uniform
from pretune.data.sequences import Ints, Sequences, compute_offsets, compute_starts, spread
from pretune.objectives.base import PretrainingModel, count_vocabulary_targets
from pretune.objectives.masked import MaskingObjective, MaskReplacement, mask_tokens
from pretune.objectives.segment_sampling import (
    Bits,
    Floats,
    WordSpans,
    draw_bits_at,
    exclusive_cumsum,
    round_randomly,
    shuffle_groups,
)


@spec
class Boundary:
    """Span boundary objective: predict each token of a span from the two tokens around it (Joshi et al., 2020).

    `Batch.blanks` numbers the spans. All tokens of a span are targets, and target slots are in batch order, so spans
    are found among the slots on the device, without synchronisation. Legend: M target slots, N tokens.
    """

    weight: float = 1.0


class SpanEdges(NamedTuple):
    """Positions of the tokens left and right of each target's span, and the target's position in the span [M]."""

    left: Tensor
    right: Tensor
    place: Tensor


def find_span_edges(batch: Batch) -> SpanEdges:
    """Find the edges of the targets' spans; at the start or end of a text the span's own token is the edge."""
    if batch.targets is None or batch.blanks is None:
        raise UsageError("the boundary loss needs targets in spans; use span_masked")
    index = batch.targets.index
    cell, blank = batch.sequence[index], batch.blanks[index]
    opens = torch.ones_like(index, dtype=torch.bool)
    # Unused slots point to token 0: each becomes a span whose loss is ignored.
    opens[1:] = (cell[1:] != cell[:-1]) | (blank[1:] != blank[:-1]) | (index[1:] != index[:-1] + 1)
    span = opens.long().cumsum(0) - 1
    first = torch.full_like(index, batch.tokens.shape[0]).scatter_reduce(0, span, index, "amin")[span]
    last = torch.zeros_like(index).scatter_reduce(0, span, index, "amax")[span]
    owner = cell.clamp(min=0)  # of padding, if no sequence is at token 0
    low, high = batch.offsets[owner].long(), batch.offsets[owner + 1].long() - 1
    return SpanEdges(torch.maximum(first - 1, low), torch.minimum(last + 1, torch.maximum(high, low)), index - first)


def boundary_loss(model: PretrainingModel, states: Tensor, batch: Batch) -> Loss:
    """Compute the summed loss of the span head at every target."""
    left, right, place = find_span_edges(batch)
    assert batch.targets is not None
    left_states, right_states = states.index_select(0, left), states.index_select(0, right)
    return model.compute_span_loss(left_states, right_states, place, batch.targets.labels)


@spec
class Geometric:
    """Geometric distribution of span lengths in words, truncated at `max_length`."""

    p: Annotated[float, Gt(0), Lt(1)] = 0.2
    max_length: Positive[int] = 10

    def draw(self, bits: Bits) -> Ints:
        """Return one length per random number."""
        return draw_lengths((1 - self.p) ** np.arange(self.max_length), bits)


@spec(kind="ngram")
class NGram:
    """Spans of up to `max_length` words: n words with a probability proportional to 1 / n (Lan et al., 2020)."""

    max_length: Positive[int] = 3

    def draw(self, bits: Bits) -> Ints:
        """Return one length per random number."""
        return draw_lengths(1 / np.arange(1, self.max_length + 1), bits)


def draw_lengths(odds: Floats, bits: Bits) -> Ints:
    """Return one length per random number, from 1 on, with these odds."""
    sums = np.cumsum(odds)
    return np.searchsorted(sums[:-1] / sums[-1], to_uniform(bits), side="right") + 1


@spec(kind="span_masked")
class SpanMaskedLM(MaskingObjective):
    """Masked spans of words, optionally with the span boundary objective (SpanBERT, ALBERT)."""

    replace_by: Literal["span", "token"] = "span"  # unit of `split`
    spans: Geometric | NGram = Geometric()
    boundary: Boundary | None = None  # needs a model with a span head
    copies: Positive[int] | None = None

    words = True
    difficulty_settings = ("rate", "split", "copies")

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        count = count_vocabulary_targets(batch)
        return {"loss": count} if self.boundary is None else {"masked": count, "boundary": count}

    def loss_from_states(self, model: PretrainingModel, states: Tensor, batch: Batch) -> Loss:
        """Compute the masked loss and, with `boundary`, the span boundary loss."""
        masked_loss = model.loss(states, batch)
        if self.boundary is None:
            return masked_loss
        boundary = replace(boundary_loss(model, states, batch), weight=self.boundary.weight)
        return Loss.from_parts({"masked": masked_loss, "boundary": boundary})

    def mask(self, sequences: Sequences, replacement: MaskReplacement, rng: Counters) -> Sequences:
        words = WordSpans.from_sequences(sequences)
        runs = cut_runs(words, self.spans.draw(rng.bits(0, words.sizes)))
        counts = round_randomly(self.rate * words.count_tokens(), rng.uniform(1))
        spans = fill_runs(runs, counts, rng.bits(2, runs.sizes))
        positions, share_bits = spread(spans.start, spans.length), None
        if self.replace_by == "span":
            share_bits = np.repeat(draw_bits_at(rng, 3, sequences, spans.start), spans.length)
        blanks = np.full(len(sequences.tokens), -1)
        blanks[positions] = np.repeat(spread(np.zeros_like(spans.sizes), spans.sizes), spans.length)
        return replace(mask_tokens(sequences, positions, replacement, rng, 4, share_bits), blanks=blanks)


def cut_runs(words: WordSpans, lengths: Ints) -> WordSpans:
    """Split all words into runs of `lengths` words (one length per word, of which as many as needed are used).

    A run ends at a special token and at the end of its sequence.
    """
    ends = words.start + words.length
    opens = np.append(True, words.start[1:] != ends[:-1])[: len(ends)]  # after a special token
    firsts = compute_starts(words.sizes)
    opens[firsts[words.sizes > 0]] = True
    stretch = np.flatnonzero(opens)
    sizes = np.diff(np.append(stretch, len(ends)))
    word_offset = exclusive_cumsum(lengths, sizes)
    first = (np.repeat(stretch, sizes) + word_offset)[word_offset < np.repeat(sizes, sizes)]
    last = np.append(first[1:], len(ends))[: len(first)] - 1
    sizes = np.diff(np.searchsorted(first, compute_offsets(words.sizes)))
    return WordSpans(words.start[first], ends[last] - words.start[first], sizes)


def fill_runs(runs: WordSpans, counts: Ints, bits: Bits) -> WordSpans:
    """Sample runs with `counts[s]` tokens in sequence s, in the order of random bits; the last one is cut."""
    order = shuffle_groups(bits, runs.sizes)
    length = runs.length[order]
    lengths = np.empty_like(length)
    lengths[order] = np.clip(np.repeat(counts, runs.sizes) - exclusive_cumsum(length, runs.sizes), 0, length)
    index = np.flatnonzero(lengths)
    sizes = np.diff(np.searchsorted(index, compute_offsets(runs.sizes)))
    return WordSpans(runs.start[index], lengths[index], sizes)
