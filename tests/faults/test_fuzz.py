"""Files of strangers, changed at random: every command that reads one ends in an error of ours, or reads it.

A case is one changed file and one command. The command may write to its own output and its directory only; it keeps to
a bound on memory, and ends. `make test` tries a few hundred inputs, the slow tests 30 for each command:
PRETUNE_FUZZ_INPUTS sets another number (150 are more than 10,000 in all), PRETUNE_FUZZ_SEED another seed. A failure
names its case, which `World.attempt` repeats.
"""

import contextlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import warnings
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from pretune.cli import main
from pretune.core.io import MANIFEST, write_manifest
from tests.cli.world import inside
from tests.faults import subjects
from tests.faults.mutations import corrupt
from tests.reports import report_files
from tests.selection import keep_quick

DEFAULT_SEED = 18
SEED = int(os.environ.get("PRETUNE_FUZZ_SEED", DEFAULT_SEED))
INPUTS = int(os.environ.get("PRETUNE_FUZZ_INPUTS", "30"))
FEW = 4
KEYS = [
    "kind",
    "step",
    "labels",
    "parts",
    "file",
    "path",
    "score",
    "name",
    "r",
    "lora_alpha",
    "peft_type",
    "run",
    "format",
]
EXIT_CODES = {0, 2, 3, 4, 5, 6}
MAX_SECONDS = 120
"""Far more than any command takes: a hang is a failure, a busy machine is not."""
MAX_BYTES = 1 << 30
MAX_LINES = 60


class World:
    """A folder with a directory of each kind, the one that is changed, and what must stay as it is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.subject, self.outside = root / "subject", root / "beside"
        self.outside.mkdir()
        (self.outside / "file").write_text("{}")
        (root / "link").symlink_to(self.outside)
        self._made: set[str] = set()

    def prepare(self, name: str) -> None:
        """Make the directories up to the named one."""
        with inside(self.root):
            for other, make in subjects.MAKERS.items():
                if other not in self._made:
                    make(Path(other))
                    self._made.add(other)
                if other == name:
                    break

    def reset(self, name: str) -> None:
        """Copy a directory, and remove what the last command made."""
        for path in [self.subject, *self.root.glob("OUT*")]:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink(
                missing_ok=True
            )
        shutil.copytree(self.root / name, self.subject)

    def attempt(self, name: str, number: int, seed: int, index: int | None) -> int:
        """Change one file (none without an index), run one command on its directory, and return the exit code."""
        command = subjects.READERS[name][number]
        rng = random.Random(f"{seed} {name} {number} {index}")
        self.reset(name)
        (self.subject / "link").symlink_to(self.outside)
        files = subjects.select_files(self.subject, command)
        files += [file for file in files if file.suffix in (".json", ".jsonl", ".yaml")] * 2
        target = rng.choice(files)
        case = f"attempt({name!r}, {number}, {seed}, {index}): {target.relative_to(self.root)}, `{' '.join(command)}`"
        if index is not None:
            corrupt(target, rng, KEYS, self.outside)
            if rng.random() < 0.8:
                vouch(target)
        code = self.run(command, case)
        assert index is not None or code == 0, case
        return code

    def run(self, command: list[str], case: str) -> int:
        """Run a command on the changed directory, check how it ends, and return the exit code."""
        before = self.list_others()
        try:
            with inside(self.root), limited(), captured() as screen, warnings.catch_warnings(record=True) as caught:
                code = main([word.replace("SUBJECT", "subject") for word in command])
        except BaseException as error:  # a panic of a library in Rust is no Exception
            raise AssertionError(f"{case}: {type(error).__name__}: {error}"[:2000]) from error
        errors = screen.getvalue()
        trace = read_traceback(errors)
        if "TimeoutError" in errors and "training/loop.py" in trace:  # a run may have any number of steps
            return 0
        assert code in EXIT_CODES, f"{case}: {code}: {errors[-2000:]}{trace[-2000:]}"
        assert "out of memory" not in errors, f"{case}: {errors[-2000:]}"
        assert len(caught) + len(errors.splitlines()) < MAX_LINES, f"{case}: {len(caught)} warnings: {errors[:2000]}"
        if code:
            lines = [line for line in errors.splitlines() if line.startswith("pretune: error: ")]
            assert len(lines) == 1 and errors.endswith(f"{lines[0]}\n"), f"{case}: {errors[-2000:]}"
            assert len(lines[0]) < 4000 and lines[0].isprintable(), f"{case}: {lines[0][:5000]!r}"
        assert self.list_others() == before, f"{case}: files elsewhere changed"
        return code

    def list_others(self) -> dict[Path, tuple[int, ...]]:
        """Return the files of the world, except the directory that is changed and the output."""
        states: dict[Path, tuple[int, ...]] = {}
        for place, folders, names in os.walk(self.root):
            if Path(place) == self.root:
                folders[:] = [name for name in folders if name != self.subject.name and not name.startswith("OUT")]
            for name in [*folders, *names]:
                state = Path(place, name).lstat()
                content = (state.st_size, state.st_mtime_ns) if name in names else ()
                states[Path(place, name)] = (state.st_mode, *content)
        return {
            path: state for path, state in states.items() if not path.relative_to(self.root).parts[0].startswith("OUT")
        }


def vouch(file: Path) -> None:
    """Write the size and hash of a changed file into the manifest that lists it."""
    manifest_file = file.parent / MANIFEST
    if file.name != MANIFEST and manifest_file.is_file() and file.is_file() and not file.is_symlink():
        manifest = json.loads(manifest_file.read_text())
        names = [name for name in manifest["files"] if (file.parent / name).is_file()]
        write_manifest(file.parent, names, {key: value for key, value in manifest.items() if key != "files"})


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Bound the memory and the time of a block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

    def stop(*_: Any) -> NoReturn:
        raise TimeoutError(f"no end after {MAX_SECONDS} seconds")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(MAX_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def read_traceback(errors: str) -> str:
    """Return the traceback of an internal error, and remove its file."""
    match = re.search(r"\(traceback: (.*)\)$", errors.strip())
    if match is None:
        return ""
    text = Path(match[1]).read_text()
    Path(match[1]).unlink()
    return text


@contextlib.contextmanager
def captured() -> Iterator[io.StringIO]:
    """Give what a block writes to standard error."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as screen:
        yield screen


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("name", keep_quick(subjects.READERS, *subjects.QUICK))
def test_a_few(name: str, world: World) -> None:
    """Without a change every command succeeds; with one, it ends well."""
    world.prepare(name)
    codes = set()
    for number in range(len(subjects.READERS[name])):
        assert world.attempt(name, number, SEED, None) == 0
        codes |= {world.attempt(name, number, SEED, index) for index in range(FEW)}
    assert codes & {2, 3, 4} or SEED != DEFAULT_SEED  # changes matter


