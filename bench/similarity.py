"""Quality of embeddings by pooling without training: STS, and Cranfield compared with BM25 and static vectors.

    python bench/similarity.py MODEL --data DATA [--out FILE]

All poolings come from one pass over the texts. Prints two Markdown tables: Spearman correlation on the STS tasks, and
nDCG@10, MRR and recall on Cranfield, x 100.
"""

import sys
import time

import common
import numpy as np

from pretune.evaluation.embedding import evaluate_retrieval, map_ids, score_hits
from pretune.inference.embed import build_embedder
from pretune.inference.search_methods import search_exact
from pretune.metrics.numeric import spearman
from pretune.tasks import TASKS

POOLINGS = ("cls", "max", "mean", "last")
YEARS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb")


def normalise(vectors: np.ndarray) -> np.ndarray:
    """Return the vectors scaled to length one."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def embed_all(model: str, texts: list[str]) -> dict[str, np.ndarray]:
    """Return the vectors of texts by every pooling."""
    start = time.monotonic()

    def print_progress(done: int, total: int) -> None:
        if done % 512 < 16:
            print(f"{done:,} of {total:,}, {done / (time.monotonic() - start):.0f} texts/s", file=sys.stderr)

    concatenation = build_embedder(model, pooling="+".join(POOLINGS), normalise=False)(texts, print_progress).vectors
    parts = dict(zip(POOLINGS, np.split(concatenation, len(POOLINGS), axis=1), strict=True))
    parts["static"] = build_embedder(model, pooling="static", normalise=False)(texts).vectors
    return {name: normalise(part) for name, part in parts.items()}


def measure_similarity(model: str, data: str) -> dict[str, dict[str, float]]:
    """Return the Spearman correlation on every task by pooling (all sets of a year together), and the average."""
    pairs = {name: list(TASKS.get(name).find("test", data).read()) for name in YEARS}
    texts = list(dict.fromkeys(text for rows in pairs.values() for row in rows for text in (row.text, row.pair)))
    number = {text: i for i, text in enumerate(texts)}
    out: dict[str, dict[str, float]] = {}
    for pooling, vectors in embed_all(model, texts).items():
        out[pooling] = {}
        for name, rows in pairs.items():
            left, right = (
                [number[text] for text in column] for column in zip(*((r.text, r.pair) for r in rows), strict=True)
            )
            cosines = (vectors[left] * vectors[right]).sum(axis=1)
            out[pooling][name] = spearman([row.label for row in rows], cosines.tolist())
        out[pooling]["average"] = sum(out[pooling].values()) / len(YEARS)
    return out


def measure_retrieval(model: str, data: str) -> dict[str, dict[str, float]]:
    """Return nDCG@10, MRR and recall by pooling, and of BM25."""
    task = TASKS.get("cranfield")
    documents, queries = list(task.find("documents", data).read()), list(task.find("test", data).read())
    vectors = embed_all(model, [row.text for row in (*documents, *queries)])
    gains = {query.id: dict.fromkeys(query.answers, 1.0) for query in queries}
    out = {}
    for pooling, matrix in vectors.items():
        hits = map_ids(
            search_exact([matrix[: len(documents)]], matrix[len(documents) :], 10), [row.id for row in documents]
        )
        out[pooling] = score_hits(gains, [query.id for query in queries], hits, 10)
    out["bm25"] = evaluate_retrieval("bm25", "cranfield", data=data)
    return {name: {key: row[key] for key in ("ndcg", "mrr", "recall")} for name, row in out.items()}


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    options = parser.parse_args()
    tables = {
        "cranfield": measure_retrieval(options.model, options.data),
        "sts": measure_similarity(options.model, options.data),
    }
    for name, rows in tables.items():
        columns = list(next(iter(rows.values())))
        print(f"\n| {name} | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
        for row, values in rows.items():
            print(f"| {row} | {' | '.join(f'{100 * values[column]:.2f}' for column in columns)} |")
    common.write_result(tables, options.out)


if __name__ == "__main__":
    main()
