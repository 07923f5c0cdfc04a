"""Adapters on disk: a small directory that refers to its base model.

    adapter.json                the method, the task head, the path of the base model and a fingerprint of its weights
    adapter_model.safetensors   the trained weights
    adapter_config.json         the method in peft's format, if peft has it: both can load the directory
    head.safetensors            the weights of the task head, if there is one
    tokenizer.json, …           the base model's tokenizer files

A directory without `adapter.json` was written by peft.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.adaptation import METHODS
from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.head_classes import add_head, detect_head, export_head, split_head
from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.peft import PEFT_METHODS
from pretune.adaptation.peft.base import PeftMethod, get_adapter_state, sample_weight
from pretune.adaptation.peft.lora import LoraLinear
from pretune.adaptation.peft.peft_format import Blocks, LoadedAdapter, pack, unpack
from pretune.adaptation.peft.prefix import PrefixTuning
from pretune.adaptation.peft.qlora import iter_original_weights
from pretune.core import config, io
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.core.hub import PREFIX, is_hub, is_short_name, resolve_path
from pretune.models import tensor_files
from pretune.models.hf import checkpoint
from pretune.models.model import LanguageModel, build_empty
from pretune.models.spec import Model

ADAPTER_FILE, PEFT_CONFIG_FILE = "adapter.json", "adapter_config.json"
WEIGHTS_FILE, HEAD_FILE = "adapter_model.safetensors", "head.safetensors"
BASE_FOLDER = "base"
"""Folder of a base model that is saved with its adapter."""
BASE_FIELDS = ("family", "vocab", "width", "depth")
"""Fields of a base model's spec that are stored with an adapter."""


class AdapterFile(TypedDict, total=False):
    """adapter.json."""

    method: Any
    base: dict[str, Any] | None
    head: dict[str, Any] | None
    blocks: dict[str, list[tuple[str, config.Count]]] | None


def save_adapter(
    model: LanguageModel | ModelWithHead,
    method: PeftMethod,
    directory: str | Path,
    *,
    base: str | None = None,
    base_model: LanguageModel | None = None,
    overwrite: bool = False,
) -> None:
    """Save the trained weights of a method, and the task head if there is one; atomic.

    `base` is the path of the base model; `base_model` is saved in the folder `base` instead.
    """
    task_model, model = (model, model.model) if isinstance(model, ModelWithHead) else (None, model)
    peft_adapter, head = pack(method, model), None if task_model is None else task_model.head
    paths = build_base_paths(base, directory)
    if base_model is not None:
        base = str(Path(directory).resolve() / BASE_FOLDER)
        paths = {"path": base, "relative": BASE_FOLDER}
    record: dict[str, object] = {"method": config.to_dict(method), "base": {**paths, **_describe_base(model, method)}}
    if task_model is not None:
        record["head"] = config.to_dict(task_model.spec)
    tensors = get_adapter_state(method, model)
    if isinstance(method, PrefixTuning):
        method, tensors = method.fold(model)
        record["method"] = config.to_dict(method)
    if peft_adapter is not None and task_model is not None and (layout := export_head(task_model)) is not None:
        peft_adapter = add_head(peft_adapter, layout, config.get_kind(task_model.spec))
    if peft_adapter is not None:
        record["blocks"], tensors = peft_adapter.blocks, peft_adapter.tensors
    with io.atomic_directory(Path(directory), overwrite=overwrite, owner=checkpoint.find_owner(directory)) as folder:
        names = [ADAPTER_FILE, WEIGHTS_FILE]
        if base_model is not None:
            checkpoint.save(base_model, folder / BASE_FOLDER)
        io.write_json(folder / ADAPTER_FILE, record)
        weights = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        tensor_files.save_tensors(weights, folder / WEIGHTS_FILE)
        if peft_adapter is not None:
            peft_config = {**peft_adapter.config, "base_model_name_or_path": resolve_reference_path(base)}
            io.write_json(folder / PEFT_CONFIG_FILE, peft_config)
            names.append(PEFT_CONFIG_FILE)
        if head is not None:
            head_tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
            tensor_files.save_tensors(head_tensors, folder / HEAD_FILE)
            names.append(HEAD_FILE)
        for name, data in model.assets.files.items():
            io.atomic_write(folder / name, data)
            names.append(name)
        io.write_manifest(folder, names)


def load_adapter(model: LanguageModel, directory: str | Path, *, head: nn.Module | None = None) -> PeftMethod:
    """Apply a saved adapter, ours or peft's, to its base model; return the method.

    The model is unchanged if the adapter does not fit it.
    """
    folder = Path(directory)
    adapter = _read_adapter(model, folder)
    if head is not None:
        _load_head_weights(head, _read_tensors(folder / HEAD_FILE), folder / HEAD_FILE)
    adapter.method.apply(model)
    _assign_tensors(model, adapter)
    return adapter.method


