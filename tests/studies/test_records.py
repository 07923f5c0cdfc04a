"""Records of finished steps: what is run again without files, costs of tuned rows, tries that diverge."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.core.errors import DivergedError, UsageError
from pretune.reports.study_text import list_costs
from pretune.studies.actions import StepRunner
from pretune.studies.costs import sum_costs
from pretune.studies.execute import Execution, StepWorker, WorkerPool
from pretune.studies.plan import ChoiceOptions, Plan, Step
from pretune.studies.planner import plan_study
from pretune.studies.results import build_results
from pretune.studies.study_dir import StepRecord, StudyDir, make_record
from tests.studies.studies import make_study, write_study

RATES = {"pretrain": [0.5, 1.0], "finetune": [0.5, 2.0]}


def make_records(plan: Plan, **costs: float) -> dict[str, StepRecord]:
    """Return records of all steps; choices select the first try."""
    return {
        step.key: make_record(
            step,
            {"accuracy": 0.5},
            {},
            {} if step.action == "choose" else costs,
            selected_key=step.inputs[0] if step.action == "choose" else None,
        )
        for step in plan.steps.values()
    }


def test_records_of_tries_need_no_weights(tmp_path: Path) -> None:
    """Without weights, a lost fine-tuning needs its own model again, and of the tried learning rates only records."""
    plan = plan_study(make_study(tmp_path, rates=RATES))
    execution = Execution(plan, StudyDir(tmp_path), [*plan.steps])
    lost_step = [*plan.steps.values()][-1]
    assert lost_step.action == "finetune" and lost_step.choices
    execution.records |= make_records(plan)
    del execution.records[lost_step.key]
    seed = lost_step.options.overrides["train.seed"]
    pending = [plan.steps[key] for key in execution._list_pending()]
    assert [step.action for step in pending] == ["tokenizer", "data", "pretrain", "finetune"]
    assert pending[2].options.overrides["train.seed"] == seed and pending[2].choices
    options = ChoiceOptions(score="dev", better="higher")
    choice = next(step for step in plan.steps.values() if step.options == options)
    del execution.records[choice.key]
    assert {step.key for step in pending} | {choice.key} == {*execution._list_pending()}


def test_a_lost_choice_of_a_model_needs_its_tries(tmp_path: Path) -> None:
    """Any of the tries may be selected, and then read: those without files run again."""
    plan = plan_study(make_study(tmp_path, seeds=1, rows={"low": {}}, claims=[], rates={"pretrain": [0.5, 1.0]}))
    execution = Execution(plan, StudyDir(tmp_path), [*plan.steps], records=make_records(plan))
    choice, finetune = (next(s for s in plan.steps.values() if s.action == name) for name in ("choose", "finetune"))
    del execution.records[finetune.key]
    assert [plan.steps[key].action for key in execution._list_pending()] == [
        "tokenizer", "data", "pretrain", "finetune",
    ]  # fmt: skip
    del execution.records[choice.key]
    pending = execution._list_pending()
    assert {choice.key, finetune.key, *choice.inputs} <= {*pending} and len(pending) == 6


def test_a_worker_waits_for_the_selected_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is finished, but the model that it selected has no files and runs again first."""
    monkeypatch.setattr(WorkerPool, "_start", lambda pool: StepWorker(None, None))  # type: ignore[arg-type]
    plan = plan_study(make_study(tmp_path, seeds=1, rows={"low": {}}, claims=[], rates={"pretrain": [0.5, 1.0]}))
    execution = Execution(plan, StudyDir(tmp_path), [*plan.steps], jobs=2, records=make_records(plan))
    finetune = next(step for step in plan.steps.values() if step.action == "finetune")
    del execution.records[finetune.key]
    pool = WorkerPool(execution, execution._list_pending())
    started: list[Step] = []
    while (key := pool._take_ready()) is not None:  # each step is finished before the next one
        started.append(plan.steps[key])
        pool.workers[0].step = plan.steps[key]
        assert pool._take_ready() is None
        pool.workers[0].step = None
    assert [step.action for step in started] == ["tokenizer", "data", "pretrain", "finetune"]
    assert started[2].key == execution.records[finetune.inputs[0]]["selected_key"]


