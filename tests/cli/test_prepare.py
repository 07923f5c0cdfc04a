"""`pretune prepare`: results on stdout, the rest on stderr, and the same words as the function."""

import json
from pathlib import Path

import pytest

from pretune.cli import _output, main
from pretune.core import log
from pretune.data.prepare import encoding
from pretune.data.prepared_data import PreparedData
from tests.conftest import Capture, run_command
from tests.data.texts import MANY, blocks, byte_tokenizer, texts_of, tree


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(byte_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def given(tmp_path: Path) -> str:
    return blocks(tmp_path / "a.txt", [*MANY[:50], MANY[0]])


def test_text_to_shards(capsys: Capture, tmp_path: Path, given: str, tokenizer: str) -> None:
    out = tmp_path / "data"
    assert main(["prepare", given, "--tokenizer", tokenizer, "--out", str(out), "--holdout", "10%"]) == 0
    data = PreparedData.open(out)
    train, valid = data.index.splits["train"], data.index.splits["valid"]
    assert train.documents + valid.documents == 50
    parts = [
        f"{name} {split.tokens:,} tokens in {split.documents} documents (0.0 MB)"
        for name, split in (("train", train), ("valid", valid))
    ]
    follows = f"next: pretune pretrain encoder --data {out} --budget 2m --out runs/base\n"
    result, err = capsys.readouterr()
    assert result.startswith(f"{out}: ") and all(part in result for part in parts) and result.count("\n") == 1
    warning, dropped, last = err.splitlines(keepends=True)
    assert warning.startswith(f"warning: {out}: ") and "--valid" in warning and "--holdout" in warning
    assert "exact duplicates 1" in dropped and f"{out}/card.md" in dropped and last == follows
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert main(["prepare", given, "--tokenizer", tokenizer, "--out", str(out), "--holdout", "10%"]) == 0
    result, err = capsys.readouterr()
    assert result.startswith(f"{out}: ") and all(part in result for part in parts) and err == follows
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def test_json(capsys: Capture, tmp_path: Path, given: str, tokenizer: str) -> None:
    arguments = ["prepare", given, "--tokenizer", tokenizer, "--out", str(tmp_path / "data"), "--json"]
    for made in (True, False):
        facts = json.loads(run_command(capsys, arguments).out)
        assert facts["made"] is made and facts["slice"] is None
        assert facts["splits"]["train"]["documents"] + facts["splits"]["valid"]["documents"] == 50


def test_every_option_reaches_the_function(capsys: Capture, tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": text, "id": "x"}) + "\n" for text in MANY[:9]))
    valid = [blocks(tmp_path / f"v{number}.txt", [MANY[20 + number]]) for number in range(2)]
    out = str(tmp_path / "data")
    options = ["--field", "body", "--by", "field", "--errors", "replace", "--clean", "nfc,short_pages=3"]
    options += ["--near", "0.9", "--lang", "en", "--sentences", "naive", "--workers", "1", "--licence", "CC0"]
    assert main(["prepare", str(tmp_path / "a.jsonl"), "--tokenizer", tokenizer, "--out", out, *options]) == 0
    settings = dict(PreparedData.open(out).index.settings)
    settings.pop("corpus")
    assert settings == {
        "version": 2,
        "by": "field",
        "field": "body",
        "errors": "replace",
        "clean": ["nfc", "short_pages=3"],
        "near": 0.9,
        "holdout": 0.01,
        "lang": "en",
        "sentences": "naive",
        "licence": ["CC0"],
    }
    text = blocks(tmp_path / "a.txt", MANY[:9])
    given = [word for one in valid for word in ("--valid", one)]
    assert main(["prepare", text, "--tokenizer", tokenizer, "--out", f"{out}2", *given]) == 0
    assert texts_of(PreparedData.open(f"{out}2"), "valid") == MANY[20:22]
    capsys.readouterr()


def test_slices(capsys: Capture, tmp_path: Path, given: str, tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "UNIT_BYTES", 2000)
    whole = ["prepare", given, "--tokenizer", tokenizer, "--out", str(tmp_path / "whole")]
    assert main(whole) == 0
    for number in (1, 2):
        out = tmp_path / f"s{number}"
        options = ["--tokenizer", tokenizer, "--out", str(out), "--shard", f"{number}/2"]
        result = run_command(capsys, ["prepare", given, *options]).out.splitlines()[-1]
        assert result.startswith(f"{out}: ") and f"{number}/2" in result and "`pretune prepare --merge`" in result
    merge = ["prepare", "--merge", str(tmp_path / "s1"), str(tmp_path / "s2"), "--out", str(tmp_path / "merged")]
    assert main(merge) == 0
    assert tree(tmp_path / "merged") == tree(tmp_path / "whole")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "merged").rglob("*")}
    assert main(merge) == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "merged").rglob("*")} == times


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["a.txt", "--out", "x"], 2, "`pretune tokenizer`"),
        (["a.txt", "--tokenizer", "t"], 2, "'--out'"),
        (["--tokenizer", "t", "--out", "x"], 2, "CORPUS"),
        (["s1", "--merge", "--tokenizer", "t", "--out", "x"], 2, "--merge"),
        (["s1", "--merge", "--quality", "q", "--out", "x"], 2, "--merge"),
        (["a.txt", "--tokenizer", "t", "--out", "x", "--by", "word"], 2, "'--by'"),
        (["a.txt", "--tokenizer", "t", "--out", "x", "--holdout", "half"], 2, "'half'"),
        (["a.txt", "--tokenizer", "t", "--out", "x", "--holdout", "2%", "--valid", "v"], 2, "valid"),
        (
            ["a.txt", "--tokenizer", "t", "--out", "x", "--clean", "nfd"],
            2,
            "'nfd'",
        ),
        (["a.txt", "--tokenizer", "t", "--out", "x", "--shard", "3/2"], 2, "3/2"),
        (["s1", "--merge", "--out", "x"], 3, "s1"),
    ],
)
def test_refusals(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["prepare", *arguments]) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert told in err
    assert list(tmp_path.iterdir()) == []


def test_other_data_is_refused(capsys: Capture, tmp_path: Path, given: str, tokenizer: str) -> None:
    arguments = ["prepare", given, "--tokenizer", tokenizer, "--out", str(tmp_path / "data")]
    assert main(arguments) == 0
    error = run_command(capsys, [*arguments, "--near", "0.8"], code=3).err
    assert all(part in error for part in ("near", "0.8", "--overwrite", "--out")), error
    assert run_command(capsys, [*arguments, "--near", "0.8", "--overwrite", "--quiet"]).err == ""


class TestProgress:
    def test_plain_lines_now_and_then(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 0.0
        monkeypatch.setattr(_output.time, "monotonic", lambda: now)
        with _output.show_progress("preparing") as tell:
            for step in range(1, 41):
                now = step * 2.5
                tell(step / 40, f"{step} MB")
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 10
        assert all(part in lines[0] for part in ("preparing", "10%", "4 MB", "1:30"))

    def test_nothing_when_quiet(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_output, "_SECONDS_BETWEEN_LINES", 0)
        log.set_quiet(True)
        try:
            with _output.show_progress("preparing") as tell:
                tell(0.5, "words")
        finally:
            log.set_quiet(False)
        assert capsys.readouterr() == ("", "")

    def test_a_bar_on_a_terminal(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "100")
        with _output.show_progress("preparing") as tell:
            tell(0.5, "12 MB, 3.4 MB/s [x]")
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "preparing" in shown.err and "12 MB, 3.4 MB/s [x]" in shown.err