def check_base(model: LanguageModel, directory: str | Path) -> None:
    """Raise CheckpointError if a model is not the base model of our adapter in a directory."""
    record = config.read_record(AdapterFile, Path(directory) / ADAPTER_FILE, CheckpointError)
    with checkpoint.add_path(Path(directory) / ADAPTER_FILE):
        _check_same_base(model, _parse_method(record.get("method")), record.get("base"))


def compute_fingerprint(model: LanguageModel, method: PeftMethod) -> str:
    """Return a hash of the base model: names, shapes and a sample of every matrix that the method does not train."""
    # Before the method is applied, these are the model's own parameters that it will train.
    trained_names = set(method.list_trainable_names(model))
    samples = {name: (tuple(shape), numbers) for name, shape, numbers in iter_original_weights(model)}
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and name not in trained_names:
            samples[name] = (tuple(parameter.shape), sample_weight(parameter))
    digest = hashlib.sha256()
    for name, (shape, numbers) in sorted(samples.items()):
        digest.update(f"{name}{list(shape)}".encode() + numbers)
    return digest.hexdigest()


def _describe_base(model: LanguageModel, method: PeftMethod) -> dict[str, object]:
    shape = {name: getattr(model.spec, name) for name in BASE_FIELDS}
    return {**shape, "sha256": compute_fingerprint(model, method)}


def _read_adapter(model: LanguageModel, folder: Path) -> LoadedAdapter:
    """Read an adapter and check it against the model, without changing the model."""
    if not (folder / ADAPTER_FILE).is_file():
        if not (folder / PEFT_CONFIG_FILE).is_file():
            raise CheckpointError(f"{folder}: not an adapter directory (no {ADAPTER_FILE}, no {PEFT_CONFIG_FILE})")
        adapter = _unpack_peft(folder, _read_tensors(folder / WEIGHTS_FILE), model.spec, {})
        _check_shapes(model, adapter, folder, require_all=False)
        return adapter
    record = config.read_record(AdapterFile, folder / ADAPTER_FILE, CheckpointError)
    with checkpoint.add_path(folder / ADAPTER_FILE):
        method = _parse_method(record.get("method"))
        _check_same_base(model, method, record.get("base"))
    tensors = _read_tensors(folder / WEIGHTS_FILE)
    adapter = LoadedAdapter(method=method, tensors=tensors)
    if (folder / PEFT_CONFIG_FILE).is_file():
        theirs = _unpack_peft(folder, tensors, model.spec, record.get("blocks") or {})
        targets = getattr(method, "targets", None)  # a fused layer may hold other targets too
        adapter_tensors = {
            n: tensor for n, tensor in theirs.tensors.items() if targets is None or n.split(".")[-2] in targets
        }
        adapter = LoadedAdapter(method=method, tensors=adapter_tensors, scales=theirs.scales)
    _check_shapes(model, adapter, folder, require_all=True)
    return adapter


def _unpack_peft(folder: Path, tensors: Mapping[str, Tensor], spec: Model, blocks: Blocks) -> LoadedAdapter:
    """Read the adapter of a directory in peft's format, without its head."""
    adapter_tensors = split_head(tensors, spec)[0]
    peft_config = io.read_json(folder / PEFT_CONFIG_FILE, CheckpointError)
    with checkpoint.add_path(folder / PEFT_CONFIG_FILE):
        return unpack(peft_config, adapter_tensors, spec, blocks)


def _parse_method(data: object) -> PeftMethod:
    if not isinstance(data, Mapping):
        raise CheckpointError(f"key 'method' must be an object, got {format_value(data)}")
    kind = data.get("kind")
    method_class = METHODS.get(kind) if isinstance(kind, str) and kind in METHODS else None
    if method_class is None or not issubclass(method_class, PeftMethod):
        raise CheckpointError(f"unknown method {format_value(kind)}; allowed: {', '.join(PEFT_METHODS.list_names())}")
    method: PeftMethod = config.from_dict(method_class, data, location="method")
    return method


def _check_same_base(model: LanguageModel, method: PeftMethod, base_info: object) -> None:
    if not isinstance(base_info, Mapping):
        raise CheckpointError(f"key 'base' must be an object, got {format_value(base_info)}")
    for name in BASE_FIELDS:
        if base_info.get(name) != getattr(model.spec, name):
            raise CheckpointError(
                f"the adapter is for another base model: its {name} is {format_value(base_info.get(name))}, "
                f"this model's is {format_value(getattr(model.spec, name))}"
            )
    if base_info.get("sha256") != compute_fingerprint(model, method):
        raise CheckpointError(
            "the adapter is for another base model of this shape: load the weights that it was trained with"
        )


