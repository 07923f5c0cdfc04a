"""Layouts of Hugging Face directories: reversible maps between parameter and tensor names, of bodies and task heads.

A rule names our parameters and their tensor, with `{i}` for a layer index and `{p}` for `weight` or `bias`:

    Rule("encoder.{i}.attention.q.{p}", "encoder.layer.{i}.attention.self.query.{p}")

A tensor may hold several parameters, or one in another form (`FusedPacking`, `InterleavedPacking`, …).
A task head is a class of `transformers` (`HeadLayout`); other heads are saved under `task.` and described in the config
under `pretune_head`. A `Layout` is a family's rules, classes and config keys; `detect_contents` finds out from the
tensors of a checkpoint which parts it has, and if its head is tied.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from pretune.core import config
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError, PretuneError, suggest
from pretune.models import tensor_files
from pretune.models.hf.config import (
    IGNORED_KEYS,
    TOKEN_ROLES,
    Entry,
    HfConfig,
    allow_null,
    check_flag,
    expand_path,
    get_path,
    make_unsupported_error,
    name_keys,
)
from pretune.models.spec import PARTS, Model
from pretune.models.tensor_files import TensorInfo
from pretune.nn.heads import PoolingConfig


class Packing(Protocol):
    """Conversion between our tensors and one of theirs."""

    def unpack(self, tensor: Tensor, sizes: list[int], spec: Model) -> list[Tensor]: ...

    def pack(self, tensors: list[Tensor], spec: Model) -> Tensor: ...


@dataclass(frozen=True)
class LeadingAxisPacking:
    """A tensor stored with an extra leading axis of size 1."""

    def unpack(self, tensor: Tensor, sizes: list[int], spec: Model) -> list[Tensor]:
        return [tensor[0]]

    def pack(self, tensors: list[Tensor], spec: Model) -> Tensor:
        return tensors[0][None]


@dataclass(frozen=True)
class FusedPacking:
    """One tensor, or several (queries, keys and values) concatenated; matrices are [in, out] if `is_transposed`."""

    is_transposed: bool = False

    def unpack(self, tensor: Tensor, sizes: list[int], spec: Model) -> list[Tensor]:
        tensor = tensor.t() if self.is_transposed and tensor.dim() == 2 else tensor
        return list(torch.split(tensor, sizes))

    def pack(self, tensors: list[Tensor], spec: Model) -> Tensor:
        matrix = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
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
    packing: Packing = FusedPacking()


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


def fuse_qkv(side: str, tensor: str, packing: Packing = FusedPacking()) -> Rule:  # noqa: B008 (a frozen value)
    """Return the rule of a tensor that holds the queries, keys and values of the self-attention of a layer."""
    return Rule(tuple(f"{side}.{{i}}.attention.{part}.{{p}}" for part in "qkv"), tensor, packing)


_SPAN_LAYERS = [f"span.{layer}.{part}.{{p}}" for layer in ("first", "second") for part in ("dense", "norm")]
SPAN_RULES = tuple(Rule(name, name) for name in ("span.place.weight", *_SPAN_LAYERS, "span.bias"))
"""Tensors of a span boundary head, which no class of `transformers` has: it ignores them."""
HEAD_KEY = "pretune_head"
"""Config key of a head that no class of `transformers` has."""
TASK_PREFIX = "task."
"""Prefix of its tensor names."""
OUT_PROJ_NAMES = {"dense": "classifier.dense", "out": "classifier.out_proj"}
"""Classifier of a dense layer and an output layer."""


@dataclass(frozen=True)
class HeadLayout:
    """The task head of one class. `pooling` is None for a head on every token.

    `names` are its layers, ours -> theirs: `out` is the classifier, `dense` the layer before it. A head whose fields
    depend on the config has `read_fields` (config -> fields) and `write_fields` (head -> keys).
    """

    kind: str  # classification (regression too), tagging, span or choice
    names: Mapping[str, str]
    pooling: PoolingConfig | None = None
    prefix: str | None = None  # of the body's tensors, if it differs from the family's
    ignores_start: bool = False  # the decoder starts with the text's last token, whatever decoder_start_token_id is
    keys: tuple[Entry, ...] = ()
    read_fields: Callable[[HfConfig], dict[str, Any]] | None = None
    write_fields: Callable[[Any], dict[str, object]] | None = None

    @property
    def rules(self) -> tuple[Rule, ...]:
        return make_rules({f"{ours}.{{p}}": f"{theirs}.{{p}}" for ours, theirs in self.names.items()})

    @property
    def tensor_names(self) -> set[str]:
        """Names of all tensors that the head may have."""
        return {f"{name}.{kind}" for name in self.names.values() for kind in ("weight", "bias")}


def define_token_heads(
    name: str, *, tags: str | None = "classifier", spans: str | None = "qa_outputs"
) -> dict[str, HeadLayout]:
    """Return the classes of token classification and question answering: a linear layer on every token."""
    heads = {}
    if tags is not None:
        heads[f"{name}ForTokenClassification"] = HeadLayout("tagging", {"out": tags})
    if spans is not None:
        heads[f"{name}ForQuestionAnswering"] = HeadLayout("span", {"out": spans})
    return heads


def define_encoder_heads(
    name: str, names: Mapping[str, str], pooling: PoolingConfig, keys: tuple[Entry, ...] = ()
) -> dict[str, HeadLayout]:
    """Return the classes of encoders: sequence classification and multiple choice, with the same layers, and tokens."""
    return {
        f"{name}ForSequenceClassification": HeadLayout("classification", names, pooling, keys=keys),
        f"{name}ForMultipleChoice": HeadLayout("choice", names, pooling, keys=keys),
        **define_token_heads(name),
    }


def define_score_head(name: str) -> dict[str, HeadLayout]:
    """Return the sequence classification class of decoders: a linear layer on the last token."""
    return {f"{name}ForSequenceClassification": HeadLayout("classification", {"out": "score"}, LAST_TOKEN)}


LAST_TOKEN = PoolingConfig(mode="last", bias=False)
"""Last-token pooling of decoders (Radford et al., 2018)."""


def split_head(
    tensors: Mapping[str, TensorInfo], head_layout: HeadLayout | None, prefix: str
) -> tuple[dict[str, TensorInfo], dict[str, TensorInfo]]:
    """Split tensors into those of the body, with the family's prefix, and those of the head."""
    if head_layout is None:
        names = {name for name in tensors if name.startswith(TASK_PREFIX)}
    else:
        names = head_layout.tensor_names
    head = {name: info for name, info in tensors.items() if name in names}
    body = {name: info for name, info in tensors.items() if name not in names}
    if head_layout is not None and head_layout.prefix is not None:
        body = {prefix + name.removeprefix(head_layout.prefix): info for name, info in body.items()}
    return body, head


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Hugging Face layout of a family: config keys, tensor names, and classes with the parts each has."""

    model_type: str
    template: Callable[[], Model]  # with the reference's special tokens and tying
    entries: tuple[Entry, ...]
    names: Mapping[str, str] | Callable[[Model], Mapping[str, str]]  # ours -> theirs
    rules: tuple[Rule, ...] = ()  # of tensors in another form
    classes: Mapping[str, frozenset[str]]  # class -> its `PARTS`; the full class first
    prefix: str = ""  # of the body's tensors in every class except the bare one
    copies: tuple[str, ...] = ()  # other names of the token table
    needs_copies: bool = False  # the reference reads them if the head is untied
    ignored_keys: frozenset[str] = frozenset()  # keys that are irrelevant in this family
    skipped_tensors: tuple[str, ...] = ()  # patterns of tensors that are not weights
    duplicates: Mapping[str, str] = field(default_factory=dict)  # tensor -> second name that the reference uses
    aliases: Mapping[str, str] = field(default_factory=dict)  # other name of a tensor -> the one of the rules
    omitted_parts: Mapping[str, str] = field(default_factory=dict)  # part that the reference ignores -> description
    zeros: tuple[str, ...] = ()  # tensors that are zero if missing
    task_heads: Mapping[str, HeadLayout] = field(default_factory=dict)  # class with a task head -> its layout
    supports_cache: bool = True  # False: the reference has no KV cache
    has_encoder_class: bool = False  # an encoder-decoder with a class of its encoder alone, which embeds texts

    @cached_property
    def base(self) -> Model:
        """Spec of an empty config, except for sizes that the keys' defaults set."""
        return self.template()

    def read_claims(self, hf_config: HfConfig) -> tuple[frozenset[str] | None, bool]:
        """Return the parts of the class that a config names (None: no class) and the claim that the head is tied."""
        name = hf_config.class_name
        if name is not None and (not isinstance(name, str) or name not in {**self.classes, **self.task_heads}):
            raise make_unsupported_error("architectures", name, [*self.classes, *self.task_heads])
        default_tying = self.base.head is not None and self.base.head.tied
        tying = hf_config.read("tie_word_embeddings", check=allow_null(check_flag), default=None)
        parts = None if name is None else self.classes.get(name, frozenset())
        return parts, default_tying if tying is None else tying

    def find_task_head(self, hf_config: HfConfig) -> HeadLayout | None:
        """Return the task head of the class that a config names, or None."""
        name = hf_config.class_name
        task = self.task_heads.get(name) if isinstance(name, str) else None
        for key in task.keys if task else ():
            key.read(hf_config)
        return task

    def read(self, hf_config: HfConfig, parts: frozenset[str], *, is_tied: bool) -> Model:
        """Return the spec of a config, with the parts and the tying detected from its tensors."""
        self._refuse_unknown(hf_config)
        changes, keys = {**hf_config.read_token_roles()}, {}
        for entry in self.entries:
            key_names = [name for name in entry.names if name in hf_config] or [*entry.names]
            for path, value in entry.read(hf_config).items():
                for place in expand_path(self.base, path, changes):
                    changes[place], keys[place] = value, key_names[:1]
        for part in PARTS:
            if part in self.base.parts and part not in parts:
                changes = {path: value for path, value in changes.items() if path.split(".")[0] != part}
                changes[part] = None
        if "head" in parts:
            changes["head.tied"] = is_tied
        try:
            return config.replace(self.base, changes)
        except PretuneError as error:
            raise CheckpointError(f"{name_keys(str(error), keys)}{error}") from None

    def write(self, spec: Model) -> HfConfig:
        """Return the config of a spec. It may be incomplete: read it back and compare."""
        out = HfConfig(architectures=[self.choose_class(spec.parts)], model_type=self.model_type)
        for entry in self.entries:
            out.update(entry.write(spec))
        out.update({name: get_path(spec, place) for name, place in TOKEN_ROLES.items()})
        eos = spec.special.eos
        out["eos_token_id"] = None if not eos else eos[0] if len(eos) == 1 else list(eos)
        if spec.head is not None:
            out.setdefault("tie_word_embeddings", spec.head.tied)
        return out

    @cached_property
    def token_table(self) -> str:
        """Name of the tensor of the token table."""
        return self._get_tensor_name("tokens.weight")

    @cached_property
    def head(self) -> str:
        """Name of the tensor of the vocabulary matrix, which is written only if untied."""
        return self._get_tensor_name("head.weight")

    @cached_property
    def presence_keys(self) -> dict[str, str]:
        """Parts that tensors can show -> the tensor whose presence shows it; a matrix alone may be tied."""
        head = self.base.head
        param_names = {
            "head": "head.transform.dense.{p}" if head and head.transform else "head.bias",
            "pooler": "pooler.dense.{p}",
            "pair": "pair.{p}",
            "detector": "detector.dense.{p}",
            "mask_decoder": "mask_decoder.positions.weight",
        }
        parts = self.base.parts - ({"head"} if head and not head.transform and head.bias != "learned" else set())
        return {part: self._get_tensor_name(param_names[part]).replace("{p}", "weight") for part in parts}

    def _get_tensor_name(self, param_name: str) -> str:
        return next(rule.tensor_name for rule in self.get_rules(self.base) if rule.param_names == param_name)

    def get_duplicates(self, spec: Model) -> dict[str, str]:
        """Return the tensors that are written twice: second name -> name."""
        if spec.head is None or spec.head.tied:  # a tied head shares its bias with the duplicate
            return {}
        copies = dict.fromkeys(self.copies, self.token_table) if self.needs_copies else {}
        return copies | {twin: name for name, twin in self.duplicates.items()}

    def get_rules(self, spec: Model) -> tuple[Rule, ...]:
        names = self.names(spec) if callable(self.names) else self.names
        return (*self.rules, *make_rules(names), *SPAN_RULES)

    def choose_class(self, parts: frozenset[str]) -> str:
        """Return the class with the most of these parts and no others."""
        fitting = [name for name, has in self.classes.items() if has <= parts]
        if not fitting and not parts:  # NOTE: the bare class may be saved without its pooler
            fitting = [name for name, has in self.classes.items() if has == {"pooler"}]
        if not fitting:
            raise CheckpointError(f"no class of model_type '{self.model_type}' has these parts: {', '.join(parts)}")
        return max(fitting, key=lambda name: len(self.classes[name]))

    def _refuse_unknown(self, hf_config: HfConfig) -> None:
        known_names = {name for entry in self.entries for name in entry.names}
        known_names |= {*TOKEN_ROLES, "eos_token_id", "tie_word_embeddings", "pretune", HEAD_KEY}
        for name, value in hf_config.items():
            if name not in known_names | IGNORED_KEYS | self.ignored_keys and value not in (None, False, {}, []):
                raise CheckpointError(
                    f"key {format_value(name)} = {format_value(value)} is unknown for model_type '{self.model_type}'"
                    f"{suggest(name, known_names)}; its effect cannot be reproduced"
                )


