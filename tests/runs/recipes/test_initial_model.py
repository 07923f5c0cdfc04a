"""Recipes that start from a model: its architecture and vocabulary stay, and a model that does not fit is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.cli import main
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.models.hf import checkpoint
from pretune.runs.recipes import build
from pretune.text.tokenizer.training import train
from tests.conftest import Capture, Patch, run_command
from tests.data.texts import blocks, stories

SETS = {"train.samples_every": 0, "train.workers": 0, "train.eval_tokens": 500, "data.max_length": 32}
SHAPES = {
    "encoder": ("bert-tiny", "wordpiece", {"heads": 2, "hidden": 48, "positions": 64}),
    "decoder": ("qwen3", "bpe", {"heads": 2, "kv_heads": 2, "head_width": 16, "hidden": 48}),
    "encoder-decoder": ("t5v1.1-small", "unigram", {"heads": 2, "head_width": 16, "hidden": 48}),
}


def make_model(folder: Path, shape: str) -> Path:
    """Save a small model of a shape; the encoder has no masked head, as sentence encoders have none."""
    family, kind, settings = SHAPES[shape]
    tokenizer = train(
        kind, stories(60), vocab={"unigram": 420}.get(kind, 300), style="sentinels" if kind == "unigram" else None
    )
    model = pt.build(family, vocab=tokenizer.vocab, width=32, depth=2, seed=3, **settings)
    if shape == "encoder":
        model = pt.build(model.spec.__class__(**{**_fields(model.spec), "head": None, "pair": None}), seed=3)
    model.assets.files = tokenizer.build_files()
    checkpoint.save(model, folder / shape)
    return folder / shape


def _fields(spec: Any) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {shape: make_model(tmp_path_factory.mktemp("models"), shape) for shape in SHAPES}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    blocks(folder / "stories.txt", stories(400, 500))
    return folder


@pytest.fixture(autouse=True)
def in_time(monkeypatch: Patch) -> None:
    """However busy the machine is, a run of seconds is no error."""
    monkeypatch.setattr(build, "MIN_SHARE", -1e9)


@pytest.mark.parametrize("shape", ["encoder", *(pytest.param(name, marks=pytest.mark.slow) for name in [*SHAPES][1:])])
def test_training_starts_from_the_weights(shape: str, models: dict[str, Path], text: Path, tmp_path: Path) -> None:
    out, sets = tmp_path / "run", {**SETS, "train.lr": 1e-9}
    run = pt.pretrain(shape, text=text, init_from=models[shape], budget=3.0, out=out, overrides=sets)
    tree = json.loads((out / "run.json").read_text())
    choices = {choice["path"]: choice["value"] for choice in tree["environment"]["plan"]["choices"]}
    before, after = pt.load(models[shape]), run.load()
    assert tree["train"]["init_from"] == choices["model"] == str(models[shape])
    assert tree["environment"]["plan"]["expected"]["loss"] is None and not (out / "initial").exists()
    torch.testing.assert_close(after.tokens.weight, before.tokens.weight, atol=1e-4, rtol=0)
    assert after.spec.head is not None and after.tokenizer.sha256 == before.tokenizer.sha256
    assert f"from the weights of `{models[shape]}`" in (out / "README.md").read_text()

    again = pt.pretrain(shape, text=text, init_from=models[shape], budget=3.0, out=out, overrides=sets, resume=True)
    assert again.summary == run.summary
    with pytest.raises(CheckpointError, match="resumed from another"):
        pt.pretrain(shape, text=text, init_from="minilm", budget=3.0, out=out, overrides=sets, resume=True)


@pytest.mark.slow
def test_a_new_vocabulary(models: dict[str, Path], text: Path, tmp_path: Path) -> None:
    """A token that both vocabularies have keeps its vector."""
    out, sets = tmp_path / "run", {**SETS, "train.lr": 1e-9, "model.vocab": 150}
    run = pt.pretrain("encoder", text=text, init_from=models["encoder"], budget=3.0, out=out, overrides=sets)
    old, new = pt.load(models["encoder"]), run.load()
    assert new.spec.vocab == new.tokenizer.vocab == 150 != old.spec.vocab
    shared = [
        token for token in ("the", "a", ".") if old.tokenizer.token_to_id(token) and new.tokenizer.token_to_id(token)
    ]
    assert shared
    for token in shared:
        rows = [model.tokens.weight[model.tokenizer.token_to_id(token)] for model in (old, new)]
        torch.testing.assert_close(*rows, atol=1e-4, rtol=0)
    assert f"from the weights of `{models['encoder']}`" in (out / "README.md").read_text()
    assert main(["verify", str(out)]) == 0
    again = pt.pretrain(
        "encoder", text=text, init_from=models["encoder"], budget=3.0, out=out, overrides=sets, resume=True
    )
    assert again.summary == run.summary


def test_a_dry_run_touches_nothing(
    models: dict[str, Path], text: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["pretrain", "encoder", f"--text={text}", f"--from={models['encoder']}", "--budget=10m", "--dry-run"]
    out, err = run_command(capsys, words)
    assert err == "" and [*tmp_path.iterdir()] == []
    assert f"model {models['encoder']}: bert" in out and "width 32" in out


def test_models_that_do_not_fit(models: dict[str, Path], text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"

    def start(name: str, model: Path | str, **options: Any) -> None:
        pt.pretrain(name, init_from=model, budget="1m", out=out, **{"text": text, **options})

    with pytest.raises(UsageError, match="shape 'encoder'"):
        start("decoder", models["encoder"])
    for path in ("model.width", "model.depth", "model.dropout"):
        with pytest.raises(UsageError, match=path):
            start("encoder", models["encoder"], overrides={path: 64})
    with pytest.raises(CheckpointError):
        start("encoder", tmp_path / "nothing")
    (tmp_path / "chinese.txt").write_text("这部电影非常好看我们都很喜欢。\n\n" * 100)
    with pytest.raises(DataError, match=r"model\.vocab"):
        start("encoder", models["encoder"], text=tmp_path / "chinese.txt")
    bare, damaged = tmp_path / "bare", tmp_path / "damaged"
    for copy in (bare, damaged):
        shutil.copytree(models["encoder"], copy)
    (bare / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        start("encoder", bare)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged"):
        start("encoder", damaged)
    assert not out.exists()


def test_too_little_time(models: dict[str, Path], text: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(build, "MIN_SHARE", 0.3)
    with pytest.raises(UsageError, match="at least"):
        pt.pretrain("encoder", text=text, init_from=models["encoder"], budget="1s", out=tmp_path / "run")
