"""Tiny runs of `pretune pretrain` in processes of their own, and what they leave."""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretune.runs.prepare import prepare
from pretune.text.tokenizer.training import train
from tests.conftest import ROOT
from tests.data.texts import blocks, stories

STEPS = 10
SMALL = {"width": 32, "heads": 2, "depth": 2, "hidden": 48, "positions": 64}
SETTINGS = {
    **{f"model.{name}": value for name, value in SMALL.items()},
    "data.max_length": 32,
    "train.batch_tokens": 256,
    "train.micro_tokens": 128,
    "train.checkpoint_every": 2,
    "train.eval_every": 5,
    "train.eval_tokens": 512,
    "train.log_every": 1,
}
"""Eight rows a step, four at a time; dropout, masking anew in every epoch, shuffling and a warm-up are on."""

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "200",
}
for _name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
    ENVIRONMENT.pop(_name, None)
ALONE = ("--objective", "masked", "--steps", str(STEPS))


def made_data(
    folder: Path,
    kind: str = "wordpiece",
    style: str | None = None,
    count: int = 120,
    first: int = 0,
    tokenizer: bool = True,
) -> Path:
    """Stories, a tokenizer trained on them (or the one that is there), and their tokens."""
    texts = stories(count, first)
    if tokenizer:
        train(kind, texts, vocab=420, style=style).save(folder / "tokenizer")
    text = blocks(folder / "stories.txt", texts)
    prepare([text], tokenizer=folder / "tokenizer", out=folder / "data", holdout=0.1, workers=0)
    return folder / "data"


def arguments(data: Path, out: Path, *more: str, name: str = "bert-tiny", **settings: Any) -> list[str]:
    """A command line; settings have `__` for the dots of their paths."""
    common = SETTINGS if name == "bert-tiny" else {}
    given = {**common, **{path.replace("__", "."): value for path, value in settings.items()}}
    sets = [f"--set={path}={value}" for path, value in given.items() if value is not None]
    return ["pretrain", name, f"--data={data}", f"--out={out}", *more, *sets]


def resume(out: Path, *more: str) -> list[str]:
    return ["pretrain", f"--out={out}", "--resume", *more]


@dataclass
class Child:
    """A run at work."""

    nursery: "Nursery"
    pid: int
    told: Path
    code: int | None = None

    def wait(self, seconds: float = 150) -> int:
        """Its exit code, or minus the signal that ended it; it may take only so long."""
        if self.code is None:
            self.code = self.nursery.ask(wait=self.pid, seconds=seconds)
            if self.code is None:
                self.kill()
                raise AssertionError(f"still at work after {seconds} seconds: {self.errors()}")
        return self.code

    def done(self, seconds: float) -> bool:
        """Return True if it ends within the given seconds."""
        if self.code is None:
            self.code = self.nursery.ask(wait=self.pid, seconds=seconds)
        return self.code is not None

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def errors(self) -> str:
        return self.told.read_text()

    @property
    def line(self) -> str:
        """The last line that it said."""
        return self.errors().splitlines()[-1]

    def children(self) -> list[int]:
        """Return the living processes of its session."""
        return [pid for pid, session, state in processes() if session == self.pid and state not in "ZX"]


@dataclass
class Nursery:
    """See nursery.py."""

    folder: Path
    process: "subprocess.Popen[str]"
    children: list[Child] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(self, command: Sequence[str], hook: Sequence[Any] = (), **env: str) -> Child:
        told = self.folder / f"{next(self.numbers)}.txt"
        child = Child(self, self.ask(start=[*command], hook=[*hook], err=str(told), env=env), told)
        self.children.append(child)
        return child

    def run(self, command: Sequence[str], hook: Sequence[Any] = (), code: int = 0) -> Child:
        """A run to its end, which must be as expected."""
        child = self.start(command, hook)
        assert child.wait() == code, child.errors()
        return child

    def ranks(self, command: Sequence[str], world: int = 2, hook: Sequence[Any] = (), **env: str) -> list[Child]:
        """The processes that torchrun would start."""
        port = str(free_port())
        common = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
        return [
            self.start(command, hook, RANK=str(rank), LOCAL_RANK=str(rank), MASTER_PORT=port, **common, **env)
            for rank in range(world)
        ]


@contextlib.contextmanager
def nursery(folder: Path) -> Iterator[Nursery]:
    """One for many tests; whatever it started has ended in the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.nursery"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    made = Nursery(folder, process)
    try:
        yield made
    finally:
        process.kill()
        process.communicate()
        for child in made.children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def processes() -> Iterator[tuple[int, int, str]]:
    """Number, session and state of all processes."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                state, _, _, session = (folder / "stat").read_text().rpartition(") ")[2].split()[:4]
                yield int(folder.name), int(session), state


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run, times left out."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def steps_of(run: Path) -> list[str]:
    """The checkpoints there, the newest last."""
    return sorted(folder.name for folder in (run / "checkpoints").glob("step-*"))


def same(run: Path, other: Path) -> bool:
    """Return True if two runs have the same weights, bit for bit, and the same logs."""
    files = ("model.safetensors", "config.json", "tokenizer.json")
    assert metrics(run) == metrics(other)
    assert all((run / name).read_bytes() == (other / name).read_bytes() for name in files)
    return True
