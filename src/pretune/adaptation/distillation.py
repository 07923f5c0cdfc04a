"""Distillation of a fine-tuned teacher into a student with the same head: soft targets, and layers.

Papers: Hinton et al. (2015); DistilBERT (Sanh et al., 2019) adds soft targets to the task's loss; TinyBERT (Jiao et
al., 2020) first imitates the layers of the teacher on the task's texts, then its logits. Both read the same batches, so
they have one vocabulary and one shape.

    teacher = TaskTeacher.load("runs/bert-sst2", device)
    objective = teacher.attach(TaskDistill(), student, seed=0)                # instead of `student.spec`, for training

Logits of small data are computed once (`TaskTeacher.add_logits`): the teacher then takes no part in the steps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretune.adaptation import io
from pretune.adaptation.adapted import SEQUENCE_HEADS, ModelWithHead, MultiTask, adapt
from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.token import Generation
from pretune.adaptation.teacher import (
    DistillationFlops,
    add_projections,
    check_vocabulary,
    freeze_teacher,
    hash_teacher,
    map_stacks,
)
from pretune.core.config import Fraction, NonNegative, get_kind, spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss
from pretune.data.layout import lay_out, next_fit
from pretune.data.plan import BatchShape
from pretune.data.sequences import Sequences, spread
from pretune.nn.distillation import linear_soft_loss
from pretune.objectives.base import rename_loss_term
from pretune.objectives.distill import DistillationWeights, ModelView, compare_layers, count_layer_terms, run_both
from pretune.training.batch_transfer import BatchStats
from pretune.training.cost import build_flops_counter
from pretune.training.loop import Loop
from pretune.training.step import StepMetrics

MAX_CACHED_VALUES = 2**27
"""Logits that are cached, 512 MB; of more data they are computed in every step."""
CACHE_TOKENS = 8192
"""Tokens of a batch when logits are cached."""
HARD_TERM = "task"


@runtime_checkable
class DistilledHead(Protocol):
    """A head with a loss against a teacher's logits."""

    def soft_loss(self, logits: Tensor, teacher_logits: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Return the loss, summed over the targets that `counts` counts."""


@spec(has_kind=False)
class TaskDistill(DistillationWeights):
    """Distillation of a fine-tuned teacher, with the weights of DistilBERT's example on SQuAD."""

    soft_weight: NonNegative[float] = 0.5
    hard_weight: NonNegative[float] = 0.5
    cosine_weight: NonNegative[float] = 0.0
    layer_share: Fraction = 0.0  # share of the steps, at the start, that train the layer terms alone, and later not
    cache: bool | None = None  # compute the teacher's logits once; None: if they are small and no layers are compared

    def __post_init__(self) -> None:
        DistillationWeights.__post_init__(self)  # NOTE: a class with slots is made twice, which breaks super()
        if self.cosine_weight:
            raise UsageError("cosine_weight is for pre-training; use state_weight, which compares the last layer too")
        if self.layer_share and not self.has_layer_terms:
            raise UsageError("layer_share needs a layer term; set state_weight, embedding_weight or attention_weight")
        if self.layer_share and not (self.soft_weight or self.hard_weight):
            raise UsageError("the steps after layer_share train nothing; set soft_weight or hard_weight")
        if self.cache and self.has_layer_terms:
            raise UsageError("layers of a teacher cannot be cached; remove cache, or the layer terms")


@dataclass(slots=True)
class TaskTeacher:
    """A fine-tuned model that teaches others."""

    path: str
    model: ModelWithHead
    scale: tuple[float, float] | None = None  # of a regression's scores
    fingerprint: str = ""
    cached_flops: float = 0.0

    @classmethod
    def load(
        cls, path: str, device: torch.device, *, base: str | None = None, scale: tuple[float, float] | None = None
    ) -> "TaskTeacher":
        """Load a fine-tuned model; `scale` is the range of its scores. Raises CheckpointError for a damaged one."""
        model = io.load(path, base=base)
        if not isinstance(model, ModelWithHead):
            if model.spec.decoder is None or model.spec.head is None:
                raise UsageError(f"{path}: the teacher has no task head; fine-tune it on the task first")
            model = adapt(model, Generation())
        teacher = freeze_teacher(model).to(device)
        return cls(path, teacher, scale, hash_teacher(teacher))

    def check(self, student: ModelWithHead, weights: TaskDistill, *, length: int, slots: int = 0) -> None:
        """Raise unless a student can learn from this teacher with sequences of up to `length` tokens."""
        teacher, path = self.model, self.path
        check_vocabulary(teacher.tokenizer, student.tokenizer, path)
        _check_heads(student.spec, teacher.spec, weights, path)
        map_stacks(weights, student.model.spec, teacher.model.spec, path)
        if slots or teacher.model.prompt is not None:
            raise UsageError(f"{path}: prompt tuning cannot be distilled; its tokens have no meaning to another model")
        longest = teacher.model.spec.max_length
        if longest is not None and length > longest:
            raise UsageError(f"{path}: the teacher reads {longest} tokens, the student {length}; lower data.max_length")
        if weights.has_layer_terms:
            for model in (student, teacher):
                if getattr(model.head, "reads_all_layers", False):
                    raise UsageError("layer terms need heads over the last layer; remove them, or tune.scalar_mix")

    def attach(self, weights: TaskDistill, student: ModelWithHead, *, seed: int = 0) -> "TaskDistillation":
        """Return the objective of a student; adds projections to it where the widths differ and layers are compared."""
        layer_maps = map_stacks(weights, student.model.spec, self.model.model.spec, self.path)
        widths = student.model.spec.width, self.model.model.spec.width
        add_projections(student, weights.projected_terms, *widths, seed)
        return TaskDistillation(student.spec, weights, self.model, tuple(layer_maps))

    def add_logits(
        self, parts: Sequence[Sequences], weights: TaskDistill, precision: torch.dtype | None = None
    ) -> list[Sequences]:
        """Return the sequences of each task with the teacher's logits; unchanged if these are not to be cached."""
        heads = _list_heads(self.model.spec)
        is_generative = any(isinstance(head, Generation) for head in heads)
        if weights.cache and is_generative:
            raise UsageError("logits over a vocabulary are too large to be cached; remove tune.distill.cache")
        is_cached = weights.cache
        if is_cached is None:
            values = sum(
                (len(part) if isinstance(head, SEQUENCE_HEADS) else len(part.tokens)) * getattr(head, "classes", 2)
                for part, head in zip(parts, heads, strict=False)
            )
            is_cached = not weights.has_layer_terms and not is_generative and values <= MAX_CACHED_VALUES
        if not is_cached or not weights.soft_weight:
            return [*parts]
        return [self._compute_logits(part, number, precision) for number, part in enumerate(parts)]

    def _compute_logits(self, sequences: Sequences, task: int, precision: torch.dtype | None) -> Sequences:
        """Return sequences with the logits of the head of a task, each computed once."""
        head = _list_heads(self.model.spec)[task]
        order, is_sequence_head = np.argsort(sequences.lengths, kind="stable"), isinstance(head, SEQUENCE_HEADS)
        rows: list[NDArray[np.float32]] = []
        stats, numbers = BatchStats(), np.cumsum(sequences.lengths[order]) // CACHE_TOKENS
        for chunk in np.split(order, np.flatnonzero(np.diff(numbers)) + 1):
            batch = replace(_lay_out_rows(sequences.take(chunk)), task=task)
            stats += BatchStats.from_batches([batch])
            logits = self._run_head(batch.to(next(self.model.parameters()).device), precision).float().cpu()
            index = batch.find_sequence_cells() if is_sequence_head else (batch.sequence >= 0).nonzero().flatten()
            rows.append(logits.index_select(0, index).numpy())
        flat = np.concatenate(rows)
        result = np.empty_like(flat)
        places = order if is_sequence_head else spread(sequences.offsets[:-1][order], sequences.lengths[order])
        result[places] = flat
        self.cached_flops += build_flops_counter(self.model.model.spec)(stats) / 3
        name = "sequence_logits" if is_sequence_head else "token_logits"
        return replace(sequences, **{name: result})  # type: ignore[arg-type]

    @torch.no_grad()
    def _run_head(self, batch: Batch, precision: torch.dtype | None) -> Tensor:
        assert self.model.head is not None
        with torch.autocast(batch.tokens.device.type, precision, enabled=precision is not None):
            logits: Tensor = self.model.head(self.model.states(batch), batch)
        return logits

    def count_flops(self, count_student: Callable[[BatchStats], float], *, is_cached: bool) -> DistillationFlops:
        """Return the counter of FLOPs of a run; those of cached logits are counted once, in the first run."""
        spec = self.model.model.spec
        cached_flops, self.cached_flops = self.cached_flops, 0.0
        return DistillationFlops(count_student, None if is_cached else spec, cached_flops=cached_flops)


@dataclass(slots=True)
class TaskDistillation:
    """Objective of a student with a task head: the task's loss, soft targets, and layers.

    A batch with `teacher_logits` needs no pass of the teacher.
    """

    head: TaskHead
    weights: TaskDistill
    teacher: ModelWithHead
    layer_maps: tuple[tuple[int, ...], ...] = ()
    rescaling: tuple[float, float] | None = None  # factor and shift of the teacher's scores
    trains_layers: bool = True  # False after the steps of `layer_share`, and
    trains_head: bool = True  # False before

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        counts: dict[str, Tensor] = {}
        if self.trains_head:
            head_counts = rename_loss_term(self.head.counts(batch), HARD_TERM)
            counts = dict(head_counts) if self.weights.hard_weight else {}
            if self.weights.soft_weight:
                counts["soft"] = head_counts[HARD_TERM]
        return counts | count_layer_terms(self.weights, batch) if self.trains_layers else counts

    def loss(self, model: ModelWithHead, batch: Batch) -> Loss:
        weights, terms = self.weights, dict[str, Loss]()
        teacher_states: Tensor | None = None
        if self.trains_layers and weights.has_layer_terms:
            outputs, references = run_both(model.model, self.teacher.model, batch, weights)
            states, teacher_states = outputs[0].states, references[0].states
            terms = compare_layers(model, outputs, references, self.layer_maps, weights, batch)
        else:
            states = model.states(batch)
        if not self.trains_head:
            return Loss.from_parts(terms)
        task_terms: dict[str, Loss] = {}
        if weights.hard_weight:
            task_terms = weights.weigh_hard_loss(self.head.loss(ModelView(model, states), batch), HARD_TERM)
        if weights.soft_weight:
            total = self._compute_soft_loss(model, states, teacher_states, batch)
            task_terms["soft"] = Loss(sum=total, count=self.counts(batch)["soft"], weight=weights.soft_weight)
        return Loss.from_parts({**task_terms, **terms})

    def _compute_soft_loss(
        self, model: ModelWithHead, states: Tensor, teacher_states: Tensor | None, batch: Batch
    ) -> Tensor:
        head, temperature = _list_heads(self.head)[batch.task], self.weights.temperature
        with torch.no_grad():
            if batch.teacher_logits is None and teacher_states is None:
                teacher_states = self.teacher.states(batch)
        if isinstance(head, Generation) and batch.targets is not None and teacher_states is not None:
            index, is_row = batch.targets.index, batch.targets.labels != IGNORE_INDEX
            with torch.no_grad():
                target = self.teacher.model.get_logit_factors(teacher_states, index)
            return linear_soft_loss(model.model.get_logit_factors(states, index), target, is_row, temperature)
        assert isinstance(head, DistilledHead) and model.head is not None
        teacher_logits = batch.teacher_logits
        if teacher_logits is None:
            with torch.no_grad():
                teacher_logits = self.teacher.head(teacher_states, batch)  # type: ignore[misc]
        if self.rescaling is not None:
            teacher_logits = teacher_logits.float() * self.rescaling[0] + self.rescaling[1]
        return head.soft_loss(model.head(states, batch), teacher_logits, batch, temperature)


class LayerStageHook:
    """Trains the layer terms alone until a step, and the head alone from then on (Jiao et al., 2020)."""

    def __init__(self, objective: TaskDistillation, steps: int) -> None:
        self.objective, self.last_step = objective, round(objective.weights.layer_share * steps)

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        """Choose the terms of the next step."""
        is_first_stage = loop.state.step < self.last_step
        self.objective.trains_layers, self.objective.trains_head = is_first_stage, not is_first_stage


def _list_heads(head: TaskHead) -> tuple[Any, ...]:
    return head.heads if isinstance(head, MultiTask) else (head,)


def _check_heads(student: TaskHead, teacher: TaskHead, weights: TaskDistill, path: str) -> None:
    """Raise UsageError unless both have the same heads, with the same labels."""
    heads, teacher_heads = _list_heads(student), _list_heads(teacher)
    kinds, teacher_kinds = ([get_kind(head) for head in parts] for parts in (heads, teacher_heads))
    if kinds != teacher_kinds:
        raise UsageError(
            f"{path}: the teacher's head is '{', '.join(teacher_kinds)}', the task needs '{', '.join(kinds)}'; "
            "fine-tune the teacher on this task"
        )
    for head, teacher_head in zip(heads, teacher_heads, strict=True):
        if weights.soft_weight and not isinstance(head, DistilledHead | Generation):
            raise UsageError(f"the head '{get_kind(head)}' has no soft targets; set tune.distill.soft_weight=0")
        labels, teacher_labels = (getattr(part, "labels", ()) for part in (head, teacher_head))
        if labels != teacher_labels:
            raise UsageError(
                f"{path}: the teacher's labels are {', '.join(teacher_labels)}; the task's are {', '.join(labels)}"
            )


def _lay_out_rows(sequences: Sequences) -> Batch:
    """Return a batch of sequences, in order, in rows of the longest."""
    length, source = int(sequences.lengths.max()), sequences.source
    source_length = None if source is None else int(source.lengths.max())
    row = next_fit(sequences.lengths, length, None if source is None else source.lengths, source_length or 0)
    return lay_out(sequences, row, BatchShape(rows=int(row[-1]) + 1, length=length, source=source_length))


def compute_rescaling(
    scale: tuple[float, float] | None, teacher_scale: tuple[float, float] | None
) -> tuple[float, float] | None:
    """Return factor and shift from a teacher's scores to those of a student; scores lie in [-1, 1] of their scale.

    >>> compute_rescaling((0.0, 10.0), (0.0, 5.0))  # 5, the teacher's 1, is the student's 0
    (0.5, -0.5)
    """
    if scale is None or teacher_scale is None or scale == teacher_scale:
        return None
    factor = (teacher_scale[1] - teacher_scale[0]) / (scale[1] - scale[0])
    return factor, 2 * (teacher_scale[0] - scale[0]) / (scale[1] - scale[0]) + factor - 1
