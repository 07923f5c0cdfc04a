"""Control characters and escape sequences in data never reach the terminal."""

import json
from pathlib import Path

import pytest

from pretune.cli import main
from tests.cli import world
from tests.conftest import Capture

HOSTILE = "\x1b[31mred \x9b2Jcleared \x07bell \u202eback"
CONTROLS = set(HOSTILE) - set("[31mred 2Jcleared bell back")


@pytest.fixture(scope="module")
def place(workshop: Path) -> Path:
    """Files that hold escape sequences, and an index of them."""
    with world.inside(workshop):
        rows = [{"id": f"d{i} {HOSTILE}", "text": f"a lovely sea {i} {HOSTILE}"} for i in range(6)]
        Path("hostile.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        labels = ["good", "bad " + HOSTILE]
        table = [{"text": f"a lovely sea {i} {HOSTILE}", "label": labels[i % 2]} for i in range(40)]
        Path("hostile table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
        assert main(["--quiet", "index", "my runs/base", "--input=hostile.jsonl", "--out=hostile index"]) == 0
        tune = ["--steps=2", "--baselines=none", "--out=my runs/hostile"]
        assert main(["--quiet", "finetune", "my runs/base", "--train=hostile table.jsonl", *tune]) == 0
    return workshop


@pytest.mark.parametrize(
    "arguments",
    [
        ["search", "hostile index", "lovely sea", "-k", "2"],
        ["search", "hostile index", "lovely sea", "-k", "2", "--json"],
        ["search", "hostile index", HOSTILE, "--bm25"],
        ["index", "my runs/base", "--input=hostile.jsonl", "--out=OUT"],
        ["finetune", "my runs/base", "--train=hostile table.jsonl", "--steps=1", "--baselines=majority", "--out=OUT"],
        ["finetune", "my runs/base", "--train=hostile table.jsonl", "--dry-run"],
        ["predict", "my runs/hostile", "--input=hostile.jsonl"],
        ["evaluate", "my runs/hostile", "--test=hostile table.jsonl"],
        ["show", f"bert-{HOSTILE}"],
        ["fill", "my runs/base", f"the ___ {HOSTILE} sea."],
        ["neighbors", "my runs/base", "sea", "--in=the sea.", "--corpus=hostile.jsonl"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_output_is_escaped(place: Path, tmp_path: Path, capsys: Capture, arguments: list[str]) -> None:
    with world.inside(place):
        main([part.replace("OUT", str(tmp_path / "out")) for part in arguments])
    out, err = capsys.readouterr()
    assert out + err
    assert not CONTROLS & set(out + err)


def test_json_keeps_the_characters(place: Path, capsys: Capture) -> None:
    with world.inside(place):
        assert main(["search", "hostile index", "lovely sea", "-k", "2", "--json"]) == 0
    hits = json.loads(capsys.readouterr().out)[0]["hits"]
    assert all(hit["text"].endswith(HOSTILE) for hit in hits)
