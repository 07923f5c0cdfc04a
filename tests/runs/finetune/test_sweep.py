"""A whole run: seeds that differ, baselines that need the model, what was forecast, and what all of it cost."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.core.errors import DivergedError, UsageError
from pretune.evaluation.baselines import ALL_BASELINES, FEW_SHOT, ZERO_SHOT
from pretune.runs.finetune.entry import build_plan, finetune
from pretune.runs.finetune.estimate import estimate_finetune
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.task_options import FinetuneOptions
from tests.conftest import Capture
from tests.runs.configs import build_finetune_config

QUICK: dict[str, Any] = {"train.log_every": 5, "data.max_length": 24}


def trial(run: FinetunedRun, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.path / "trials" / name / "trial.json").read_text())
    return found


@pytest.fixture(scope="module")
def grid(base: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> FinetunedRun:
    out = tmp_path_factory.mktemp("grid") / "run"
    return finetune(
        base, train=table, out=out, method="lora", lr=[1e-3, 1e-2], seeds=2, train_examples=[20, None], epochs=1,
        baselines="none", overrides=QUICK,
    )  # fmt: skip


@pytest.mark.slow
def test_what_was_forecast_is_what_was_done(grid: FinetunedRun, base: Path, table: Path) -> None:
    tuning = build_finetune_config(base, train=table, method="lora", epochs=1, overrides=QUICK)
    options = FinetuneOptions(lr=[1e-3, 1e-2], seeds=2, train_examples=[20, None], baselines="none")
    told = estimate_finetune(tuning, build_plan(tuning, options))
    trials = grid.scores["trials"]
    assert told["trials"] == len(trials) == 5
    assert told["steps"] == sum(one["steps"] for one in trials) == 3 * 3 + 2 * 1
    for name in ("trained", "parameters"):
        assert told[name] == grid.scores["model"][name]
    assert told["balance"] == {"own": grid.scores["balance"]} and told["examples"] == grid.scores["examples"]
    assert told["counts"] == grid.scores["counts"]
    cost = json.loads((grid.path / "cost.json").read_text())
    assert told["flops"] == pytest.approx(cost["flops"], rel=0.15)
    assert told["tokens"] == pytest.approx(sum(one["summary"]["tokens"] for one in trials), rel=0.15)


def test_all_trials_are_paid_for(grid: FinetunedRun) -> None:
    cost = json.loads((grid.path / "cost.json").read_text())
    for name in ("seconds", "flops", "kwh"):
        each = [one["summary"]["cost"][name] for one in grid.scores["trials"]]
        assert cost[name] == pytest.approx(sum(each)) and min(each) > 0


def test_seeds_draw_another_head_and_another_order(grid: FinetunedRun) -> None:
    rate = grid.scores["model"]["lr"]
    first, second = (trial(grid, f"labels-all-lr-{rate:g}-seed-{seed}") for seed in (0, 1))
    assert first["summary"]["loss"] != second["summary"]["loss"]
    assert first["labels"] == second["labels"] and first["counts"] == second["counts"]


def test_what_is_left_out_of_the_labels_is_nowhere(grid: FinetunedRun) -> None:
    """The two seeds of a number of labels learn from the same examples, which are among those of all."""
    few = [one for one in grid.scores["trials"] if one["labels"] == 20]
    assert len(few) == 2 and few[0]["counts"] == few[1]["counts"] and few[0]["counts"]["examples"] == 20
    assert few[0]["balance"] == {"bad": 10, "good": 10}


@pytest.fixture(scope="module")
def two(base: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> list[FinetunedRun]:
    """Two runs from models of the same shape with other weights, and beside each that shape from random weights."""
    home = tmp_path_factory.mktemp("two")
    other = pt.load(base)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    pt.save(other, home / "other")
    return [
        finetune(model, train=table, out=home / name, method="lora", steps=3, baselines="random", overrides=QUICK)
        for name, model in (("one", base), ("two", home / "other"))
    ]


def test_the_same_model_from_random_weights_knows_nothing_of_the_base(two: list[FinetunedRun], base: Path) -> None:
    one, other = (trial(run, "random") for run in two)
    assert one["summary"]["loss"] == other["summary"]["loss"] and one["predictions"] == other["predictions"]
    assert one["trained"] == one["parameters"] > two[0].scores["model"]["trained"]  # all of it, whatever the method
    assert one["lr"] == build_finetune_config(base, task="sst2", method="full").train.lr
    losses = [run.scores["trials"][0]["summary"]["loss"] for run in two]
    assert losses[0] != losses[1]


def test_what_was_not_run_is_named_with_the_reason(two: list[FinetunedRun]) -> None:
    assert [row["name"] for row in two[0].scores["baselines"]] == ["random"]
    reasons = dict(two[0].scores["not_run"])
    assert "pairs" in reasons.pop("cosine")
    applicable = {*ALL_BASELINES} - {ZERO_SHOT, FEW_SHOT}  # these are of types that name them
    assert {*reasons} == applicable - {"random", "cosine"}
    assert all("--baselines all" in reason for reason in reasons.values())
    card = (two[0].path / "README.md").read_text()
    assert all(name in card for name in applicable)


@pytest.mark.slow
def test_all_baselines_are_run_when_all_are_asked_for(base: Path, table: Path, tmp_path: Path) -> None:
    run = finetune(base, train=table, out=tmp_path / "run", steps=3, baselines="all", overrides=QUICK)
    rows = {row["name"]: row for row in run.scores["baselines"]}
    assert {*rows} == {*ALL_BASELINES} - {"cosine", ZERO_SHOT, FEW_SHOT} and {*run.scores["not_run"]} <= {
        "cosine"
    }  # which scores pairs only
    assert min(rows[name]["score"] for name in ("svm", "logistic", "bilstm")) > 0.8  # one word tells
    assert all(0 <= row["against"]["p"] <= 1 for row in rows.values())


def test_a_run_without_checkpoints_leaves_the_same_model(base: Path, table: Path, tmp_path: Path) -> None:
    for name, keep in (("with", 2), ("without", 0)):
        finetune(
            base,
            train=table,
            out=tmp_path / name,
            steps=2,
            baselines="none",
            overrides={**QUICK, "train.max_checkpoints": keep},
        )
    assert (tmp_path / "with/checkpoints").is_dir() and not (tmp_path / "without/checkpoints").exists()
    both = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("with", "without")]
    assert both[0] == both[1]
    with pytest.raises(UsageError, match=r"train\.max_checkpoints.*1"):
        build_finetune_config(base, train=table, overrides={"train.max_checkpoints": 1})


def test_a_rate_that_diverges_is_left_out(base: Path, table: Path, tmp_path: Path, capsys: Capture) -> None:
    options: dict[str, Any] = {"train": table, "steps": 4, "baselines": "none", "overrides": QUICK}
    run = finetune(base, out=tmp_path / "run", lr=[1e30, 1e-3], seeds=2, **options)
    assert [one["lr"] for one in run.scores["trials"]] == [1e-3, 1e-3] and run.scores["model"]["lr"] == 1e-3
    assert "learning rate 1e+30 is left out" in capsys.readouterr().err
    assert not [path for path in (tmp_path / "run/trials").iterdir() if "1e+30" in path.name]
    assert run.predict(["a long road"])
    for rates in ([1e30], [1e30, 1e31]):
        with pytest.raises(DivergedError):
            finetune(base, out=tmp_path / f"bad{len(rates)}", lr=rates, **options)


def test_the_curve_has_the_vectors_of_the_table(base: Path, tmp_path: Path) -> None:
    """Words that occur once each: only given vectors tell which are alike."""
    words = {"good": [f"p{number}" for number in range(60)], "bad": [f"n{number}" for number in range(60)]}
    lines = [f"the {words[label][number % 60]},{label}" for number in range(100) for label in words]
    (tmp_path / "table.csv").write_text("\n".join(["text,label", *lines]))
    vectors = [f"{word} {sign} 0" for label, sign in (("good", 1), ("bad", -1)) for word in words[label]]
    (tmp_path / "vectors.txt").write_text("\n".join([f"{len(vectors)} 2", *vectors]) + "\n")
    run = finetune(
        base, train=tmp_path / "table.csv", out=tmp_path / "run", steps=2, baselines="vectors",
        vectors=tmp_path / "vectors.txt", train_examples=[20, None], overrides=QUICK,
    )  # fmt: skip
    (row,) = run.scores["baselines"]
    assert [point["baselines"] for point in run.scores["curve"]] == [{"vectors": 1.0}] * 2 and row["score"] == 1.0
