"""The examples of the help are run, one after the other, on small files of the names that stand in them."""

import gzip
import io
import json
import shlex
from pathlib import Path

import pretune as pt
from pretune.cli import VERBS, main
from tests.cli import world
from tests.cli.asked import examples
from tests.conftest import Capture, Patch
from tests.inference import speakers
from tests.runs import tasked

SHORT = {
    "pretrain": {
        "encoder --text texts/ --budget 10m --out runs/mine": (
            f"bert-tiny --data data/books --steps 1 {shlex.join(world.SMALL)} --out runs/books"
        )
    },
    "generate": {"--max-new-tokens 40": "--max-new-tokens 8"},  # the writer here has few positions
    "finetune": {"--task sst2": "--train reviews.csv --steps 1 --baselines none"},
}
"""What would take minutes, or data that are not here, and what is run in its place."""
ELSEWHERE = {
    "quickstart": "takes minutes (tests/runs/test_quickstart.py)",
    "evaluate": "needs the data of its tasks (tests/cli/test_evaluate.py)",
    "compare": "takes minutes (tests/studies)",
    "chat": "needs the extra decoder, and answers standard input (tests/cli/test_chat.py)",
    "serve": "runs until it is stopped (tests/server)",
}


def lay_out() -> None:
    """The files that the examples name."""
    texts = [*tasked.corpus(40), "Kids play in the park.", "They play the violin."]
    Path("books").mkdir()
    Path("books/one.txt").write_text("\n\n".join(texts))
    with gzip.open("news.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps({"text": f"{text} Today."}) + "\n" for text in texts))
    Path("sentences.txt").write_text("\n".join(world.LINES))
    Path("books.txt").write_text("\n".join(texts))
    Path("documents.jsonl").write_text(
        "".join(json.dumps({"id": str(i), "text": t}) + "\n" for i, t in enumerate(texts))
    )
    tasked.classes(Path("reviews.csv"), 40)
    pt.save(speakers.gpt(), "runs/gpt")


def test_every_example_runs(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    lay_out()
    for verb in VERBS:
        if verb in ELSEWHERE:
            continue
        for command in examples(verb):
            for long, short in SHORT.get(verb, {}).items():
                assert long in command
                command = command.replace(long, short)
            if command.endswith("--input -"):  # what stands before the pipe
                monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a gorgeous, witty, seductive movie\n")))
            assert main(shlex.split(command)[1:]) == 0, (command, capsys.readouterr().err)
            assert capsys.readouterr().out.strip(), command
