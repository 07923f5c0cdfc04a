"""`pretune index`: embed texts into a search index; `pretune search`: search it, and answer questions from the hits."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretune.cli._inputs import InputTexts, load_model, read_texts, resolve_device
from pretune.cli._options import LAYER, LENGTH, POOLINGS, PROMPT, OutputFormat, TableFormat
from pretune.cli._output import check_new_folder, hint, hint_other, print_data, print_facts, quote, show_progress
from pretune.cli.embed import report_texts
from pretune.core import log
from pretune.core.api import Options, option, option_set
from pretune.core.errors import UsageError
from pretune.core.hub import resolve_path
from pretune.core.log import format_count
from pretune.runs.options import DEVICE, FIELD, MODEL

if TYPE_CHECKING:
    from pretune.inference.index import Hit, Index
    from pretune.runs.finetune.inference import ExtractedAnswer


MAX_CHARACTERS = 300
"""Number of characters shown of a hit."""


@option_set
class SearchOptions(Options):
    """Options of a search."""

    index: Path = option("INDEX", "Index of `pretune index`.", is_required=True)
    query: str | None = option("QUERY", "Query.")
    k: int = option("-k --hits N", "Number of hits.", default=10)
    words: bool = option("--bm25", "Rank by BM25 instead of vectors.", default=False)
    model: str | None = option("--model DIR", "Model of the index, if it was moved.")
    queries: str | None = option("--queries FILE", "Queries: .jsonl (id, text), or one per line.")
    qrels: str | None = option("--qrels FILE", "Relevance judgments; prints scores instead of hits.")
    answer: bool = option("--answer", "Answer the query from the hits; needs --reader.", default=False)
    reader: str | None = option("--reader DIR", "Model for --answer: a generative one, or a run of squad1 or squad2.")
    max_new_tokens: int | None = option("--max-new-tokens N", "Maximum length of a generated answer (default: 64).")
    device: str | None = DEVICE.field()

    def __post_init__(self) -> None:
        if (self.query is None) == (self.queries is None):
            raise UsageError("pass a query or --queries FILE, not both")
        if self.answer != (self.reader is not None) or (
            self.qrels is not None and (self.queries is None or self.answer)
        ):
            raise UsageError("--answer needs --reader, and --qrels needs --queries")
        if self.max_new_tokens is not None and not self.answer:
            raise UsageError("--max-new-tokens needs --answer")
        if self.query is not None and not self.query.strip():
            raise UsageError("the query is empty")


def search(options: SearchOptions, output: TableFormat) -> None:
    """Search an index, or answer questions from its texts.

    With --qrels it prints nDCG, MRR and recall of the index and of BM25.

    Example: pretune search library "who built the bridge?" -k 3
    """
    from pretune.inference.index import Index, check_unique_ids

    search_index = Index.open(options.index)
    has_vectors = not options.words or options.qrels is not None
    target = str(resolve_device(options.device)) if has_vectors or options.device is not None else None
    ready = search_index.load_embedder(options.model, device=target) if has_vectors else None
    inputs = InputTexts([options.query or ""], None, "") if options.queries is None else read_texts(options.queries)
    texts, ids = inputs.texts, inputs.ids
    check_unique_ids(ids or ())
    if options.qrels is not None:
        numbers = [str(number) for number in range(1, len(texts) + 1)]
        _print_scores(search_index, ready, texts, ids or numbers, options.qrels, options.k, output)
        return
    id_columns = [{}] * len(texts) if ids is None else [{"query_id": name} for name in ids]
    query_columns = [{**columns, "query": text} for columns, text in zip(id_columns, texts, strict=True)]
    hits = search_index.search(texts, options.k, model=ready, words=options.words)
    if options.answer:
        _answer(options, query_columns, hits, output)
        return
    _print_hits(query_columns, hits, output)
    words_option = ("--hits", 2 * options.k) if options.words else ("--bm25", "--hits", options.k)
    query = [options.query] if options.query is not None else ["--queries", options.queries]
    hint("search", options.index, *query, *words_option, silent=not output.is_text)
    hint_other(f"search {quote(options.index)} QUESTION --answer --reader MODEL", silent=not output.is_text)


def _answer(
    options: SearchOptions, queries: "Sequence[QueryColumns]", hits: "list[list[Hit]]", output: TableFormat
) -> None:
    """Answer the queries from the hits, by extraction or by generation."""
    from pretune.inference.generate import DEFAULT_NEW_TOKENS
    from pretune.inference.rag import answer_questions
    from pretune.runs.finetune.inference import extract_answers, load_extractive_run

    assert options.reader is not None
    texts = [query["query"] for query in queries]
    run = load_extractive_run(resolve_path(options.reader), device=str(resolve_device(options.device)))
    if run is not None:
        _print_extracted(queries, extract_answers(run, texts, hits), output)
        return
    model, count = load_model(options.reader, device=options.device, needs_head=True), options.max_new_tokens
    answers = answer_questions(model, texts, hits, max_new_tokens=DEFAULT_NEW_TOKENS if count is None else count)
    _print_answers(queries, answers, hits, output)


QueryColumns = Mapping[str, str]
"""Query, with its id if it has one, as columns of a result."""


def _print_hits(queries: Sequence[QueryColumns], hits: "list[list[Hit]]", output: TableFormat) -> None:
    results = [*zip(queries, hits, strict=True)]
    facts = [{**query, "hits": [hit._asdict() for hit in row]} for query, row in results]
    ranks = ((query, rank, hit) for query, row in results for rank, hit in enumerate(row, 1))
    rows = ((*query.values(), rank, hit.score, hit.id, hit.text) for query, rank, hit in ranks)
    if print_data(output, facts, (*queries[0], "rank", "score", "id", "text"), rows):
        return
    for query, row in results:
        if len(queries) > 1:
            log.print_result(f"# {query['query']}")
        for rank, hit in enumerate(row, 1):
            log.print_result(f"{rank:>3}  {hit.score:.4f}  {hit.id}  {_shorten(hit.text)}")
        if not row:
            log.warn("no hits: no text has a word of the query")


def _print_answers(
    queries: Sequence[QueryColumns], answers: list[Any], hits: "list[list[Hit]]", output: TableFormat
) -> None:
    """Print generated answers with the ids of the hits that were read."""
    sources = [[hit.id for hit in row[: reply.hits_read]] for reply, row in zip(answers, hits, strict=True)]
    results = [*zip(queries, answers, sources, strict=True)]
    facts = [{**query, "answer": reply.text, "read": ids, "prompt": reply.prompt} for query, reply, ids in results]
    rows = ((*query.values(), reply.text, " ".join(ids)) for query, reply, ids in results)
    if print_data(output, facts, (*queries[0], "answer", "read"), rows):
        return
    for _, reply, ids in results:
        log.print_result(reply.text)
        log.info(f"sources: {', '.join(ids) or 'none'}")


def _print_extracted(queries: Sequence[QueryColumns], answers: "list[ExtractedAnswer]", output: TableFormat) -> None:
    """Print extracted answers with the ids and scores of their passages."""
    facts = [
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
    if print_data(output, facts, names, ([row[name] for name in names] for row in facts)):
        return
    for answer in answers:
        log.print_result(answer.text)
        if answer.hit is None:
            log.info("no answer in the hits")
        else:
            log.info(f"from {answer.hit.id}, score {answer.score:.4g}: {_shorten(answer.hit.text)}")


def _print_scores(
    index: "Index", model: Any, texts: list[str], ids: list[str], qrels: str, k: int, output: TableFormat
) -> None:
    """Print the scores of the index and of BM25 on the same texts."""
    from pretune.evaluation.embedding import read_judgements, score_hits

    judgments = read_judgements(qrels)
    scores = {}
    for name, by_words in (("index", False), ("bm25", True)):
        hits = index.search(texts, k, model=model, words=by_words)
        scores[name] = score_hits(judgments, ids, [[hit.id for hit in row] for row in hits], k)
    names = ("ndcg", "mrr", "recall", "queries")
    if print_data(output, scores, ("search", *names), ((by, *map(row.get, names)) for by, row in scores.items())):
        return
    log.print_result(f"{'':8}{f'nDCG@{k}':>10}{f'MRR@{k}':>10}{f'recall@{k}':>12}   queries")
    for name, row in scores.items():
        log.print_result(f"{name:8}{row['ndcg']:10.4f}{row['mrr']:10.4f}{row['recall']:12.4f}   {row['queries']:,}")


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_CHARACTERS else f"{line[:MAX_CHARACTERS]}…"


@option_set
class IndexOptions(Options):
    """Options of a search index."""

    model: str = MODEL.field()
    source: str = option(
        "--input FILE", "Texts, one per line, or .jsonl (id, text); - is standard input.", is_required=True
    )
    out: Path = option("--out INDEX", "Index directory.", is_required=True)
    add: bool = option("--add", "Add to an existing index.", default=False)
    method: Literal["exact", "hnsw", "ivf"] = option(
        "--method", "Exact search, or approximate for millions of texts.", default="exact"
    )
    field: str = FIELD.field(default="text")
    pooling: str | None = option("--pooling NAME", "Pooling; see `pretune embed`.", names=POOLINGS)
    layer: int | None = LAYER.field()
    normalise: bool | None = option("--normalise/--raw", "Cosine similarity (default) or inner product.")
    length: int | None = LENGTH.field()
    prompt: str | None = PROMPT.field()
    query_prompt: str | None = option("--query-prompt TEXT", "Prompt prepended to queries.")
    device: str | None = DEVICE.field()


def index(options: IndexOptions, output: OutputFormat) -> None:
    """Build a search index of texts, or add texts to one.

    Example: pretune index runs/books --input documents.jsonl --out library
    """
    out = options.out
    check_new_folder(out)
    texts = read_texts(options.source, options.field)
    from pretune.inference.index import build

    with show_progress("indexing") as report:
        search_index = build(
            options.model,
            texts.texts,
            out=out,
            ids=texts.ids,
            add=options.add,
            method=options.method,
            device=str(resolve_device(options.device)),
            on_progress=report_texts(report),
            pooling=options.pooling,
            layer=options.layer,
            normalise=options.normalise,
            length=options.length,
            prompt=options.prompt,
            query_prompt=options.query_prompt,
        )
    if search_index.metadata["cut"]:
        log.warn(f"{format_count(search_index.metadata['cut'], 'texts')} truncated to the model's maximum length")
    kind = f"vectors of width {search_index.metadata['width']}, {search_index.metadata['method']} search"
    facts = {"out": str(out), "texts": len(search_index), **search_index.metadata}
    print_facts(output, facts, f"{out}: {format_count(len(search_index), 'texts')}, {kind}")
    hint("search", out, _sample_query(texts.texts), silent=output.as_json)


def _sample_query(texts: list[str]) -> str:
    """Return the first words of a text, a query that has a hit."""
    first = next((text.split() for text in texts if text.strip()), ["a", "question"])
    return " ".join(first[:4])
