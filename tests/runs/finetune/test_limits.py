"""Limits on a task whose metric scores questions with all their answers: whole questions are drawn."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

import pretune as pt
from pretune.evaluation.few_shot import FewShotConfig, select_examples
from pretune.runs.finetune.config import TaskConfig
from pretune.runs.finetune.inference import evaluate_run
from pretune.runs.finetune.task_data import open_task
from pretune.tasks.benchmarks.superglue import MULTIRC
from pretune.tasks.example import Example
from tests.runs import tasked

ANSWERS = 5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MultiRC's form: 12 passages of 2 questions with 5 answers each, in train and in dev."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "multirc").mkdir()
    for split, first in (("train", 0), ("val", 100)):
        lines = []
        for number in range(first, first + 12):
            answers = [{"text": f"salt {at}", "label": at % 2, "idx": at} for at in range(ANSWERS)]
            questions = [{"question": f"which sea {at}?", "answers": answers, "idx": at} for at in range(2)]
            lines.append({"idx": number, "passage": {"text": f"the old sea {number}", "questions": questions}})
        (folder / "multirc" / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def whole(examples: Iterable[Example]) -> bool:
    return {*Counter(example.group for example in examples).values()} == {ANSWERS}


def test_examples_of_a_run_are_whole_questions(data: Path) -> None:
    wanted = TaskConfig(name="multirc", data=str(data))
    opened = open_task(replace(wanted, max_eval_examples=18, max_examples_per_task=33))
    assert (len(opened.parts.dev), len(opened.parts.train)) == (15, 30)
    assert whole(opened.parts.dev) and whole(opened.parts.train)
    train = opened.select_train(12, 0)
    assert len(train) == 10 and whole(train) and {*train} <= {*opened.select_train(24, 0)}
    both = open_task(replace(wanted, name="multirc,boolq", data=str(_boolq(data))))
    drawn = [one for one in both.select_train(50, 0) if one.group is not None]
    assert drawn and whole(drawn)


def _boolq(data: Path) -> Path:
    (data / "boolq").mkdir(exist_ok=True)
    for split in ("train", "val"):
        rows = [{"question": f"q {at}", "passage": "the sea", "label": at % 2 == 0, "idx": at} for at in range(40)]
        (data / "boolq" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return data


def test_prompted_questions_are_whole(data: Path) -> None:
    _, examples, solved, _ = select_examples(MULTIRC, FewShotConfig(data=data, limit=33, split="dev"), 0)
    assert len(examples) == 30 and whole(examples) and not solved
    (data / "alone" / "multirc").mkdir(parents=True)
    (data / "alone" / "multirc" / "val.jsonl").write_text((data / "multirc" / "val.jsonl").read_text())
    _, examples, solved, _ = select_examples(MULTIRC, FewShotConfig(data=data / "alone", split="dev"), 3)
    assert len(solved) == 3 and whole(examples)  # shots out of the same split


def test_a_fine_tuned_run_is_judged_on_whole_questions(data: Path, tmp_path: Path) -> None:
    base = tasked.make_base(tmp_path)
    changes = {"train.eval_examples": 12, "task.train_examples": 33}
    run = pt.finetune(
        base, task="multirc", data=data, steps=1, baselines="none", out=tmp_path / "run", overrides=changes
    )
    assert run.scores["trials"][0]["labels"] == 30
    assert evaluate_run(run, data=data, max_examples=12).counts["examples"] == 10
