"""A task's head inside an adapter of the reference's layout, which it calls `modules_to_save`.

There the adapter is of a class with the head on the body: names begin as in that class, and the head's tensors stand
beside the adapter's under the class's own names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.classification import Classification
from pretune.adaptation.heads.regression import Regression
from pretune.adaptation.heads.span import Span
from pretune.adaptation.heads.tagging import Tagging
from pretune.adaptation.peft.peft_format import ROOT_PREFIX, PeftAdapter
from pretune.models.families import FAMILIES
from pretune.models.hf.checkpoint import SavedHead
from pretune.models.hf.heads import HeadLayout
from pretune.models.hf.weights import plan_moves
from pretune.models.spec import Model

BARE_PREFIX = "base_model."
"""What names begin with where the method puts nothing into the model's modules."""

TASK_TYPES = {"classification": "SEQ_CLS", "regression": "SEQ_CLS", "tagging": "TOKEN_CLS", "span": "QUESTION_ANS"}
"""The reference's word for the task of each kind of head; of choices it has none."""


def add_head(adapter: PeftAdapter, head: SavedHead, kind: str) -> PeftAdapter:
    """An adapter with the head of a class beside it."""
    virtual = "num_virtual_tokens" in adapter.config
    root = BARE_PREFIX if virtual else ROOT_PREFIX
    moved = {
        name if virtual else f"{ROOT_PREFIX}{head.prefix}{name.removeprefix(ROOT_PREFIX)}": tensor
        for name, tensor in adapter.tensors.items()
    }
    tops = dict.fromkeys(name.removeprefix(head.prefix).partition(".")[0] for name in head.tensors)
    config = {**adapter.config, "task_type": TASK_TYPES.get(kind), "modules_to_save": list(tops)}
    return replace(adapter, config=config, tensors={**moved, **{root + name: t for name, t in head.tensors.items()}})


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTensors:
    """An adapter's tensors under the names that the body has by itself, and those of a class's head."""

    adapter: dict[str, Tensor]
    head: dict[str, Tensor]


def split_head(tensors: Mapping[str, Tensor], spec: Model) -> SplitTensors:
    """What is the adapter's and what the head's, in a directory of the reference's layout for a body of this spec."""
    layout = FAMILIES.get(spec.family).layout if spec.family in FAMILIES else None
    if layout is None:
        return SplitTensors(adapter=dict(tensors), head={})
    names = {name for found in layout.task_heads.values() for name in _list_head_names(found)}
    starts = {layout.prefix, *(found.prefix for found in layout.task_heads.values() if found.prefix)} - {""}
    headed = any(_strip_prefix(name) in names for name in tensors)
    out = SplitTensors(adapter={}, head={})
    for name, tensor in tensors.items():
        bare = _strip_prefix(name)
        start = next((start for start in sorted(starts, key=len, reverse=True) if bare.startswith(start)), "")
        if bare in names:
            out.head[bare] = tensor
        elif headed and not spec.parts and name.startswith(ROOT_PREFIX):
            out.adapter[ROOT_PREFIX + bare.removeprefix(start)] = tensor
        else:
            out.adapter[name] = tensor
    return out


def detect_head(
    config: Mapping[str, Any], head: Mapping[str, Tensor], spec: Model
) -> tuple[TaskHead, HeadLayout] | None:
    """The head that an adapter's tensors are of, and the class; None where they are of none for this body."""
    layout = FAMILIES.get(spec.family).layout if spec.family in FAMILIES else None
    task = config.get("task_type")
    for found in {} if layout is None else layout.task_heads.values():
        last = plan_moves(["out.weight"], found.rules)[0].tensor_name
        if (
            found.kind in TASK_TYPES
            and TASK_TYPES[found.kind] == task
            and last in head
            and set(head) <= _list_head_names(found)
        ):
            return _build_head_spec(found, head[last].shape[0]), found
    return None


def _build_head_spec(head_class: HeadLayout, rows: int) -> TaskHead:
    if head_class.kind == "span":
        return Span()
    if head_class.kind == "tagging":
        return Tagging(classes=rows)
    return (
        Regression(reading=head_class.pooling)
        if rows == 1
        else Classification(classes=rows, reading=head_class.pooling)
    )


def _list_head_names(head_class: HeadLayout) -> set[str]:
    """The names of a class's head."""
    return {rule.tensor_name.format(p=p) for rule in head_class.rules for p in ("weight", "bias")}


def _strip_prefix(name: str) -> str:
    return name.removeprefix(ROOT_PREFIX) if name.startswith(ROOT_PREFIX) else name.removeprefix(BARE_PREFIX)