@pytest.mark.slow
@pytest.mark.parametrize("lost", [["finetune"], ["choose", "finetune"]])
def test_a_study_continues_from_records_alone(tmp_path: Path, lost: list[str]) -> None:
    """As on another machine that has `steps/*.json` only, with two steps at a time."""
    file = write_study(tmp_path, seeds=1, rows={"low": {}}, claims=[], rates={"pretrain": [0.5, 1.0]})
    whole = pt.compare(file, out=tmp_path / "whole")
    steps = tmp_path / "again/steps"
    steps.mkdir(parents=True)
    shutil.copy(tmp_path / "whole/plan.json", tmp_path / "again")
    for path in (tmp_path / "whole/steps").glob("*.json"):
        if path.name.partition("-")[0] not in lost:
            shutil.copy(path, steps)
    assert pt.compare(str(file), out=tmp_path / "again", jobs=2).table == whole.table


def test_the_cost_of_a_tuned_row_is_that_of_the_selected_run(tmp_path: Path) -> None:
    cost = {"kind": "cost", "amount": "flops", "measure": "table"}
    measures = {"table": {"kind": "finetuned"}, "own": cost, "all": {**cost, "total": True}}
    plan = plan_study(make_study(tmp_path, measures=measures, claims=[], rates={"finetune": [0.5, 2.0]}))
    records = make_records(plan, flops=3.0)
    table = build_results(plan, records, {})["table"]["low"]
    assert table["own"]["values"] == {"0": 3.0, "1": 3.0}
    # Tokenizer, data, one pre-training and both tries; the second seed has a model and a fine-tuning of its own.
    assert table["all"]["values"] == {"0": 15.0, "1": 21.0}
    choice = next(step for step in plan.steps.values() if step.action == "choose")
    del records[choice.inputs[0]]  # whose cost is unknown
    assert build_results(plan, records, {})["table"]["low"]["own"]["values"] == {"1": 3.0}


def test_a_try_that_diverges_is_the_worst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_study(make_study(tmp_path, seeds=1, rates={"finetune": [0.5, 2.0]}))
    runner = StepRunner(plan=plan, study_dir=StudyDir(tmp_path), records={}, device="cpu")
    monkeypatch.setattr(StepRunner, "_finetune", lambda *options: (_ for _ in ()).throw(DivergedError("nan")))
    choice = next(step for step in plan.steps.values() if step.action == "choose")
    first, second = (plan.steps[key] for key in choice.inputs)
    records: Any = runner.records
    records[first.key] = runner.run(first)
    assert records[first.key]["scores"] == {}
    for dev in (0.25, math.nan):
        records[second.key] = make_record(second, {"dev": dev}, {}, {})
        if math.isfinite(dev):
            assert runner.run(choice)["selected_key"] == second.key
        else:
            with pytest.raises(DivergedError):
                runner.run(choice)
    plan = plan_study(make_study(tmp_path, seeds=1))  # without tries it is an error
    with pytest.raises(DivergedError):
        StepRunner(plan=plan, study_dir=StudyDir(tmp_path), records={}, device="cpu").run([*plan.steps.values()][-1])


def test_steps_side_by_side_share_what_is_measured_of_the_device(tmp_path: Path) -> None:
    """The counter of a GPU sees all steps; the estimate of a CPU is of the step's own threads."""
    plan = plan_study(make_study(tmp_path, seeds=1))
    execution = Execution(plan, StudyDir(tmp_path), [*plan.steps], jobs=8)
    cases = [("NVIDIA H200", "measured", 2.0), ("cpu", "estimated", 1.0), ("cpu", "measured", 2.0)]
    for step, (device, label, share) in zip(plan.steps.values(), cases, strict=False):
        cost = {"device": device, "energy_label": label, "kwh": 6.0, "flops": 5.0}
        execution.finish(step, make_record(step, {}, {}, cost), 0.0, overlap=2.0)
        assert execution.records[step.key]["cost"]["overlap"] == share
    read_records = execution.study_dir.read_records(plan)
    assert sum_costs(plan, read_records)["kwh"] == 3.0 + 6.0 + 3.0 and sum_costs(plan, read_records)["flops"] == 15.0


