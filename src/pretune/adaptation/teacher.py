"""Teachers of distillation: checks of a pair, projections, initial weights from the teacher's layers, and cost.

    teacher = load_teacher("runs/bert-base")
    distillation = attach_teacher(Distill(), student, teacher, source="runs/bert-base")      # an objective for training

The teacher stays outside of the student: `student.projections` is the only module that training adds to it, and
`detach_teacher` removes it before the student is saved.
"""

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from pretune.adaptation.peft.base import init_uniform, sample_weight
from pretune.core import log
from pretune.core.errors import CheckpointError, UsageError
from pretune.core.hub import resolve_path
from pretune.core.log import format_number
from pretune.models.hf import checkpoint
from pretune.models.hf.checkpoint import check_weights
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.nn.attention import Attention
from pretune.objectives.distill import Distill, Distillation, DistillationWeights
from pretune.text.tokenizer import Tokenizer
from pretune.training.batch_transfer import BatchStats
from pretune.training.checkpoints.manager import collect_weights
from pretune.training.cost import build_flops_counter

M = TypeVar("M", bound=nn.Module)
PROJECTIONS = "projections"
"""Child of a student in training: projections of its states to the teacher's width."""
_PROJECTION_SEED = 101
"""Added to the seed of a run for the initial projections."""
_LAYER = re.compile(r"^(encoder|decoder)\.(\d+)\.")


def load_teacher(path: str | os.PathLike[str], tokenizer: Tokenizer | None) -> LanguageModel:
    """Load a pre-trained model as teacher of a student that reads text with `tokenizer`.

    Raises CheckpointError for a damaged directory, or one with another vocabulary.
    """
    folder = resolve_path(path)
    model = checkpoint.load(folder)
    check_weights(model, folder)
    check_vocabulary(model.tokenizer, tokenizer, str(path))
    return freeze_teacher(model)


def freeze_teacher(model: M) -> M:
    """Return a teacher in evaluation mode, without gradients."""
    return model.eval().requires_grad_(False)


def check_vocabulary(teacher: Tokenizer | None, student: Tokenizer | None, path: str) -> None:
    """Raise CheckpointError unless both tokenizers have the same tokens under the same ids."""
    if teacher is None:
        raise CheckpointError(f"{path}: the teacher has no tokenizer; add the tokenizer.json that it was trained with")
    if student is None or teacher.sha256 == student.sha256:
        return
    if teacher.raw.get_vocab(with_added_tokens=True) != student.raw.get_vocab(with_added_tokens=True):
        raise CheckpointError(
            f"{path}: the teacher's vocabulary of {teacher.vocab:,} tokens differs from the student's of "
            f"{student.vocab:,}; use a teacher with the student's tokenizer"
        )


def map_stacks(weights: DistillationWeights, student: Model, teacher: Model, path: str) -> list[tuple[int, ...]]:
    """Return the mapping of layers of every stack, the last one first, and check that the pair can be compared.

    Raises UsageError for models of different shapes, layers that do not map, and heads whose scores do not compare.
    """
    if student.shape != teacher.shape:
        raise UsageError(f"{path}: a teacher of the shape '{teacher.shape}' cannot teach one of '{student.shape}'")
    if not weights.has_layer_terms:
        return []
    layer_maps = []
    for stack, teacher_stack in zip(student.stacks[::-1], teacher.stacks[::-1], strict=True):
        layer_map = weights.map_layers(stack.depth, teacher_stack.depth)
        layer_maps.append(layer_map)
        for layer, teacher_layer in enumerate(layer_map) if weights.attention_weight else ():
            heads = _count_heads(student, stack.blocks[layer % len(stack.blocks)])
            teacher_heads = _count_heads(teacher, teacher_stack.blocks[(teacher_layer - 1) % len(teacher_stack.blocks)])
            if heads != teacher_heads:
                raise UsageError(
                    f"{path}: {teacher_heads} attention heads in layer {teacher_layer} of the teacher, {heads} in "
                    f"layer {layer + 1} of the student; give the student as many, or set attention_weight=0"
                )
    return layer_maps


def _count_heads(model: Model, block: object) -> int:
    attention = getattr(block, "attention", None)
    # Others add terms to their scores, or have none.
    if type(attention) is not Attention or attention.distances is not None:
        raise UsageError(f"attention scores of '{model.family}' are not comparable; set attention_weight=0")
    return attention.heads


def check_teacher(objective: Distill, student: Model, teacher: Model, path: str, length: int) -> list[tuple[int, ...]]:
    """Check the specs of a pair for pre-training on sequences of `length` tokens; return the mapping of layers."""
    layer_maps = map_stacks(objective, student, teacher, path)
    if objective.soft_weight and teacher.head is None:
        raise UsageError(f"{path}: the teacher has no vocabulary head for soft targets; set objective.soft_weight=0")
    if teacher.max_length is not None and teacher.max_length < length:
        raise UsageError(
            f"{path}: the teacher reads {teacher.max_length} tokens, the run has sequences of {length}; lower "
            "data.max_length"
        )
    return layer_maps


def add_projections(student: nn.Module, terms: Sequence[str], width: int, teacher_width: int, seed: int) -> None:
    """Add learned projections from the student's width to the teacher's, if they differ, as `student.projections`.

    They have no bias and keep the expected size of the states.
    """
    if width == teacher_width or not terms:
        return
    projections = nn.ModuleDict({name: nn.Linear(width, teacher_width, bias=False, device="meta") for name in terms})
    device = next(student.parameters()).device
    for number, projection in enumerate(projections.values()):
        bound = (3 / width) ** 0.5
        projection.weight = init_uniform((teacher_width, width), bound, device, seed + _PROJECTION_SEED + number)
    student.projections = projections


