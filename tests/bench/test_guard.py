"""bench/speed/guard.py: fails if and only if a row is too far below its record."""

import functools
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


def find_module(path: Path) -> str:
    """Return the name by which `python -m` runs a script: bench.speed.guard."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def load(name: str) -> ModuleType:
    """Load a script of bench/ anew."""
    (path,) = BENCH.rglob(f"{name}.py")
    spec = importlib.util.spec_from_file_location(find_module(path), path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


guard = load("guard")


def test_find_regressions() -> None:
    recorded = {"a": 4.0, "b": 2.0, "c": 1.0}
    assert guard.find_regressions({"a": 3.41, "b": 3.0, "new": 0.1}, recorded) == {}
    assert guard.find_regressions({"a": 3.39, "b": 1.69, "c": 0.86}, recorded) == {"a": 3.39 / 4, "b": 1.69 / 2}


def test_compute_ratio_of_best_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times the work takes three times as long; a round that other work lengthens does not count."""
    clock, delays = [0.0], iter([5.0, 0.0, 7.0])

    def work(times: float) -> int:
        clock[0] += times + (next(delays, 0.0) if times == 1 else 0.0)
        return 1

    measure_rate = functools.partial(guard.common.measure_rate, clock=lambda: clock[0])
    monkeypatch.setattr(guard.common, "measure_rate", measure_rate)
    ratio = guard.compute_ratio((lambda: work(1), lambda: work(3)), rounds=3, min_seconds=0.5)
    assert ratio == pytest.approx(3.0)


def test_a_low_row_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios, calls = iter([1.0, 1.2, 2.0, 1.0, 1.1, 1.3]), []
    monkeypatch.setattr(guard, "ROWS", {"a": lambda: "a", "b": lambda: "b"})
    monkeypatch.setattr(guard, "compute_ratio", lambda pair, rounds: calls.append((pair, rounds)) or next(ratios))
    assert guard.measure(["a", "b"], 5, {"a": 2.0, "b": 2.0}) == {"a": 2.0, "b": 1.3}
    assert calls == [("a", 5), ("a", 10), ("a", 10), ("b", 5), ("b", 10), ("b", 10)]


def run_guard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, record: object, ratio: float) -> int:
    """Run the script with one row of the given ratio; return its exit code."""
    (tmp_path / "guard.json").write_text(json.dumps(record))
    monkeypatch.setattr(guard, "FILE", tmp_path / "guard.json")
    monkeypatch.setattr(guard, "ROWS", {"a": lambda: "a"})
    monkeypatch.setattr(guard, "compute_ratio", lambda pair, rounds: ratio)
    monkeypatch.setattr(sys, "argv", ["guard.py"])
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    code: int = guard.main()
    assert json.loads((tmp_path / "guard.json").read_text()) == record
    return code


@pytest.mark.parametrize(("ratio", "code"), [(1.69, 1), (1.71, 0)])
def test_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ratio: float, code: int) -> None:
    record = {guard.describe_machine(): {"versions": guard.get_versions(), "ratios": {"a": 2.0}}}
    assert run_guard(monkeypatch, tmp_path, record, ratio) == code


def test_other_versions_are_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = {guard.describe_machine(): {"versions": {**guard.get_versions(), "torch": "1.0"}, "ratios": {"a": 2.0}}}
    assert run_guard(monkeypatch, tmp_path, record, 0.1) == 0


def test_records_have_the_installed_versions() -> None:
    """Those of constraints.txt; with others the guard of the slow suite is skipped."""
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for record in json.loads((BENCH / "speed/guard.json").read_text()).values():
        versions = {name: version.split("+")[0] for name, version in record["versions"].items()}
        assert versions == {name: pinned[name] for name in versions}


NOT_MEASURED = {"x86_64 Intel(R) Xeon(R) Processor @ 2.50GHz": {"generating llama", "generating gpt2"}}
"""Rows that were added on another machine."""


def test_records_have_all_rows() -> None:
    for machine, record in json.loads((BENCH / "speed/guard.json").read_text()).items():
        assert {*record["ratios"]} == {*guard.ROWS} - NOT_MEASURED.get(machine, set()), machine
        assert all(value > 0 for value in record["ratios"].values()), machine


@pytest.mark.slow
def test_no_regression() -> None:
    """Measure the rows in a process of its own with one thread."""
    recorded = json.loads((BENCH / "speed/guard.json").read_text())
    machine = guard.describe_machine()
    if machine not in recorded:
        pytest.skip(f"no record for '{machine}'; create one with bench/speed/guard.py --record")
    if recorded[machine]["versions"] != guard.get_versions():
        pytest.skip("the record has other versions; update it with bench/speed/guard.py --record")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "bench.speed.guard"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
