"""`pretune index`: embed texts into a search index."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pretune.cli._inputs import read_texts, resolve_device
from pretune.cli._options import AsJson, DeviceName, Layer, MaxLength, ModelName, TextPrompt, complete_poolings, option
from pretune.cli._output import check_new_folder, hint, show_progress
from pretune.cli.embed import report_texts
from pretune.core import log
from pretune.core.format import format_count


class SearchMethod(StrEnum):
    """Search algorithm: exact, or approximate by faiss (the extra `index`)."""

    EXACT = "exact"
    HNSW = "hnsw"
    IVF = "ivf"


def index(
    model: ModelName,
    source: Annotated[str, option("--input FILE", "Texts, one per line, or .jsonl (id, text); - is standard input.")],
    out: Annotated[Path, option("--out INDEX", "Index directory.")],
    add: Annotated[bool, option("--add", "Add to an existing index.")] = False,
    method: Annotated[
        SearchMethod, option("--method", "Exact search, or approximate for millions of texts.")
    ] = SearchMethod.EXACT,
    field: Annotated[str, option("--field NAME", "Text column or JSON field.")] = "text",
    pooling: Annotated[str | None, option("--pooling NAME", "Pooling; see `pretune embed`.", complete_poolings)] = None,
    layer: Layer = None,
    normalise: Annotated[
        bool | None, option("--normalise/--raw", "Cosine similarity (default) or inner product.")
    ] = None,
    length: MaxLength = None,
    prompt: TextPrompt = None,
    query_prompt: Annotated[str | None, option("--query-prompt TEXT", "Prompt prepended to queries.")] = None,
    device: DeviceName = None,
    as_json: AsJson = False,
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
        options |= {"method": method, "add": add, "device": str(resolve_device(device))}
        ids = texts.ids if has_ids else None
        search_index = build(model, texts.texts, out=out, ids=ids, on_progress=report_texts(report), **options)
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
