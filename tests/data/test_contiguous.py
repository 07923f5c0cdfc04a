"""Contiguous streams: each row continues, nothing is lost or doubled, and targets reach into the next window."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretune.core.errors import DataError, UsageError
from pretune.core.types import Batch
from pretune.data.contiguous import ContiguousStream, draw_window_lengths
from pretune.data.plan import BatchShape
from pretune.data.samples import Blocks
from pretune.data.shards import Shards
from pretune.data.stream import TokenCounter
from pretune.objectives.causal import CausalCorruption
from tests.data.corpora import FRAMES, SEP, opened, random_documents, write
from tests.training.test_dataloader import same


def open_stream(folder: Path, rows: int = 4, length: int = 10, **options: Any) -> ContiguousStream:
    if not folder.exists():
        folder.mkdir()
        write(folder, random_documents(0, 20))
    samples = Blocks(length=length).open(Shards.open(folder), FRAMES["after"])
    options = {"seed": 3, "corruption": CausalCorruption(), **options}
    return ContiguousStream(samples, BatchShape(rows=rows, length=length), **options)


def read_text(stream: ContiguousStream) -> list[int]:
    """All tokens, as blocks have them."""
    return stream.samples.cut_ranges(np.array([0]), np.array([stream.samples.token_count])).tokens.tolist()


def join_windows(batches: list[Batch]) -> list[list[int]]:
    """The tokens of every stream."""
    return torch.cat([batch.tokens.view(batch.rows, -1) for batch in batches], dim=1).tolist()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.mark.parametrize("varies", [False, True])
def test_streams_are_the_text_in_order(folder: Path, varies: bool) -> None:
    stream = open_stream(folder, varies=varies)
    text, size = read_text(stream), stream.stream_length
    assert text.count(SEP) == 20
    for epoch in range(3):
        batches = [stream[step] for step in stream.get_steps(epoch)]
        assert [batch.continues for batch in batches] == [False, *[True] * (len(batches) - 1)]
        assert join_windows(batches) == [text[row * size : (row + 1) * size] for row in range(4)]
    assert 0 <= len(text) - 4 * size < 4


def test_every_token_but_the_last_of_the_text_has_the_next_as_target(folder: Path) -> None:
    stream = open_stream(folder, rows=1, varies=True)
    labels = []
    for step in stream.get_steps(0):
        targets = stream[step].targets
        assert targets is not None
        labels += targets.labels.tolist()
    assert labels == read_text(stream)[1:]


def test_windows_vary_around_their_length(folder: Path) -> None:
    stream = open_stream(folder, rows=2, length=40, varies=True)
    bounds = [stream.compute_bounds(epoch).tolist() for epoch in range(2)]
    assert bounds[0] != bounds[1]
    assert {stream[step].length for step in stream.get_steps(0)} == {*np.diff(bounds[0]).tolist()}
    lengths = draw_window_lengths(70, 20_000, 0, 0)
    assert lengths.min() >= 5
    assert abs((lengths > 52).mean() - 0.95) < 0.01
    assert abs(lengths[lengths > 52].std() - 5) < 0.2
    assert abs(np.median(lengths[lengths <= 52]) - 35) < 2
    fixed = open_stream(folder, length=40)
    *lengths, last = [fixed[step].length for step in fixed.get_steps(0)]
    assert {*lengths} == {40} and last <= 40


def test_parts_and_processes_read_the_same(folder: Path) -> None:
    stream = open_stream(folder, varies=True)
    copy = pickle.loads(pickle.dumps(stream))
    for step in (0, 3, stream.get_steps(0).stop, stream.get_steps(1).stop - 1):
        batch = stream[step]
        assert same(copy[step], batch)
        parts = [copy.batch(step, part=part, parts=2) for part in range(2)]
        assert torch.equal(torch.cat([part.tokens for part in parts]), batch.tokens)
        assert {part.continues for part in parts} == {batch.continues}
    with pytest.raises(UsageError, match="part 0 of 3"):
        stream.batch(0, parts=3)


@pytest.mark.parametrize("varies", [False, True])
def test_tokens_are_counted(folder: Path, varies: bool) -> None:
    stream, total = open_stream(folder, varies=varies), 0
    for step in range(stream.get_steps(1).stop):
        assert TokenCounter(stream).count_tokens(step) == total
        total += int((stream[step].sequence >= 0).sum())


def test_streams_shorter_than_a_window_are_refused() -> None:
    with opened([[5, 5]]) as shards:  # 11 tokens with the separator
        for rows, length, size in ((2, 6, 5), (12, 2, 0)):
            samples = Blocks(length=length).open(shards, FRAMES["after"])
            with pytest.raises(DataError, match=f"each of {rows} streams has {size}, fewer than a window of {length}"):
                ContiguousStream(samples, BatchShape(rows=rows, length=length), seed=0, corruption=CausalCorruption())
