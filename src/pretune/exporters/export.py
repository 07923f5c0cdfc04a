"""Export of models as Hugging Face directories, ONNX or GGUF files: `pt.export`, `pretune export`."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from pretune.adaptation import io
from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.head_classes import export_head
from pretune.adaptation.heads.sequence import Classification
from pretune.adaptation.io import is_adapter_directory, verify_adapter
from pretune.core import config, log
from pretune.core.api import Result, check_arguments
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError, PretuneError, UsageError, refuse_broken_link
from pretune.core.hub import resolve_path
from pretune.core.run_dir import RunDir, get_path
from pretune.exporters.hf import check_embedding, choose_head, set_task_tokenizer, write_hf
from pretune.exporters.output import ExportCard, ExportFormat, check_suffix, find_base
from pretune.inference.text_model import get_language_model
from pretune.models import tensor_files
from pretune.models.families import FAMILIES
from pretune.models.hf import checkpoint
from pretune.models.hf.checkpoint import SavedHead
from pretune.models.hf.config import IRRELEVANT_FIELDS
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.models.tensor_files import TensorInfo
from pretune.models.verify import verify as verify_model
from pretune.runs.finetune.inference import open_runs
from pretune.runs.finetune.saved_task import SavedTask

ExportDtype = Literal["float32", "float16", "bfloat16", "float64"]


@dataclass(frozen=True, slots=True)
class ExportedModel(Result, os.PathLike[str]):
    """An exported model: its directory, the Hugging Face class that reads it, its parameters and their dtype.

    `omitted_parts` describes the parts that the class does not have. An ONNX export has `files`, and the largest
    `difference` of their outputs from the model's (and that of int8 files), relative to the largest output above 1.
    """

    path: Path
    architecture: str
    parameters: int
    dtype: str
    omitted_parts: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    difference: float | None = None
    quantized_difference: float | None = None

    def __fspath__(self) -> str:
        return str(self.path)

    def to_dict(self) -> dict[str, object]:
        """Return the result as plain data."""
        facts = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {**facts, "path": str(self.path)}


@check_arguments()
def export(
    model: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    out: str | os.PathLike[str],
    to: Literal["hf", "compact", "onnx", "gguf"] = "hf",
    dtype: ExportDtype | None = None,
    quantize: Literal["int8"] | None = None,
    base: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> ExportedModel:
    """Export a model as a Hugging Face directory that transformers reads, as ONNX files, or as a GGUF file.

    Args:
        model: A run, a Hugging Face directory, or hf:OWNER/NAME. An adapter is merged into its base model. Of several
            runs that were fine-tuned from one base model, the mean of the weights (a model soup; Wortsman et al.,
            2022). A fine-tuned run keeps its task, so that `predict` and `evaluate` read the directory.
        out: Output directory; a name that ends in .onnx or .gguf is a file of that format, without tokenizer and card.
        to: Format; "hf" is a Hugging Face directory, "onnx" one with `onnx/model.onnx` instead of weights, which
            onnxruntime, optimum and sentence-transformers run (extra `onnx`). Its outputs are checked against the
            model's. "gguf" is a directory with `model.gguf`, which llama.cpp reads; for decoders in the shape of Llama.
            "compact" is a directory with 8 bits for each weight of a matrix, which only pretune reads.
        dtype: Data type of the weights; None: unchanged, and float32 in ONNX.
        quantize: "int8": with `to="onnx"`, also write files with 8-bit weights; with `to="gguf"`, write Q8_0.
        base: Directory of an adapter's base model, if it was moved.
        overwrite: Write into a non-empty directory.

    Raises:
        UsageError: no Hugging Face class supports the model, it has no form in ONNX or GGUF, its weights
            overflow in `dtype`, or the weights of several runs cannot be averaged.
        CheckpointError: the model is damaged, or the outputs of its ONNX files differ from its own.
    """
    if to not in ("hf", "compact", "onnx", "gguf"):
        raise UsageError(f"unknown export format {format_value(to)} (allowed: hf, compact, onnx, gguf)")
    if to == "compact" and dtype not in (None, "float32"):
        raise UsageError(f"compact directories have 8 bits for each weight, got dtype {format_value(dtype)}; omit it")
    if to == "onnx" and dtype not in (None, "float32"):
        raise UsageError(f"ONNX files are in float32, got dtype {format_value(dtype)}; use quantize='int8', or hf")
    if to in ("hf", "compact") and quantize is not None:
        raise UsageError("int8 weights exist in ONNX and GGUF only; set the format to onnx or gguf, or omit quantize")
    paths = [model] if isinstance(model, str | os.PathLike) else [*model]
    if not paths:
        raise UsageError("no model; pass at least one run or directory")
    directories, target = [resolve_path(Path(path)) for path in paths], Path(out)
    directory = directories[0]
    refuse_broken_link(target)
    check_suffix(target, to)
    for path in directories:
        _check_apart(path, target)
    _check_averageable(directories)
    base_path = None if base is None else Path(base)
    dtype = "float32" if to == "onnx" else dtype
    loaded_model, torch_dtype = _load_model(directory, getattr(torch, dtype) if dtype else None, base_path)
    _average_weights(loaded_model, directories, base_path)
    omitted_parts = _drop_heads(loaded_model)
    saved_task = SavedTask.read(directory) if RunDir(directory).task.is_file() else None
    if len(directories) > 1 and saved_task is not None:
        saved_task = replace(saved_task, threshold=None)
    if isinstance(loaded_model, ModelWithHead) and loaded_model.head is not None:
        set_task_tokenizer(loaded_model, saved_task)
    card = ExportCard(
        name=directory.resolve().name, model=loaded_model, base=find_base(directory), saved_task=saved_task
    )
    export_to = _Export(card, target, omitted_parts)
    if to == "onnx":
        return export_to.write_onnx(quantize, overwrite=overwrite)
    dtype_name = str(torch_dtype).removeprefix("torch.")
    if to == "gguf":
        return export_to.write_gguf(dtype_name, quantize, overwrite=overwrite)
    spec = card.body.spec
    if checkpoint.describe_checkpoint(spec)[0]["model_type"] == checkpoint.NATIVE_TYPE:
        raise UsageError(f"{directory}: no Hugging Face class supports this model: {_explain_unsupported(spec)}")
    for name, tensor in checkpoint.iterate_weights(loaded_model):
        if not torch.isfinite(tensor).all():
            raise UsageError(f"{directory}: '{name}' overflows in {dtype_name}; use --dtype bfloat16 or float32")
    exported_model = export_to.write_hf(dtype_name, overwrite=overwrite, compact=to == "compact")
    if len(directories) > 1:  # the settings, by which the model is evaluated
        RunDir(target).write_settings(RunDir(directory).locate_settings().tree)
    return exported_model


@dataclass(frozen=True, slots=True)
class _Export:
    """A loaded model with the facts of its card, and the directory to which it is written."""

    card: ExportCard
    target: Path
    omitted_parts: tuple[str, ...]

    def write_hf(self, dtype: str, *, overwrite: bool, compact: bool) -> ExportedModel:
        """Write a directory that transformers or sentence-transformers reads, or a compact one."""
        model, body = self.card.model, self.card.body
        check_embedding(body)
        head = choose_head(model, self.card.saved_task) if isinstance(model, ModelWithHead) else None
        class_name, count = self._describe(head)
        has_modules = bool(body.assets.modules if head is None else head.modules)
        form: ExportFormat = "compact" if compact else "sentence-transformers" if has_modules else "hf"
        card = replace(self.card, form=form, class_name=class_name)
        write_hf(card, head, self.target, overwrite=overwrite)
        omitted_parts = self.omitted_parts
        for part in omitted_parts:
            log.warn(f"left out: {part}; no Hugging Face class has it, so keep the run to continue its pre-training")
        layout = FAMILIES.get(body.spec.family).layout
        for part, description in layout.omitted_parts.items() if layout else ():
            if part in body.spec.parts:
                log.warn(f"{class_name} leaves out {description}; it is saved, but only pretune uses it")
                omitted_parts = (*omitted_parts, description)
        return ExportedModel(self.target, class_name, count, "int8" if compact else dtype, omitted_parts)

    def write_onnx(self, quantize: Literal["int8"] | None, *, overwrite: bool) -> ExportedModel:
        """Write ONNX files; a model without a Hugging Face class has a config that only pretune reads."""
        from pretune.exporters.onnx.export import write_onnx

        class_name, count = self._describe(None)
        card = replace(self.card, form="onnx", class_name=class_name)
        files = write_onnx(card.model, self.target, quantize=quantize, card=card, overwrite=overwrite)
        return ExportedModel(self.target, class_name, count, "float32", self.omitted_parts, *files)

    def write_gguf(self, dtype: str, quantize: Literal["int8"] | None, *, overwrite: bool) -> ExportedModel:
        """Write a GGUF file of a language model, also of one that was tuned to answer."""
        from pretune.exporters.gguf import LOADING_CODE, TENSOR_TYPES, write_gguf

        if isinstance(self.card.model, ModelWithHead) and self.card.model.head is not None:
            raise UsageError("GGUF files hold language models, and this one has a task head; export it to hf or onnx")
        kind = "q8_0" if quantize else dtype if dtype in TENSOR_TYPES else "float32"
        class_name, count = self._describe(None)
        card = replace(self.card, form="gguf", class_name=class_name, code=LOADING_CODE)
        file = write_gguf(self.card.body, self.target, kind=kind, card=card, overwrite=overwrite)
        return ExportedModel(self.target, class_name, count, kind, files=(file,))

    def _describe(self, head: SavedHead | None) -> tuple[str, int]:
        """Return the class that reads the model, and the number of its parameters with those of the head."""
        model, spec = self.card.model, self.card.body.spec
        count = spec.params().total
        class_name: str = checkpoint.describe_checkpoint(spec)[0]["architectures"][0]
        if isinstance(model, ModelWithHead) and model.head is not None:
            count += sum(parameter.numel() for parameter in model.head.parameters())
            head = head or export_head(model)
        if head is not None:
            class_name = "SentenceTransformer" if head.modules else head.config["architectures"][0]
        return class_name, count


def _load_model(
    directory: Path, kind: torch.dtype | None, base: Path | None
) -> tuple[LanguageModel | ModelWithHead, torch.dtype]:
    """Load the model, with its task head if there is one, and its dtype; adapters are merged."""
    if not is_adapter_directory(directory):
        verify_model(directory)  # damaged files must not get a new manifest
        stored_dtype = kind or _find_stored_dtype(checkpoint.inspect_checkpoint(directory)[2])
        return io.load(directory, base=base, dtype=stored_dtype), stored_dtype
    verify_adapter(directory, base=base)
    model, method = io.load_with_method(directory, base=base)
    assert method is not None
    if not method.is_mergeable:
        raise UsageError(f"{directory}: this adapter cannot be merged into the base model; share its directory instead")
    method.merge(get_language_model(model))
    stored_dtype = kind or torch.float32
    return model.to(stored_dtype), stored_dtype


def _check_averageable(directories: Sequence[Path]) -> None:
    """Raise `UsageError` unless several runs have one task and one base model."""
    if len(directories) < 2:
        return
    open_runs(directories)  # raises: one task is needed
    bases: dict[str, Path] = {}
    for path in directories:
        base = get_path(RunDir(path).locate_settings().tree, "base.path")
        if base is None:
            raise CheckpointError(f"{RunDir(path).settings}: base.path is missing; fine-tune the run again")
        bases[os.path.realpath(base)] = path
    if len(bases) > 1:
        (first_base, first_run), (second_base, second_run) = [*bases.items()][:2]
        raise UsageError(
            f"{second_run} was fine-tuned from '{second_base}', but {first_run} from '{first_base}'; weights can be "
            "averaged only of runs with the same base model (any runs as an ensemble: `pretune predict RUN RUN`)"
        )


def _average_weights(model: LanguageModel | ModelWithHead, directories: Sequence[Path], base: Path | None) -> None:
    """Set the weights of the first run's model to the mean of those of all runs."""
    if len(directories) < 2:
        return
    total = {name: tensor.double() for name, tensor in model.state_dict().items()}
    for path in directories[1:]:
        weights = _load_model(path, torch.float32, base)[0].state_dict()
        if {name: tensor.shape for name, tensor in weights.items()} != {name: t.shape for name, t in total.items()}:
            raise UsageError(f"{path}: its weights have other names or shapes than those of {directories[0]}")
        for name, tensor in weights.items():
            total[name] += tensor
    model.load_state_dict({name: tensor / len(directories) for name, tensor in total.items()})


