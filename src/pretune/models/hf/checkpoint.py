"""Loading and saving of Hugging Face model directories.

Everything is checked before weights are allocated: the config against the supported keys and values, names and shapes
in the safetensors headers against the spec.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pretune.core import config, io
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError, NonFiniteError, PretuneError, UsageError, suggest
from pretune.core.hub import is_gguf, is_hub, resolve_path
from pretune.core.run_dir import RunDir
from pretune.models import tensor_files
from pretune.models.bidirectional_lm import BACKWARD_FOLDER as BACKWARD
from pretune.models.catalog import AnyModel
from pretune.models.compact import COMPACT_FILE, compress
from pretune.models.families import FAMILIES, find_by_model_type, get_model_types, make_missing_error
from pretune.models.generator_discriminator import GENERATOR_FOLDER as GENERATOR
from pretune.models.hf.config import HfConfig, is_equivalent
from pretune.models.hf.files import (
    CONFIG_FILE,
    GENERATION_FILE,
    locate_config,
    make_generation_config,
    read_assets,
    read_config,
    read_tokenizer,
)
from pretune.models.hf.weights import (
    HEAD_KEY,
    HeadLayout,
    Layout,
    Move,
    Rule,
    add_tied_head,
    detect_contents,
    plan_moves,
    split_head,
)
from pretune.models.model import LanguageModel, build_empty
from pretune.models.spec import Model, check_memory
from pretune.models.tensor_files import TensorInfo

NATIVE_TYPE = "pretune"
"""model_type of the native format, for models that no class of `transformers` can express."""

PARTNER_FOLDERS = (GENERATOR, BACKWARD)
"""Folders inside a model directory for the second model of a pair."""

SAVED_FILES = (
    CONFIG_FILE, "adapter.json", "adapter_config.json", "adapter_model.safetensors", *tensor_files.WEIGHT_FILES
)  # fmt: skip
"""Patterns of files that show an earlier save of a model or an adapter."""

SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True)
class SavedHead:
    """A task head to save with the body: config keys, tensors, and the prefix of the body's tensor names.

    A head in `modules`, the files of sentence-transformers, has no tensors; the body is saved under another name.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    prefix: str = ""
    modules: Mapping[str, bytes] = field(default_factory=dict)


def load(
    directory: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    head: Literal["tied"] | None = None,
    on_weight: Callable[[LanguageModel, str], None] | None = None,
) -> LanguageModel:
    """Load a Hugging Face or native model directory, in evaluation mode.

    With `head="tied"` a decoder that was saved without its vocabulary head gets the tied one. `on_weight` is called
    with the model and the name of each weight, once it is there. Raises `CheckpointError`
    for a missing, damaged or unsupported directory.
    """
    if not dtype.is_floating_point:
        raise UsageError(f"dtype must be a floating-point type, got {dtype}; use torch.float32 or torch.bfloat16")
    folder = resolve_path(directory)
    model, moves, tensors = _examine(folder, head)
    spec = model.spec
    check_memory(spec, dtype, device)
    sizes, is_mapped = {name: tensor.shape for name, tensor in iterate_weights(model)}, not is_gguf(folder)
    # NOTE: large tensors first, which need the most memory while they are read.
    present = sorted(
        (move for move in moves if move.tensor_name in tensors),
        key=lambda move: (tensors[move.tensor_name].file, -math.prod(tensors[move.tensor_name].shape)),
    )
    for move, value in zip(
        present, tensor_files.read_tensors(tensors[move.tensor_name] for move in present), strict=True
    ):
        parts = move.packing.unpack(value, [sizes[name][0] for name in move.param_names], spec)
        for name, part in zip(move.param_names, parts, strict=True):
            # NOTE: a copy, unless it was dequantized: the tensor is a view of the memory-mapped file, which may change.
            assign(model, name, part.to(device, dtype, copy=is_mapped, memory_format=torch.contiguous_format))
            if on_weight is not None:
                on_weight(model, name)
    for move in moves:
        if move.tensor_name not in tensors:
            for name in move.param_names:
                assign(model, name, torch.zeros(sizes[name], device=device, dtype=dtype))
    model.assets.directory = str(directory) if is_hub(directory) else str(folder.resolve())
    model.assets.files = read_assets(folder, spec)
    model.assets.modules = tensor_files.read_sentence_files(folder)
    model.assets.tokenizer = read_tokenizer(folder, spec, model.assets.files)
    return model.eval()


