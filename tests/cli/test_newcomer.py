"""Someone who reads `pretune --help` and what commands print gets from a folder of texts and a table to predictions.

Nothing is typed here that was not printed before: a command is taken out of the help, a hint or an error, and only the
newcomer's own files are put where the output has a name for them. Mistakes are made on the way, and the line that
answers each leads back to it.
"""

import io
import json
import re
import shlex
from pathlib import Path

import pytest

from pretune.cli import main
from tests.conftest import Capture, Patch
from tests.runs import tasked

MINE = {"texts/": "letters", "TEXTS/": "letters", "TABLE.csv": "judged.csv", "labelled.csv": "judged.csv",
        "new.csv": "unread.csv", "NEW.csv": "unread.csv", "10m": "40s"}  # fmt: skip
"""What the output calls files -> those of the newcomer, who has no ten minutes."""


class Newcomer:
    """Types what was printed, and remembers what is printed then."""

    def __init__(self, capsys: Capture, monkeypatch: Patch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch
        self.out = self.err = ""

    def types(self, words: list[str]) -> int:
        assert words[0] == "pretune"
        code = main(words[1:])
        self.out, self.err = self.capsys.readouterr()
        return code

    def suggested(self, verb: str) -> list[str]:
        """The command with a verb that was just printed, alone on its line or as a hint, for the newcomer's files."""
        found = re.search(
            rf"^(?:next: |or: | +)(pretune {verb}\b.*?)(?:  \(.*\))?$", f"{self.out}\n{self.err}", re.MULTILINE
        )
        assert found, f"nothing printed says how to `{verb}`:\n{self.out}\n{self.err}"
        return [MINE.get(word, word) for word in shlex.split(found[1])]

    def does(self, verb: str) -> list[str]:
        """Take the suggestion; what was typed."""
        words = self.suggested(verb)
        assert self.types(words) == 0, self.err
        return words

    def pipes(self, verb: str) -> None:
        """Take the suggestion that begins with a text."""
        found = re.search(rf"^next: echo '(.*)' \| (pretune {verb} .*)$", self.err, re.MULTILINE)
        assert found, self.err
        self.monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{found[1]}\n".encode())))
        assert self.types(shlex.split(found[2])) == 0, self.err

    def is_told(self, pattern: str) -> re.Match[str]:
        """What the one line of an error says."""
        assert self.err.count("\n") == 1 and self.err.startswith("pretune: error: "), self.err
        found = re.search(pattern, self.err)
        assert found, self.err
        return found


@pytest.fixture
def files(tmp_path: Path, monkeypatch: Patch) -> None:
    """A folder of .txt files, one file alone, a table with columns of other names than ours, and new lines."""
    monkeypatch.chdir(tmp_path)
    texts = tasked.corpus(40)
    for folder, some in (("letters", texts), ("one", texts[:1])):
        Path(folder).mkdir()
        for number, text in enumerate(some):
            Path(folder, f"{number}.txt").write_text(text, encoding="utf-8")
    table = tasked.classes(Path("judged.csv"), 60)
    table.write_text(table.read_text().replace("text,label", "comment,verdict", 1))
    Path("unread.csv").write_text("comment\na lovely, old house.\nthe dreadful long winter.\n", encoding="utf-8")


def replaced(words: list[str], **others: str) -> list[str]:
    """A command with some of its words put right."""
    return [others.get(word, word) for word in words]


@pytest.mark.slow
@pytest.mark.usefixtures("files")
def test_from_texts_and_a_table_to_predictions(capsys: Capture, monkeypatch: Patch) -> None:
    me = Newcomer(capsys, monkeypatch)
    assert me.types(["pretune"]) == 0  # what someone types who knows nothing
    for verb in ("pretrain", "finetune", "predict"):
        assert re.search(rf"^  {verb} +[A-Z]", me.out, re.MULTILINE)  # a line on what it does
    first = me.suggested("pretrain")

    assert me.types(replaced(first, pretrain="pretrian")) == 2
    right = me.is_told(r"'pretrian'.*?'(\w+)'")[1]
    assert me.types(replaced(first, pretrain=right)) == 0
    words = me.suggested("finetune")

    assert me.types(words) == 3  # the columns have names of their own
    option = me.is_told(r"(--\w+) \(")[1]
    assert me.types([*words, option, "coment"]) == 3
    column = me.is_told(r"'coment'.*?\b(comment)\b")[1]
    assert me.types([*words, option, column]) == 3
    other, _, label = me.is_told(r"(--\w+) \((\w+), (\w+)\)").groups()
    assert me.types([*words, option, column, other, label]) == 0, me.err
    assert "majority" in me.out  # simple baselines beside it

    assert "'comment'" in me.err
    mine = me.suggested("predict")  # of new texts, in a table of one column
    me.pipes("predict")
    assert json.loads(me.out)["label"] in ("good", "bad")
    assert me.types(mine) == 0, me.err
    assert [json.loads(line)["label"] for line in me.out.splitlines()] == ["good", "bad"]
    assert me.types(["pretune", "--help"]) == 0
    run = words[words.index("--out") + 1]
    new = replaced(me.suggested("predict"), **{"runs/tuned": run})
    assert me.types(new) == 0, me.err
    assert [json.loads(line)["label"] for line in me.out.splitlines()] == ["good", "bad"]
    me.does("report")
    assert Path("report.html").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.usefixtures("files")
def test_too_little_text_is_told_before_anything_is_learnt(capsys: Capture, monkeypatch: Patch) -> None:
    me = Newcomer(capsys, monkeypatch)
    assert me.types(["pretune", "--help"]) == 0
    recipe = me.suggested("pretrain")
    assert me.types(replaced(recipe, letters="one")) == 3
    assert (
        re.search(r"^pretune: error: .*tokens.*add text", me.err, re.MULTILINE)
        and not Path("runs/base/run.json").exists()
    )
    assert me.types([*recipe, "--dry-run"]) == 0

    first = ["pretune", "tokenizer", "letters", "--out", "tok"]  # the longer way
    assert me.types(replaced(first, letters="one")) == 0
    assert "warning: " in me.err
    me.does("prepare")
    assert "warning: " in me.err and "pretrain" not in me.err
    me.does("prepare")  # all of it this time
    me.suggested("pretrain")

    assert me.types(first) == 2  # and a tokenizer of all of it; the first try is in the way
    me.is_told("'tok'")
    assert me.types(replaced(first, tok="tok-all")) == 0
    me.does("prepare")
    assert "pretrain" in me.suggested("pretrain")
