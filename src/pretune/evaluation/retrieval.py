"""Zero-shot retrieval by embeddings, with BM25 as baseline: nDCG@10, reciprocal rank and recall.

    evaluate_retrieval("runs/small", "cranfield", data="data")        # {"ndcg": …, "mrr": …, "recall": …}
    evaluate_retrieval("bm25", "cranfield", data="data")

Hits are scored against relevance judgements: `query -> document -> gain`, from a task or from a trec_eval file.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pretune.core.errors import DataError, UsageError
from pretune.inference.embed import Embedder, EmbeddingResult, ProgressCallback, build_embedder
from pretune.inference.search_methods import BM25, SearchResult, search_exact
from pretune.metrics.retrieval import mrr, ndcg, recall
from pretune.tasks import TASKS
from pretune.tasks.table import read_lines
from pretune.tasks.task import Task

BASELINE = "bm25"
Judgements = Mapping[str, Mapping[str, float]]


def evaluate_retrieval(
    model: str | os.PathLike[str] | nn.Module | Embedder,
    task: Task | str,
    *,
    data: str | os.PathLike[str] | None = None,
    k: int = 10,
    on_progress: ProgressCallback | None = None,
    **embed_options: Any,
) -> dict[str, Any]:
    """Evaluate retrieval on a task with queries and documents; `embed_options` are those of `embed`.

    Embeddings are normalized. The model's prompts for documents and queries are prepended.
    """
    retrieval_task = TASKS.get(task) if isinstance(task, str) else task
    if retrieval_task.type.evaluator != "retrieval":
        raise UsageError(f"task '{retrieval_task.name}' is of kind '{retrieval_task.kind}', not 'retrieval'")
    documents = list(retrieval_task.find("documents", data).read())
    queries = list(retrieval_task.find("test", data).read())
    texts, query_texts = [document.text for document in documents], [query.text for query in queries]
    if model == BASELINE:
        hits = BM25(texts).search(query_texts, k)
    else:
        embedder = (
            model if isinstance(model, Embedder) else build_embedder(model, **{"normalise": True, **embed_options})
        )
        prompts = (None, None) if isinstance(model, Embedder) or "prompt" in embed_options else embedder.prompts
        document_vectors = _normalise(embedder.with_prompt(prompts[0])(texts, on_progress))
        query_vectors = _normalise(embedder.with_prompt(prompts[1])(query_texts))
        hits = search_exact([document_vectors], query_vectors, k)
    gains = {query.id: dict.fromkeys(query.answers, 1.0) for query in queries}
    ids = [document.id for document in documents]
    scores = score_hits(gains, [query.id for query in queries], map_ids(hits, ids), k)
    return {"task": retrieval_task.name, "documents": len(documents), **scores}


def _normalise(embeddings: EmbeddingResult) -> NDArray[np.float32]:
    vectors = embeddings.vectors
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


def map_ids(hits: SearchResult, ids: Sequence[str]) -> list[list[str]]:
    """Return the document ids of the hits, best first."""
    return [[ids[number] for number in row if number >= 0] for row in hits[1].tolist()]


def score_hits(judgements: Judgements, queries: Sequence[str], hits: Sequence[Sequence[str]], k: int) -> dict[str, Any]:
    """Score hits over the queries with judgements; queries without a relevant document are excluded and counted."""
    judged_queries = [
        i for i, query in enumerate(queries) if any(gain > 0 for gain in judgements.get(query, {}).values())
    ]
    if not judged_queries:
        raise DataError(f"none of {len(queries)} queries has a relevant document; check the query ids")
    gold: list[Any] = [judgements[queries[i]] for i in judged_queries]
    hit_lists = [hits[i] for i in judged_queries]
    return {
        "queries": len(judged_queries),
        "unjudged": len(queries) - len(judged_queries),
        "k": k,
        "ndcg": ndcg(gold, hit_lists, k=k),
        "mrr": mrr(gold, hit_lists, k=k),
        "recall": recall(gold, hit_lists, k=k),
    }


def read_judgements(path: str | os.PathLike[str]) -> dict[str, dict[str, float]]:
    """Read a relevance file: `query 0 document gain` (trec_eval) or `query document gain`, with an optional header."""
    judgements: dict[str, dict[str, float]] = {}
    for number, line in read_lines(Path(path)):
        cells = line.split()
        if not cells:
            continue
        try:
            if len(cells) not in (3, 4):
                raise ValueError
            judgements.setdefault(cells[0], {})[cells[-2]] = float(cells[-1])
        except ValueError:
            if number == 1 and len(cells) == 3:  # a header
                continue
            formats = "'query 0 document gain' or 'query document gain'"
            raise DataError(f"{path}:{number}: expected {formats}, got {line[:60]!r}") from None
    if not judgements:
        raise DataError(f"{path}: no judgements")
    return judgements
