"""Distillation: a student imitates a larger, trained model while it reads the same corrupted text.

Papers: Hinton et al. (2015); DistilBERT (Sanh et al., 2019) adds soft targets, the loss of the base objective and the
cosine of the last states, weighted 5 : 2 : 1, at temperature 2; TinyBERT (Jiao et al., 2020) imitates the layers:
embeddings, states and attention scores, and then the logits. Input: that of the base objective. Teacher and student
have one vocabulary; they may differ in family, depth and width. Siblings: the base objective alone trains a student
without a teacher.

    text      The  cat   sat        teacher   embeddings  layer 2  layer 4  layer 6   logits
    tokens    The [MASK] sat                       |         |        |        |        |
    targets    -   cat    -         student   embeddings  layer 1  layer 2  layer 3   logits   ->  cat

The teacher is not part of the student or of its checkpoints: `attach` returns the loss of one pair.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, Self, get_args

import torch
from torch import Tensor

from pretune.core.config import NonNegative, PathText, Positive, from_dict, get_kind, spec
from pretune.core.config.specs import to_plain
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss
from pretune.data.stream import Corruption
from pretune.nn.distillation import (
    LogitFactors,
    linear_soft_loss,
    sum_cosine_distances,
    sum_score_errors,
    sum_squared_errors,
)
from pretune.nn.stack import StackOutput
from pretune.objectives.base import (
    ModelShape,
    Objective,
    PairKind,
    PretrainingModel,
    Vocabulary,
    count_vocabulary_targets,
    rename_loss_term,
)
from pretune.objectives.masked import MaskedLM
from pretune.objectives.mixture import Mixture, SimpleObjective
from pretune.objectives.next_sentence import NextSentence, SentenceOrder
from pretune.objectives.span_masked import SpanMaskedLM
from pretune.objectives.translation import Translation

BaseObjective = SimpleObjective | SpanMaskedLM | NextSentence | SentenceOrder | Translation | Mixture
DISTILLED_SHAPES: tuple[ModelShape, ...] = ("encoder", "decoder", "encoder-decoder")
STATES, EMBEDDINGS, ATTENTION = "states", "embeddings", "attention"
"""Terms that compare layers; the first two name the projections from the student's width to the teacher's, too."""
_NO_TEACHER = "a distillation needs a teacher; use --teacher RUN, in Python `attach` of the objective"


class DistilledModel(PretrainingModel, Protocol):
    """Methods of a student and of a teacher that distillation calls."""

    def run_stacks(self, batch: Batch, *, hidden: bool = False, scores: bool = False) -> tuple[StackOutput, ...]:
        """Return the output of every stack, the last one first."""

    def get_logit_factors(self, states: Tensor, index: Tensor | None = None) -> LogitFactors:
        """Return rows, matrix and bias whose product are the vocabulary logits."""


@spec(has_kind=False)
class DistillationWeights:
    """Teacher, temperature, weights of the loss terms (0: not computed), and the mapping of layers."""

    teacher: PathText | None = None  # directory of its run or of a Hugging Face model (`--teacher`)
    temperature: Positive[float] = 2.0  # of the soft targets
    soft_weight: NonNegative[float] = 5.0  # soft targets: the teacher's logits
    hard_weight: NonNegative[float] = 2.0  # loss without the teacher
    cosine_weight: NonNegative[float] = 1.0  # direction of the last states
    state_weight: NonNegative[float] = 0.0  # states of the mapped layers
    embedding_weight: NonNegative[float] = 0.0  # states before the first layer
    attention_weight: NonNegative[float] = 0.0  # attention scores of the mapped layers
    layers: tuple[Positive[int], ...] | None = None  # teacher's layer of each student layer; None: evenly spaced

    def __post_init__(self) -> None:
        if not any((self.soft_weight, self.hard_weight, self.cosine_weight, self.has_layer_terms)):
            raise UsageError("all weights of a distillation are 0; set one, such as soft_weight=1")

    def require_teacher(self) -> str:
        """Return the path of the teacher; UsageError if there is none."""
        if self.teacher is None:
            raise UsageError(_NO_TEACHER)
        return self.teacher

    def weigh_hard_loss(self, loss: Loss, name: str) -> dict[str, Loss]:
        """Return the terms of the loss without the teacher with their weights; its only term gets a name."""
        terms = rename_loss_term(loss.get_terms(), name).items()
        return {key: replace(term, weight=term.weight * self.hard_weight) for key, term in terms}

    @property
    def layer_weights(self) -> dict[str, float]:
        """Weights of the terms that compare layers."""
        weights = {STATES: self.state_weight, EMBEDDINGS: self.embedding_weight, ATTENTION: self.attention_weight}
        return {name: weight for name, weight in weights.items() if weight}

    @property
    def has_layer_terms(self) -> bool:
        """True if a term compares layers."""
        return bool(self.layer_weights)

    @property
    def projected_terms(self) -> tuple[str, ...]:
        """Names of the projections that are needed if the widths differ."""
        weights = {STATES: self.cosine_weight or self.state_weight, EMBEDDINGS: self.embedding_weight}
        return tuple(name for name, weight in weights.items() if weight)

    def map_layers(self, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
        """Return the teacher's layer, counted from 1, of each student layer.

        By default layer m of M imitates layer ceil(m N / M) of N: every second one for half the depth, and always the
        last. Raises UsageError if the mapping does not fit.

        >>> DistillationWeights().map_layers(6, 12), DistillationWeights().map_layers(4, 6)
        ((2, 4, 6, 8, 10, 12), (2, 3, 5, 6))
        """
        if self.layers is None:
            if student_depth > teacher_depth:
                raise UsageError(
                    f"a student of {student_depth} layers is deeper than its teacher of {teacher_depth}; set layers, "
                    "the teacher's layer of each student layer"
                )
            return tuple(-(-layer * teacher_depth // student_depth) for layer in range(1, student_depth + 1))
        is_ascending = [*self.layers] == sorted(self.layers)
        if len(self.layers) != student_depth or max(self.layers) > teacher_depth or not is_ascending:
            raise UsageError(
                f"layers {list(self.layers)} do not map {student_depth} student layers to ascending layers from 1 to "
                f"{teacher_depth} of the teacher; change or remove them"
            )
        return self.layers


@spec
class Distill(DistillationWeights, Objective):
    """Soft targets, last states and layers of a teacher, with the loss of a base objective (DistilBERT, TinyBERT)."""

    base: BaseObjective = MaskedLM()
    soft_positions: Literal["targets", "all"] = "targets"  # positions of the soft targets
    init: Literal["auto", "random", "teacher"] = "auto"  # auto: layers of the teacher if they fit

    @classmethod
    def from_base(
        cls, base: Objective, teacher: str | None, settings: Mapping[str, object] = MappingProxyType({})
    ) -> Self:
        """Return the distillation of an objective with some settings; one that is a distillation gets the teacher."""
        if isinstance(base, cls):
            return replace(base, teacher=teacher or base.teacher)
        if not isinstance(base, BaseObjective):
            names = ", ".join(get_kind(kind) for kind in get_args(BaseObjective))
            raise UsageError(
                f"the objective '{base.name}' of this model cannot be distilled; name another with --objective NAME "
                f"--teacher RUN (allowed: {names})"
            )
        return from_dict(cls, {**to_plain(settings), "teacher": teacher, "base": base}, location="objective")

    @property
    def shapes(self) -> tuple[ModelShape, ...]:
        return tuple(shape for shape in self.base.shapes if shape in DISTILLED_SHAPES)

    @property
    def inner(self) -> tuple[Objective, ...]:
        return (self.base,)

    @property
    def pairs(self) -> PairKind | None:
        return self.base.pairs

    @property
    def masking(self) -> Any:
        """Masking of the base objective."""
        return getattr(self.base, "masking", self.base)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> Corruption:
        return self.base.bind(vocabulary, shape)

    def to_evaluation(self) -> Self:
        return replace(self, base=self.base.to_evaluation())

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        tokens = count_tokens(batch)
        counts = {**rename_loss_term(self.base.counts(batch), self.base.name)} if self.hard_weight else {}
        if self.soft_weight:
            counts["soft"] = count_vocabulary_targets(batch) if self.soft_positions == "targets" else tokens
        if self.cosine_weight:
            counts["cosine"] = tokens
        return counts | count_layer_terms(self, batch)

    def loss(self, model: PretrainingModel, batch: Batch) -> Loss:
        raise UsageError(_NO_TEACHER)

    def attach(self, teacher: DistilledModel, layer_maps: Sequence[Sequence[int]] = ()) -> "Distillation":
        """Return the loss with a teacher; `layer_maps` are those of its stacks, the last one first."""
        return Distillation(self, teacher, tuple(map(tuple, layer_maps)))


@dataclass(frozen=True, slots=True)
class Distillation:
    """Objective of a student with its teacher, which takes part in every step without gradients."""

    objective: Distill
    teacher: DistilledModel
    layer_maps: tuple[tuple[int, ...], ...] = ()
    has_perplexity: ClassVar[bool] = False  # of its first term, as evaluation without a trained vocabulary head

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return self.objective.counts(batch)

    def to_evaluation(self) -> "Objective | Distillation":
        """Return the student's own loss if its vocabulary head is trained, which compares to a student without teacher.

        Otherwise the loss of the distillation.
        """
        evaluation = self.objective.to_evaluation()
        is_trained = self.objective.soft_weight or self.objective.hard_weight
        return evaluation.base if is_trained else replace(self, objective=evaluation)

    def loss(self, model: Any, batch: Batch) -> Loss:
        objective = self.objective
        outputs, references = run_both(model, self.teacher, batch, objective)
        terms: dict[str, Loss] = {}
        states = outputs[0].states
        if objective.hard_weight:
            base_loss = objective.base.loss(ModelView(model, states), batch)
            terms |= objective.weigh_hard_loss(base_loss, objective.base.name)
        counts = self.counts(batch)
        if objective.soft_weight:
            total = self._compute_soft_loss(model, states, references[0].states, batch)
            terms["soft"] = Loss(sum=total, count=counts["soft"], weight=objective.soft_weight)
        if objective.cosine_weight:
            state = project(model, STATES, states)
            total = sum_cosine_distances(state, references[0].states, batch.sequence >= 0)
            terms["cosine"] = Loss(sum=total, count=counts["cosine"], weight=objective.cosine_weight)
        terms |= compare_layers(model, outputs, references, self.layer_maps, objective, batch)
        return Loss.from_parts(terms)

    def _compute_soft_loss(self, model: DistilledModel, states: Tensor, reference: Tensor, batch: Batch) -> Tensor:
        index, is_row = None, batch.sequence >= 0
        if self.objective.soft_positions == "targets" and batch.targets is not None:
            index, is_row = batch.targets.index, batch.targets.labels != IGNORE_INDEX
        with torch.no_grad():
            target = self.teacher.get_logit_factors(reference, index)
        return linear_soft_loss(model.get_logit_factors(states, index), target, is_row, self.objective.temperature)


class ModelView:
    """A model whose states are known: a base objective does not compute them again."""

    def __init__(self, model: Any, states: Tensor) -> None:
        self._model, self._states = model, states

    def states(self, batch: Batch) -> Tensor:
        """Return the known states."""
        return self._states

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def run_both(
    model: DistilledModel, teacher: DistilledModel, batch: Batch, weights: DistillationWeights
) -> tuple[tuple[StackOutput, ...], tuple[StackOutput, ...]]:
    """Return the outputs of student and teacher, with those of the layers that the weights need."""
    hidden, scores = bool(weights.state_weight or weights.embedding_weight), weights.attention_weight > 0
    with torch.no_grad():
        references = teacher.run_stacks(batch, hidden=hidden, scores=scores)
    return model.run_stacks(batch, hidden=hidden, scores=scores), references


def project(model: Any, name: str, states: Tensor) -> Tensor:
    """Return states in the teacher's width: unchanged, or by the learned projection."""
    projections = getattr(model, "projections", None)
    if projections is None or name not in projections:
        return states
    out: Tensor = projections[name](states)
    return out


