"""Adapters on disk: a small directory beside the model it belongs to.

    adapter.json                the method, the task's head, the way to the base model and a fingerprint of its weights
    adapter_model.safetensors   what was learned
    adapter_config.json         the method in the reference's words, where it has it: the directory is then read by both
    head.safetensors            the weights of a task's head, where there is one
    tokenizer.json, …           what the base model has beside its weights

A directory that has no `adapter.json` is the reference's own.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.peft import PEFT_METHODS
from pretune.adaptation.peft.base import PeftMethod, get_adapter_state, sample_weight
from pretune.adaptation.peft.base_model import build_base_paths, resolve_reference_path
from pretune.adaptation.peft.head_format import add_head, detect_head, split_head
from pretune.adaptation.peft.lora import LoraLinear
from pretune.adaptation.peft.peft_format import LoadedAdapter, pack, unpack
from pretune.adaptation.peft.prefix import PrefixTuning
from pretune.adaptation.peft.qlora import QloraLinear, iter_original_weights
from pretune.core import config, io
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError, PretuneError
from pretune.models import tensor_files
from pretune.models.hf import checkpoint
from pretune.models.model import LanguageModel, build_empty
from pretune.models.spec import Model

ADAPTER_FILE, PEFT_CONFIG_FILE = "adapter.json", "adapter_config.json"
WEIGHTS_FILE, HEAD_FILE = "adapter_model.safetensors", "head.safetensors"


class AdapterFile(TypedDict, total=False):
    """adapter.json."""

    method: Any
    base: Any
    blocks: dict[str, list[tuple[str, config.Count]]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterExtras:
    """What is kept with an adapter: a task's head with its spec, and the way to the base model."""

    head: nn.Module | None = None
    task: TaskHead | None = None
    base: str | None = None
    layout: checkpoint.SavedHead | None = None  # the head as a class of the reference's has it


