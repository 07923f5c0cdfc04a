"""Baselines: what they must get right on texts made for it, on real ones, and what the table says."""

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from pretune.adaptation.word2vec import Word2Vec
from pretune.core.errors import DataError, PretuneError, UsageError
from pretune.evaluation.baselines import BASELINES, SLOTS, run_baselines
from pretune.evaluation.baselines.base import Text, TfIdf, compute_overlap
from pretune.evaluation.baselines.bilstm import BiLSTMBaseline
from pretune.evaluation.baselines.tagging import FrequentTag
from pretune.evaluation.baselines.texts import SVM, Majority
from pretune.tasks.example import Example
from pretune.tasks.task import Task
from pretune.text.corpora.builtin import Reviews
from pretune.training.optim import AdamW

WORDS = {"pos": ["good", "fine", "lovely"], "neg": ["bad", "awful", "dull"]}
QUICK = BiLSTMBaseline(hidden=16, steps=40, optim=AdamW(lr=2e-2), start=Word2Vec(width=16, min_count=1, epochs=2))
LEARNERS = [name for name in SLOTS if name != "majority"]


def told(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Texts with one telling word among words that tell nothing."""
    rng = np.random.default_rng(seed)
    labels = ["pos" if i % 2 else "neg" for i in range(count)]
    texts = [" ".join([*rng.choice(list("abcdefgh"), 5), rng.choice(WORDS[label])]) for label in labels]
    return texts, labels


def paired(count: int, seed: int = 0) -> tuple[list[tuple[str, str]], list[int]]:
    """Pairs whose label is whether they say the same."""
    rng = np.random.default_rng(seed)
    labels = [i % 2 for i in range(count)]
    firsts = [[f"w{n}" for n in rng.integers(0, 30, 6)] for _ in labels]
    seconds = [
        first if label else [f"w{n}" for n in rng.integers(0, 30, 6)]
        for first, label in zip(firsts, labels, strict=True)
    ]
    return [(" ".join(a), " ".join(b)) for a, b in zip(firsts, seconds, strict=True)], labels


@pytest.mark.parametrize("name", LEARNERS)
def test_a_telling_word_is_learned_and_the_seed_decides_all(name: str) -> None:
    texts, labels = told(200)
    test, gold = told(60, seed=1)
    spec = QUICK if name == "bilstm" else BASELINES.get(name)()
    predict = spec.fit(texts, labels)
    found = predict(test)
    assert np.mean([a == b for a, b in zip(found, gold, strict=True)]) > 0.9
    assert spec.fit(texts, labels)(test) == found
    assert predict([]) == [] and predict(["", "never seen"])[0] in {"pos", "neg"}


@pytest.mark.parametrize("name", ["svm", "logistic", "vectors"])
def test_pairs_are_judged_by_what_they_share(name: str) -> None:
    texts, labels = paired(200)
    test, gold = paired(60, seed=1)
    found = BASELINES.get(name)().fit(texts, labels)(test)
    assert np.mean([a == b for a, b in zip(found, gold, strict=True)]) > 0.9
    assert {type(label) for label in found} == {int}


def test_the_recurrent_one_reads_pairs_in_order() -> None:
    texts, labels = told(200)
    pairs: list[Text] = [(text, "a b") if i % 4 < 2 else ("a b", text) for i, text in enumerate(texts)]
    found = QUICK.fit(pairs, labels)(pairs)
    assert np.mean([a == b for a, b in zip(found, labels, strict=True)]) > 0.9


@pytest.mark.parametrize("name", SLOTS)
def test_one_label_alone_is_given_to_all(name: str) -> None:
    assert BASELINES.get(name)().fit(["a b", "c d"], [1, 1])(["x", ""]) == [1, 1]


def test_a_label_with_one_example_can_be_fitted() -> None:
    assert SVM().fit(["good"] * 5 + ["bad"], ["pos"] * 5 + ["neg"])(["good"]) == ["pos"]


def test_products_have_one_thread_while_baselines_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def count_threads() -> set[int]:
        blas = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
        return blas | {torch.get_num_threads()}

    counts: list[set[int]] = []

    def fit(*_: Any, **__: Any) -> Any:
        counts.append(count_threads())
        return lambda texts: [0] * len(texts)

    monkeypatch.setattr(Majority, "fit", fit)
    examples = [Example(text="a text", label=0)]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    with threadpool_limits(2, user_api="blas"):
        before = count_threads()  # fewer than 2 where the machine has one core
        task = Task(name="t", kind="classification", metrics=("accuracy",), splits={}, labels=("a", "b"))
        run_baselines(task, examples, examples, ["majority"])
        assert counts == [{1}] and count_threads() == before
    torch.set_num_threads(threads)


def test_the_majority_is_what_stands_most_often() -> None:
    assert Majority().fit(["x"] * 5, ["b", "a", "b", "a", "c"])(["y", "z"]) == ["a", "a"]


def test_overlap_and_columns_of_pairs() -> None:
    assert compute_overlap(["", "a b"], ["", "a b"]).tolist() == [[0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]]
    pairs: list[Text] = [("a b", "c"), ("a", "a")]
    single = TfIdf(["a b", "c", "a", "a"])(["a"]).shape[1]
    assert TfIdf(pairs)(pairs).shape == (2, 3 * single + 6)
    with pytest.raises(UsageError, match="1 of 2"):
        TfIdf([("a", "b"), "c"])


def test_words_have_their_most_frequent_tag() -> None:
    predict = FrequentTag().fit([["The", "run"], ["the", "run"], ["run", "Ann"]], [["D", "V"], ["D", "N"], ["N", "P"]])
    assert predict([["the", "THE", "run", "Bob"], []]) == [["D", "D", "N", "P"], []]
    with pytest.raises(DataError, match=r"2 words .* 1 tag"):
        FrequentTag().fit([["a", "b"]], [["X"]])
    with pytest.raises(DataError):
        FrequentTag().fit([], [])


@pytest.mark.slow
def test_film_reviews_with_a_thousand_labels() -> None:
    try:
        with Reviews().find_path().open(encoding="utf-8", newline="") as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file))
    except PretuneError as error:
        pytest.skip(str(error))
    order = np.random.default_rng(0).permutation(len(rows))
    train, test = ([rows[i] for i in part] for part in (order[:1000], order[-1000:]))
    predict = SVM(choices=(0.1, 1.0)).fit([row["text"] for row in train], [row["label"] for row in train])
    found = predict([row["text"] for row in test])
    assert np.mean([a == row["label"] for a, row in zip(found, test, strict=True)]) > 0.76


@pytest.mark.slow
def test_parts_of_speech_by_the_word_alone(shared_data: Path) -> None:
    folder = shared_data / "tasks" / "ud_ewt"
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}")
    sets = []
    for part in ("train", "dev"):
        with gzip.open(folder / f"en_ewt-ud-{part}.conllu.gz", "rt", encoding="utf-8") as file:
            blocks = file.read().strip().split("\n\n")
        rows = [[line.split("\t") for line in block.split("\n") if line[:1].isdigit()] for block in blocks]
        kept = [[fields for fields in sentence if fields[0].isdecimal()] for sentence in rows]
        sets.append(([[f[1] for f in s] for s in kept], [[f[3] for f in s] for s in kept]))
    (words, tags), (test, gold) = sets
    found = FrequentTag().fit(words, tags)(test)
    pairs = [(a, b) for x, y in zip(found, gold, strict=True) for a, b in zip(x, y, strict=True)]
    assert np.mean([a == b for a, b in pairs]) > 0.84


@pytest.mark.filterwarnings("ignore:Label")
def test_a_task_with_one_label_has_a_baseline() -> None:
    train = [Example(text=f"{'cats' if i % 2 else 'dogs'} {i}", tags=("cat",) if i % 2 else ()) for i in range(12)]
    test = [Example(text="cats", tags=("cat",)), Example(text="dogs")]
    predictions = BASELINES.get("one_vs_rest")().predict(train, test)
    assert [prediction.tags for prediction in predictions] == [("cat",), ()]
    always = [Example(text=f"cats {i}", tags=("cat",)) for i in range(12)]
    assert [prediction.tags for prediction in BASELINES.get("one_vs_rest")().predict(always, test)] == [("cat",)] * 2


@pytest.mark.parametrize(
    "letters", ["的一是在不了有和人这中大为上个国我以要他时来", "กขคงจฉชซญฎฏฐฑฒณดตถทธนบปผฝพฟภมยรลวศ"]
)
def test_text_without_spaces_has_baselines(letters: str) -> None:
    rng = np.random.default_rng(0)
    task = Task(name="t", kind="classification", metrics=("accuracy",), splits={}, labels=("a", "b"))
    rows = ["".join(rng.choice([*letters[2:]], 12)) for _ in range(260)]
    examples = [Example(text=row[:6] + letters[i % 2] + row[6:], label=i % 2) for i, row in enumerate(rows)]
    results, _ = run_baselines(task, examples[:200], examples[200:], ["svm", "vectors"])
    accuracies = {
        result.name: np.mean([p.label == e.label for p, e in zip(result.predictions, examples[200:], strict=True)])
        for result in results
    }
    assert accuracies["svm"] > 0.8 and accuracies["vectors"] > 0.8


def test_a_baseline_without_data_is_skipped() -> None:
    task = Task(name="t", kind="classification", metrics=("accuracy",), splits={}, labels=("a", "b"))
    examples = [Example(text=f"w{i} v{i}", label=i % 2) for i in range(8)]
    results, skipped = run_baselines(task, examples, examples, ["majority", "svm", "vectors"])
    assert [result.name for result in results] == ["majority", "svm"] and "2 times" in skipped["vectors"]


def test_texts_without_common_words_have_features() -> None:
    texts: list[Text] = [f"w{i}" for i in range(1200)]
    assert TfIdf(texts)(texts[:2]).toarray().sum() == pytest.approx(2)
