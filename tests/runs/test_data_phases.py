"""How much held-out text a run is judged by: as asked, or so much that a short run is not spent on it."""

from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.models.families import FAMILIES
from pretune.runs.data_phases import EVAL_BATCHES_PER_STEP, DataPhases
from pretune.runs.estimate import estimate_steps_on_cores
from pretune.runs.samples import SampleHook
from pretune.runs.training_data import TrainingData
from pretune.text.tokenizer import Tokenizer
from pretune.training.distributed import Ranks
from pretune.training.run_logger import read_metrics
from tests.runs.configs import build_pretrain_config
from tests.runs.small import FAST, Prepared, make, shrunk
from tests.runs.test_objectives import PAIRS, STYLES, WHAT, choose_model

BERT = {**shrunk("bert-tiny"), **FAST, "data.length_schedule": None, "train.eval_tokens": None}
THREADS = torch.get_num_threads()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of it is held out: more than short runs are to read."""
    return make(tmp_path_factory.mktemp("halves"), "wordpiece", "cls-sep", count=240, holdout=0.5)


def course(data: Path, device: str = "cpu", **wishes: Any) -> DataPhases:
    settings = build_pretrain_config(
        "bert-tiny", data=data, objective="masked", overrides={**BERT, **wishes.pop("overrides", {})}, **wishes
    )
    return DataPhases.open(
        settings, TrainingData.open(settings.data, settings.objective, "encoder"), Ranks(torch.device(device))
    )


def judged(data: Path, device: str = "cpu", **wishes: Any) -> int:
    held = course(data, device, **wishes).validation
    assert held is not None
    return held[1]


@pytest.mark.slow
def test_short_runs_are_judged_by_less(data: Path) -> None:
    """Eleven evaluations read three tenths of what the run reads; one batch is read in any case."""
    assert [judged(data, steps=steps) for steps in (1, 30, 100, 400)] == [1, 1, 2, 10]
    assert judged(data, device="cuda", steps=400) == 10
    assert judged(data, steps=400, overrides={"train.eval_every": 1}) == 1
    assert judged(data, steps=100, overrides={"train.eval_every": 50}) == 10
    assert all(11 * judged(data, steps=steps) <= EVAL_BATCHES_PER_STEP * steps for steps in range(50, 2000, 50))


def test_long_runs_and_wishes_are_as_they_were(data: Path) -> None:
    whole = judged(data, steps=10**6)
    assert whole == judged(data, steps=1, overrides={"train.eval_tokens": 10**9}) > 20
    assert judged(data, steps=1, overrides={"train.eval_tokens": 1000}) == 4
    assert course(data, steps=10**6, overrides={"train.eval_tokens": 0}).validation is None


def test_against_the_clock_the_steps_are_estimated(data: Path) -> None:
    """By what a core computes, so that it is the same when the run is resumed; there are two evaluations."""
    settings = build_pretrain_config("bert-tiny", data=data, objective="masked", budget=1.0, overrides=BERT)
    a_second = estimate_steps_on_cores(
        settings, TrainingData.open(settings.data, settings.objective, "encoder").tokenizer, THREADS
    )
    found = [judged(data, budget=steps / a_second) for steps in (1, 101, 10**6)]
    assert found == [1, 15, judged(data, steps=10**6)]
    assert judged(data, device="cuda", budget=1e-6) == found[2], "a GPU reads that in a moment"


@pytest.mark.parametrize(("name", "shape"), PAIRS)
def test_every_objective_has_an_estimate(name: str, shape: str, prepared: Prepared, tmp_path: Path) -> None:
    model = choose_model(name, shape)
    paper = FAMILIES.get(model.split("-")[0]).training
    assert paper is not None
    usual = ("unigram", "sentinels") if name in ("span_corruption", "mixture") else paper.tokenizer[:2]
    given = prepared(*STYLES.get(name, usual), WHAT.get(name, "stories"))
    changes = {**shrunk(model), **FAST, "data.length_schedule": None, "data.samples": "documents"}
    options: dict[str, Any] = {"data": given, "overrides": changes}
    if name == "distill":
        options["teacher"] = pt.pretrain(model, objective="masked", out=tmp_path, steps=1, **options)
    settings = build_pretrain_config(model, objective=name, budget=1.0, **options)
    tokenizer = Tokenizer.load(given / "tokenizer")
    assert estimate_steps_on_cores(settings, tokenizer, 2) == 2 * estimate_steps_on_cores(settings, tokenizer, 1) > 0


def test_a_resumed_run_is_judged_by_the_same(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wishes = {"data": data, "objective": "masked", "steps": 20, "overrides": {**BERT, "train.checkpoint_every": 3}}
    pt.pretrain("bert-tiny", out=tmp_path / "a", **wishes)
    with monkeypatch.context() as patch:
        patch.setattr(
            SampleHook, "__call__", lambda self, loop, reports: 1 / (loop.state.step - 11)
        )  # a bug, at a step
        with pytest.raises(ZeroDivisionError):
            pt.pretrain("bert-tiny", out=tmp_path / "b", **wishes)
    pt.pretrain(None, out=tmp_path / "b", resume=True)
    one, other = ([line["held_out"] for line in read_metrics(tmp_path / name) if "held_out" in line] for name in "ab")
    assert one == other and len(one) == 11
