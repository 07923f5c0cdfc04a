"""Weights that are not finite: an error of the checkpoint (exit 4), never an answer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import pretune as pt
from pretune.cli.app import main
from pretune.core import io
from pretune.core.errors import CheckpointError, NonFiniteError
from tests.runs import tasked

TEXT = "the old sea."


def spoil(folder: Path, value: float = float("nan"), *, every: bool = True) -> Path:
    """Put a value into weights: the last norm, or one row of the token table."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith(("word_embeddings.weight", "wte.weight")))
    tensors[name][:: 1 if every else 10**6] = value
    save_file(tensors, file, metadata={"format": "pt"})
    (folder / io.MANIFEST).unlink(missing_ok=True)
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.make_base(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spoil(tasked.make_base(tmp_path_factory.mktemp("damaged")))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spoil(tasked.make_base(tmp_path_factory.mktemp("decoder"), "gpt2-small", "bpe", "endoftext"))


def refused(words: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 4 with one line, and nothing that could pass for an answer."""
    assert main([str(word) for word in words]) == CheckpointError.exit_code
    said = capsys.readouterr()
    assert "nan" not in said.out.lower() and "Traceback" not in said.err


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
def test_the_verbs_for_encoders(
    damaged: Path, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text(f"{TEXT}\na quiet house.\n")
    refused(["fill", damaged, "the [MASK] sea", *more], capsys)
    refused(["embed", damaged, "--input", lines, "--out", tmp_path / "v.jsonl", *more], capsys)
    refused(["index", damaged, "--input", lines, "--out", tmp_path / "index", *more], capsys)
    refused(["neighbors", damaged, "sea", "--in", TEXT, "--corpus", lines, *more], capsys)
    refused(["evaluate", damaged, "--text", lines, *more], capsys)
    assert not (tmp_path / "v.jsonl").exists() and not (tmp_path / "index").exists()


def test_generate(decoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(["generate", decoder, "the old"], capsys)
    refused(["generate", decoder, "the old", "--json", "--beams", "2"], capsys)
    model = pt.load(decoder)
    for how in ({"temperature": 0.0}, {"top_p": 0.9}, {"beams": 2}):
        with pytest.raises(NonFiniteError):
            pt.generate(model, ["the old"], max_new_tokens=3, **how)  # type: ignore[arg-type]


def test_in_python(damaged: Path) -> None:
    model = pt.load(damaged)
    with pytest.raises(NonFiniteError):
        pt.fill(model, "the [MASK] sea")
    with pytest.raises(NonFiniteError):
        pt.embed(model, [TEXT])
    with pytest.raises(NonFiniteError):
        pt.score(model, [TEXT])


def test_predict_and_evaluate_a_run(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tasked.classes(tmp_path / "t.csv", 60)
    run = tmp_path / "run"
    pt.finetune(encoder, train=table, method="frozen", steps=2, out=run)
    spoil(run, float("inf"))
    capsys.readouterr()
    refused(["predict", run, "--input", table], capsys)
    with pytest.raises(NonFiniteError):
        pt.predict(run, [TEXT])


def test_an_index_of_vectors_that_are_not_finite(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = tmp_path / "index"
    pt.index(encoder, [TEXT, "a quiet house."], out=index)
    vectors = np.load(index / "vectors-00000.npy")
    vectors[1] = np.nan
    np.save(index / "vectors-00000.npy", vectors)
    io.write_manifest(index, ["index.json", "vectors-00000.npy", "texts-00000.jsonl"])
    refused(["search", index, "sea", "--json"], capsys)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_finetune_ends_before_training(
    encoder: Path, value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One value of one tensor is enough, and the learning rate is not blamed."""
    model = pt.load(encoder)
    with torch.no_grad():
        next(iter(model.parameters())).view(-1)[5] = value
    pt.save(model, tmp_path / "base")
    table = tasked.classes(tmp_path / "t.csv", 60)
    refused(["finetune", tmp_path / "base", "--train", table, "--steps", "2", "--out", tmp_path / "run"], capsys)
    assert not list((tmp_path / "run").rglob("metrics.jsonl")) if (tmp_path / "run").exists() else True


def test_a_number_that_json_lacks_is_no_internal_error(capsys: pytest.CaptureFixture[str]) -> None:
    from pretune.cli._errors import classify_error

    with pytest.raises(ValueError, match="JSON") as caught:
        json.dumps(float("nan"), allow_nan=False)
    assert classify_error(caught.value)[0] == CheckpointError.exit_code
