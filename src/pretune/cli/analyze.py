"""`pretune analyze`: a look inside models. Each analysis is a function here; `pretune.cli.app` lists them.

Tables go to the terminal, JSON and pictures to files.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretune.cli._inputs import check_model, load_model, read_texts
from pretune.cli._options import EMBEDDING_MODEL, LAYER, POOLINGS, OutputFormat, list_flags, list_words
from pretune.cli._output import check_new_file, check_new_folder, find_free_path, hint, print_page, show_progress
from pretune.cli.embed import report_texts
from pretune.core import log
from pretune.core.api import Option, Options, option, option_set
from pretune.core.errors import UsageError
from pretune.core.hub import is_hub
from pretune.core.io import atomic_write, translate_write_errors
from pretune.core.log import format_count
from pretune.core.run_dir import RunDir
from pretune.runs.options import BASE, DEVICE, FIELD, MODEL, TASK_DATA

if TYPE_CHECKING:
    from pretune.core.api import Result


SUFFIXES = (".svg", ".png", ".json")


def check_out(out: Path) -> Path:
    """Return the output file or directory of an analysis; raise where it cannot be written."""
    if out.suffix in SUFFIXES:
        check_new_file(out)
    elif out.suffix and not out.is_dir():
        raise UsageError(f"--out '{out}': use a directory, or a file that ends in {', '.join(SUFFIXES)}")
    else:
        check_new_folder(out)
    return out


def finish(
    result: "Result",
    out: Path | None,
    as_json: bool,
    command: Sequence[object],
    run: str | None = None,
    note: str | None = None,
) -> None:
    """Print a result, write its files, and suggest the next command: the analysis with its picture, then the report.

    `command` is the analysis as it was typed, without `--out`; `run` is the directory whose report shows it.
    """
    from pretune.reports.analysis import describe_analysis

    facts = result.to_dict()
    name = facts["kind"]
    paths = write_files(result, facts, name, out)
    if as_json:
        log.print_json({**facts, "files": [str(path) for path in paths]} if paths else facts)
        return
    analysis = describe_analysis(facts)
    files = " ".join(str(path) for path in paths) or "no files (see --out)"
    print_page(analysis.title, note or analysis.note, analysis.sections, files)
    folder = _find_analyses(run)
    if folder is not None and ((folder / f"{name}.json").is_file() or (out or Path()).resolve() == folder.resolve()):
        hint("report", str(run), "--out", find_free_path("report.html"))
    elif out is None and "-" not in command:
        is_new = folder is not None and not folder.exists()
        place = folder if is_new else find_free_path(f"{name}.svg" if folder is None else folder / f"{name}.json")
        hint("analyze", *command, "--out", place)
    else:
        hint("analyze", "--help")


def _find_analyses(run: str | None) -> Path | None:
    """Return the directory of analyses of a run, which its report shows; None for other models."""
    is_run = run is not None and not is_hub(run) and RunDir(Path(run)).settings.is_file()
    return RunDir(Path(str(run))).analysis if is_run else None


def write_files(result: Any, facts: Mapping[str, object], name: str, out: Path | None) -> list[Path]:
    """Write the picture or the data to a file, or both to a directory; return the paths."""
    if out is None:
        return []
    if out.suffix in SUFFIXES:
        return [_write(result, facts, out)]
    with translate_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    return [_write(result, facts, out / f"{name}{suffix}") for suffix in (".json", ".svg")]


def _write(result: Any, facts: Mapping[str, object], path: Path) -> Path:
    if path.suffix == ".json":
        atomic_write(path, (json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    else:
        result.draw(path)
    return path


OUT = Option(
    "--out PATH",
    "Picture (.svg, .png), data (.json), or a directory for both; RUN/analysis is in the report.",
    parse=check_out,
)


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


@option_set
class AttentionOptions(Options):
    """Options of the analysis of attention."""

    model: str = MODEL.field()
    source: str | None = option("--input FILE", "Texts (default: validation text of the run, or a built-in corpus).")
    field: str = FIELD.field(default="text")
    texts: int | None = option("--texts N", "Maximum number of texts (default: 200).")
    length: int | None = option("--length N", "Maximum tokens of a text (default: 128).")
    threshold: float | None = option(
        "--threshold X", "Minimum attention to a pattern beyond uniform attention (default: 0.3)."
    )
    text: str | None = option("--text TEXT", "Show who attends to whom in this text.")
    part: Literal["encoder", "decoder", "cross"] | None = option(
        "--part NAME", "With --text: encoder, decoder or cross.", kind=str, names=("encoder", "decoder", "cross")
    )
    layer: int | None = option("--layer N", "With --text: layer from 1; -1 is the last (default).")
    head: int | None = option("--head N", "With --text: head from 1 (default: the mean of all).")
    mean: bool = option("--mean", "With --text: mean of all heads and, without --layer, of all layers.", default=False)
    out: Path | None = OUT.field()
    base: Path | None = BASE.field()
    device: str | None = DEVICE.field()

    def __post_init__(self) -> None:
        if self.text is None:
            for flag in list_flags(self, "part", "layer", "head", "mean"):
                raise UsageError(f"{flag} needs a text; add --text TEXT, or remove it")
        else:
            for flag in list_flags(self, "source", "texts", "length", "threshold"):
                raise UsageError(f"--text and {flag} exclude each other")
        if self.head is not None and self.mean:
            raise UsageError("--head and --mean exclude each other; choose one")
        if self.part not in (None, "encoder", "decoder", "cross"):
            raise UsageError(f"--part '{self.part}' must be encoder, decoder or cross")
        if self.texts is not None and self.texts < 1:
            raise UsageError(f"--texts must be >= 1, got {self.texts}")


def attention(options: AttentionOptions, output: OutputFormat) -> None:
    """Classify attention heads, or show who attends to whom.

    Classes: broad, previous token, next token, itself, first token or separator, punctuation, same word; else mixed.
    An encoder-decoder has encoder, decoder and cross-attention heads; its decoder reads the same text. Recurrent models
    have no attention.

    Examples:
      pretune analyze attention runs/books
      pretune analyze attention runs/books --text "The cat sat on the mat." --layer 2 --head 1 --out cat.svg
    """
    if options.text is not None:
        _view_text(options, options.text, output)
        return
    model, texts, length = options.model, options.texts or 200, 128 if options.length is None else options.length
    inputs = None if options.source is None else read_texts(options.source, options.field)
    from pretune.analysis.attention import analyze_attention
    from pretune.analysis.attention_patterns import PATTERN_THRESHOLD
    from pretune.analysis.held_out import open_model, read_held_out

    language_model = open_model(load_model(model, base=options.base, device=options.device))
    samples, source = read_held_out(model, language_model, texts) if inputs is None else (inputs.texts, inputs.name)
    with show_progress("reading") as report:
        result = analyze_attention(
            language_model,
            samples,
            max_texts=texts,
            length=length,
            threshold=PATTERN_THRESHOLD if options.threshold is None else options.threshold,
            on_progress=report_texts(report),
        )
    result = replace(result, source=source)
    if result.truncated_texts:
        log.info(f"{format_count(result.truncated_texts, 'texts')} truncated to {length} tokens")
    finish(result, options.out, output.as_json, ["attention", model, *list_words(options, "source")], model)


def _view_text(options: AttentionOptions, text: str, output: OutputFormat) -> None:
    """Show who attends to whom in one text."""
    from pretune.analysis.attention import view_attention

    model, part, layer, head = options.model, options.part, options.layer, options.head
    place: Any = layer if layer is not None else "mean" if options.mean else -1
    result = view_attention(
        load_model(model, base=options.base, device=options.device), text, part=part, layer=place, head=head
    )
    command = ["attention", model, *list_words(options, "text", "part", "layer", "head")]
    if result.truncated:
        log.warn(f"the text is truncated to its first {len(result.tokens)} tokens")
    finish(result, options.out, output.as_json, command, model)


@option_set
class LayersOptions(Options):
    """Options of the probes of layers."""

    model: str = MODEL.field()
    task: str | None = option(
        "--task NAMES",
        "Of pos, entity, length, sense (default: all whose data is there).",
        names=("pos", "entity", "length", "sense"),
        separator=",",
    )
    examples: int = option("--examples N", "Training items; half as many are for testing.", default=2000)
    seeds: int = option("--seeds N", "Number of samples and control tasks.", default=1)
    data: Path | None = TASK_DATA.field()
    source: str | None = option("--input FILE", "Sentences of the task length.")
    field: str = FIELD.field(default="text")
    out: Path | None = OUT.field()
    base: Path | None = BASE.field()
    device: str | None = DEVICE.field()


def layers(options: LayersOptions, output: OutputFormat) -> None:
    """Probe every layer, with control tasks and a scalar mix.

    A linear probe predicts part of speech (ud_ewt), entities (conll2003), sentence length, or the sense of a word
    (wic) from the states of a layer. Selectivity is its accuracy minus that on a control task with random labels by
    word (Hewitt and Liang, 2019). The scalar mix shows which layers a task uses (Peters et al., 2018).

    Example: pretune analyze layers runs/books --task length --examples 200
    """
    model, task, source, base = options.model, options.task, options.source, options.base
    if source is not None and task is not None and "length" not in task.split(","):
        raise UsageError("--input is for the task length; add it to --task, or remove --input")
    texts = None if source is None else read_texts(source, options.field)
    from pretune.analysis.layer_probes import analyze_layers

    names = None if task is None else task.split(",")
    # NOTE: of a run the directory is passed, which names its validation text.
    loaded_model = load_model(model, base=base, device=options.device) if base is not None else model
    if base is None:
        check_model(model)
    with show_progress("probing") as report:
        result = analyze_layers(
            loaded_model,
            names,
            examples=options.examples,
            seeds=options.seeds,
            data=options.data,
            device=options.device,
            on_progress=report,
            texts=None if texts is None else texts.texts,
        )
    command = ["layers", model, *list_words(options, "task"), "--examples", options.examples]
    command += list_words(options, "source")
    finish(result, options.out, output.as_json, command, model)


@option_set
class EmbeddingMapOptions(Options):
    """Options of a map of embeddings."""

    model: str = EMBEDDING_MODEL.field()
    source: str = option("--input FILE", "Texts, one per line, or .jsonl, .csv, .tsv.", is_required=True)
    field: str = FIELD.field(default="text")
    label: str | None = option("--label COL", "Column of the labels.")
    method: str = option("--method NAME", "Projection: pca or tsne.", default="pca", names=("pca", "tsne"))
    texts: int = option("--texts N", "Maximum number of texts: a random sample.", default=2000)
    pooling: str | None = option("--pooling NAME", "Pooling, as for embed (default: the model's).", names=POOLINGS)
    layer: int | None = LAYER.field()
    seed: int = option("--seed N", "Random seed.", default=0)
    out: Path | None = OUT.field()
    base: Path | None = BASE.field()
    device: str | None = DEVICE.field()


def embeddings(options: EmbeddingMapOptions, output: OutputFormat) -> None:
    """Draw a map of text embeddings, by PCA or t-SNE.

    Points have a colour and a marker by label. With labels, it is measured how often the nearest neighbor of a text
    has its label, in the space of the embeddings.

    Example: pretune analyze embeddings runs/books --input reviews.csv --label label --out map.svg
    """
    model, source = options.model, options.source
    inputs = read_texts(source, options.field, options.label)
    from pretune.analysis.embedding_map import analyze_embeddings
    from pretune.inference.word_vectors import is_word_vectors

    is_static = is_word_vectors(model)
    with show_progress("embedding") as report:
        result = analyze_embeddings(
            model if is_static else load_model(model, base=options.base, device=options.device),
            inputs.texts,
            labels=inputs.labels,
            method=options.method,  # type: ignore[arg-type]
            max_texts=options.texts,
            pooling=options.pooling,
            layer=options.layer,
            seed=options.seed,
            on_progress=report_texts(report),
        )
    command = ["embeddings", model, *list_words(options, "source", "field", "label"), "--method", options.method]
    note = f"{format_count(result.total_texts, 'texts')} of {inputs.name}, vectors of width {result.width}."
    finish(result, options.out, output.as_json, command, None if is_static else model, note)


@option_set
class ForgettingOptions(Options):
    """Options of the measurement of forgetting."""

    run: str = option("RUN", "Fine-tuned run, or one pre-trained further (pretrain --from).", is_required=True)
    data: Path | None = option("--data DATA", "Prepared text (default: validation text of the model it started from).")
    base: Path | None = option("--base DIR", "Model that the run started from, if it was moved.")
    out: Path | None = OUT.field()
    device: str | None = DEVICE.field()


def forgetting(options: ForgettingOptions, output: OutputFormat) -> None:
    """Measure forgetting: pre-training loss before and after a run.

    Both losses are of the same masked text. The change of the weights is relative to their norm before, by layer.

    Example: pretune analyze forgetting runs/sst2
    """
    run = options.run
    check_model(run)
    from pretune.runs.finetune.forgetting import analyze_forgetting

    result = analyze_forgetting(run, data=options.data, base=options.base, device=options.device)
    finish(result, options.out, output.as_json, ["forgetting", run, *list_words(options, "data")], run)


@option_set
class DiffOptions(Options):
    """Options of the comparison of two models."""

    runs: list[str] = option(
        "RUN", "Two models; or one run, compared with the model it started from.", kind=list[str], is_required=True
    )
    base: Path | None = BASE.field()
    out: Path | None = OUT.field()


def diff(options: DiffOptions, output: OutputFormat) -> None:
    """Show how far each layer moved between two models.

    The distance is |after - before| / |before| over all weights of a layer or a part of it; the cosine is that of the
    weights before and after. LoRA, IA3 and BitFit are merged first.

    Example: pretune analyze diff runs/books runs/sst2
    """
    runs = options.runs
    if len(runs) > 2:
        raise UsageError(f"diff compares two models, got {len(runs)}")
    for run in runs:
        check_model(run)
    from pretune.analysis.weight_change import analyze_diff

    finish(analyze_diff(*runs, base=options.base), options.out, output.as_json, ("diff", *runs), runs[-1])