def attach_teacher(
    objective: Distill,
    student: LanguageModel,
    teacher: LanguageModel,
    *,
    source: str,
    length: int = 1,
    seed: int = 0,
    copies_layers: bool = False,
) -> Distillation:
    """Return the objective of a student with its teacher; adds projections to the student where the widths differ.

    With `copies_layers` the student starts from layers of the teacher, as `objective.init` says. `source` is the path
    of the teacher in messages.
    """
    layer_maps = check_teacher(objective, student.spec, teacher.spec, source, length)
    if copies_layers and objective.init != "random":
        copy_layers(student, teacher, objective, source)
    add_projections(student, objective.projected_terms, student.spec.width, teacher.spec.width, seed)
    return objective.attach(teacher, layer_maps)


def detach_teacher(student: nn.Module) -> None:
    """Remove what training added to the student."""
    if hasattr(student, PROJECTIONS):
        delattr(student, PROJECTIONS)


def choose_copied_layers(objective: Distill, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
    """Return the teacher's layers, counted from 0, that a student starts from: those of `layers`, or evenly spaced.

    Half of twelve layers are those of DistilBERT.

    >>> choose_copied_layers(Distill(), 6, 12)
    (0, 2, 4, 7, 9, 11)
    """
    if objective.layers is not None:
        return tuple(layer - 1 for layer in objective.map_layers(student_depth, teacher_depth))
    last = max(student_depth - 1, 1)
    return tuple(round(layer * (teacher_depth - 1) / last) for layer in range(student_depth))


@torch.no_grad()
def copy_layers(student: LanguageModel, teacher: LanguageModel, objective: Distill, source: str) -> bool:
    """Copy embeddings, evenly spaced layers and heads of the teacher into the student; return whether it was done.

    With `init="auto"` nothing is copied unless all layers fit; with "teacher" that is a UsageError.
    """
    tensors = collect_weights(teacher)
    source_layers = {
        name: choose_copied_layers(objective, stack.depth, getattr(teacher.spec, name).depth)
        for name in ("encoder", "decoder")
        if (stack := getattr(student.spec, name)) is not None
    }

    def find_source(name: str) -> Tensor | None:
        return tensors.get(_LAYER.sub(lambda part: f"{part[1]}.{source_layers[part[1]][int(part[2])]}.", name))

    pairs = {name: (tensor, find_source(name)) for name, tensor in collect_weights(student).items()}
    for name, (tensor, value) in pairs.items():
        is_body = name.startswith(("tokens.", "encoder.", "decoder."))
        if is_body and (value is None or value.shape != tensor.shape):
            if objective.init == "auto":
                return False
            shape = "no such weight" if value is None else f"shape {list(value.shape)}"
            raise UsageError(
                f"{source}: '{name}' of the student has the shape {list(tensor.shape)}, the teacher {shape}; set "
                "objective.init=random"
            )
    for tensor, value in pairs.values():
        if value is not None and value.shape == tensor.shape:
            tensor.copy_(value)
    layers = "; ".join(f"{name} {', '.join(map(str, numbers))}" for name, numbers in source_layers.items())
    log.info(f"{source}: the student starts from layers of the teacher, counted from 0: {layers}")
    return True


def hash_teacher(teacher: nn.Module) -> str:
    """Return a hash of the teacher: names, shapes and sampled values of its weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(collect_weights(teacher).items()):
        digest.update(f"{name}{list(tensor.shape)}".encode() + sample_weight(tensor))
    return digest.hexdigest()


class DistillationFlops:
    """Counter of FLOPs of a student's training and of its teacher's forward passes.

    `teacher_share` is the share of the teacher in the last count, `head_positions` those of its vocabulary head.
    `cached_flops` is the cost of passes made before training; the teacher is None if there are no others.
    """

    def __init__(
        self,
        count_student: Callable[[BatchStats], float],
        teacher: Model | None,
        *,
        head_positions: Literal["targets", "all", "none"] = "targets",
        cached_flops: float = 0.0,
    ) -> None:
        self._count_student, self._head_positions, self._cached_flops = count_student, head_positions, cached_flops
        self._count_teacher = None if teacher is None else build_flops_counter(teacher)
        self.teacher_share = 0.0

    @classmethod
    def from_objective(cls, objective: Distill, student: Model, teacher: Model) -> "DistillationFlops":
        """Return the counter of a pre-training run."""
        positions = objective.soft_positions if objective.soft_weight else "none"
        return cls(build_flops_counter(student), teacher, head_positions=positions)

    def __call__(self, stats: BatchStats) -> float:
        """Return the FLOPs of steps with these counts."""
        if not stats.tokens:
            return 0.0
        student, teacher = self._count_student(stats), self._cached_flops
        if self._count_teacher is not None:
            head_rows = {"targets": stats.targets, "all": stats.tokens, "none": 0}[self._head_positions]
            teacher += self._count_teacher(replace(stats, targets=head_rows)) / 3  # forward only
        self.teacher_share = teacher / (student + teacher)
        return student + teacher

    def describe(self, flops: float) -> str:
        """Return one line about the teacher's part of the FLOPs of a run."""
        total, teacher = (f"{format_number(value, billion='G')}FLOP" for value in (flops, self.teacher_share * flops))
        return f"teacher: {teacher} of {total}"
