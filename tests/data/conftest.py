"""What the tests of `prepare` share."""

from pathlib import Path

import pytest

from pretune.data.prepare import encoding
from tests.data.texts import MANY, blocks, byte_tokenizer, story


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with 300 documents, three of them there twice, and a folder of small files beside it."""
    folder = tmp_path_factory.mktemp("corpus")
    blocks(folder / "b" / "many.txt", [*MANY, *MANY[:3]])
    for number in range(5):
        (folder / "a").mkdir(exist_ok=True)
        (folder / "a" / f"{number}.txt").write_text(story(1000 + number) + "\n")
    return str(folder)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of two kilobytes instead of a megabyte, and parts above eight read by the parent."""
    monkeypatch.setattr(encoding, "UNIT_BYTES", 2000)
    monkeypatch.setattr(encoding, "_MAX_PART_BYTES", 8000)
