from pathlib import Path

import pytest

from pretune.core.errors import UsageError
from pretune.core.registry import Registry

SOURCE = '''"""The module's own line.

More.
"""
from dataclasses import dataclass

LOADED = True


@dataclass
class Thing:
    """A thing of a class.

    More.
    """


def make():
    """A thing made by a function."""


VALUE = Thing()
"""A thing
that is a value."""

TYPED: Thing = Thing()
"""   A typed value.   """

BARE = Thing()

LATER = Thing()
LOADED = True
"""Not the line of LATER."""
'''


@pytest.fixture
def things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[object]:
    """A registry over a package in which `broken` cannot be imported."""
    package = tmp_path / "thingpackage"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "good.py").write_text(SOURCE)
    (package / "broken.py").write_text('"""Cannot be imported."""\nraise RuntimeError("imported")\n')
    monkeypatch.syspath_prepend(tmp_path)
    names = {"thing": "Thing", "make": "make", "value": "VALUE", "typed": "TYPED", "bare": "BARE", "later": "LATER"}
    table = {name: f"thingpackage.good:{attribute}" for name, attribute in names.items()}
    return Registry("thing", {**table, "broken": "thingpackage.broken:ANY", "absent": "thingpackage.absent:ANY"})


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("thing", "A thing of a class."),
        ("make", "A thing made by a function."),
        ("value", "A thing"),
        ("typed", "A typed value."),
        ("bare", "The module's own line."),
        ("later", "The module's own line."),
        ("broken", "Cannot be imported."),
    ],
)
def test_describe_reads_the_source_and_imports_nothing(things: Registry[object], name: str, line: str) -> None:
    assert things.describe(name) == line


def test_get_imports_once_and_only_what_is_asked_for(things: Registry[object]) -> None:
    first = things.get("value")
    assert type(first).__name__ == "Thing"
    assert things.get("value") is first
    with pytest.raises(RuntimeError, match="imported"):
        things.get("broken")
    with pytest.raises(ModuleNotFoundError):
        things.describe("absent")


@pytest.mark.parametrize("method", ["get", "describe"])
def test_an_unknown_name_is_met_with_the_nearest(things: Registry[object], method: str) -> None:
    with pytest.raises(UsageError) as caught:
        getattr(things, method)("valeu")
    assert all(word in str(caught.value) for word in ("'valeu'", "'value'", "thing, make, "))


def test_it_reads_like_a_collection_and_keeps_the_order(things: Registry[object]) -> None:
    assert things.list_names() == list(things) == list(things.table)
    assert things.list_names()[:2] == ["thing", "make"]
    assert "value" in things
    assert "valeu" not in things
    with pytest.raises(TypeError):
        things.table["new"] = "a:b"  # type: ignore[index]


@pytest.mark.parametrize("target", ["module", "module:", ":attribute", "module:a.b", "module:a:b"])
def test_a_malformed_table_is_a_bug_found_at_once(target: str) -> None:
    with pytest.raises(ValueError, match=f"'{target}'"):
        Registry("thing", {"name": target})
