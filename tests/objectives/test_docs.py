"""The page about objectives tells the truth."""

import doctest
import importlib

import pytest

import pretune
from pretune.core.errors import UsageError
from pretune.objectives import OBJECTIVES
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "objectives.md"


def test_examples() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted > 15 and found.failed == 0


def test_every_objective_is_on_the_page() -> None:
    page = PAGE.read_text()
    assert [name for name in OBJECTIVES if f"`{name}`" not in page] == []


def test_the_public_name_is_a_function_whatever_was_imported() -> None:
    importlib.import_module("pretune.objectives.base")
    assert pretune.objective("masked", rate=0.3).rate == 0.3


def test_unknown_settings_are_one_line() -> None:
    with pytest.raises(UsageError, match=r"'rat'.*'rate'"):
        pretune.objective("masked", rat=0.3)
