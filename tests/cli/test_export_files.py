"""`--out NAME.onnx` and `--out NAME.gguf` write that file and nothing else; other uses of such names are refused."""

import json
from pathlib import Path

import pytest

import pretune as pt
from pretune.cli import main
from pretune.models import catalog
from tests.cli.test_export import refused, tree
from tests.conftest import Capture, run_command

SMALL = {"width": 32, "depth": 1, "heads": 2, "vocab": 30}


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    pt.save(catalog.build("bert-tiny", **SMALL), tmp_path / "bert")
    return tmp_path / "bert"


@pytest.fixture
def decoder(tmp_path: Path) -> Path:
    pt.save(catalog.build("llama2-7b", **SMALL, hidden=64), tmp_path / "llama")
    return tmp_path / "llama"


def list_new(folder: Path, *known: str) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")} - set(known)


def test_gguf(decoder: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "new" / "books.gguf"
    assert main(["export", str(decoder), "--to", "gguf", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == ["books.gguf"]
    assert list_new(out.parent) == {"books.gguf"}
    assert main(["export", str(decoder), "--to", "gguf", "--out", str(tmp_path / "dir")]) == 0
    assert out.read_bytes() == (tmp_path / "dir/model.gguf").read_bytes()


def test_onnx(encoder: Path, tmp_path: Path, capsys: Capture) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    out = tmp_path / "place" / "bert.onnx"
    out.parent.mkdir()
    (out.parent / "README.md").write_text("mine")
    (out.parent / "MANIFEST.json").write_text("mine too")
    arguments = ["export", str(encoder), "--to", "onnx", "--out", str(out), "--quantize", "int8", "--json"]
    assert json.loads(run_command(capsys, arguments).out)["files"] == ["bert.onnx", "bert_quantized.onnx"]
    assert list_new(out.parent) == {"bert.onnx", "bert_quantized.onnx", "README.md", "MANIFEST.json"}
    assert (out.parent / "README.md").read_text() == "mine"
    for file in ("bert.onnx", "bert_quantized.onnx"):
        assert onnxruntime.InferenceSession(out.parent / file).get_outputs()[0].name == "logits"
    before = tree(out.parent)
    assert main(arguments) == 2 and tree(out.parent) == before
    assert main([*arguments, "--overwrite"]) == 0 and tree(out.parent).keys() == before.keys()


@pytest.mark.parametrize(("to", "name"), [("onnx", "x.gguf"), ("gguf", "x.onnx"), ("hf", "x.onnx"), ("hf", "x.GGUF")])
def test_the_name_of_another_format(encoder: Path, tmp_path: Path, capsys: Capture, to: str, name: str) -> None:
    assert name in refused(capsys, tmp_path, encoder, "--to", to, "--out", tmp_path / name)


def test_a_directory_of_that_name(decoder: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "x.gguf").mkdir()
    assert "directory" in refused(
        capsys, tmp_path, decoder, "--to", "gguf", "--out", tmp_path / "x.gguf", "--overwrite"
    )


def test_several_graphs_are_no_single_file(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("onnxruntime")
    pt.save(catalog.build("t5-small", width=16, depth=1, heads=2, vocab=30, hidden=32), tmp_path / "t5")
    message = refused(capsys, tmp_path, tmp_path / "t5", "--to", "onnx", "--out", tmp_path / "x.onnx")
    assert "encoder_model.onnx" in message
