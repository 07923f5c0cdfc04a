"""The folder in which every verb has been used once, made once for all tests of the command line."""

from pathlib import Path

import pytest

from tests.cli import world


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world.make(tmp_path_factory.mktemp("a world"))