def count_layer_terms(weights: DistillationWeights, batch: Batch) -> dict[str, Tensor]:
    """Count the rows of the terms that compare layers: the tokens of all stacks."""
    tokens = count_tokens(batch)
    if batch.source is not None:
        tokens = tokens + count_tokens(batch.source)
    return dict.fromkeys(weights.layer_weights, tokens)


def compare_layers(
    model: Any,
    outputs: Sequence[StackOutput],
    references: Sequence[StackOutput],
    layer_maps: Sequence[Sequence[int]],
    weights: DistillationWeights,
    batch: Batch,
) -> dict[str, Loss]:
    """Return the terms that compare layers, each summed over the layers of all stacks (Jiao et al., 2020, eq. 7-9)."""
    sums: dict[str, list[Tensor]] = {name: [] for name in weights.layer_weights}
    if not sums:
        return {}
    sides = [batch] if batch.source is None else [batch, batch.source]
    for output, reference, layer_map, side in zip(outputs, references, layer_maps, sides, strict=True):
        is_token = side.sequence >= 0
        layers = {STATES: [*enumerate(layer_map, start=1)], EMBEDDINGS: [(0, 0)]}
        if output.hidden is not None and reference.hidden is not None:
            for name in sums.keys() & layers:
                for layer, teacher_layer in layers[name]:
                    states = project(model, name, output.hidden[layer])
                    sums[name].append(sum_squared_errors(states, reference.hidden[teacher_layer], is_token))
        if output.attention is not None and reference.attention is not None:
            for layer, teacher_layer in enumerate(layer_map):
                scores, targets = output.attention[layer], reference.attention[teacher_layer - 1]
                sums[ATTENTION].append(sum_score_errors(scores, targets, is_token))
    return {
        name: Loss(sum=torch.stack(sums[name]).sum(), count=count, weight=weights.layer_weights[name])
        for name, count in count_layer_terms(weights, batch).items()
    }


def count_tokens(batch: Batch) -> Tensor:
    """Count the tokens of one side of a batch, filler excluded."""
    return (batch.sequence >= 0).sum()
