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

from pretune.adaptation.peft.base import PeftMethod, Target
from pretune.adaptation.peft.ia3 import IA3, InputScaledLinear, ScaledLinear
from pretune.adaptation.peft.lora import Lora, LoraLinear
from pretune.adaptation.peft.prefix import PrefixTuning
from pretune.adaptation.peft.prefix_format import TABLE_KEY, pack_prefix, unpack_prefix
from pretune.adaptation.peft.prompt import Prompt
from pretune.adaptation.peft.qlora import Qlora, QloraLinear
from pretune.adaptation.peft.target_modules import PeftLayer, list_peft_layers, pad_columns
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.models.hf.checkpoint import NATIVE_TYPE, describe_checkpoint
from pretune.models.model import LanguageModel
from pretune.models.spec import Model

ROOT_PREFIX = "base_model.model."
PEFT_TYPES = ("LORA", "IA3", "PROMPT_TUNING", "PREFIX_TUNING")
Blocks = Mapping[str, Sequence[Sequence[Any]]]
"""Their layer -> our layers in it with the rank of each, where it holds a block diagonal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftAdapter:
    """An adapter as it lies on disk."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    blocks: dict[str, list[list[Any]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedAdapter:
    """An adapter in our names; `scales` are those of products whose alpha / rank is not the method's."""

    method: PeftMethod
    tensors: dict[str, Tensor]
    scales: dict[str, float] = field(default_factory=dict)


def pack(method: PeftMethod, model: LanguageModel) -> PeftAdapter | None:
    """What a method has learned as the reference reads it; None where it does not have the method or the layers."""
    if isinstance(method, Prompt):
        return _pack_prompt(method, model)
    if isinstance(method, PrefixTuning):
        made = pack_prefix(*method.fold(model), model.spec)
        return None if made is None else PeftAdapter(config={**_COMMON_CONFIG, **made[0]}, tensors={TABLE_KEY: made[1]})
    if not isinstance(method, Lora | Qlora | IA3):
        return None
    found = list_peft_layers(model.spec)
    if found is None:
        return None
    modules = dict(model.named_modules())
    return _pack_ia3(found, modules) if isinstance(method, IA3) else _pack_lora(method, found, modules)


def _pack_lora(method: Lora | Qlora, peft_layers: list[PeftLayer], modules: Mapping[str, Any]) -> PeftAdapter:
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    blocks: dict[str, list[list[Any]]] = {}
    for place in peft_layers:
        layers = {path: modules[path] for path in place.paths if isinstance(modules[path], LoraLinear | QloraLinear)}
        if not layers:
            continue
        scale = next(iter(layers.values())).scale
        rank, at, parts = sum(layer.a.shape[0] for layer in layers.values()), 0, []
        for path, rows in zip(place.paths, place.rows, strict=True):
            if path in layers:
                layer = layers[path]
                parts.append(pad_columns(layer.b.detach() * (layer.scale / scale), at, rank))
                at += layer.a.shape[0]
            else:
                parts.append(torch.zeros(rows, rank))
        name = f"{ROOT_PREFIX}{place.peft_path}"
        tensors[f"{name}.lora_A.weight"] = torch.cat([layer.a.detach() for layer in layers.values()])
        tensors[f"{name}.lora_B.weight"] = place.pack(parts) if len(parts) > 1 else parts[0]
        if len(place.paths) > 1:
            blocks[place.peft_path] = [[path, layer.a.shape[0]] for path, layer in layers.items()]
        if rank != method.rank:
            ranks[place.peft_path] = rank
        if scale * rank != method.alpha:
            alphas[place.peft_path] = scale * rank
    config = {
        "peft_type": "LORA",
        "r": method.rank,
        "lora_alpha": method.alpha,
        "lora_dropout": method.dropout,
        "target_modules": _list_modules(tensors, ".lora_A.weight"),
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "bias": "none",
    }
    return PeftAdapter(config={**_COMMON_CONFIG, **config}, tensors=tensors, blocks=blocks)