def _check_shapes(model: LanguageModel, adapter: LoadedAdapter, folder: Path, *, require_all: bool) -> None:
    """Check the name and shape of every tensor, against a model on the meta device."""
    empty_model = build_empty(model.spec)
    adapter.method.apply(empty_model)
    expected_state = get_adapter_state(adapter.method, empty_model)
    for name, tensor in adapter.tensors.items():
        reference, dims = expected_state.get(name), slice(None)
        if adapter.scales and name.endswith((".a", ".b")):  # the rank may differ per layer
            dims = slice(0, 1) if name.endswith(".b") else slice(1, 2)
        if reference is None or tensor.shape[dims] != reference.shape[dims]:
            expected_shape = "no such tensor" if reference is None else list(reference.shape)
            raise CheckpointError(
                f"{folder / WEIGHTS_FILE}: '{name}' has shape {list(tensor.shape)}, this model expects "
                f"{expected_shape}; the adapter is for another base model"
            )
    missing = [name for name in expected_state if name not in adapter.tensors]
    if require_all and missing:
        raise CheckpointError(f"{folder / WEIGHTS_FILE}: tensor '{missing[0]}' is missing")


@torch.no_grad()
def _assign_tensors(model: LanguageModel, adapter: LoadedAdapter) -> None:
    for name, tensor in adapter.tensors.items():
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        old = getattr(module, leaf)
        setattr(module, leaf, Parameter(tensor.to(old.device, old.dtype, copy=True)))
        if isinstance(module, LoraLinear) and path in adapter.scales:
            module.scale = adapter.scales[path]


def read_peft_head(directory: str | Path, spec: Model) -> tuple[TaskHead, dict[str, Tensor]] | None:
    """Return the head in an adapter written by peft, and those of its weights that are stored; None without a head."""
    folder = Path(directory)
    peft_config = io.read_json(folder / PEFT_CONFIG_FILE, CheckpointError)
    tensors = split_head(_read_tensors(folder / WEIGHTS_FILE), spec)[1]
    detection = detect_head(peft_config, tensors, spec) if tensors else None
    if detection is None:
        return None
    task, layout = detection
    names = [(f"{ours}.{p}", f"{theirs}.{p}") for ours, theirs in layout.names.items() for p in ("weight", "bias")]
    return task, {ours: tensors[theirs] for ours, theirs in names if theirs in tensors}


def _load_head_weights(head: nn.Module, tensors: Mapping[str, Tensor], file: Path) -> None:
    state = head.state_dict()
    for name in [*state, *tensors]:
        if name not in state or name not in tensors or state[name].shape != tensors[name].shape:
            raise CheckpointError(f"{file}: tensor '{name}' does not fit the head; use the head it was saved with")
    head.load_state_dict(dict(tensors))


def _read_tensors(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise CheckpointError(f"{file}: missing")
    with tensor_files.open_tensors(file):
        return load_file(file)


def build_base_paths(base: str | None, directory: str | Path) -> dict[str, str | None]:
    """Return the base model's paths for `adapter.json`: absolute, and relative to the adapter's directory.

    A path that does not exist is stored unchanged, and is looked up relative to the adapter.
    """
    if base is None or is_hub(base) or not Path(base).exists():
        return {"path": base}
    absolute = str(Path(base).resolve())
    try:
        return {"path": absolute, "relative": os.path.relpath(absolute, Path(directory).resolve())}
    except ValueError:  # on another drive (Windows)
        return {"path": absolute}


def resolve_reference_path(base: str | None) -> str | None:
    """Return the base model's path for `adapter_config.json`: an absolute path, or a name on the hub."""
    if base is None or not is_hub(base):
        return None if base is None else str(resolve_path(base).resolve())
    return base.removeprefix(PREFIX).partition("@")[0]


def find_base_directories(folder: Path, base_info: Mapping[str, object], base: str | Path | None = None) -> list[Path]:
    """Return the candidate directories of an adapter's base model, best first; `base` is the only one if given.

    A path stored by earlier releases is relative to the working directory of the run, or to the adapter.
    """
    if base is not None:
        place = resolve_path(base)
        if not place.exists():
            raise CheckpointError(f"{place}: no such directory or file; --base must be the base model of {folder}")
        return [place]
    relative, path = (_check_path(folder, base_info.get(name)) for name in ("relative", "path"))
    places = [] if relative is None else [folder / relative]
    if path is not None:
        places += [resolve_path(path)] if is_hub(path) or is_short_name(path) else [Path(path), folder / path]
    if not places:
        raise CheckpointError(
            f"{folder}: no base model is stored with this adapter; pass it with --base DIR (Python: base=)"
        )
    distinct = {os.path.realpath(place): place for place in reversed(places) if place.exists()}
    if not distinct:
        raise CheckpointError(
            f"{folder}: base model {format_value(path or relative)} not found; pass it with --base DIR (Python: base=)"
        )
    return [*reversed(distinct.values())]


def _check_path(folder: Path, path: object) -> str | None:
    if path is None:
        return None
    if not isinstance(path, str) or not path or not config.PossiblePath().allows(path):
        raise CheckpointError(f"{folder}: invalid base model path {format_value(path)}; pass it with --base DIR")
    return path
