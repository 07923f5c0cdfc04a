"""`pretune export`: write a model for other libraries; `pretune verify`: check one; `pretune report`: HTML of runs."""

import json
from pathlib import Path
from typing import Literal

from pretune.cli._options import DtypeName, OutputFormat
from pretune.cli._output import find_free_path, hint, print_facts, quote
from pretune.core import log
from pretune.core.api import Options, option, option_set
from pretune.core.run_dir import RunDir
from pretune.runs.options import BASE, MODEL


@option_set
class ExportOptions(Options):
    """Options of an export."""

    directories: list[Path] = option(
        "MODEL",
        "Run, Hugging Face directory, hf:OWNER/NAME, or `pretune list models`. Of several runs, the mean weights.",
        is_required=True,
    )
    to: Literal["hf", "compact", "onnx", "gguf"] = option(
        "--to",
        "Format: a Hugging Face directory, one with 8-bit weights, ONNX files, or a GGUF file.",
        is_required=True,
    )
    out: Path = option("--out PATH", "Output directory, or a file NAME.onnx or NAME.gguf.", is_required=True)
    dtype: DtypeName | None = option("--dtype", "Data type of the weights (default: unchanged).")
    quantize: Literal["int8"] | None = option(
        "--quantize", "8-bit weights: more files with --to onnx, Q8_0 with --to gguf."
    )
    base: Path | None = BASE.field()
    overwrite: bool = option("--overwrite", "Write into a non-empty directory, or over a file.", default=False)


def export(options: ExportOptions, output: OutputFormat) -> None:
    """Export a model as a Hugging Face directory, to ONNX or GGUF.

    Several fine-tuned runs of one task and base model are averaged into one model ("model soup"). ONNX files are
    checked against the model; they need the extra: pip install 'pretune[onnx]'. GGUF is
    the format of llama.cpp, for decoders in the shape of Llama.

    Example: pretune export runs/books --to hf --out share/books --dtype bfloat16
    """
    from pretune.exporters.export import export as export_model

    out, to = options.out, options.to
    result = export_model(
        options.directories,
        out=out,
        to=to,
        dtype=options.dtype,
        quantize=options.quantize,
        base=options.base,
        overwrite=options.overwrite,
    )
    facts = {"out": str(out), "class": result.architecture, "parameters": result.parameters, "dtype": result.dtype}
    details = ("omitted_parts", "files", "difference", "quantized_difference")
    facts |= {name: value for name, value in result.to_dict().items() if name in details and value not in (None, [])}
    print_facts(output, facts, f"{out}: {result.architecture}, {result.parameters:,} parameters in {result.dtype}")
    if to in ("hf", "compact"):
        hint("verify", out, silent=output.as_json)
    elif to == "onnx" and not output.as_json:
        log.print_result(f"{', '.join(result.files)}: largest difference from the model {result.difference:.1e}")
        if result.quantized_difference is not None:
            log.print_result(f"int8: largest difference from the model {result.quantized_difference:.1e}")


@option_set
class VerifyOptions(Options):
    """Options of a verification."""

    model: str = MODEL.field()
    base: Path | None = BASE.field()


def verify(options: VerifyOptions, output: OutputFormat) -> None:
    """Verify the integrity of a model or run.

    Checks hashes, config, tensors, values, tokenizer, and every checkpoint.

    Example: pretune verify runs/books
    """
    from pretune.core.hub import resolve_path
    from pretune.runs.verify import verify as verify_model

    model = options.model
    lines = verify_model(model, base=options.base)
    directory = resolve_path(model)
    facts = {"directory": str(directory), "ok": True, "checked": lines}
    print_facts(output, facts, "\n".join(f"ok  {line}" for line in lines))
    is_finished = RunDir(directory).settings.exists() and any(directory.glob("*config.json"))
    command = ("export", model, "--to", "hf", "--out", find_free_path(f"{directory.resolve().name}-hf"))
    hint(*(command if is_finished else ("show", model)), silent=output.as_json)


@option_set
class ReportOptions(Options):
    """Options of a report."""

    runs: list[str] = option("RUN", "Run directories, or a directory with results.json.", is_required=True)
    out: Path = option("--out FILE", "Output file.", default=Path("report.html"))
    title: str | None = option("--title TEXT", "Title of the page.")


def report(options: ReportOptions, output: OutputFormat) -> None:
    """Write an HTML report of runs.

    The page shows scores, learning curves, errors, cost, data and the commands to reproduce them. It is one file
    without scripts or network access, with a light and a dark theme.

    Example: pretune report runs/books runs/sst2 --out report.html
    """
    from pretune.reports.page import report as write

    page = write(options.runs, options.out, title=options.title)
    size = page.stat().st_size
    log.print_result(json.dumps({"report": str(page), "bytes": size}, allow_nan=False) if output.as_json else f"{page}")
    if not output.as_json:
        log.info(f"open {quote(page)} in a browser (one file, {size:,} bytes)")
    run = next((directory for directory in options.runs if RunDir(Path(directory)).model_config.is_file()), None)
    hint(*(("verify", run) if run is not None else ("list", "tasks")), silent=output.as_json)
