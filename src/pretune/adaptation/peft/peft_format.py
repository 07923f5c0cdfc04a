"""Adapters in the layout of `adapter_config.json` and `adapter_model.safetensors`, both ways.

Where the reference holds queries, keys and values in one layer, our products of rank r lie in it as a block diagonal of
rank r each, k r in all, with alpha k times as large: the same numbers, in a layer three times as wide. Read from there,
a product that others trained gives each part the whole A and its rows of B.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pretune.adaptation.peft.base import Method, Target
from pretune.adaptation.peft.ia3 import IA3, Scaled, ScaledInput
from pretune.adaptation.peft.lora import Lora, LowRank
from pretune.adaptation.peft.prefix import Prefix
from pretune.adaptation.peft.prefix_format import TABLE, pack_prefix, unpack_prefix
from pretune.adaptation.peft.prompt import Prompt
from pretune.adaptation.peft.qlora import Qlora, QuantisedLowRank
from pretune.adaptation.peft.target_modules import Place, places, spread
from pretune.core.config.read import shown
from pretune.core.errors import CheckpointError
from pretune.models.hf.checkpoint import NATIVE, describe
from pretune.models.model import LanguageModel
from pretune.models.spec import Model

ROOT = "base_model.model."
KINDS = ("LORA", "IA3", "PROMPT_TUNING", "PREFIX_TUNING")
Blocks = Mapping[str, Sequence[Sequence[Any]]]
"""Their layer -> our layers in it with the rank of each, where it holds a block diagonal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """An adapter as it lies on disk."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    blocks: dict[str, list[list[Any]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """An adapter in our names; `scales` are those of products whose alpha / rank is not the method's."""

    method: Method
    tensors: dict[str, Tensor]
    scales: dict[str, float] = field(default_factory=dict)


def pack(method: Method, model: LanguageModel) -> Packed | None:
    """What a method has learned as the reference reads it; None where it does not have the method or the layers."""
    if isinstance(method, Prompt):
        return _pack_prompt(method, model)
    if isinstance(method, Prefix):
        made = pack_prefix(*method.folded(model), model.spec)
        return None if made is None else Packed(config={**_COMMON, **made[0]}, tensors={TABLE: made[1]})
    if not isinstance(method, Lora | Qlora | IA3):
        return None
    found = places(model.spec)
    if found is None:
        return None
    modules = dict(model.named_modules())
    return _pack_ia3(found, modules) if isinstance(method, IA3) else _pack_lora(method, found, modules)


def _pack_lora(method: Lora | Qlora, found: list[Place], modules: Mapping[str, Any]) -> Packed:
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    blocks: dict[str, list[list[Any]]] = {}
    for place in found:
        layers = {path: modules[path] for path in place.ours if isinstance(modules[path], LowRank | QuantisedLowRank)}
        if not layers:
            continue
        scale = next(iter(layers.values())).scale
        rank, at, parts = sum(layer.a.shape[0] for layer in layers.values()), 0, []
        for path, rows in zip(place.ours, place.rows, strict=True):
            if path in layers:
                layer = layers[path]
                parts.append(spread(layer.b.detach() * (layer.scale / scale), at, rank))
                at += layer.a.shape[0]
            else:
                parts.append(torch.zeros(rows, rank))
        name = f"{ROOT}{place.theirs}"
        tensors[f"{name}.lora_A.weight"] = torch.cat([layer.a.detach() for layer in layers.values()])
        tensors[f"{name}.lora_B.weight"] = place.pack(parts) if len(parts) > 1 else parts[0]
        if len(place.ours) > 1:
            blocks[place.theirs] = [[path, layer.a.shape[0]] for path, layer in layers.items()]
        if rank != method.rank:
            ranks[place.theirs] = rank
        if scale * rank != method.alpha:
            alphas[place.theirs] = scale * rank
    config = {
        "peft_type": "LORA",
        "r": method.rank,
        "lora_alpha": method.alpha,
        "lora_dropout": method.dropout,
        "target_modules": _modules(tensors, ".lora_A.weight"),
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "bias": "none",
    }
    return Packed(config={**_COMMON, **config}, tensors=tensors, blocks=blocks)


