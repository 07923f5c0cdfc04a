"""A run that is asked again: of what it has never seen, with its own names of labels and its own threshold."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.core.errors import UsageError
from pretune.runs.evaluate import evaluate
from pretune.runs.finetune.config import TaskConfig
from pretune.runs.finetune.entry import finetune
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.finetune.inference import _relabel, build_table_task, evaluate_run
from pretune.runs.finetune.task_data import open_task
from pretune.tasks import TASKS
from pretune.tasks.example import Example
from tests.runs import tasked

SEED = 3
"""Of the division."""


def folder(home: Path, *splits: str, count: int = 60) -> Path:
    """QNLI with these splits, which differ in their texts; what is right is drawn, and can only be learnt by heart."""
    place = home / "tasks" / "qnli"
    place.mkdir(parents=True)
    for number, split in enumerate(splits):
        rng = random.Random(number)
        labels = ["entailment", "not_entailment"] * (count // 2)
        rows = [f"{at}\t{tasked.sentence(rng)}\t{tasked.sentence(rng)}\t{label}" for at, label in enumerate(labels)]
        (place / f"{split}.tsv").write_text("\n".join(["index\tquestion\tsentence\tlabel", *rows]) + "\n")
    return home


@pytest.fixture(scope="module")
def divided(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[FinetunedRun, Path]:
    """A run on a task of which there is one split, and that by heart."""
    home = folder(tmp_path_factory.mktemp("one"), "dev")
    changes: dict[str, Any] = {"task.split_seed": SEED, "train.log_every": 50}
    out = home / "run"
    return finetune(base, task="qnli", data=home, out=out, lr=3e-3, epochs=2, baselines="none", overrides=changes), home


def test_what_was_divided_is_divided_again(divided: tuple[FinetunedRun, Path]) -> None:
    run, home = divided
    result = run.scores["result"]
    assert result["split"] == "test" and result["examples"] == 6
    again = evaluate_run(run, data=home)
    assert (again.split, again.counts["examples"], again.scores) == ("test", 6, result["scores"])
    assert any("80/10/10" in note for note in again.notes)
    dev = evaluate_run(run, data=home, split="dev")
    assert dev.counts["examples"] == 6 and next(iter(dev.scores.values())) == run.scores["model"]["dev"]
    (told,) = evaluate(run.path, "qnli", data=home)
    assert told.scores == result["scores"] and any("80/10/10" in note for note in told.notes)


def test_nothing_of_it_was_trained_on(divided: tuple[FinetunedRun, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    run, home = divided
    trained = open_task(TaskConfig(name="qnli", data=str(home), split_seed=SEED)).parts.train
    asked: list[str] = []
    monkeypatch.setattr("pretune.runs.finetune.finetuned_run.predict", lambda m, e, examples, **more: asked.extend(
        one.text for one in examples) or [])  # fmt: skip
    for split in (None, "dev", "test"):
        with pytest.raises(Exception, match=r"\b0\b.*\b6\b"):
            evaluate_run(run, data=home, split=split)
    assert len(asked) == 18 and not {*asked} & {one.text for one in trained}


def test_another_run_is_asked_all_of_it(base: Path, divided: tuple[FinetunedRun, Path], tmp_path: Path) -> None:
    """Who learnt the same task from a train split is judged on the whole of dev, and so is who learnt another."""
    home = folder(tmp_path, "train", "dev", count=24)
    run = finetune(base, task="qnli", data=home, out=tmp_path / "run", steps=1, baselines="none")
    found = evaluate_run(run, data=home)
    assert (found.split, found.counts["examples"], found.notes) == ("dev", 24, ())
    tree = json.loads((run.path / "run.json").read_text())
    tree["task"]["name"] = "mnli"
    (run.path / "run.json").write_text(json.dumps(tree))
    assert evaluate_run(run, task="qnli", data=divided[1]).counts["examples"] == 60


def test_a_run_on_disk_is_asked_in_one_call(divided: tuple[FinetunedRun, Path]) -> None:
    run, pair = divided[0], ("the old sea", "a grey stone")
    assert pt.predict(run.path, [pair, pair], device="cpu") == run.predict([pair, pair])
    with pytest.raises(UsageError, match=r"'qnli'.*'cola'"):
        pt.predict(run.path, [pair], task="cola")


def test_another_task_is_judged_by_its_own_metrics(divided: tuple[FinetunedRun, Path], tmp_path: Path) -> None:
    """A model of entailment on SuperGLUE's diagnostics; a table of one's own is judged as what was learnt."""
    place = tmp_path / "superglue_ax"
    place.mkdir()
    labels = ["entailment", "not_entailment"] * 3
    broad = [{"sentence1": "a", "sentence2": "b", "label": label, "idx": at} for at, label in enumerate(labels)]
    twins = [
        {"premise": "a", "hypothesis": "b", "label": label, "idx": at, "pair_id": at // 2}
        for at, label in enumerate(labels)
    ]
    for name, rows in (("AX-b", broad), ("AX-g", twins)):
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = evaluate(divided[0].path, "superglue_axb,superglue_axg", data=tmp_path)
    assert [[*each.scores] for each in found] == [["matthews"], ["accuracy", "gender_parity"]]
    (tmp_path / "own.csv").write_text("question,sentence,label\na,b,entailment\nc,d,not_entailment\n")
    table = build_table_task(divided[0], tmp_path / "own.csv", text="question", pair="sentence")
    assert [*evaluate_run(divided[0], task=table).scores] == ["accuracy"]


def test_labels_of_another_task_are_known_by_their_names() -> None:
    """RTE says yes with 0 and WNLI with 1; the three answers of CommitmentBank stand in another order than SNLI's."""
    kinds = [task for task in map(TASKS.get, TASKS) if task.kind in ("classification", "pair")]
    pairs = [(a, b) for a in kinds for b in kinds if {*a.labels} == {*b.labels} and a.labels != b.labels]
    assert {("rte", "wnli"), ("snli", "cb")} <= {(one.name, other.name) for one, other in pairs}
    for own, task in pairs:
        for label, name in enumerate(task.labels):
            found = _relabel(Example(text="x", pair="y", label=label), task, own)
            assert own.labels[int(found.label or 0)] == name


def test_the_threshold_that_was_found_is_used(base: Path, tmp_path: Path) -> None:
    asked = [
        {"id": f"{at}", "question": "what is old?", "answers": [{"text": "sea", "answer_start": 8}] if at % 2 else []}
        for at in range(8)
    ]
    pages = [{"title": "t", "paragraphs": [{"context": "the old sea is grey", "qas": asked}]}]
    (tmp_path / "squad2").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "squad2" / f"{split}-v2.0.json").write_text(json.dumps({"version": "v2.0", "data": pages}))
    changes = {"data.max_length": 32, "data.stride": 8}
    run = finetune(
        base, task="squad2", data=tmp_path, out=tmp_path / "run", steps=1, baselines="none", overrides=changes
    )
    question = {"question": "what is old?", "context": "the old sea"}
    said = [
        replace(run, saved_task=replace(run.saved_task, threshold=threshold), _predictor=None).predict([question])[0][
            "text"
        ]
        for threshold in (-1e9, 1e9)
    ]
    assert said[0] == "" and said[1] != ""  # above it there is no answer
