"""Feeding the loop: the same batches for any number of workers, in any parts, and faults told in their turn."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pretune as pt
from pretune.core.errors import DataError, ResourceError, UsageError
from pretune.core.types import Batch, Targets
from pretune.data.stream import BatchStream
from pretune.training import batch_transfer
from pretune.training.batch_transfer import BatchStats, PackedBatches
from pretune.training.dataloader import DataLoader
from tests.data.corpora import Masking
from tests.selection import keep_quick
from tests.training.counting import Counting
from tests.training.streams import Halves, stream


def same(one: Any, other: Any) -> bool:
    """Return True if two batches are equal in all parts, dtypes included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Batch | Targets):
        return all(same(getattr(one, part.name), getattr(other, part.name)) for part in fields(one))
    return bool(one == other)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def alive() -> list[object]:
    return list(multiprocessing.active_children())


def read(batches: list[Batch]) -> list[list[int]]:
    """Step, part and parts of counted batches."""
    return [batch.tokens[:3].tolist() for batch in batches]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data") / "shards"


class StagedStream:
    """Five steps of eight short rows, then steps of four long rows."""

    def __init__(self, short: BatchStream, long: BatchStream) -> None:
        self.short, self.long = short, long

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        stage, first = (self.short, 0) if step < 5 else (self.long, 5)
        return stage.batch(step - first, part=part, parts=parts)


@pytest.fixture(scope="module")
def staged(data: Path) -> StagedStream:
    """Two stages of different shapes, then a lesson with two sides is tested apart."""
    return StagedStream(stream(data, Masking(), rows=8, length=32), stream(data, Masking(), rows=4, length=64))


class TestPacked:
    @pytest.mark.parametrize("lesson", [Masking(), Halves()], ids=["masking", "halves"])
    def test_what_is_packed_comes_back(self, data: Path, lesson: Any) -> None:
        made = [stream(data, lesson).batch(3, part=part, parts=4) for part in range(4)]
        packed = PackedBatches.from_batches(made)
        memory = torch.full((packed.layout.size + 9,), 255, dtype=torch.uint8)
        packed.write(memory)
        repeat = packed.layout.read(memory)
        assert same(repeat, made)
        assert all(part.data_ptr() % 64 == memory.data_ptr() % 64 for b in repeat for part in (b.tokens, b.offsets))
        assert repeat[0].tokens.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()  # nothing is copied

    def test_the_form_of_static_shapes_is_always_the_same(self, data: Path) -> None:
        steps = stream(data, Halves())
        assert PackedBatches.from_batches([steps[0]]).layout.size == PackedBatches.from_batches([steps[1]]).layout.size


@pytest.mark.parametrize("lesson", [Masking(), Halves()], ids=["masking", "halves"])
def test_the_tally_counts_what_is_useful(data: Path, lesson: Any) -> None:
    batches = [stream(data, lesson).batch(2, part=part, parts=2) for part in range(2)]
    n = [end - start for batch in batches for start, end in batch.list_spans()]
    m = [end - start for batch in batches if batch.source for start, end in batch.source.list_spans()]
    assert BatchStats.from_batches(batches) == BatchStats(
        sequences=len(n),
        tokens=sum(n),
        squares=sum(item * item for item in n),
        targets=sum(int((batch.targets.labels != -100).sum()) for batch in batches if batch.targets),
        source=sum(m),
        source_squares=sum(item * item for item in m),
        products=sum(item * other for item, other in zip(m, n, strict=True)) if m else 0,
    )
    assert BatchStats.from_batches(batches).total_tokens == sum(n) + sum(m)


class TestWorkers:
    """Several claims in one test, because starting a process is slow."""

    @pytest.mark.parametrize("workers", keep_quick([0, 1, 3], 0, 3))
    def test_all_numbers_of_workers_give_the_same(self, staged: StagedStream, data: Path, workers: int) -> None:
        with DataLoader(staged, start=2, micro=2, rank=1, world=2, workers=workers, prefetch_factor=2) as feed:
            for step, batches in enumerate(islice(feed, 12), 2):  # over the stages' end: memory grows, forms change
                reference = [staged.batch(step, part=part, parts=4) for part in (2, 3)]
                assert same(batches, reference)
                assert feed.stats == BatchStats.from_batches(reference)
            assert feed.step == 14
            remaining = batches
        assert same(remaining, reference)  # what was given stays good
        assert 0 < feed.wait_seconds < 60
        assert alive() == []

    def test_workers_work_ahead_in_turn_with_one_thread_each(self, tmp_path: Path) -> None:
        with DataLoader(Counting(log=tmp_path), workers=2, prefetch_factor=3) as feed:
            first = next(feed)[0]
            wait_until(lambda: {path.name for path in tmp_path.iterdir()} == set("0123456"))  # nobody asked for 1 to 6
            rest = [next(feed)[0] for _ in range(5)]
            pids = [batch.tokens[3].item() for batch in (first, *rest)]
            assert pids[:2] * 3 == pids and len({*pids, os.getpid()}) == 3
            assert [batch.tokens[4].item() for batch in rest] == [1] * 5

    @pytest.mark.parametrize("workers", [0, 2])
    def test_splitting_gives_the_step_again(self, workers: int) -> None:
        with DataLoader(Counting(slow=0.01), start=4, stop=13, workers=workers) as feed:
            feed.split(2)  # before anything was given
            assert read(next(feed)) == [[4, 0, 2], [4, 1, 2]]
            assert read(next(feed)) == [[5, 0, 2], [5, 1, 2]]
            feed.split(4)
            feed.split(3)
            assert read(next(feed)) == [[5, part, 3] for part in range(3)]
            feed.split(1)
            assert [read(batches)[0] for batches in feed] == [[step, 0, 1] for step in range(5, 13)]
            with pytest.raises(StopIteration):
                next(feed)
            feed.split(2)
            assert read(next(feed)) == [[12, 0, 2], [12, 1, 2]]

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_fault_is_told_when_its_turn_comes(self, workers: int) -> None:
        feed = DataLoader(Counting(broken={3: "unfit", 4: "bug", 2: "none"}), workers=workers)
        assert [read(next(feed)) for _ in range(3)] == [[[step, 0, 1]] for step in range(3)]
        with pytest.raises(DataError, match=r"^step 3 "):
            next(feed)
        if workers:
            assert alive() == []
            with pytest.raises(UsageError):
                next(feed)

    def test_faults_that_are_not_ours(self) -> None:
        with pytest.raises(ResourceError, match=r"memory.*train\.workers"):
            next(DataLoader(Counting(broken={0: "memory"}), workers=1))
        with pytest.raises(RuntimeError, match="KeyError: 'x'"):
            next(DataLoader(Counting(broken={0: "bug"}), workers=1))
        with pytest.raises(ResourceError, match=r"\b7\b.*train\.workers"):
            next(DataLoader(Counting(broken={0: "exit"}), workers=1))
        assert alive() == []

    def test_closing_ends_a_worker_that_hangs(self) -> None:
        feed = DataLoader(Counting(broken={1: "hang"}), workers=1)
        next(feed)
        feed.close()  # the worker would hang for 1,000 seconds
        assert alive() == []

    def test_a_feed_that_is_forgotten_ends_its_workers(self) -> None:
        feed = DataLoader(Counting(), workers=1)
        next(feed)
        assert len(alive()) == 1
        del feed
        assert alive() == []


