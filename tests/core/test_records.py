"""Records: JSON of ours, where every declared field has its type and its bounds, or the file and field are named."""

import json
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from pretune.core.config import Amount, Count, Number, check_record, read_record, read_records, spec
from pretune.core.errors import CheckpointError, DataError


@spec
class Shape:
    """A spec inside a record."""

    width: int = 3


class Inner(TypedDict):
    """A record inside a record."""

    name: str
    score: Number | None


class Outer(TypedDict):
    """A record of every kind of field."""

    step: Count
    seconds: Amount
    kind: Literal["a", "b"]
    inner: Inner
    rows: list[Inner]
    counts: dict[str, Count]
    shape: Shape
    anything: Any
    note: NotRequired[str | None]
    either: NotRequired[list[Count] | Count]


GOOD: dict[str, Any] = {
    "step": 3, "seconds": 1.5, "kind": "a", "inner": {"name": "x", "score": None}, "rows": [{"name": "y", "score": 1}],
    "counts": {"train": 4}, "shape": {"width": 2}, "anything": [None], "beyond": {"what": "is declared"},
}  # fmt: skip


def test_a_record_is_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(GOOD))
    assert read_record(Outer, tmp_path / "x.json", CheckpointError) == GOOD
    for more in ({"note": None}, {"note": "x"}, {"either": 3}, {"either": [3]}):
        assert check_record(Outer, GOOD | more, CheckpointError, "x") == GOOD | more


BAD: list[tuple[str, Any, str]] = [
    ("step", 1.0, "step"), ("step", True, "step"), ("step", -1, "step"), ("step", 2**70, "step"), ("step", "3", "step"),
    ("step", None, "step"), ("seconds", "x", "seconds"), ("seconds", -0.5, "seconds"), ("seconds", 1e200, "seconds"),
    ("seconds", float("nan"), "seconds"), ("seconds", float("inf"), "seconds"),
    ("kind", "c", "kind"), ("kind", [], "kind"),
    ("inner", [], "inner"), ("inner", {"score": 1}, "inner.name"), ("inner", {"name": 1, "score": 1}, "inner.name"),
    ("inner", {"name": "x", "score": "1"}, "inner.score"), ("rows", {}, "rows"), ("rows", [3], "rows.0"),
    ("rows", [GOOD["inner"], {"name": "x", "score": False}], "rows.1.score"), ("counts", [], "counts"),
    ("counts", {"train": -1}, "counts.train"),
    ("shape", {"width": "x"}, "shape.width"), ("shape", {"hue": 1}, "shape.hue"),
    ("shape", 3, "shape"), ("note", 3, "note"), ("either", "3", "either"), ("either", [-1], "either.0"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "path"), BAD, ids=repr)
def test_a_field_that_is_wrong_is_named(key: str, value: Any, path: str) -> None:
    with pytest.raises(DataError) as caught:
        check_record(Outer, GOOD | {key: value}, DataError, "there/x.json")
    assert str(caught.value).startswith("there/x.json: ") and path in str(caught.value)


@pytest.mark.parametrize("key", [key for key in GOOD if key != "beyond"])
def test_a_field_that_is_missing_is_named(key: str) -> None:
    with pytest.raises(DataError, match=key):
        check_record(Outer, {name: value for name, value in GOOD.items() if name != key}, DataError, "x")


@pytest.mark.parametrize("data", [None, 3, "x", [], [GOOD]])
def test_what_is_no_object(data: Any) -> None:
    with pytest.raises(DataError, match=r"^x: "):
        check_record(Outer, data, DataError, "x")


def test_records_by_lines(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"name": "a\\u2028b", "score": 1}\n{"name": "y", "score": null}\n')
    assert [row["name"] for row in read_records(Inner, file, DataError)] == ["a\u2028b", "y"]
    for line in (b"", b"7", b"{}", b"\xff", b"[" * 10**5, b'{"name": "x", "score": NaN}', b'{"name": "x", "score": 1'):
        file.write_bytes(b'{"name": "x", "score": 1}\n' + line + b"\n")
        with pytest.raises(DataError, match=r"x\.jsonl:2"):
            read_records(Inner, file, DataError)
    with pytest.raises(DataError, match="absent"):
        read_records(Inner, tmp_path / "absent", DataError)
