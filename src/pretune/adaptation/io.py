"""Models with heads on disk: the classes of `transformers` where it has them, both ways.

Where no class has the head, the body is saved as ever, for anyone to read, and the head beside it under our own names.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from pretune.adaptation.adapted import Adapted, adapt
from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.choice import Choice
from pretune.adaptation.heads.classification import Classification
from pretune.adaptation.heads.multi_task import OneHead, Several
from pretune.adaptation.heads.regression import Regression
from pretune.adaptation.heads.span import Span
from pretune.adaptation.heads.tagging import Tagging
from pretune.adaptation.peft.base import Method
from pretune.adaptation.peft.base_model import base_directories
from pretune.adaptation.peft.io import OURS, THEIRS, check_base, load_adapter, their_head
from pretune.core import config, io
from pretune.core.config.read import shown
from pretune.core.errors import CheckpointError, PretuneError, UsageError
from pretune.core.hub import located
from pretune.models import tensor_files
from pretune.models.families import FAMILIES
from pretune.models.hf import checkpoint
from pretune.models.hf.checks import optional, rate, size, take, unsupported
from pretune.models.hf.heads import HEAD, OWN, Headed
from pretune.models.hf.weights import Move, Rule, plan
from pretune.models.model import LanguageModel
from pretune.models.tensor_files import Stored
from pretune.models.trained_model import AnyModel

AnyHead = OneHead | Several
PROBLEMS = {"single_label_classification": "classification", "regression": "regression"}


@config.spec
class _Kept:
    """A head as a directory keeps it."""

    head: AnyHead


def save(model: AnyModel | Adapted, directory: str | Path, *, overwrite: bool = False, **options: Any) -> None:
    """Write a directory that `transformers` reads, where it has the family; all of it or nothing."""
    if not isinstance(model, Adapted):
        return checkpoint.save(model, directory, overwrite=overwrite, **options)
    body, head = model.model, model.head
    if head is None:
        return checkpoint.save(body, directory, overwrite=overwrite, **options)
    beside = class_of(model)
    if beside is None:
        tensors = _tensors(head)
        beside = checkpoint.Beside(
            {HEAD: config.to_dict(model.spec)}, {OWN + name: tensor for name, tensor in tensors.items()}
        )
    return checkpoint.save(body, directory, overwrite=overwrite, head=beside, **options)


def load(
    directory: str | Path,
    *,
    base: str | Path | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    head: Literal["tied"] | None = None,
) -> LanguageModel | Adapted:
    """Read a Hugging Face model directory, or one of ours: a model, or one with the task's head that is in it.

    Where the directory is an adapter's, its base model is read from where it says it is, or from `base`. With `head`
    "tied" a decoder that was saved without its vocabulary head is given it, where that is the token table.
    """
    return read(directory, base=base, dtype=dtype, device=device, head=head)[0]


def read(
    directory: str | Path,
    *,
    base: str | Path | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    head: Literal["tied"] | None = None,
) -> tuple[LanguageModel | Adapted, Method | None]:
    """The same, and the method of an adapter that is on the model; `base` is where its base model is now."""
    return _read(located(directory), _Way(base, dtype, device), head)


class _Way(NamedTuple):
    """Search path of an adapter's base, its loading options, and the adapters that led here."""

    base: str | Path | None
    dtype: torch.dtype
    device: torch.device | str
    chain: tuple[str, ...] = ()


def _read(
    folder: Path, way: _Way, head: Literal["tied"] | None = None
) -> tuple[LanguageModel | Adapted, Method | None]:
    if not (folder / OURS).is_file():
        if (folder / THEIRS).is_file() and not (folder / checkpoint.CONFIG).is_file():
            return _theirs(folder, way)
        if way.base is not None and folder.is_dir():
            raise UsageError(f"{folder}: is no adapter, so it has no base model; leave --base out")
        return _whole(folder, way.dtype, way.device, head), None
    said = io.read_json(folder / OURS, CheckpointError)
    stored = said.get("base")
    model = _base(folder, stored if isinstance(stored, Mapping) else {}, way)
    if said.get("head") is None:
        return model, load_adapter(model, folder)
    try:
        made = adapt(model, _kept(said["head"])).to(way.device, way.dtype)
    except PretuneError as error:
        raise CheckpointError(f"{folder / OURS}: {error}") from None
    return made.eval(), load_adapter(made.model, folder, head=made.head)


def _base(folder: Path, stored: Mapping[str, Any], way: _Way) -> LanguageModel:
    """The model that an adapter is for: of several directories the one whose weights are those it was trained with."""
    chain = (*way.chain, os.path.realpath(folder))
    places = base_directories(folder, stored, way.base)
    for place in places[:-1]:
        try:
            model = _base_model(place, folder, way._replace(base=None, chain=chain))
            check_base(model, folder)
            return model
        except CheckpointError:
            continue
    return _base_model(places[-1], folder, way._replace(base=None, chain=chain))  # checked with the adapter


