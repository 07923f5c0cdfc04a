"""`pretune embed`: embed texts."""

import time
from collections.abc import Callable
from pathlib import Path

from pretune.cli._inputs import load_model, read_texts
from pretune.cli._options import EMBEDDING_MODEL, LAYER, LENGTH, POOLINGS, PROMPT, OutputFormat, list_words
from pretune.cli._output import check_new_file, find_free_path, hint, print_facts, show_progress
from pretune.core import log
from pretune.core.api import Options, option, option_set
from pretune.core.errors import UsageError
from pretune.core.log import format_count
from pretune.runs.options import BASE, DEVICE, FIELD

FORMATS = (".npy", ".parquet", ".jsonl")


@option_set
class EmbedOptions(Options):
    """Options of the embedding of texts."""

    model: str = EMBEDDING_MODEL.field()
    source: str = option(
        "--input FILE", "Texts, one per line, or .jsonl, .csv, .tsv; - is standard input.", is_required=True
    )
    out: Path = option("--out FILE", "Output file: .npy, .parquet or .jsonl.", is_required=True)
    field: str = FIELD.field(default="text")
    pooling: str | None = option(
        "--pooling NAME",
        "Pooling: mean, cls, max, last, mean_sqrt, weighted, static; a+b concatenates.",
        names=POOLINGS,
    )
    layer: int | None = LAYER.field()
    normalise: bool | None = option("--normalise/--raw", "Normalize to unit length.")
    length: int | None = LENGTH.field()
    prompt: str | None = PROMPT.field()
    batch_tokens: int | None = option("--batch-tokens N", "Batch size in tokens.")
    base: Path | None = BASE.field()
    device: str | None = DEVICE.field()


def embed(options: EmbedOptions, output: OutputFormat) -> None:
    """Embed texts as vectors.

    Writes one vector per text, in order. Defaults come from the model's sentence-transformers files, else the mean of
    the last layer.

    Example: pretune embed runs/books --input sentences.txt --out vectors.npy
    """
    model, source, out, as_json = options.model, options.source, options.out, output.as_json
    if out.suffix not in FORMATS:
        raise UsageError(f"--out '{out}': the file name must end in {', '.join(FORMATS)}")
    check_new_file(out)
    texts = read_texts(source, options.field)
    from pretune.inference.embed import build_embedder
    from pretune.inference.word_vectors import is_word_vectors, write_vectors

    words = is_word_vectors(model)
    embedder = build_embedder(
        model if words else load_model(model, base=options.base, device=options.device),
        pooling=options.pooling,
        layer=options.layer,
        normalise=options.normalise,
        length=options.length,
        prompt=options.prompt,
        batch_tokens=options.batch_tokens,
    )
    start = time.monotonic()
    with show_progress("embedding") as report:
        embeddings = embedder(texts.texts, report_texts(report))
    ids = texts.ids or [str(number) for number in range(1, len(texts.texts) + 1)]
    write_vectors(out, embeddings.vectors, texts.texts, ids)
    facts = {
        "out": str(out),
        "texts": len(texts.texts),
        "width": embedder.width,
        "seconds": round(time.monotonic() - start, 3),
        "cut": embeddings.truncated_texts,
        "lost_tokens": embeddings.truncated_tokens,
        "empty": embeddings.empty_texts,
    }
    if embeddings.truncated_texts:
        log.warn(
            f"{format_count(embeddings.truncated_texts, 'texts')} truncated to {embedder.length} tokens "
            f"({format_count(embeddings.truncated_tokens, 'tokens')} lost)"
        )
    if embeddings.empty_texts:
        log.warn(f"{format_count(embeddings.empty_texts, 'empty texts')}; each gets the vector of an empty input")
    print_facts(output, facts, f"{out}: {format_count(len(texts.texts), 'vectors')} of width {embedder.width}")
    if words:
        hint("evaluate", model, "--task", "stsb", silent=as_json)
    elif source == "-":
        hint("index", "--help", silent=as_json)
    else:
        inputs = ("--input", source, *list_words(options, "field"))
        hint("index", model, *inputs, "--out", find_free_path("library"), silent=as_json)


def report_texts(reporter: Callable[[float, str], None]) -> Callable[[int, int], None]:
    """Return a progress callback that counts texts."""
    start = time.monotonic()

    def report(count: int, total: int) -> None:
        rate = count / max(time.monotonic() - start, 1e-9)
        reporter(count / max(total, 1), f"{format_count(count, 'texts')}, {rate:,.0f} per second")

    return report
