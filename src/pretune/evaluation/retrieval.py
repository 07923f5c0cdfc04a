"""Retrieval by vectors, without training, and BM25 beside it: nDCG@10, reciprocal rank and recall.

    retrieval("runs/small", "cranfield", data="data")        # {"ndcg": …, "mrr": …, "recall": …}
    retrieval("bm25", "cranfield", data="data")

Hits are scored against judgements: `query -> document -> gain`, from a task or from a file as trec_eval reads it.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pretune.core.errors import DataError, UsageError
from pretune.inference.bm25 import BM25
from pretune.inference.embed import Embedder, EmbeddingResult, ProgressCallback, build_embedder
from pretune.inference.exact_search import SearchResult, search_exact
from pretune.metrics.retrieval import mrr, ndcg, recall
from pretune.tasks import TASKS
from pretune.tasks.table_rows import read_lines
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
    """Scores on a task with queries and documents; `how` is as `embed` takes it, vectors are of length one.

    Prompts that the model's directory names for documents and for queries are put before them.
    """
    chosen = TASKS.get(task) if isinstance(task, str) else task
    if chosen.kind != "retrieval":
        raise UsageError(f"task '{chosen.name}' is of the kind '{chosen.kind}'; retrieval needs queries and documents")
    documents = list(chosen.find("documents", data).read())
    queries = list(chosen.find("test", data).read())
    texts, asked = [document.text for document in documents], [query.text for query in queries]
    if model == BASELINE:
        found = BM25(texts).search(asked, k)
    else:
        ready = model if isinstance(model, Embedder) else build_embedder(model, **{"normalise": True, **embed_options})
        before = (None, None) if isinstance(model, Embedder) or "prompt" in embed_options else ready.prompts
        there, queried = (
            _normalise(ready.with_prompt(before[0])(texts, on_progress)),
            _normalise(ready.with_prompt(before[1])(asked)),
        )
        found = search_exact([there], queried, k)
    gains = {query.id: dict.fromkeys(query.answers, 1.0) for query in queries}
    ids = [document.id for document in documents]
    scores = score_hits(gains, [query.id for query in queries], map_ids(found, ids), k)
    return {"task": chosen.name, "documents": len(documents), **scores}


def _normalise(embeddings: EmbeddingResult) -> NDArray[np.float32]:
    vectors = embeddings.vectors
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


def map_ids(hits: SearchResult, ids: Sequence[str]) -> list[list[str]]:
    """The ids of hits, best first."""
    return [[ids[number] for number in row if number >= 0] for row in hits[1].tolist()]


def score_hits(judgements: Judgements, queries: Sequence[str], hits: Sequence[Sequence[str]], k: int) -> dict[str, Any]:
    """Scores of hits over the queries that were judged; a query with no relevant document is left out, and counted."""
    kept = [i for i, query in enumerate(queries) if any(gain > 0 for gain in judgements.get(query, {}).values())]
    if not kept:
        raise DataError(f"none of {len(queries)} queries has a relevant document; are the ids those of the queries?")
    gold: list[Any] = [judgements[queries[i]] for i in kept]
    told = [hits[i] for i in kept]
    return {
        "queries": len(kept),
        "unjudged": len(queries) - len(kept),
        "k": k,
        "ndcg": ndcg(gold, told, k=k),
        "mrr": mrr(gold, told, k=k),
        "recall": recall(gold, told, k=k),
    }


def read_judgements(path: str | os.PathLike[str]) -> dict[str, dict[str, float]]:
    """A relevance file: `query 0 document gain` (trec_eval) or `query document gain`, a header allowed there."""
    found: dict[str, dict[str, float]] = {}
    for number, line in read_lines(Path(path)):
        cells = line.split()
        if not cells:
            continue
        try:
            if len(cells) not in (3, 4):
                raise ValueError
            found.setdefault(cells[0], {})[cells[-2]] = float(cells[-1])
        except ValueError:
            if number == 1 and len(cells) == 3:  # a header
                continue
            wanted = "'query 0 document gain' or 'query document gain'"
            raise DataError(f"{path}:{number}: expected {wanted}, found {line[:60]!r}") from None
    if not found:
        raise DataError(f"{path}: no judgements in it")
    return found