def _base_model(place: Path, folder: Path, way: _Way) -> LanguageModel:
    """The model of a directory; where that is itself a model with a method, it is merged."""
    if not (place / OURS).is_file():
        return checkpoint.load(place, dtype=way.dtype, device=way.device)
    if os.path.realpath(place) in way.chain:
        raise CheckpointError(
            f"{folder}: its base model '{place}' is an adapter on this one; give another with --base DIR"
        )
    made, method = _read(place, way)
    model = made.model if isinstance(made, Adapted) else made
    if method is None or not method.merges:
        raise CheckpointError(f"{place}: what was learned there cannot be merged into a base model for {folder}")
    method.merge(model)
    return model


def _theirs(folder: Path, way: _Way) -> tuple[LanguageModel | Adapted, Method]:
    """An adapter that the reference wrote, with its head where it has one."""
    said = io.read_json(folder / THEIRS, CheckpointError)
    model = _base(folder, {"path": said.get("base_model_name_or_path")}, way)
    found = their_head(folder, model.spec)
    if found is None:
        return model, load_adapter(model, folder)
    task, tensors = found
    try:
        made = adapt(model, task).to(way.device, way.dtype)
        assert made.head is not None
        made.head.load_state_dict(tensors, strict=False)  # NOTE: a pooler that was not trained is the base model's
    except (PretuneError, RuntimeError) as error:
        raise CheckpointError(f"{folder}: its head does not fit the model: {str(error).splitlines()[0]}") from None
    return made.eval(), load_adapter(made.model, folder)


def _whole(
    folder: Path, dtype: torch.dtype, device: torch.device | str, tied: Literal["tied"] | None = None
) -> LanguageModel | Adapted:
    model = checkpoint.load(folder, dtype=dtype, device=device, head=tied)
    there = checkpoint.head_of(folder)
    if there is None:
        return model
    found, task, stored = there
    try:
        spec = _stated(folder, found, task, stored)
        spec = spec.resolve(model.spec)
    except PretuneError as error:
        raise CheckpointError(f"{folder / checkpoint.CONFIG}: {error}") from None
    head = spec.build(model)
    if head is None:
        raise CheckpointError(f"{folder / checkpoint.CONFIG}: key '{HEAD}' is a head without tensors; remove it")
    names = dict(checkpoint.weights_of(head))
    moves = plan(names, task.rules if task else tuple(Rule(name, OWN + name) for name in names))
    _fill(folder, head, moves, stored, names)
    return Adapted(model, head, spec).eval()


def _stated(folder: Path, found: Mapping[str, Any], task: Headed | None, stored: Mapping[str, Stored]) -> AnyHead:
    """The head that a directory says it has, with as many outputs as its weights have."""
    said = _kept(found[HEAD]) if task is None else None
    if isinstance(said, Several):  # each is checked when its weights are read
        return said
    rows = _rows(folder, task, stored)
    spec = _told(found, task, rows) if task is not None else said
    assert spec is not None
    _fits(spec, rows)
    return spec


def _tensors(head: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.weights_of(head)}


def class_of(model: Adapted) -> checkpoint.Beside | None:
    """How the class of `transformers` that computes the same keeps it; None where there is no such class."""
    if model.head is None:
        return None
    spec, tensors = model.model.spec, _tensors(model.head)
    layout = FAMILIES.get(spec.family).layout if spec.family in FAMILIES else None
    if getattr(model.spec, "mix", None) is not None:
        return None
    if layout is None or spec.parts or checkpoint.describe(spec)[0]["model_type"] != layout.model_type:
        return None
    kind = "classification" if isinstance(model.spec, Regression) else config.kind(model.spec)
    reading = getattr(model.spec, "reading", None)
    narrow = spec.table != spec.width and spec.decoder is not None  # NOTE: such a class reads what is projected down
    fitting = [(name, task) for name, task in layout.headed.items() if (task.kind, task.reading) == (kind, reading)]
    if not fitting or narrow:
        return None
    name, task = fitting[0]
    moved = {move.theirs: tensors[move.ours[0]] for move in plan(tensors, task.rules)}
    prefix = layout.prefix if task.prefix is None else task.prefix
    return checkpoint.Beside({"architectures": [name], **_keys(model.spec)}, moved, prefix)


