"""Task heads inside an adapter in peft's layout (`modules_to_save`).

There the adapter belongs to a `transformers` class with a head: tensor names start as in that class, and the head's
tensors are stored with the adapter's, under the class's own names.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from pretune.adaptation.head_classes import parse_head_config
from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.peft.peft_format import ROOT_PREFIX, PeftAdapter, PeftConfig
from pretune.models.families import FAMILIES
from pretune.models.hf.checkpoint import SavedHead
from pretune.models.hf.weights import HeadLayout, plan_moves
from pretune.models.spec import Model

BARE_PREFIX = "base_model."
"""Prefix of tensor names if the method adds nothing to the model's modules."""

TASK_TYPES = {
    **dict.fromkeys(("classification", "multi_label", "regression"), "SEQ_CLS"),
    "tagging": "TOKEN_CLS",
    "span": "QUESTION_ANS",
}
"""peft's task type for each kind of head; it has none for multiple choice."""


def add_head(adapter: PeftAdapter, head: SavedHead, kind: str) -> PeftAdapter:
    """Return an adapter with the head of a `transformers` class."""
    virtual = "num_virtual_tokens" in adapter.config
    root = BARE_PREFIX if virtual else ROOT_PREFIX
    adapter_tensors = {
        name if virtual else f"{ROOT_PREFIX}{head.prefix}{name.removeprefix(ROOT_PREFIX)}": tensor
        for name, tensor in adapter.tensors.items()
    }
    module_names = dict.fromkeys(name.removeprefix(head.prefix).partition(".")[0] for name in head.tensors)
    config = {**adapter.config, "task_type": TASK_TYPES.get(kind), "modules_to_save": list(module_names)}
    head_tensors = {root + name: tensor for name, tensor in head.tensors.items()}
    return replace(adapter, config=config, tensors=adapter_tensors | head_tensors)


def split_head(tensors: Mapping[str, Tensor], spec: Model) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split the tensors of a directory in peft's layout for a body of this spec.

    Returns those of the adapter, under the body's names, and those of the head.
    """
    layout = FAMILIES.get(spec.family).layout if spec.family in FAMILIES else None
    if layout is None:
        return dict(tensors), {}
    names = {name for head_class in layout.task_heads.values() for name in head_class.tensor_names}
    prefixes = {layout.prefix, *(head_class.prefix or "" for head_class in layout.task_heads.values())}
    prefixes_by_length = sorted(prefixes, key=len, reverse=True)
    has_head = any(_strip_prefix(name) in names for name in tensors)
    adapter, head = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in tensors.items():
        bare = _strip_prefix(name)
        start = next((prefix for prefix in prefixes_by_length if bare.startswith(prefix)), "")
        if bare in names:
            head[bare] = tensor
        elif has_head and not spec.parts and name.startswith(ROOT_PREFIX):
            adapter[ROOT_PREFIX + bare.removeprefix(start)] = tensor
        else:
            adapter[name] = tensor
    return adapter, head


def detect_head(config: PeftConfig, head: Mapping[str, Tensor], spec: Model) -> tuple[TaskHead, HeadLayout] | None:
    """Return the head spec and class for an adapter's head tensors; None if this body has no such class."""
    layout = FAMILIES.get(spec.family).layout if spec.family in FAMILIES else None
    for head_class in {} if layout is None else layout.task_heads.values():
        output_name = plan_moves(["out.weight"], head_class.rules)[0].tensor_name
        has_type = head_class.kind in TASK_TYPES and TASK_TYPES[head_class.kind] == config.get("task_type")
        if has_type and output_name in head and set(head) <= head_class.tensor_names:
            settings = {"classifier_dropout": 0.1}  # of new heads; peft's config has none
            return parse_head_config(settings, head_class, head[output_name].shape[0]), head_class
    return None


def _strip_prefix(name: str) -> str:
    return name.removeprefix(ROOT_PREFIX) if name.startswith(ROOT_PREFIX) else name.removeprefix(BARE_PREFIX)
