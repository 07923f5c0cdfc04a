"""Contrastive losses over pairs and triplets of texts (Reimers and Gurevych, 2019; Henderson et al., 2017).

    model = ContrastiveModel(encoder, InBatch(), columns=2)
    ModelWithLoss(model, ContrastiveObjective(2))

A batch holds the texts of E examples column by column: all first texts, then all second ones (then all third). Its
`targets` hold the start of each text and the example's label, its `labels` an id per text, so that equal texts are
recognized. A loss with `uses_in_batch_negatives` compares examples with one another. Legend: E examples, K columns, W
width.
"""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.core.config import Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch, Loss
from pretune.inference.pooling import TextEncoder
from pretune.training.distributed import Ranks

Gold = Literal["nothing", "class", "score"]


class ContrastiveLoss:
    """Base class of the losses."""

    columns: ClassVar[tuple[int, ...]] = (2,)  # texts of an example
    gold: ClassVar[Gold] = "nothing"
    uses_in_batch_negatives: ClassVar[bool] = False

    def compute_losses(self, vectors: Tensor, text_ids: Tensor, gold: Tensor, head: nn.Module | None) -> Tensor:
        """Return the losses `[E]`."""
        raise NotImplementedError


@spec
class Triplet(ContrastiveLoss):
    """max(|a - p| - |a - n| + margin, 0): triplet loss of S-BERT, whose margin is 1."""

    margin: float = 1.0

    columns: ClassVar[tuple[int, ...]] = (3,)

    def compute_losses(self, vectors: Tensor, text_ids: Tensor, gold: Tensor, head: nn.Module | None) -> Tensor:
        """Return the losses `[E]`."""
        anchor, positive, negative = vectors
        return (F.pairwise_distance(anchor, positive) - F.pairwise_distance(anchor, negative) + self.margin).relu()


@spec
class InBatch(ContrastiveLoss):
    """In-batch negatives: cross-entropy over all candidates of the batch, logits are cosine times `scale`.

    Third texts are additional (hard) negatives. A candidate with the same text as the positive or as the anchor is no
    negative, and is masked.
    """

    scale: float = 20.0

    columns: ClassVar[tuple[int, ...]] = (2, 3)
    uses_in_batch_negatives: ClassVar[bool] = True

    def compute_losses(self, vectors: Tensor, text_ids: Tensor, gold: Tensor, head: nn.Module | None) -> Tensor:
        """Return the losses `[E]`."""
        anchors, candidates = vectors[0], vectors[1:].flatten(0, 1)  # [E, W], [(K - 1) E, W]
        scores = F.normalize(anchors, dim=-1) @ F.normalize(candidates, dim=-1).T * self.scale
        rows, candidate_ids = text_ids[0], text_ids[1:].flatten()
        correct = torch.arange(len(anchors), device=scores.device)
        duplicates = (candidate_ids[None] == text_ids[1][:, None]) | (candidate_ids[None] == rows[:, None])
        duplicates[correct, correct] = False
        return F.cross_entropy(scores.masked_fill(duplicates, -math.inf), correct, reduction="none")


@spec
class PairClasses(ContrastiveLoss):
    """softmax(W [u; v; |u - v|]) over the classes of a pair, as S-BERT was trained on NLI."""

    classes: Positive[int] = 3

    gold: ClassVar[Gold] = "class"

    def compute_losses(self, vectors: Tensor, text_ids: Tensor, gold: Tensor, head: nn.Module | None) -> Tensor:
        """Return the losses `[E]`."""
        assert head is not None
        u, v = vectors
        return F.cross_entropy(head(torch.cat((u, v, (u - v).abs()), dim=-1)), gold.long(), reduction="none")


@spec
class CosineScore(ContrastiveLoss):
    """(cos(u, v) - score)², for pairs with scores in [0, 1]."""

    gold: ClassVar[Gold] = "score"

    def compute_losses(self, vectors: Tensor, text_ids: Tensor, gold: Tensor, head: nn.Module | None) -> Tensor:
        """Return the losses `[E]`."""
        return (F.cosine_similarity(vectors[0], vectors[1]) - gold) ** 2


LOSSES: dict[str, type[ContrastiveLoss]] = {
    "triplet": Triplet,
    "in_batch": InBatch,
    "classes": PairClasses,
    "cosine": CosineScore,
}


class ContrastiveModel(nn.Module):
    """An encoder with its contrastive loss, and with a classifier if the loss needs one."""

    def __init__(self, encoder: TextEncoder, loss: ContrastiveLoss, *, columns: int, seed: int = 0) -> None:
        super().__init__()
        if columns not in loss.columns:
            raise UsageError(f"this loss compares {' or '.join(map(str, loss.columns))} texts, got {columns}")
        if "static" in encoder.config.pooling:
            raise UsageError("static vectors cannot be trained with a contrastive loss; choose another pooling")
        self.encoder, self.criterion, self.columns = encoder, loss, columns
        self.head: nn.Linear | None = None
        if isinstance(loss, PairClasses):
            like = encoder.model.tokens.weight
            generator = torch.Generator().manual_seed(seed)
            self.head = nn.Linear(3 * encoder.width, loss.classes)
            nn.init.normal_(self.head.weight, std=0.02, generator=generator)
            nn.init.zeros_(self.head.bias)
            self.head.to(like.device, like.dtype)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the vectors `[K, E, W]` of a batch, their text ids `[K, E]` and the labels of the examples `[E]`."""
        if batch.targets is None or batch.labels is None:
            raise UsageError(
                "a contrastive batch needs targets (text starts) and labels (text ids); see `build_text_batch`"
            )
        cells = batch.sequence.index_select(0, batch.targets.index)
        vectors = self.encoder(batch).float().index_select(0, cells)
        shape = self.columns, len(cells) // self.columns
        text_ids = batch.labels.index_select(0, cells).view(shape)
        return vectors.view(*shape, vectors.shape[-1]), text_ids, batch.targets.labels.view(shape)[0]

    def compile(self, *args: object, **options: object) -> None:
        """Compile the encoder's model block by block."""
        self.encoder.model.compile(*args, **options)


class ContrastiveObjective:
    """Objective of the training loop: the number of examples and their summed loss.

    With several ranks, a loss with in-batch negatives is computed over the examples of all ranks, on each rank.
    """

    def __init__(self, columns: int, ranks: Ranks | None = None) -> None:
        self.columns, self.ranks = columns, ranks

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the number of examples; every column has as many targets."""
        assert batch.targets is not None
        labels = batch.targets.labels
        return {"loss": torch.full((), labels.shape[0] // self.columns, device=labels.device)}

    def loss(self, model: ContrastiveModel, batch: Batch) -> Loss:
        """Return the loss, summed over the examples."""
        vectors, text_ids, gold = model(batch)
        if model.criterion.uses_in_batch_negatives and self.ranks is not None:
            vectors, text_ids = (
                self.ranks.gather_rows(values.transpose(0, 1)).transpose(0, 1) for values in (vectors, text_ids)
            )
        with torch.autocast(vectors.device.type, enabled=False):
            losses = model.criterion.compute_losses(vectors, text_ids, gold, model.head)
        return Loss(sum=losses.sum(), count=torch.full((), len(losses), device=losses.device))
