"""Fine-tuning under faults: killed and resumed (R1), bad tables (R11), odd inputs (R12)."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.cli import main
from tests.faults.runs import Nursery, metrics, steps_of
from tests.inference.speakers import speaker
from tests.runs import tasked

Capture = pytest.CaptureFixture[str]
FAST = ("--steps=12", "--baselines=none", "--set=train.checkpoint_every=3", "--set=train.log_every=1", "--lr=1e-2")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.classes(tmp_path_factory.mktemp("table") / "own.csv", 80)


def command(base: Path, table: Path, out: Path, *more: str) -> list[str]:
    return ["finetune", str(base), f"--train={table}", f"--out={out}", *FAST, *more]


def same(run: Path, other: Path) -> bool:
    """Return True if two runs have the same weights, bit for bit, and the same logs."""
    weights = [path.name for path in sorted(other.glob("*.safetensors"))]
    assert weights and metrics(run) == metrics(other)
    for name in (*weights, "predictions.jsonl", "task.json"):
        assert (run / name).read_bytes() == (other / name).read_bytes(), name
    scores = [json.loads((one / "scores.json").read_text()) for one in (run, other)]
    assert scores[0]["result"] == scores[1]["result"] and scores[0]["model"] == scores[1]["model"]
    return True


class TestKilled:
    """kill -9 in the middle of a step, and --resume: bit for bit the run that nothing happened to."""

    @pytest.mark.parametrize(
        "more",
        [
            (),
            pytest.param(("--method=lora",), marks=pytest.mark.slow),
            pytest.param(
                ("--method=gradual", '--set=method.when={"kind": "epochs", "every": 0.5}'), marks=pytest.mark.slow
            ),
            pytest.param(
                (
                    "--method=gradual",
                    '--set=method.when={"kind": "plateau", "patience": 1}',
                    "--set=train.eval_every=2",
                ),
                marks=pytest.mark.slow,
            ),
        ],
        ids=["full", "lora", "epochs", "plateau"],
    )
    def test_it_goes_on_as_if_nothing_had_happened(
        self, runs: Nursery, base: Path, table: Path, tmp_path: Path, more: tuple[str, ...]
    ) -> None:
        straight, out = tmp_path / "straight" / "run", tmp_path / "killed" / "run"
        runs.run(command(base, table, straight, *more))
        runs.run(command(base, table, out, *more), ["killed_after_saving", 7], code=-signal.SIGKILL)
        assert steps_of(out)[-1] == "step-00000006"
        runs.run([*command(base, table, out, *more), "--resume"])
        assert same(out, straight)

    def test_a_checkpoint_holds_what_is_trained_and_knows_its_base(
        self, runs: Nursery, base: Path, table: Path, tmp_path: Path
    ) -> None:
        mine, out, more = tmp_path / "base", tmp_path / "run", ("--method=lora", "--set=train.max_checkpoints=2")
        shutil.copytree(base, mine)
        runs.run(command(mine, table, out, *more), ["killed_after_saving", 7], code=-signal.SIGKILL)
        held = sum(path.stat().st_size for path in (out / "checkpoints" / steps_of(out)[-1]).iterdir())
        assert held < (base / "model.safetensors").stat().st_size
        model = pt.load(mine)
        with torch.no_grad():
            next(model.parameters()).mul_(2)
        pt.save(model, mine, overwrite=True)
        child = runs.run([*command(mine, table, out, *more), "--resume"], code=4)
        assert "base" in child.line

    @pytest.mark.slow
    def test_answers_are_sampled_as_if_nothing_had_happened(self, runs: Nursery, tmp_path: Path) -> None:
        """Those of a run that is trained on their rewards, with the weights of the checkpoint."""
        pt.save(speaker("llama-7b", "bpe", "endoftext"), tmp_path / "base")
        rows = [{"question": f"{number} and?", "answer": "[aeiou]"} for number in range(20)]
        (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        more = ["--reward=regex", "--method=lora", "--set=train.batch=3", "--set=tune.grpo.samples=4"]
        more += ["--set=data.max_new_tokens=3"]
        straight, out = tmp_path / "straight" / "run", tmp_path / "killed" / "run"
        runs.run(command(tmp_path / "base", tmp_path / "own.jsonl", straight, *more))
        assert any(0 < line["no_signal"] < 1 for line in metrics(straight) if "reward" in line)
        killed = command(tmp_path / "base", tmp_path / "own.jsonl", out, *more)
        runs.run(killed, ["killed_after_saving", 7], code=-signal.SIGKILL)
        runs.run(["finetune", f"--out={out}", "--resume"])
        assert same(out, straight)

    @pytest.mark.slow
    def test_preferences_keep_their_reference(self, runs: Nursery, tmp_path: Path) -> None:
        """The model before training, though a checkpoint holds all weights after some steps."""
        pt.save(speaker("llama-7b", "bpe", "endoftext"), tmp_path / "base")
        rows = [{"prompt": f"{number} and?", "chosen": "he", "rejected": f"{number}"} for number in range(20)]
        (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        straight, out = tmp_path / "straight" / "run", tmp_path / "killed" / "run"
        runs.run(command(tmp_path / "base", tmp_path / "own.jsonl", straight))
        killed = command(tmp_path / "base", tmp_path / "own.jsonl", out)
        runs.run(killed, ["killed_after_saving", 7], code=-signal.SIGKILL)
        runs.run(["finetune", f"--out={out}", "--resume"])
        assert same(out, straight)

    @pytest.mark.slow
    def test_trials_that_are_done_are_not_done_again(
        self, runs: Nursery, base: Path, table: Path, tmp_path: Path
    ) -> None:
        straight, out = tmp_path / "straight" / "run", tmp_path / "killed" / "run"
        runs.run(command(base, table, straight, "--seeds=2"))
        runs.run(command(base, table, out, "--seeds=2"), ["second_time", 5], code=-signal.SIGKILL)
        first = out / "trials/labels-all-lr-0.01-seed-0/trial.json"
        before = first.stat().st_mtime_ns
        runs.run(["finetune", f"--out={out}", "--resume"])
        assert first.stat().st_mtime_ns == before
        scores = [json.loads((one / "scores.json").read_text())["result"] for one in (straight, out)]
        assert scores[0] == scores[1]

    def test_asked_to_stop_it_saves_and_names_the_command_that_resumes(
        self, runs: Nursery, base: Path, table: Path, tmp_path: Path
    ) -> None:
        straight, out, more = tmp_path / "straight" / "run", tmp_path / "run", "--set=train.eval_every=5"
        runs.run(command(base, table, straight, more))
        child = runs.run(command(base, table, out, more), ["signalled", 4, "SIGTERM"], code=75)  # dev is not judged
        assert steps_of(out)[-1] == "step-00000005" and f"--out {out} --resume" in child.line
        runs.run(["finetune", f"--out={out}", "--resume"])
        assert same(out, straight)

    def test_what_is_learnt_cannot_change_on_the_way(
        self, runs: Nursery, base: Path, table: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "run"
        runs.run(command(base, table, out), ["killed_after_saving", 7], code=-signal.SIGKILL)
        child = runs.run(["finetune", f"--out={out}", "--resume", "--steps=40"], code=4)
        assert re.search(r"train\.steps\b.*\b12\b.*\b40\b", child.line)
        child = runs.run(["finetune", f"--out={out}", "--resume", "--seeds=3"], code=4)
        assert re.search(r"seeds\b.*\[0\].*\[0, 1, 2\]", child.line)
        rows = table.read_text().splitlines()
        changed = tmp_path / "changed.csv"
        changed.write_text("\n".join([*rows[:-1], "something else,good"]) + "\n")
        child = runs.run(["finetune", f"--out={out}", "--resume", f"--train={changed}"], code=4)
        assert "task.train" in child.line


def fails(capsys: Capture, code: int, *arguments: str) -> str:
    """A command that must fail with one line; what it says."""
    assert main(["--quiet", *arguments]) == code
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and said.err.startswith("pretune: error: "), said.err
    return said.err


class TestTables:
    """R11: told in one line with file and row, before anything is computed or written."""

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("text,label\nfine,good\nbad\n", r"own\.csv:3: .*\b2\b.*\b1\b"),
            ("text,label\nfine,good\nodd,\n", r"own\.csv.*'good'"),
            ("text,label\n,\n,\n", r"own\.csv:2, 'text'"),
            ("text,label\nfine,good\nodd,good\n", r"own\.csv.*'good'"),
            ("text,text,label\na,b,good\n", r"own\.csv.*\btext\b"),
            ("sentence,stars\n", r"own\.csv"),
            ("a,b\nfine,good\nodd,bad\n", r"own\.csv.*\ba, b\b"),
        ],
    )
    def test_what_is_wrong_with_a_table(
        self, base: Path, tmp_path: Path, capsys: Capture, text: str, told: str
    ) -> None:
        file = tmp_path / "own.csv"
        file.write_text(text)
        line = fails(capsys, 3, "finetune", str(base), f"--train={file}", f"--out={tmp_path / 'run'}")
        assert re.search(told, line)
        assert not (tmp_path / "run").exists()

    def test_a_column_that_is_not_there(self, base: Path, table: Path, tmp_path: Path, capsys: Capture) -> None:
        line = fails(capsys, 3, "finetune", str(base), f"--train={table}", "--text=txt", f"--out={tmp_path / 'run'}")
        assert "'txt'" in line and "'text'" in line

    def test_a_label_that_only_dev_has(self, base: Path, table: Path, tmp_path: Path, capsys: Capture) -> None:
        dev = tasked.table(tmp_path / "dev.csv", ("text", "label"), [("fine", "good"), ("odd", "so-so")])
        line = fails(capsys, 3, "finetune", str(base), f"--train={table}", f"--dev={dev}", f"--out={tmp_path / 'run'}")
        assert re.search(r"dev\.csv:3: .*'so-so'.*\bbad, good\b", line)

    def test_quoted_newlines_are_text(self, base: Path, tmp_path: Path) -> None:
        rows = [
            (f"first line\nsecond, {word}", label) for word, label in [("lovely", "good"), ("dreadful", "bad")] * 12
        ]
        file = tasked.table(tmp_path / "own.csv", ("text", "label"), rows)
        assert main(["--quiet", *command(base, file, tmp_path / "run")]) == 0
        assert json.loads((tmp_path / "run/scores.json").read_text())["examples"]["train"] == 19

    def test_a_head_that_the_model_cannot_have(
        self, base: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "tasks/multi30k"
        folder.mkdir(parents=True)
        monkeypatch.delenv("PRETUNE_DATA", raising=False)
        line = fails(
            capsys, 2, "finetune", str(base), "--task=multi30k", f"--data={tmp_path}", f"--out={tmp_path / 'run'}"
        )
        assert "'generation'" in line and "'encoder'" in line


ODD = {
    "empty": "",
    "blank": "   ",
    "specials": "[CLS] [SEP] [MASK] [PAD]",
    "one long word": "x" * 10**6,
    "long": "lovely " * 5000,
    "emoji": "\U0001f600\U0001f468‍\U0001f469‍\U0001f467 é́",
    "unknown": "漢字仮名交じり文",
}


@pytest.fixture(scope="module")
def run(base: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("inputs") / "run"
    assert main(["--quiet", *command(base, table, out)]) == 0
    return out


class TestInputs:
    """R12: whatever is given, an answer for each, nothing that is not finite, and what was cut is counted."""

    def said(self, capsys: Capture, run: Path, file: Path) -> tuple[list[dict[str, Any]], str]:
        capsys.readouterr()
        assert main(["predict", str(run), f"--input={file}"]) == 0
        found = capsys.readouterr()
        return [json.loads(line) for line in found.out.splitlines()], found.err

    def test_each_has_an_answer(self, run: Path, tmp_path: Path, capsys: Capture) -> None:
        file = tmp_path / "odd.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in ODD.values()))
        lines, told = self.said(capsys, run, file)
        assert len(lines) == len(ODD)
        for name, line in zip(ODD, lines, strict=True):
            if name in ("empty", "blank"):
                assert line["label"] is None and "'text'" in line["reason"]
            else:
                assert line["label"] in ("bad", "good") and abs(sum(line["probabilities"].values()) - 1) < 1e-3
        assert re.search(r"\b2\b", told)  # of them are too long

    def test_they_can_be_learnt_from(self, base: Path, tmp_path: Path) -> None:
        rows = [(text, "good" if i % 2 else "bad") for i, text in enumerate([*ODD.values()] * 4) if text.strip()]
        file = tasked.table(tmp_path / "odd.jsonl", ("text", "label"), rows)
        assert main(["--quiet", *command(base, file, tmp_path / "run")]) == 0
        assert all(line["loss"] is not None for line in metrics(tmp_path / "run") if "loss" in line)
        assert json.loads((tmp_path / "run/scores.json").read_text())["counts"]["cut"] > 0

    def test_lines_of_text_and_tables_give_the_same(self, run: Path, tmp_path: Path, capsys: Capture) -> None:
        texts = ["a lovely sea.", "the dreadful wind."]
        (tmp_path / "lines.txt").write_text("\n".join(texts) + "\n")
        tasked.table(tmp_path / "table.tsv", ("text", "more"), [(text, "x") for text in texts])
        first = self.said(capsys, run, tmp_path / "lines.txt")[0]
        second = self.said(capsys, run, tmp_path / "table.tsv")[0]
        assert [line["probabilities"] for line in first] == [line["probabilities"] for line in second]

    @pytest.mark.parametrize(
        ("name", "text", "code", "told"),
        [
            ("none.txt", None, 3, r"none\.txt"),
            ("empty.txt", "", 3, r"empty\.txt"),
            ("rows.csv", "text,more\nfine\n", 3, r"rows\.csv:2: .*\b2\b.*\b1\b"),
            ("other.csv", "body,more\nfine,x\n", 3, r"other\.csv.*'text'.*\bbody, more\b"),
            ("odd.jsonl", '{"text": 3}\n', 3, r"odd\.jsonl:1"),
        ],
    )
    def test_what_is_wrong_is_told(
        self, run: Path, tmp_path: Path, capsys: Capture, name: str, text: str | None, code: int, told: str
    ) -> None:
        if text is not None:
            (tmp_path / name).write_text(text)
        assert re.search(told, fails(capsys, code, "predict", str(run), f"--input={tmp_path / name}"))

    def test_a_model_without_a_task(self, base: Path, tmp_path: Path, capsys: Capture) -> None:
        assert str(base) in fails(capsys, 4, "predict", str(base), f"--input={tmp_path}")
