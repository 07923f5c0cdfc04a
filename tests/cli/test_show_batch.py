"""What is printed: a few pages word for word, and all of them within the width, whatever the terminal can do."""

import io
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from pretune.cli import main
from pretune.objectives import OBJECTIVES
from tests.conftest import ROOT, Capture, run_command
from tests.text.tokenizers import trained

CASES = [(name, shape) for name in OBJECTIVES for shape in OBJECTIVES.get(name)().shapes]


def page(capsys: Capture, *arguments: str) -> str:
    out, err = run_command(capsys, ["show-batch", *arguments])
    assert err == "" or [line.split()[0] for line in err.splitlines()] == ["next:", "or:"]
    return out


MASKED = """\
Masked language modelling: mask some tokens and predict them from both sides.
Masked tokens or whole words, predicted from both sides (BERT, RoBERTa).

masked: shape encoder, seed 3, rate: 0.4, split: [0.4, 0.3, 0.3], words: false,
rate_epochs: 10

encoder, loss over 4 targets
      token     target  attends to
                        0123456789012
  0   [CLS]             #############
  1   Thank             #############
  2   party     you     #############
  3   for               #############
  4   inviting          #############
  5   me                #############
  6   to                #############
  7   your      your    #############
  8   party             #############
  9   [MASK]    last    #############
  10  week              #############
  11  week      .       #############
  12  [SEP]             #############

Tokens are words here; use --tokenizer DIR for subwords.
"""

PREFIX = """\
decoder, loss over 4 targets
     token  target  attends to
                    0123456
  0  <s>            ###....
  1  The            ###....
  2  cat    sat     ###....
  3  sat    down    ####...
  4  down   .       #####..
  5  .      </s>    ######.
  6  </s>           #######
"""


def test_masked(capsys: Capture) -> None:
    assert page(capsys, "masked", "--seed", "3", "--set", "rate=0.4", "--set", "split=[0.4,0.3,0.3]") == MASKED


def test_prefix(capsys: Capture) -> None:
    assert PREFIX in page(capsys, "prefix", "--shape", "decoder", "--text", "The cat sat down.")


def test_the_pages_of_the_docs(capsys: Capture) -> None:
    """T5's sentence and an order of prediction."""
    text = (ROOT / "docs" / "objectives.md").read_text()
    shown = re.findall(r"```\n\$ pretune (show-batch [^\n]+)\n(.*?)```", text, re.DOTALL)
    assert [command.split()[1] for command, _ in shown] == ["span_corruption", "permuted"]
    for command, output in shown:
        assert page(capsys, *shlex.split(command)[1:]) == output


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_every_page_is_within_the_width(capsys: Capture, name: str, shape: str) -> None:
    plain = page(capsys, name, "--shape", shape)
    assert max(map(len, plain.splitlines())) <= 80
    assert "\x1b" not in plain
    facts = json.loads(page(capsys, name, "--shape", shape, "--json"))
    assert facts["objective"] == name and facts["shape"] == shape
    sides = [side for drawn in facts["sequences"] for side in drawn["sides"]]
    rows = [line.split() for line in plain.splitlines() if re.fullmatch(r"  \d+ .*  [#.]+", line)]
    assert [row[0] for row in rows] == [str(place) for side in sides for place in range(len(side["tokens"]))]
    shown = [
        tuple(cut for cut in pair if cut)
        for side in sides
        for pair in zip(side["tokens"], side["targets"], strict=False)
    ]
    assert [tuple(row[1:-1]) for row in rows] == shown
    masks = ["".join("#" if seen else "." for seen in mask) for side in sides for mask in side["mask"]]
    assert [row[-1] for row in rows] == masks


def test_in_a_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same page, with styles."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain = page(capsys, "span_corruption", "--hide", "for inviting", "--hide", "last")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    drawn = page(capsys, "span_corruption", "--hide", "for inviting", "--hide", "last")
    assert "\x1b[" in drawn
    bare = re.sub(r"\x1b\[[0-9;]*m", "", drawn)
    assert max(map(len, bare.splitlines())) <= 80
    assert bare.split() == plain.split()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
def test_where_unicode_cannot_be_shown(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """Tokens have question marks, and columns stay aligned."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    assert main(["show-batch", "causal", "--text", "Grüße 你好 x"]) == 0
    sys.stdout.flush()
    text = raw.getvalue().decode(encoding)
    masks = [line for line in text.splitlines() if line.endswith(("#", ".")) and line[:3].strip().isdigit()]
    assert len(masks) == 6 and {line.index("#") for line in masks} == {masks[0].index("#")}


def test_a_long_text_has_its_mask_cut(capsys: Capture) -> None:
    text = page(capsys, "causal", "--text", " ".join(f"word{i}" for i in range(60)))
    assert max(map(len, text.splitlines())) <= 80
    assert "first 40 of 62" in text and "word59" in text


def test_wide_characters_keep_the_columns(capsys: Capture) -> None:
    text = page(capsys, "causal", "--text", "a 你好 b")
    rows = [line for line in text.splitlines() if "#" in line]
    assert len({cell_len(line.partition("#")[0]) for line in rows}) == 1


def test_pieces_of_a_tokenizer(capsys: Capture, tmp_path: Path) -> None:
    trained("wordpiece").save(tmp_path / "tok")
    text = page(
        capsys, "masked", "--tokenizer", str(tmp_path / "tok"), "--text", "An expression is \x1b[31m evaluated."
    )
    assert "##" in text and "--tokenizer" not in text and "\x1b" not in text


def test_nothing_may_be_hidden(capsys: Capture) -> None:
    assert "no targets; try another --seed" in page(capsys, "masked", "--text", "Hi")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["maskd"], "'masked'"),
        (["masked", "--shape", "decoder"], "encoder"),
        (["masked", "--shape", "encodr"], "'encoder'"),
        (["masked", "--text", ""], "--text"),
        (["masked", "--set", "rate=2"], "2"),
        (["masked", "--set", "rate"], "path=value"),
        (["masked", "--seed", "-1"], "-1"),
        (["masked", "--seed", "one"], "--seed"),
        ([], "OBJECTIVE"),
    ],
)
def test_errors_are_one_line(capsys: Capture, arguments: list[str], told: str) -> None:
    out, err = run_command(capsys, ["show-batch", *arguments], code=2)
    assert out == "" and err.count("\n") == 1
    assert told in err
