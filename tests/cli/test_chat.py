"""`pretune chat` through a pipe: answers, history, commands and faults."""

import io
import json
from pathlib import Path

import pytest

import pretune as pt
from pretune.cli import main
from tests.conftest import Capture
from tests.inference.speakers import chatter, gpt
from tests.text.chat_templates import chat

OPTIONS = ["--temperature=0", "--max-new-tokens=5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "chatter"
    pt.save(chatter(), path)
    return str(path)


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def answer(*contents: str, system: str = "") -> str:
    return pt.chat(chatter(), chat(*contents, system=system), temperature=0, max_new_tokens=5)


def test_a_chat(folder: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path) -> None:
    """Each answer is that to all messages before; /reset forgets them, /save writes them, /exit ends the chat."""
    file = tmp_path / "chat.jsonl"
    type_lines(monkeypatch, "The cat", "", "She", f"/save {file}", "/reset", "She", "/exit", "He")
    assert main(["--quiet", "chat", folder, *OPTIONS]) == 0
    first = answer("The cat")
    second, alone = answer("The cat", first, "She"), answer("She")
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in (first, second, alone))
    assert second != alone
    assert json.loads(file.read_text()) == {"messages": chat("The cat", first, "She", second)}


def test_answers_as_json(folder: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    type_lines(monkeypatch, "The cat", "She")
    assert main(["--quiet", "chat", folder, *OPTIONS, "--json"]) == 0
    first = answer("The cat")
    contents = [first, answer("The cat", first, "She")]
    messages = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert messages == [{"role": "assistant", "content": content} for content in contents]


def test_system_message(folder: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    type_lines(monkeypatch, "She", "/reset", "She")
    assert main(["--quiet", "chat", folder, "--system=Be", *OPTIONS]) == 0
    assert capsys.readouterr().out == f"{answer('She', system='Be')}\n" * 2


def test_samples_have_a_seed(folder: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    said = set()
    for seed in (1, 1, 2):
        type_lines(monkeypatch, "She")
        words = [
            "--temperature=1.2",
            f"--seed={seed}",
            "--max-new-tokens=8",
            "--top-k=50",
            "--top-p=0.9",
            "--min-p=0.01",
        ]
        assert main(["--quiet", "chat", folder, *words]) == 0
        said.add(capsys.readouterr().out)
    assert len(said) == 2


def test_faults(folder: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "there"
    file.write_text("x")
    pt.save(gpt(), tmp_path / "gpt")
    calls = [
        ([folder], "/exot", "/exit"),
        ([folder], "/save", "needs a file"),
        ([folder], f"/save {tmp_path / 'new'}", "nothing to save"),
        ([folder], f"a\n/save {file}", "exists"),
        ([folder], f"a\n/save {tmp_path / 'none' / 'a'}", "no such directory"),
        ([folder], "a " * 60, "shorten"),
        ([folder, "--temperature=-1"], "a", "at least 0"),
        ([str(tmp_path / "gpt")], "a", "no chat template"),
    ]
    for words, lines, problem in calls:
        type_lines(monkeypatch, lines)
        assert main(["--quiet", "chat", *words, "--max-new-tokens=2"]) == 2, lines
        err = capsys.readouterr().err
        assert problem in err and err.count("\n") == 1, err
    assert file.read_text() == "x" and not (tmp_path / "new").exists()


def test_a_terminal_goes_on_after_a_fault(folder: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    lines = iter(["/none", "a " * 60, "She"])

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def read(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", read)
    assert main(["chat", folder, *OPTIONS]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == answer("She").strip() and err.count("warning: ") == 2
