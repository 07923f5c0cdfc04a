"""The plan: every draw in one row of one batch, whoever asks for it, and the same for ever."""

import hashlib
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import UsageError
from pretune.core.seed import mix_array
from pretune.data import plan as planning
from pretune.data.plan import BatchShape, LengthSchedule, PackingPlan, Phase, build_plan
from pretune.data.sequences import Ints

lengths = st.lists(st.integers(1, 16), min_size=1, max_size=80).map(lambda found: np.array(found, dtype=np.int64))
shapes = st.builds(BatchShape, rows=st.sampled_from([1, 2, 4, 8]), length=st.integers(16, 24))
windows = st.integers(1, 100)


def whole(plan: PackingPlan, parts: int = 1) -> list[list[tuple[int, int]]]:
    """Every batch as (draw, row), put together from its parts."""
    size = plan.rows // parts
    found = []
    for step in range(plan.batch_count):
        batch = []
        for part in range(parts):
            which, row = plan.get_batch(step, part, parts)
            batch += [(draw, part * size + number) for draw, number in zip(which.tolist(), row.tolist(), strict=True)]
        found.append(batch)
    return found


@given(lengths, shapes, windows, st.integers(0, 2**64 - 1), st.integers(0, 5))
def test_every_draw_is_in_one_row_of_one_batch(
    given: Ints, shape: BatchShape, window: int, seed: int, epoch: int
) -> None:
    plan = build_plan(given, shape, seed=seed, epoch=epoch, window=window)
    batches = whole(plan)
    assert sorted(draw for batch in batches for draw, _ in batch) == list(range(len(given)))
    for number, batch in enumerate(batches):
        used = np.zeros(shape.rows)
        rows = [row for _, row in batch]
        assert rows == sorted(rows)
        for draw, row in batch:
            used[row] += given[draw]
        assert (used <= shape.length).all()
        assert number == len(batches) - 1 or (used > 0).all(), "only the last batch may have empty rows"
    assert plan.fill == pytest.approx(given.sum() / ((len(plan.starts) - 1) * shape.length))


@given(lengths, windows, st.integers(0, 9), st.sampled_from([1, 2, 4, 8]))
def test_ranks_share_the_rows_of_a_batch(given: Ints, window: int, seed: int, parts: int) -> None:
    plan = build_plan(given, BatchShape(rows=8, length=16), seed=seed, epoch=0, window=window)
    assert whole(plan, parts) == whole(plan)


@given(lengths, lengths, windows)
def test_windows_do_not_know_each_other(given: Ints, after: Ints, window: int) -> None:
    """What comes later changes nothing of what comes before."""
    whole_windows = given[: len(given) // window * window]
    if not len(whole_windows):
        return
    shape = BatchShape(rows=1, length=16)
    one = build_plan(whole_windows, shape, seed=0, epoch=0, window=window)
    two = build_plan(np.concatenate((whole_windows, after)), shape, seed=0, epoch=0, window=window)
    rows = len(one.starts)
    assert two.starts[:rows].tolist() == one.starts.tolist()
    assert two.order[: len(whole_windows)].tolist() == one.order.tolist()


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(1, 9)), min_size=1, max_size=50), windows)
def test_both_sides(given: list[tuple[int, int]], window: int) -> None:
    own, source = (np.array(side) for side in zip(*given, strict=True))
    plan = build_plan(own, BatchShape(rows=2, length=16, source=9), seed=0, epoch=0, source=source, window=window)
    for start, end in zip(plan.starts[:-1], plan.starts[1:], strict=True):
        assert own[plan.order[start:end]].sum() <= 16 and source[plan.order[start:end]].sum() <= 9
    assert plan.source_fill is not None and 0 < plan.source_fill <= 1