def test_the_mean_number_of_steps_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerPool, "_start", lambda pool: StepWorker(None, None))  # type: ignore[arg-type]
    plan = plan_study(make_study(tmp_path, seeds=1))
    step = next(iter(plan.steps.values()))
    pool = WorkerPool(Execution(plan, StudyDir(tmp_path), [*plan.steps], jobs=3), [*plan.steps])
    monkeypatch.setattr("pretune.studies.execute.time.monotonic", lambda: 10.0)
    assert pool._compute_overlap(6.0) == 1.0
    pool.workers[1].step, pool.workers[1].start = step, 8.0  # half of the time of the next one
    assert pool._compute_overlap(6.0) == 1.0 + 1.0 + 0.5


def test_overrides_are_a_part_of_the_results(tmp_path: Path) -> None:
    file = write_study(tmp_path, seeds=1)
    result = pt.compare(file, out=tmp_path / "out", overrides={"finetune.steps": 3, "pretrain.steps": 2})
    text = (tmp_path / "out/study.md").read_text()
    assert "| finetune.steps | 3 |" in text and "--set finetune.steps=3 --set pretrain.steps=2" in text
    assert result.results["overrides"] == {"finetune.steps": "3", "pretrain.steps": "2"}


def test_the_utilisation_is_over_the_time_in_which_any_pretraining_ran(tmp_path: Path) -> None:
    """Two of four beside each other: 100 s of three minutes, at a tenth of the peak of an H200 in the mean."""
    plan = plan_study(make_study(tmp_path, seeds=2))
    pretrainings = [step for step in plan.steps.values() if step.action == "pretrain"]
    spans = [(0.0, 40.0), (20.0, 40.0), (120.0, 20.0), (160.0, 20.0)]
    records = make_records(plan)
    for step, (start, seconds) in zip(pretrainings, spans, strict=True):
        cost = {"device": "NVIDIA H200", "flops": 989e12 * 100 / 40, "seconds": seconds}
        records[step.key] = make_record(step, {"loss": 5.0}, {"start_time": start, "total_seconds": seconds}, cost)
    results = build_results(plan, records, {})
    assert results["cost"]["pretrain_seconds"] == pytest.approx(100.0)
    assert results["cost"]["pretrain_flops"] == pytest.approx(989e12 * 10)
    assert dict(list_costs(results))["MFU over all pre-trainings"].startswith("10.0% of 989TFLOP/s; 1:40")
    for record in records.values():  # of an earlier version
        record["amounts"].pop("start_time", None)
    assert "MFU over all pre-trainings" not in dict(list_costs(build_results(plan, records, {})))


def test_rows_run_one_after_the_other(tmp_path: Path) -> None:
    """The cells of one row, then of all: the steps of the first are not run again."""
    measures = {"loss": {"kind": "validation"}}
    file = write_study(tmp_path, seeds=1, measures=measures, claims=[])
    with pytest.raises(UsageError, match="lows"):
        pt.compare(file, out=tmp_path / "out", row=["lows"])
    first = pt.compare(file, out=tmp_path / "out", row=["low"])
    assert first.table["low"]["loss"] > 0 and "loss" not in first.table["high"]
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out/steps").glob("*.json")}
    whole = pt.compare(file, out=tmp_path / "out")
    assert whole.table["low"] == first.table["low"] and whole.table["high"]["loss"] > 0
    assert (
        times.items()
        <= {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out/steps").glob("*.json")}.items()
    )
