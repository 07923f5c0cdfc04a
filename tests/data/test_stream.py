"""The whole way: shards to batches, nothing lost, the same for every worker, rank and resume."""

import contextlib
import io
import multiprocessing
import pickle
import re
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.errors import DataError, UsageError
from pretune.core.types import Batch
from pretune.data import packing
from pretune.data import stream as stream_module
from pretune.data.pairs import SegmentPairs
from pretune.data.plan import BatchShape
from pretune.data.samples import Blocks, Documents, Sentences
from pretune.data.sampling import Counters, SmoothedMixing, WeightedMixing
from pretune.data.sequences import Ints, Sequences, compute_offsets
from pretune.data.shards import Shards
from pretune.data.stream import BatchStream, Corruption
from tests.conftest import ROOT
from tests.data.corpora import CLS, FRAMES, SEP, Masking, opened, random_documents, some_documents, write
from tests.selection import keep_quick

FRAME = FRAMES["around"]
KINDS: dict[str, Any] = {
    "documents": Documents(limit=16),
    "sentences": Sentences(limit=12),
    "blocks": Blocks(length=16),
    "pairs": SegmentPairs(limit=16),
    "swapped": SegmentPairs(limit=16, broken="swapped"),
}


class Halves(Corruption):
    """A toy lesson of two sides: the encoder reads the first half, the decoder the second; nothing stays outside."""

    copies: int | None = None

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return (n + 1) // 2, n // 2 + 1

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        half = (sequences.lengths + 1) // 2
        first = sequences.compute_positions() < np.repeat(half, sequences.lengths)
        source = Sequences(tokens=sequences.tokens[first], offsets=compute_offsets(half))
        rest = sequences.lengths - half + 1
        tokens = np.full(int(rest.sum()), 5)
        tokens[np.setdiff1d(np.arange(len(tokens)), compute_offsets(rest)[:-1])] = sequences.tokens[~first]
        return Sequences(tokens=tokens, offsets=compute_offsets(rest), targets=tokens, source=source)

    def targets(self, tokens: int, sequences: int) -> int:
        return tokens


def same(one: Batch, other: Batch) -> bool:
    """Whether two batches are equal in all their parts."""
    for name in Batch.__dataclass_fields__:
        a, b = getattr(one, name), getattr(other, name)
        if isinstance(a, Batch):
            a, b = True, same(a, b)
        elif hasattr(a, "labels") and name == "targets":
            a, b = torch.stack((a.index, a.labels)).tolist(), torch.stack((b.index, b.labels)).tolist()
        elif isinstance(a, torch.Tensor):
            a, b = a.tolist(), b.tolist()
        if a != b:
            return False
    return True


def open_kind(name: str, shards: Shards) -> Any:
    """The samples of a kind; where a corpus has no pairs of two documents, swapped ones."""
    try:
        return KINDS[name].open(shards, FRAME)
    except DataError:
        return KINDS["swapped"].open(shards, FRAME)


def texts(batch: Batch) -> list[int]:
    return [token for part in batch.split(batch.tokens) for token in part.tolist() if token not in (CLS, SEP)]


streams = {
    "given": some_documents,
    "kind": st.sampled_from(sorted(KINDS)),
    "rows": st.sampled_from([1, 2, 4]),
    "seed": st.integers(0, 2**64 - 1),
    "window": st.integers(1, 50),
    "full": st.integers(1, 60),
}


@given(**streams)
def test_an_epoch_is_the_corpus(given: Any, kind: str, rows: int, seed: int, window: int, full: int) -> None:
    """No token lost or doubled from writing to batches, in any epoch, whatever the shards, kind, rows and window."""
    with opened(given, full=full) as shards:
        stream = BatchStream(open_kind(kind, shards), BatchShape(rows=rows, length=20), seed=seed, window=window)
        orders = []
        for epoch in range(3):
            found = [token for step in stream.get_steps(epoch) for token in texts(stream[step])]
            assert sorted(found) == list(range(len(shards)))
            orders.append(found)
        if len(stream.samples) > 20:
            assert orders[0] != orders[1] != orders[2]


