"""The execution of a study: records, resume after signals and kills, shards, failures, results."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.cli import main
from pretune.core import log, machine
from pretune.core.errors import StoppedError, UsageError
from pretune.reports.study_text import format_tuning, format_verdict, render_study_text
from pretune.runs.samples import SampleHook
from pretune.studies import actions, estimates, execute, schedule
from pretune.studies.compare import CompareOptions, build_plan
from pretune.studies.execute import Execution, StepWorker, WorkerPool, run_worker
from pretune.studies.plan import StepEstimate
from pretune.studies.planner import plan_study
from pretune.studies.read import load_study
from pretune.studies.results import build_results
from pretune.studies.schedule import choose_jobs, list_shard_cells, parse_shard
from pretune.studies.study_dir import StudyDir, make_record
from tests.selection import keep_quick
from tests.studies.studies import make_study, make_tree, write_study

RATES = {"pretrain": [0.5, 1.0], "finetune": [0.5, 2.0]}


def read(folder: Path) -> dict[str, Any]:
    """The results without times, which differ between machines."""
    results: dict[str, Any] = json.loads((folder / "study.json").read_text())
    del results["cost"]
    return results


def test_a_study_from_file_to_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in a pre-training and again in a fine-tuning, it gives what an uninterrupted one gives."""
    file = write_study(tmp_path, seeds=1)
    whole = pt.compare(file, out=tmp_path / "whole")
    assert [*whole.table] == ["low", "high"] and [*whole.table["low"]] == ["loss", "table"]
    assert whole.verdicts == {"A low rate is better (loss)": "undecided"}  # one seed
    assert repr(whole).startswith("StudyResult(") and "<table>" in whole._repr_html_()
    page = whole.page.read_text()
    assert "undecided at this budget" in page and "Nobody (2000): Rates" in page and "not tuned" in page
    assert (tmp_path / "whole" / "study.md").read_text().startswith("# Rates")

    calls = []

    def stop(hook: SampleHook, loop: Any, metrics: Any) -> None:
        calls.append(loop.state.step)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    out = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        patch.setattr(SampleHook, "__call__", stop)
        with pytest.raises(StoppedError, match=r"stopped after 2 of 6 steps; run the same command again to resume"):
            pt.compare(file, out=out)
    assert [*out.glob("steps/pretrain-*/checkpoints/step-*")]
    with monkeypatch.context() as patch:
        patch.setattr(actions, "run_finetune", lambda *args, **options: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(["compare", file, "--out", str(out), "--quiet"]) == 130
    again = pt.compare(file, out=out)
    assert read(out) == read(tmp_path / "whole") and again.table == whole.table
    assert not [*out.glob("steps/*/checkpoints")]

    with monkeypatch.context() as patch:  # nothing is left to run
        patch.setattr(actions.StepRunner, "run", lambda *args, **options: pytest.fail("a finished step was run again"))
        pt.compare(file, out=out)


@pytest.mark.slow
def test_shards_and_merge_give_the_whole(tmp_path: Path) -> None:
    file = write_study(tmp_path, rates=RATES)
    whole = pt.compare(file, out=tmp_path / "whole")
    shards = [tmp_path / f"shard {number}" for number in (1, 2)]
    for number, out in enumerate(shards, 1):
        pt.compare(file, out=out, shard=f"{number}/2")
    merged = pt.compare(file, out=tmp_path / "merged", merge=shards)
    assert read(tmp_path / "merged") == read(tmp_path / "whole") and merged.table == whole.table
    # more seeds: weights of merged steps are not there, so what new cells need is computed again
    assert pt.compare(file, out=tmp_path / "merged", seeds=3).table["low"].keys() == whole.table["low"].keys()


def test_claims_about_unfinished_rows_are_not_measured(tmp_path: Path) -> None:
    plan = plan_study(make_study(tmp_path, seeds=3))
    records, outcomes = dict[str, Any](), []
    for cell in sorted(plan.cells, key=lambda cell: cell.row == "high"):
        step = plan.steps[cell.readings["loss"].step]
        records[step.key] = make_record(step, {"loss": 2.0 + (cell.row == "high")}, {}, {})
        outcomes.append(build_results(plan, records, {})["claims"][0]["outcome"])
    assert outcomes == ["not measured"] * 3 + ["undecided"] * 2 + ["holds"]


def test_rates_at_the_end_of_a_range_are_named(tmp_path: Path) -> None:
    """Fine-tuning alone is tuned: its page says so, and for which rows no larger or smaller rate was tried."""
    plan = plan_study(make_study(tmp_path, seeds=1, rates={"finetune": [0.5, 1.0, 2.0]}))
    assert plan.tuned_actions == ["finetune"] and not plan.is_tuned
    best, records = {"low": 2.0, "high": 1.0}, dict[str, Any]()
    for cell in plan.cells:
        step = plan.steps[cell.readings["table"].step]
        tries = {plan.steps[key].rate_factor: key for key in step.inputs}
        scores = {"accuracy": 0.5, "dev": 0.5}
        records[step.key] = make_record(step, scores, {}, {}, selected_key=tries[best[cell.row]])
    results = build_results(plan, records, {})
    assert {choice["row"]: choice["factor"] for choice in results["chosen_rates"]} == best
    assert {choice["action"] for choice in results["chosen_rates"]} == {"finetune"}
    text = format_tuning(results)
    assert "low (2 x)" in text and "high" not in text and "3 of fine-tuning" in text and "pre-training are not" in text


def test_shards_divide_the_cells(tmp_path: Path) -> None:
    plan = build_plan(CompareOptions(study=write_study(tmp_path, seeds=4)))
    for count in (1, 2, 3, 8):
        shards = [list_shard_cells(plan, number, count) for number in range(1, count + 1)]
        cells = [(cell.row, cell.seed) for shard in shards for cell in shard]
        assert sorted(cells) == sorted((cell.row, cell.seed) for cell in plan.cells)
        assert max(map(len, shards)) - min(map(len, shards)) <= 1
    halves = [set(plan.list_steps(list_shard_cells(plan, number, 2))) for number in (1, 2)]
    assert {plan.steps[key].action for key in halves[0] & halves[1]} == {"tokenizer", "data"}


@pytest.mark.slow
@pytest.mark.parametrize("name", keep_quick(["history", "bert-size", "bart-noise"], "bert-size"))
def test_machines_of_different_speed_divide_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    divisions = []
    for speed in (2e9, 3e10, 3e11):
        monkeypatch.setattr(estimates, "measure_core", lambda width, speed=speed: speed * width / 512)
        plan = plan_study(load_study(name), "gpu")
        shards = [list_shard_cells(plan, number, 2) for number in (1, 2)]
        divisions.append([[(cell.row, cell.seed) for cell in shard] for shard in shards])
    assert divisions[0] == divisions[1] == divisions[2]
    assert min(map(len, divisions[0])) > 0


def test_cells_of_one_model_are_divided_where_they_must(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, seeds=4)
    tree["settings"]["pretrain"]["seed"] = 0
    plan = build_plan(CompareOptions(study=write_study(tmp_path, tree)))
    whole = plan.list_steps(plan.cells)
    parts = [plan.list_steps(list_shard_cells(plan, number, 2)) for number in (1, 2)]
    assert set(parts[0]) | set(parts[1]) == set(whole)
    repeated = [plan.steps[key].action for key in set(parts[0]) & set(parts[1])]
    assert sorted(repeated) == ["data", "tokenizer"]  # each shard has the model of one row


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_bad_shards(text: str) -> None:
    with pytest.raises(UsageError, match="--shard must be i/n"):
        parse_shard(text)


@pytest.mark.slow
def test_a_failed_cell_leaves_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_study(
        tmp_path,
        seeds=1,
        rows={"low": {}, "high": {"finetune.train_examples": 90, "finetune.task.split_seed": 1}},
        measures={"table": {"kind": "finetuned"}},
        claims=[],
    )
    table = tmp_path / "table.csv"
    out = tmp_path / "out"
    table.write_text("\n".join(table.read_text().splitlines()[:100]))  # too few for the second row
    assert main(["compare", file, "--out", str(out)]) == 3
    error = capsys.readouterr().err
    assert "high: default method" in error and "study.html" in error
    results = read(out)
    assert "table" in results["table"]["low"] and not results["table"]["high"]
    assert results["failures"] and results["missing"] == [{"row": "high", "seed": 0, "measures": ["table"]}]


@pytest.mark.slow
def test_an_unknown_score_is_an_error(tmp_path: Path) -> None:
    measures = {"loss": {"kind": "validation", "score": "perplexty"}}
    with pytest.raises(UsageError, match="no score 'perplexty'; did you mean 'perplexity'"):
        pt.compare(write_study(tmp_path, measures=measures, claims=[], seeds=1), out=tmp_path / "out")


def test_directories_of_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_study(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    assert main(["compare", file, "--out", str(tmp_path / "full")]) == 2
    assert "holds other files (thesis.tex)" in capsys.readouterr().err
    assert main(["compare", file, "--out", str(tmp_path / "new"), "--merge", str(tmp_path / "full")]) == 2
    assert "no study (plan.json is missing)" in capsys.readouterr().err
    assert main(["compare", file]) == 2
    assert main(["compare", file, "--out", str(tmp_path / "new"), "--jobs", "0"]) == 2
    assert main(["compare", file, "--out", str(tmp_path / "new"), "--shard", "1/2", "--merge", "x"]) == 2


@pytest.mark.slow
def test_all_measures_and_kinds_of_rows(tmp_path: Path) -> None:
    """Baselines, static vectors, distillation, continued pre-training, embeddings, texts, costs, averages."""
    (tmp_path / "held.txt").write_text("the river and the stone.\n\nlight in the garden.")
    pairs = "\n".join(f"river stone {i % 3},stone river {i % 3}" for i in range(20))
    (tmp_path / "pairs.csv").write_text(f"anchor,positive\n{pairs}")
    (tmp_path / "scored.csv").write_text(
        "sentence1,sentence2,score\n" + "\n".join(f"river {i},stone {i},{i / 20}" for i in range(20))
    )
    rows = {
        "model": {},
        "student": {"pretrain.teacher": "row:teacher"},
        "more": {"pretrain.init_from": "row:model"},
        "from random weights": {"finetune.method": "full+from-scratch"},
        "LoRA": {"finetune.method": {"kind": "lora", "rank": 2}},
        "SVM": {"baseline": "svm"},
        "vectors": {"baseline": "vectors", "vectors": {"kind": "ppmi", "width": 4, "min_count": 1}},
    }
    measures = {
        "loss": {"kind": "validation"},
        "held": {"kind": "text", "text": [str(tmp_path / "held.txt")], "score": "bits_per_byte"},
        "table": {"kind": "finetuned"},
        "f1": {"kind": "finetuned", "score": "dev"},
        "scored": {"kind": "task", "task": "scored_pairs", "model": "embeddings"},
        "mean": {"kind": "average", "measures": ["table", "f1"]},
        "trained": {"kind": "cost", "amount": "trained_share", "measure": "table"},
        "FLOPs": {"kind": "cost", "amount": "flops", "measure": "table", "total": True},
    }
    tree = make_tree(
        tmp_path, rows=rows, measures=measures, claims=[], seeds=1, bases={"teacher": {"pretrain.model.width": 32}}
    )
    tree["settings"] |= {
        "embeddings": {"train": str(tmp_path / "pairs.csv"), "steps": 2, "batch": 4},
        "evaluate.data": str(tmp_path / "scored.csv"),
    }
    table = pt.compare(write_study(tmp_path, tree), out=tmp_path / "out").table
    assert {*table["model"]} == {*measures}
    assert {*table["SVM"]} == {"table", "FLOPs"}  # no score on dev, and nothing is trained
    assert table["LoRA"]["trained"] < table["model"]["trained"] == 1.0
    assert table["more"]["FLOPs"] > table["model"]["FLOPs"]
    assert table["student"]["FLOPs"] > table["model"]["FLOPs"]
    assert table["model"]["mean"] == pytest.approx((table["model"]["table"] + table["model"]["f1"]) / 2)


@pytest.mark.slow
def test_rows_that_learn_nothing_are_marked(tmp_path: Path) -> None:
    """A step without a learning rate cannot learn; many steps learn the word that tells the label."""
    rows = {
        "nothing": {"finetune.train.lr": 1e-12},
        "too little": {"finetune.train.lr": 1e-11},
        "much": {"finetune.train.lr": 1e-2, "finetune.steps": 60},
    }
    claims = [
        {"text": f"Nothing is better than {worse}", "measure": "table", "better": "nothing", "worse": worse}
        for worse in ("too little", "much")
    ]
    file = write_study(tmp_path, rows=rows, claims=claims, seeds=2, reference="nothing")
    results = pt.compare(file, out=tmp_path / "out").results
    cells = {row: results["table"][row]["table"] for row in rows}
    assert [cells[row]["is_above_baseline"] for row in rows] == [False, False, True]
    assert all(cell["baseline"] == 0.5 for cell in cells.values())
    assert "is_above_baseline" not in results["table"]["much"]["loss"]
    neither, one = (claim["reason"] for claim in results["claims"])
    assert "neither" in neither and "neither" not in one
    assert all(
        "word frequencies" in format_verdict(results, claim) for claim in results["claims"]
    )  # no step of the base
    marked = [format_verdict(results, {**claim, "plateau_rows": []}) for claim in results["claims"]]
    assert [verdict.endswith("°") for verdict in marked] == [True, False]
    for name in ("study.md", "study.html"):
        assert "°" in (tmp_path / "out" / name).read_text(encoding="utf-8")
    learned = {**results, "table": {"much": results["table"]["much"]}, "rows": ["much"], "claims": []}
    assert "°" not in render_study_text(learned)


def test_few_shot_scores_below_the_majority_class_are_marked(tmp_path: Path) -> None:
    """A difference between two models at chance may exceed its standard errors; its verdict is marked."""
    measures = {"4 shots": {"kind": "task", "task": "sst2", "shots": 4}}
    claim = {"text": "A low rate is better", "measure": "4 shots", "better": "low", "worse": "high"}
    plan = plan_study(make_study(tmp_path, measures=measures, claims=[claim], seeds=3))
    means, verdicts = {"low": 0.50, "high": 0.49}, []
    for majority in (0.51, 0.4):
        records: dict[str, Any] = {}
        for cell in plan.cells:
            step = plan.steps[cell.readings["4 shots"].step]
            scores = {"accuracy": means[cell.row] + cell.seed / 1000, "majority": majority}
            records[step.key] = make_record(step, scores, {}, {})
        results = build_results(plan, records, {})
        assert results["table"]["low"]["4 shots"]["is_above_baseline"] is (majority < 0.5)
        verdicts.append(format_verdict(results, results["claims"][0]))
    assert verdicts == ["holds °", "holds"]


def test_a_baseline_reads_a_built_in_task(tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "sst2"
    folder.mkdir(parents=True)
    for split, count in (("train", 40), ("dev", 10), ("test-labeled", 10)):
        lines = [f"a {('dull', 'fine')[i % 2]} film {i}\t{i % 2}" for i in range(count)]
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]))
    rows, measures = {"majority": {"baseline": "majority"}}, {"SST-2": {"kind": "finetuned", "task": "sst2"}}
    file = write_study(tmp_path, rows=rows, measures=measures, claims=[], seeds=1)
    result = pt.compare(file, out=tmp_path / "out", data=tmp_path)
    assert result.table == {"majority": {"SST-2": 0.5}}
    cost = result.results["cost"]
    plan = build_plan(CompareOptions(study=file, data=tmp_path))
    assert cost["estimated_seconds"] == plan.sum_estimates().seconds > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_points_change_nothing(tmp_path: Path, seed: int) -> None:
    tree = make_tree(tmp_path, seeds=2, rates=RATES, budget={"tokens": 20_000})
    tree["settings"]["pretrain"]["train"] |= {"checkpoint_every": 5, "eval_every": 20}
    tree["settings"]["finetune"] |= {"steps": 60, "train.checkpoint_every": 5}
    command = [sys.executable, "-m", "pretune", "compare", write_study(tmp_path, tree), "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(tmp_path / "whole")], check=True, env=environment, capture_output=True)
    draw, code = random.Random(seed), -1
    for _ in range(40):
        process = subprocess.Popen(
            [*command, str(tmp_path / "killed")], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            code = process.wait(timeout=draw.uniform(5.0, 14.0))
        except subprocess.TimeoutExpired:
            process.send_signal(draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            code = process.wait(timeout=120)
            time.sleep(0.1)
        if code == 0:
            break
        assert code in (75, 130, -9, -15), code
    assert code == 0
    assert read(tmp_path / "killed") == read(tmp_path / "whole")


def test_steps_side_by_side_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "count_cores", lambda: 2)
    plan = plan_study(make_study(tmp_path, seeds=1))
    assert choose_jobs(plan, "cpu") == 1  # shorter than the start of processes is worth
    steps = {key: replace(step, estimate=StepEstimate(seconds=60.0)) for key, step in plan.steps.items()}
    assert choose_jobs(replace(plan, steps=steps), "cpu") == 2
    assert choose_jobs(replace(plan, steps=steps, budget={"seconds": 60.0}), "cpu") == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("jobs", "expected"), [(3, "4"), (40, "1")])
def test_workers_share_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, jobs: int, expected: str
) -> None:
    """All together have as many threads as there are cores, and as many processes that compile."""
    plan = plan_study(make_study(tmp_path, seeds=1))
    monkeypatch.setattr(execute, "count_cores", lambda: 12)
    monkeypatch.setattr(log, "set_quiet", lambda quiet: None)
    requests: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", requests.append)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "")
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS")
    parent, child = Pipe()
    parent.close()
    run_worker(child, plan, StudyDir(tmp_path), device, None, jobs)
    assert requests == [int(expected)] and os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == expected


