"""`pretune index`: texts and their vectors, to be searched."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from pretune.cli._hints import hint
from pretune.cli._inputs import read_texts
from pretune.cli._models import resolve_device
from pretune.cli._names import DEVICES, POOLINGS, complete_from
from pretune.cli._output import check_new_folder
from pretune.cli._progress import show_progress
from pretune.cli.embed import report_texts
from pretune.core import log
from pretune.core.counted import format_count


class SearchMethod(StrEnum):
    """How it is searched: exactly, or with faiss (the extra `index`)."""

    EXACT = "exact"
    HNSW = "hnsw"
    IVF = "ivf"


def index(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run, a Hugging Face directory, or hf:OWNER/NAME.")],
    source: Annotated[
        str, typer.Option("--input", metavar="FILE", help="Texts, one in a line, or .jsonl (id, text); - is a pipe.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="INDEX", help="The directory of the index.")],
    add: Annotated[bool, typer.Option("--add", help="Add to an index that is there.")] = False,
    method: Annotated[
        SearchMethod, typer.Option("--method", help="Exact, or approximate for millions.")
    ] = SearchMethod.EXACT,
    field: Annotated[
        str, typer.Option("--field", metavar="NAME", help="Where JSONL or a table has its text.")
    ] = "text",
    pooling: Annotated[
        str | None,
        typer.Option(
            "--pooling", metavar="NAME", autocompletion=complete_from(*POOLINGS), help="As `pretune embed` has it."
        ),
    ] = None,
    layer: Annotated[int | None, typer.Option("--layer", metavar="N", help="0 to depth; -1 is the last.")] = None,
    normalise: Annotated[
        bool | None, typer.Option("--normalise/--raw", help="By cosine, as by default, or by inner product.")
    ] = None,
    length: Annotated[int | None, typer.Option("--length", metavar="N", help="Read so many tokens at most.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", metavar="TEXT", help="Put it before every text.")] = None,
    query_prompt: Annotated[
        str | None, typer.Option("--query-prompt", metavar="TEXT", help="Put it before queries instead.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME", autocompletion=complete_from(*DEVICES), help="cpu, cuda; found by default."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make an index of texts to search in, or add texts to one.

    Example: pretune index runs/books --input documents.jsonl --out library
    """
    check_new_folder(out)
    texts = read_texts(source, field)
    from pretune.inference.index import build

    named = any(text != str(i) for i, text in enumerate(texts.ids, 1))
    how: dict[str, Any] = {"pooling": pooling, "layer": layer, "normalise": normalise, "length": length}
    how |= {"prompt": prompt, "query_prompt": query_prompt}
    with show_progress("indexing") as tell:
        made = build(
            model,
            texts.texts,
            out=out,
            ids=texts.ids if named else None,
            method=method,
            add=add,
            on_progress=report_texts(tell),
            device=str(resolve_device(device)),
            **how,
        )
    if made.metadata["cut"]:
        log.warn(
            f"{format_count(made.metadata['cut'], 'texts')} longer than the model reads; only the beginning counts"
        )
    if as_json:
        log.print_json({"out": str(out), "texts": len(made), **made.metadata})
    else:
        log.print_result(
            f"{out}: {format_count(len(made), 'texts')}, vectors of "
            f"{made.metadata['width']} numbers, {made.metadata['method']} search"
        )
    hint("search", out, _sample_query(texts.texts), silent=as_json)


def _sample_query(texts: list[str]) -> str:
    """A few words of the first text that has some: a query that finds something."""
    first = next((text.split() for text in texts if text.strip()), ["a", "question"])
    return " ".join(first[:4])
