"""`pretune verify`: check the integrity of a model or run; `pretune export`: write a model for other libraries."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pretune.cli._options import AsJson, Base, Dtype, argument, option
from pretune.cli._output import find_free_path, hint
from pretune.core import log


class ExportFormat(StrEnum):
    """Export format."""

    HF = "hf"
    ONNX = "onnx"
    GGUF = "gguf"


class OnnxQuantization(StrEnum):
    """Weights of ONNX files."""

    INT8 = "int8"


def export(
    directories: Annotated[
        list[Path],
        argument(
            "MODEL",
            "Run, Hugging Face directory, hf:OWNER/NAME, or `pretune list models`. Of several runs, the mean weights.",
        ),
    ],
    to: Annotated[ExportFormat, option("--to", "Format: a Hugging Face directory, ONNX files, or a GGUF file.")],
    out: Annotated[Path, option("--out PATH", "Output directory, or a file NAME.onnx or NAME.gguf.")],
    dtype: Annotated[Dtype | None, option("--dtype", "Data type of the weights (default: unchanged).")] = None,
    quantize: Annotated[
        OnnxQuantization | None, option("--quantize", "8-bit weights: more files with --to onnx, Q8_0 with --to gguf.")
    ] = None,
    base: Base = None,
    overwrite: Annotated[bool, option("--overwrite", "Write into a non-empty directory, or over a file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Export a model as a Hugging Face directory, to ONNX or GGUF.

    Several fine-tuned runs of one task and base model are averaged into one model ("model soup"). ONNX files are
    checked against the model; they need the extra: pip install 'pretune[onnx]'. GGUF is
    the format of llama.cpp, for decoders in the shape of Llama.

    Example: pretune export runs/books --to hf --out share/books --dtype bfloat16
    """
    from pretune.exporters.export import export as export_model

    result = export_model(
        directories if len(directories) > 1 else directories[0],
        out=out,
        to=to.value,
        dtype=None if dtype is None else dtype.value,
        quantize=None if quantize is None else "int8",
        base=base,
        overwrite=overwrite,
    )
    facts = {"out": str(out), "class": result.architecture, "parameters": result.parameters, "dtype": result.dtype}
    if result.omitted_parts:
        facts["omitted_parts"] = list(result.omitted_parts)
    if to is ExportFormat.ONNX:
        facts |= {"files": list(result.files), "difference": result.difference}
        if result.quantized_difference is not None:
            facts["quantized_difference"] = result.quantized_difference
    elif to is ExportFormat.GGUF:
        facts["files"] = list(result.files)
    if as_json:
        log.print_json(facts)
    else:
        log.print_result(f"{out}: {result.architecture}, {result.parameters:,} parameters in {result.dtype}")
    if to is ExportFormat.HF:
        hint("verify", out, silent=as_json)
    elif to is ExportFormat.ONNX and not as_json:
        log.print_result(f"{', '.join(result.files)}: largest difference from the model {result.difference:.1e}")
        if result.quantized_difference is not None:
            log.print_result(f"int8: largest difference from the model {result.quantized_difference:.1e}")


def verify(
    directory: Annotated[
        Path, argument("MODEL", "Run, Hugging Face directory, hf:OWNER/NAME, or one of `pretune list models`.")
    ],
    base: Base = None,
    as_json: AsJson = False,
) -> None:
    """Verify the integrity of a model or run.

    Checks hashes, config, tensors, values, tokenizer, and every checkpoint.

    Example: pretune verify runs/books
    """
    from pretune.core.hub import resolve_path
    from pretune.core.run_dir import RunDir
    from pretune.runs.verify import verify as verify_model

    lines = verify_model(directory, base=base)
    argument, directory = directory, resolve_path(directory)
    if as_json:
        log.print_json({"directory": str(directory), "ok": True, "checked": lines})
        return
    for line in lines:
        log.print_result(f"ok  {line}")
    if RunDir(directory).settings.exists() and any(directory.glob("*config.json")):  # a finished run
        hint("export", argument, "--to", "hf", "--out", find_free_path(f"{directory.resolve().name}-hf"))
    else:
        hint("show", argument)
