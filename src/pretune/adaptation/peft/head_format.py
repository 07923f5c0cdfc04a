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
from pretune.adaptation.peft.peft_format import ROOT, Packed
from pretune.models.families import FAMILIES
from pretune.models.hf.checkpoint import Beside
from pretune.models.hf.heads import Headed
from pretune.models.hf.weights import plan
from pretune.models.spec import Model

BARE = "base_model."
"""What names begin with where the method puts nothing into the model's modules."""

KINDS = {"classification": "SEQ_CLS", "regression": "SEQ_CLS", "tagging": "TOKEN_CLS", "span": "QUESTION_ANS"}
"""The reference's word for the task of each kind of head; of choices it has none."""


def with_head(packed: Packed, head: Beside, kind: str) -> Packed:
    """An adapter with the head of a class beside it."""
    virtual = "num_virtual_tokens" in packed.config
    root = BARE if virtual else ROOT
    moved = {
        name if virtual else f"{ROOT}{head.prefix}{name.removeprefix(ROOT)}": tensor
        for name, tensor in packed.tensors.items()
    }
    tops = dict.fromkeys(name.removeprefix(head.prefix).partition(".")[0] for name in head.tensors)
    config = {**packed.config, "task_type": KINDS.get(kind), "modules_to_save": list(tops)}
    return replace(packed, config=config, tensors={**moved, **{root + name: t for name, t in head.tensors.items()}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """An adapter's tensors under the names that the body has by itself, and those of a class's head."""

    adapter: dict[str, Tensor]
    head: dict[str, Tensor]


def apart(tensors: Mapping[str, Tensor], spec: Model) -> Apart:
    """What is the adapter's and what the head's, in a directory of the reference's layout for a body of this spec."""
    layout = FAMILIES.get(spec.family).layout if spec.family in FAMILIES else None
    if layout is None:
        return Apart(adapter=dict(tensors), head={})
    names = {name for found in layout.headed.values() for name in _names(found)}
    starts = {layout.prefix, *(found.prefix for found in layout.headed.values() if found.prefix)} - {""}
    headed = any(_bare(name) in names for name in tensors)
    out = Apart(adapter={}, head={})
    for name, tensor in tensors.items():
        bare = _bare(name)
        start = next((start for start in sorted(starts, key=len, reverse=True) if bare.startswith(start)), "")
        if bare in names:
            out.head[bare] = tensor
        elif headed and not spec.parts and name.startswith(ROOT):
            out.adapter[ROOT + bare.removeprefix(start)] = tensor
        else:
            out.adapter[name] = tensor
    return out


def told(config: Mapping[str, Any], head: Mapping[str, Tensor], spec: Model) -> tuple[TaskHead, Headed] | None:
    """The head that an adapter's tensors are of, and the class; None where they are of none for this body."""
    layout = FAMILIES.get(spec.family).layout if spec.family in FAMILIES else None
    task = config.get("task_type")
    for found in {} if layout is None else layout.headed.values():
        last = plan(["out.weight"], found.rules)[0].theirs
        if found.kind in KINDS and KINDS[found.kind] == task and last in head and set(head) <= _names(found):
            return _spec(found, head[last].shape[0]), found
    return None


def _spec(found: Headed, rows: int) -> TaskHead:
    if found.kind == "span":
        return Span()
    if found.kind == "tagging":
        return Tagging(classes=rows)
    return Regression(reading=found.reading) if rows == 1 else Classification(classes=rows, reading=found.reading)


def _names(found: Headed) -> set[str]:
    """The names of a class's head."""
    return {rule.theirs.format(p=p) for rule in found.rules for p in ("weight", "bias")}


def _bare(name: str) -> str:
    return name.removeprefix(ROOT) if name.startswith(ROOT) else name.removeprefix(BARE)
