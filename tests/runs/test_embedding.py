"""Vectors taught by comparison: they get better, go on after a stop bit for bit, and are read by others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pretune as pt
from pretune.cli import main
from pretune.core.errors import DataError, PretuneError, StoppedError, UsageError
from pretune.runs.embedding import train_embeddings
from pretune.tasks.types.embedding import PairDataset, build_entailment_pairs, read_dataset, select_loss
from pretune.training.loop import Loop
from tests.conftest import run_command
from tests.inference.readers import WORDS, encoder

NOUNS = WORDS.split()[2:14]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Texts that share a noun belong together."""
    monkeypatch.chdir(tmp_path)
    pt.save(encoder(), "model")
    rows = [
        {"anchor": f"the old {noun} {i}", "positive": f"a new {noun} runs", "negative": f"a new {NOUNS[i - 5]} sings"}
        for i, noun in enumerate(NOUNS)
    ]
    Path("triplets.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("pairs.tsv").write_text("anchor\tpositive\n" + "".join(f"{r['anchor']}\t{r['positive']}\n" for r in rows))
    scored = "".join(f"{r['anchor']},{r['positive']},5\n{r['anchor']},{r['negative']},1\n" for r in rows)
    Path("scores.csv").write_text("sentence1,sentence2,score\n" + scored)
    return tmp_path


@pytest.mark.parametrize(
    ("train", "settings"),
    [
        ("pairs.tsv", {}),
        pytest.param("triplets.jsonl", {"loss": "triplet"}, marks=pytest.mark.slow),
        pytest.param("triplets.jsonl", {}, marks=pytest.mark.slow),
        ("scores.csv", {"normalise": True}),
    ],
)
def test_it_learns(here: Path, train: str, settings: dict[str, Any]) -> None:
    run = train_embeddings(
        "model", train=train, dev="triplets.jsonl", out="run", batch=12, steps=25, lr=2e-3, device="cpu", **settings
    )
    before, after = run.scores["before"]["triplet_accuracy"], run.scores["after"]["triplet_accuracy"]
    assert after > before or after == 1.0
    assert json.loads(Path("run/modules.json").read_text())[1]["path"] == "1_Pooling"
    assert pt.embed(run.path, ["the cat"]).shape == (1, 32)
    assert json.loads(Path("run/cost.json").read_text())["run"]["steps"] == 25


def test_it_goes_on_after_a_stop(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"train": "pairs.tsv", "batch": 5, "steps": 8, "lr": "1e-3", "device": "cpu"}
    whole = train_embeddings("model", out="whole", **options)
    real = Loop._compute_gradients

    def gradients(loop: Loop, *arguments: Any) -> Any:
        if loop.state.step == 4:
            loop.hooks[-2].save(loop, wait=True)  # type: ignore[attr-defined]
            raise StoppedError("stopped")
        return real(loop, *arguments)

    monkeypatch.setattr(Loop, "_compute_gradients", gradients)
    with pytest.raises(StoppedError):
        train_embeddings("model", out="parts", **options)
    monkeypatch.setattr(Loop, "_compute_gradients", real)
    with pytest.raises(PretuneError):  # another run cannot go on there
        train_embeddings("model", out="parts", resume=True, **{**options, "steps": 9})
    parts = train_embeddings("model", out="parts", resume=True, **options)
    assert np.array_equal(pt.embed(whole.path, NOUNS), pt.embed(parts.path, NOUNS))
    assert train_embeddings("model", out="parts", resume=True, **options).scores == parts.scores


def test_they_read_it(here: Path) -> None:
    reference = pytest.importorskip("sentence_transformers", reason="the reference library is not installed")
    run = train_embeddings(
        "model", train="pairs.tsv", out="run", steps=1, batch=4, length=9, normalise=True, pooling="cls", device="cpu"
    )
    texts = ["the old house by the river and the new bridge over the river", "a bird"]
    expected = reference.SentenceTransformer(str(run), device="cpu").encode(texts)
    np.testing.assert_allclose(pt.embed(run.path, texts), expected, atol=1e-5)


def test_inference_as_pairs() -> None:
    classes = ("entailment", "neutral", "contradiction")
    texts = [("a", "b"), ("a", "c"), ("a", "d"), ("e", "f")]
    found = build_entailment_pairs(PairDataset(texts=texts, gold=[0, 1, 2, 0], classes=classes))
    assert found.texts == [("a", "b"), ("e", "f")]  # of two entailed pairs only one is contradicted
    found = build_entailment_pairs(PairDataset(texts=texts[:3], gold=[0, 1, 2], classes=classes))
    assert found.texts == [("a", "b", "d")] and found.columns == 3
    with pytest.raises(DataError):
        build_entailment_pairs(PairDataset(texts=texts[:1], gold=[2], classes=classes))


def test_published_files(shared_data: Path) -> None:
    found = read_dataset(task="stsb", data=shared_data, split="dev")
    assert found.is_scored and min(found.gold) == 0 and max(found.gold) == 1
    pairs = read_dataset(task="snli", data=shared_data, split="dev")
    assert pairs.columns == 3 and len(pairs.texts) > 3000
    classes = read_dataset(task="snli", data=shared_data, split="dev", loss="classes")
    assert classes.columns == 2 and len(classes.texts) == 9842
    assert select_loss(classes, "classes").classes == 3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({}, "--train"),
        ({"train": "absent.tsv"}, "absent.tsv"),
        ({"train": "pairs.txt"}, "pairs.txt"),
        ({"train": "odd.tsv"}, "one, two"),
        ({"train": "pairs.tsv", "loss": "tripplet"}, "'tripplet'.*'triplet'"),
        ({"train": "pairs.tsv", "loss": "triplet"}, r"'triplet'.*3"),
        ({"train": "pairs.tsv", "loss": "cosine"}, "'cosine'"),
        ({"train": "scores.csv", "loss": "in_batch"}, "'in_batch'"),
        ({"train": "pairs.tsv", "dev": "pairs.tsv"}, "pairs.tsv"),
        ({"train": "pairs.tsv", "batch": 1}, r"batch .*\b1\b"),
        ({"train": "pairs.tsv", "learning": 1}, "learning"),
        ({"task": "sst2"}, "sst2"),
    ],
)
def test_wishes_that_cannot_be(here: Path, options: dict[str, Any], value: str) -> None:
    Path("odd.tsv").write_text("one\ttwo\n1\t2\n")
    with pytest.raises((UsageError, DataError), match=value):
        train_embeddings("model", out="run", device="cpu", **options)
    assert not Path("run").exists()


