"""Batches of the one packer for inference: every sequence once, full rows, and results in input order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.data.layout import fill_rows, pack_batches, pack_in_order
from pretune.data.sequences import Sequences, compute_offsets
from tests.selection import scale_examples


def number_tokens(lengths: list[int], source: list[int] | None = None) -> Sequences:
    """Return sequences whose tokens are numbered over all sequences."""
    offsets = compute_offsets(np.array(lengths, dtype=np.int64))
    side = None if source is None else number_tokens(source)
    return Sequences(tokens=np.arange(offsets[-1]), offsets=offsets, source=side)


@settings(max_examples=scale_examples(60), deadline=None)
@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 200), st.integers(1, 80), st.sampled_from([1, 8]))
def test_rows_hold_every_sequence_once(lengths: list[int], tokens: int, row: int, step: int) -> None:
    sizes, placed = np.array(lengths, dtype=np.int64), list[int]()
    for indices, rows, length in fill_rows(sizes, tokens=tokens, row=row, step=step):
        placed += indices.tolist()
        assert (np.diff(rows) >= 0).all() and length % step == 0
        fullest = np.bincount(rows, weights=sizes[indices]).max()
        assert fullest <= length < fullest + step  # no more filler than the step asks for
        assert (rows[-1] + 1) * length <= max(tokens, length)
    assert sorted(placed) == [i for i, size in enumerate(lengths) if size]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@settings(max_examples=scale_examples(30), deadline=None)
@given(sizes=st.lists(st.tuples(st.integers(1, 150), st.integers(1, 150)), min_size=1, max_size=60), both=st.booleans())
def test_batches_hold_every_sequence_once(sizes: list[tuple[int, int]], both: bool, device: str) -> None:
    lengths, source = ([size[side] for size in sizes] for side in (0, 1))
    sequences, placed = number_tokens(lengths, source if both else None), list[int]()
    for part in pack_batches(sequences, tokens=300, device=device):
        placed += part.indices.tolist()
        sides = [(part.batch, sequences)]
        if sequences.source is not None:
            assert part.batch.source is not None
            sides.append((part.batch.source, sequences.source))
        for batch, texts in sides:
            for number, cell in zip(part.indices.tolist(), part.cells.tolist(), strict=True):
                start, end = batch.offsets[cell : cell + 2].tolist()
                assert batch.tokens[start:end].tolist() == list(range(*texts.offsets[number : number + 2]))
        expected = sequences.take(part.indices).tokens
        assert part.batch.tokens.numpy()[part.token_positions].tolist() == expected.tolist()
    assert sorted(placed) == list(range(len(sizes)))


def test_batches_are_full() -> None:
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.lognormal(3, 0.8, 5000).astype(int) + 3, 256)
    parts = pack_batches(number_tokens(lengths.tolist()), tokens=1024)
    assert lengths.sum() / sum(part.batch.tokens.shape[0] for part in parts) > 0.98


@pytest.mark.parametrize("source", [None, [4, 1, 9, 2]])
def test_one_batch_keeps_the_order(source: list[int] | None) -> None:
    sequences = number_tokens([3, 5, 1, 2], source)
    batch = pack_in_order(sequences)
    assert batch.tokens[batch.sequence >= 0].tolist() == sequences.tokens.tolist()
    assert batch.rows == 3 and batch.length == (5 if source is None else 8)
