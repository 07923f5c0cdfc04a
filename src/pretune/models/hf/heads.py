"""Classes of `transformers` with a task head: its kind, pooling and tensors.

    HeadLayout("tagging", make_rules({"out.{p}": "classifier.{p}"}))

Other heads are saved under `task.` and described in the config under `pretune_head`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pretune.models.hf.weights import Rule, make_rules
from pretune.models.tensor_files import TensorInfo
from pretune.nn.heads import PoolingConfig

HEAD_KEY = "pretune_head"
"""Config key of a head that no class of `transformers` has."""

TASK_PREFIX = "task."
"""Prefix of its tensor names."""


class CheckedKey(Protocol):
    """A key that is supported only at some values."""

    def read(self, hf_config: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class HeadLayout:
    """The task head of one class. `pooling` is None for a head on every token."""

    kind: str  # classification (regression too), tagging, span or choice
    rules: tuple[Rule, ...]
    pooling: PoolingConfig | None = None
    prefix: str | None = None  # of the body's tensors, if it differs from the family's
    keys: tuple[CheckedKey, ...] = field(default=())


def define_head(kind: str, table: Mapping[str, str], pooling: PoolingConfig | None = None, **fields: Any) -> HeadLayout:
    """Return a head layout with rules from a table: `out` is the classifier, `dense` the layer before it."""
    return HeadLayout(
        kind, make_rules({f"{ours}.{{p}}": f"{theirs}.{{p}}" for ours, theirs in table.items()}), pooling, **fields
    )


def define_token_heads(
    name: str, *, tags: str | None = "classifier", spans: str | None = "qa_outputs"
) -> dict[str, HeadLayout]:
    """Return the classes of token classification and question answering: a linear layer on every token."""
    heads = {}
    if tags is not None:
        heads[f"{name}ForTokenClassification"] = define_head("tagging", {"out": tags})
    if spans is not None:
        heads[f"{name}ForQuestionAnswering"] = define_head("span", {"out": spans})
    return heads


def define_score_head(name: str) -> dict[str, HeadLayout]:
    """Return the sequence classification class of decoders: a linear layer on the last token."""
    return {f"{name}ForSequenceClassification": define_head("classification", {"out": "score"}, LAST_TOKEN)}


LAST_TOKEN = PoolingConfig(mode="last", bias=False)
"""Last-token pooling of decoders (Radford et al., 2018)."""


def split_head(
    tensors: Mapping[str, TensorInfo], head_layout: HeadLayout | None, prefix: str
) -> tuple[dict[str, TensorInfo], dict[str, TensorInfo]]:
    """Split tensors into those of the body, with the family's prefix, and those of the head."""
    if head_layout is None:
        names = {name for name in tensors if name.startswith(TASK_PREFIX)}
    else:
        names = {rule.tensor_name.format(p=p) for rule in head_layout.rules for p in ("weight", "bias")}
    head = {name: info for name, info in tensors.items() if name in names}
    body = {name: info for name, info in tensors.items() if name not in names}
    if head_layout is not None and head_layout.prefix is not None:
        body = {prefix + name.removeprefix(head_layout.prefix): info for name, info in body.items()}
    return body, head