def test_what_the_most_waits_for_comes_first(tmp_path: Path) -> None:
    """Of steps that are ready at the same time, that with the longest chain of later steps; inputs before their users.

    A small study waited for its tokenizer, the last of 28 steps that were ready, with most workers idle afterwards.
    """
    plan = plan_study(make_study(tmp_path, seeds=2))
    seconds = {"tokenizer": 1.0, "data": 2.0, "pretrain": 30.0, "finetune": 10.0, "baseline": 50.0}
    steps = {
        key: replace(step, estimate=StepEstimate(seconds=seconds.get(step.action, 0.0)))
        for key, step in plan.steps.items()
    }
    keys = schedule.sort_by_critical_path(replace(plan, steps=steps), [*steps])
    actions = [steps[key].action for key in keys]
    assert sorted(keys) == sorted(steps)
    assert actions.index("tokenizer") < actions.index("data") < actions.index("pretrain") < actions.index("finetune")
    assert max(index for index, action in enumerate(actions) if action == "pretrain") < actions.index("finetune")
    places = {key: index for index, key in enumerate(keys)}
    assert all(places[other] < places[key] for key in keys for other in steps[key].inputs)


def test_fine_tunings_run_beside_pretrainings_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the steps side by side are pre-trainings while others are ready; on a CPU all may be."""
    plan = plan_study(make_study(tmp_path, seeds=1))
    steps = {step.action: step for step in plan.steps.values()}
    pretrain, finetune, data = steps["pretrain"], steps["finetune"], steps["data"]
    for running, ready, selected in (
        ([], [pretrain, finetune], pretrain),
        ([pretrain, finetune], [pretrain, finetune], pretrain),
        ([pretrain, pretrain], [pretrain, finetune, data], finetune),
        ([pretrain, pretrain], [pretrain], pretrain),
    ):
        assert schedule.select_step(ready, running, 2) is selected
    assert [schedule.count_pretrainings(plan, jobs, "cpu") for jobs in (2, 7)] == [2, 7]
    monkeypatch.setattr(schedule, "resolve_device", lambda device: "cuda:0")
    assert [schedule.count_pretrainings(plan, jobs, None) for jobs in (1, 2, 7)] == [1, 1, 4]
    large = {key: replace(step, estimate=StepEstimate(flops=2e16)) for key, step in plan.steps.items()}
    assert [schedule.count_pretrainings(replace(plan, steps=large), jobs, None) for jobs in (1, 2, 7)] == [1, 1, 2]


@pytest.mark.parametrize(("limit", "is_mixed"), [(2, False), (1, True)])
def test_two_workers_mix_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, is_mixed: bool) -> None:
    """The first fine-tuning starts before the last pre-training if only one of both workers may pre-train."""
    monkeypatch.setattr(WorkerPool, "_start", lambda pool: StepWorker(None, None))  # type: ignore[arg-type]
    monkeypatch.setattr(execute, "count_pretrainings", lambda plan, jobs, device: limit)
    plan = plan_study(make_study(tmp_path, seeds=3))
    pool = WorkerPool(Execution(plan, StudyDir(tmp_path), [*plan.steps], device="cpu", jobs=2), [*plan.steps])
    started: list[str] = []
    while pool.pending:
        for worker in pool.workers:  # each ends its step in turn
            worker.step = None
            for idle in (other for other in pool.workers if other.step is None):
                if (key := pool._take_ready()) is not None:
                    idle.step = plan.steps[key]
                    started.append(key)
    actions = [plan.steps[key].action for key in started]
    assert sorted(started) == sorted(plan.steps)
    last_pretraining = max(index for index, action in enumerate(actions) if action == "pretrain")
    assert (actions.index("finetune") < last_pretraining) is is_mixed


def test_only_shared_steps_use_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has its share of the cores, except in steps that most others wait for."""
    plan = plan_study(make_study(tmp_path, seeds=1))
    cores = {}

    def record(runner: Any, step: Any) -> str:
        cores[step.action] = machine.count_cores()
        return step.key

    monkeypatch.setattr(execute, "run_step", record)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {*range(12)}, raising=False)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(log, "set_quiet", lambda quiet: None)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    parent, child = Pipe()
    for key in plan.steps:
        parent.send((key, {}))
    received = len(plan.steps)
    thread = threading.Thread(target=lambda: ([parent.recv() for _ in range(received)], parent.close()))
    thread.start()
    run_worker(child, plan, StudyDir(tmp_path), "cpu", None, 4)
    thread.join()
    assert cores["tokenizer"] == cores["data"] == 12
    assert cores["pretrain"] == cores["finetune"] == 3
    assert machine.count_cores() == 12


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_studies_share_equal_steps(tmp_path: Path, jobs: int) -> None:
    """The second study has the first row of the first one: it reads its model and runs only what is new."""
    folders = [tmp_path / name for name in ("first", "second", "alone")]
    first = write_study(tmp_path, seeds=1)
    pt.compare(first, out=folders[0])
    rows = {"low": {"pretrain.objective.rate": 0.15}, "tuned": {"pretrain.objective.rate": 0.15, "finetune.steps": 3}}
    second = write_study(tmp_path, seeds=1, rows=rows, claims=[])
    shared = pt.compare(second, out=folders[1], share=[folders[0]], jobs=jobs)
    assert [path.name.partition("-")[0] for path in folders[1].glob("steps/*") if path.is_dir()] == ["finetune"]
    assert shared.table == pt.compare(second, out=folders[2]).table
    with pytest.raises(UsageError, match=r"plan\.json"):
        pt.compare(second, out=tmp_path / "other", share=[tmp_path])
