"""Files of the package in which a function runs between a command and its first optimizer step.

    python -m tests.architecture.executed_files pretrain|finetune

prints them in the order in which they are first entered: what a reader who follows a run has to open.
"""

import importlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import pretune as pt
from tests.architecture.source import PACKAGE

FUNCTION = 1  # CO_OPTIMIZED: set for functions, neither for modules nor for class bodies
COMMANDS = {
    "pretrain": "pretrain bert-tiny --data data --objective masked --steps 3 --set train.workers=0 --out pretrained",
    "finetune": "finetune run --train table.csv --method lora --baselines none --set train.workers=0 --out tuned",
}


class FirstStepError(Exception):
    """End of the trace, at the first optimizer step."""


def write_inputs(folder: Path) -> None:
    """Write a corpus with its tokenizer and data, a pre-trained model and a table."""
    corpus = folder / "corpus.txt"
    corpus.write_text(
        "".join(f"The film was {word}. I saw it with {n} friends.\n\n" for n, word in enumerate("ab" * 60))
    )
    tokenizer = pt.train_tokenizer("wordpiece", [corpus], vocab=200)
    data = pt.prepare([corpus], tokenizer=tokenizer, out=folder / "data", workers=0)
    sizes = {"model.width": 16, "model.heads": 2, "model.depth": 1, "train.workers": 0}
    pt.pretrain("bert-tiny", data=data, steps=1, out=folder / "run", overrides=sizes)
    rows = "".join(f"the film was {word} {n},{word}\n" for n, word in enumerate("ab" * 20))
    (folder / "table.csv").write_text("text,label\n" + rows)


def trace(command: str) -> list[str]:
    """Run a command up to its first optimizer step, and return the files that it entered."""
    from pretune.cli import main

    files: dict[str, None] = {}

    def record(frame: FrameType, *_: Any) -> None:
        code: CodeType = frame.f_code
        if code.co_flags & FUNCTION and code.co_filename.startswith(str(PACKAGE)):
            files.setdefault(str(Path(code.co_filename).relative_to(PACKAGE)))

    def stop(*_: object, **__: object) -> None:
        sys.settrace(None)
        raise FirstStepError

    steps: dict[type[torch.optim.Optimizer], Callable[..., Any]] = {}
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        steps[kind], kind.step = kind.step, stop  # type: ignore[method-assign]
    sys.settrace(record)
    try:
        main(["--debug", "--quiet", *COMMANDS[command].split()])
    except FirstStepError:
        pass
    finally:
        sys.settrace(None)
        for kind, step in steps.items():
            kind.step = step  # type: ignore[method-assign]
    return [*files]


@cache
def list_files() -> dict[str, list[str]]:
    """Return the files to the first step of each command on small data, in an interpreter that has imported torch."""
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder))
        run = [sys.executable, "-m", "tests.architecture.executed_files"]
        environment = {**os.environ, "PYTHONPATH": f"{PACKAGE.parent}{os.pathsep}{PACKAGE.parent.parent}"}
        done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return {command: files.split() for command, files in zip(COMMANDS, done.stdout.splitlines(), strict=True)}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        found = list_files()[sys.argv[1]]
        print(*found, f"{len(found)} files to the first optimizer step", sep="\n")
    else:  # in the folder of the inputs, each command in a process of its own; what all import is imported once
        importlib.import_module("torch._dynamo")
        importlib.import_module("torch.distributed.fsdp")
        with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
            for files in pool.map(trace, COMMANDS, chunksize=1):
                print(*files)
