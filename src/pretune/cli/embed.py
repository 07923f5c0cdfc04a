"""`pretune embed`: vectors of texts."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from pretune.cli._hints import find_free_path, hint
from pretune.cli._inputs import read_texts
from pretune.cli._models import BaseOption, load_model
from pretune.cli._names import DEVICES, POOLINGS, complete_from
from pretune.cli._output import check_new_file
from pretune.cli._progress import show_progress
from pretune.core import log
from pretune.core.counted import format_count
from pretune.core.errors import UsageError

FORMATS = (".npy", ".parquet", ".jsonl")


def embed(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A run, a Hugging Face directory, hf:OWNER/NAME, or word vectors.")
    ],
    source: Annotated[
        str, typer.Option("--input", metavar="FILE", help="Texts, one in a line, or .jsonl; - is standard input.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Vectors: .npy, .parquet or .jsonl.")],
    field: Annotated[
        str, typer.Option("--field", metavar="NAME", help="Where JSONL or a table has its text.")
    ] = "text",
    pooling: Annotated[
        str | None,
        typer.Option(
            "--pooling",
            metavar="NAME",
            autocompletion=complete_from(*POOLINGS),
            help="mean, cls, max, last, mean_sqrt, weighted, static; or a+b.",
        ),
    ] = None,
    layer: Annotated[int | None, typer.Option("--layer", metavar="N", help="0 to depth; -1 is the last.")] = None,
    normalise: Annotated[bool | None, typer.Option("--normalise/--raw", help="Vectors of length one.")] = None,
    length: Annotated[int | None, typer.Option("--length", metavar="N", help="Read so many tokens at most.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", metavar="TEXT", help="Put it before every text.")] = None,
    batch_tokens: Annotated[
        int | None, typer.Option("--batch-tokens", metavar="N", help="Tokens that are read together.")
    ] = None,
    base: BaseOption = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME", autocompletion=complete_from(*DEVICES), help="cpu, cuda; found by default."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Turn texts into vectors, one for each, in their order.

    What is not said is as the model's directory says (sentence-transformers' files), or the mean of the last layer.

    Example: pretune embed runs/books --input sentences.txt --out vectors.npy
    """
    if out.suffix not in FORMATS:
        raise UsageError(f"--out '{out}': a name that ends in {', '.join(FORMATS)} is expected")
    check_new_file(out)
    texts = read_texts(source, field)
    from pretune.inference.embed import build_embedder
    from pretune.inference.vector_files import write_vectors
    from pretune.inference.word_vectors import is_word_vectors

    how: dict[str, Any] = {
        "pooling": pooling,
        "layer": layer,
        "normalise": normalise,
        "length": length,
        "prompt": prompt,
    }
    words = is_word_vectors(model)
    ask = build_embedder(
        model if words else load_model(model, base=base, device=device), batch_tokens=batch_tokens, **how
    )
    begun = time.monotonic()
    with show_progress("embedding") as tell:
        found = ask(texts.texts, report_texts(tell))
    write_vectors(out, found.vectors, texts.texts, texts.ids)
    facts: dict[str, Any] = {
        "out": str(out),
        "texts": len(texts.texts),
        "width": ask.width,
        "seconds": round(time.monotonic() - begun, 3),
        "cut": found.truncated_texts,
        "lost_tokens": found.truncated_tokens,
        "empty": found.empty_texts,
    }
    warn_about_texts(facts, ask.length)
    if as_json:
        log.print_json(facts)
    else:
        log.print_result(f"{out}: {format_count(len(texts.texts), 'vectors')} of {ask.width} numbers")
    if words:
        hint("evaluate", model, "--task", "stsb", silent=as_json)
    elif source == "-":
        hint("index", "--help", silent=as_json)
    else:
        column = () if field == "text" else ("--field", field)
        hint("index", model, "--input", source, *column, "--out", find_free_path("library"), silent=as_json)


def report_texts(reporter: Callable[[float, str], None]) -> Callable[[int, int], None]:
    """How far it has come, in texts."""
    begun = time.monotonic()

    def say(done: int, total: int) -> None:
        rate = done / max(time.monotonic() - begun, 1e-9)
        reporter(done / max(total, 1), f"{format_count(done, 'texts')}, {rate:,.0f} a second")

    return say


def warn_about_texts(facts: dict[str, Any], length: int | None) -> None:
    """Say what became of texts that are unlike the others."""
    if facts["cut"]:
        log.warn(
            f"{format_count(facts['cut'], 'texts')} cut to {length} tokens ({format_count(facts['lost_tokens'], 'tokens')} lost)"
        )
    if facts["empty"]:
        log.warn(f"{format_count(facts['empty'], 'empty texts')}; each has the vector of a text without words")