def _pack_ia3(peft_layers: list[PeftLayer], modules: Mapping[str, Any]) -> PeftAdapter:
    tensors: dict[str, Tensor] = {}
    inputs: list[str] = []
    for place in peft_layers:
        layers = [modules[path] for path in place.paths]
        name = f"{ROOT_PREFIX}{place.peft_path}.ia3_l"
        if isinstance(layers[0], InputScaledLinear):
            tensors[name] = layers[0].scale.detach()[None]
            inputs.append(place.peft_path)
        elif any(isinstance(layer, ScaledLinear) for layer in layers):
            pairs = zip(layers, place.rows, strict=True)
            parts = [x.scale.detach()[:, None] if isinstance(x, ScaledLinear) else torch.ones(n, 1) for x, n in pairs]
            tensors[name] = place.pack(parts) if len(parts) > 1 else parts[0]
    config = {"peft_type": "IA3", "target_modules": _list_modules(tensors, ".ia3_l"), "feedforward_modules": inputs}
    return PeftAdapter(config={**_COMMON_CONFIG, **config}, tensors=tensors)


def _pack_prompt(method: Prompt, model: LanguageModel) -> PeftAdapter | None:
    """NOTE: the reference puts prompts in after token rows were scaled, so that scaled ones have no place in it."""
    spec, stack = model.spec, model.spec.stacks[0]
    if (
        describe_checkpoint(spec)[0]["model_type"] == NATIVE_TYPE
        or stack.embed.scale
        or spec.table != spec.width
        or not method.count
    ):
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
    return PeftAdapter(
        config={**_COMMON_CONFIG, **config}, tensors={TABLE_KEY: model.get_parameter("prompt.table").detach()}
    )


_COMMON_CONFIG = {
    "auto_mapping": None,
    "base_model_name_or_path": None,
    "inference_mode": True,
    "modules_to_save": None,
}


def _list_modules(tensors: Mapping[str, Tensor], ending: str) -> list[str]:
    return [name.removeprefix(ROOT_PREFIX).removesuffix(ending) for name in tensors if name.endswith(ending)]


def unpack(config: Mapping[str, Any], tensors: Mapping[str, Tensor], spec: Model, blocks: Blocks) -> LoadedAdapter:
    """An adapter of the reference's layout for a model of a spec."""
    kind = config.get("peft_type")
    if kind not in PEFT_TYPES:
        known = ", ".join(PEFT_TYPES)
        raise CheckpointError(f"key 'peft_type' = {format_value(kind)} is not supported; known: {known}")
    for key, usual in _SUPPORTED_VALUES.items():
        if config.get(key) not in (None, False, usual, [], {}):
            raise CheckpointError(
                f"key '{key}' = {format_value(config[key])} is not supported; only {format_value(usual)} is"
            )
    if kind == "PROMPT_TUNING":
        return _unpack_prompt(config, tensors, spec)
    if kind == "PREFIX_TUNING":
        prefix, found = unpack_prefix(int(_read_number(config, "num_virtual_tokens", 0)), tensors.get(TABLE_KEY), spec)
        return LoadedAdapter(method=prefix, tensors=found)
    by_name = {f"{ROOT_PREFIX}{place.peft_path}": place for place in list_peft_layers(spec) or ()}
    left = dict(tensors)
    out = _unpack_lora(config, left, by_name, blocks) if kind == "LORA" else _unpack_ia3(left, by_name)
    if left:
        raise CheckpointError(
            f"tensor {format_value(min(left))} has no place in the blocks of this model: the adapter is for another one, or "
            "for layers outside of them (a pooler, a head), which are not read"
        )
    return out


_SUPPORTED_VALUES: dict[str, Any] = {
    "bias": "none", "use_dora": False, "fan_in_fan_out": True, "lora_bias": False,
    "trainable_token_indices": None, "target_parameters": None, "use_qalora": False, "exclude_modules": None,
    "layer_replication": None,
}  # fmt: skip
"""Keys that change what is computed, and the only value of each that is read."""