@given(**streams, parts=st.sampled_from([1, 2, 4]))
def test_ranks_and_micro_batches_share_a_batch(
    given: Any, kind: str, rows: int, seed: int, window: int, full: int, parts: int
) -> None:
    """The parts of a batch, one after another, are its rows, tokens and targets."""
    with opened(given, full=full) as shards:
        shape = BatchShape(rows=rows * 4, length=20)
        stream = BatchStream(open_kind(kind, shards), shape, seed=seed, window=window, corruption=Masking())
        for step in list(stream.get_steps(0))[:3]:
            whole = stream[step]
            split = [stream.batch(step, part=part, parts=parts) for part in range(parts)]
            assert torch.cat([part.tokens for part in split]).tolist() == whole.tokens.tolist()
            assert torch.cat([part.positions for part in split]).tolist() == whole.positions.tolist()
            assert sum(part.rows for part in split) == whole.rows
            labels = [part.targets.labels.tolist() for part in split]  # type: ignore[union-attr]
            assert whole.targets is not None and [*chain.from_iterable(labels)] == whole.targets.labels.tolist()
            assert {part.cells * parts for part in split} == {whole.cells}


@given(**streams, start=st.integers(0, 12))
def test_resuming_gives_the_rest(
    given: Any, kind: str, rows: int, seed: int, window: int, full: int, start: int
) -> None:
    with opened(given, full=full) as shards:

        def fresh() -> BatchStream:
            shape = BatchShape(rows=rows, length=20)
            samples = open_kind(kind, shards)
            return BatchStream(samples, shape, seed=seed, window=window, corruption=Masking(), words=True)

        through = list(fresh().iter_batches(0, start + 3))
        resumed = list(fresh().iter_batches(start, start + 3))
        assert all(same(a, b) for a, b in zip(through[start:], resumed, strict=True))


def corpus(folder: Path, **options: Any) -> Shards:
    return Shards.open(write(folder, random_documents(3, 150), **options))


def open_documents(shards: Shards, **options: Any) -> BatchStream:
    """A stream of documents in 8 rows of 32 tokens."""
    return BatchStream(Documents(limit=32).open(shards, FRAME), BatchShape(rows=8, length=32), **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "mixing", keep_quick([None, SmoothedMixing(alpha=0.3)], SmoothedMixing(alpha=0.3)), ids=["all", "mixed"]
)
def test_workers_see_the_same(tmp_path: Path, kind: str, mixing: Any) -> None:
    """Sent to other processes, and asked in any order, a stream gives the same batches."""
    shards = corpus(tmp_path, full=2000)
    shape = BatchShape(rows=8, length=32)
    stream = BatchStream(open_kind(kind, shards), shape, seed=4, corruption=Masking(), mixing=mixing, sentences=True)
    stop = stream.get_steps(1).stop
    expected = [stream[step] for step in range(stop)]
    sent = pickle.dumps(stream)
    assert len(sent) < 2500
    other = pickle.loads(sent)
    for step in np.random.default_rng(0).permutation(stop).tolist():
        assert same(other[step], expected[step])


def total(stream: BatchStream, step: int) -> int:
    return int(stream[step].tokens.sum())


