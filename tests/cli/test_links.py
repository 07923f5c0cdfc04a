"""Broken symbolic links: one line that names the link and its target, and nothing written in its place."""

import os
import shutil
from pathlib import Path

import pytest

import pretune as pt
from pretune.cli import main
from pretune.core.errors import UsageError
from tests.cli import world
from tests.conftest import Capture
from tests.inference import speakers

BASE, TUNED, TABLE = "my runs/base", "my runs/tuned", "my table.csv"
OUTPUTS = {verb: words for verb, words in world.COMMANDS.items() if any("OUT" in word for word in words)} | {
    "analyze": [*world.COMMANDS["analyze"], "--out=OUT.svg"],
    "quickstart": ["--out=OUT"],
}
INPUTS = [
    (["tokenizer", "LINK.txt", "--out=o"], 3),
    (["prepare", "LINK.txt", "--tokenizer=tok", "--out=o"], 3),
    (["prepare", "my texts", "--tokenizer=LINK", "--out=o"], 4),
    (["pretrain", "bert-tiny", "--data=LINK", "--out=o"], 3),
    (["pretrain", "bert-tiny", "--data=data", "--config=LINK.yaml", "--out=o"], 2),
    (["finetune", "LINK", f"--train={TABLE}", "--out=o"], 4),
    (["finetune", BASE, "--train=LINK.csv", "--out=o"], 3),
    (["predict", "LINK", "--input=lines.txt"], 4),
    (["predict", TUNED, "--input=LINK.csv"], 3),
    (["evaluate", BASE, "--text=LINK.txt"], 3),
    (["generate", "writer", "--input=LINK.txt"], 3),
    (["fill", BASE, "--input=LINK.txt"], 3),
    (["embed", BASE, "--input=LINK.jsonl", "--out=o.npy"], 3),
    (["search", "LINK", "sea"], 4),
    (["search", "my index", "--queries=LINK.jsonl"], 3),
    (["analyze", "attention", "LINK"], 4),
    (["compare", "LINK.yaml", "--dry-run"], 2),
    (["report", "LINK"], 2),
    (["verify", "LINK"], 4),
    (["export", "LINK", "--to=hf", "--out=o"], 4),
    (["show", "./LINK"], 2),
]


def refuse(words: list[str], capsys: Capture) -> tuple[int, str]:
    code = main(["--quiet", *words])
    out, err = capsys.readouterr()
    assert err.startswith("pretune: error: ") and err.count("\n") == 1 and out == "", err
    return code, err


@pytest.mark.parametrize("verb", OUTPUTS)
@pytest.mark.parametrize("target", ["absent", "link"])
def test_outputs(verb: str, target: str, workshop: Path, tmp_path: Path, capsys: Capture) -> None:
    name = next(word.partition("OUT")[2] for word in OUTPUTS[verb] if "OUT" in word)
    link = tmp_path / f"link{name}"
    link.symlink_to(tmp_path / f"{target}{name}")  # a link to itself is broken, too
    words = [word.replace(f"OUT{name}", str(link)) for word in OUTPUTS[verb]]
    with world.inside(workshop):
        code, err = refuse([verb, *words], capsys)
    assert code == 2 and f"'{link}'" in err and f"'{link.readlink()}'" in err
    assert [*tmp_path.iterdir()] == [link] and link.is_symlink()


@pytest.mark.parametrize(
    ("words", "code"), INPUTS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_inputs(words: list[str], code: int, workshop: Path, tmp_path: Path, capsys: Capture) -> None:
    word = next(word for word in words if "LINK" in word)
    link = tmp_path / f"link{word.partition('LINK')[2]}"
    link.symlink_to(tmp_path / "absent")
    with world.inside(workshop):
        place = os.path.relpath(link)
        told, err = refuse([word.replace(f"LINK{link.suffix}", place) for word in words], capsys)
    assert told == code and f"'{place}'" in err.replace("./..", "..") and f"'{tmp_path / 'absent'}'" in err


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
def test_a_file_of_a_model_is_not_absent(name: str, tmp_path: Path, capsys: Capture) -> None:
    pt.save(speakers.gpt(), tmp_path / "model")
    file = tmp_path / "model" / name
    file.unlink()
    file.symlink_to(tmp_path / "absent")
    for words in (["generate", str(file.parent), "The king"], ["show", str(file.parent)]):
        code, err = refuse(words, capsys)
        assert code == 4 and f"'{file}'" in err and f"'{tmp_path / 'absent'}'" in err


def test_a_file_of_a_run_is_not_absent(workshop: Path, tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    shutil.copytree(workshop / TUNED, run)
    (run / "scores.json").unlink()
    (run / "scores.json").symlink_to(tmp_path / "absent")
    out = tmp_path / "report.html"
    for words in (["report", str(run), f"--out={out}"], ["predict", str(run), f"--input={workshop / 'lines.txt'}"]):
        code, err = refuse(words, capsys)
        assert code == 4 and f"'{run / 'scores.json'}'" in err and not out.exists()


def test_a_link_with_a_target_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    pt.save(speakers.gpt(), tmp_path / "link" / "model")
    assert (tmp_path / "there" / "model" / "config.json").is_file()
    (tmp_path / "broken").symlink_to(tmp_path / "absent")
    with pytest.raises(UsageError, match="broken link"):
        pt.save(speakers.gpt(), tmp_path / "broken" / "model")
    assert not (tmp_path / "absent").exists()