def _unpack_lora(
    config: Mapping[str, Any], tensors: dict[str, Tensor], layers_by_name: Mapping[str, PeftLayer], blocks: Blocks
) -> LoadedAdapter:
    rank, alpha, dropout = (
        _read_number(config, "r", 8),
        _read_number(config, "lora_alpha", 8),
        _read_number(config, "lora_dropout", 0),
    )
    alphas = _parse_patterns(config.get("alpha_pattern"))
    if config.get("init_lora_weights") not in (None, True, False, "gaussian", "eva", "orthogonal"):
        start = format_value(config["init_lora_weights"])
        raise CheckpointError(
            f"key 'init_lora_weights' = {start} changes the base model's weights; merge it there instead"
        )
    out: dict[str, Tensor] = {}
    scales: dict[str, float] = {}
    for name, place in layers_by_name.items():
        a, b = tensors.pop(f"{name}.lora_A.weight", None), tensors.pop(f"{name}.lora_B.weight", None)
        if a is None or b is None:
            continue
        if b.ndim != 2 or b.shape[0] != sum(place.rows) or a.shape[:1] != b.shape[1:]:
            raise CheckpointError(
                f"tensor '{name}.lora_B.weight' has shape {list(b.shape)}, which does not fit the model"
            )
        said = next((a for key, a in alphas.items() if f".{place.peft_path}".endswith(f".{key}")), alpha)
        own = said / (a.shape[0] ** 0.5 if config.get("use_rslora") else a.shape[0])
        parts = dict(zip(place.paths, place.unpack(b) if len(place.paths) > 1 else [b], strict=True))
        at = 0
        for path, part_rank in blocks.get(place.peft_path) or [[path, 0] for path in place.paths]:
            if path not in parts:
                raise CheckpointError(
                    f"key 'blocks' names {format_value(path)} in '{name}', which this model has not there"
                )
            columns = slice(at, at + part_rank) if part_rank else slice(None)
            out[f"{path}.a"], out[f"{path}.b"] = a[columns].contiguous(), parts[path][:, columns].contiguous()
            scales[path] = own
            at += part_rank
    method = Lora(rank=int(rank), alpha=float(alpha), dropout=float(dropout), targets=_parse_targets(scales))
    return LoadedAdapter(method=method, tensors=out, scales=scales)


def _unpack_ia3(tensors: dict[str, Tensor], layers_by_name: Mapping[str, PeftLayer]) -> LoadedAdapter:
    out: dict[str, Tensor] = {}
    inputs: dict[str, Tensor] = {}
    for name, place in layers_by_name.items():
        found = tensors.pop(f"{name}.ia3_l", None)
        if found is None:
            continue
        if found.shape[0] == 1:
            inputs |= {f"{path}.scale": found.reshape(-1) for path in place.paths}
        elif tuple(found.shape) != (sum(place.rows), 1):
            raise CheckpointError(f"tensor '{name}.ia3_l' has shape {list(found.shape)}, which does not fit the model")
        else:
            parts = place.unpack(found) if len(place.paths) > 1 else [found]
            out |= {f"{path}.scale": part.reshape(-1) for path, part in zip(place.paths, parts, strict=True)}
    both = {**out, **inputs}
    return LoadedAdapter(
        method=IA3(targets=_parse_targets(both), inputs=_parse_targets(inputs) if inputs else ()), tensors=both
    )


def _unpack_prompt(config: Mapping[str, Any], tensors: Mapping[str, Tensor], spec: Model) -> LoadedAdapter:
    found, count = tensors.get(TABLE_KEY), int(_read_number(config, "num_virtual_tokens", 0))
    if found is None or found.ndim != 2 or found.shape[0] < count or found.shape[1] != spec.table:
        shape = "missing" if found is None else f"of the shape {list(found.shape)}"
        raise CheckpointError(f"tensor '{TABLE_KEY}' is {shape}; this model asks for [{count}, {spec.table}]")
    # NOTE: for an encoder-decoder the reference keeps twice as many, and reads the first half.
    return LoadedAdapter(method=Prompt(count=count), tensors={"prompt.table": found[:count].contiguous()})


def _parse_targets(paths: Mapping[str, Any]) -> tuple[Target, ...]:
    """The last words of layers' paths; a path may name a layer or its scale."""
    words = [path.removesuffix(".scale").rpartition(".")[2] for path in paths]
    if not words:
        raise CheckpointError("none of the adapter's tensors has a place in this model; it is for another one")
    return tuple(dict.fromkeys(words))  # type: ignore[arg-type]


def _parse_patterns(patterns: Any) -> dict[str, float]:
    """Ends of layers' names with a number for each; the reference allows any pattern, which is not followed here."""
    patterns = patterns or {}
    if not isinstance(patterns, Mapping) or not all(re.fullmatch(r"[\w.]+", str(key)) for key in patterns):
        raise CheckpointError(
            f"key 'alpha_pattern' = {format_value(patterns)} is not supported; only names of layers and their ends are"
        )
    return {str(key): _read_number(patterns, key, 0) for key in patterns}


def _read_number(config: Mapping[str, Any], key: str, default: float) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CheckpointError(f"key '{key}' = {format_value(value)} must be a number")
    return value
