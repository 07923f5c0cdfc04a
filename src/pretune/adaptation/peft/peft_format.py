"""peft's format: `adapter_config.json` and `adapter_model.safetensors`, read and written.

If the reference holds queries, keys and values in one layer, our k products of rank r are stored as a block diagonal of
rank k r, with alpha k times as large: the same numbers in a layer three times as wide. When a fused product trained by
others is read, each part gets the full A and its rows of B.

A prefix is a table with a row per virtual token, holding the keys and values of all layers. In peft an encoder-decoder
has a prefix in the decoder's self-attention only. It lays its layers out twice and reads every other pair of them, so
that of an even number of layers the upper half has the prefix of the lower half.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pretune.adaptation.peft.base import TARGETS, PeftMethod, Target, find_linears
from pretune.adaptation.peft.lora import LoRA, LoraLinear
from pretune.adaptation.peft.prefix import PrefixTuning, PromptTuning
from pretune.adaptation.peft.vectors import IA3, InputScaledLinear, ScaledLinear
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.models.families import FAMILIES
from pretune.models.hf.checkpoint import NATIVE_TYPE, describe_checkpoint, iterate_weights
from pretune.models.hf.weights import FusedPacking, InterleavedPacking, Packing, plan_moves
from pretune.models.model import LanguageModel, build_empty
from pretune.models.spec import Model
from pretune.nn.recurrent_stack import Recurrent
from pretune.nn.stack import Stack

ROOT_PREFIX = "base_model.model."
PEFT_TYPES = ("LORA", "IA3", "PROMPT_TUNING", "PREFIX_TUNING")
PeftConfig = dict[str, Any]
"""Contents of adapter_config.json."""
Blocks = Mapping[str, Sequence[Sequence[Any]]]
"""Their layer -> our layers in it with the rank of each, if it holds a block diagonal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftAdapter:
    """An adapter as stored on disk."""

    config: PeftConfig
    tensors: dict[str, Tensor]
    blocks: dict[str, list[list[Any]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedAdapter:
    """An adapter under our names; `scales` has the layers whose alpha / rank differs from the method's."""

    method: PeftMethod
    tensors: dict[str, Tensor]
    scales: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftLayer:
    """A linear layer of the reference: its module path, our layers in it, and the rows of each."""

    peft_path: str
    paths: tuple[str, ...]
    rows: tuple[int, ...]
    packing: Packing
    spec: Model

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        """Pack our layers, each `[rows, n]`, into the reference's `[rows of all, n]`, in its order."""
        tensor = self.packing.pack(list(parts), self.spec)
        return tensor.t() if self._is_transposed else tensor

    def unpack(self, tensor: Tensor) -> list[Tensor]:
        """Unpack a tensor of the reference into those of our layers."""
        parts = self.packing.unpack(tensor.t() if self._is_transposed else tensor, list(self.rows), self.spec)
        return [part.contiguous() for part in parts]

    @property
    def _is_transposed(self) -> bool:
        return isinstance(self.packing, FusedPacking) and self.packing.is_transposed


def list_peft_layers(spec: Model) -> list[PeftLayer] | None:
    """Return all linear layers of the blocks; None if no reference class holds them as linear layers."""
    hf_config, rules, strip, _ = describe_checkpoint(spec)
    if hf_config["model_type"] == NATIVE_TYPE:
        return None
    model = build_empty(spec)
    ours = {f"{path}.weight" for path, _, _, _ in find_linears(model, TARGETS)}
    sizes = {name: tensor.shape[0] for name, tensor in iterate_weights(model)}
    out = []
    for move in plan_moves(sizes, rules):
        if ours.isdisjoint(move.param_names):
            continue
        if not isinstance(move.packing, FusedPacking | InterleavedPacking):
            return None
        theirs = move.tensor_name.removeprefix(strip)
        if not theirs.endswith(".weight"):
            return None
        out.append(
            PeftLayer(
                peft_path=theirs.removesuffix(".weight"),
                paths=tuple(name.removesuffix(".weight") for name in move.param_names),
                rows=tuple(sizes[name] for name in move.param_names),
                packing=move.packing,
                spec=spec,
            )
        )
    return out


def pack(method: PeftMethod, model: LanguageModel) -> PeftAdapter | None:
    """Return the trained weights in peft's format; None if peft does not have the method or the layers."""
    if isinstance(method, PromptTuning):
        return _pack_prompt(method, model)
    if isinstance(method, PrefixTuning):
        return _pack_prefix(*method.fold(model), model.spec)
    if not isinstance(method, LoRA | IA3):
        return None
    peft_layers = list_peft_layers(model.spec)
    if peft_layers is None:
        return None
    modules = dict(model.named_modules())
    return _pack_ia3(peft_layers, modules) if isinstance(method, IA3) else _pack_lora(method, peft_layers, modules)


def _pack_lora(method: LoRA, peft_layers: list[PeftLayer], modules: Mapping[str, nn.Module]) -> PeftAdapter:
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    blocks: dict[str, list[list[Any]]] = {}
    for place in peft_layers:
        layers = {path: layer for path in place.paths if isinstance(layer := modules[path], LoraLinear)}
        if not layers:
            continue
        first = next(iter(layers.values()))
        scale, rank = first.scale, sum(layer.a.shape[0] for layer in layers.values())
        products = [
            layers[path].b.detach() * (layers[path].scale / scale) if path in layers else first.b.new_empty(rows, 0)
            for path, rows in zip(place.paths, place.rows, strict=True)
        ]
        parts = torch.block_diag(*products).split(place.rows)  # type: ignore[no-untyped-call]
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


def _pack_ia3(peft_layers: list[PeftLayer], modules: Mapping[str, nn.Module]) -> PeftAdapter | None:
    """Convert vectors; None if peft cannot represent them."""
    tensors: dict[str, Tensor] = {}
    inputs: list[str] = []
    for place in peft_layers:
        layers = [modules[path] for path in place.paths]
        name = f"{ROOT_PREFIX}{place.peft_path}.ia3_l"
        input_scales = [layer.scale for layer in layers if isinstance(layer, InputScaledLinear)]
        is_shared = all(torch.equal(scale, input_scales[0]) for scale in input_scales[1:])
        if input_scales and (len(input_scales) < len(layers) or not is_shared):
            return None  # the inputs of a layer have one scale in peft
        if input_scales:
            tensors[name] = input_scales[0].detach()[None]
            inputs.append(place.peft_path)
        elif any(isinstance(layer, ScaledLinear) for layer in layers):
            scales = [layer.scale.detach() if isinstance(layer, ScaledLinear) else None for layer in layers]
            first = next(scale for scale in scales if scale is not None)
            pairs = zip(scales, place.rows, strict=True)
            parts = [first.new_ones(rows, 1) if scale is None else scale[:, None] for scale, rows in pairs]
            tensors[name] = place.pack(parts) if len(parts) > 1 else parts[0]
    config = {"peft_type": "IA3", "target_modules": _list_modules(tensors, ".ia3_l"), "feedforward_modules": inputs}
    return PeftAdapter(config={**_COMMON_CONFIG, **config}, tensors=tensors)


def _pack_prompt(method: PromptTuning, model: LanguageModel) -> PeftAdapter | None:
    """Convert a tuned prompt; None if peft cannot represent it.

    NOTE: peft inserts prompts after token embeddings are scaled.
    """
    spec, stack = model.spec, model.spec.stacks[0]
    if _is_native(spec) or stack.embed.scale or spec.table != spec.width or not method.count:
        return None
    assert model.prompt is not None and not isinstance(stack, Recurrent)
    heads = stack.blocks[0].attention.heads
    config = _describe_virtual_tokens("PROMPT_TUNING", spec, method.count, spec.width, heads, stack.depth)
    config |= {"prompt_tuning_init": "RANDOM"}
    return PeftAdapter(config=config, tensors={TABLE_KEY: model.get_parameter("prompt.table").detach()})


def _is_native(spec: Model) -> bool:
    """Return True if a model is stored in no class of `transformers`."""
    return bool(describe_checkpoint(spec)[0]["model_type"] == NATIVE_TYPE)


def _describe_virtual_tokens(
    kind: str, spec: Model, count: int, width: int, heads: int, layers: int, submodules: int = 1
) -> PeftConfig:
    """Return the config of a method with virtual tokens."""
    tasks = {"encoder-decoder": "SEQ_2_SEQ_LM", "decoder": "CAUSAL_LM"}
    return {
        **_COMMON_CONFIG,
        "peft_type": kind,
        "task_type": tasks.get(spec.shape, "FEATURE_EXTRACTION"),
        "num_virtual_tokens": count,
        "token_dim": width,
        "num_transformer_submodules": submodules,
        "num_attention_heads": heads,
        "num_layers": layers,
    }


_COMMON_CONFIG = {
    "auto_mapping": None,
    "base_model_name_or_path": None,
    "inference_mode": True,
    "modules_to_save": None,
}


def _list_modules(tensors: Mapping[str, Tensor], ending: str) -> list[str]:
    return [name.removeprefix(ROOT_PREFIX).removesuffix(ending) for name in tensors if name.endswith(ending)]


def unpack(config: PeftConfig, tensors: Mapping[str, Tensor], spec: Model, blocks: Blocks) -> LoadedAdapter:
    """Read an adapter in peft's format for a model of a spec."""
    kind = config.get("peft_type")
    if kind not in PEFT_TYPES:
        allowed_types = ", ".join(PEFT_TYPES)
        raise CheckpointError(f"key 'peft_type' = {format_value(kind)} is not supported; allowed: {allowed_types}")
    for key, supported_value in _SUPPORTED_VALUES.items():
        if config.get(key) not in (None, False, supported_value, [], {}):
            raise CheckpointError(
                f"key '{key}' = {format_value(config[key])} is not supported; allowed: {format_value(supported_value)}"
            )
    if kind == "PROMPT_TUNING":
        return _unpack_prompt(config, tensors, spec)
    if kind == "PREFIX_TUNING":
        return _unpack_prefix(int(_read_number(config, "num_virtual_tokens", 0)), tensors.get(TABLE_KEY), spec)
    by_name = {f"{ROOT_PREFIX}{place.peft_path}": place for place in list_peft_layers(spec) or ()}
    remaining = dict(tensors)
    out = _unpack_lora(config, remaining, by_name, blocks) if kind == "LORA" else _unpack_ia3(remaining, by_name)
    if remaining:
        raise CheckpointError(
            f"tensor {format_value(min(remaining))} does not belong to the blocks of this model: the adapter is for "
            "another model, or for layers outside the blocks (a pooler, a head), which are not supported"
        )
    return out


_SUPPORTED_VALUES: PeftConfig = {
    "bias": "none", "use_dora": False, "fan_in_fan_out": True, "lora_bias": False,
    "trainable_token_indices": None, "target_parameters": None, "use_qalora": False, "exclude_modules": None,
    "layer_replication": None, "alora_invocation_tokens": None, "arrow_config": None, "use_bdlora": None,
    "kasa_config": None, "monteclora_config": None,
}  # fmt: skip
"""Keys that change the computation, and their only supported value."""


def _unpack_lora(
    config: PeftConfig, tensors: dict[str, Tensor], layers_by_name: Mapping[str, PeftLayer], blocks: Blocks
) -> LoadedAdapter:
    rank = _read_number(config, "r", 8)
    alpha = _read_number(config, "lora_alpha", 8)
    dropout = _read_number(config, "lora_dropout", 0)
    alphas = _parse_patterns(config.get("alpha_pattern"))
    if config.get("init_lora_weights") not in (None, True, False, "gaussian", "eva", "orthogonal"):
        value = format_value(config["init_lora_weights"])
        raise CheckpointError(
            f"key 'init_lora_weights' = {value} changes the base model's weights; merge the adapter with peft instead"
        )
    out: dict[str, Tensor] = {}
    scales: dict[str, float] = {}
    for name, place in layers_by_name.items():
        lora_a, lora_b = tensors.pop(f"{name}.lora_A.weight", None), tensors.pop(f"{name}.lora_B.weight", None)
        if lora_a is None or lora_b is None:
            continue
        if lora_b.ndim != 2 or lora_b.shape[0] != sum(place.rows) or lora_a.shape[:1] != lora_b.shape[1:]:
            raise CheckpointError(
                f"tensor '{name}.lora_B.weight' has shape {list(lora_b.shape)}, which does not fit the model"
            )
        matches = (value for key, value in alphas.items() if f".{place.peft_path}".endswith(f".{key}"))
        layer_alpha = next(matches, alpha)
        scale = layer_alpha / (lora_a.shape[0] ** 0.5 if config.get("use_rslora") else lora_a.shape[0])
        parts = dict(zip(place.paths, place.unpack(lora_b) if len(place.paths) > 1 else [lora_b], strict=True))
        column = 0
        for path, part_rank in blocks.get(place.peft_path) or [[path, 0] for path in place.paths]:
            if path not in parts:
                raise CheckpointError(
                    f"key 'blocks' names {format_value(path)} in '{name}', where this model has no such layer"
                )
            columns = slice(column, column + part_rank) if part_rank else slice(None)
            out[f"{path}.a"], out[f"{path}.b"] = lora_a[columns].contiguous(), parts[path][:, columns].contiguous()
            scales[path] = scale
            column += part_rank
    method = LoRA(rank=int(rank), alpha=float(alpha), dropout=float(dropout), targets=_parse_targets(scales))
    return LoadedAdapter(method=method, tensors=out, scales=scales)


def _unpack_ia3(tensors: dict[str, Tensor], layers_by_name: Mapping[str, PeftLayer]) -> LoadedAdapter:
    out: dict[str, Tensor] = {}
    inputs: dict[str, Tensor] = {}
    for name, place in layers_by_name.items():
        vector = tensors.pop(f"{name}.ia3_l", None)
        if vector is None:
            continue
        if vector.shape[0] == 1:
            inputs |= {f"{path}.scale": vector.reshape(-1) for path in place.paths}
        elif tuple(vector.shape) != (sum(place.rows), 1):
            raise CheckpointError(f"tensor '{name}.ia3_l' has shape {list(vector.shape)}, which does not fit the model")
        else:
            parts = place.unpack(vector) if len(place.paths) > 1 else [vector]
            out |= {f"{path}.scale": part.reshape(-1) for path, part in zip(place.paths, parts, strict=True)}
    scales = {**out, **inputs}
    method = IA3(targets=_parse_targets(scales), inputs=_parse_targets(inputs) if inputs else ())
    return LoadedAdapter(method=method, tensors=scales)


def _unpack_prompt(config: PeftConfig, tensors: Mapping[str, Tensor], spec: Model) -> LoadedAdapter:
    table, count = tensors.get(TABLE_KEY), int(_read_number(config, "num_virtual_tokens", 0))
    if table is None or table.ndim != 2 or table.shape[0] < count or table.shape[1] != spec.table:
        problem = "missing" if table is None else f"of shape {list(table.shape)}"
        raise CheckpointError(f"tensor '{TABLE_KEY}' is {problem}; this model expects [{count}, {spec.table}]")
    # NOTE: for an encoder-decoder peft stores twice as many, and reads the first half; it does not scale them.
    scale = spec.width**-0.5 if spec.stacks[0].embed.scale else 1.0
    return LoadedAdapter(method=PromptTuning(count=count), tensors={"prompt.table": scale * table[:count].contiguous()})


def _parse_targets(paths: Iterable[str]) -> tuple[Target, ...]:
    """Return the last words of the layers' paths; a path may name a layer or its scale."""
    words = [path.removesuffix(".scale").rpartition(".")[2] for path in paths]
    if not words:
        raise CheckpointError("none of the adapter's tensors belongs to this model; the adapter is for another one")
    return tuple(dict.fromkeys(words))  # type: ignore[arg-type]


def _parse_patterns(patterns: Any) -> dict[str, float]:
    """Return a number per suffix of layer names; regular expressions, which peft allows, are not supported."""
    patterns = patterns or {}
    if not isinstance(patterns, dict) or not all(re.fullmatch(r"[\w.]+", str(key)) for key in patterns):
        raise CheckpointError(
            f"key 'alpha_pattern' = {format_value(patterns)} is not supported; only layer names and suffixes are"
        )
    return {str(key): _read_number(patterns, key, 0) for key in patterns}


def _read_number(config: PeftConfig, key: str, default: float) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CheckpointError(f"key '{key}' = {format_value(value)} must be a number")
    return value


TABLE_KEY = "prompt_embeddings"


def _pack_prefix(method: PrefixTuning, tensors: Mapping[str, Tensor], spec: Model) -> PeftAdapter | None:
    """Return an adapter with a table `[P, layers 2 width]`; None if peft cannot represent such a prefix."""
    shape = _get_head_shape(spec)
    if shape is None or not method.count or (spec.is_encoder_decoder and method.sides != ("decoder",)):
        return None
    heads, head = shape
    places = _map_layers(spec)
    if len(set(places)) < len(places):
        return None
    side = "decoder" if spec.decoder is not None else "encoder"
    table = torch.empty(method.count, len(places), 2, heads * head)
    for layer, place in enumerate(places):
        for i, part in enumerate(("keys", "values")):
            table[:, place, i] = tensors[f"{side}.{layer}.attention.prefix.{part}"].reshape(method.count, -1)
    submodules = 2 if spec.is_encoder_decoder else 1
    config = _describe_virtual_tokens("PREFIX_TUNING", spec, method.count, heads * head, heads, len(places), submodules)
    config |= {"encoder_hidden_size": heads * head, "prefix_projection": False}
    return PeftAdapter(config=config, tensors={TABLE_KEY: table.flatten(1)})


def _unpack_prefix(count: int, table: Tensor | None, spec: Model) -> LoadedAdapter:
    """Read a prefix of peft's."""
    shape = _get_head_shape(spec)
    if shape is None:
        raise CheckpointError("this model cannot have a prefix of peft's: its layers differ in shape")
    heads, head = shape
    places = _map_layers(spec)
    expected_shape = [count, len(places) * 2 * heads * head]
    if table is None or list(table.shape) != expected_shape:
        problem = "missing" if table is None else f"of shape {list(table.shape)}"
        raise CheckpointError(f"tensor '{TABLE_KEY}' is {problem}; this model expects {expected_shape}")
    side = "decoder" if spec.decoder is not None else "encoder"
    parts = table.view(count, len(places), 2, heads, head)
    out = {
        f"{side}.{layer}.attention.prefix.{part}": parts[:, place, i].contiguous()
        for layer, place in enumerate(places)
        for i, part in enumerate(("keys", "values"))
    }
    sides = ("decoder",) if spec.is_encoder_decoder else PrefixTuning().sides
    return LoadedAdapter(method=PrefixTuning(count=count, sides=sides), tensors=out)


def _get_head_shape(spec: Model) -> tuple[int, int] | None:
    """Return the number and width of key heads, if all layers of the side with the prefix agree and peft has them."""
    stack, family = spec.last_stack, FAMILIES.get(spec.family) if spec.family in FAMILIES else None
    if family is not None and family.layout is not None and not family.layout.supports_cache:
        return None  # the reference would silently ignore the prefix
    if not isinstance(stack, Stack) or stack.share is not None or _is_native(spec):
        return None
    shapes = {block.attention.resolve_shape(width=spec.width)[1:] for block in stack.blocks}
    return shapes.pop() if len(shapes) == 1 else None


def _map_layers(spec: Model) -> list[int]:
    """Return the position of each layer's pair in the table."""
    depth = spec.last_stack.depth
    return [2 * layer % depth if spec.is_encoder_decoder else layer for layer in range(depth)]