def detect_contents(
    layout: Layout, claimed_parts: frozenset[str] | None, is_tied: bool, infos: Mapping[str, TensorInfo]
) -> tuple[dict[str, TensorInfo], frozenset[str], bool]:
    """Return the tensors under their full names, the parts that are present, and True if the head is tied.

    `claimed_parts` and `is_tied` are the claims of the config. Errors name the file of the tensor.
    """
    tensors = _rename_tensors(layout, infos)
    return tensors, _detect_parts(layout, claimed_parts, tensors), _detect_tying(layout, is_tied, tensors)


def add_tied_head(layout: Layout, parts: frozenset[str], is_tied: bool) -> frozenset[str]:
    """Return the parts with a tied vocabulary head added, for a decoder that was saved without it."""
    head = layout.base.head
    if "head" in parts or head is None or layout.base.decoder is None:
        return parts
    if not is_tied or head.transform is not None or head.bias == "learned":
        raise CheckpointError(
            "the weights have no vocabulary head, and the head is not tied; use a checkpoint with its head"
        )
    return parts | {"head"}


def _rename_tensors(layout: Layout, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Rename tensors as in the full class: body prefix added, old `gamma` and `beta` renamed, buffers dropped."""
    every = layout.get_rules(layout.base)
    outside = {rule.tensor_name.split(".")[0] for rule in every if not rule.tensor_name.startswith(layout.prefix)}
    bare = not any(name.startswith(layout.prefix) for name in tensors)
    out: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        new = re.sub(r"\.beta$", ".bias", re.sub(r"\.gamma$", ".weight", name))
        new = layout.aliases.get(new, new)
        if bare and new.split(".")[0] not in outside:
            new = layout.prefix + new
        if any(re.fullmatch(pattern, new) for pattern in layout.skipped_tensors):
            continue
        if new in out:
            raise CheckpointError(
                f"{info.file}: tensors {format_value(out[new].key)} and {format_value(name)} are the same weight"
            )
        out[new] = info
    for name, twin in layout.duplicates.items():
        if twin in out:
            out[name] = out.pop(twin)
    return out


def _detect_parts(
    layout: Layout, claimed_parts: frozenset[str] | None, tensors: Mapping[str, TensorInfo]
) -> frozenset[str]:
    """Return the heads of its class and those whose tensors are present."""
    present = {part for part, mark in layout.presence_keys.items() if mark in tensors}
    if "pair" in present:
        present.add("pooler")  # its input
    if claimed_parts is None:  # no class named: all parts that tensors cannot show
        claimed_parts = frozenset(
            part for part in next(iter(layout.classes.values())) if part not in layout.presence_keys
        )
    if claimed_parts == {"pooler"}:  # NOTE: the bare class is often saved without its pooler
        claimed_parts = frozenset()
    return claimed_parts | present


def _detect_tying(layout: Layout, is_tied: bool, tensors: dict[str, TensorInfo]) -> bool:
    """Return False if the file has a vocabulary matrix that differs from the token table.

    Removes copies of the table from `tensors`.
    """
    table = layout.token_table
    for copy in layout.copies:
        if copy in tensors:
            if not tensor_files.are_equal(tensors.setdefault(table, tensors[copy]), tensors[copy]):
                raise CheckpointError(
                    f"{tensors[copy].file}: tensor '{tensors[copy].key}' differs from '{tensors[table].key}', "
                    "but both must be the token table"
                )
            del tensors[copy]
    if layout.head not in tensors or not is_tied:
        return is_tied
    head = tensors.pop(layout.head)
    if tensor_files.are_equal(tensors.setdefault(table, head), head):
        return True
    tensors[layout.head] = head
    return False
