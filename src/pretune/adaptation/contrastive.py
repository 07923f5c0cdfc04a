"""Vectors by comparison: losses over pairs and triplets of texts (Reimers and Gurevych, 2019; Henderson et al., 2017).

    model = Compared(encoder, InBatch(), columns=2)
    Trainee(model, Comparing(2))

A batch holds the texts of E examples column by column: all first texts, then all second ones (then all third). Its
`targets` say where each text begins and what is said of the example, its `labels` which text it is, so that equal texts
are known. `uses_in_batch_negatives` says of a loss that it compares examples with one another. Legend: E examples, K columns, W width.
"""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch, Loss
from pretune.inference.pooling import TextEncoder
from pretune.training.distributed import Ranks

Gold = Literal["nothing", "class", "score"]


@spec
class Triplet:
    """max(|a - p| - |a - n| + margin, 0): nearer to the second text than to the third (S-BERT; its margin is 1)."""

    margin: float = 1.0

    columns: ClassVar[tuple[int, ...]] = (3,)
    gold: ClassVar[Gold] = "nothing"
    uses_in_batch_negatives: ClassVar[bool] = False

    def compute_losses(self, vectors: Tensor, text_ids: Tensor, gold: Tensor, head: nn.Module | None) -> Tensor:
        """[E]"""
        anchor, near, far = vectors
        return (_distance(anchor, near) - _distance(anchor, far) + self.margin).relu()


@spec
class InBatch:
    """The second text among those of the whole batch, by cosine times `scale`; third texts are more to choose from.

    A candidate that is the same text as the right one, or as the first text itself, is no wrong answer and left out.
    """

    scale: float = 20.0

    columns: ClassVar[tuple[int, ...]] = (2, 3)
    gold: ClassVar[Gold] = "nothing"
    uses_in_batch_negatives: ClassVar[bool] = True

    def compute_losses(self, vectors: Tensor, text_ids: Tensor, gold: Tensor, head: nn.Module | None) -> Tensor:
        """[E]"""
        anchors, others = vectors[0], vectors[1:].flatten(0, 1)  # [E, W], [(K - 1) E, W]
        scores = F.normalize(anchors, dim=-1) @ F.normalize(others, dim=-1).T * self.scale
        rows, wrong = text_ids[0], text_ids[1:].flatten()
        right = torch.arange(len(anchors), device=scores.device)
        double = (wrong[None] == text_ids[1][:, None]) | (wrong[None] == rows[:, None])
        double[right, right] = False
        return F.cross_entropy(scores.masked_fill(double, -math.inf), right, reduction="none")


@spec
class PairClasses:
    """softmax(W [u; v; |u - v|]) over the classes of pairs, as S-BERT was trained on inference."""

    classes: int = 3

    columns: ClassVar[tuple[int, ...]] = (2,)
    gold: ClassVar[Gold] = "class"
    uses_in_batch_negatives: ClassVar[bool] = False

    def compute_losses(self, vectors: Tensor, text_ids: Tensor, gold: Tensor, head: nn.Module | None) -> Tensor:
        """[E]"""
        assert head is not None
        u, v = vectors
        return F.cross_entropy(head(torch.cat((u, v, (u - v).abs()), dim=-1)), gold.long(), reduction="none")


@spec
class CosineScore:
    """(cos(u, v) - score)², for pairs with scores from 0 to 1."""

    columns: ClassVar[tuple[int, ...]] = (2,)
    gold: ClassVar[Gold] = "score"
    uses_in_batch_negatives: ClassVar[bool] = False

    def compute_losses(self, vectors: Tensor, text_ids: Tensor, gold: Tensor, head: nn.Module | None) -> Tensor:
        """[E]"""
        return (F.cosine_similarity(vectors[0], vectors[1]) - gold) ** 2


ContrastiveLoss = Triplet | InBatch | PairClasses | CosineScore
LOSSES: dict[str, type[ContrastiveLoss]] = {
    "triplet": Triplet, "in_batch": InBatch, "classes": PairClasses, "cosine": CosineScore,
}  # fmt: skip


class ContrastiveModel(nn.Module):
    """An encoder with what it learns, and with a classifier where the loss has one."""

    def __init__(self, encoder: TextEncoder, loss: ContrastiveLoss, *, columns: int, seed: int = 0) -> None:
        super().__init__()
        if columns not in loss.columns:
            raise UsageError(f"this loss compares {' or '.join(map(str, loss.columns))} texts, found {columns}")
        if "static" in encoder.config.pooling:
            raise UsageError("static vectors cannot be trained by comparison; choose another pooling")
        self.encoder, self.criterion, self.columns = encoder, loss, columns
        self.head: nn.Linear | None = None
        if isinstance(loss, PairClasses):
            like = encoder.model.tokens.weight
            drawn = torch.Generator().manual_seed(seed)
            self.head = nn.Linear(3 * encoder.width, loss.classes)
            with torch.no_grad():
                self.head.weight.normal_(0.0, 0.02, generator=drawn)
                self.head.bias.zero_()
            self.head.to(like.device, like.dtype)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The vectors `[K, E, W]` of a batch, which text each is `[K, E]`, and what is said of the examples `[E]`."""
        if batch.targets is None or batch.labels is None:
            raise UsageError("a batch of compared texts says where each begins and which it is; see `lay_texts`")
        cells = batch.sequence.index_select(0, batch.targets.index)
        vectors = self.encoder(batch).float().index_select(0, cells)
        shape = self.columns, len(cells) // self.columns
        same = batch.labels.index_select(0, cells).view(shape)
        return vectors.view(*shape, vectors.shape[-1]), same, batch.targets.labels.view(shape)[0]

    def compile(self, *args: object, **options: object) -> None:
        """Compile the encoder's model block by block."""
        self.encoder.model.compile(*args, **options)


class ContrastiveObjective:
    """What the loop asks of a work: how many examples there are, and their summed loss.

    With several ranks a loss whose examples are compared with one another is that of all ranks' examples, on each.
    """

    def __init__(self, columns: int, ranks: Ranks | None = None) -> None:
        self.columns, self.ranks = columns, ranks

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        """One target for each example; every column has as many."""
        assert batch.targets is not None
        said = batch.targets.labels
        return {"loss": torch.full((), said.shape[0] // self.columns, device=said.device)}

    def loss(self, model: ContrastiveModel, batch: Batch) -> Loss:
        """Summed over the examples."""
        vectors, same, gold = model(batch)
        if model.criterion.uses_in_batch_negatives and self.ranks is not None:
            vectors, same = (
                self.ranks.gather_rows(values.transpose(0, 1)).transpose(0, 1) for values in (vectors, same)
            )
        with torch.autocast(vectors.device.type, enabled=False):
            each = model.criterion.compute_losses(vectors, same, gold, model.head)
        return Loss(sum=each.sum(), count=torch.full((), len(each), device=each.device))


def _distance(a: Tensor, b: Tensor) -> Tensor:
    return F.pairwise_distance(a, b, p=2)
