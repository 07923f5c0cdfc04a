"""What the tests of runs share."""

from pathlib import Path

import pytest

from tests.recipes.small import Prepared, make


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
