"""Several runs as one: combined predictions, averaged weights, and what cannot be combined."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.cli import main
from pretune.core.errors import CheckpointError, UsageError
from pretune.runs.finetune.inference import build_table_task, evaluate_run, open_runs
from pretune.tasks import TASKS
from pretune.tasks.example import Example, Prediction
from pretune.tasks.task import Task
from pretune.tasks.types import get_type, score
from tests.conftest import Capture, run_command
from tests.runs import tasked

TEXTS = ["a lovely quiet house", "the dreadful wind", "a long road", "the night"]


@pytest.fixture(scope="module")
def runs(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Full fine-tuning with two seeds, and LoRA."""
    room = tmp_path_factory.mktemp("runs")
    train = tasked.classes(room / "train.csv")
    for seed, method in ((0, "full"), (1, "full"), (2, "lora")):
        pt.finetune(
            base,
            train=train,
            out=room / f"{method}{seed}",
            method=method,
            steps=6,
            baselines="none",
            overrides={"train.seed": seed},
        )
    return [room / "full0", room / "full1", room / "lora2"]


def shares(outputs: list[dict]) -> np.ndarray:
    return np.array([[output["probabilities"][name] for name in ("bad", "good")] for output in outputs])


@pytest.mark.slow
def test_probabilities_are_averaged(runs: list[Path]) -> None:
    alone = [shares(pt.predict(run, TEXTS)) for run in runs]
    assert np.abs(alone[0] - alone[1]).max() > 1e-4  # the runs differ
    together = pt.predict(runs, TEXTS)
    np.testing.assert_allclose(shares(together), np.mean(alone, axis=0), atol=2e-6)
    assert [output["label"] for output in together] == [("bad", "good")[row.argmax()] for row in np.mean(alone, axis=0)]


