"""Fixtures of tests of whole runs: the fork server, data, and an undisturbed run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.runs import ALONE, Nursery, arguments, made_data, nursery


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Runs in processes of their own."""
    with nursery(tmp_path_factory.mktemp("told")) as made:
        yield made


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data that nobody changes."""
    return made_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def straight(runs: Nursery, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    out = tmp_path_factory.mktemp("straight") / "run"
    runs.run(arguments(data, out, *ALONE))
    return out
