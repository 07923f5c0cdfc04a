"""The type of a user's task: stated or found, written into task.json, and kept by predict and evaluate."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.cli import main
from pretune.core.errors import UsageError
from pretune.runs.finetune.saved_task import SavedTask
from tests.conftest import Capture, run_command
from tests.runs import tasked
from tests.selection import keep_quick


@pytest.fixture(scope="module")
def stars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(0)
    rows = [(tasked.sentence(rng), str(1 + at % 5)) for at in range(60)]
    return tasked.table(tmp_path_factory.mktemp("stars") / "stars.csv", ("review", "stars"), rows)


def run(base: Path, train: Path, out: Path, **wishes: Any) -> dict[str, Any]:
    pt.finetune(base, train=train, out=out, steps=1, **{"baselines": "none", **wishes})
    found: dict[str, Any] = json.loads((out / "task.json").read_text())
    return found


@pytest.mark.parametrize(("wish", "kind"), [(None, "classification"), ("regression", "regression")])
def test_stars_are_classes_or_scores(
    base: Path, stars: Path, tmp_path: Path, wish: str | None, kind: str, capsys: Capture
) -> None:
    found = run(base, stars, tmp_path / "run", type=wish)
    assert found["type"] == kind and (found["labels"] == []) == (kind == "regression")
    said = pt.predict(tmp_path / "run", [{"review": "a quiet house"}])[0]
    assert ("score" in said) == (kind == "regression")
    assert main(["--quiet", "evaluate", str(tmp_path / "run"), f"--test={stars}", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["results"][0]["scores"]
    assert ("accuracy" in scores) == (kind == "classification")
    given = ["finetune", str(base), f"--train={stars}", "--dry-run", *([f"--type={wish}"] if wish else [])]
    tree = json.loads(run_command(capsys, ["--quiet", *given, "--json"]).out)
    assert (tree["task"]["type"], tree["forecast"]["type"]) == (wish, kind)


def test_a_task_without_a_type_is_read(base: Path, stars: Path, tmp_path: Path) -> None:
    found = run(base, stars, tmp_path / "run")
    del found["type"]
    (tmp_path / "run" / "task.json").write_text(json.dumps(found))
    assert SavedTask.read(tmp_path / "run").type is None
    assert pt.predict(tmp_path / "run", [{"review": "a quiet house"}])[0]["label"] in "12345"


def test_a_bad_score_ends_with_three(base: Path, stars: Path, tmp_path: Path, capsys: Capture) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(stars.read_text() + "the long road,nan\n")
    assert main(["finetune", str(base), f"--train={bad}", f"--out={tmp_path / 'run'}"]) == 3
    assert "bad.csv:62:" in capsys.readouterr().err and not (tmp_path / "run").exists()


ROWS: dict[str, Any] = {
    "choice": {"question": "which road?", "choices": ["a long road", "salt"], "label": 0},
    "span": {"question": "which house?", "context": "the old house by the sea", "answer": "old house"},
    "tagging": {"words": ["the", "grey", "sea"], "tags": ["O", "B-COLOUR", "O"]},
    "srl": {"words": ["the", "sea", "sings"], "predicate": 2, "tags": ["B-A0", "I-A0", "O"]},
    "dependency": {"words": ["the", "grey", "sea"], "heads": [3, 3, 0], "relations": ["det", "amod", "root"]},
    "coreference": {"sentences": [["the", "sea", "sings"], ["it", "sleeps"]], "clusters": [[[0, 1], [3, 3]]]},
    "multi-label": {"text": "the grey sea", "labels": ["water", "colour"]},
}


@pytest.mark.slow
@pytest.mark.parametrize("type", keep_quick(ROWS, *({*ROWS} - {"srl"})))
def test_other_types_of_a_table(base: Path, tmp_path: Path, type: str, capsys: Capture) -> None:
    table = tmp_path / "own.jsonl"
    table.write_text("".join(json.dumps({**ROWS[type], "id": at}) + "\n" for at in range(20)))
    assert run(base, table, tmp_path / "run", type=type, baselines="majority")["type"] == type
    said = pt.predict(tmp_path / "run", [ROWS[type]])[0]
    fields = {
        "choice": "label",
        "span": "span",
        "multi-label": "labels",
        "dependency": "heads",
        "coreference": "clusters",
    }
    assert fields.get(type, "tags") in said
    assert main(["--quiet", "predict", str(tmp_path / "run"), f"--input={table}"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 20
    assert main(["--quiet", "evaluate", str(tmp_path / "run"), f"--test={table}", "--json"]) == 0


def test_text_is_generated(tmp_path: Path) -> None:
    base = tasked.make_base(tmp_path, "t5-small", "unigram", "sentinels")
    rows = [(tasked.sentence(random.Random(at)), "salt" if at % 2 else "stone") for at in range(20)]
    table = tasked.table(tmp_path / "own.csv", ("source", "target"), rows)
    assert run(base, table, tmp_path / "run", type="text")["type"] == "generation"
    assert isinstance(pt.predict(tmp_path / "run", [{"source": "the sea"}])[0]["text"], str)


def test_embedding(base: Path, tmp_path: Path) -> None:
    rows = [(tasked.sentence(random.Random(at)), tasked.sentence(random.Random(99 + at))) for at in range(20)]
    pairs = tasked.table(tmp_path / "pairs.csv", ("text_a", "text_b"), rows)
    given = ["--quiet", "finetune", str(base), f"--train={pairs}", "--steps=2", f"--out={tmp_path / 'run'}"]
    assert main([*given, "--type=embedding"]) == 0 and (tmp_path / "run" / "modules.json").is_file()
    assert main([*given, "--type=span", "--task=embedding"]) == 2
    with pytest.raises(UsageError, match="train_embeddings"):
        pt.finetune(base, train=pairs, type="embedding", out=tmp_path / "other")


def test_types_that_are_refused(base: Path, stars: Path, tmp_path: Path) -> None:
    given = ["finetune", str(base), f"--out={tmp_path / 'run'}"]
    assert main([*given, f"--train={stars}", "--type=sorting"]) == 2
    assert main([*given, "--task=sst2", "--type=regression"]) == 2
    with pytest.raises(UsageError, match="sorting"):
        pt.finetune(base, train=stars, type="sorting", out=tmp_path / "run")


@pytest.mark.parametrize("columns", [("sentence1", "sentence2"), ("question", "sentence"), ("text_a", "text_b")])
def test_pairs_are_read_as_pairs_everywhere(
    base: Path, tmp_path: Path, columns: tuple[str, str], capsys: Capture
) -> None:
    rng = random.Random(0)
    rows = [(tasked.sentence(rng), tasked.sentence(rng), "ab"[at % 2]) for at in range(40)]
    train = tasked.table(tmp_path / "pairs.csv", (*columns, "label"), rows)
    test = tasked.table(tmp_path / "test.tsv", ("premise", "hypothesis", "label"), rows)
    found = run(base, train, tmp_path / "run")
    assert (found["task_kind"], found["type"]) == ("pair", "pair")
    assert (found["text"], found["pair"]) == columns
    predictions = (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()
    assert all("pair" in json.loads(line) for line in predictions)
    said = []
    for file in (train, test):
        assert main(["--quiet", "predict", str(tmp_path / "run"), f"--input={file}"]) == 0
        said.append([json.loads(line)["probabilities"] for line in capsys.readouterr().out.splitlines()])
        assert main(["--quiet", "evaluate", str(tmp_path / "run"), f"--test={file}", "--json"]) == 0
        capsys.readouterr()
    assert said[0] == said[1]
    alone = tasked.table(tmp_path / "alone.csv", ("text", "label"), [(one, label) for one, _, label in rows])
    assert main(["--quiet", "evaluate", str(tmp_path / "run"), f"--test={alone}"]) == 3
    assert main(["--quiet", "predict", str(tmp_path / "run"), f"--input={alone}"]) == 3
