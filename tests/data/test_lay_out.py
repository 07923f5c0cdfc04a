"""The layout core: rows, cells and target slots of a fixed shape, whatever is in them."""

from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pretune as pt
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape
from pretune.data.sequences import PER_SEQUENCE, PER_TOKEN, Sequences, join


@st.composite
def placed(draw: Any) -> tuple[list[list[int]], list[int], int]:
    """Sequences, the row of each, and how many rows there are; some are empty."""
    rows = draw(st.integers(1, 6))
    given, row, position = [], [], 0
    for number in range(rows):
        room = 12
        for length in draw(st.lists(st.integers(1, 6), max_size=4)):
            if length <= room:
                given.append(list(range(position, position + length)))
                row.append(number)
                room -= length
                position += length
    return given, row, rows


def flat(given: list[list[int]], **more: Any) -> Sequences:
    lengths = [len(part) for part in given]
    return Sequences(
        tokens=np.array([*chain.from_iterable(given)], dtype=np.int64),
        offsets=np.cumsum([0, *lengths], dtype=np.int64),
        **more,
    )


@given(placed(), st.integers(12, 16), st.none() | st.integers(4, 7))
def test_rows_and_cells(given: tuple[list[list[int]], list[int], int], length: int, most: int | None) -> None:
    found, row, rows = given
    made = lay_out(flat(found), np.array(row, dtype=np.int64), BatchShape(rows=rows, length=length, sequences=most))
    offsets, owner = made.offsets.tolist(), made.sequence.tolist()
    assert (made.rows, made.length, len(made.tokens)) == (rows, length, rows * length)
    assert made.cells == (len(found) + rows if most is None else rows * (most + 1))
    assert offsets[0] == 0 and offsets[-1] == rows * length and all(a <= b for a, b in pairwise(offsets))
    assert made.offsets.dtype == torch.int32
    assert [part.tolist() for part in made.split(made.tokens)] == found
    assert [start // length for start, _ in made.list_spans()] == row
    for number in range(rows):  # what is not a sequence is one cell of filler at the row's end
        part = owner[number * length : (number + 1) * length]
        filler = part.count(-1)
        assert part[length - filler :] == [-1] * filler
        assert {number * length + length - filler, (number + 1) * length} <= set(offsets)
    real = made.sequence >= 0
    assert (made.tokens[~real] == 0).all() and (made.positions[~real] == 0).all()
    cells = made.sequence[real]
    assert (made.positions[real] == torch.arange(len(owner))[real] - made.offsets[cells]).all()


@given(placed(), st.data())
def test_it_is_what_batch_does(given: tuple[list[list[int]], list[int], int], data: st.DataObject) -> None:
    """Where rows are filled in order, both ways give the same batch."""
    found, _, _ = given
    if not found:
        return
    labels = [[data.draw(st.sampled_from([IGNORE_INDEX, 7])) for _ in part] for part in found]
    prefix = [data.draw(st.integers(0, len(part))) for part in found]
    one = pt.batch(found, row=12, labels=labels, segments=labels, prefix=prefix)
    row = np.array([start // 12 for start, _ in one.list_spans()])
    every = np.array([*chain.from_iterable(labels)])
    given_flat = flat(found, targets=every, segments=every, prefix=np.array(prefix))
    two = lay_out(given_flat, row, BatchShape(rows=one.rows, length=12))
    for name in ("tokens", "offsets", "sequence", "positions", "segments", "prefix"):
        assert getattr(one, name).tolist() == getattr(two, name).tolist(), name
    assert one.targets is not None and two.targets is not None
    assert one.targets.index.tolist() == two.targets.index.tolist()
    assert (one.rows, one.one_per_row) == (two.rows, two.one_per_row)


@given(placed(), st.integers(0, 9))
def test_what_the_sequences_carry(given: tuple[list[list[int]], list[int], int], seed: int) -> None:
    found, row, rows = given
    rng = np.random.default_rng(seed)
    total, count = sum(map(len, found)), len(found)
    starts = rng.random(total) < 0.5
    made = lay_out(
        flat(
            found,
            words=starts,
            sentences=~starts,
            segments=rng.integers(0, 3, total),
            order=rng.integers(0, 99, total),
            targets=np.where(starts, np.arange(total), IGNORE_INDEX),
            prefix=np.arange(count),
            view=np.arange(count) + 10,
            labels=np.arange(count) + 20,
            samples=np.arange(count),
        ),
        np.array(row, dtype=np.int64),
        BatchShape(rows=rows, length=12, sequences=5, slots=12),
    )
    real = made.sequence >= 0
    for name, values in (("prefix", 0), ("view", 10), ("labels", 20)):
        cells = getattr(made, name)
        assert len(cells) == made.cells
        mine = made.sequence[[start for start, _ in made.list_spans()]]
        assert cells[mine].tolist() == [values + number for number in range(count)]
        others = np.setdiff1d(np.arange(made.cells), mine.numpy())
        assert (cells[others] == (IGNORE_INDEX if name == "labels" else 0)).all()
    assert made.segments is not None and made.order is not None
    assert (made.segments[~real] == 0).all() and (made.order[~real] == 0).all()
    for numbers, mask in ((made.words, starts), (made.sentences, ~starts)):
        assert numbers is not None and (numbers[~real] == -1).all()
        begin_parts = np.split(mask, np.cumsum([len(part) for part in found])[:-1]) if found else []
        for part, begins in zip(made.split(numbers), begin_parts, strict=True):
            assert part.tolist() == (np.cumsum(begins) - begins[:1].sum()).tolist()
    assert made.targets is not None and len(made.targets.index) == len(made.targets.labels) == rows * 12
    used = int(starts.sum())
    assert made.targets.labels[:used].tolist() == np.flatnonzero(starts).tolist()
    assert made.tokens[made.targets.index[:used]].tolist() == made.targets.labels[:used].tolist()
    assert (made.targets.labels[used:] == IGNORE_INDEX).all() and (made.targets.index[used:] == 0).all()


@given(placed())
def test_both_sides(given: tuple[list[list[int]], list[int], int]) -> None:
    found, row, rows = given
    source = [part[: len(part) // 2 + 1] for part in found]
    shape = BatchShape(rows=rows, length=12, source=14, sequences=6)
    made = lay_out(flat(found, source=flat(source)), np.array(row, dtype=np.int64), shape)
    assert made.source is not None and made.source.cells == made.cells and made.source.rows == rows
    assert [part.tolist() for part in made.source.split(made.source.tokens)] == source
    for (start, _), (other, _) in zip(made.list_spans(), made.source.list_spans(), strict=True):
        assert made.sequence[start] == made.source.sequence[other]
        assert start // 12 == other // 14


def test_all_filler() -> None:
    nothing, shape = np.empty(0, np.int64), BatchShape(rows=3, length=4, sequences=2, slots=1)
    made = lay_out(flat([], targets=nothing), nothing, shape)
    assert made.offsets.tolist() == [0, 4, 8, 12, 12, 12, 12, 12, 12, 12]
    assert (made.sequence == -1).all() and made.split(made.tokens) == [] and not made.one_per_row
    assert made.targets is not None and made.targets.labels.tolist() == [IGNORE_INDEX] * 3


def test_one_sequence_in_every_row() -> None:
    given = [[1, 2, 3], [4, 5, 6]]
    assert lay_out(flat(given), np.array([0, 1]), BatchShape(rows=2, length=3)).one_per_row
    assert not lay_out(flat(given), np.array([0, 1]), BatchShape(rows=2, length=4)).one_per_row
    assert not lay_out(flat(given), np.array([0, 1]), BatchShape(rows=3, length=3)).one_per_row


ERRORS: dict[str, tuple[list[list[int]], list[int], dict[str, Any], str]] = {
    "too few rows": ([[1], [2]], [0, 2], {}, r"\b1\b"),
    "a row before the first": ([[1], [2]], [-1, 0], {}, r"\b1\b"),
    "not in order": ([[1], [2]], [1, 0], {}, "row"),
    "a row missing": ([[1], [2]], [0], {}, "row"),
    "too long a row": ([[1, 2], [3, 4, 5]], [1, 1], {}, r"row 1\b.*\b5\b.*\b4\b"),
    "too many sequences": ([[1], [2], [3]], [0, 0, 0], {"sequences": 2}, r"row 0\b.*\b3\b.*\b2\b"),
    "too many targets": ([[1, 2], [3]], [0, 1], {"slots": 1}, r"\b3\b.*\b2\b"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    given, row, shape, value = ERRORS[name]
    made = flat(given, targets=flat(given).tokens)
    with pytest.raises(UsageError, match=value) as caught:
        lay_out(made, np.array(row), BatchShape(rows=2, length=4, **shape))
    assert "\n" not in str(caught.value)


def test_sides_must_agree() -> None:
    with pytest.raises(UsageError, match="source"):
        lay_out(flat([[1]], source=flat([[1]])), np.array([0]), BatchShape(rows=1, length=1))
    with pytest.raises(UsageError, match="source"):
        lay_out(flat([[1]], source=flat([[1], [2]])), np.array([0]), BatchShape(rows=1, length=1, source=4))


class TestShape:
    def test_parts(self) -> None:
        shape = BatchShape(rows=8, length=16, source=12, sequences=3, slots=4)
        assert (shape.cells, shape.targets) == (32, 32)
        assert shape.divide(4) == BatchShape(rows=2, length=16, source=12, sequences=3, slots=4)
        assert BatchShape(rows=8, length=16).cells is None and BatchShape(rows=8, length=16).targets is None
        assert BatchShape(rows=1, length=1, slots=0).targets == 0

    @pytest.mark.parametrize("parts", [0, 3, 16])
    def test_parts_are_equal(self, parts: int) -> None:
        with pytest.raises(UsageError, match=rf"\b8\b.*\b{parts}\b"):
            BatchShape(rows=8, length=16).divide(parts)

    @pytest.mark.parametrize("name", ["rows", "length", "source", "sequences"])
    def test_nothing_fits_into_nothing(self, name: str) -> None:
        with pytest.raises(UsageError, match=rf"{name}.*\b0\b"):
            BatchShape(**{"rows": 1, "length": 1, name: 0})


class TestSequences:
    @given(placed(), st.data())
    def test_take_and_join(self, given: tuple[list[list[int]], list[int], int], data: st.DataObject) -> None:
        found, _, _ = given
        count, total = len(found), sum(map(len, found))
        values = {name: np.arange(total) for name in PER_TOKEN[1:]} | {name: np.arange(count) for name in PER_SEQUENCE}
        whole = flat(found, **values, source=flat([part[:1] for part in found]))
        order = np.array(data.draw(st.permutations(range(count))), dtype=np.int64)
        cut = data.draw(st.integers(0, count))
        back = join([whole.take(order[:cut]), whole.take(order[cut:])]).take(np.argsort(order))
        for name in ("tokens", "offsets", *PER_TOKEN, *PER_SEQUENCE):
            assert getattr(back, name).tolist() == getattr(whole, name).tolist(), name
        assert back.source is not None and back.source.tokens.tolist() == whole.source.tokens.tolist()  # type: ignore[union-attr]
        assert whole.find_owners().tolist() == [n for n, part in enumerate(found) for _ in part]
        assert whole.compute_positions().tolist() == [n for part in found for n, _ in enumerate(part)]
