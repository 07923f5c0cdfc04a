"""The guard of speed: it fails where a row has lost more than it may, and nowhere else."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT

BENCH = ROOT / "bench"


def load(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


guard = load("guard")


def test_what_counts_as_lost() -> None:
    recorded = {"a": 4.0, "b": 2.0, "c": 1.0}
    assert guard.lost({"a": 3.41, "b": 3.0, "new": 0.1}, recorded) == {}
    assert guard.lost({"a": 3.39, "b": 1.69, "c": 0.86}, recorded) == {"a": 3.39 / 4, "b": 1.69 / 2}


def test_a_ratio_is_that_of_the_best_rounds() -> None:
    """Work that takes three times as long is three times as slow, whatever else the machine does."""

    def work(times: int) -> int:
        sum(i * i for i in range(20_000 * times))
        return 1

    found = guard.ratio((lambda: work(1), lambda: work(3)), rounds=3, least=0.02)
    assert 2.2 < found < 4.0


def test_a_row_that_seems_to_have_lost_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked = iter([1.0, 1.2, 2.0, 1.0, 1.1, 1.3]), []
    monkeypatch.setattr(guard, "ROWS", {"a": lambda: "a", "b": lambda: "b"})
    monkeypatch.setattr(guard, "ratio", lambda pair, rounds: asked.append((pair, rounds)) or next(answers))
    assert guard.measure(["a", "b"], 5, {"a": 2.0, "b": 2.0}) == {"a": 2.0, "b": 1.3}
    assert asked == [("a", 5), ("a", 10), ("a", 10), ("b", 5), ("b", 10), ("b", 10)]


def commanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, record: object, found: float) -> int:
    """The exit code of the command, with one row that is measured as so many times the peer."""
    (tmp_path / "guard.json").write_text(json.dumps(record))
    monkeypatch.setattr(guard, "FILE", tmp_path / "guard.json")
    monkeypatch.setattr(guard, "ROWS", {"a": lambda: "a"})
    monkeypatch.setattr(guard, "ratio", lambda pair, rounds: found)
    monkeypatch.setattr(sys, "argv", ["guard.py"])
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    code: int = guard.main()
    assert json.loads((tmp_path / "guard.json").read_text()) == record
    return code


@pytest.mark.parametrize(("found", "code"), [(1.69, 1), (1.71, 0)])
def test_the_command_ends_with_1_where_a_row_has_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: float, code: int
) -> None:
    record = {guard.machine(): {"versions": guard.versions(), "ratios": {"a": 2.0}}}
    assert commanded(monkeypatch, tmp_path, record, found) == code


def test_other_versions_are_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = {guard.machine(): {"versions": {**guard.versions(), "torch": "1.0"}, "ratios": {"a": 2.0}}}
    assert commanded(monkeypatch, tmp_path, record, 0.1) == 0


def test_records_are_of_the_versions_that_are_installed() -> None:
    """Those of constraints.txt: with others the guard of the slow suite is skipped."""
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for found in json.loads((BENCH / "guard.json").read_text()).values():
        assert {name: version.split("+")[0] for name, version in found["versions"].items()} == {
            name: pinned[name] for name in found["versions"]
        }


def test_records_are_of_rows_that_exist() -> None:
    for machine, found in json.loads((BENCH / "guard.json").read_text()).items():
        assert {*found["ratios"]} == {*guard.ROWS} and all(value > 0 for value in found["ratios"].values()), machine


@pytest.mark.slow
def test_no_row_has_lost() -> None:
    """The rows themselves, in a process of their own with one thread."""
    recorded = json.loads((BENCH / "guard.json").read_text())
    if guard.machine() not in recorded:
        pytest.skip(f"nothing is recorded for '{guard.machine()}'; do so with bench/guard.py --record")
    if recorded[guard.machine()]["versions"] != guard.versions():
        pytest.skip("other versions than those recorded; do so with bench/guard.py --record")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(BENCH / "guard.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
