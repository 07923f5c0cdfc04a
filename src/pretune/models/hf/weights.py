"""Reversible maps between parameter and tensor names, for import and export, of bodies and task heads.

A rule names our parameters and their tensor, with `{i}` for a layer index and `{p}` for `weight` or `bias`:

    Rule("encoder.{i}.attention.q.{p}", "encoder.layer.{i}.attention.self.query.{p}")

Several parameters may be packed in one tensor (`FusedPacking`, `InterleavedPacking`, `TransposedPacking`).
A task head is a class of `transformers` (`HeadLayout`); other heads are saved under `task.` and described in the config
under `pretune_head`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from pretune.models.spec import Model
from pretune.models.tensor_files import TensorInfo
from pretune.nn.heads import PoolingConfig


class Packing(Protocol):
    """Conversion between our tensors and one of theirs."""

    def unpack(self, tensor: Tensor, sizes: list[int], spec: Model) -> list[Tensor]: ...

    def pack(self, tensors: list[Tensor], spec: Model) -> Tensor: ...


@dataclass(frozen=True)
class IdentityPacking:
    """One tensor, unchanged."""

    def unpack(self, tensor: Tensor, sizes: list[int], spec: Model) -> list[Tensor]:
        return [tensor]

    def pack(self, tensors: list[Tensor], spec: Model) -> Tensor:
        return tensors[0]


@dataclass(frozen=True)
class TransposedPacking:
    """A matrix stored as [in, out]."""

    def unpack(self, tensor: Tensor, sizes: list[int], spec: Model) -> list[Tensor]:
        return [tensor.t() if tensor.dim() == 2 else tensor]

    def pack(self, tensors: list[Tensor], spec: Model) -> Tensor:
        return self.unpack(tensors[0], [], spec)[0]


@dataclass(frozen=True)
class RowPacking:
    """A vector stored as a matrix with one row."""

    def unpack(self, tensor: Tensor, sizes: list[int], spec: Model) -> list[Tensor]:
        return [tensor.reshape(-1)]

    def pack(self, tensors: list[Tensor], spec: Model) -> Tensor:
        return tensors[0][None]


@dataclass(frozen=True)
class FusedPacking:
    """Queries, keys and values concatenated; stored as [in, out] if `is_transposed`."""

    is_transposed: bool = False

    def unpack(self, tensor: Tensor, sizes: list[int], spec: Model) -> list[Tensor]:
        tensor = tensor.t() if self.is_transposed and tensor.dim() == 2 else tensor
        return list(torch.split(tensor, sizes))

    def pack(self, tensors: list[Tensor], spec: Model) -> Tensor:
        matrix = torch.cat(tensors)
        return matrix.t() if self.is_transposed and matrix.dim() == 2 else matrix


@dataclass(frozen=True)
class InterleavedPacking:
    """Head by head: the query, key and value of head 0, then those of head 1, …"""

    def unpack(self, tensor: Tensor, sizes: list[int], spec: Model) -> list[Tensor]:
        heads = spec.first_block.attention.heads
        parts = tensor.view(heads, len(sizes), -1, *tensor.shape[1:])
        return [parts[:, i].reshape(size, *tensor.shape[1:]) for i, size in enumerate(sizes)]

    def pack(self, tensors: list[Tensor], spec: Model) -> Tensor:
        heads = spec.first_block.attention.heads
        parts = [tensor.view(heads, -1, *tensor.shape[1:]) for tensor in tensors]
        return torch.stack(parts, dim=1).flatten(0, 2)


@dataclass(frozen=True)
class Rule:
    """Our parameters, their tensor, and the packing."""

    param_names: str | tuple[str, ...]
    tensor_name: str
    packing: Packing = IdentityPacking()


@dataclass(frozen=True)
class Move:
    """A rule with concrete names."""

    param_names: tuple[str, ...]
    tensor_name: str
    packing: Packing


def plan_moves(names: Iterable[str], rules: Iterable[Rule]) -> list[Move]:
    """Return the moves of all parameters. Raises `KeyError` for a name without a rule."""
    left = dict.fromkeys(names)
    moves = []
    for rule in rules:
        ours = (rule.param_names,) if isinstance(rule.param_names, str) else rule.param_names
        for match in _match_names(ours[0], left):
            param_names = tuple(our.format(**match) for our in ours)
            for name in param_names:
                left.pop(name, None)
            moves.append(Move(param_names, rule.tensor_name.format(**match), rule.packing))
    if left:
        raise KeyError(f"no rule for {next(iter(left))}")
    return moves


def _match_names(pattern: str, names: Collection[str]) -> list[dict[str, str]]:
    """Return the values of a pattern's placeholders for each matching name."""
    if "{" not in pattern:
        return [{}] if pattern in names else []
    form = re.compile(re.escape(pattern).replace(r"\{i\}", r"(?P<i>\d+)").replace(r"\{p\}", "(?P<p>weight|bias)"))
    return [match.groupdict() for name in names if (match := form.fullmatch(name))]


def make_rules(table: Mapping[str, str]) -> tuple[Rule, ...]:
    """Return the rules of a table, ours -> theirs."""
    return tuple(Rule(ours, theirs) for ours, theirs in table.items())


SPAN_RULES = (
    Rule("span.place.weight", "span.place.weight"),
    *(Rule(name, name) for name in ("span.first.dense.{p}", "span.first.norm.{p}")),
    *(Rule(name, name) for name in ("span.second.dense.{p}", "span.second.norm.{p}")),
    Rule("span.bias", "span.bias"),
)
"""Tensors of a span boundary head, which no class of `transformers` has: it ignores them."""


HEAD_KEY = "pretune_head"
"""Config key of a head that no class of `transformers` has."""

TASK_PREFIX = "task."
"""Prefix of its tensor names."""


class CheckedKey(Protocol):
    """A key that is supported only at some values."""

    def read(self, hf_config: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class HeadLayout:
    """The task head of one class. `pooling` is None for a head on every token.

    A head whose fields depend on the config has `read_fields` (config -> fields) and `write_fields` (head -> keys).
    """

    kind: str  # classification (regression too), tagging, span or choice
    rules: tuple[Rule, ...]
    pooling: PoolingConfig | None = None
    prefix: str | None = None  # of the body's tensors, if it differs from the family's
    ignores_start: bool = False  # the decoder starts with the text's last token, whatever decoder_start_token_id is
    keys: tuple[CheckedKey, ...] = field(default=())
    read_fields: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    write_fields: Callable[[Any], dict[str, Any]] | None = None


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
