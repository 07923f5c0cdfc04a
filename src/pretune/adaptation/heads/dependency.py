"""Dependency parsing: a deep biaffine head over the words of a sentence (Dozat and Manning, 2017).

Every word attends to its head, another word or the root; a second biaffine scores the relation of an arc. A word is one
token (its first, or for a left-to-right model its last); its target holds the distance to the head's token and the
relation (`encode_arcs`). The tree is found from the scores by `tasks.types.dependency`. See also: `tagging`.

    tokens     [CLS] She   read  the  book [SEP]
    head       -     +1    root  +1   -2   -
    relation   -     nsubj root  det  obj  -

Legend: N tokens, R tokens of a row, L of the longest sequence, K relations, A and B widths of arc and relation vectors.
"""

from collections.abc import Mapping
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.adaptation.heads.base import HeadedModel, TokenHead, check_classes, init_head
from pretune.adaptation.heads.token import get_targets
from pretune.adaptation.scalar_mix import Mixing
from pretune.core.config import Fraction, Positive, spec
from pretune.core.types import Batch, Loss
from pretune.data.sequences import Ints
from pretune.models.model import LanguageModel
from pretune.models.spec import FanIn, Model

UNKNOWN_HEAD = -1
"""Target of a word that may be a head, but whose own head is unknown (truncated)."""
MAX_PAIR_VALUES = 1 << 24
"""Maximum number of values in a chunk of relation scores."""


@spec
class Dependency:
    """A head and a relation for every word; cross-entropy of both."""

    classes: Positive[int]
    labels: tuple[str, ...] = ()  # names of the relations, in order
    dropout: Fraction = 0.33
    arc: Positive[int] = 500  # width of the vectors that arcs are scored with
    relation: Positive[int] = 100  # width of the vectors that relations are scored with
    scalar_mix: Mixing | None = None  # scalar mix over all layers of a frozen model, instead of the last states

    def __post_init__(self) -> None:
        check_classes(self.classes, self.labels)

    def resolve(self, spec: Model) -> Self:
        return self

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module:
        width = 2 * (self.arc + self.relation)
        with torch.device("meta"):
            head = BiaffineHead(self, TokenHead(model.spec.width, width, 0.0))
        init_head(model, head, seed, init=FanIn())
        if self.scalar_mix is not None:
            head.project = self.scalar_mix.build(model, width, tagging=True, seed=seed)
        head.reset_scores()
        return head

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": (get_targets(batch).labels >= 0).sum()}

    def loss(self, model: HeadedModel, batch: Batch) -> Loss:
        """Return the loss of heads and relations, summed over words."""
        head: BiaffineHead = model.head
        return head.compute_loss(model.states(batch), batch)


