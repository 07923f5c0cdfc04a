"""`pretune search`: the texts of an index that are nearest to a query, and answers from them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli._csv import AsCsv, check_format, print_csv
from pretune.cli._hints import hint, hint_other, quote
from pretune.cli._inputs import read_texts
from pretune.cli._models import load_model, resolve_device
from pretune.cli._names import DEVICES, complete_from
from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.hub import resolve_path

if TYPE_CHECKING:
    from pretune.inference.index import Hit, Index
    from pretune.runs.extract import ExtractedAnswer

MAX_CHARACTERS = 300
"""Characters of a hit that are shown."""


def search(
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="What `pretune index` wrote.")],
    query: Annotated[str | None, typer.Argument(metavar="QUERY", help="What to look for.")] = None,
    k: Annotated[int, typer.Option("-k", "--hits", metavar="N", help="How many hits.")] = 10,
    words: Annotated[bool, typer.Option("--bm25", help="By words instead of vectors.")] = False,
    model: Annotated[str | None, typer.Option("--model", metavar="DIR", help="Where its model is now.")] = None,
    queries: Annotated[
        str | None, typer.Option("--queries", metavar="FILE", help="Many queries: .jsonl (id, text) or lines.")
    ] = None,
    qrels: Annotated[
        str | None, typer.Option("--qrels", metavar="FILE", help="What is relevant: scores are printed, not hits.")
    ] = None,
    answer: Annotated[bool, typer.Option("--answer", help="Let a model answer from the hits.")] = False,
    reader: Annotated[
        str | None,
        typer.Option("--reader", metavar="DIR", help="That model: one that writes, or a run of squad1 or squad2."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", metavar="N", help="Of an answer.")] = 64,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME", autocompletion=complete_from(*DEVICES), help="cpu, cuda; found by default."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: AsCsv = False,
) -> None:
    """Find the texts nearest to a query, or answer from them.

    With judgements (--qrels) the search is scored instead, beside one by words.

    Example: pretune search library "who built the bridge?" -k 3
    """
    check_format(as_json, as_csv)
    if (query is None) == (queries is None):
        raise UsageError("give a query, or --queries with a file of them; not both")
    if answer != (reader is not None) or (qrels is not None and (queries is None or answer)):
        raise UsageError("--answer goes with --reader, and --qrels with --queries")
    if query is not None and not query.strip():
        raise UsageError("the query is empty; write something to look for")
    from pretune.inference.index import Index

    found = Index.open(index)
    ready = None if words and qrels is None else found.load_embedder(model, device=str(resolve_device(device)))
    asked = read_texts(queries) if queries is not None else None
    texts, ids = (asked.texts, asked.ids) if asked else ([query or ""], ["1"])
    if qrels is not None:
        _print_scores(found, ready, texts, ids, qrels, k, as_json, as_csv)
        return
    hits = found.search(texts, k, model=ready, words=words)
    if answer:
        from pretune.inference.rag import answer_questions
        from pretune.runs.extract import extract_answers, load_extractive_run

        assert reader is not None
        run = load_extractive_run(resolve_path(reader), device=str(resolve_device(device)))
        if run is not None:
            _print_extracted(texts, extract_answers(run, texts, hits), as_json, as_csv)
            return
        said = answer_questions(
            load_model(reader, device=device, needs_head=True), texts, hits, max_new_tokens=max_new_tokens
        )
        _print_answers(texts, said, hits, as_json, as_csv)
        return
    _print(texts, hits, as_json, as_csv)
    quiet = as_json or as_csv
    given = [query] if query is not None else ["--queries", queries]
    hint("search", index, *given, *(() if words else ("--bm25",)), "--hits", k if not words else 2 * k, silent=quiet)
    hint_other(f"search {quote(index)} QUESTION --answer --reader MODEL", silent=quiet)


def _print(texts: list[str], hits: "list[list[Hit]]", as_json: bool, as_csv: bool) -> None:
    if as_csv:
        print_csv(
            ("query", "rank", "score", "id", "text"),
            (
                (text, rank, hit.score, hit.id, hit.text)
                for text, found in zip(texts, hits, strict=True)
                for rank, hit in enumerate(found, 1)
            ),
        )
        return
    if as_json:
        rows = [
            {"query": text, "hits": [hit._asdict() for hit in found]} for text, found in zip(texts, hits, strict=True)
        ]
        log.print_json(rows)
        return
    for text, found in zip(texts, hits, strict=True):
        if len(texts) > 1:
            log.print_result(f"# {text}")
        for rank, hit in enumerate(found, 1):
            log.print_result(f"{rank:>3}  {hit.score:.4f}  {hit.id}  {_shorten(hit.text)}")
        if not found:
            log.warn("nothing was found: no text has a word of the query")


def _print_answers(texts: list[str], answers: list[Any], hits: "list[list[Hit]]", as_json: bool, as_csv: bool) -> None:
    rows = zip(texts, answers, hits, strict=True)
    if as_csv:
        read = (
            " ".join(hit.id for hit in found[: one.hits_read])
            for _, one, found in zip(texts, answers, hits, strict=True)
        )
        print_csv(("query", "answer", "read"), zip(texts, (one.text for one in answers), read, strict=True))
        return
    if as_json:
        told = [
            {
                "query": text,
                "answer": one.text,
                "read": [hit.id for hit in found[: one.hits_read]],
                "prompt": one.prompt,
            }
            for text, one, found in rows
        ]
        log.print_json(told)
        return
    for _, one, found in rows:
        log.print_result(one.text)
        log.info(f"from: {', '.join(hit.id for hit in found[: one.hits_read]) or 'nothing'}")


def _print_extracted(texts: list[str], answers: "list[ExtractedAnswer]", as_json: bool, as_csv: bool) -> None:
    """Answers that stand in a passage, with its id and the score."""
    rows = [
        {
            "query": text,
            "answer": one.text,
            "score": one.score,
            "id": one.hit and one.hit.id,
            "passage": one.hit and one.hit.text,
            "span": one.span,
        }
        for text, one in zip(texts, answers, strict=True)
    ]
    if as_json:
        log.print_json(rows)
    elif as_csv:
        names = ("query", "answer", "score", "id", "passage")
        print_csv(names, ([row[name] for name in names] for row in rows))
    else:
        for one in answers:
            log.print_result(one.text)
            log.info(
                "no answer in the hits"
                if one.hit is None
                else f"from {one.hit.id}, score {one.score:.4g}: {_shorten(one.hit.text)}"
            )


def _print_scores(
    index: "Index", model: Any, texts: list[str], ids: list[str], qrels: str, k: int, as_json: bool, as_csv: bool
) -> None:
    """Scores of the index, and of BM25 on the same texts beside it."""
    from pretune.evaluation.retrieval import read_judgements, score_hits

    judgements = read_judgements(qrels)
    scores = {
        name: score_hits(
            judgements, ids, [[hit.id for hit in row] for row in index.search(texts, k, model=model, words=by)], k
        )
        for name, by in (("index", False), ("bm25", True))
    }
    if as_json:
        log.print_json(scores)
        return
    if as_csv:
        names = ("ndcg", "mrr", "recall", "queries")
        print_csv(("search", *names), ((by, *(row[one] for one in names)) for by, row in scores.items()))
        return
    log.print_result(f"{'':8}{f'nDCG@{k}':>10}{f'MRR@{k}':>10}{f'recall@{k}':>12}   queries")
    for name, row in scores.items():
        log.print_result(f"{name:8}{row['ndcg']:10.4f}{row['mrr']:10.4f}{row['recall']:12.4f}   {row['queries']:,}")


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_CHARACTERS else f"{line[:MAX_CHARACTERS]}…"
