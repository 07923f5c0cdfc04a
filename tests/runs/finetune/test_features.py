"""A frozen model reads every text once, and trains the head that it would train if it read them in every epoch."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.heads.sequence import Classification
from pretune.models.hf import checkpoint
from pretune.models.model import LanguageModel
from pretune.runs.finetune import features
from pretune.runs.finetune.config import SweepPlan
from pretune.runs.finetune.estimate import estimate_finetune
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.predict import predict
from pretune.tasks.stream import TaskStream
from pretune.tasks.types import get_type
from pretune.tasks.user_table import build_user_task
from tests.runs import tasked
from tests.runs.configs import build_finetune_config

MAKERS: dict[str, tuple[Callable[[Path, int], Path], str, dict[str, Any]]] = {
    "classification": (tasked.classes, "own.csv", {}),
    "regression": (tasked.scores, "own.csv", {"text": "one", "pair": "two", "label": "score"}),
    "tagging": (tasked.tags, "own.conll", {}),
}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether gradients were on, at every forward pass of a body."""
    calls: list[bool] = []
    states = LanguageModel.states

    def count(self: LanguageModel, *arguments: Any, **options: Any) -> Any:
        calls.append(torch.is_grad_enabled())
        return states(self, *arguments, **options)

    monkeypatch.setattr(LanguageModel, "states", count)
    return calls


def run(base: Path, table: Path, out: Path, **options: Any) -> Any:
    overrides = {"train.eval_every": 4, "train.checkpoint_every": 2, **options.pop("overrides", {})}
    options = {"steps": 8, "baselines": "none", "method": "frozen", "device": "cpu", **options}
    return pt.finetune(base, train=table, out=out, overrides=overrides, **options)


def read_head(path: Path) -> dict[str, torch.Tensor]:
    return {name: value for name, value in load_file(path / "model.safetensors").items() if "classifier" in name}


def is_same(first: Path, second: Path) -> bool:
    one, two = (load_file(path / "model.safetensors") for path in (first, second))
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_the_head_is_that_of_a_run_without_a_cache(
    base: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, reads: list[bool]
) -> None:
    make, name, columns = MAKERS[kind]
    table = make(tmp_path / name, 60)
    cached = run(base, table, tmp_path / "cached", **columns)
    assert reads and not any(reads)  # no training step ran the body
    plain = run(base, table, tmp_path / "plain", overrides={"tune.cache_features": False}, **columns)
    assert sum(reads) == 8  # every step did
    first, second = read_head(cached.path), read_head(plain.path)
    assert first
    for weight in first:
        torch.testing.assert_close(first[weight], second[weight], rtol=1e-3, atol=1e-4)
    monkeypatch.setattr(features, "MAX_FEATURE_BYTES", 100)  # too large: as without a cache
    assert is_same(run(base, table, tmp_path / "large", **columns).path, plain.path)
    costs = [result.scores["trials"][0]["summary"]["cost"]["flops"] for result in (cached, plain)]
    assert 0 < costs[0] < costs[1]


@pytest.mark.slow
def test_texts_are_read_once_for_all_trials(base: Path, tmp_path: Path, reads: list[bool]) -> None:
    table = tasked.classes(tmp_path / "own.csv", 60)
    run(base, table, tmp_path / "one", steps=2)
    once = len(reads)
    run(base, table, tmp_path / "many", lr=[1e-2, 1e-3], seeds=2, steps=20, overrides={"train.patience": 3})
    tests = once - 2  # train and dev are cached: the rest is the test set, at the end of each trial
    assert len(reads) - once == 2 + 3 * tests
    scores = run(base, table, tmp_path / "again", lr=1e-3, steps=20).scores["trials"][0]["course"]
    trials = pt.finetune(out=tmp_path / "many", resume=True).scores["trials"]
    (shared,) = [trial["course"] for trial in trials if trial["lr"] == 1e-3 and trial["seed"] == 0]
    assert shared[: len(scores)] == scores[: len(shared)]


def test_a_resumed_run_is_the_same_to_the_bit(base: Path, tmp_path: Path) -> None:
    table = tasked.classes(tmp_path / "own.csv", 60)
    finished = run(base, table, tmp_path / "run", overrides={"tune.pooling": {"mode": "mean"}, "tune.head": "probe"})
    copy = shutil.copytree(finished.path, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints/step-00000008")
    for name in ("model.safetensors", "config.json", "MANIFEST.json", "cost.json", "trial.json", "scores.json"):
        (copy / name).unlink()
    resumed = pt.finetune(out=copy, resume=True, device="cpu")
    assert is_same(finished.path, resumed.path) and resumed.score == finished.score


def open_frozen(base: Path, table: Path) -> tuple[ModelWithHead, TaskEncoder, list[Any]]:
    task = build_user_task({"train": str(table)})
    model = adapt(checkpoint.load(base), Classification(classes=2, labels=task.labels), seed=0)
    model.has_frozen_body = True
    return model, TaskEncoder.from_task(task, model), [*task.read("train")]


def test_predictions_from_features_are_the_same_to_the_bit(base: Path, tmp_path: Path) -> None:
    model, encoder, examples = open_frozen(base, tasked.classes(tmp_path / "own.csv", 40))
    items = features.add_features(model, encoder.encode(examples, training=False), None)
    assert items.has_features
    assert predict(model, encoder, examples, items=items) == predict(model, encoder, examples)


def test_a_step_on_features_is_that_on_the_same_batch(base: Path, tmp_path: Path) -> None:
    """In batches of one text each, nothing but the features of that text can differ."""
    model, encoder, examples = open_frozen(base, tasked.classes(tmp_path / "own.csv", 12))
    items = encoder.encode(examples)
    model.train()
    assert model.head is not None and model.head.training and not model.model.training
    cached = features.add_features(model, items, None)
    plain_stream, cached_stream = (TaskStream(part, batch=1) for part in (items, cached))
    for step in range(12):
        losses = []
        for stream in (plain_stream, cached_stream):
            torch.manual_seed(step)  # the head's dropout
            losses.append(model.loss(stream[step]).sum.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_features_of_tokens_keep_their_places(base: Path, tmp_path: Path) -> None:
    task = build_user_task({"train": str(tasked.tags(tmp_path / "own.conll", 9))})
    model = adapt(checkpoint.load(base), get_type(task).inputs.build_head(task), seed=0).eval()
    encoder = TaskEncoder.from_task(task, model)
    items = features.add_features(model, encoder.encode([*task.read("train")]), None)
    batch = TaskStream(items, batch=5)[0]
    assert batch.features is not None
    with torch.no_grad():
        expected = model.model.states(batch)
    is_token = (batch.sequence >= 0).numpy()
    np.testing.assert_allclose(batch.features.numpy()[is_token], expected.numpy()[is_token], rtol=1e-4, atol=1e-5)
    assert not batch.features.numpy()[~is_token].any()


def test_a_forecast_reads_every_text_once(base: Path, tmp_path: Path) -> None:
    table = tasked.classes(tmp_path / "own.csv", 60)
    flops = [
        estimate_finetune(
            build_finetune_config(
                base,
                train=table,
                method="frozen",
                steps=steps,
                overrides={"tune.cache_features": is_cached},
            ),
            SweepPlan(rates=(1e-2, 1e-3)),
        )["flops"]
        for steps, is_cached in ((10, True), (100, True), (10, False), (100, False))
    ]
    assert flops[1] < 3 * flops[0] and flops[0] < flops[2] and flops[3] == pytest.approx(10 * flops[2])