def _drop_heads(model: LanguageModel | ModelWithHead) -> tuple[str, ...]:
    """Remove pre-training heads that no Hugging Face class has, in place; return their descriptions.

    The vocabulary head of a classifier was trained by an auxiliary loss, and is not used to predict.
    """
    body = get_language_model(model)
    if isinstance(model, ModelWithHead) and isinstance(model.spec, Classification) and body.head is not None:
        name, spec, body.head = "vocabulary head", replace(body.spec, head=None), None
    elif isinstance(model, LanguageModel) and body.span is not None:
        name, spec, body.span = "span boundary head", replace(body.spec, span=None), None
    else:
        return ()
    count = body.spec.params().total - spec.params().total
    body.spec = spec
    return (f"{name} ({count:,} parameters)",)


def _check_apart(directory: Path, out: Path) -> None:
    source, target = directory.resolve(), out.resolve()
    if target == source or source in target.parents:
        raise UsageError(f"cannot write '{out}': it is inside the model directory '{directory}'; choose another path")


def _find_stored_dtype(entries: dict[str, TensorInfo]) -> torch.dtype:
    """Return the common dtype of all stored weights, or float32 if they differ."""
    names = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    dtypes = set()
    for file in {entry.file for entry in entries.values()}:
        with tensor_files.open_tensors(file) as tensors:
            dtypes |= {tensors.get_slice(entry.key).get_dtype() for entry in entries.values() if entry.file == file}
    return names.get(dtypes.pop(), torch.float32) if len(dtypes) == 1 else torch.float32


def _explain_unsupported(spec: Model) -> str:
    """Return why the family's config cannot represent a spec: the first setting that would be lost."""
    layout = FAMILIES.get(spec.family).layout if spec.family in FAMILIES else None
    if layout is None:
        return f"family {format_value(spec.family)} has no Hugging Face format"
    try:
        roundtrip = layout.read(layout.write(spec), spec.parts, is_tied=spec.head is not None and spec.head.tied)
    except PretuneError as error:
        return str(error)
    except (KeyError, AttributeError, TypeError, StopIteration, AssertionError):
        return f"'{layout.model_type}' has no such architecture"
    silent = {"dropout", *IRRELEVANT_FIELDS}
    lost = [path for path in config.diff(roundtrip, spec) if not {*path.split(".")} & silent]
    return f"'{layout.model_type}' has no {f'setting for {lost[0]}' if lost else 'names for its weights'}"
