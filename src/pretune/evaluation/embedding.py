"""Zero-shot evaluation of embeddings: retrieval and semantic similarity.

Retrieval has BM25 as baseline; the scores are nDCG@10, reciprocal rank and recall.

    embedder = build_embedder("runs/small", normalise=True)
    evaluate_retrieval(embedder, "cranfield", data="data").scores     # {"ndcg": …, "mrr": …, "recall": …}
    evaluate_retrieval("bm25", "cranfield", data="data")

Hits are scored against relevance judgements: `query -> document -> gain`, from a task or from a trec_eval file.

Semantic similarity is the cosine of two embeddings, compared with human scores.

    evaluate_similarity(embedder, "sts12-16", data="data").scores     # {"spearman": …, "pearson": …}

Spearman's correlation is the headline (Reimers et al., 2016). A task of several sets is scored over all pairs and
set by set.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import DataError, UsageError
from pretune.evaluation import EvaluationResult
from pretune.inference.embed import Embedder, ProgressCallback
from pretune.inference.search_methods import BM25, search_exact
from pretune.metrics.numeric import mrr, ndcg, pearson, recall, spearman
from pretune.tasks import TASKS
from pretune.tasks.example import Example
from pretune.tasks.table import read_lines
from pretune.tasks.task import Task
from pretune.tasks.types import get_type

BASELINE: Literal["bm25"] = "bm25"
Floats = NDArray[np.float32]
Judgements = Mapping[str, Mapping[str, float]]


def evaluate_retrieval(
    embedder: Embedder | Literal["bm25"],
    task: Task | str,
    *,
    data: str | os.PathLike[str] | None = None,
    k: int = 10,
    on_progress: ProgressCallback | None = None,
) -> EvaluationResult:
    """Evaluate retrieval on a task with queries and documents, by normalized embeddings or by BM25.

    The prompts that the model's directory has for documents and for queries are prepended.
    """
    retrieval_task = TASKS.get(task) if isinstance(task, str) else task
    if get_type(retrieval_task).scoring.evaluator != "retrieval":
        raise UsageError(f"task '{retrieval_task.name}' is of kind '{retrieval_task.kind}', not 'retrieval'")
    documents = list(retrieval_task.find("documents", data).read())
    queries = list(retrieval_task.find("test", data).read())
    texts, query_texts = [document.text for document in documents], [query.text for query in queries]
    if isinstance(embedder, str):
        hits = BM25(texts).search(query_texts, k)
    else:
        prompts = embedder.prompts
        document_vectors = normalize_rows(embedder.with_prompt(prompts[0])(texts, on_progress).vectors)
        query_vectors = normalize_rows(embedder.with_prompt(prompts[1])(query_texts).vectors)
        hits = search_exact([document_vectors], query_vectors, k)
    gains = {query.id: dict.fromkeys(query.answers, 1.0) for query in queries}
    ids = [document.id for document in documents]
    hit_ids = [[ids[number] for number in row if number >= 0] for row in hits[1].tolist()]
    scores = score_hits(gains, [query.id for query in queries], hit_ids, k)
    counts = {name: int(scores.pop(name)) for name in ("queries", "unjudged", "k")}
    return EvaluationResult(task=retrieval_task.name, scores=scores, counts={"documents": len(documents), **counts})


def normalize_rows(vectors: Floats) -> Floats:
    """Return the vectors `[n, W]` with norm 1; a vector of zeros stays as it is."""
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


def score_hits(
    judgements: Judgements, queries: Sequence[str], hits: Sequence[Sequence[str]], k: int
) -> dict[str, float]:
    """Score hits over the queries with judgements; queries without a relevant document are excluded and counted."""
    relevant = {query: gains for query, gains in judgements.items() if any(gain > 0 for gain in gains.values())}
    gold = [relevant[query] for query in queries if query in relevant]
    hit_lists = [row for query, row in zip(queries, hits, strict=True) if query in relevant]
    if not gold:
        raise DataError(f"none of {len(queries)} queries has a relevant document; check the query ids")
    return {
        "queries": len(gold),
        "unjudged": len(queries) - len(gold),
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


def evaluate_similarity(
    embedder: Embedder,
    task: Task | str,
    *,
    data: str | os.PathLike[str] | None = None,
    split: str | None = None,
    limit: int | None = None,
    on_progress: ProgressCallback | None = None,
) -> EvaluationResult:
    """Evaluate correlations on a task of scored pairs, or on `limit` evenly spaced ones.

    The default split is `test` if it has scores, else `dev`.
    """
    similarity_task = TASKS.get(task) if isinstance(task, str) else task
    name, examples = _read_pairs(similarity_task, data, split)
    if limit is not None and limit < 2:
        raise UsageError(f"limit must be >= 2 for a correlation, got {limit}")
    if limit is not None and limit < len(examples):
        examples = [examples[i * len(examples) // limit] for i in range(limit)]
    scores = [float(example.label or 0.0) for example in examples]
    cosines = compute_cosines(embedder, [(example.text, example.pair or "") for example in examples], on_progress)
    groups = sorted({example.group for example in examples if example.group is not None})
    members = {group: [i for i, example in enumerate(examples) if example.group == group] for group in groups}
    return EvaluationResult(
        task=similarity_task.name,
        split=name,
        scores=correlate(scores, cosines),
        groups={
            group: spearman([scores[i] for i in rows], cosines[rows].tolist())
            for group, rows in members.items()
            if len(groups) > 1 and len(rows) > 1
        },
        counts={"pairs": len(examples)},
    )


def compute_cosines(
    embedder: Embedder, pairs: Sequence[tuple[str, str]], on_progress: ProgressCallback | None = None
) -> Floats:
    """Return the cosine of the two texts of each pair."""
    columns = [[first for first, _ in pairs], [second for _, second in pairs]]
    left, right = _embed_columns(embedder, columns, on_progress)
    return np.asarray((left * right).sum(axis=1))


def evaluate_triplets(embedder: Embedder, triplets: Sequence[tuple[str, str, str]]) -> EvaluationResult:
    """Evaluate the share of triplets whose anchor is closer to the positive than to the negative; a tie is wrong."""
    if not triplets:
        raise DataError("no triplets to evaluate")
    columns = [[triplet[i] for triplet in triplets] for i in range(3)]
    anchor, positive, negative = _embed_columns(embedder, columns, None)
    positive_cosines, negative_cosines = (anchor * positive).sum(axis=1), (anchor * negative).sum(axis=1)
    return EvaluationResult(
        task="triplets",
        scores={"accuracy": float((positive_cosines > negative_cosines).mean())},
        counts={"triplets": len(triplets), "ties": int((positive_cosines == negative_cosines).sum())},
    )


def _embed_columns(
    encoder: Embedder, columns: Sequence[list[str]], on_progress: ProgressCallback | None
) -> list[Floats]:
    """Return the normalized embeddings of each column; all texts are encoded together, equal ones once."""
    vectors = encoder([text for column in columns for text in column], on_progress).vectors
    return np.split(normalize_rows(vectors), len(columns))


def correlate(scores: Sequence[float], cosines: Floats) -> dict[str, float]:
    """Return Spearman's and Pearson's correlation of human scores and cosines."""
    return {"spearman": spearman(scores, cosines.tolist()), "pearson": pearson(scores, cosines.tolist())}


def _read_pairs(task: Task, data: str | os.PathLike[str] | None, split: str | None) -> tuple[str, list[Example]]:
    if get_type(task).scoring.evaluator != "similarity":
        similarity_tasks = [name for name in TASKS if get_type(TASKS.get(name)).scoring.evaluator == "similarity"]
        raise UsageError(f"task '{task.name}' is of kind '{task.kind}'; choose one of {', '.join(similarity_tasks)}")
    names = [split] if split else [name for name in ("test", "dev") if name in task.splits]
    for name in names:
        if name != names[-1] and name not in task.find_available(data):
            continue
        examples = list(task.find(name, data).read())
        if examples and all(example.label is not None and example.pair is not None for example in examples):
            return name, examples
    raise DataError(f"task '{task.name}': no pairs with scores in {' or '.join(names)}")
