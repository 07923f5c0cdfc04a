"""Sequences laid out in rows: nothing is lost, nothing is doubled, nothing crosses a row's end."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import pretune as pt
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Targets
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape
from pretune.data.sequences import Sequences

tokens = st.integers(0, 2**31)
sequence = st.lists(tokens, min_size=1, max_size=12)
sequences = st.lists(sequence, min_size=1, max_size=12)
pairs = st.lists(st.tuples(sequence, sequence), min_size=1, max_size=12)


@st.composite
def packed(draw: Any) -> tuple[list[list[int]], int | None]:
    """Sequences and a row length that holds the longest."""
    found = draw(sequences)
    return found, draw(st.none() | st.integers(max(map(len, found)), 40))


def check(batch: pt.Batch, given: list[list[int]], room: int) -> None:
    """All that must be true of one side."""
    size = len(batch.tokens)
    offsets, owner = batch.offsets.tolist(), batch.sequence.tolist()
    assert (batch.length, size) == (room, batch.rows * room)
    assert batch.offsets.dtype == torch.int32 and len(offsets) == batch.cells + 1
    assert offsets[0] == 0 and offsets[-1] == size
    assert all(a <= b for a, b in pairwise(offsets)), "monotone"
    assert [part.tolist() for part in batch.split(batch.tokens)] == given, "every token once, in order"
    real = [cell for cell in range(batch.cells) if offsets[cell] < offsets[cell + 1] and owner[offsets[cell]] == cell]
    assert len(real) == len(given)
    for cell, values in zip(real, given, strict=True):
        start, end = offsets[cell], offsets[cell + 1]
        assert end - start == len(values)
        assert start // room == (end - 1) // room, "in one row"
        assert owner[start:end] == [cell] * len(values)
        assert batch.positions[start:end].tolist() == list(range(len(values)))
    filler = batch.sequence < 0
    assert int(filler.sum()) == size - sum(map(len, given))
    assert (batch.positions[filler] == 0).all() and (batch.tokens[filler] == 0).all()
    for row in range(batch.rows):
        part = filler[row * room : (row + 1) * room].tolist()
        assert part == sorted(part), "filler ends a row"
        assert not part[0], "no row is empty"
        if any(part):  # it is a cell of its own, from its first token to the row's end
            assert {row * room + part.index(True), (row + 1) * room} <= set(offsets)
    assert batch.one_per_row == all(len(values) == room for values in given)


@given(packed())
def test_a_layout(given: tuple[list[list[int]], int | None]) -> None:
    found, row = given
    check(pt.batch(found, row=row), found, row or max(map(len, found)))


@given(packed())
def test_rows_are_filled_in_order(given: tuple[list[list[int]], int | None]) -> None:
    """Next fit: a row ends only where the next sequence has no room."""
    found, row = given
    batch = pt.batch(found, row=row)
    spans = batch.list_spans()
    for (_, end), (start, after) in pairwise(spans):
        if start != end:
            assert start % batch.length == 0 and end % batch.length + after - start > batch.length
        assert start == end or start // batch.length == (end - 1) // batch.length + 1


@given(pairs, st.integers(0, 20))
def test_both_sides(given: list[tuple[list[int], list[int]]], spare: int) -> None:
    """Sequence s has the same cell and the same row on both sides."""
    source, target = [a for a, _ in given], [b for _, b in given]
    row = max(map(len, target)) + spare
    batch = pt.batch(source=source, target=target, row=row)
    assert batch.source is not None and batch.rows == batch.source.rows and batch.cells == batch.source.cells
    check(batch, target, row)
    check(batch.source, source, max(map(len, source)))
    for (start, _), (other, _) in zip(batch.list_spans(), batch.source.list_spans(), strict=True):
        assert batch.sequence[start] == batch.source.sequence[other]
        assert start // batch.length == other // batch.source.length


@given(packed(), st.randoms(use_true_random=False))
def test_what_goes_with_the_tokens(given: tuple[list[list[int]], int | None], random: Any) -> None:
    """Labels, segments and prefixes land on their tokens and their sequences."""
    found, row = given
    labels = [[random.choice([IGNORE_INDEX, token % 97]) for token in values] for values in found]
    segments = [[random.randrange(2) for _ in values] for values in found]
    prefix = [random.randint(0, len(values)) for values in found]
    batch = pt.batch(found, row=row, labels=labels, segments=segments, prefix=prefix)
    assert [part.tolist() for part in batch.split(batch.segments)] == segments
    wanted = [label for values in labels for label in values if label != IGNORE_INDEX]
    assert isinstance(batch.targets, Targets) and batch.targets.labels.tolist() == wanted
    back = torch.full_like(batch.tokens, IGNORE_INDEX)
    back[batch.targets.index] = batch.targets.labels
    assert [part.tolist() for part in batch.split(back)] == labels
    assert batch.prefix is not None and len(batch.prefix) == batch.cells
    cells = [int(batch.sequence[start]) for start, _ in batch.list_spans()]
    assert batch.prefix[cells].tolist() == prefix
    others = [cell for cell in range(batch.cells) if cell not in cells]
    assert (batch.prefix[others] == 0).all(), "filler has no prefix"


@given(sequences)
def test_split_takes_any_values(given: list[list[int]]) -> None:
    batch = pt.batch(given)
    values = torch.stack((batch.tokens.double(), -batch.tokens.double()), dim=1)
    parts = batch.split(values)
    assert [part[:, 1].tolist() for part in parts] == [[-float(token) for token in row] for row in given]


def test_spare_cells_are_no_sequences() -> None:
    """Offsets may be padded to a capacity: cells without tokens at the end."""
    batch = pt.batch([[1, 2, 3], [4]], row=4)
    spare = pt.Batch(
        tokens=batch.tokens,
        offsets=torch.cat((batch.offsets, torch.full((3,), 4, dtype=torch.int32))),
        sequence=batch.sequence,
        positions=batch.positions,
        rows=1,
    )
    assert spare.cells == batch.cells + 3
    assert [part.tolist() for part in spare.split(spare.tokens)] == [[1, 2, 3], [4]]


def test_moving_takes_everything_along() -> None:
    batch = pt.batch(source=[[1, 2]], target=[[3]], labels=[[4]], segments=[[1]], prefix=[1]).to("meta")
    found = [batch.tokens, batch.offsets, batch.sequence, batch.positions, batch.segments, batch.prefix]
    found += [batch.targets.index, batch.targets.labels, batch.source.tokens, batch.source.offsets]
    assert all(isinstance(part, Tensor) and part.device.type == "meta" for part in found)
    assert batch.rows == 1 and batch.one_per_row


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda x: np.array(x, dtype=np.uint16), torch.tensor])
def test_any_kind_of_sequence(kind: Any) -> None:
    batch = pt.batch([kind([1, 2, 3]), kind([4])])
    assert batch.tokens.tolist() == [1, 2, 3, 4, 0, 0] and batch.tokens.dtype == torch.int64


def test_a_matrix_of_tokens() -> None:
    rows = np.arange(6).reshape(2, 3)
    assert pt.batch(rows).tokens.tolist() == list(range(6))
    assert pt.batch(source=rows, target=rows + 1).tokens.tolist() == list(range(1, 7))


ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "either sequences, or source and target"),
    "both": ({"sequences": [[1]], "source": [[1]], "target": [[1]]}, "either"),
    "source alone": ({"source": [[1]]}, "either"),
    "target alone": ({"target": [[1]]}, "either"),
    "sequences with source": ({"sequences": [[1]], "source": [[1]]}, "either"),
    "no sequences": ({"sequences": []}, "no sequences"),
    "no targets": ({"source": [], "target": []}, "no sequences"),
    "an empty sequence": ({"sequences": [[1], [], [2]]}, "sequence 1 is empty"),
    "an empty source": ({"source": [[1], []], "target": [[1], [2]]}, "source 1 is empty"),
    "an empty target": ({"source": [[1]], "target": [[]]}, "target 0 is empty"),
    "too long": ({"sequences": [[1], [1] * 9], "row": 8}, r"\b9\b.*\b8\b"),
    "no row": ({"sequences": [[1]], "row": -3}, "row"),
    "a row of 0": ({"sequences": [[1]], "row": 0}, "row"),
    "unequal sides": ({"source": [[1]], "target": [[1], [2]]}, r"\b1 source.*\b2 target"),
    "too few labels": ({"sequences": [[1, 2]], "labels": [[1]]}, "label"),
    "too many labels": ({"sequences": [[1, 2]], "labels": [[1, 2, 3]]}, "label"),
    "labels of other sequences": ({"sequences": [[1, 2], [3]], "labels": [[1], [2, 3]]}, "label"),
    "labels of one sequence": ({"sequences": [[1, 2], [3]], "labels": [[1, 2, 3]]}, "label"),
    "fractions": ({"sequences": [[1, 2.5]]}, "tokens"),
    "words": ({"sequences": [["a", "b"]]}, "tokens"),
    "a list too deep": ({"sequences": [[[1], [2]]]}, "tokens"),
    "numbers beyond 64 bits": ({"sequences": [[2**70]]}, "tokens"),
    "no labels": ({"sequences": [[1, 2], [3]], "labels": []}, "label"),
    "segments of other sequences": ({"sequences": [[1, 2], [3]], "segments": [[1], [0, 1]]}, "segment"),
    "too few prefixes": ({"sequences": [[1, 2], [3]], "prefix": [1]}, "prefix"),
    "too many prefixes": ({"sequences": [[1, 2]], "prefix": [1, 0]}, "prefix"),
    "a prefix beyond its sequence": ({"sequences": [[1, 2], [3]], "prefix": [1, 2]}, "prefix"),
    "a negative prefix": ({"sequences": [[1, 2]], "prefix": [-1]}, "prefix"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    given, words = ERRORS[name]
    with pytest.raises(UsageError, match=words) as error:
        pt.batch(**given)
    assert "\n" not in str(error.value)


@given(
    st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=7), min_size=1, max_size=6),
    st.none() | st.integers(0, 3),
)
def test_a_batch_of_single_sequences_is_a_layout_with_a_row_for_each(ids: list[list[int]], extra: int | None) -> None:
    """`Batch.from_sequences`, which tokenizers use, places as `lay_out` does."""
    flat, offsets = np.concatenate(ids), np.cumsum([0, *map(len, ids)])
    sequences = Sequences(tokens=flat, offsets=offsets, segments=flat % 2, labels=np.arange(len(ids)))
    length = max(map(len, ids)) + (extra or 0)
    shape = BatchShape(rows=len(ids), length=length)
    expected = lay_out(sequences, np.arange(len(ids)), shape)
    segments = [[token % 2 for token in row] for row in ids]
    options: dict[str, int] = {} if extra is None else {"length": length}
    batch = Batch.from_sequences(ids, segments=segments, labels=[*range(len(ids))], **options)
    assert (batch.rows, batch.one_per_row) == (expected.rows, expected.one_per_row)
    for name in ("tokens", "offsets", "sequence", "positions", "segments", "labels"):
        assert torch.equal(getattr(batch, name), getattr(expected, name)), name
    with pytest.raises(UsageError):
        Batch.from_sequences(ids, length=max(map(len, ids)) - 1)