def test_the_verb(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["finetune", "model", "--task", "embedding", "--train", "pairs.tsv", "--out", "run", "--device", "cpu"]
    assert "--method" in run_command(capsys, [*arguments, "--method", "lora", "--quiet"], code=2).err
    error = run_command(capsys, [*arguments, "--set", "lose=triplet", "--quiet"], code=2).err
    assert "'lose'" in error and "'loss'" in error
    options = ["--dev", "triplets.jsonl", "--steps", "2", "--lr", "1e-3", "--set", "batch=6"]
    told = run_command(capsys, [*arguments, *options])
    assert told.out.startswith("run: ") and "triplet_accuracy" in told.out
    assert "pretune embed run" in told.err
    assert json.loads(run_command(capsys, [*arguments, *options, "--resume", "--json", "--quiet"]).out)["steps"] == 2


def test_the_verb_reads_the_dev_set_of_a_task(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "data" / "stsb").mkdir(parents=True)
    rows = ["sentence1\tsentence2\tscore\tgenre", *(f"the old sea\tthe sea {i}\t{i % 5}\tnews" for i in range(10))]
    (here / "data" / "stsb" / "dev.tsv").write_text("\n".join(rows) + "\n")
    command = ["finetune", "model", "--type=embedding", "--train=pairs.tsv", "--data=data", "--device=cpu", "--steps=1"]
    assert main([*command, "--dev=stsb", "--out=run", "--set=batch=6", "--json", "--quiet"]) == 0
    assert "spearman" in json.loads(capsys.readouterr().out)["after"]
    assert "--data" in run_command(capsys, [*command, "--dev=triplets.jsonl", "--out=other", "--quiet"], code=2).err
