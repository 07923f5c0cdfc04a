"""`pretune finetune` and `predict`: results on stdout, the rest on stderr, and a dry run that touches nothing."""

import io
import json
from pathlib import Path

import pytest
import yaml

from pretune.cli import main
from pretune.core.errors import DataError
from pretune.runs.finetune.inference import open_runs
from tests.conftest import Capture, run_command
from tests.runs import tasked


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.classes(tmp_path_factory.mktemp("table") / "own.csv", 60)


@pytest.fixture(scope="module")
def run(base: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    assert main(["--quiet", "finetune", str(base), f"--train={table}", "--steps=2", f"--out={out}"]) == 0
    return out


def test_a_dry_run_shows_all_and_touches_nothing(base: Path, table: Path, tmp_path: Path, capsys: Capture) -> None:
    given = ["finetune", str(base), f"--train={table}", "--seeds=2", "--train-examples=20,all", "--dry-run"]
    said = run_command(capsys, given)
    tree = yaml.safe_load(said.out)
    assert tree["plan"]["seeds"] == [0, 1] and tree["plan"]["train_examples"] == [20, None]
    assert "bad 24, good 24" in said.out and " 64 (" in said.out
    assert "'text'" in said.out and "'label'" in said.out
    assert "4 trials" in said.out and "h200" in said.out
    comments = [line.startswith("#") for line in said.out.splitlines()]
    assert comments[0] and not any(comments[comments.index(False) :])  # the summary comes first
    found = json.loads(run_command(capsys, [*given, "--json"]).out)
    assert found["forecast"]["examples"] == {"train": 48, "dev": 6, "test": 6} and not [*tmp_path.iterdir()]
    assert found["forecast"]["balance"] == {"own": {"bad": 24, "good": 24}}


def test_the_result_is_a_table_or_json(run: Path, capsys: Capture) -> None:
    said = run_command(capsys, ["finetune", f"--out={run}", "--resume"])
    assert "(accuracy, test)" in said.out and "majority" in said.out
    assert f"{run}: " in said.err and f"pretune predict {run}" in said.err
    assert main(["--quiet", "finetune", f"--out={run}", "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["split"] == "test"


def test_lines_come_in_and_json_goes_out(run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b'a lovely sea.\n{"text": "the dreadful wind."}\n"quoted"\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    lines = [json.loads(line) for line in run_command(capsys, ["predict", str(run), "--input=-"]).out.splitlines()]
    assert [line["id"] for line in lines] == ["0", "1", "2"]
    assert all(line["label"] in ("bad", "good") for line in lines)


def test_chunks_do_not_change_what_is_said(run: Path, table: Path, capsys: Capture) -> None:
    said = []
    for size in (7, 100):
        assert main(["--quiet", "predict", str(run), f"--input={table}", f"--batch={size}"]) == 0
        said.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert len(said[0]) == 60 and [one["label"] for one in said[0]] == [one["label"] for one in said[1]]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--task=sst2"], "'--out'"),
        (["--out=x"], "--task NAME"),
        (["--task=sst2", "--train=x.csv", "--out=x"], "'sst2' and 'x.csv'"),
        (["--task=sst2", "--out=x", "--baselines=svn"], "'svn'"),
        (["--task=sst2", "--out=x", "--lr=fast"], "'fast'"),
        (["--task=sst2", "--out=x", "--seeds=0"], "--seeds 0"),
    ],
)
def test_a_wrong_wish_is_one_line(base: Path, capsys: Capture, more: list[str], told: str) -> None:
    said = run_command(capsys, ["finetune", str(base), *more], code=2).err
    assert told in said and said.count("\n") == 1


@pytest.mark.parametrize("more", [["--dry-run"], []])
def test_a_device_that_is_not_here_is_refused_by_a_dry_run_too(
    base: Path, table: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    words = ["finetune", str(base), f"--train={table}", f"--out={tmp_path / 'run'}", "--device=cuda", *more]
    assert "'cuda'" in run_command(capsys, words, code=6).err and not (tmp_path / "run").exists()


def test_a_tab_is_white_space_for_a_run_on_single_texts(
    run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the run was not trained on, a second text, is not made of a tab or of another column."""

    def predict(text: str) -> list[dict[str, object]]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert main(["--quiet", "predict", str(run), "--input=-"]) == 0
        return [json.loads(line)["probabilities"] for line in capsys.readouterr().out.splitlines()]

    lines = ["a lovely\tsea", "a lovely sea", json.dumps({"text": "a lovely sea", "context": "the dreadful wind"})]
    first, second, third = predict("\n".join(lines))
    assert first == second == third
    with pytest.raises(DataError, match="single texts"):
        open_runs([run]).predict([("a lovely sea", "the wind")])


@pytest.mark.parametrize("name", ["run", "soup"])
def test_an_export_is_predicted_with_and_evaluated(
    base: Path, run: Path, table: Path, tmp_path: Path, capsys: Capture, name: str
) -> None:
    other = tmp_path / "other"
    words = [f"--train={table}", "--steps=2", "--set=train.seed=1", "--baselines=none", f"--out={other}"]
    runs = [str(run)]
    if name == "soup":
        assert main(["--quiet", "finetune", str(base), *words]) == 0
        runs.append(str(other))
    assert main(["--quiet", "export", *runs, "--to=hf", f"--out={tmp_path / 'out'}"]) == 0
    (tmp_path / "lines.txt").write_text("a lovely sea\nthe dreadful wind\n")
    capsys.readouterr()
    words = ["--quiet", "predict", f"--input={tmp_path / 'lines.txt'}"]
    said = [run_command(capsys, [*words, str(model)]).out for model in (run, tmp_path / "out")]
    assert (said[0] == said[1]) == (name == "run")
    assert "scores.json" not in run_command(capsys, ["evaluate", str(tmp_path / "out"), f"--test={table}"]).err
    assert (tmp_path / "out/run.json").exists() == (name == "soup")  # it names the user's files


def test_blank_cells_are_skipped_in_training_and_keep_their_line_in_predictions(
    base: Path, run: Path, table: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = table.read_text().splitlines()
    mixed = tmp_path / "mixed.csv"
    mixed.write_text("\n".join([lines[0], lines[1], ' ,"good"', '"a sea",', *lines[2:]]) + "\n")
    command = ["finetune", str(base), f"--train={mixed}", "--steps=1", "--baselines=none"]
    said = run_command(capsys, [*command, "--strict", f"--out={tmp_path / 'strict'}"], code=3).err
    assert f"{mixed}:3:" in said and said.count("\n") == 1 and not (tmp_path / "strict").exists()
    assert main([*command, f"--out={tmp_path / 'run'}"]) == 0
    note = f"2 rows with a blank cell skipped, the first at {mixed}:3, 'text'"
    assert note in capsys.readouterr().err
    assert note in json.loads((tmp_path / "run/scores.json").read_text())["notes"]
    (result,) = json.loads(run_command(capsys, ["evaluate", str(run), f"--test={mixed}", "--json"]).out)["results"]
    assert result["counts"]["examples"] == 60 and note in result["notes"]

    def predict(source: Path | str, *more: str) -> list[dict[str, object]]:
        assert main(["predict", str(run), f"--input={source}", *more]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    found = predict(mixed, "--batch=1")
    assert [line["id"] for line in found] == [str(number) for number in range(62)]
    assert [line["label"] is None for line in found] == [False, True, *[False] * 60]
    assert found[1] == {"id": "1", "label": None, "reason": "'text' is blank"}
    rows = [{"id": "a", "text": "a lovely sea"}, {"id": "b", "text": None}, {"id": "c"}, {"id": "d", "text": "a sea"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = predict(tmp_path / "rows.jsonl")
    assert [(line["id"], line["label"] is None) for line in found] == [
        ("a", False),
        ("b", True),
        ("c", True),
        ("d", False),
    ]
    (tmp_path / "one.csv").write_text('text\na sea\n""\n')
    (tmp_path / "lines.txt").write_text("a sea\n\n \nthe wind\n")
    assert [line["label"] is None for line in predict(tmp_path / "one.csv")] == [False, True]
    assert [line["label"] is None for line in predict(tmp_path / "lines.txt")] == [False, True, True, False]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a sea\n\nthe wind\n")))
    assert [line["label"] is None for line in predict("-")] == [False, True, False]
    first, second = open_runs([run, run]).predict(["", "a sea"])
    assert first == {"label": None, "reason": "'text' is blank"} and second["label"] in ("bad", "good")
