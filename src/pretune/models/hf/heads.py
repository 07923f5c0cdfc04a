"""Classes of `transformers` that have a head for a task on the body: what kind of head, how it reads, its tensors.

    Headed("tagging", rules({"out.{p}": "classifier.{p}"}))

Directories of other heads hold them under `task.` and say in the config, under `pretune_head`, what they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pretune.models.hf.weights import Rule, make_rules
from pretune.models.tensor_files import TensorInfo
from pretune.nn.pooling import Reading

HEAD_KEY = "pretune_head"
"""The config's key for a head that no class of `transformers` has."""

TASK_PREFIX = "task."
"""What the names of its tensors begin with."""


class CheckedKey(Protocol):
    """A key that is supported at some values only."""

    def read(self, hf_config: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class HeadLayout:
    """One class. `pooling` is None where the head reads every token by itself."""

    kind: str  # classification (regression too), tagging, span or choice
    rules: tuple[Rule, ...]
    pooling: Reading | None = None
    prefix: str | None = None  # of the body's tensors, where it is not that of the family's other classes
    keys: tuple[CheckedKey, ...] = field(default=())


def define_head(kind: str, table: Mapping[str, str], pooling: Reading | None = None, **fields: Any) -> HeadLayout:
    """The same, with the rules as a table: `out` is the layer of the classes, `dense` the one before it."""
    return HeadLayout(
        kind, make_rules({f"{ours}.{{p}}": f"{theirs}.{{p}}" for ours, theirs in table.items()}), pooling, **fields
    )


def define_token_heads(
    name: str, *, tags: str | None = "classifier", spans: str | None = "qa_outputs"
) -> dict[str, HeadLayout]:
    """The two classes that most families have: a linear layer over every token, for tags and for spans."""
    found = {}
    if tags is not None:
        found[f"{name}ForTokenClassification"] = define_head("tagging", {"out": tags})
    if spans is not None:
        found[f"{name}ForQuestionAnswering"] = define_head("span", {"out": spans})
    return found


def define_score_head(name: str) -> dict[str, HeadLayout]:
    """The class of decoders: the last token's state, straight to the classes."""
    return {f"{name}ForSequenceClassification": define_head("classification", {"out": "score"}, LAST_TOKEN)}


LAST_TOKEN = Reading(at="last", bias=False)
"""What a decoder has read when it has read everything (Radford et al., 2018)."""


def split_head(
    tensors: Mapping[str, TensorInfo], head_layout: HeadLayout | None, prefix: str
) -> tuple[dict[str, TensorInfo], dict[str, TensorInfo]]:
    """The tensors of the body, with the family's usual prefix, and those of the head."""
    if head_layout is None:
        names = {name for name in tensors if name.startswith(TASK_PREFIX)}
    else:
        names = {rule.tensor_name.format(p=p) for rule in head_layout.rules for p in ("weight", "bias")}
    head = {name: there for name, there in tensors.items() if name in names}
    body = {name: there for name, there in tensors.items() if name not in names}
    if head_layout is not None and head_layout.prefix is not None:
        body = {prefix + name.removeprefix(head_layout.prefix): there for name, there in body.items()}
    return body, head
