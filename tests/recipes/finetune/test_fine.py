"""A run that is asked for its score again has never seen what it is asked."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pretune.recipes.evaluate import evaluate
from pretune.recipes.finetune.fine import FineTuned, evaluate_run
from pretune.recipes.finetune.opening import open_task
from pretune.recipes.finetune.settings import Wanted
from pretune.recipes.finetune.work import finetune
from tests.recipes import tasked

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
def divided(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[FineTuned, Path]:
    """A run on a task of which there is one split, and that by heart."""
    home = folder(tmp_path_factory.mktemp("one"), "dev")
    changes: dict[str, Any] = {"task.split": SEED, "train.log_every": 50}
    out = home / "run"
    return finetune(base, task="qnli", data=home, out=out, lr=3e-3, epochs=2, baselines="none", changes=changes), home


def test_what_was_divided_is_divided_again(divided: tuple[FineTuned, Path]) -> None:
    run, home = divided
    result = run.scores["result"]
    assert result["split"] == "test" and result["examples"] == 6
    again = evaluate_run(run, data=home)
    assert (again["split"], again["examples"], again["scores"]) == ("test", 6, result["scores"])
    assert any("divided 80/10/10" in note for note in again["notes"])
    dev = evaluate_run(run, data=home, split="dev")
    assert dev["examples"] == 6 and next(iter(dev["scores"].values())) == run.scores["model"]["dev"]
    (told,) = evaluate(run.path, "qnli", data=home)
    assert told.scores == result["scores"] and any("divided" in note for note in told.notes)


def test_nothing_of_it_was_trained_on(divided: tuple[FineTuned, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    run, home = divided
    trained = open_task(Wanted(name="qnli", data=str(home), split=SEED)).parts.train
    asked: list[str] = []
    monkeypatch.setattr("pretune.recipes.finetune.fine.predict", lambda m, e, examples, **more: asked.extend(
        one.text for one in examples) or [])  # fmt: skip
    for split in (None, "dev", "test"):
        with pytest.raises(Exception, match="0 predictions for 6"):
            evaluate_run(run, data=home, split=split)
    assert len(asked) == 18 and not {*asked} & {one.text for one in trained}


def test_another_run_is_asked_all_of_it(base: Path, divided: tuple[FineTuned, Path], tmp_path: Path) -> None:
    """Who learnt the same task from a train split is judged on the whole of dev, and so is who learnt another."""
    home = folder(tmp_path, "train", "dev", count=24)
    run = finetune(base, task="qnli", data=home, out=tmp_path / "run", steps=1, baselines="none")
    found = evaluate_run(run, data=home)
    assert (found["split"], found["examples"], found["notes"]) == ("dev", 24, [])
    tree = json.loads((run.path / "run.json").read_text())
    tree["task"]["name"] = "mnli"
    (run.path / "run.json").write_text(json.dumps(tree))
    assert evaluate_run(run, task="qnli", data=divided[1])["examples"] == 60
