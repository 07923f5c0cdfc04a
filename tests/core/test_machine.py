import os
import subprocess
import sys
from pathlib import Path

import pytest

from pretune.core import machine


@pytest.fixture(autouse=True)
def machine_of_eight_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(8)}, raising=False)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "400000 100000\n"}, 4),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 8),
        ({"cpu.max": ""}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    ],
)
def test_cores_of_a_container(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    """The quota of a container counts: `os.cpu_count` is that of the machine."""
    write(tmp_path, files)
    assert machine.count_cores() == cores


def test_cores_are_shared_for_a_while(tmp_path: Path) -> None:
    with machine.share_cores(3):
        assert machine.count_cores() == 3
        with machine.share_cores(20):
            assert machine.count_cores() == 8  # never more than there are
        assert machine.count_cores() == 3
    assert machine.count_cores() == 8
    with pytest.raises(ValueError, match="inside"), machine.share_cores(2):
        raise ValueError("inside")
    assert machine.count_cores() == 8


def test_memory_of_a_container(tmp_path: Path) -> None:
    whole = machine.measure_memory()
    assert whole is not None and whole > 2**28
    write(tmp_path, {"memory.max": "max\n"})
    assert machine.measure_memory() == whole
    write(tmp_path, {"memory.max": "1000000\n"})
    assert machine.measure_memory() == 1_000_000


@pytest.mark.parametrize("given", [None, "7"])
def test_threads_follow_the_quota(tmp_path: Path, given: str | None) -> None:
    """A command asks for as many threads as its container has cores, unless the user says otherwise.

    The variable counts and not the number that torch reports: MKL starts no more threads than the machine has cores.
    """
    write(tmp_path, {"cpu.max": "100000 100000\n"})
    code = (
        "import pathlib, pretune.core.machine as machine\n"
        f"machine.CGROUP = pathlib.Path({str(tmp_path)!r})\n"
        "from pretune.cli.app import main\n"
        "import sys; assert 'torch' not in sys.modules\n"
        "main(['--version'])\n"
        "import os; print(os.environ['OMP_NUM_THREADS'])"
    )
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    variables |= {} if given is None else {"OMP_NUM_THREADS": given}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=True)
    assert result.stdout.split()[-1] == (given or "1")
