import json
from pathlib import Path

import pytest

import pretune as pt
from pretune.cli import main
from pretune.models import catalog

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pt.save(catalog.build("bert-tiny", width=16, depth=1, heads=2, vocab=30, positions=16), tmp_path / "model")
    return tmp_path / "model"


def test_a_line_for_everything_that_was_checked(capsys: Capture, folder: Path) -> None:
    assert main(["verify", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert err == f"next: pretune show {folder}\n"
    names = [
        "MANIFEST.json: 2",
        "config.json: family 'bert', 4,720",
        "tensors: 30",
        "values: 4,720",
        "tokenizer.json: ",
    ]
    assert all(line.startswith(f"ok  {name}") for line, name in zip(out.splitlines(), names, strict=True)), out


def test_json(capsys: Capture, folder: Path) -> None:
    assert main(["verify", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["directory"], found["ok"], len(found["checked"])) == (str(folder), True, 5)


@pytest.mark.parametrize("json_too", [[], ["--json"]])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_fault_is_one_line_and_exit_4(capsys: Capture, folder: Path, name: str, json_too: list[str]) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 4
    (folder / name).write_bytes(data)
    assert main(["verify", str(folder), *json_too]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"pretune: error: {folder / name}: ") and "MANIFEST.json" in err and err.count("\n") == 1


def test_no_directory(capsys: Capture, tmp_path: Path) -> None:
    assert main(["verify", str(tmp_path / "absent")]) == 4
    error = capsys.readouterr().err
    assert error.startswith(f"pretune: error: {tmp_path / 'absent'}: ") and "hf:OWNER/NAME" in error
