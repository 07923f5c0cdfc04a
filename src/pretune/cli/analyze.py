"""`pretune analyze`: a look inside models. Each analysis is a function here; `pretune.cli.app` lists them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pretune.cli._analysis import check_out, finish
from pretune.cli._inputs import InputTexts, check_model, load_model, read_texts
from pretune.cli._options import (
    AsJson,
    Base,
    DeviceName,
    EmbeddingModel,
    InputField,
    Layer,
    ModelName,
    TaskData,
    argument,
    complete_names,
    complete_poolings,
    option,
)
from pretune.cli._output import show_progress
from pretune.cli.embed import report_texts
from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.log import format_count

if TYPE_CHECKING:
    from torch import nn

    from pretune.analysis.attention import AttentionHeads, AttentionView
    from pretune.analysis.pictures import Analysis

PARTS = ("encoder", "decoder", "cross")
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
      pretune analyze layers runs/books --task length --examples 200
      pretune analyze embeddings runs/books --input reviews.csv --label label --out map.svg
      pretune analyze forgetting runs/sst2
      pretune analyze diff runs/books runs/sst2
    """


def attention(
    model: ModelName,
    source: Annotated[
        str | None, option("--input FILE", "Texts (default: validation text of the run, or a built-in corpus).")
    ] = None,
    field: InputField = "text",
    texts: Annotated[int | None, option("--texts N", "Maximum number of texts (default: 200).")] = None,
    length: Annotated[int | None, option("--length N", "Maximum tokens of a text (default: 128).")] = None,
    threshold: Annotated[
        float | None, option("--threshold X", "Minimum attention to a pattern beyond uniform attention (default: 0.3).")
    ] = None,
    text: Annotated[str | None, option("--text TEXT", "Show who attends to whom in this text.")] = None,
    part: Annotated[
        str | None, option("--part NAME", "With --text: encoder, decoder or cross.", complete_names(*PARTS))
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
    """Classify attention heads, or show who attends to whom.

    Classes: broad, previous token, next token, itself, first token or separator, punctuation, same word; else mixed.
    An encoder-decoder has encoder, decoder and cross-attention heads; its decoder reads the same text. Recurrent models
    have no attention.

    Examples:
      pretune analyze attention runs/books
      pretune analyze attention runs/books --text "The cat sat on the mat." --layer 2 --head 1 --out cat.svg
    """
    check_out(out)
    view_options = {"--part": part, "--layer": layer, "--head": head, "--mean": mean or None}
    class_options = {"--input": source, "--texts": texts, "--length": length, "--threshold": threshold}
    _check_exclusive(text is not None, view_options, class_options)
    if part not in (None, *PARTS):
        raise UsageError(f"--part '{part}' must be encoder, decoder or cross")
    if texts is not None and texts < 1:
        raise UsageError(f"--texts must be >= 1, got {texts}")
    inputs = None if source is None else read_texts(source, field)
    loaded_model = load_model(model, base=base, device=device)
    if text is None:
        result: Analysis = _classify_heads(model, loaded_model, inputs, texts or 200, length, threshold)
        command = [] if source is None else ["--input", source]
    else:
        result = _view_text(loaded_model, text, part, layer if layer is not None else "mean" if mean else -1, head)
        words = {"--text": text, "--part": part, "--layer": layer, "--head": head}
        command = [word for name, value in words.items() if value is not None for word in (name, str(value))]
    finish(result, out, as_json, ["attention", model, *command], model)


def _check_exclusive(has_text: bool, view_options: Mapping[str, object], class_options: Mapping[str, object]) -> None:
    """Raise for options that exclude each other; None is an option that is not given."""
    view_only = [name for name, value in view_options.items() if value is not None]
    if not has_text and view_only:
        raise UsageError(f"{view_only[0]} needs a text; add --text TEXT, or remove it")
    class_only = [name for name, value in class_options.items() if value is not None]
    if has_text and class_only:
        raise UsageError(f"--text and {class_only[0]} exclude each other")
    if {"--head", "--mean"} <= {*view_only}:
        raise UsageError("--head and --mean exclude each other; choose one")


def _classify_heads(
    model: str,
    loaded_model: "nn.Module",
    inputs: InputTexts | None,
    texts: int,
    length: int | None,
    threshold: float | None,
) -> "AttentionHeads":
    """Classify the heads of a model over texts; None: its validation text, or a built-in corpus."""
    from pretune.analysis.attention import MAX_LENGTH, analyze_attention
    from pretune.analysis.attention_patterns import PATTERN_THRESHOLD
    from pretune.analysis.held_out import open_model, read_held_out

    language_model, max_length = open_model(loaded_model), MAX_LENGTH if length is None else length
    held_out = read_held_out(model, language_model, texts) if inputs is None else None
    with show_progress("reading") as report:
        result = analyze_attention(
            language_model,
            inputs.texts if inputs is not None else held_out.texts if held_out is not None else None,
            max_texts=texts,
            length=max_length,
            threshold=PATTERN_THRESHOLD if threshold is None else threshold,
            on_progress=report_texts(report),
        )
    if result.truncated_texts:
        log.info(f"{format_count(result.truncated_texts, 'texts')} truncated to {max_length} tokens")
    return replace(result, source=inputs.name if inputs is not None else held_out.source if held_out else "")


def _view_text(
    loaded_model: "nn.Module", text: str, part: Any, layer: "int | Literal['mean']", head: int | None
) -> "AttentionView":
    """Return who attends to whom in one text."""
    from pretune.analysis.attention import view_attention

    result = view_attention(loaded_model, text, part=part, layer=layer, head=head)
    if result.truncated:
        log.warn(f"the text is truncated to its first {len(result.tokens)} tokens")
    return result


def layers(
    model: ModelName,
    task: Annotated[
        str | None,
        option(
            "--task NAMES",
            "Of pos, entity, length, sense (default: all whose data is there).",
            complete_names("pos", "entity", "length", "sense", separator=","),
        ),
    ] = None,
    examples: Annotated[int, option("--examples N", "Training items; half as many are for testing.")] = 2000,
    seeds: Annotated[int, option("--seeds N", "Number of samples and control tasks.")] = 1,
    data: TaskData = None,
    source: Annotated[str | None, option("--input FILE", "Sentences of the task length.")] = None,
    field: InputField = "text",
    out: AnalysisOut = None,
    base: Base = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Probe every layer, with control tasks and a scalar mix.

    A linear probe predicts part of speech (ud_ewt), entities (conll2003), sentence length, or the sense of a word
    (wic) from the states of a layer. Selectivity is its accuracy minus that on a control task with random labels by
    word (Hewitt and Liang, 2019). The scalar mix shows which layers a task uses (Peters et al., 2018).

    Example: pretune analyze layers runs/books --task length --examples 200
    """
    check_out(out)
    if source is not None and task is not None and "length" not in task.split(","):
        raise UsageError("--input is for the task length; add it to --task, or remove --input")
    texts = None if source is None else read_texts(source, field)
    from pretune.analysis.layer_probes import analyze_layers

    names = None if task is None else task.split(",")
    # NOTE: of a run the directory is passed, which names its validation text.
    loaded_model = load_model(model, base=base, device=device) if base is not None else model
    if base is None:
        check_model(model)
    with show_progress("probing") as report:
        result = analyze_layers(
            loaded_model,
            names,
            examples=examples,
            seeds=seeds,
            data=data,
            device=device,
            on_progress=report,
            texts=None if texts is None else texts.texts,
        )
    command = ["layers", model, *(() if task is None else ("--task", task)), "--examples", examples]
    command += [] if source is None else ["--input", source]
    finish(result, out, as_json, command, model)


def embeddings(
    model: EmbeddingModel,
    source: Annotated[str, option("--input FILE", "Texts, one per line, or .jsonl, .csv, .tsv.")],
    field: InputField = "text",
    label: Annotated[str | None, option("--label COL", "Column of the labels.")] = None,
    method: Annotated[str, option("--method NAME", "Projection: pca or tsne.", complete_names("pca", "tsne"))] = "pca",
    texts: Annotated[int, option("--texts N", "Maximum number of texts: a random sample.")] = 2000,
    pooling: Annotated[
        str | None, option("--pooling NAME", "Pooling, as for embed (default: the model's).", complete_poolings)
    ] = None,
    layer: Layer = None,
    seed: Annotated[int, option("--seed N", "Random seed.")] = 0,
    out: AnalysisOut = None,
    base: Base = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Draw a map of text embeddings, by PCA or t-SNE.

    Points have a colour and a marker by label. With labels, it is measured how often the nearest neighbor of a text
    has its label, in the space of the embeddings.

    Example: pretune analyze embeddings runs/books --input reviews.csv --label label --out map.svg
    """
    check_out(out)
    inputs = read_texts(source, field, label)
    from pretune.analysis.embedding_map import analyze_embeddings
    from pretune.inference.word_vectors import is_word_vectors

    is_static = is_word_vectors(model)
    with show_progress("embedding") as report:
        result = analyze_embeddings(
            model if is_static else load_model(model, base=base, device=device),
            inputs.texts,
            labels=inputs.labels,
            method=cast(Any, method),
            pooling=pooling,
            layer=layer,
            seed=seed,
            max_texts=texts,
            on_progress=report_texts(report),
        )
    command = ["embeddings", model, "--input", source, *(() if field == "text" else ("--field", field))]
    command += [*(() if label is None else ("--label", label)), "--method", method]
    note = f"{format_count(result.total_texts, 'texts')} of {inputs.name}, vectors of width {result.width}."
    finish(result, out, as_json, command, None if is_static else model, note)


def forgetting(
    run: Annotated[str, argument("RUN", "Fine-tuned run, or one pre-trained further (pretrain --from).")],
    data: Annotated[
        Path | None, option("--data DATA", "Prepared text (default: validation text of the model it started from).")
    ] = None,
    base: Annotated[Path | None, option("--base DIR", "Model that the run started from, if it was moved.")] = None,
    out: AnalysisOut = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Measure forgetting: pre-training loss before and after a run.

    Both losses are of the same masked text. The change of the weights is relative to their norm before, by layer.

    Example: pretune analyze forgetting runs/sst2
    """
    check_out(out)
    check_model(run)
    from pretune.runs.analyze import analyze_forgetting

    result = analyze_forgetting(run, data=data, base=base, device=device)
    command = ["forgetting", run, *(() if data is None else ("--data", data))]
    finish(result, out, as_json, command, run)


def diff(
    runs: Annotated[list[str], argument("RUN", "Two models; or one run, compared with the model it started from.")],
    base: Base = None,
    out: AnalysisOut = None,
    as_json: AsJson = False,
) -> None:
    """Show how far each layer moved between two models.

    The distance is |after - before| / |before| over all weights of a layer or a part of it; the cosine is that of the
    weights before and after. LoRA, IA3 and BitFit are merged first.

    Example: pretune analyze diff runs/books runs/sst2
    """
    check_out(out)
    if len(runs) > 2:
        raise UsageError(f"diff compares two models, got {len(runs)}")
    for run in runs:
        check_model(run)
    from pretune.analysis.weight_change import analyze_diff

    finish(analyze_diff(*runs, base=base), out, as_json, ("diff", *runs), runs[-1])