def save_adapter(
    model: LanguageModel,
    method: PeftMethod,
    directory: str | Path,
    *,
    extras: AdapterExtras = AdapterExtras(),  # noqa: B008 (a frozen value)
    overwrite: bool = False,
) -> None:
    """Write what a method has learned, and a task's head if there is one; all of it or nothing."""
    packed, head = pack(method, model), extras.head
    found: dict[str, Any] = {
        "method": config.to_dict(method),
        "base": {**build_base_paths(extras.base, directory), **_describe_base(model, method)},
    }
    if extras.task is not None:
        found["head"] = config.to_dict(extras.task)
    tensors = get_adapter_state(method, model)
    if isinstance(method, PrefixTuning):
        method, tensors = method.fold(model)
        found["method"] = config.to_dict(method)
    if packed is not None and extras.layout is not None and extras.task is not None:
        packed = add_head(packed, extras.layout, config.get_kind(extras.task))
    if packed is not None:
        found["blocks"], tensors = packed.blocks, packed.tensors
    with io.atomic_directory(Path(directory), overwrite=overwrite) as folder:
        names = [ADAPTER_FILE, WEIGHTS_FILE]
        io.write_json(folder / ADAPTER_FILE, found)
        tensor_files.save_tensors(
            {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS_FILE
        )
        if packed is not None:
            io.write_json(
                folder / PEFT_CONFIG_FILE,
                {**packed.config, "base_model_name_or_path": resolve_reference_path(extras.base)},
            )
            names.append(PEFT_CONFIG_FILE)
        if head is not None:
            kept = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
            tensor_files.save_tensors(kept, folder / HEAD_FILE)
            names.append(HEAD_FILE)
        for name, data in model.assets.files.items():
            io.atomic_write(folder / name, data)
            names.append(name)
        io.write_manifest(folder, names)


def load_adapter(model: LanguageModel, directory: str | Path, *, head: nn.Module | None = None) -> PeftMethod:
    """Apply an adapter that was saved, ours or the reference's, to its base model: the method it is of.

    Nothing of the model is changed where the adapter does not fit it.
    """
    folder = Path(directory)
    found = _read_adapter(model, folder)
    if head is not None:
        _load_head_weights(head, _read_tensors(folder / HEAD_FILE), folder / HEAD_FILE)
    found.method.apply(model)
    _assign_tensors(model, found)
    return found.method


def check_base(model: LanguageModel, directory: str | Path) -> None:
    """Refuse a model that is not the base of an adapter of ours."""
    said = io.read_json(Path(directory) / ADAPTER_FILE, CheckpointError)
    with _prefix_errors(Path(directory) / ADAPTER_FILE):
        _check_same_base(model, _parse_method(said.get("method")), said.get("base"))


def compute_fingerprint(model: LanguageModel, method: PeftMethod) -> str:
    """A hash of the base model: names, shapes and a sample of every matrix that the method does not train."""
    trained = set(
        method.list_trainable_names(model)
    )  # before the method is applied: what it will train of the model's own
    found = {name: (tuple(shape), numbers) for name, shape, numbers in iter_original_weights(model)}
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and name not in trained:
            found[name] = (tuple(parameter.shape), sample_weight(parameter))
    digest = hashlib.sha256()
    for name, (shape, numbers) in sorted(found.items()):
        digest.update(f"{name}{list(shape)}".encode() + numbers)
    return digest.hexdigest()


def _describe_base(model: LanguageModel, method: PeftMethod) -> dict[str, Any]:
    spec = model.spec
    shape = {"family": spec.family, "vocab": spec.vocab, "width": spec.width, "depth": spec.depth}
    return {**shape, "sha256": compute_fingerprint(model, method)}


def _read_adapter(model: LanguageModel, folder: Path) -> LoadedAdapter:
    """An adapter, checked against the model before that is touched."""
    if not (folder / ADAPTER_FILE).is_file():
        if not (folder / PEFT_CONFIG_FILE).is_file():
            raise CheckpointError(
                f"{folder}: no {ADAPTER_FILE} and no {PEFT_CONFIG_FILE}; give the directory of an adapter"
            )
        tensors = split_head(_read_tensors(folder / WEIGHTS_FILE), model.spec).adapter
        with _prefix_errors(folder / PEFT_CONFIG_FILE):
            found = unpack(io.read_json(folder / PEFT_CONFIG_FILE, CheckpointError), tensors, model.spec, {})
        _check_shapes(model, found, folder, require_all=False)
        return found
    said = config.read_record(AdapterFile, folder / ADAPTER_FILE, CheckpointError)
    with _prefix_errors(folder / ADAPTER_FILE):
        method = _parse_method(said.get("method"))
        _check_same_base(model, method, said.get("base"))
    tensors = _read_tensors(folder / WEIGHTS_FILE)
    found = LoadedAdapter(method=method, tensors=tensors)
    if (folder / PEFT_CONFIG_FILE).is_file():
        tensors = split_head(tensors, model.spec).adapter
        with _prefix_errors(folder / PEFT_CONFIG_FILE):
            theirs = unpack(
                io.read_json(folder / PEFT_CONFIG_FILE, CheckpointError), tensors, model.spec, said.get("blocks") or {}
            )
        targets = getattr(method, "targets", None)  # of a layer that others share with ours, only these
        kept = {n: tensor for n, tensor in theirs.tensors.items() if targets is None or n.split(".")[-2] in targets}
        found = LoadedAdapter(method=method, tensors=kept, scales=theirs.scales)
    _check_shapes(model, found, folder, require_all=True)
    return found


def _parse_method(data: object) -> PeftMethod:
    if not isinstance(data, Mapping):
        raise CheckpointError(f"key 'method' must be an object, found {format_value(data)}")
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in PEFT_METHODS:
        raise CheckpointError(
            f"method {format_value(kind)} is not known; known: {', '.join(PEFT_METHODS.list_names())}"
        )
    return config.from_dict(PEFT_METHODS.get(kind), data, location="method")


def _check_same_base(model: LanguageModel, method: PeftMethod, base_info: object) -> None:
    if not isinstance(base_info, Mapping):
        raise CheckpointError(f"key 'base' must be an object, found {format_value(base_info)}")
    for name in ("family", "vocab", "width", "depth"):
        if base_info.get(name) != getattr(model.spec, name):
            raise CheckpointError(
                f"the adapter is for another base model: its {name} is {format_value(base_info.get(name))}, "
                f"this one's {format_value(getattr(model.spec, name))}"
            )
    if base_info.get("sha256") != compute_fingerprint(model, method):
        raise CheckpointError(
            "the adapter is for another base model of this shape: load the weights it was trained with"
        )


def _check_shapes(model: LanguageModel, adapter: LoadedAdapter, folder: Path, *, require_all: bool) -> None:
    """Every tensor has its place and shape; told on a model without memory."""
    fresh_copy = build_empty(model.spec)
    adapter.method.apply(fresh_copy)
    wanted = get_adapter_state(adapter.method, fresh_copy)
    for name, tensor in adapter.tensors.items():
        own = adapter.scales and name.endswith((".a", ".b"))  # a product may have a rank of its own
        other = 0 if name.endswith(".b") else 1
        if name not in wanted or (
            tensor.shape[other:][:1] != wanted[name].shape[other:][:1] if own else tensor.shape != wanted[name].shape
        ):
            asked = list(wanted[name].shape) if name in wanted else "no such tensor"
            raise CheckpointError(
                f"{folder / WEIGHTS_FILE}: '{name}' has shape {list(tensor.shape)}, this model asks for {asked}; "
                "the adapter is for another base model"
            )
    missing = [name for name in wanted if name not in adapter.tensors]
    if require_all and missing:
        raise CheckpointError(f"{folder / WEIGHTS_FILE}: tensor '{missing[0]}' is missing")


@torch.no_grad()
def _assign_tensors(model: LanguageModel, adapter: LoadedAdapter) -> None:
    for name, tensor in adapter.tensors.items():
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        old = getattr(module, leaf)
        setattr(module, leaf, Parameter(tensor.to(old.device, old.dtype, copy=True)))
        if isinstance(module, LoraLinear | QloraLinear) and path in adapter.scales:
            module.scale = adapter.scales[path]


def read_peft_head(directory: str | Path, spec: Model) -> tuple[TaskHead, dict[str, Tensor]] | None:
    """The head in an adapter that the reference wrote, if there is one, with the weights of it that are there."""
    folder = Path(directory)
    found = io.read_json(folder / PEFT_CONFIG_FILE, CheckpointError)
    tensors = split_head(_read_tensors(folder / WEIGHTS_FILE), spec).head
    made = detect_head(found, tensors, spec) if tensors else None
    if made is None:
        return None
    task, layout = made
    names = [
        (str(rule.param_names).format(p=p), rule.tensor_name.format(p=p))
        for rule in layout.rules
        for p in ("weight", "bias")
    ]
    return task, {ours: tensors[theirs] for ours, theirs in names if theirs in tensors}


def _load_head_weights(head: nn.Module, tensors: Mapping[str, Tensor], file: Path) -> None:
    wanted = head.state_dict()
    for name in [*wanted, *tensors]:
        if name not in wanted or name not in tensors or wanted[name].shape != tensors[name].shape:
            raise CheckpointError(f"{file}: tensor '{name}' does not fit the head; give the head it was saved with")
    head.load_state_dict(dict(tensors))


def _read_tensors(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise CheckpointError(f"{file}: missing")
    with tensor_files.open_tensors(file):
        return load_file(file)


@contextmanager
def _prefix_errors(file: Path) -> Iterator[None]:
    """What is wrong with what a file says, with its name."""
    try:
        yield
    except PretuneError as error:
        raise CheckpointError(f"{file}: {str(error).removeprefix(f'{file}: ')}") from None