EXAMPLES: dict[str, tuple[str, str, str, Any, int]] = {
    "sources of data": ("data", "data.json", "settings.corpus", 3, 3),
    "a shard of data": ("data", "data.json", "splits.train.shards", [["00000"]], 3),
    "filters of data": ("data", "card.json", "filters", "x", 3),
    "a slice of many": ("slice", "slice.json", "shard", [1, 2**60], 3),
    "a slice without sources": ("slice", "slice.json", "sources", [], 3),
    "units of a slice": ("slice", "slice.json", "units", ["missing"], 3),
    "a path of a run": ("started", "run.json", "data.path", "x" * 5000, 4),
    "a null in a path of a run": ("started", "run.json", "data.path", "a\0b", 4),
    "digits in metrics": ("reports", "books/metrics.jsonl", "1.held_out.loss", 10**400, 0),
    "many digits": ("study", "study.yaml", "settings.tokenizer.vocab", 10**400, 2),
    "a word for a number": ("study", "study.yaml", "settings.tokenizer.vocab", "many", 2),
    "half a list": ("study", "study.yaml", "settings.corpus", "[x", 2),
    "no token": ("writer", "generation_config.json", "eos_token_id", 1.5, 4),
    "a pooling": ("sentences", "1_Pooling/config.json", "pooling_mode", [["mean"]], 4),
    "prompts": ("sentences", "config_sentence_transformers.json", "prompts", 1, 4),
    "a base of an adapter": ("peft", "adapter_config.json", "base_model_name_or_path", "x" * 300, 4),
}
"""Directory, file, path of a value, the value, and the exit code of the first command that reads it."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_faults_of_old(example: str, world: World) -> None:
    name, file, path, value, code = EXAMPLES[example]
    world.prepare(name)
    world.reset(name)
    target = world.subject / file
    lines = target.suffix == ".jsonl"
    tree = (
        dict(enumerate(map(json.loads, target.read_text().splitlines())))
        if lines
        else yaml.safe_load(target.read_text())
    )
    *parents, key = path.split(".")
    reduce(lambda node, parent: node[int(parent) if parent.isdecimal() else parent], parents, tree)[key] = value
    if lines:
        report_files.lines(target, [*tree.values()])
    else:
        target.write_text(json.dumps(tree) if target.suffix == ".json" else yaml.safe_dump(tree))
    vouch(target)
    assert world.run(subjects.READERS[name][0], example) == code


@pytest.mark.slow
@pytest.mark.parametrize("name", subjects.READERS)
def test_many(name: str, world: World) -> None:
    world.prepare(name)
    for number in range(len(subjects.READERS[name])):
        for index in range(FEW, FEW + INPUTS):
            world.attempt(name, number, SEED, index)