def test_in_another_process(tmp_path: Path) -> None:
    stream = open_documents(corpus(tmp_path), seed=4)
    expected = [total(stream, step) for step in range(6)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.starmap(total, [(stream, step) for step in range(6)], chunksize=1) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_of_one_window_are_equally_long(tmp_path: Path, kind: str) -> None:
    """So any step is found without planning the epochs before it."""
    stream = BatchStream(open_kind(kind, corpus(tmp_path)), BatchShape(rows=8, length=32), seed=4)
    for epoch in (1, 2, 50):
        assert stream.plan(epoch).batch_count == len(stream.get_steps(epoch)) == stream.plan(0).batch_count
    assert stream.locate_step(10**12)[0] == 10**12 // stream.plan(0).batch_count


@pytest.mark.parametrize("window", [300, 2**18])
def test_a_step_is_found_wherever_it_is(tmp_path: Path, window: int) -> None:
    samples = Sentences(limit=32).open(corpus(tmp_path), FRAME)
    stream = BatchStream(samples, BatchShape(rows=8, length=32), seed=4, window=window)
    far = BatchStream(samples, BatchShape(rows=8, length=32), seed=4, window=window)
    epochs = [stream.get_steps(epoch) for epoch in range(4)]
    assert [steps.start for steps in epochs[1:]] == [steps.stop for steps in epochs[:-1]]
    last = epochs[3][-1]
    assert far.locate_step(last) == (3, len(epochs[3]) - 1)
    assert same(far[last], stream[last]) and same(far[0], stream[0])
    with pytest.raises(UsageError, match="-1"):
        stream.locate_step(-1)


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_are_static(tmp_path: Path, kind: str) -> None:
    """Every batch of every epoch has the same N, C and M, so that a model compiles once."""
    shape = BatchShape(rows=8, length=32, slots=16)
    stream = BatchStream(open_kind(kind, corpus(tmp_path)), shape, seed=4, corruption=Masking())
    shapes = set()
    for batch in stream.iter_batches(0, stream.get_steps(2).stop):
        assert batch.targets is not None
        shapes.add((batch.rows, *batch.tokens.shape, *batch.offsets.shape, *batch.targets.index.shape))
    cells = 8 * (stream.shape.sequences or 0) + 8
    assert shapes == {(8, 256, cells + 1, 128)}


def test_rows_are_full(tmp_path: Path) -> None:
    shards = Shards.open(write(tmp_path, random_documents(3, 2000, length=16)))
    for kind, length in ((Sentences(limit=128), 128), (Documents(limit=128), 128), (SegmentPairs(limit=128), 128)):
        stream = BatchStream(kind.open(shards, FRAME), BatchShape(rows=8, length=length), seed=0)
        assert stream.plan(0).fill > 0.98, kind
        batches = [stream[step] for step in list(stream.get_steps(0))[:-1]]
        filler = np.mean([(batch.sequence < 0).float().mean().item() for batch in batches])
        assert filler < 0.02, kind


class TestTwoSides:
    def test_nothing_is_lost(self, tmp_path: Path) -> None:
        shards = corpus(tmp_path)
        shape = BatchShape(rows=8, length=20, source=24)
        stream = BatchStream(Documents(limit=32).open(shards, FRAME), shape, seed=1, corruption=Halves())
        found: list[int] = []
        for step in stream.get_steps(0):
            batch = stream[step]
            assert batch.source is not None and batch.source.length == 24 and batch.length == 20
            assert batch.source.cells == batch.cells
            ours = [part.tolist() for part in batch.split(batch.tokens)]
            theirs = [part.tolist() for part in batch.source.split(batch.source.tokens)]
            for source, target in zip(theirs, ours, strict=True):
                joined = [*source, *target[1:]]
                assert target[0] == 5 and joined[0] == CLS and joined[-1] == SEP
                assert joined[1:-1] == list(range(joined[1], joined[-2] + 1)), "both halves are of one sample"
                found += joined[1:-1]
        assert sorted(found) == list(range(len(shards)))
        assert stream.plan(0).source_fill is not None

    def test_epochs_of_many_lengths_are_read_to_the_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lengths that are packed in several parts, in the order of each epoch, give epochs of different lengths."""
        for module in (packing, stream_module):
            monkeypatch.setattr(module, "MAX_LENGTH_PAIRS", 2)
        samples = Documents(limit=16).open(corpus(tmp_path), FRAME)
        stream = BatchStream(samples, BatchShape(rows=1, length=30, source=30), seed=1, corruption=Halves())
        for epoch in range(8):
            steps = stream.get_steps(epoch)
            assert len(steps) == stream.plan(epoch).batch_count
            indices = [stream.plan(epoch).get_batch(step - steps.start)[0] for step in steps]
            assert sum(map(len, indices)) == len(samples)
            assert stream[steps[-1]].rows == 1 and stream.locate_step(steps.start) == (epoch, 0)
        counts = {stream.plan(epoch).batch_count for epoch in range(8)}
        assert len(counts) > 1, "the case does not occur"

    def test_a_shape_of_one_side(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError):
            open_documents(corpus(tmp_path), seed=1, corruption=Halves())[0]


class TestMixing:
    def test_sources_are_read_as_weighted(self, tmp_path: Path) -> None:
        shards = corpus(tmp_path, sources=[number % 10 // 4 for number in range(150)])  # 40 %, 40 %, 20 %
        mixing = WeightedMixing(weights=(0.1, 0.2, 0.7))
        stream = open_documents(shards, seed=1, mixing=mixing)
        tokens = np.zeros(3)
        for step in range(stream.get_steps(2).stop):
            sequences, _ = stream.read_sequences(step)
            assert sequences.sources is not None
            tokens += np.bincount(sequences.sources, weights=sequences.lengths, minlength=3)
        np.testing.assert_allclose(tokens / tokens.sum(), mixing.compute_shares(tokens), atol=0.02)
        epochs = stream.mixture.count_epochs(3)
        assert epochs[2] > 5 and epochs[0] < 2

    def test_a_sample_read_twice_is_corrupted_twice(self, tmp_path: Path) -> None:
        mixing = WeightedMixing(weights=(1.0, 0.0, 0.0))
        stream = open_documents(corpus(tmp_path), seed=1, mixing=mixing, corruption=Masking())
        seen: dict[int, set[tuple[int, ...]]] = {}
        times: dict[int, int] = {}
        for step in stream.get_steps(0):
            sequences, _ = stream.read_sequences(step)
            assert sequences.samples is not None
            for sample, part in zip(
                sequences.samples.tolist(), np.split(sequences.tokens, sequences.offsets[1:-1]), strict=True
            ):
                if len(part) > 24:
                    seen.setdefault(sample, set()).add(tuple(part.tolist()))
                    times[sample] = times.get(sample, 0) + 1
        assert max(times.values()) >= 3, "this source is a third of the corpus and all of the round"
        assert all(len(seen[sample]) == times[sample] for sample in seen)


class TestCorruption:
    def test_it_does_not_depend_on_the_batch(self, tmp_path: Path) -> None:
        """Other rows per batch, another window, ranks: sample s of epoch e looks the same."""
        shards = corpus(tmp_path)

        def samples_of(rows: int, window: int, parts: int) -> dict[int, list[int]]:
            samples = Documents(limit=32).open(shards, FRAME)
            stream = BatchStream(samples, BatchShape(rows=rows, length=32), seed=9, window=window, corruption=Masking())
            found = {}
            for step in stream.get_steps(1):
                for part in range(parts):
                    cut, _ = stream.read_sequences(step, part=part, parts=parts)
                    assert cut.samples is not None
                    pieces = np.split(cut.tokens, cut.offsets[1:-1]) if len(cut) else []
                    found |= {s: piece.tolist() for s, piece in zip(cut.samples.tolist(), pieces, strict=True)}
            return found

        assert samples_of(8, 1000, 1) == samples_of(4, 37, 2) == samples_of(1, 1, 1)

    def test_epochs_differ(self, tmp_path: Path) -> None:
        stream = open_documents(corpus(tmp_path), seed=9, corruption=Masking())
        masked = []
        for epoch in range(2):
            found: list[int] = []
            for step in stream.get_steps(epoch):
                batch = stream[step]
                assert batch.targets is not None
                found += batch.targets.labels.tolist()
            masked.append(sorted(found))
        assert masked[0] != masked[1]
        for found in masked:
            tokens = len(stream.samples.shards)
            assert abs(len(found) / tokens - 0.3) < 3 * (0.3 * 0.7 / tokens) ** 0.5


def test_the_cache_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    shards = corpus(tmp_path / "data")
    plain = open_documents(shards, seed=9)
    first = open_documents(shards, seed=9, cache=tmp_path / "cache")
    expected = [plain[step] for step in range(plain.get_steps(1).stop)]
    assert all(same(first[step], batch) for step, batch in enumerate(expected))
    assert len(list((tmp_path / "cache").iterdir())) == 2
    monkeypatch.delattr("pretune.data.plan.pack")
    second = open_documents(shards, seed=9, cache=tmp_path / "cache")
    assert all(same(second[step], batch) for step, batch in enumerate(expected))


def test_no_samples() -> None:
    with opened([[], []]) as shards, pytest.raises(DataError, match="'train'"):
        open_documents(shards, seed=0)


def test_samples_longer_than_a_row(tmp_path: Path) -> None:
    samples = Documents(limit=64).open(corpus(tmp_path), FRAME)
    with pytest.raises(UsageError, match=r"\b64\b.*\b32\b"):
        BatchStream(samples, BatchShape(rows=8, length=32), seed=0)[0]


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_tables_are_made_anew_where_they_travel(seed: int, window: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        shards = Shards.open(write(Path(name), [[3, 4, 5]] * 30))
        stream = BatchStream(
            Sentences(limit=9).open(shards, FRAME), BatchShape(rows=2, length=18), seed=seed, window=window
        )
        stream[5]
        again = pickle.loads(pickle.dumps(stream))
        assert same(again[5], stream[5])


def test_the_example_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "data.md").read_text()
    code, output = re.findall(r"```(?:python)?\n(.*?)```", text, re.DOTALL)[:2]
    monkeypatch.chdir(tmp_path)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(code, {})
    assert shown.getvalue() == output
