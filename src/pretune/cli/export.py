"""`pretune export`: write a model for other libraries."""

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
    """Export format."""

    HF = "hf"


def export(
    directory: Annotated[Path, typer.Argument(metavar="MODEL", help="Run, Hugging Face directory, or hf:OWNER/NAME.")],
    to: Annotated[ExportFormat, typer.Option("--to", help="Format: hf is a Hugging Face directory.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Output directory.")],
    dtype: Annotated[
        Dtype | None, typer.Option("--dtype", help="Data type of the weights (default: unchanged).")
    ] = None,
    base: BaseOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write into a non-empty directory.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Export a model as a Hugging Face directory.

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
        raise UsageError(f"{directory}: no Hugging Face class supports this model: {_explain_unsupported(spec)}")
    dtype_name = str(kind).removeprefix("torch.")
    for name, tensor in checkpoint.iterate_weights(model):
        if not torch.isfinite(tensor).all():
            raise UsageError(f"{directory}: '{name}' overflows in {dtype_name}; use --dtype bfloat16 or float32")
    io.save(model, out, overwrite=overwrite)
    class_name, count = config["architectures"][0], spec.params().total
    if isinstance(model, ModelWithHead) and model.head is not None:
        exported_head, count = (
            io.export_head(model),
            count + sum(parameter.numel() for parameter in model.head.parameters()),
        )
        class_name = class_name if exported_head is None else exported_head.config["architectures"][0]
        if exported_head is None:
            log.warn("no Hugging Face class has this task head; it is saved, but only pretune can load it")
    facts = {"out": str(out), "class": class_name, "parameters": count, "dtype": dtype_name}
    log.print_result(
        json.dumps(facts, allow_nan=False)
        if as_json
        else f"{out}: {facts['class']}, {facts['parameters']:,} parameters in {dtype_name}"
    )
    hint("verify", out, silent=as_json)


def _load_model(
    directory: Path, kind: "torch.dtype | None", base: Path | None
) -> "tuple[LanguageModel | ModelWithHead, torch.dtype]":
    """Load the model, with its task head if there is one, and its dtype; adapters are merged."""
    import torch

    from pretune.adaptation import io
    from pretune.adaptation.adapted import ModelWithHead
    from pretune.adaptation.verify import is_adapter_directory, verify_adapter
    from pretune.models.hf import checkpoint
    from pretune.models.verify import verify

    if not is_adapter_directory(directory):
        verify(directory)  # damaged files must not get a new manifest
        stored_dtype = kind or _find_stored_dtype(checkpoint.inspect_checkpoint(directory)[2])
        return io.load(directory, base=base, dtype=stored_dtype), stored_dtype
    verify_adapter(directory, base=base)
    model, method = io.load_with_method(directory, base=base)
    assert method is not None
    if not method.is_mergeable:
        raise UsageError(f"{directory}: this adapter cannot be merged into the base model; share its directory instead")
    method.merge(model.model if isinstance(model, ModelWithHead) else model)
    stored_dtype = kind or torch.float32
    return model.to(stored_dtype), stored_dtype


def _check_apart(directory: Path, out: Path) -> None:
    source, target = directory.resolve(), out.resolve()
    if target == source or source in target.parents:
        raise UsageError(f"cannot write '{out}': it is inside the model directory '{directory}'; choose another path")


def _find_stored_dtype(entries: "dict[str, TensorInfo]") -> "torch.dtype":
    """Return the common dtype of all stored weights, or float32 if they differ."""
    import torch

    from pretune.models import tensor_files

    names = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    dtypes = set()
    for file in {entry.file for entry in entries.values()}:
        with tensor_files.open_tensors(file) as tensors:
            dtypes |= {tensors.get_slice(entry.key).get_dtype() for entry in entries.values() if entry.file == file}
    return names.get(dtypes.pop(), torch.float32) if len(dtypes) == 1 else torch.float32


def _explain_unsupported(spec: "Model") -> str:
    """Return why the family's config cannot represent a spec: the first setting that would be lost."""
    from pretune.core import config
    from pretune.core.config.read import format_value
    from pretune.core.errors import PretuneError
    from pretune.models.families import FAMILIES

    layout = FAMILIES.get(spec.family).layout if spec.family in FAMILIES else None
    if layout is None:
        return f"family {format_value(spec.family)} has no Hugging Face format"
    try:
        roundtrip = layout.read(layout.write(spec), spec.parts, is_tied=spec.head is not None and spec.head.tied)
    except PretuneError as error:
        return str(error)
    except (KeyError, AttributeError, TypeError, StopIteration, AssertionError):
        return f"'{layout.model_type}' has no such architecture"
    silent = ("dropout", "init", "family", "special")
    lost = [path for path in config.diff(roundtrip, spec) if not {*path.split(".")} & {*silent}]
    return (
        f"'{layout.model_type}' has no setting for {lost[0]}"
        if lost
        else f"'{layout.model_type}' has no names for its weights"
    )
