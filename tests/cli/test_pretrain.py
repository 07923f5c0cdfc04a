"""`pretune pretrain`: results on stdout, the rest on stderr, one line for what is wrong, and its exit code."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pretune.cli import main
from pretune.runs.prepare import prepare
from tests.conftest import Capture, Patch, run_command
from tests.data.texts import blocks
from tests.runs.small import FAST, make, shrunk

SETS = {**shrunk("bert-tiny"), **FAST, "data.length_schedule": "null"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make(tmp_path_factory.mktemp("data"), "wordpiece", "cls-sep"))


def arguments(data: str | None, *more: str, name: str | None = "bert-tiny", **sets: Any) -> list[str]:
    given = [f"--set={path}={value}" for path, value in {**SETS, **sets}.items()] if name == "bert-tiny" else []
    return ["pretrain", *([name] if name else []), *([f"--data={data}"] if data else []), *more, *given]


def refused(capsys: Capture, code: int, *words: str) -> str:
    assert main([*words]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1, err
    return err


def test_results_on_stdout_and_the_rest_on_stderr(capsys: Capture, data: str, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    said, told = run_command(capsys, arguments(data, "--steps=3", "--objective=masked", f"--out={out}"))
    held = json.loads((tmp_path / "run/cost.json").read_text())["run"]["held_out"]["loss"]
    assert said.startswith(f"{out}: 3 steps, ") and said.endswith(f" {held:.4f}\n")
    assert said.count("\n") == 1
    for part in ("step 0: ", "run: step 1/3, loss", "accuracy", "$", "next: pretune fill "):
        assert part in told
    again, told = run_command(capsys, ["pretrain", "--out", out, "--resume"])
    finished, fill, finetune = told.splitlines()
    assert again == said and finished.startswith(f"{out}: ") and fill.startswith(f"next: pretune fill {out} '")
    assert finetune.startswith(f"or: pretune finetune {out} --train TABLE.csv --out {out}-tuned")
    words = arguments(data, "--objective=masked", f"--out={out}", "--resume")  # its length need not be typed again
    assert main(words) == 0 and finished in capsys.readouterr().err
    error = run_command(capsys, [*words, "--steps=4"], code=4).err
    assert "train.steps" in error and "3" in error and "4" in error
    assert main(["verify", out]) == 0


def test_quiet_and_json(capsys: Capture, data: str, tmp_path: Path) -> None:
    out, err = run_command(capsys, ["--quiet", *arguments(data, "--steps=2", f"--out={tmp_path / 'run'}", "--json")])
    facts = json.loads(out)
    assert err == "" and facts["steps"] == 2 and facts["cost"]["flops"] > 0 and facts["held_out"]["loss"] > 0


def test_dry_run_touches_nothing_and_can_be_run(capsys: Capture, data: str, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    out, err = run_command(capsys, arguments(data, "--tokens=1k", "--objective=masked", "--dry-run"))
    assert err == "" and [*tmp_path.iterdir()] == []
    steps, tokens = re.search(r"(\d+) steps, ([\d,]+) tokens", out).groups()
    assert 1000 <= int(tokens.replace(",", "")) < 1256 and "#   h100 " in out
    comments = [line.startswith("#") for line in out.splitlines()]
    assert comments[0] and not any(comments[comments.index(False) :])  # the summary comes first
    assert yaml.safe_load(out)["train"]["tokens"] == 1000
    (tmp_path / "run.yaml").write_text(out)
    assert main(arguments(data, "--tokens=1k", "--objective=masked", "--dry-run", "--json")) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["cost"]["parameters"] > 0 and facts["train"]["lr"] > 0
    (tmp_path / "run.json").write_text(json.dumps(facts))
    for file in ("run.yaml", "run.json"):
        assert main(["pretrain", f"--config={file}", f"--out={file[4:]}", "--quiet"]) == 0
        assert f": {steps} steps, {tokens} tokens" in capsys.readouterr().out
    weights = [(tmp_path / kind / "model.safetensors").read_bytes() for kind in ("yaml", "json")]
    assert weights[0] == weights[1]


def test_dry_run_with_a_time_budget_estimates_tokens(data: Path, capsys: Capture) -> None:
    out = run_command(capsys, arguments(data, "--budget=5m", "--objective=masked", "--dry-run")).out
    assert "one device in 5:00" in out and "FLOP per token" in out and "tokens" in out.rpartition("5:00")[2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["bert-tiny", "--data=DATA"], "'--out'"),
        (["bert-tiny", "--out=OUT"], "--data"),
        (["brt-tiny", "--data=DATA", "--out=OUT"], "'bert-tiny'"),
        (["bert-tiny", "--data=DATA", "--out=OUT", "--set=train.lrr=1"], "'lr'"),
        (["bert-tiny", "--data=DATA", "--out=OUT", "--set=train.lr"], "path=value"),
        (["bert-tiny", "--data=DATA", "--out=OUT", "--steps=2", "--budget=9s"], "steps and budget"),
        (["bert-tiny", "--data=DATA", "--out=OUT", "--tokens=many"], "--tokens 'many'"),
        (["bert-tiny", "--data=DATA", "--out=OUT", "--budget=soon"], "'soon'"),
        (["bert-tiny", "--data=DATA", "--out=OUT", "--objective=causal"], "decoder"),
        (["bert-tiny", "--data=DATA", "--out=OUT", "--config=none.yaml"], "none.yaml"),
        (["bert-tiny", "--data=DATA", "--out=OUT", "--device=tpu"], "'tpu'"),
        (["gpt2-small", "--data=DATA", "--out=OUT", "--objective=masked"], "encoder"),
    ],
)
def test_what_was_meant(capsys: Capture, data: str, tmp_path: Path, words: list[str], told: str) -> None:
    places = {"DATA": data, "OUT": str(tmp_path / "run")}
    for name, value in places.items():
        words = [word.replace(name, value) for word in words]
    assert told in refused(capsys, 2, "pretrain", *words)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_exit_codes(capsys: Capture, data: str, tmp_path: Path) -> None:
    out = f"--out={tmp_path / 'run'}"
    assert "`pretune prepare`" in refused(capsys, 3, *arguments(str(tmp_path / "none"), out))
    text = blocks(tmp_path / "short.txt", ["The old house."])
    prepare([text], tokenizer=f"{data}/tokenizer", out=tmp_path / "short", holdout=0, workers=0)
    capsys.readouterr()
    assert str(tmp_path / "short") in refused(capsys, 3, *arguments(str(tmp_path / "short"), out, "--objective=masked"))
    assert str(tmp_path / "run") in refused(capsys, 4, "pretrain", out, "--resume")
    assert f"{tmp_path}/no" in refused(capsys, 4, *arguments(data, out, f"--from={tmp_path}/no", name=None))


@pytest.mark.parametrize("more", [["--dry-run"], []])
@pytest.mark.parametrize("given", ["--steps=2", "--config=CONFIG"])
def test_a_device_that_is_not_here_is_refused_by_a_dry_run_too(
    capsys: Capture, data: str, tmp_path: Path, monkeypatch: Patch, given: str, more: list[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    name: str | None = "bert-tiny"
    if "CONFIG" in given:
        assert main(arguments(data, "--steps=2", "--dry-run", "--json")) == 0
        (tmp_path / "run.json").write_text(capsys.readouterr().out)
        given, name = f"--config={tmp_path / 'run.json'}", None
    words = arguments(None if name is None else data, given, f"--out={tmp_path / 'run'}", *more, name=name)
    assert "'cuda'" in refused(capsys, 6, *words, "--device=cuda")
    assert "'cuda:1'" in refused(capsys, 6, *words, "--device=cuda:1")
    assert "'cpu:0'" in refused(capsys, 2, *words, "--device=cpu:0")
    assert not (tmp_path / "run").exists()


def test_shards_need_torchrun(capsys: Capture, data: str, tmp_path: Path) -> None:
    words = arguments(data, "--steps=2", f"--out={tmp_path / 'run'}", "--set=train.parallel=fsdp")
    assert "torchrun" in refused(capsys, 2, *words)
    assert not (tmp_path / "run/checkpoints").exists()
