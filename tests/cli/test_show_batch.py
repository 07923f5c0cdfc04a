"""What is printed: a few pages word for word, and all of them within the width, whatever the terminal can do."""

import io
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from pretune.cli import main
from pretune.objectives import OBJECTIVES
from tests.conftest import ROOT
from tests.text.tokenizers import trained

Capture = pytest.CaptureFixture[str]
CASES = [(name, shape) for name in OBJECTIVES for shape in OBJECTIVES.get(name)().shapes]


def page(capsys: Capture, *arguments: str) -> str:
    assert main(["show-batch", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == "" or [line.split()[0] for line in err.splitlines()] == ["next:", "or:"]
    return out


MASKED = """\
Masked language modelling: mask some tokens and predict them from both sides.
Masked tokens or whole words, predicted from both sides (BERT, RoBERTa).

masked: shape encoder, seed 3
rate=0.4 split=[0.4,0.3,0.3] words=false

in   Thank party for inviting me to your party [MASK] week week
out  you … your … last … .

         0     1     2      3   4        5  6
input    [CLS] Thank party  for inviting me to
target               you
shown as             random

         7    8     9      10   11     12
input    your party [MASK] week week   [SEP]
target   your       last        .
shown as kept       mask        random

encoder
                                1 1 1
            0 1 2 3 4 5 6 7 8 9 0 1 2
 0 [CLS]    ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■
 1 Thank    ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■
 2 party    ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■
 3 for      ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■
 4 inviting ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■
 5 me       ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■
 6 to       ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■
 7 your     ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■
 8 party    ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■
 9 [MASK]   ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■
10 week     ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■
11 week     ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■
12 [SEP]    ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■
"""

PREFIX = """\
prefix: shape decoder, seed 0

in   The cat
out  sat down.

       0   1   2   3    4    5    6
input  <s> The cat sat  down .    </s>
target         sat down .    </s>

decoder
        0 1 2 3 4 5 6
 0 <s>  ■ ■ ■ · · · ·
 1 The  ■ ■ ■ · · · ·
 2 cat  ■ ■ ■ · · · ·
 3 sat  ■ ■ ■ ■ · · ·
 4 down ■ ■ ■ ■ ■ · ·
 5 .    ■ ■ ■ ■ ■ ■ ·
 6 </s> ■ ■ ■ ■ ■ ■ ■
"""


def missing(blocks: str, text: str) -> list[str]:
    """The blocks that a page does not have, or not in this order."""
    found = []
    for block in blocks.strip("\n").split("\n\n"):
        before, _, rest = text.partition(block)
        found += [] if len(before) < len(text) else [block]
        text = rest or text
    return found


def test_masked(capsys: Capture) -> None:
    text = page(capsys, "masked", "--seed", "3", "--set", "rate=0.4", "--set", "split=[0.4,0.3,0.3]")
    assert missing(MASKED, text) == [] and "mean over 4 targets" in text


def test_prefix(capsys: Capture) -> None:
    text = page(capsys, "prefix", "--shape", "decoder", "--text", "The cat sat down.")
    assert missing(PREFIX, text) == [] and "first 3 tokens" in text and "mean over 4 targets" in text


def test_the_pages_of_the_docs(capsys: Capture) -> None:
    """T5's sentence and an order of prediction."""
    text = (ROOT / "docs" / "objectives.md").read_text()
    shown = re.findall(r"```\n\$ pretune (show-batch [^\n]+)\n(.*?)```", text, re.DOTALL)
    assert [command.split()[1] for command, _ in shown] == ["span_corruption", "permuted"]
    for command, output in shown:
        assert page(capsys, *shlex.split(command)[1:]) == output
    assert "in   Thank you <X> me to your party <Y> week.\nout  <X> for inviting <Y> last <Z>\n" in shown[0][1]


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_every_page_is_within_the_width(capsys: Capture, name: str, shape: str) -> None:
    plain = page(capsys, name, "--shape", shape)
    assert max(map(len, plain.splitlines())) <= 80
    assert "\x1b" not in plain
    assert "Loss: " in plain
    facts = json.loads(page(capsys, name, "--shape", shape, "--json"))
    assert facts["objective"] == name and facts["shape"] == shape
    flat = " ".join(plain.split())
    for drawn in facts["sequences"]:
        assert drawn["input"] in flat and drawn["target"] in flat
        for sight in drawn["attention"]:
            assert sight["name"] in plain
    blocks = sum(
        seen
        for drawn in facts["sequences"]
        for sight in drawn["attention"]
        for row in sight["mask"][:24]
        for seen in row[:24]
    )
    assert plain.count("■") == blocks


def test_in_colour(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same page, and what the colours mean; a sentinel has one colour wherever it stands."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain = page(capsys, "span_corruption", "--hide", "for inviting", "--hide", "last")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    drawn = page(capsys, "span_corruption", "--hide", "for inviting", "--hide", "last")
    assert "\x1b[" in drawn
    bare = re.sub(r"\x1b\[[0-9;]*m", "", drawn)
    assert max(map(len, bare.splitlines())) <= 80
    legend = [line for line in bare.splitlines() if re.fullmatch(r"(■ [a-z -]+)+", line)]
    assert [line.rstrip() for line in bare.splitlines() if line not in legend] == plain.splitlines()
    assert len({*legend}) == 1 and legend[0].count("■") == 4
    colours = {token: {*re.findall(rf"\x1b\[([0-9;]+)m *{token}", drawn)} for token in ("<X>", "<Y>")}
    assert all(len(found) == 1 for found in colours.values()) and colours["<X>"] != colours["<Y>"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
def test_where_unicode_cannot_be_shown(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """In ASCII, with tokens as wide as they were."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    assert main(["show-batch", "causal", "--text", "Grüße 你好 x"]) == 0
    sys.stdout.flush()
    text = raw.getvalue().decode(encoding)
    assert " 0 <s>   # . . . . ." in text and "■" not in text
    numbers, reads = text.splitlines()[text.splitlines().index("out  " + text.split("out  ")[1].splitlines()[0]) + 2 :][
        :2
    ]
    assert numbers.index("4") == reads.index("x")


def test_a_long_text_is_wrapped_and_its_grid_cut(capsys: Capture) -> None:
    text = page(capsys, "causal", "--text", " ".join(f"word{i}" for i in range(60)))
    assert max(map(len, text.splitlines())) <= 80
    assert "24 of 62 tokens" in text
    assert "word59" in text and "23 word22" in text and "24 word23" not in text


def test_pieces_of_a_tokenizer(capsys: Capture, tmp_path: Path) -> None:
    trained("wordpiece").save(tmp_path / "tok")
    text = page(
        capsys, "masked", "--tokenizer", str(tmp_path / "tok"), "--text", "An expression is \x1b[31m evaluated."
    )
    assert "##" in text and "--tokenizer" not in text and "\x1b" not in text


def test_nothing_may_be_hidden(capsys: Capture) -> None:
    (line,) = (line for line in page(capsys, "masked", "--text", "Hi").splitlines() if line.startswith("out  "))
    assert "--seed" in line


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
    assert main(["show-batch", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert told in err
