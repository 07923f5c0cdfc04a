"""`pretune export`: a model for others to use."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pretune.cli._hints import hint
from pretune.cli._models import BaseOption, Dtype
from pretune.core import log
from pretune.core.errors import UsageError

if TYPE_CHECKING:
    import torch

    from pretune.adaptation.adapted import ModelWithHead
    from pretune.models.model import LanguageModel
    from pretune.models.spec import Model
    from pretune.models.tensor_files import TensorInfo


class ExportFormat(StrEnum):
    """What a model can be exported to."""

    HF = "hf"


def export(
    directory: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A run, a Hugging Face directory, or hf:OWNER/NAME.")
    ],
    to: Annotated[ExportFormat, typer.Option("--to", help="The layout: hf is a Hugging Face directory.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write it.")],
    dtype: Annotated[Dtype | None, typer.Option("--dtype", help="How to store the weights; as they are.")] = None,
    base: BaseOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write into a directory that is not empty.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a model as a Hugging Face directory, all or nothing.

    Example: pretune export runs/books --to hf --out share/books --dtype bfloat16
    """
    import torch

    from pretune.adaptation import io
    from pretune.adaptation.adapted import ModelWithHead
    from pretune.core.hub import resolve_path
    from pretune.models.hf import checkpoint

    directory = resolve_path(directory)
    _check_apart(directory, out)
    model, kind = _load_model(directory, getattr(torch, dtype) if dtype else None, base)
    spec = model.model.spec if isinstance(model, ModelWithHead) else model.spec
    config = checkpoint.describe_checkpoint(spec)[0]
    if config["model_type"] == checkpoint.NATIVE_TYPE:
        raise UsageError(f"{directory}: no Hugging Face class can express this model: {_explain_unsupported(spec)}")
    said = str(kind).removeprefix("torch.")
    for name, tensor in checkpoint.iterate_weights(model):
        if not torch.isfinite(tensor).all():
            raise UsageError(f"{directory}: '{name}' has values too large for {said}; use --dtype bfloat16 or float32")
    io.save(model, out, overwrite=overwrite)
    named, count = config["architectures"][0], spec.params().total
    if isinstance(model, ModelWithHead) and model.head is not None:
        beside, count = io.export_head(model), count + sum(one.numel() for one in model.head.parameters())
        named = named if beside is None else beside.config["architectures"][0]
        if beside is None:
            log.warn("no Hugging Face class has such a head: it is there, but only pretune reads it")
    facts = {"out": str(out), "class": named, "parameters": count, "dtype": said}
    log.print_result(
        json.dumps(facts, allow_nan=False)
        if as_json
        else f"{out}: {facts['class']}, {facts['parameters']:,} parameters in {said}"
    )
    hint("verify", out, silent=as_json)


def _load_model(
    directory: Path, kind: "torch.dtype | None", base: Path | None
) -> "tuple[LanguageModel | ModelWithHead, torch.dtype]":
    """The model with the head of a task where it has one, and the type of its weights; an adapter is merged."""
    import torch

    from pretune.adaptation import io
    from pretune.adaptation.adapted import ModelWithHead
    from pretune.adaptation.verify import is_adapter_directory, verify_adapter
    from pretune.models.hf import checkpoint
    from pretune.models.verify import verify

    if not is_adapter_directory(directory):
        verify(directory)  # what is damaged must not leave with a fresh manifest
        chosen = kind or _find_stored_dtype(checkpoint.inspect_checkpoint(directory)[2])
        return io.load(directory, base=base, dtype=chosen), chosen
    verify_adapter(directory, base=base)
    model, method = io.load_with_method(directory, base=base)
    assert method is not None
    if not method.is_mergeable:
        raise UsageError(f"{directory}: what was learned cannot be merged into the model; share the directory itself")
    method.merge(model.model if isinstance(model, ModelWithHead) else model)
    chosen = kind or torch.float32
    return model.to(chosen), chosen


def _check_apart(directory: Path, out: Path) -> None:
    source, target = directory.resolve(), out.resolve()
    if target == source or source in target.parents:
        raise UsageError(f"cannot write '{out}': it lies in the model's own directory '{directory}'; choose another")


def _find_stored_dtype(stored: "dict[str, TensorInfo]") -> "torch.dtype":
    """The one type all weights have in their files, or float32 where there are several."""
    import torch

    from pretune.models import tensor_files

    names = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    found = set()
    for file in {entry.file for entry in stored.values()}:
        with tensor_files.open_tensors(file) as tensors:
            found |= {tensors.get_slice(entry.key).get_dtype() for entry in stored.values() if entry.file == file}
    return names.get(found.pop(), torch.float32) if len(found) == 1 else torch.float32


def _explain_unsupported(spec: "Model") -> str:
    """Why a spec cannot be said in the words of its family's config: the first place that would be lost."""
    from pretune.core import config
    from pretune.core.config.read import format_value
    from pretune.core.errors import PretuneError
    from pretune.models.families import FAMILIES

    layout = FAMILIES.get(spec.family).layout if spec.family in FAMILIES else None
    if layout is None:
        return f"{format_value(spec.family)} has none"
    try:
        again = layout.read(layout.write(spec), spec.parts, tied=spec.head is not None and spec.head.tied)
    except PretuneError as error:
        return str(error)
    except (KeyError, AttributeError, TypeError, StopIteration, AssertionError):
        return f"its shape is not one that '{layout.model_type}' has"
    silent = ("dropout", "init", "family", "special")
    lost = [path for path in config.diff(again, spec) if not {*path.split(".")} & {*silent}]
    return (
        f"'{layout.model_type}' cannot say {lost[0]}" if lost else f"its weights have no name in '{layout.model_type}'"
    )
