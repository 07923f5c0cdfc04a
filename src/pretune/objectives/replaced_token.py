"""Replaced-token detection: a small generator fills masks, a larger discriminator detects the replaced tokens.

Paper: Clark et al. (2020), ELECTRA. The generator is a masked language model; its samples replace the masks, without a
gradient; the discriminator classifies all tokens, not only 15 % of them. A correct sample counts as original. The loss
is the generator's plus 50 times the discriminator's. 85 % of the targets are masked for the generator, the rest stay:
as in the released code; the paper says that all are masked. Its large model has 25 % targets. Input: sentences or
documents. Siblings: `masked` is the generator's objective alone.

    text           the  chef  cooked  the  meal
    generator   [MASK]  chef  [MASK]  the  meal         targets: the, cooked
    samples        the             ate
    discriminator  the  chef     ate  the  meal         replaced: no no yes no no

Samples depend on the sequence alone: a hash of its masked tokens, computed on the device, gives the random number of
each target. So the loss of a batch is the same with gradient accumulation, after a resume and in a repeated evaluation;
new masks in each epoch give new samples.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from pretune.core.config import Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss
from pretune.data.stream import Corruption
from pretune.objectives.base import ModelShape, Objective, Vocabulary, count_vocabulary_targets, require_targets
from pretune.objectives.masked import MaskedLM


@runtime_checkable
class ReplacedTokenModel(Protocol):
    """Methods of the generator-discriminator pair that `replaced_token` calls."""

    def propose(self, batch: Batch, chance: Tensor) -> tuple[Loss, Tensor]:
        """Return the generator's loss and a sampled token for each target [M], given uniform random numbers [M]."""

    def detect(self, batch: Batch) -> Tensor:
        """Return the logit that each token was replaced [N]."""


@spec
class ReplacedToken(Objective):
    """Detect the tokens that a small masked language model replaced (ELECTRA)."""

    masking: MaskedLM = MaskedLM(split=(0.85, 0.0, 0.15))
    weight: Positive[float] = 50.0  # of the discriminator's loss

    shapes = ("generator-discriminator",)
    difficulty_settings = ("masking",)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> Corruption:
        return self.masking.bind(vocabulary, "encoder")

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"generator": count_vocabulary_targets(batch), "discriminator": (batch.sequence >= 0).sum()}

    def loss(self, model: object, batch: Batch) -> Loss:
        if not isinstance(model, ReplacedTokenModel):
            raise UsageError("replaced_token needs a model of the shape 'generator-discriminator'")
        counts = self.counts(batch)
        generator, samples = model.propose(batch, hash_to_uniform(batch))
        filled_batch, is_replaced = fill_in(batch, samples)
        logits, text = model.detect(filled_batch).float(), batch.sequence >= 0
        token_losses = F.binary_cross_entropy_with_logits(logits, is_replaced.float(), reduction="none")
        total = torch.where(text, token_losses, 0.0).sum()
        right = None if total.requires_grad else (((logits > 0) == is_replaced) & text & (logits != 0)).sum()
        discriminator = Loss(sum=total, count=counts["discriminator"], weight=self.weight, correct=right)
        return Loss.from_parts({"generator": generator, "discriminator": discriminator})


def fill_in(batch: Batch, samples: Tensor) -> tuple[Batch, Tensor]:
    """Put the samples in place of the targets; returns the batch and a mask of the replaced tokens [N]."""
    targets, size = require_targets(batch), batch.tokens.shape[0]
    # NOTE: unused slots point to the first token, which may be a target itself: they write past the end instead.
    place = torch.where(targets.labels == IGNORE_INDEX, size, targets.index)
    tokens = F.pad(batch.tokens, (0, 1)).index_copy(0, place, samples.to(batch.tokens.dtype))[:size]
    is_replaced = torch.zeros(size + 1, dtype=torch.bool, device=place.device)
    is_replaced = is_replaced.index_copy(0, place, samples != targets.labels)[:size]
    return replace(batch, tokens=tokens, targets=None), is_replaced


def hash_to_uniform(batch: Batch) -> Tensor:
    """Return a uniform number in [0, 1) for each target [M]: a hash of its position and of its sequence's tokens."""
    index = require_targets(batch).index
    hashes = _mix_bits(_mix_bits(batch.tokens + _STEP) + batch.positions * _STEP)
    cell = torch.where(batch.sequence < 0, batch.cells, batch.sequence)
    sums = torch.zeros(batch.cells + 1, dtype=torch.long, device=cell.device).index_add(0, cell, hashes)
    bits = _mix_bits(sums[cell[index]] + batch.positions[index] * _STEP)
    return ((bits >> 40) & 0xFFFFFF).float() * 2.0**-24


def _to_signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


_STEP, _FIRST_MULTIPLIER, _SECOND_MULTIPLIER = (
    _to_signed(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def _mix_bits(state: Tensor) -> Tensor:
    """Apply one step of SplitMix64, as in `pretune.core.seed`; integers wrap around."""
    # NOTE: the shift is arithmetic, so the sign bits are masked.
    state = (state ^ ((state >> 30) & (2**34 - 1))) * _FIRST_MULTIPLIER
    state = (state ^ ((state >> 27) & (2**37 - 1))) * _SECOND_MULTIPLIER
    return state ^ ((state >> 31) & (2**33 - 1))