def save(
    model: AnyModel,
    directory: str | Path,
    *,
    overwrite: bool = False,
    shard: int = SHARD_BYTES,
    head: SavedHead | None = None,
    compact: bool = False,
) -> None:
    """Write a model directory atomically; `transformers` can load it if it has the family.

    The second model of a pair is written to a folder inside the directory. With `compact`, matrices have 8 bits for
    each weight, which only pretune reads.
    """
    parts = {"": model} if isinstance(model, LanguageModel) else model.get_models_by_folder()
    with io.atomic_directory(Path(directory), overwrite=overwrite, owner=find_owner(directory)) as folder:
        for name, part in parts.items():
            (folder / name).mkdir(exist_ok=True)
            _write(part, folder / name, shard, head, compact=compact)


def find_owner(directory: str | Path) -> str | None:
    """Return the owner of the files that the next save into a directory replaces; None without an earlier save."""
    # NOTE: without one, files of the other names are the user's, such as those of a tokenizer alone.
    folder = config.check_path(directory)
    return "model" if any(any(folder.glob(pattern)) for pattern in SAVED_FILES) else None


def _write(model: LanguageModel, folder: Path, shard: int, head: SavedHead | None, *, compact: bool) -> None:
    """Write the files of one model and their manifest."""
    if any(getattr(module, "is_adapter", False) is True for module in model.modules()):
        raise UsageError(
            "this model has an adapter: save it with pt.save(model, DIR), or merge it first with method.merge(model)"
        )
    spec = model.spec
    hf_config, rules, strip, duplicates = describe_checkpoint(spec)
    hf_config["dtype"] = str(model.tokens.weight.dtype).removeprefix("torch.")
    ours = {name: tensor.detach().cpu() for name, tensor in iterate_weights(model)}
    tensors = {
        move.tensor_name.removeprefix(strip): move.packing.pack(
            [ours[name] for name in move.param_names], spec
        ).contiguous()
        for move in plan_moves(ours, rules)
    }
    tensors |= {twin: tensors[name].clone() for twin, name in duplicates.items() if name in tensors}
    if head is not None:
        hf_config |= head.config
        tensors = {head.prefix + name: tensor for name, tensor in tensors.items()} | dict(head.tensors)
    assets, modules = dict(model.assets.files), model.assets.modules if head is None else head.modules
    io.write_json(folder / CONFIG_FILE, hf_config)
    if compact:
        weight_files = [COMPACT_FILE]
        tensor_files.save_tensors(compress(tensors), folder / COMPACT_FILE)
    elif head is not None and head.modules:
        weight_files = [tensor_files.BODY_FILE]
        tensor_files.save_tensors(tensors, folder / tensor_files.BODY_FILE)
    else:
        weight_files = tensor_files.write_shards(folder, tensors, shard)
    names = [CONFIG_FILE, *weight_files, *assets]
    for name, data in assets.items():
        io.atomic_write(folder / name, data)
    if spec.decoder is not None and GENERATION_FILE not in assets:
        io.write_json(folder / GENERATION_FILE, make_generation_config(hf_config))
        names.append(GENERATION_FILE)
    names += tensor_files.write_sentence_files(folder, modules)
    io.write_manifest(folder, names)


def inspect_checkpoint(directory: str | Path) -> tuple[Model, list[Move], dict[str, TensorInfo]]:
    """Return spec, moves and tensor headers of a directory; names and shapes are checked, no weights are read."""
    model, moves, tensors = _examine(resolve_path(directory))
    return model.spec, moves, tensors


def read_head(folder: Path) -> tuple[HfConfig, HeadLayout | None, dict[str, TensorInfo]] | None:
    """Return the task head of a directory (config, layout of its `transformers` class, tensors), or None."""
    hf_config = read_config(folder)
    layout = None if hf_config.get("model_type") == NATIVE_TYPE else _find_layout(hf_config)
    task = None if layout is None else layout.find_task_head(hf_config)
    if task is None and HEAD_KEY not in hf_config:
        return None
    return hf_config, task, split_head(tensor_files.read_headers(folder), task, "")[1]


def describe_checkpoint(spec: Model) -> tuple[HfConfig, tuple[Rule, ...], str, Mapping[str, str]]:
    """Return the config of a spec, the rules of its tensor names, the prefix to strip, and the duplicates to write.

    The config is the family's Hugging Face config if that expresses the spec. If it lacks only values that do not
    change the output (such as a dropout), the spec is added under the key `pretune`; otherwise the format is native.
    """
    layout = FAMILIES.get(spec.family).layout if spec.family in FAMILIES else None
    hf_config = None if layout is None else _express(layout, spec)
    if layout is None or hf_config is None:
        native_config = HfConfig(model_type=NATIVE_TYPE, pretune=config.to_dict(spec))
        return native_config, _make_identity_rules(spec), "", {}
    bare = layout.classes[hf_config["architectures"][0]] <= {"pooler"}
    return hf_config, layout.get_rules(spec), layout.prefix if bare else "", layout.get_duplicates(spec)


