"""`pretune index`: embed texts into a search index; `pretune search`: search it, and answer questions from the hits."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pretune.cli._inputs import load_model, read_texts, resolve_device
from pretune.cli._options import (
    AsCsv,
    AsJson,
    DeviceName,
    Layer,
    MaxLength,
    ModelName,
    TextPrompt,
    argument,
    check_format,
    complete_poolings,
    option,
)
from pretune.cli._output import check_new_folder, hint, hint_other, print_csv, quote, show_progress
from pretune.cli.embed import report_texts
from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.hub import resolve_path
from pretune.core.log import format_count

if TYPE_CHECKING:
    from pretune.inference.index import Hit, Index
    from pretune.runs.extract import ExtractedAnswer


MAX_CHARACTERS = 300
"""Number of characters shown of a hit."""


def search(
    index: Annotated[Path, argument("INDEX", "Index of `pretune index`.")],
    query: Annotated[str | None, argument("QUERY", "Query.")] = None,
    k: Annotated[int, option("-k --hits N", "Number of hits.")] = 10,
    words: Annotated[bool, option("--bm25", "Rank by BM25 instead of vectors.")] = False,
    model: Annotated[str | None, option("--model DIR", "Model of the index, if it was moved.")] = None,
    queries: Annotated[str | None, option("--queries FILE", "Queries: .jsonl (id, text), or one per line.")] = None,
    qrels: Annotated[str | None, option("--qrels FILE", "Relevance judgments; prints scores instead of hits.")] = None,
    answer: Annotated[bool, option("--answer", "Answer the query from the hits; needs --reader.")] = False,
    reader: Annotated[
        str | None, option("--reader DIR", "Model for --answer: a generative one, or a run of squad1 or squad2.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, option("--max-new-tokens N", "Maximum length of a generated answer (default: 64).")
    ] = None,
    device: DeviceName = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Search an index, or answer questions from its texts.

    With --qrels it prints nDCG, MRR and recall of the index and of BM25.

    Example: pretune search library "who built the bridge?" -k 3
    """
    check_format(as_json, as_csv)
    if (query is None) == (queries is None):
        raise UsageError("pass a query or --queries FILE, not both")
    if answer != (reader is not None) or (qrels is not None and (queries is None or answer)):
        raise UsageError("--answer needs --reader, and --qrels needs --queries")
    if max_new_tokens is not None and not answer:
        raise UsageError("--max-new-tokens needs --answer")
    if query is not None and not query.strip():
        raise UsageError("the query is empty")
    from pretune.inference.index import Index, check_unique_ids

    search_index = Index.open(index)
    has_vectors = not words or qrels is not None
    target = str(resolve_device(device)) if has_vectors or device is not None else None
    ready = search_index.load_embedder(model, device=target) if has_vectors else None
    query_texts = read_texts(queries) if queries is not None else None
    texts = [query or ""] if query_texts is None else query_texts.texts
    ids = None if query_texts is None else query_texts.ids
    check_unique_ids(ids or ())
    if qrels is not None:
        numbers = [str(number) for number in range(1, len(texts) + 1)]
        _print_scores(search_index, ready, texts, ids or numbers, qrels, k, as_json, as_csv)
        return
    query_columns = [{"query": text} for text in texts]
    if ids is not None:
        query_columns = [{"query_id": name, "query": text} for name, text in zip(ids, texts, strict=True)]
    hits = search_index.search(texts, k, model=ready, words=words)
    if answer:
        from pretune.inference.generate import DEFAULT_NEW_TOKENS
        from pretune.inference.rag import answer_questions
        from pretune.runs.extract import extract_answers, load_extractive_run

        assert reader is not None
        run = load_extractive_run(resolve_path(reader), device=str(resolve_device(device)))
        if run is not None:
            _print_extracted(query_columns, extract_answers(run, texts, hits), as_json, as_csv)
            return
        answers = answer_questions(
            load_model(reader, device=device, needs_head=True),
            texts,
            hits,
            max_new_tokens=DEFAULT_NEW_TOKENS if max_new_tokens is None else max_new_tokens,
        )
        _print_answers(query_columns, answers, hits, as_json, as_csv)
        return
    _print_hits(query_columns, hits, as_json, as_csv)
    quiet = as_json or as_csv
    words_option = ("--hits", 2 * k) if words else ("--bm25", "--hits", k)
    hint("search", index, *([query] if query is not None else ["--queries", queries]), *words_option, silent=quiet)
    hint_other(f"search {quote(index)} QUESTION --answer --reader MODEL", silent=quiet)