def _keys(head: TaskHead) -> dict[str, Any]:
    """What the config of a class says of a head."""
    if isinstance(head, Classification | Tagging):
        names = head.labels or _unnamed(head.classes)
    else:
        names = ("LABEL_0", "LABEL_1") if isinstance(head, Span) else ("LABEL_0",)
    keys = {"id2label": {str(i): name for i, name in enumerate(names)}, "label2id": {n: i for i, n in enumerate(names)}}
    kinds = {Classification: "single_label_classification", Regression: "regression"}
    problem = kinds.get(type(head))
    return {
        **keys,
        **({"problem_type": problem} if problem else {}),
        "classifier_dropout": getattr(head, "dropout", 0.0),
    }


def _told(found: Mapping[str, Any], task: Headed, rows: int) -> AnyHead:
    """The head that the config of a class stands for."""
    drop = take(found, "classifier_dropout", check=optional(rate), default=None)
    if drop is None:
        drop = take(found, "hidden_dropout_prob", check=optional(rate), default=None) or 0.0
    names = _names(found, rows)
    labels = () if names == _unnamed(len(names)) else names
    if task.kind == "span":
        return Span()
    if task.kind == "choice":
        return Choice(reading=task.reading, dropout=drop)
    if task.kind == "tagging":
        return Tagging(classes=len(names), labels=labels, dropout=drop)
    problem = found.get("problem_type")
    if problem is not None and problem not in PROBLEMS:
        raise unsupported("problem_type", problem, PROBLEMS)
    if (len(names) == 1 and problem is None) or problem == "regression":
        if len(names) != 1:
            raise unsupported("problem_type", f"{problem} with {len(names)} labels", ["regression with one label"])
        return Regression(reading=task.reading, dropout=drop)
    return Classification(classes=len(names), labels=labels, reading=task.reading, dropout=drop)


def _rows(folder: Path, task: Headed | None, stored: Mapping[str, Stored]) -> int:
    """How many outputs the tensors have: a config that says otherwise is refused before anything is made."""
    names = [OWN + "out.weight"] if task is None else [move.theirs for move in plan(["out.weight"], task.rules)]
    there = stored.get(names[0])
    if there is None or len(there.shape) != 2:
        raise CheckpointError(f"{tensor_files.main_file(folder)}: tensor '{names[0]}' is missing, or not a matrix")
    return there.shape[0]


def _fits(head: TaskHead, rows: int) -> None:
    outputs = head.classes if isinstance(head, Classification | Tagging) else 2 if isinstance(head, Span) else 1
    if outputs != rows:
        raise CheckpointError(f"the head has {outputs} outputs, but its weights have {rows}; they must be as many")


def _names(found: Mapping[str, Any], rows: int) -> tuple[str, ...]:
    """The labels of a config, in order; as many as there are outputs, without names, where it has none."""
    table = found.get("id2label")
    if table is None:
        count = take(found, "num_labels", "_num_labels", check=optional(size), default=None) or rows
        if count != rows:
            raise CheckpointError(f"key 'num_labels' = {count}, but the weights have {rows} outputs")
        return _unnamed(rows)
    wanted = [str(i) for i in range(len(table))] if isinstance(table, dict) else []
    if not wanted or set(table) != set(wanted) or not all(isinstance(name, str) for name in table.values()):
        raise CheckpointError(f"key 'id2label' = {shown(table)}: expected names by number, from \"0\" on")
    return tuple(table[i] for i in wanted)


def _unnamed(count: int) -> tuple[str, ...]:
    """What labels without names are called in a config."""
    return tuple(f"LABEL_{i}" for i in range(count))


def _kept(found: Any) -> AnyHead:
    return config.from_dict(_Kept, {"kind": config.kind(_Kept), "head": found}, where=HEAD).head


def _fill(
    folder: Path, head: nn.Module, moves: list[Move], stored: Mapping[str, Stored], names: Mapping[str, Tensor]
) -> None:
    """Read the weights of a head; all must be there, in their shapes, and no others."""
    for move in moves:
        there, wanted = stored.get(move.theirs), tuple(names[move.ours[0]].shape)
        if there is None:
            raise CheckpointError(f"{tensor_files.main_file(folder)}: tensor '{move.theirs}' is missing")
        if there.shape != wanted or there.dtype not in tensor_files.FLOATS:
            raise CheckpointError(
                f"{there.file}: tensor {shown(there.key)} is {there.dtype} of shape {list(there.shape)}, "
                f"but the config asks for floats of shape {list(wanted)}"
            )
    extra = sorted(set(stored) - {move.theirs for move in moves})
    if extra:
        raise CheckpointError(f"{stored[extra[0]].file}: tensor {shown(extra[0])} has no place in this head")
    values = tensor_files.values(stored[move.theirs] for move in moves)
    with torch.no_grad():
        for move, tensor in zip(moves, values, strict=True):
            names[move.ours[0]].copy_(tensor)
