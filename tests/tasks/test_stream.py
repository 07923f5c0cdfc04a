"""Streams of tasks: every item once an epoch, groups whole, parts that add up, shapes that stay, workers that agree."""

import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sampling import SmoothedMixing
from pretune.data.sequences import Sequences
from pretune.tasks.encoding import Counts, Items, mix_items
from pretune.tasks.stream import TaskStream
from pretune.training.dataloader import DataLoader
from tests.selection import scale_examples
from tests.tasks.small import encoder_for, examples_of, task_of


def items_of(lengths: list[int], sizes: list[int]) -> Items:
    """Items of sequences of these lengths; each sequence's tokens are its number."""
    flat = np.repeat(np.arange(len(lengths)), lengths)
    sequences = Sequences(tokens=flat, offsets=np.append(0, np.cumsum(lengths)), labels=np.arange(len(lengths)))
    owners = np.repeat(np.arange(len(sizes)), sizes)
    return Items(sequences=sequences, sizes=np.array(sizes), examples=owners, counts=Counts(examples=len(sizes)))


@given(data=st.data(), batch=st.integers(1, 9), fixed=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=scale_examples(60))
def test_every_item_once_an_epoch_and_whole(data: st.DataObject, batch: int, fixed: bool, seed: int) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=25))
    lengths = data.draw(st.lists(st.integers(1, 30), min_size=sum(sizes), max_size=sum(sizes)))
    items = items_of(lengths, sizes)
    stream = TaskStream(items, batch=batch, seed=seed, fixed_shape=fixed)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    for epoch in (0, 3):
        assert len(stream.steps(epoch)) == -(-len(sizes) // batch)
        counts: Counter[int] = Counter()
        for step in stream.steps(epoch):
            laid_out_batch = stream[step]
            assert laid_out_batch.labels is not None
            cells = [
                (cell, laid_out_batch.tokens[low].item())
                for cell, (low, _) in zip(_cells(laid_out_batch), laid_out_batch.list_spans(), strict=True)
            ]
            assert all(laid_out_batch.labels[cell] == number for cell, number in cells)
            counts.update(number for _, number in cells)
            for item in {owner[number] for _, number in cells}:
                group = [cell for cell, number in cells if owner[number] == item]
                assert group == list(range(group[0], group[0] + sizes[item])), "in order, one after the other, in a row"
                rows = {int(laid_out_batch.offsets[cell]) // laid_out_batch.length for cell in group}
                assert len(rows) == 1
            assert len({owner[number] for _, number in cells}) <= batch
        assert counts == Counter(range(len(lengths)))


def _cells(batch: object) -> list[int]:
    return sorted({int(cell) for cell in batch.sequence.tolist() if cell >= 0})  # type: ignore[attr-defined]


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_parts_are_the_whole(parts: int) -> None:
    items = items_of([3, 9, 4, 4, 2, 8, 1, 5, 7, 6, 2], [1] * 11)
    stream = TaskStream(items, batch=4, seed=5)
    for step in range(5):
        tokens = sorted(stream[step].tokens[stream[step].sequence >= 0].tolist())
        batches = [stream.batch(step, part=part, parts=parts) for part in range(parts)]
        assert sorted(t for part in batches for t in part.tokens[part.sequence >= 0].tolist()) == tokens


def test_a_step_is_a_function_of_its_number() -> None:
    items = items_of([3, 9, 4, 4, 2, 8, 1, 5, 7, 6, 2], [1] * 11)
    stream, other_seed = TaskStream(items, batch=4, seed=5), TaskStream(items, batch=4, seed=6)
    later_batch = stream[7]
    copy = pickle.loads(pickle.dumps(stream))
    assert torch.equal(copy[7].tokens, later_batch.tokens) and torch.equal(stream[7].tokens, later_batch.tokens)
    assert any(not torch.equal(stream[step].tokens, other_seed[step].tokens) for step in range(3))
    assert not all(torch.equal(stream[step].tokens, stream[step + 3].tokens) for step in range(3))


def test_fixed_shapes_stay() -> None:
    encoder = encoder_for("gpt2", task_of("generation"))
    stream = TaskStream(encoder.encode(examples_of("generation") * 5), batch=8, seed=1, fixed_shape=True)
    shapes = {
        (step_batch.tokens.shape, step_batch.offsets.shape, step_batch.targets.labels.shape)
        for step_batch in (stream[s] for s in range(12))
        if step_batch.targets
    }
    assert len(shapes) <= 2
    assert all(
        int((stream[step].targets.labels != IGNORE_INDEX).sum())  # type: ignore[union-attr]
        == int((TaskStream(stream.items, batch=8, seed=1)[step].targets.labels != IGNORE_INDEX).sum())  # type: ignore[union-attr]
        for step in range(5)
    )


@pytest.mark.slow
def test_workers_make_the_same_batches() -> None:
    stream = TaskStream(encoder_for("bert", task_of("pair")).encode(examples_of("pair")), batch=4, seed=1)
    with DataLoader(stream, stop=3, micro=2, workers=2) as feed:
        batches = [list(parts) for parts in feed]
    assert [len(parts) for parts in batches] == [2, 2, 2]
    for step, parts in enumerate(batches):
        for part, batch in enumerate(parts):
            assert torch.equal(batch.tokens, stream.batch(step, part=part, parts=2).tokens)


def test_small_tasks_are_read_more_often_in_a_mixture() -> None:
    large, small = items_of([3] * 90, [1] * 90), items_of([3] * 10, [1] * 10)
    joint_items = mix_items([large, small])
    assert len(joint_items) == 100 and joint_items.counts.examples == 100
    shares = []
    for mixing in (None, SmoothedMixing(alpha=0.5), SmoothedMixing(alpha=0.0)):
        stream = TaskStream(joint_items, batch=10, seed=0, mixing=mixing)
        numbers = [number for step in stream.steps(0) for number in stream.examples(step)]
        assert len(stream.steps(0)) == 10
        shares.append(sum(number >= 90 for number in numbers))
    assert shares[0] == 10 and shares[1] >= 2
    alike = TaskStream(joint_items, batch=10, seed=0, mixing=SmoothedMixing(alpha=0.0))
    orders = [number for step in alike.steps(0) for number in alike.items.take(alike.select(step)).samples.tolist()]  # type: ignore[union-attr]
    assert sum(number >= 90 for number in orders) == 50


def test_what_cannot_be_a_stream() -> None:
    items = items_of([3, 9], [1, 1])
    with pytest.raises(UsageError, match=r"\b0\b"):
        TaskStream(items, batch=0)
    with pytest.raises(UsageError, match=r"\b2\b"):
        TaskStream(items, batch=2).batch(0, part=2, parts=2)