QueryColumns = Mapping[str, str]
"""Query, with its id if it has one, as columns of a result."""


def _print_hits(queries: Sequence[QueryColumns], hits: "list[list[Hit]]", as_json: bool, as_csv: bool) -> None:
    results = [*zip(queries, hits, strict=True)]
    if as_csv:
        rows = (
            (*query.values(), rank, hit.score, hit.id, hit.text)
            for query, row in results
            for rank, hit in enumerate(row, 1)
        )
        print_csv((*queries[0], "rank", "score", "id", "text"), rows)
        return
    if as_json:
        log.print_json([{**query, "hits": [hit._asdict() for hit in row]} for query, row in results])
        return
    for query, row in results:
        if len(queries) > 1:
            log.print_result(f"# {query['query']}")
        for rank, hit in enumerate(row, 1):
            log.print_result(f"{rank:>3}  {hit.score:.4f}  {hit.id}  {_shorten(hit.text)}")
        if not row:
            log.warn("no hits: no text has a word of the query")


def _print_answers(
    queries: Sequence[QueryColumns], answers: list[Any], hits: "list[list[Hit]]", as_json: bool, as_csv: bool
) -> None:
    """Print generated answers with the ids of the hits that were read."""
    sources = [[hit.id for hit in row[: reply.hits_read]] for reply, row in zip(answers, hits, strict=True)]
    results = [*zip(queries, answers, sources, strict=True)]
    if as_csv:
        rows = ((*query.values(), reply.text, " ".join(ids)) for query, reply, ids in results)
        print_csv((*queries[0], "answer", "read"), rows)
    elif as_json:
        records = [
            {**query, "answer": reply.text, "read": ids, "prompt": reply.prompt} for query, reply, ids in results
        ]
        log.print_json(records)
    else:
        for _, reply, ids in results:
            log.print_result(reply.text)
            log.info(f"sources: {', '.join(ids) or 'none'}")


def _print_extracted(
    queries: Sequence[QueryColumns], answers: "list[ExtractedAnswer]", as_json: bool, as_csv: bool
) -> None:
    """Print extracted answers with the ids and scores of their passages."""
    if as_json or as_csv:
        rows = [
            {
                **query,
                "answer": answer.text,
                "score": answer.score,
                "id": answer.hit and answer.hit.id,
                "passage": answer.hit and answer.hit.text,
                "span": answer.span,
            }
            for query, answer in zip(queries, answers, strict=True)
        ]
        names = (*queries[0], "answer", "score", "id", "passage")
        log.print_json(rows) if as_json else print_csv(names, ([row[name] for name in names] for row in rows))
        return
    for answer in answers:
        log.print_result(answer.text)
        if answer.hit is None:
            log.info("no answer in the hits")
        else:
            log.info(f"from {answer.hit.id}, score {answer.score:.4g}: {_shorten(answer.hit.text)}")


def _print_scores(
    index: "Index", model: Any, texts: list[str], ids: list[str], qrels: str, k: int, as_json: bool, as_csv: bool
) -> None:
    """Print the scores of the index and of BM25 on the same texts."""
    from pretune.evaluation.embedding import read_judgements, score_hits

    judgments = read_judgements(qrels)
    scores = {}
    for name, by_words in (("index", False), ("bm25", True)):
        hits = index.search(texts, k, model=model, words=by_words)
        scores[name] = score_hits(judgments, ids, [[hit.id for hit in row] for row in hits], k)
    if as_json:
        log.print_json(scores)
        return
    if as_csv:
        names = ("ndcg", "mrr", "recall", "queries")
        print_csv(("search", *names), ((by, *(row[metric] for metric in names)) for by, row in scores.items()))
        return
    log.print_result(f"{'':8}{f'nDCG@{k}':>10}{f'MRR@{k}':>10}{f'recall@{k}':>12}   queries")
    for name, row in scores.items():
        log.print_result(f"{name:8}{row['ndcg']:10.4f}{row['mrr']:10.4f}{row['recall']:12.4f}   {row['queries']:,}")


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_CHARACTERS else f"{line[:MAX_CHARACTERS]}…"


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

    options: dict[str, Any] = {"pooling": pooling, "layer": layer, "normalise": normalise, "length": length}
    options |= {"prompt": prompt, "query_prompt": query_prompt}
    with show_progress("indexing") as report:
        options |= {"method": method, "add": add, "device": str(resolve_device(device))}
        search_index = build(model, texts.texts, out=out, ids=texts.ids, on_progress=report_texts(report), **options)
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
