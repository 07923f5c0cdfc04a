"""What the tests of runs share."""

from pathlib import Path

import pytest

from tests.recipes.small import Prepared, make


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Prepared data by the kind and style of its tokenizer, made when it is asked for."""
    made: dict[tuple[str, str], Path] = {}

    def of(kind: str = "wordpiece", style: str = "cls-sep") -> Path:
        if (kind, style) not in made:
            made[kind, style] = make(tmp_path_factory.mktemp(f"{kind}-{style}"), kind, style)
        return made[kind, style]

    return of
