"""`pretune generate` and `pretune fill` from the shell, on runs of `pretune pretrain`: results, options and faults."""

import io
import json
import sys
from pathlib import Path

import pytest

from pretune.cli import _output, main
from pretune.runs.options import unescape
from tests.conftest import Capture, run_command
from tests.runs.small import FAST, make, shrunk

MADE = {"gpt2-small": ("bpe", "endoftext"), "bert-tiny": ("wordpiece", "cls-sep"), "t5-small": ("unigram", "sentinels")}
GPT, BERT, T5 = MADE


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A run of each shape, made from the shell."""
    made = {}
    for name, (kind, style) in MADE.items():
        folder = tmp_path_factory.mktemp(name)
        data = make(folder, kind, style)
        sets = [
            f"--set={path}={value}" for path, value in {**shrunk(name), **FAST, "data.length_schedule": "null"}.items()
        ]
        out = ["--steps=2", f"--out={folder / 'run'}", "--quiet"]
        assert main(["pretrain", name, f"--data={data}", *out, *sets]) == 0
        made[name] = str(folder / "run")
    return made


def said(capsys: Capture, *words: str) -> str:
    capsys.readouterr()
    out, err = run_command(capsys, ["--quiet", *words])
    assert err == ""
    return out


def refused(capsys: Capture, code: int, *words: str) -> str:
    capsys.readouterr()
    assert main(["--quiet", *words]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1, err
    return err


def test_one_text(capsys: Capture, runs: dict[str, str]) -> None:
    words = ["generate", runs[GPT], "Once upon a time", "--max-new-tokens=8", "--seed=3"]
    text = said(capsys, *words)
    assert text.startswith("Once upon a time") and text.endswith("\n")
    assert said(capsys, *words, "--stream") == text, "a stream says the same"
    assert said(capsys, *words, "--seed=4") != text
    out, err = run_command(capsys, words)
    assert out == text and "next: " in err


def test_several(capsys: Capture, runs: dict[str, str]) -> None:
    words = ["generate", runs[GPT], "The king", "A boy", "--max-new-tokens=5"]
    assert said(capsys, *words, "--num=3").count("\n--------\n") == 5
    found = json.loads(said(capsys, *words, "--beams=4", "--num=2", "--length-penalty=0.5", "--json"))
    assert [entry["prompt"] for entry in found] == ["The king", "A boy"]
    for entry in found:
        assert len(entry["texts"]) == 2
        for text in entry["texts"]:
            assert set(text) == {"text", "new", "finish_reason", "tokens", "score"}
            assert text["text"] == entry["prompt"] + text["new"]
        assert entry["texts"][0]["score"] >= entry["texts"][1]["score"]


def test_every_option(capsys: Capture, runs: dict[str, str]) -> None:
    short = ["generate", runs[GPT], "The", "--max-new-tokens=4"]
    for more in (
        ["--temperature=0", "--repetition-penalty=1.3", "--no-repeat-ngram=2"],
        ["--temperature=0.7", "--top-k=9", "--top-p=0.9", "--min-p=0.01"],
        ["--beams=2", "--early-stopping=true", "--device=cpu", "--dtype=bfloat16"],
        ["--stop=e", "--stop=a", "--batch=1", "--min-new-tokens=2"],
    ):
        assert said(capsys, *short, *more).startswith("The")
    assert said(capsys, "generate", runs[T5], "The king", "--max-new-tokens=4", "--start=<extra_id_0>")


def test_a_line_may_end_a_text_as_a_shell_gives_it(capsys: Capture, runs: dict[str, str]) -> None:
    words = ["generate", runs[GPT], "The", "--max-new-tokens=40", "--seed=1", "--json"]
    whole, cut = (json.loads(said(capsys, *words, *more))[0]["texts"][0] for more in ([], [r"--stop=\n", r"--stop=\t"]))
    assert whole["new"].startswith(cut["new"]) and not set(cut["new"]) & {"\n", "\t"}
    assert (cut["finish_reason"] == "stop") == bool(set(whole["new"]) & {"\n", "\t"})
    stop = cut["new"][0]
    assert "1 of 1 text" in run_command(capsys, [*words, f"--stop={stop}"]).err
    assert [unescape(text) for text in (r"a\nb", r"a\\nb", r"\x", "\\")] == ["a\nb", r"a\nb", r"\x", "\\"]


def test_prompts_from_a_file_and_a_pipe(
    capsys: Capture, runs: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("The king\nA boy\n")
    words = ["generate", runs[GPT], "--max-new-tokens=3", "--temperature=0", "--json"]
    found = said(capsys, *words, f"--input={file}")
    assert [entry["prompt"] for entry in json.loads(found)] == ["The king", "A boy"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert said(capsys, *words, "--input=-") == found


def test_many_prompts_show_how_far_they_are(
    capsys: Capture, runs: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompts.txt").write_text("The king\nA boy\n")
    monkeypatch.setattr(_output, "_SECONDS_BETWEEN_LINES", 0)
    words = ["generate", runs[GPT], f"--input={tmp_path / 'prompts.txt'}", "--max-new-tokens=4", "--batch=1"]
    text = said(capsys, *words)
    out, err = run_command(capsys, words)
    assert out == text and "50%, 2 texts, 0:0" in err


def test_what_is_refused(capsys: Capture, runs: dict[str, str], tmp_path: Path) -> None:
    gpt, bert = runs[GPT], runs[BERT]
    assert "--input" in refused(capsys, 2, "generate", gpt)
    assert "prompt 1" in refused(capsys, 2, "generate", gpt, "")
    assert "`pretune fill`" in refused(capsys, 2, "generate", bert, "The king")
    error = refused(capsys, 2, "generate", gpt, "The", "--max-new-tokens=0")
    assert "--max-new-tokens" in error and "got 0" in error
    assert str(tmp_path / "none") in refused(capsys, 4, "generate", str(tmp_path / "none"), "The")
    assert str(tmp_path / "none") in refused(capsys, 3, "generate", gpt, f"--input={tmp_path / 'none'}")
    (tmp_path / "p").write_text("The\n\nA\n")
    assert "line 2" in refused(capsys, 3, "generate", gpt, f"--input={tmp_path / 'p'}")
    (tmp_path / "p").write_text("The\u2028king\n\nA\n")  # no line ends there
    assert "line 2" in refused(capsys, 3, "generate", gpt, f"--input={tmp_path / 'p'}")
    (tmp_path / "q").write_bytes(b"\xff")
    assert "byte 0" in refused(capsys, 3, "generate", gpt, f"--input={tmp_path / 'q'}")
    assert "beams" in refused(capsys, 2, "generate", gpt, "The", "--beams=2", "--stream")
    assert "'tpu9x'" in refused(capsys, 2, "generate", gpt, "The", "--device=tpu9x")
    assert "'The king'" in refused(capsys, 2, "fill", bert, "The king")
    assert "`pretune generate`" in refused(capsys, 2, "fill", gpt, "The ___")
    assert "text 1" in refused(capsys, 2, "fill", bert, "")


def test_long_prompts(capsys: Capture, runs: dict[str, str]) -> None:
    words = ["generate", runs[GPT], "king " * 80, "--max-new-tokens=4"]
    error = refused(capsys, 2, *words)
    assert "59" in error and "4" in error
    assert run_command(capsys, [*words, "--truncate"]).err.count("\n") > 1


def test_fill(capsys: Capture, runs: dict[str, str]) -> None:
    text = said(capsys, "fill", runs[BERT], "The king [MASK] home.", "--top=3")
    assert text.startswith("The king ") and len(text.splitlines()) == 4
    (found,) = json.loads(said(capsys, "fill", runs[BERT], "The ___ went ___.", "--pieces=2", "--json"))
    assert [len(options) for options in found["blanks"]] == [5, 5]
    assert set(found["blanks"][0][0]) == {"word", "probability", "tokens"}
    assert found["filled"].startswith(f"The {found['blanks'][0][0]['word']} went ")
    assert said(capsys, "fill", runs[T5], "The king ___ home.", "--top=2").startswith("The king ")


@pytest.mark.parametrize("verb", ["generate", "fill"])
def test_help_has_an_example(capsys: Capture, verb: str) -> None:
    assert f"Example: pretune {verb} small-" in said(capsys, verb, "--help")