class BiaffineHead(nn.Module):
    """Scores of heads and relations from the states of tokens.

    The score of an arc is linear in both vectors, with a bias for the head: how often a word is one at all.
    """

    is_single_part = True  # with a scalar mix its LSTM is part of the head, not a block of the model

    def __init__(self, spec: Dependency, project: nn.Module) -> None:
        super().__init__()
        self.sizes = (spec.arc, spec.arc, spec.relation, spec.relation)
        self.project = project
        self.dropout = nn.Dropout(spec.dropout)
        self.arc = nn.Linear(spec.arc, spec.arc)  # the bias is that of the head
        self.pair = nn.Linear(spec.relation, spec.classes * spec.relation, bias=False)
        self.out = nn.Linear(2 * spec.relation, spec.classes)
        self.root = nn.Embedding(1, spec.arc + spec.relation)  # the root as a head

    @property
    def reads_all_layers(self) -> bool:
        """True if the input is all layers, not the last states."""
        return bool(getattr(self.project, "reads_all_layers", False))

    @torch.no_grad()
    def reset_scores(self) -> None:
        """Start with equal scores of all heads: only the bilinear weights are zero, so that all others can learn."""
        self.arc.weight.zero_()
        self.pair.weight.zero_()

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Return `[N, 1 + L, 2]`: for each token and head the score, and the best relation with that head.

        Column 0 is the root, column 1 + p the token at position p of the same sequence. Scores beyond the sequence are
        -inf, and so are those of filler.
        """
        dependent, head, relation_dependent, relation_head = self._compute_vectors(states, batch)
        start, length = self._find_spans(batch)
        longest = int(length.max())
        column = torch.arange(longest, device=start.device)
        is_inside = column < length[:, None]
        token = torch.where(is_inside, start[:, None] + column, 0)  # [N, L] that each column stands for
        root, scores = self._score_heads(dependent, head, batch)
        scores = scores.gather(1, token % batch.length).masked_fill(~is_inside, -torch.inf)
        out = scores.new_zeros(len(token), 1 + longest, 2)
        out[..., 0] = torch.cat((root, scores), dim=1).masked_fill((batch.sequence < 0)[:, None], -torch.inf)
        root_relation = self.root.weight[:, self.sizes[0] :]
        step = max(1, MAX_PAIR_VALUES // ((1 + longest) * max(self.sizes[2], self.out.out_features)))
        for first in range(0, len(token), step):
            rows = slice(first, first + step)
            heads = torch.cat((root_relation.expand(len(token[rows]), 1, -1), relation_head[token[rows]]), dim=1)
            out[rows, :, 1] = self._score_relations(relation_dependent[rows], heads).argmax(-1).to(out.dtype)
        return out

    def compute_loss(self, states: Tensor, batch: Batch) -> Loss:
        """Return the loss at the targets of a batch; words are the tokens with a target."""
        targets = get_targets(batch)
        dependent, head, relation_dependent, relation_head = self._compute_vectors(states, batch)
        has_target = targets.labels >= UNKNOWN_HEAD
        is_word = torch.zeros(len(batch.tokens) + 1, dtype=torch.bool, device=states.device)
        is_word = is_word.index_fill(0, torch.where(has_target, targets.index, len(batch.tokens)), True)[:-1]
        rows, length = batch.rows, batch.length
        owner = batch.sequence.view(rows, length)
        is_pair = (owner[:, :, None] == owner[:, None]) & is_word.view(rows, 1, length)
        is_pair = is_pair & ~torch.eye(length, dtype=torch.bool, device=states.device)  # no word is its own head
        root, scores = self._score_heads(dependent, head, batch)
        scores = torch.cat((root, scores.masked_fill(~is_pair.flatten(0, 1), -torch.inf)), dim=1)[targets.index]
        is_known = targets.labels >= 0
        distance, relation = decode_arcs(targets.labels.clamp(min=0), self.out.out_features)
        is_root = distance == 0
        position = targets.index + distance  # of the head in the flat batch
        column = torch.where(is_root, 0, 1 + position % length)
        root_relation = self.root.weight[:, self.sizes[0] :]
        heads = torch.where(is_root[:, None], root_relation, relation_head[torch.where(is_root, 0, position)])
        relation_scores = self._score_relations(relation_dependent[targets.index], heads[:, None]).squeeze(1).float()
        total = F.cross_entropy(scores, column, reduction="none")
        total = total + F.cross_entropy(relation_scores, relation, reduction="none")
        correct = None
        if not torch.is_grad_enabled():
            is_correct = (scores.argmax(-1) == column) & (relation_scores.argmax(-1) == relation) & is_known
            correct = is_correct.sum()
        return Loss(sum=total.where(is_known, 0.0).sum(), count=is_known.sum(), correct=correct)

    def _compute_vectors(self, states: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """Return the vectors of each token as dependent and as head: two for arcs `[N, A]`, two for relations."""
        vectors = F.leaky_relu(self.project(states, batch), 0.1)
        return tuple(self.dropout(part) for part in torch.split(vectors, [*self.sizes], dim=-1))

    def _score_heads(self, dependent: Tensor, head: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the scores of the root `[N, 1]`, and of all tokens in the same row `[N, R]` as heads of each token."""
        query: Tensor = self.arc(dependent)
        shape = (batch.rows, batch.length, -1)
        scores = torch.bmm(query.view(shape), head.view(shape).transpose(1, 2)).flatten(0, 1)
        root = (query * self.root.weight[0, : self.sizes[0]]).sum(-1, keepdim=True)
        return root.float(), scores.float()

    def _score_relations(self, dependent: Tensor, heads: Tensor) -> Tensor:
        """Return the scores of relations `[D, H, K]` of D dependents `[D, B]` with H heads each `[D, H, B]`."""
        pairs = self.pair(dependent).view(len(dependent), self.out.out_features, -1)
        of_dependent, of_head = self.out.weight.chunk(2, dim=1)
        linear = F.linear(dependent, of_dependent, self.out.bias)[:, None] + F.linear(heads, of_head)
        return torch.einsum("nkb,nhb->nhk", pairs, heads) + linear

    def _find_spans(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the first token and the length of the sequence of each token `[N]`; length 0 for filler."""
        cell = batch.sequence.clamp(min=0)
        start, end = batch.offsets[:-1].long()[cell], batch.offsets[1:].long()[cell]
        return start, torch.where(batch.sequence < 0, 0, end - start)


def encode_arcs(distance: Ints, relation: Ints, classes: int) -> Ints:
    """Return the targets of words: the distance to the head's token (0: the root), and the relation, in one number.

    >>> encode_arcs(np.array([1, 0, -2]), np.array([3, 0, 1]), 5).tolist()
    [13, 0, 16]
    """
    zigzag = np.where(distance < 0, -2 * distance - 1, 2 * distance)
    return np.asarray(zigzag * classes + relation)


def decode_arcs(labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the distances and the relations of targets, the inverse of `encode_arcs`.

    >>> [part.tolist() for part in decode_arcs(torch.tensor([13, 0, 16]), 5)]
    [[1, 0, -2], [3, 0, 1]]
    """
    zigzag, relation = labels // classes, labels % classes
    return torch.where(zigzag % 2 == 1, -(zigzag + 1) // 2, zigzag // 2), relation