class Local:
    def __init__(self) -> None:
        self.held = (number for number in range(3))

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        raise AssertionError


def test_what_cannot_be_sent_is_told() -> None:
    with pytest.raises(UsageError, match=r"\bLocal\b.*train\.workers=0"):
        DataLoader(Local(), workers=1)
    assert alive() == []


@pytest.mark.parametrize("wrong", [{"workers": -1}, {"micro": 0}, {"rank": 2, "world": 2}, {"prefetch_factor": 0}])
def test_numbers_out_of_range(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        DataLoader(Counting(), **wrong)  # type: ignore[arg-type]


def _in_a_daemon(pipe: Any) -> None:
    pipe.send(read(next(DataLoader(Counting(), workers=2))))


def test_a_daemon_feeds_itself() -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_in_a_daemon, args=(theirs,), daemon=True)
    process.start()
    assert ours.poll(10) and ours.recv() == [[0, 0, 1]]
    process.join(10)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_step_sent_early_is_the_same(staged: StagedStream, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a GPU: a thread has the next step on its way while this one is used; splitting and ending wait for it."""
    monkeypatch.setattr(batch_transfer.DevicePrefetcher, "is_async", True)
    with DataLoader(staged, micro=2, workers=workers, stop=9) as feed:
        for step in range(5):
            assert same(next(feed), [staged.batch(step, part=part, parts=2) for part in range(2)])
        feed.split(4)
        for step in range(4, 9):
            assert same(next(feed), [staged.batch(step, part=part, parts=4) for part in range(4)])
        with pytest.raises(StopIteration):
            next(feed)
    with DataLoader(staged, workers=min(workers, 1)) as feed:
        next(feed)  # one more is on its way when it is closed
    with pytest.raises(UsageError):
        next(feed)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pretune-data")]


class Ends:
    """A source that breaks at its second step."""

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        if step:
            raise DataError(f"step {step} is damaged")
        return pt.batch([[1, 2]])


def test_what_breaks_early_is_told_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_transfer.DevicePrefetcher, "is_async", True)
    with DataLoader(Ends()) as feed:
        next(feed)
        with pytest.raises(DataError, match=r"^step 1 "):
            next(feed)
    with DataLoader(Ends()) as feed:
        next(feed)  # and not when nobody asks


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_a_gpu_gets_the_same(staged: StagedStream, workers: int) -> None:
    with DataLoader(staged, micro=2, workers=workers, device="cuda") as feed:
        remaining: list[list[Batch]] = []
        for _ in range(40):  # memory is used again and again while the stream is busy
            remaining = [*remaining[-3:], next(feed)]
            torch.randn(2000, 2000, device="cuda").matmul(torch.randn(2000, 2000, device="cuda"))
        assert remaining[-1][0].tokens.device.type == "cuda"
        for step, batches in enumerate(remaining, 36):
            reference = [staged.batch(step, part=part, parts=2) for part in range(2)]
            assert same([batch.to("cpu") for batch in batches], reference)
        feed.split(4)
        assert same([b.to("cpu") for b in next(feed)], [staged.batch(39, part=part, parts=4) for part in range(4)])


@pytest.mark.gpu
def test_what_a_thread_sends_stays_out_of_recordings(staged: StagedStream) -> None:
    batch = staged.batch(0, part=0, parts=1)
    with ThreadPoolExecutor(1) as hand:
        for _ in range(70):  # more than torch has streams: one of them is what passes are recorded on
            by = batch_transfer.DevicePrefetcher(torch.device("cuda"))
            with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
                torch.ones(1, device="cuda").add_(1)
                load = hand.submit(by.send, [batch]).result()
            assert same([item.to("cpu") for item in load.result()], [batch])
