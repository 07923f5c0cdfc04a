import json
import os
import stat
from pathlib import Path

import pytest

from pretune.cli import main
from pretune.core.errors import UsageError
from pretune.runs.options import parse_bytes
from pretune.text.styles import KINDS
from pretune.text.tokenizer import Tokenizer
from tests.conftest import Capture
from tests.text.tokenizers import corpus


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(corpus()[:6]))
    return file


def run(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    code = main(["tokenizer", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(capsys: Capture, text: Path, tmp_path: Path, kind: str) -> None:
    code, out, err = run(capsys, text, "--kind", kind, "--vocab", 400, "--out", tmp_path / "tok")
    made = Tokenizer.load(tmp_path / "tok")
    assert code == 0
    size = f"{text.stat().st_size / 1e6:,.1f} MB"
    assert out.startswith(f"{tmp_path / 'tok'}: {kind}, {made.vocab} tokens") and out.count("\n") == 1
    assert KINDS[kind].style in out and size in out
    assert "400 tokens" in err.splitlines()[0]
    assert made.vocab == 400 or "warning: " in err


def test_json(capsys: Capture, text: Path, tmp_path: Path) -> None:
    code, out, _ = run(
        capsys,
        text,
        "--kind",
        "unigram",
        "--vocab",
        500,
        "--style",
        "s-mask",
        "--lowercase",
        "--json",
        "--out",
        tmp_path / "t",
    )
    facts, made = json.loads(out), Tokenizer.load(tmp_path / "t")
    assert code == 0
    assert facts.pop("seconds") > 0
    assert 0.9 * text.stat().st_size < facts.pop("bytes_read") <= text.stat().st_size
    assert facts == {
        "directory": str(tmp_path / "t"),
        "kind": "unigram",
        "style": "s-mask",
        "vocab": 500,
        "sha256": made.sha256,
        "special": {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 499},
        "sampled": False,
    }
    assert made.decode(made.encode("The É", add_special_tokens=False)) == "the e"


def test_options_reach_the_trainer(capsys: Capture, text: Path, tmp_path: Path) -> None:
    options = [
        "--kind",
        "words",
        "--vocab",
        60,
        "--sample",
        "20kB",
        "--seed",
        3,
        "--min-frequency",
        1,
        "--keep-accents",
    ]
    assert run(capsys, text, *options, "--lowercase", "--out", tmp_path / "a", "--quiet")[2] == ""
    code, out, _ = run(capsys, text, *options, "--lowercase", "--out", tmp_path / "b")
    assert code == 0 and "20kB" in out and "0.0 MB" in out
    one, two = Tokenizer.load(tmp_path / "a"), Tokenizer.load(tmp_path / "b")
    assert one.sha256 == two.sha256
    assert one.raw.normalizer.normalize_str("É") == "é"
    assert run(capsys, text, *options, "--out", tmp_path / "c")[0] == 0
    assert Tokenizer.load(tmp_path / "c").sha256 != one.sha256


def test_a_field_of_a_table(capsys: Capture, tmp_path: Path) -> None:
    rows = [{"id": "zzzz", "body": text} for text in corpus()[:3]]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (
        run(
            capsys, tmp_path / "rows.jsonl", "--kind", "words", "--field", "id", "--vocab", 50, "--out", tmp_path / "t"
        )[0]
        == 0
    )
    assert Tokenizer.load(tmp_path / "t").encode("zzzz") == [4]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--kind", "wordpice"], 2, "'wordpiece'"),
        (["--style", "sentinel"], 2, "'sentinels'"),
        (["--kind", "words", "--style", "endoftext"], 2, "'endoftext'"),
        (["--vocab", "3"], 2, "vocab"),
        (["--vocab", "many"], 2, "--vocab"),
        (["--sample", "lots"], 2, "200MB"),
        (["--sample", "0"], 2, "'0'"),
        (["--min-frequency", "0"], 2, "min_frequency"),
        (["--by", "sentence"], 2, "--by"),
    ],
)
def test_a_wrong_wish_is_one_line(
    capsys: Capture, text: Path, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    found, out, err = run(capsys, text, *arguments, "--out", tmp_path / "t")
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert message in err
    assert not (tmp_path / "t").exists()


def test_bad_text_is_exit_3(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\0\1\2\xff\xfe\xfd" * 99)
    (tmp_path / "empty").write_text("")
    for name in ("absent", "binary", "empty"):
        code, out, err = run(capsys, tmp_path / name, "--out", tmp_path / "t")
        assert (code, out) == (3, "")
        assert err.splitlines()[-1].startswith("pretune: error: ")
        assert not (tmp_path / "t").exists()


def test_what_is_there_stays(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("full", "file"):
        code, _, err = run(capsys, "absent.txt", "--out", tmp_path / name)  # said before the corpus is looked at
        assert code == 2
        assert err.startswith("pretune: error: ") and f"'{tmp_path / name}'" in err and err.count("\n") == 1
    assert (tmp_path / "full" / "mine").read_text() == (tmp_path / "file").read_text() == "x"


def test_a_new_place_is_made(capsys: Capture, text: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for place in (tmp_path / "there", tmp_path / "not" / "yet"):
        assert run(capsys, text, "--vocab", 300, "--out", place)[0] == 0
        assert stat.S_ISREG((place / "tokenizer.json").stat().st_mode)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_right_to_write(capsys: Capture, text: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert run(capsys, text, "--vocab", 300, "--out", tmp_path / "locked" / "t")[0] == 6


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("4096", 4096),
        ("200MB", 200_000_000),
        ("1.5 GB", 1_500_000_000),
        ("2KiB", 2048),
        ("3m", 3_000_000),
        ("1gib", 2**30),
    ],
)
def test_sizes(written: str, size: int) -> None:
    assert parse_bytes(written) == size
    for bad in ("", "MB", "-1MB", "1TB", "1ib", "nan", "1e9", "9" * 40):
        with pytest.raises(UsageError):
            parse_bytes(bad)