def _suggest_remedy(folder: Path) -> str:
    """Return a hint for a directory without a config: an adapter, an unfinished run, or a parent directory."""
    if (folder / "adapter_model.safetensors").is_file():
        return "it is an adapter: load it with `pt.load`, or merge it with `pretune export`"
    if RunDir(folder).checkpoints.is_dir():
        return "it is an unfinished run: continue it with --resume"
    inside = next((path.parent for path in islice(folder.glob(f"*/{CONFIG_FILE}"), 1)), None)
    hint = "" if inside is None else f", such as '{inside}'"
    return f"pass a run of `pretune pretrain` or a Hugging Face directory{hint}"


def iterate_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every saved tensor with its name: parameters (shared ones once) and buffers."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def check_weights(model: nn.Module, source: str | Path) -> None:
    """Raise `NonFiniteError` if a loaded model has non-finite weights."""
    for name, tensor in iterate_weights(model):
        if tensor.is_floating_point() and tensor_files.find_nonfinite(tensor.detach()) is not None:
            raise NonFiniteError(f"{source}: '{name}' has non-finite values; use an undamaged model")


def _examine(folder: Path, head: str | None = None) -> tuple[LanguageModel, list[Move], dict[str, TensorInfo]]:
    """Return the result of `inspect_checkpoint`, with the model on the meta device in place of the spec."""
    if not folder.is_dir() and not is_gguf(folder):
        if folder.exists():
            raise CheckpointError(f"{folder}: not a directory; pass the directory of a run or a model, or a .gguf file")
        raise make_missing_error(folder)
    io.check_links(folder, CheckpointError)
    if not locate_config(folder).exists():
        raise CheckpointError(f"{folder}: no {CONFIG_FILE} in it, so it is not a model; {_suggest_remedy(folder)}")
    hf_config = read_config(folder)
    spec, rules, tensors, optional = _understand(folder, hf_config, head)
    model = build_empty(spec)
    moves = plan_moves([name for name, _ in iterate_weights(model)], rules)
    _check_tensors(folder, model, moves, tensors, optional)
    return model, moves, tensors


def _express(layout: Layout, spec: Model) -> HfConfig | None:
    """Return the Hugging Face config of a spec, or None if the layout cannot express it."""
    try:
        hf_config = layout.write(spec)
        restored_spec = layout.read(hf_config, spec.parts, is_tied=spec.head is not None and spec.head.tied)
        plan_moves([name for name, _ in iterate_weights(build_empty(spec))], layout.get_rules(spec))
    except (PretuneError, KeyError, AttributeError, TypeError, StopIteration, AssertionError):
        return None
    if not is_equivalent(restored_spec, spec):
        return None
    return hf_config if restored_spec == spec else HfConfig(hf_config, pretune=config.to_dict(spec))


def _understand(
    folder: Path, hf_config: HfConfig, head: str | None
) -> tuple[Model, tuple[Rule, ...], dict[str, TensorInfo], tuple[str, ...]]:
    """Return spec, rules, tensors under their full names, and optional tensors of a directory."""
    if hf_config.get("model_type") == NATIVE_TYPE:
        with add_path(locate_config(folder)):
            spec = _read_native(hf_config)
        tensors = tensor_files.read_headers(folder)
        if HEAD_KEY in hf_config:
            tensors, _ = split_head(tensors, None, "")
        with add_path(locate_config(folder)):
            _check_layers(spec, tensors)
        return spec, _make_identity_rules(spec), tensors, ()
    with add_path(locate_config(folder)):
        hf_config.refuse_code()
        layout = _find_layout(hf_config)
        claimed_parts, is_tied = layout.read_claims(hf_config)
        task = layout.find_task_head(hf_config)
    tensors = tensor_files.read_headers(folder)
    if task is not None or HEAD_KEY in hf_config:
        tensors, _ = split_head(tensors, task, layout.prefix)
    tensors, parts, is_tied = detect_contents(layout, claimed_parts, is_tied, tensors)
    with add_path(locate_config(folder)):
        if head == "tied":
            parts = add_tied_head(layout, parts, is_tied)
        spec = layout.read(hf_config, parts, is_tied=is_tied)
        if NATIVE_TYPE in hf_config:
            spec = _refine_spec(hf_config, spec)
        _check_layers(spec, tensors)
    return spec, layout.get_rules(spec), tensors, layout.zeros