def test_on_the_command_line(runs: list[Path], tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")
    assert main(["--quiet", "predict", *map(str, runs), f"--input={tmp_path / 'in.txt'}"]) == 0
    outputs = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose(shares(outputs), shares(pt.predict(runs, TEXTS)), atol=2e-6)
    test = tasked.classes(tmp_path / "test.csv", count=20, seed=5)
    record = json.loads(run_command(capsys, ["--quiet", "evaluate", *map(str, runs), f"--test={test}", "--json"]).out)
    assert record["model"] == [*map(str, runs)]
    assert 0 <= record["results"][0]["scores"]["accuracy"] <= 1


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_quantized_runs_predict(runs: list[Path], kind: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")
    assert main(["--quiet", "predict", str(runs[2]), f"--input={tmp_path / 'in.txt'}", f"--quantize={kind}"]) == 0
    outputs = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    difference = np.abs(shares(outputs) - shares(pt.predict(runs[2], TEXTS))).max()
    assert 0 < difference < 0.1


def test_a_soup_has_the_mean_of_the_weights(runs: list[Path], tmp_path: Path, capsys: Capture) -> None:
    given = ["export", *map(str, runs), "--to=hf", f"--out={tmp_path / 'soup'}"]
    assert main(["--quiet", *given]) == 0
    capsys.readouterr()
    models = [pt.load(run) for run in runs[:2]]
    lora = open_runs(runs[2]).load()
    pt.LoRA().merge(lora.model)
    expected = [
        torch.stack([dict(model.named_parameters())[name] for model in (*models, lora)]).mean(0)
        for name, _ in models[0].named_parameters()
    ]
    soup = pt.load(tmp_path / "soup")
    for (name, actual), mean in zip(soup.named_parameters(), expected, strict=True):
        torch.testing.assert_close(actual, mean, rtol=1e-5, atol=1e-6, msg=name)
    outputs = pt.predict(tmp_path / "soup", TEXTS)  # it is a run with a task
    assert {*outputs[0]["probabilities"]} == {"bad", "good"}
    test = tasked.classes(tmp_path / "test.csv", count=20, seed=5)
    assert main(["--quiet", "evaluate", str(tmp_path / "soup"), f"--test={test}", "--json"]) == 0


class TestRefused:
    def test_another_task(self, base: Path, runs: list[Path], tmp_path: Path) -> None:
        train = tasked.scores(tmp_path / "scores.csv")
        pt.finetune(base, train=train, out=tmp_path / "other", type="regression", text="one", steps=1, baselines="none")
        for use in (
            lambda: pt.predict([runs[0], tmp_path / "other"], TEXTS),
            lambda: pt.evaluate([runs[0], tmp_path / "other"]),
        ):
            with pytest.raises(UsageError, match="other"):
                use()
        with pytest.raises(UsageError):
            pt.export([runs[0], tmp_path / "other"], out=tmp_path / "soup")
        assert not (tmp_path / "soup").exists()

    def test_weights_of_another_base(self, runs: list[Path], tmp_path: Path) -> None:
        other = tasked.make_base(tmp_path / "base")
        pt.finetune(other, train=runs[0].parent / "train.csv", out=tmp_path / "other", steps=1, baselines="none")
        with pytest.raises(UsageError, match="other"):
            pt.export([runs[0], tmp_path / "other"], out=tmp_path / "soup")
        assert not (tmp_path / "soup").exists()
        assert pt.predict([runs[0], tmp_path / "other"], TEXTS)  # but their predictions can be combined

    def test_a_model_without_a_task(self, base: Path, runs: list[Path]) -> None:
        with pytest.raises(CheckpointError, match=r"task\.json"):
            pt.evaluate([runs[0], base])

    def test_nothing(self) -> None:
        for use in (lambda: pt.predict([], TEXTS), lambda: pt.evaluate([]), lambda: pt.export([], out="x")):
            with pytest.raises(UsageError):
                use()


class TestCombine:
    """Of the types, on predictions written by hand."""

    def combine(
        self, kind: str, *predictions: Prediction, threshold: float | None = None, **settings: object
    ) -> Prediction:
        task = Task(name="x", kind=kind, metrics=(), splits={}, **settings)  # type: ignore[arg-type]
        return get_type(task).outputs.combine(task, predictions, threshold)

    def test_tags_by_majority(self) -> None:
        a, b, c = (Prediction(tags=tags) for tags in (("A", "B", "C"), ("A", "C", "B"), ("B", "C", "A")))
        assert self.combine("tagging", a, b, c, labels=("A", "B", "C")).tags == ("A", "C", "C")

    def test_answers_by_majority_and_ties_by_order(self) -> None:
        one, two = Prediction(text="Paris", span=(0, 5)), Prediction(text="", span=None)
        assert self.combine("span", two, one, one).text == "Paris"
        assert self.combine("span", two, one).text == ""

    def test_values_by_their_mean(self) -> None:
        assert self.combine("regression", Prediction(value=1.0), Prediction(value=2.0)).value == 1.5

    def test_label_sets_by_mean_probabilities_and_threshold(self) -> None:
        pair = Prediction(probabilities=(0.9, 0.2)), Prediction(probabilities=(0.3, 0.4))
        assert self.combine("multi-label", *pair, labels=("a", "b")).tags == ("a",)
        assert self.combine("multi-label", *pair, threshold=0.25, labels=("a", "b")).tags == ("a", "b")


def test_scores_of_an_ensemble(runs: list[Path], tmp_path: Path) -> None:
    task = build_table_task(runs[0], tasked.classes(tmp_path / "t.csv", count=30, seed=9))
    found = evaluate_run(runs, task=task)
    assert found.counts["examples"] == 30 and 0 <= found.scores["accuracy"] <= 1


def test_an_ensemble_that_chooses_is_scored_by_what_it_chose() -> None:
    """The first of three models is wrong, the others are right and sure."""
    task, example = TASKS.get("copa"), Example(text="x", pair="effect", choices=("a", "b"), label=1)

    def predict(*scores: float) -> Prediction:
        shares = np.exp(scores) / np.exp(scores).sum()
        return Prediction(label=int(shares.argmax()), probabilities=tuple(shares.tolist()), scores=scores)

    combined = get_type(task).outputs.combine(task, [predict(0.2, 0.0), predict(0.0, 3.0), predict(0.0, 3.0)])
    assert combined.label == 1 and score(task, [example], [combined]) == {"choice_accuracy": 1.0}
    plain = Prediction(label=0, probabilities=(0.7, 0.3))  # a classifier has no scores of options
    assert get_type(task).outputs.combine(task, [plain, plain]).scores == ()


def test_calibration_reads_probabilities() -> None:
    task = replace(TASKS.get("sst2"), metrics=("accuracy", "calibration_error"))
    prediction = Prediction(label=1, probabilities=(0.25, 0.75), scores=(0.5, 1.6))
    scores = score(task, [Example(text="x", label=1)], [prediction])
    assert scores == {"accuracy": 1.0, "calibration_error": pytest.approx(0.25)}
