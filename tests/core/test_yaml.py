"""YAML of settings: plain values only, in time and memory that the size of a settings file bounds."""

import os
from pathlib import Path

import pytest

from pretune.cli import main
from pretune.core.config.read import MAX_DEPTH, MAX_YAML_BYTES, MAX_YAML_VALUES, read_yaml
from pretune.core.errors import UsageError

HOSTILE = {
    "deep lists": "[" * 6_000,
    "deep lists of a key": "a: " + "[" * 200_000,
    "deep objects": "{" * 6_000,
    "deep blocks": "- " * 60_000,
    "deep keys": "\n".join(" " * i + "a:" for i in range(700)),
    "keys of keys": "[? " * 3_000,
    "many values": "a: [" + "1," * MAX_YAML_VALUES + "]",
    "many documents": "---\n" * 50_000,
    "an alias": "a: &a [1]\nb: *a",
    "a number of base 60": "a: 1" + ":1" * 100_000,
    "a number beyond all floats": "a: 1" + ":1" * 300 + ".5",
    "a date that is none": "a: 2001-99-99",
    "a tag of a date": "a: !!timestamp x",
    "a tag of a boolean": "a: !!bool x",
    "a tag of Python": "a: !!python/object/apply:os.getcwd []",
    "a key that is a list": "{[a]: 1}",
    "an escape sequence": 'a: !\x1b[31m "x"',
    "a list": "- a",
    "nothing": "",
    "too large": "#" * (MAX_YAML_BYTES + 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HOSTILE[name])
    with pytest.raises(UsageError, match=r"config\.yaml") as caught:
        read_yaml(file)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600


def test_files_as_deep_as_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1))
    assert [*read_yaml(tmp_path / "c")] == ["a"]


def test_only_regular_files_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file in ("/dev/zero", str(tmp_path / "pipe"), str(tmp_path)):
        with pytest.raises(UsageError):
            read_yaml(Path(file))
    for file in ("/dev/zero", str(tmp_path / "pipe")):
        assert (
            main(["pretrain", "bert-tiny", "--data", str(tmp_path), "--out", str(tmp_path / "o"), "--config", file])
            == 2
        )
        assert file in capsys.readouterr().err
