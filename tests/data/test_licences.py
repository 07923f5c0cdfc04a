"""Licences of sources: one for all, or by patterns, in the data card and in the command that makes the data again."""

from pathlib import Path
from typing import Any

import pytest

from pretune.core.errors import DataError, UsageError
from pretune.data.prepare.run import merge
from pretune.data.prepare.settings import state_licences
from pretune.runs.prepare import prepare
from tests.data.texts import MANY, blocks, tree

SOURCES: list[dict[str, Any]] = [
    {"name": "books/a", "licence": None},
    {"name": "news", "licence": None},
    {"name": "builtin:docs", "licence": "PSF"},
]


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ([], [None, None, "PSF"]),
        (["MIT"], ["MIT", "MIT", "PSF"]),
        (["*=MIT"], ["MIT", "MIT", "MIT"]),
        (["books/*=own", "MIT"], ["own", "MIT", "PSF"]),
        (["builtin:docs=other", "n*=a=b"], [None, "a=b", "other"]),
    ],
)
def test_statements(statements: list[str], expected: list[str | None]) -> None:
    assert [source["licence"] for source in state_licences(SOURCES, statements)] == expected


@pytest.mark.parametrize("statement", ["", " ", "news=", "nws=MIT"])
def test_what_says_nothing_is_refused(statement: str) -> None:
    with pytest.raises(UsageError, match=f"'{statement}'"):
        state_licences(SOURCES, [statement])


def test_in_the_card(tmp_path: Path, tokenizer: Path) -> None:
    given = [blocks(tmp_path / "a.txt", MANY[:50]), blocks(tmp_path / "b.txt", MANY[50:99])]
    options: dict[str, Any] = {"tokenizer": tokenizer, "workers": 0, "licence": ["CC0", "*b.txt=*own* text"]}
    data = prepare(given, out=tmp_path / "data", **options)
    assert [source["licence"] for source in data.card["sources"]] == ["CC0", "*own* text"]
    text = (data.path / "card.md").read_text()
    assert "| CC0, \\*b.txt=\\*own\\* text |" in text, "a setting is no Markdown either"
    assert "CC0" in text and "\\*own\\* text" in text and "--licence CC0 --licence '*b.txt=*own* text'" in text
    assert not prepare(given, out=tmp_path / "data", **options).is_new
    with pytest.raises(DataError, match=r"licence.*CC0"):
        prepare(given, out=tmp_path / "data", **{**options, "licence": "CC0"})
    slices = [prepare(given, out=tmp_path / f"{n}", shard=f"{n}/2", **options) for n in (1, 2)]
    assert tree(merge(slices, out=tmp_path / "merged").path) == tree(data.path)
