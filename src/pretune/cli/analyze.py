"""`pretune analyze`: a look inside models. Each analysis is a function here; `pretune.cli.app` lists them."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pretune.cli._analysis import check_out, describe_thresholds, finish, format_heads, format_view
from pretune.cli._inputs import load_model, read_texts
from pretune.cli._options import AsJson, Base, DeviceName, InputField, ModelName, complete_names, option
from pretune.cli._output import show_progress
from pretune.cli.embed import report_texts
from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.log import format_count

AnalysisOut = Annotated[
    Path | None,
    option("--out PATH", "Picture (.svg, .png), data (.json), or a directory for both; RUN/analysis is in the report."),
]


def analyze() -> None:
    """Look inside a model: attention, layers, embeddings, weights.

    Every analysis prints a table, JSON with --json, and writes a picture with --out. What is in RUN/analysis is shown
    by `pretune report RUN`.

    Examples:
      pretune analyze attention runs/books
      pretune analyze attention runs/books --text "The cat sat on the mat." --layer 2 --head 1 --out cat.svg
    """


def attention(
    model: ModelName,
    source: Annotated[
        str | None, option("--input FILE", "Texts (default: validation text of the run, or a built-in corpus).")
    ] = None,
    field: InputField = "text",
    texts: Annotated[int, option("--texts N", "Maximum number of texts.")] = 200,
    length: Annotated[int, option("--length N", "Maximum tokens of a text.")] = 128,
    threshold: Annotated[
        float | None, option("--threshold X", "Minimum attention to a pattern beyond uniform attention (default: 0.3).")
    ] = None,
    text: Annotated[str | None, option("--text TEXT", "Show who attends to whom in this text.")] = None,
    part: Annotated[
        str | None,
        option(
            "--part NAME",
            "With --text: encoder, decoder or cross.",
            complete_names("encoder", "decoder", "cross"),
        ),
    ] = None,
    layer: Annotated[int | None, option("--layer N", "With --text: layer from 1; -1 is the last (default).")] = None,
    head: Annotated[int | None, option("--head N", "With --text: head from 1 (default: the mean of all).")] = None,
    mean: Annotated[
        bool, option("--mean", "With --text: mean of all heads and, without --layer, of all layers.")
    ] = False,
    out: AnalysisOut = None,
    base: Base = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Classify attention heads; with --text, show who attends to whom.

    Classes: broad, previous token, next token, itself, first token or separator, punctuation, same word; else mixed.
    An encoder-decoder has encoder, decoder and cross-attention heads; its decoder reads the same text. Recurrent models
    have no attention.

    Examples:
      pretune analyze attention runs/books
      pretune analyze attention runs/books --text "The cat sat on the mat." --layer 2 --head 1 --out cat.svg
    """
    check_out(out)
    view_options = {"--part": part, "--layer": layer, "--head": head, "--mean": mean or None}
    view_only = [name for name, value in view_options.items() if value is not None]
    if text is None and view_only:
        raise UsageError(f"{view_only[0]} needs a text; add --text TEXT, or remove it")
    if text is not None and (source is not None or threshold is not None):
        raise UsageError(f"--text and {'--input' if source is not None else '--threshold'} exclude each other")
    if head is not None and mean:
        raise UsageError("--head and --mean exclude each other; choose one")
    if part not in (None, "encoder", "decoder", "cross"):
        raise UsageError(f"--part '{part}' must be encoder, decoder or cross")
    if text is not None:
        _view_text(model, text, part, layer, head, mean, out, base, device, as_json)
        return
    inputs = None if source is None else read_texts(source, field)
    from pretune.analysis.attention import analyze_attention
    from pretune.analysis.held_out import open_model, read_held_out

    language_model = open_model(load_model(model, base=base, device=device))
    held_out = read_held_out(model, language_model, texts) if inputs is None else None
    options: dict[str, Any] = {} if threshold is None else {"threshold": threshold}
    with show_progress("reading") as report:
        result = analyze_attention(
            language_model, inputs.texts if inputs is not None else held_out.texts if held_out is not None else None,
            max_texts=texts, length=length, on_progress=report_texts(report), **options,
        )  # fmt: skip
    result = replace(result, source=inputs.name if inputs is not None else held_out.source if held_out else "")
    if result.truncated_texts:
        log.info(f"{format_count(result.truncated_texts, 'texts')} truncated to {length} tokens")
    facts = result.to_dict()
    input_words = () if source is None else ("--input", source)
    finish(result, "attention", out, as_json, format_heads(facts), describe_thresholds(facts),
           ("attention", model, *input_words), model)  # fmt: skip


def _view_text(model: str, text: str, part: Any, layer: int | None, head: int | None, mean: bool, out: Path | None,
               base: Path | None, device: str | None, as_json: bool) -> None:  # fmt: skip
    """Show who attends to whom in one text."""
    from pretune.analysis.attention import view_attention

    place: Any = layer if layer is not None else "mean" if mean else -1
    result = view_attention(load_model(model, base=base, device=device), text, part=part, layer=place, head=head)
    command = ["attention", model, "--text", text]
    command += [word for name, value in (("--part", part), ("--layer", layer), ("--head", head)) if value is not None
                for word in (name, str(value))]  # fmt: skip
    note = "Rows sum to 1 over all tokens."
    finish(result, "attention-text", out, as_json, format_view(result.to_dict()), note, command, model)
