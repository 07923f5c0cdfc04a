import json
from pathlib import Path

import pytest

import pretune as pt
from pretune.models import catalog
from tests.conftest import Capture, run_command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pt.save(catalog.build("bert-tiny", width=16, depth=1, heads=2, vocab=30, positions=16), tmp_path / "model")
    return tmp_path / "model"


def test_a_line_for_everything_that_was_checked(capsys: Capture, folder: Path) -> None:
    out, err = run_command(capsys, ["verify", str(folder)])
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
    found = json.loads(run_command(capsys, ["verify", str(folder), "--json"]).out)
    assert (found["directory"], found["ok"], len(found["checked"])) == (str(folder), True, 5)


@pytest.mark.parametrize("json_too", [[], ["--json"]])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_fault_is_one_line_and_exit_4(capsys: Capture, folder: Path, name: str, json_too: list[str]) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 4
    (folder / name).write_bytes(data)
    out, err = run_command(capsys, ["verify", str(folder), *json_too], code=4)
    assert out == ""
    assert err.startswith(f"pretune: error: {folder / name}: ") and "MANIFEST.json" in err and err.count("\n") == 1


def test_no_directory(capsys: Capture, tmp_path: Path) -> None:
    error = run_command(capsys, ["verify", str(tmp_path / "absent")], code=4).err
    assert error.startswith(f"pretune: error: {tmp_path / 'absent'}: ") and "hf:OWNER/NAME" in error
