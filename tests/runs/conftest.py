"""What the tests of runs share."""

from pathlib import Path

import pytest

from tests.runs import tasked
from tests.runs.small import Prepared, make


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small encoder to fine-tune."""
    return tasked.make_base(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with two classes."""
    return tasked.classes(tmp_path_factory.mktemp("table") / "own.csv")


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Prepared data by the kind and style of its tokenizer, made when it is asked for."""
    made: dict[tuple[str, ...], Path] = {}

    def of(kind: str = "wordpiece", style: str = "cls-sep", what: str = "stories") -> Path:
        asked = (kind, style, what)
        if asked not in made:
            made[asked] = make(tmp_path_factory.mktemp("-".join(asked)), kind, style, what=what)
        return made[asked]

    return of
