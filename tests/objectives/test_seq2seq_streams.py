"""Objectives that change lengths, from shards to batches: rows planned by their bounds hold what comes out."""

from collections.abc import Iterator

import pytest

from pretune.core.types import IGNORE_INDEX
from pretune.data.plan import BatchShape
from pretune.data.samples import Blocks, Documents
from pretune.data.shards import Shards
from pretune.data.stream import BatchStream
from pretune.objectives import OBJECTIVES
from pretune.objectives.base import ModelShape, Vocabulary
from tests.data.corpora import CLS, FRAMES, SEP, opened, random_documents
from tests.selection import keep_quick

EXTRA = tuple(range(1_000_149, 1_000_050, -1))
VOCABULARY = Vocabulary(
    size=1_000_200, special=(CLS, SEP, *EXTRA[::-1]), roles=(("mask", EXTRA[-1]),), sentinels=EXTRA[:-1], start=CLS
)
NAMES = ("prefix", "span_corruption", "denoising", "masked_seq2seq", "multitask_masked", "mixture")
CASES = [(name, shape) for name in NAMES for shape in OBJECTIVES.get(name)().shapes]


@pytest.fixture(scope="module")
def shards() -> Iterator[Shards]:
    with opened(random_documents(3, 120)) as found:
        yield found


@pytest.mark.parametrize(
    "kind", keep_quick([Documents(limit=60), Blocks(length=60)], Documents(limit=60)), ids=["documents", "blocks"]
)
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_rows_and_slots_hold_what_comes_out(
    name: str, shape: ModelShape, kind: Documents | Blocks, shards: Shards
) -> None:
    """In every batch of an epoch, all targets are there, and all batches have one shape."""
    objective = OBJECTIVES.get(name)()
    room = BatchShape(rows=8, length=160, source=160 if shape == "encoder-decoder" else None)
    stream = BatchStream(
        kind.open(shards, FRAMES["around"]),
        room,
        seed=1,
        corruption=objective.bind(VOCABULARY, shape),
        words=objective.words,
        sentences=objective.sentences,
        fixed_slots=True,
    )
    shapes = set()
    for step in stream.get_steps(0):
        batch, (sequences, _) = stream[step], stream.read_sequences(step)
        assert batch.targets is not None and sequences.targets is not None
        assert (batch.targets.labels != IGNORE_INDEX).sum() == (sequences.targets != IGNORE_INDEX).sum() > 0
        shapes.add((batch.tokens.shape, batch.offsets.shape, batch.targets.labels.shape))
        assert (batch.source is None) == (shape != "encoder-decoder")
    assert len(shapes) == 1
