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
from pretune.adaptation.peft import EFFICIENT
from pretune.adaptation.peft.base import Method, sample, state
from pretune.adaptation.peft.base_model import reference_path, stored_paths
from pretune.adaptation.peft.head_format import apart, told, with_head
from pretune.adaptation.peft.lora import LowRank
from pretune.adaptation.peft.peft_format import Unpacked, pack, unpack
from pretune.adaptation.peft.prefix import Prefix
from pretune.adaptation.peft.qlora import QuantisedLowRank, originals
from pretune.core import config, io
from pretune.core.config.read import shown
from pretune.core.errors import CheckpointError, PretuneError
from pretune.models import tensor_files
from pretune.models.hf import checkpoint
from pretune.models.model import LanguageModel, empty
from pretune.models.spec import Model

OURS, THEIRS = "adapter.json", "adapter_config.json"
WEIGHTS, HEAD = "adapter_model.safetensors", "head.safetensors"


class AdapterFile(TypedDict, total=False):
    """adapter.json."""

    method: Any
    base: Any
    blocks: dict[str, list[tuple[str, config.Count]]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What is kept with an adapter: a task's head with its spec, and the way to the base model."""

    head: nn.Module | None = None
    task: TaskHead | None = None
    base: str | None = None
    layout: checkpoint.Beside | None = None  # the head as a class of the reference's has it


def save_adapter(
    model: LanguageModel,
    method: Method,
    directory: str | Path,
    *,
    beside: Beside = Beside(),  # noqa: B008 (a frozen value)
    overwrite: bool = False,
) -> None:
    """Write what a method has learned, and a task's head if there is one; all of it or nothing."""
    packed, head = pack(method, model), beside.head
    found: dict[str, Any] = {
        "method": config.to_dict(method),
        "base": {**stored_paths(beside.base, directory), **_base(model, method)},
    }
    if beside.task is not None:
        found["head"] = config.to_dict(beside.task)
    tensors = state(method, model)
    if isinstance(method, Prefix):
        method, tensors = method.folded(model)
        found["method"] = config.to_dict(method)
    if packed is not None and beside.layout is not None and beside.task is not None:
        packed = with_head(packed, beside.layout, config.kind(beside.task))
    if packed is not None:
        found["blocks"], tensors = packed.blocks, packed.tensors
    with io.atomic_directory(Path(directory), overwrite=overwrite) as folder:
        names = [OURS, WEIGHTS]
        io.write_json(folder / OURS, found)
        tensor_files.save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
        if packed is not None:
            io.write_json(folder / THEIRS, {**packed.config, "base_model_name_or_path": reference_path(beside.base)})
            names.append(THEIRS)
        if head is not None:
            kept = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
            tensor_files.save(kept, folder / HEAD)
            names.append(HEAD)
        for name, data in model.assets.files.items():
            io.atomic_write(folder / name, data)
            names.append(name)
        io.write_manifest(folder, names)


def load_adapter(model: LanguageModel, directory: str | Path, *, head: nn.Module | None = None) -> Method:
    """Apply an adapter that was saved, ours or the reference's, to its base model: the method it is of.

    Nothing of the model is changed where the adapter does not fit it.
    """
    folder = Path(directory)
    found = _examine(model, folder)
    if head is not None:
        _fill(head, _read(folder / HEAD), folder / HEAD)
    found.method.apply(model)
    _put(model, found)
    return found.method


def check_base(model: LanguageModel, directory: str | Path) -> None:
    """Refuse a model that is not the base of an adapter of ours."""
    said = io.read_json(Path(directory) / OURS, CheckpointError)
    with _about(Path(directory) / OURS):
        _same_base(model, _method(said.get("method")), said.get("base"))


def fingerprint(model: LanguageModel, method: Method) -> str:
    """A hash of the base model: names, shapes and a sample of every matrix that the method does not train."""
    trained = set(method.names(model))  # before the method is applied: what it will train of the model's own
    found = {name: (tuple(shape), numbers) for name, shape, numbers in originals(model)}
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and name not in trained:
            found[name] = (tuple(parameter.shape), sample(parameter))
    digest = hashlib.sha256()
    for name, (shape, numbers) in sorted(found.items()):
        digest.update(f"{name}{list(shape)}".encode() + numbers)
    return digest.hexdigest()


def _base(model: LanguageModel, method: Method) -> dict[str, Any]:
    spec = model.spec
    shape = {"family": spec.family, "vocab": spec.vocab, "width": spec.width, "depth": spec.depth}
    return {**shape, "sha256": fingerprint(model, method)}


def _examine(model: LanguageModel, folder: Path) -> Unpacked:
    """An adapter, checked against the model before that is touched."""
    if not (folder / OURS).is_file():
        if not (folder / THEIRS).is_file():
            raise CheckpointError(f"{folder}: no {OURS} and no {THEIRS}; give the directory of an adapter")
        tensors = apart(_read(folder / WEIGHTS), model.spec).adapter
        with _about(folder / THEIRS):
            found = unpack(io.read_json(folder / THEIRS, CheckpointError), tensors, model.spec, {})
        _fits(model, found, folder, all_of_them=False)
        return found
    said = config.read_record(AdapterFile, folder / OURS, CheckpointError)
    with _about(folder / OURS):
        method = _method(said.get("method"))
        _same_base(model, method, said.get("base"))
    tensors = _read(folder / WEIGHTS)
    found = Unpacked(method=method, tensors=tensors)
    if (folder / THEIRS).is_file():
        tensors = apart(tensors, model.spec).adapter
        with _about(folder / THEIRS):
            theirs = unpack(
                io.read_json(folder / THEIRS, CheckpointError), tensors, model.spec, said.get("blocks") or {}
            )
        targets = getattr(method, "targets", None)  # of a layer that others share with ours, only these
        kept = {n: tensor for n, tensor in theirs.tensors.items() if targets is None or n.split(".")[-2] in targets}
        found = Unpacked(method=method, tensors=kept, scales=theirs.scales)
    _fits(model, found, folder, all_of_them=True)
    return found


def _method(said: object) -> Method:
    if not isinstance(said, Mapping):
        raise CheckpointError(f"key 'method' must be an object, found {shown(said)}")
    kind = said.get("kind")
    if not isinstance(kind, str) or kind not in EFFICIENT:
        raise CheckpointError(f"method {shown(kind)} is not known; known: {', '.join(EFFICIENT.names())}")
    return config.from_dict(EFFICIENT.get(kind), said, where="method")


def _same_base(model: LanguageModel, method: Method, said: object) -> None:
    if not isinstance(said, Mapping):
        raise CheckpointError(f"key 'base' must be an object, found {shown(said)}")
    for name in ("family", "vocab", "width", "depth"):
        if said.get(name) != getattr(model.spec, name):
            raise CheckpointError(
                f"the adapter is for another base model: its {name} is {shown(said.get(name))}, "
                f"this one's {shown(getattr(model.spec, name))}"
            )
    if said.get("sha256") != fingerprint(model, method):
        raise CheckpointError(
            "the adapter is for another base model of this shape: load the weights it was trained with"
        )


def _fits(model: LanguageModel, found: Unpacked, folder: Path, *, all_of_them: bool) -> None:
    """Every tensor has its place and shape; told on a model without memory."""
    fresh_copy = empty(model.spec)
    found.method.apply(fresh_copy)
    wanted = state(found.method, fresh_copy)
    for name, tensor in found.tensors.items():
        own = found.scales and name.endswith((".a", ".b"))  # a product may have a rank of its own
        other = 0 if name.endswith(".b") else 1
        if name not in wanted or (
            tensor.shape[other:][:1] != wanted[name].shape[other:][:1] if own else tensor.shape != wanted[name].shape
        ):
            asked = list(wanted[name].shape) if name in wanted else "no such tensor"
            raise CheckpointError(
                f"{folder / WEIGHTS}: '{name}' has shape {list(tensor.shape)}, this model asks for {asked}; "
                "the adapter is for another base model"
            )
    missing = [name for name in wanted if name not in found.tensors]
    if all_of_them and missing:
        raise CheckpointError(f"{folder / WEIGHTS}: tensor '{missing[0]}' is missing")


@torch.no_grad()
def _put(model: LanguageModel, found: Unpacked) -> None:
    for name, tensor in found.tensors.items():
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        old = getattr(module, leaf)
        setattr(module, leaf, Parameter(tensor.to(old.device, old.dtype, copy=True)))
        if isinstance(module, LowRank | QuantisedLowRank) and path in found.scales:
            module.scale = found.scales[path]


def their_head(directory: str | Path, spec: Model) -> tuple[TaskHead, dict[str, Tensor]] | None:
    """The head in an adapter that the reference wrote, if there is one, with the weights of it that are there."""
    folder = Path(directory)
    found = io.read_json(folder / THEIRS, CheckpointError)
    tensors = apart(_read(folder / WEIGHTS), spec).head
    made = told(found, tensors, spec) if tensors else None
    if made is None:
        return None
    task, layout = made
    names = [(str(rule.ours).format(p=p), rule.theirs.format(p=p)) for rule in layout.rules for p in ("weight", "bias")]
    return task, {ours: tensors[theirs] for ours, theirs in names if theirs in tensors}


def _fill(head: nn.Module, tensors: Mapping[str, Tensor], file: Path) -> None:
    wanted = head.state_dict()
    for name in [*wanted, *tensors]:
        if name not in wanted or name not in tensors or wanted[name].shape != tensors[name].shape:
            raise CheckpointError(f"{file}: tensor '{name}' does not fit the head; give the head it was saved with")
    head.load_state_dict(dict(tensors))


def _read(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise CheckpointError(f"{file}: missing")
    with tensor_files.opened(file):
        return load_file(file)


@contextmanager
def _about(file: Path) -> Iterator[None]:
    """What is wrong with what a file says, with its name."""
    try:
        yield
    except PretuneError as error:
        raise CheckpointError(f"{file}: {str(error).removeprefix(f'{file}: ')}") from None