def _pack_ia3(found: list[Place], modules: Mapping[str, Any]) -> Packed:
    tensors: dict[str, Tensor] = {}
    inputs: list[str] = []
    for place in found:
        layers = [modules[path] for path in place.ours]
        name = f"{ROOT}{place.theirs}.ia3_l"
        if isinstance(layers[0], ScaledInput):
            tensors[name] = layers[0].scale.detach()[None]
            inputs.append(place.theirs)
        elif any(isinstance(layer, Scaled) for layer in layers):
            pairs = zip(layers, place.rows, strict=True)
            parts = [x.scale.detach()[:, None] if isinstance(x, Scaled) else torch.ones(n, 1) for x, n in pairs]
            tensors[name] = place.pack(parts) if len(parts) > 1 else parts[0]
    config = {"peft_type": "IA3", "target_modules": _modules(tensors, ".ia3_l"), "feedforward_modules": inputs}
    return Packed(config={**_COMMON, **config}, tensors=tensors)


def _pack_prompt(method: Prompt, model: LanguageModel) -> Packed | None:
    """NOTE: the reference puts prompts in after token rows were scaled, so that scaled ones have no place in it."""
    spec, stack = model.spec, model.spec.stacks[0]
    if describe(spec)[0]["model_type"] == NATIVE or stack.embed.scale or spec.table != spec.width or not method.count:
        return None
    assert model.prompt is not None
    config = {
        "peft_type": "PROMPT_TUNING",
        "task_type": {"encoder-decoder": "SEQ_2_SEQ_LM", "decoder": "CAUSAL_LM"}.get(spec.shape, "FEATURE_EXTRACTION"),
        "num_virtual_tokens": method.count,
        "token_dim": spec.width,
        "num_transformer_submodules": 1,
        "num_attention_heads": stack.blocks[0].attention.heads,
        "num_layers": stack.depth,
        "prompt_tuning_init": "RANDOM",
    }
    return Packed(config={**_COMMON, **config}, tensors={TABLE: model.get_parameter("prompt.table").detach()})


_COMMON = {"auto_mapping": None, "base_model_name_or_path": None, "inference_mode": True, "modules_to_save": None}


def _modules(tensors: Mapping[str, Tensor], ending: str) -> list[str]:
    return [name.removeprefix(ROOT).removesuffix(ending) for name in tensors if name.endswith(ending)]


def unpack(config: Mapping[str, Any], tensors: Mapping[str, Tensor], spec: Model, blocks: Blocks) -> Unpacked:
    """An adapter of the reference's layout for a model of a spec."""
    kind = config.get("peft_type")
    if kind not in KINDS:
        known = ", ".join(KINDS)
        raise CheckpointError(f"key 'peft_type' = {shown(kind)} is not supported; known: {known}")
    for key, usual in _PLAIN.items():
        if config.get(key) not in (None, False, usual, [], {}):
            raise CheckpointError(f"key '{key}' = {shown(config[key])} is not supported; only {shown(usual)} is")
    if kind == "PROMPT_TUNING":
        return _unpack_prompt(config, tensors, spec)
    if kind == "PREFIX_TUNING":
        prefix, found = unpack_prefix(int(_number(config, "num_virtual_tokens", 0)), tensors.get(TABLE), spec)
        return Unpacked(method=prefix, tensors=found)
    by_name = {f"{ROOT}{place.theirs}": place for place in places(spec) or ()}
    left = dict(tensors)
    out = _unpack_lora(config, left, by_name, blocks) if kind == "LORA" else _unpack_ia3(left, by_name)
    if left:
        raise CheckpointError(
            f"tensor {shown(min(left))} has no place in the blocks of this model: the adapter is for another one, or "
            "for layers outside of them (a pooler, a head), which are not read"
        )
    return out


_PLAIN: dict[str, Any] = {
    "bias": "none", "use_dora": False, "fan_in_fan_out": True, "lora_bias": False,
    "trainable_token_indices": None, "target_parameters": None, "use_qalora": False, "exclude_modules": None,
    "layer_replication": None,
}  # fmt: skip
"""Keys that change what is computed, and the only value of each that is read."""