def drawn() -> Ints:
    """Lengths from 1 to 128, mostly short, from our own hash: numpy's draws may change with its release."""
    key = mix_array((0,), np.arange(5000))
    return (1 + (key % np.uint64(128)) * (key // np.uint64(128) % np.uint64(128)) // np.uint64(128)).astype(np.int64)


def test_long_and_short_rows_are_mixed() -> None:
    """Best fit puts the long first; the plan must not, or training would see the lengths in order."""
    plan = build_plan(drawn(), BatchShape(rows=16, length=128), seed=0, epoch=0)
    longest = [drawn()[plan.get_batch(step)[0]].max() for step in range(plan.batch_count - 1)]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.4


def test_fill() -> None:
    assert build_plan(drawn(), BatchShape(rows=16, length=128), seed=0, epoch=0).fill > 0.99


def test_seed_and_epoch_matter() -> None:
    shape = BatchShape(rows=4, length=128)
    orders = [
        build_plan(drawn(), shape, seed=seed, epoch=epoch).order.tolist()
        for seed, epoch in [(0, 0), (0, 0), (1, 0), (0, 1)]
    ]
    assert orders[0] == orders[1] and orders[0] != orders[2] and orders[0] != orders[3]


def test_the_plan_is_pinned() -> None:
    """Runs are repeated from their seeds alone: a change here breaks every run that was ever made."""
    plan = build_plan(drawn(), BatchShape(rows=4, length=128, sequences=20), seed=1, epoch=2, window=1000)
    digest = hashlib.sha256(plan.order.tobytes() + plan.starts.tobytes()).hexdigest()
    assert digest[:16] == "8d45f63978f54b82"


@pytest.mark.parametrize("arguments", [(-1,), (99,), (0, 2, 2), (0, -1, 2), (0, 0, 3)])
def test_no_such_batch(arguments: tuple[int, ...]) -> None:
    plan = build_plan(np.full(40, 8), BatchShape(rows=4, length=16), seed=0, epoch=0)
    with pytest.raises(UsageError):
        plan.get_batch(*arguments)


def test_sides_must_agree() -> None:
    with pytest.raises(UsageError):
        build_plan(np.full(4, 8), BatchShape(rows=4, length=16, source=8), seed=0, epoch=0)
    with pytest.raises(UsageError):
        build_plan(np.full(4, 8), BatchShape(rows=4, length=16), seed=0, epoch=0, source=np.full(4, 8))


class TestCache:
    """A cached plan is the plan; whatever happened to it, the answer is the same."""

    shape = BatchShape(rows=4, length=128)

    def make(self, cache: Path | None, **changes: Any) -> PackingPlan:
        given: dict[str, Any] = {"seed": 0, "epoch": 0, "window": 1000, **changes}
        return build_plan(given.pop("lengths", drawn()), given.pop("shape", self.shape), cache=cache, **given)

    @staticmethod
    def same(one: PackingPlan, other: PackingPlan) -> bool:
        return one.order.tolist() == other.order.tolist() and one.starts.tolist() == other.starts.tolist()

    def test_it_is_made_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = self.make(tmp_path)
        assert self.same(first, self.make(None)) and first.fill == self.make(None).fill
        monkeypatch.delattr(planning, "pack")
        assert self.same(self.make(tmp_path), first)
        assert len(list(tmp_path.iterdir())) == 1

    def test_it_is_of_these_inputs(self, tmp_path: Path) -> None:
        other = drawn()
        other[7] += 1 if other[7] < 128 else -1
        changes: list[dict[str, Any]] = [
            {},
            {"seed": 1},
            {"epoch": 1},
            {"window": 999},
            {"lengths": other},
            {"shape": BatchShape(rows=8, length=128)},
            {"shape": BatchShape(rows=4, length=129)},
            {"shape": BatchShape(rows=4, length=128, sequences=9)},
            {"shape": BatchShape(rows=4, length=128, source=128), "source": drawn()},
        ]
        for change in changes:
            assert self.same(self.make(tmp_path, **change), self.make(None, **change))
        assert len(list(tmp_path.iterdir())) == len(changes)

    @pytest.mark.parametrize("name", ["order.npy", "starts.npy", "plan.json"])
    @pytest.mark.parametrize("damage", ["cut", "gone", "text"])
    def test_damage_costs_time_only(self, tmp_path: Path, name: str, damage: str) -> None:
        self.make(tmp_path)
        file = next(tmp_path.iterdir()) / name
        content = file.read_bytes()
        file.unlink()
        if damage != "gone":
            file.write_bytes(content[:-8] if damage == "cut" else b"hello")
        assert self.same(self.make(tmp_path), self.make(None))
        assert file.read_bytes() == content, "and it is repaired"

    def test_someone_else_was_faster(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = planning._pack_plan

        def late(*given: Any) -> PackingPlan:
            monkeypatch.setattr(planning, "_pack_plan", real)
            self.make(tmp_path)  # another process, while we work
            return real(*given)

        monkeypatch.setattr(planning, "_pack_plan", late)
        assert self.same(self.make(tmp_path), self.make(None))
        assert len(list(tmp_path.iterdir())) == 1

    def test_the_folder_is_made(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            cache = Path(name) / "deep" / "cache"
            assert self.same(self.make(cache), self.make(None))
            shutil.rmtree(cache)
            assert self.same(self.make(cache), self.make(None))


@given(st.integers(1, 10**6), st.lists(st.integers(1, 9), min_size=1))
def test_phases_follow_each_other(steps: int, parts: list[int]) -> None:
    total = sum(parts)
    counts = LengthSchedule(phases=tuple(Phase(share=part / total, length=64) for part in parts)).divide(steps)
    assert sum(counts) == steps and min(counts) >= 0
    for last, done in zip(itertools.accumulate(counts), itertools.accumulate(parts), strict=True):
        assert abs(last - steps * done / total) <= 0.5 + 1e-6


def test_what_cannot_be() -> None:
    with pytest.raises(UsageError, match=r"0\.9"):
        LengthSchedule(phases=(Phase(share=0.9, length=128),))
    with pytest.raises(UsageError, match=r"\b0\b"):
        LengthSchedule(phases=())
    for share, length, field in ((0, 128, "share"), (1.5, 128, "share"), (0.5, 0, "length")):
        with pytest.raises(UsageError, match=rf"^Phase\.{field} "):
            Phase(share=share, length=length)
