"""The examples in docstrings are true."""

import doctest
import importlib

import pytest

from tests.architecture.source import PACKAGE, SRC

FILES = sorted(file for file in PACKAGE.rglob("*.py") if ">>>" in file.read_text())
MODULES = [".".join(file.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__") for file in FILES]


def test_there_are_examples() -> None:
    assert {"pretune.core.types", "pretune.data.layout", "pretune.core.errors"} <= {*MODULES}


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0, "an example that is never run"
    assert found.failed == 0