def _unpack_lora(
    config: Mapping[str, Any], left: dict[str, Tensor], by_name: Mapping[str, Place], blocks: Blocks
) -> Unpacked:
    rank, alpha, dropout = _number(config, "r", 8), _number(config, "lora_alpha", 8), _number(config, "lora_dropout", 0)
    alphas = _patterns(config.get("alpha_pattern"))
    if config.get("init_lora_weights") not in (None, True, False, "gaussian", "eva", "orthogonal"):
        start = shown(config["init_lora_weights"])
        raise CheckpointError(
            f"key 'init_lora_weights' = {start} changes the base model's weights; merge it there instead"
        )
    out: dict[str, Tensor] = {}
    scales: dict[str, float] = {}
    for name, place in by_name.items():
        a, b = left.pop(f"{name}.lora_A.weight", None), left.pop(f"{name}.lora_B.weight", None)
        if a is None or b is None:
            continue
        if b.ndim != 2 or b.shape[0] != sum(place.rows) or a.shape[:1] != b.shape[1:]:
            raise CheckpointError(
                f"tensor '{name}.lora_B.weight' has shape {list(b.shape)}, which does not fit the model"
            )
        said = next((a for key, a in alphas.items() if f".{place.theirs}".endswith(f".{key}")), alpha)
        own = said / (a.shape[0] ** 0.5 if config.get("use_rslora") else a.shape[0])
        parts = dict(zip(place.ours, place.unpack(b) if len(place.ours) > 1 else [b], strict=True))
        at = 0
        for path, part_rank in blocks.get(place.theirs) or [[path, 0] for path in place.ours]:
            if path not in parts:
                raise CheckpointError(f"key 'blocks' names {shown(path)} in '{name}', which this model has not there")
            columns = slice(at, at + part_rank) if part_rank else slice(None)
            out[f"{path}.a"], out[f"{path}.b"] = a[columns].contiguous(), parts[path][:, columns].contiguous()
            scales[path] = own
            at += part_rank
    method = Lora(rank=int(rank), alpha=float(alpha), dropout=float(dropout), targets=_targets(scales))
    return Unpacked(method=method, tensors=out, scales=scales)


def _unpack_ia3(left: dict[str, Tensor], by_name: Mapping[str, Place]) -> Unpacked:
    out: dict[str, Tensor] = {}
    inputs: dict[str, Tensor] = {}
    for name, place in by_name.items():
        found = left.pop(f"{name}.ia3_l", None)
        if found is None:
            continue
        if found.shape[0] == 1:
            inputs |= {f"{path}.scale": found.reshape(-1) for path in place.ours}
        elif tuple(found.shape) != (sum(place.rows), 1):
            raise CheckpointError(f"tensor '{name}.ia3_l' has shape {list(found.shape)}, which does not fit the model")
        else:
            parts = place.unpack(found) if len(place.ours) > 1 else [found]
            out |= {f"{path}.scale": part.reshape(-1) for path, part in zip(place.ours, parts, strict=True)}
    both = {**out, **inputs}
    return Unpacked(method=IA3(targets=_targets(both), inputs=_targets(inputs) if inputs else ()), tensors=both)


def _unpack_prompt(config: Mapping[str, Any], tensors: Mapping[str, Tensor], spec: Model) -> Unpacked:
    found, count = tensors.get(TABLE), int(_number(config, "num_virtual_tokens", 0))
    if found is None or found.ndim != 2 or found.shape[0] < count or found.shape[1] != spec.table:
        shape = "missing" if found is None else f"of the shape {list(found.shape)}"
        raise CheckpointError(f"tensor '{TABLE}' is {shape}; this model asks for [{count}, {spec.table}]")
    # NOTE: for an encoder-decoder the reference keeps twice as many, and reads the first half.
    return Unpacked(method=Prompt(count=count), tensors={"prompt.table": found[:count].contiguous()})


def _targets(paths: Mapping[str, Any]) -> tuple[Target, ...]:
    """The last words of layers' paths; a path may name a layer or its scale."""
    words = [path.removesuffix(".scale").rpartition(".")[2] for path in paths]
    if not words:
        raise CheckpointError("none of the adapter's tensors has a place in this model; it is for another one")
    return tuple(dict.fromkeys(words))  # type: ignore[arg-type]


def _patterns(found: Any) -> dict[str, float]:
    """Ends of layers' names with a number for each; the reference allows any pattern, which is not followed here."""
    found = found or {}
    if not isinstance(found, Mapping) or not all(re.fullmatch(r"[\w.]+", str(key)) for key in found):
        raise CheckpointError(
            f"key 'alpha_pattern' = {shown(found)} is not supported; only names of layers and their ends are"
        )
    return {str(key): _number(found, key, 0) for key in found}


def _number(config: Mapping[str, Any], key: str, default: float) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CheckpointError(f"key '{key}' = {shown(value)} must be a number")
    return value
