"""`pretune index`: embed texts into a search index."""

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
from pretune.core.format import format_count


class SearchMethod(StrEnum):
    """Search algorithm: exact, or approximate by faiss (the extra `index`)."""

    EXACT = "exact"
    HNSW = "hnsw"
    IVF = "ivf"


def index(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Run, Hugging Face directory, or hf:OWNER/NAME.")],
    source: Annotated[
        str,
        typer.Option("--input", metavar="FILE", help="Texts, one per line, or .jsonl (id, text); - is standard input."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="INDEX", help="Index directory.")],
    add: Annotated[bool, typer.Option("--add", help="Add to an existing index.")] = False,
    method: Annotated[
        SearchMethod, typer.Option("--method", help="Exact search, or approximate for millions of texts.")
    ] = SearchMethod.EXACT,
    field: Annotated[str, typer.Option("--field", metavar="NAME", help="Text column or JSON field.")] = "text",
    pooling: Annotated[
        str | None,
        typer.Option(
            "--pooling", metavar="NAME", autocompletion=complete_from(*POOLINGS), help="Pooling; see `pretune embed`."
        ),
    ] = None,
    layer: Annotated[
        int | None, typer.Option("--layer", metavar="N", help="Layer, 0 (embeddings) to depth; -1 is the last.")
    ] = None,
    normalise: Annotated[
        bool | None, typer.Option("--normalise/--raw", help="Cosine similarity (default) or inner product.")
    ] = None,
    length: Annotated[
        int | None, typer.Option("--length", metavar="N", help="Maximum length in tokens; longer texts are truncated.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="Prompt prepended to every text.")
    ] = None,
    query_prompt: Annotated[
        str | None, typer.Option("--query-prompt", metavar="TEXT", help="Prompt prepended to queries.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="NAME",
            autocompletion=complete_from(*DEVICES),
            help="cpu or cuda (default: a GPU if available).",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Build a search index of texts, or add texts to one.

    Example: pretune index runs/books --input documents.jsonl --out library
    """
    check_new_folder(out)
    texts = read_texts(source, field)
    from pretune.inference.index import build

    has_ids = any(text != str(i) for i, text in enumerate(texts.ids, 1))
    options: dict[str, Any] = {"pooling": pooling, "layer": layer, "normalise": normalise, "length": length}
    options |= {"prompt": prompt, "query_prompt": query_prompt}
    with show_progress("indexing") as report:
        search_index = build(
            model,
            texts.texts,
            out=out,
            ids=texts.ids if has_ids else None,
            method=method,
            add=add,
            on_progress=report_texts(report),
            device=str(resolve_device(device)),
            **options,
        )
    if search_index.metadata["cut"]:
        log.warn(f"{format_count(search_index.metadata['cut'], 'texts')} truncated to the model's maximum length")
    if as_json:
        log.print_json({"out": str(out), "texts": len(search_index), **search_index.metadata})
    else:
        log.print_result(
            f"{out}: {format_count(len(search_index), 'texts')}, vectors of "
            f"width {search_index.metadata['width']}, {search_index.metadata['method']} search"
        )
    hint("search", out, _sample_query(texts.texts), silent=as_json)


def _sample_query(texts: list[str]) -> str:
    """Return the first words of a text, a query that has a hit."""
    first = next((text.split() for text in texts if text.strip()), ["a", "question"])
    return " ".join(first[:4])