@contextmanager
def add_path(config: Path) -> Iterator[None]:
    """Prefix errors with the path of the config file."""
    try:
        yield
    except PretuneError as error:
        raise CheckpointError(f"{config}: {error}") from None


def _find_layout(hf_config: HfConfig) -> Layout:
    """Return the layout for the model_type of a config."""
    kind = hf_config.get("model_type")
    family = find_by_model_type(kind) if isinstance(kind, str) else None
    if family is None:
        hint = suggest(kind, get_model_types()) if isinstance(kind, str) else ""
        choices = ", ".join(sorted(get_model_types()))
        raise CheckpointError(f"key 'model_type' = {format_value(kind)} is not supported{hint}; known: {choices}")
    layout = FAMILIES.get(family).layout
    assert layout is not None
    return layout


def _read_native(hf_config: HfConfig) -> Model:
    """Return the spec of a native config."""
    hf_config.refuse_code()
    allowed_keys = ("model_type", NATIVE_TYPE, "dtype", "architectures", HEAD_KEY)
    for name in hf_config:
        if name not in allowed_keys:
            raise CheckpointError(
                f"unknown key {format_value(name)}{suggest(name, allowed_keys)} (allowed: {', '.join(allowed_keys)})"
            )
    return config.from_dict(Model, hf_config.get(NATIVE_TYPE), location=NATIVE_TYPE)


def _refine_spec(hf_config: HfConfig, spec: Model) -> Model:
    """Return the spec under the key `pretune` of a Hugging Face config; it must be equivalent to `spec`."""
    native_spec = config.from_dict(Model, hf_config[NATIVE_TYPE], location=NATIVE_TYPE)
    if not is_equivalent(native_spec, spec):
        path = next(iter(config.diff(spec, native_spec)), "kind")
        raise CheckpointError(
            f"key '{NATIVE_TYPE}' contradicts the other keys at {path}; remove '{NATIVE_TYPE}' to use the other keys"
        )
    return native_spec


def _check_layers(spec: Model, tensors: Mapping[str, TensorInfo]) -> None:
    """Raise `CheckpointError` for more layers than tensors, before a huge empty module is built."""
    layers = sum(len(stack.layers) for stack in spec.stacks)
    if layers > max(len(tensors), 200):
        raise CheckpointError(f"the config has {layers} layers, but the weights have only {len(tensors)} tensors")


def _check_tensors(
    folder: Path, model: LanguageModel, moves: list[Move], tensors: dict[str, TensorInfo], optional: tuple[str, ...]
) -> None:
    """Check the headers: no tensor missing or unknown, all shapes correct, all dtypes floating-point."""
    ours = dict(iterate_weights(model))
    expected_names = {move.tensor_name for move in moves}
    extra = [info for name, info in tensors.items() if name not in expected_names]
    for move in moves:
        if move.tensor_name not in tensors:
            if move.tensor_name in optional:
                continue
            hint = suggest(
                move.tensor_name, [unknown.key for unknown in islice(extra, 1000) if unknown.key.isprintable()]
            )
            raise CheckpointError(
                f"{tensor_files.find_main_file(folder)}: tensor '{move.tensor_name}' is missing{hint}"
            )
        info = tensors[move.tensor_name]
        shape = move.packing.pack([ours[name] for name in move.param_names], model.spec).shape
        if info.shape != tuple(shape):
            raise CheckpointError(
                f"{info.file}: tensor {format_value(info.key)} has shape {_format_shape(info.shape)}, "
                f"but the config requires {_format_shape(shape)}"
            )
        if info.dtype not in tensor_files.FLOAT_DTYPES:
            raise CheckpointError(
                f"{info.file}: tensor {format_value(info.key)} has dtype {info.dtype}; "
                f"allowed: {', '.join(sorted(tensor_files.FLOAT_DTYPES))}"
            )
    for info in extra:
        raise CheckpointError(f"{info.file}: tensor {format_value(info.key)} is not part of this model")


def _format_shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape[:8]))}{', ...' if len(shape) > 8 else ''}]"


def _make_identity_rules(spec: Model) -> tuple[Rule, ...]:
    return tuple(Rule(name, name) for name, _ in iterate_weights(build_empty(spec)))


def assign(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Set a parameter or buffer of a model on the meta device."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if leaf in module._buffers:
        module._buffers[leaf] = tensor
    else:
        setattr(module, leaf, nn.Parameter(tensor))
