"""Files of the package in which a function runs between a command and its first optimizer step.

    python -m tests.architecture.executed_files pretrain|finetune

prints them in the order in which they are first entered: what a reader who follows a run has to open.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import pretune as pt
from tests.architecture.source import PACKAGE

FUNCTION = 1  # CO_OPTIMIZED: set for functions, neither for modules nor for class bodies
COMMANDS = {
    "pretrain": "pretrain bert-tiny --data data --objective masked --steps 3 --set train.workers=0 --out out",
    "finetune": "finetune run --train table.csv --method lora --baselines none --set train.workers=0 --out out",
}


class FirstStepError(Exception):
    """End of the trace, at the first optimizer step."""


def write_inputs(folder: Path, command: str) -> None:
    """Write a corpus with its tokenizer and data, or a pre-trained model and a table."""
    corpus = folder / "corpus.txt"
    corpus.write_text(
        "".join(f"The film was {word}. I saw it with {n} friends.\n\n" for n, word in enumerate("ab" * 60))
    )
    tokenizer = pt.train_tokenizer("wordpiece", [corpus], vocab=200)
    data = pt.prepare([corpus], tokenizer=tokenizer, out=folder / "data", workers=0)
    if command == "finetune":
        sizes = {"model.width": 16, "model.heads": 2, "model.depth": 1, "train.workers": 0}
        pt.pretrain("bert-tiny", data=data, steps=1, out=folder / "run", overrides=sizes)
        rows = "".join(f"the film was {word} {n},{word}\n" for n, word in enumerate("ab" * 20))
        (folder / "table.csv").write_text("text,label\n" + rows)


def trace(arguments: list[str]) -> list[str]:
    """Run a command up to its first optimizer step, and return the files that it entered."""
    from pretune.cli import main

    files: dict[str, None] = {}

    def record(frame: FrameType, event: str, _: Any) -> None:
        code: CodeType = frame.f_code
        if event == "call" and code.co_flags & FUNCTION and code.co_filename.startswith(str(PACKAGE)):
            files.setdefault(str(Path(code.co_filename).relative_to(PACKAGE)))

    def stop(*_: object, **__: object) -> None:
        sys.setprofile(None)
        raise FirstStepError

    steps: dict[type[torch.optim.Optimizer], Callable[..., Any]] = {}
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        steps[kind], kind.step = kind.step, stop  # type: ignore[method-assign]
    sys.setprofile(record)
    try:
        main(["--debug", "--quiet", *arguments])
    except FirstStepError:
        pass
    finally:
        sys.setprofile(None)
        for kind, step in steps.items():
            kind.step = step  # type: ignore[method-assign]
    return [*files]


def list_files(command: str) -> list[str]:
    """Return the files to the first step of `pretrain` or `finetune` on small data, in a fresh interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder), command)
        run = [sys.executable, "-m", "tests.architecture.executed_files", "trace", *COMMANDS[command].split()]
        environment = {**os.environ, "PYTHONPATH": f"{PACKAGE.parent}{os.pathsep}{PACKAGE.parent.parent}"}
        done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


if __name__ == "__main__":
    if sys.argv[1] == "trace":
        print(*trace(sys.argv[2:]), sep="\n")
    else:
        found = list_files(sys.argv[1])
        print(*found, f"{len(found)} files to the first optimizer step", sep="\n")
