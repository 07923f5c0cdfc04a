"""Replaced-token detection: a small model fills blanks, a larger one says of every token whether it was filled in.

Paper: Clark et al. (2020). The generator learns to fill masks; what it draws there is put into the text, without a
gradient; the discriminator judges all tokens, not only 15 % of them. A draw that happens to be right counts as
original. The loss is the generator's and 50 times the discriminator's. Of the chosen tokens 85 % are shown to the
generator as the mask and the rest as they are: so the released code does; the paper says that all are masked. Its large
model chooses 25 %. Input: sentences or documents. Siblings: `masked` keeps the generator and needs no other model.

    text           the  chef  cooked  the  meal
    generator   [MASK]  chef  [MASK]  the  meal         targets: the, cooked
    draws          the             ate
    discriminator  the  chef     ate  the  meal         replaced: no no yes no no

What is drawn depends on the sequence alone: its masked tokens are hashed, on the device, into one random number for
each blank. So a batch has the same loss in one piece and in several, after a resume, and when it is evaluated again;
other masks, which come with every epoch, give other draws.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, Self, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss, Targets
from pretune.data.stream import Corruption
from pretune.objectives.base import ModelShape, Objective, Vocabulary, count_vocabulary_targets
from pretune.objectives.masked import MaskedLM

DEFAULT_MASKING = MaskedLM(split=(0.85, 0.0, 0.15))


@runtime_checkable
class ReplacedTokenModel(Protocol):
    """What it asks of a pair of models."""

    def propose(self, batch: Batch, chance: Tensor) -> tuple[Loss, Tensor]:
        """The generator's loss at the targets, and a token it draws for each [M] by numbers from 0 to 1 [M]."""

    def detect(self, batch: Batch) -> Tensor:
        """[N] the logit that a token was replaced."""


@spec
class ReplacedToken(Objective):
    """Detect the tokens that a small masked language model has replaced (ELECTRA)."""

    masking: MaskedLM = DEFAULT_MASKING
    weight: float = 50.0  # of the discriminator's loss

    shapes = ("generator-discriminator",)

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise UsageError(f"the weight of the discriminator's loss is above 0, found {self.weight}")

    @property
    def words(self) -> bool:
        return self.masking.words

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> Corruption:
        return self.masking.bind(vocabulary, "encoder")

    def to_evaluation(self) -> Self:
        """15 % of the tokens, whatever the training."""
        return replace(self, masking=DEFAULT_MASKING)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"generator": count_vocabulary_targets(batch), "discriminator": (batch.sequence >= 0).sum()}

    def loss(self, model: object, batch: Batch) -> Loss:
        if not isinstance(model, ReplacedTokenModel):
            raise UsageError("replaced_token trains a generator and a discriminator together; build them as a pair")
        counts = self.counts(batch)
        generator, drawn = model.propose(batch, hash_to_uniform(batch))
        shown, replaced = fill_in(batch, drawn)
        logits, text = model.detect(shown).float(), batch.sequence >= 0
        each = F.binary_cross_entropy_with_logits(logits, replaced.float(), reduction="none")
        total = torch.where(text, each, 0.0).sum()
        right = None if total.requires_grad else (((logits > 0) == replaced) & text & (logits != 0)).sum()
        discriminator = Loss(sum=total, count=counts["discriminator"], weight=self.weight, correct=right)
        return Loss.from_parts({"generator": generator, "discriminator": discriminator})


def fill_in(batch: Batch, samples: Tensor) -> tuple[Batch, Tensor]:
    """The text with a drawn token at every target, and which tokens `[N]` are no longer what they were."""
    targets, size = _require_targets(batch), batch.tokens.shape[0]
    # NOTE: spare slots all point to the first token, which may be a target itself: they write behind the end instead.
    place = torch.where(targets.labels == IGNORE_INDEX, size, targets.index)
    tokens = F.pad(batch.tokens, (0, 1)).index_copy(0, place, samples.to(batch.tokens.dtype))[:size]
    replaced = torch.zeros(size + 1, dtype=torch.bool, device=place.device)
    replaced = replaced.index_copy(0, place, samples != targets.labels)[:size]
    return replace(batch, tokens=tokens, targets=None), replaced


def hash_to_uniform(batch: Batch) -> Tensor:
    """A number from 0 to below 1 for every target `[M]`: a hash of its place and of all that its sequence shows."""
    index = _require_targets(batch).index
    seen = _mix_bits(_mix_bits(batch.tokens + _STEP) + batch.positions * _STEP)
    cell = torch.where(batch.sequence < 0, batch.cells, batch.sequence)
    sums = torch.zeros(batch.cells + 1, dtype=torch.long, device=cell.device).index_add(0, cell, seen)
    bits = _mix_bits(sums[cell[index]] + batch.positions[index] * _STEP)
    return ((bits >> 40) & 0xFFFFFF).float() * 2.0**-24


def _require_targets(batch: Batch) -> Targets:
    if batch.targets is None:
        raise UsageError("this batch has no targets; an objective's lesson makes them")
    return batch.targets


def _to_signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


_STEP, _FIRST_MULTIPLIER, _SECOND_MULTIPLIER = (
    _to_signed(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def _mix_bits(state: Tensor) -> Tensor:
    """One step of SplitMix64, as `pretune.core.seed` has it; whole numbers wrap around."""
    state = (
        state ^ ((state >> 30) & (2**34 - 1))
    ) * _FIRST_MULTIPLIER  # NOTE: a shift keeps the sign, so its copies go
    state = (state ^ ((state >> 27) & (2**37 - 1))) * _SECOND_MULTIPLIER
    return state ^ ((state >> 31) & (2**33 - 1))
