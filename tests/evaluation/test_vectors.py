"""Similarity and retrieval without training: scores by their definition, on small files and on published ones."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

import pretune as pt
from pretune.core.errors import DataError, UsageError
from pretune.evaluation.embedding import (
    evaluate_retrieval,
    evaluate_similarity,
    evaluate_triplets,
    read_judgements,
    score_hits,
)
from pretune.inference.embed import build_embedder
from pretune.tasks.example import Example
from pretune.tasks.task import SplitFile, Task
from tests.inference.readers import encoder

PAIRS = (
    ("the cat plays", "the cat plays", 5.0, "one"),
    ("the dog runs", "money in the bank", 0.5, "one"),
    ("a bird sings", "the bird sings", 4.5, "one"),
    ("the old house", "the new bridge", 2.0, "two"),
    ("the river", "a river", 4.0, "two"),
)


def task(tmp_path: Path) -> Task:
    (tmp_path / "t").touch()
    examples = [Example(text=a, pair=b, label=score, group=group) for a, b, score, group in PAIRS]
    file = SplitFile(path=str(tmp_path / "t"), reader=lambda _: iter(examples))
    return Task(
        name="mine", kind="regression", metrics=("spearman",), scale=(0.0, 5.0),
        splits={"test": (file,)},
    )  # fmt: skip


def test_similarity(tmp_path: Path) -> None:
    model = encoder()
    found = evaluate_similarity(build_embedder(model, pooling="cls"), task(tmp_path))
    left, right = (pt.embed(model, [pair[i] for pair in PAIRS], pooling="cls") for i in (0, 1))
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosine = (left * right).sum(1) / norms
    assert found.scores["spearman"] == pytest.approx(spearmanr([pair[2] for pair in PAIRS], cosine).statistic)
    assert found.counts == {"pairs": 5} and found.split == "test" and found.task == "mine"
    parts = {"one": slice(3), "two": slice(3, 5)}
    assert found.groups == {
        name: pytest.approx(spearmanr([pair[2] for pair in PAIRS[rows]], cosine[rows]).statistic)
        for name, rows in parts.items()
    }
    some = evaluate_similarity(build_embedder(model), task(tmp_path), limit=3)
    assert some.counts == {"pairs": 3} and [*some.groups] == ["one"]  # a single pair has no correlation
    with pytest.raises(UsageError, match=r"limit .*1"):
        evaluate_similarity(build_embedder(model), task(tmp_path), limit=1)


def test_triplets() -> None:
    found = evaluate_triplets(
        build_embedder(encoder()), [("a bird", "a bird", "the bank"), ("a bird", "the bank", "the bank")]
    )
    assert found.scores == {"accuracy": 0.5} and found.counts == {"triplets": 2, "ties": 1}


def test_judgements(tmp_path: Path) -> None:
    gains = {"q1": {"a": 2.0, "b": 1.0}, "q2": {"c": 0.0}}
    found = score_hits(gains, ["q1", "q2", "q3"], [["b", "x", "a"], ["c"], ["a"]], 10)
    assert found["queries"] == 1 and found["unjudged"] == 2 and found["ndcg"] == pytest.approx(0.7602, abs=1e-4)
    (tmp_path / "q").write_text("1 0 a 2\n1 0 b 1\n\n2 0 c 0\n")
    assert read_judgements(tmp_path / "q") == {"1": {"a": 2.0, "b": 1.0}, "2": {"c": 0.0}}
    for text, words in (("1 0 a x\n", "q:1: .*'query 0 document gain'"), ("", "q: ")):
        (tmp_path / "q").write_text(text)
        with pytest.raises(DataError, match=words):
            read_judgements(tmp_path / "q")
    with pytest.raises(DataError, match="1 queries"):
        score_hits({}, ["q"], [[]], 10)


def test_tasks_of_other_kinds() -> None:
    with pytest.raises(UsageError, match=r"'sst2'.*classification.*stsb"):
        evaluate_similarity(build_embedder(encoder()), "sst2")
    with pytest.raises(UsageError, match=r"'sst2'.*classification"):
        evaluate_retrieval(build_embedder(encoder()), "sst2")


def test_published_files(shared_data: Path) -> None:
    """The readers and the scores together: BM25 on Cranfield, a random encoder's table on a year of STS."""
    found = evaluate_retrieval("bm25", "cranfield", data=shared_data)
    assert (found.counts["queries"], found.counts["documents"]) == (225, 1400) and 0.48 < found.scores["ndcg"] < 0.54
    found = evaluate_similarity(build_embedder(encoder(), pooling="static"), "sts16", data=shared_data)
    assert found.counts["pairs"] == 1186 and len(found.groups) == 5 and 0 < found.scores["spearman"] < 1
