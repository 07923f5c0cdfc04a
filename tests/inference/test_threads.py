"""Whole batches in threads: in order, with the modes of the caller, and without a trace."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from pretune.inference.text_model import CPU_BATCH_TOKENS, map_batches, map_in_threads


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    old_count = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield torch.get_num_threads()  # a BLAS may start fewer
    torch.set_num_threads(old_count)


def test_results_are_in_order(threads: int) -> None:
    def work(number: int) -> int:
        time.sleep(0.002 * (5 - number % 5))
        return number * number

    assert [*map_in_threads(work, range(20))] == [number * number for number in range(20)]
    assert [*map_in_threads(work, iter(range(20)))] == [number * number for number in range(20)]
    assert [*map_in_threads(work, [])] == [*map_in_threads(work, iter(()))] == []
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("mode", [torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)])
def test_modes_are_those_of_the_caller(threads: int, mode: torch.no_grad) -> None:
    def describe(_: object = None) -> tuple[object, ...]:
        x = torch.ones(2, 2, requires_grad=not torch.is_inference_mode_enabled())
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), (x @ x).dtype, (x @ x).requires_grad

    with mode:
        assert {*map_in_threads(describe, range(4))} == {describe()}
    assert {*map_in_threads(describe, range(4))} == {describe()}


def test_threads_are_shared_among_few_items(threads: int) -> None:
    counts = [*map_in_threads(lambda _: torch.get_num_threads(), range(2))]
    assert counts == [max(1, threads // 2)] * 2 and torch.get_num_threads() == threads
    assert [*map_in_threads(lambda _: torch.get_num_threads(), range(1))] == [threads]


def test_an_error_ends_all_threads(threads: int) -> None:
    def work(number: int) -> int:
        if number == 3:
            raise ValueError("third")
        return number

    before = threading.active_count()
    with pytest.raises(ValueError, match="third"):
        list(map_in_threads(work, range(50)))
    assert torch.get_num_threads() == threads and threading.active_count() == before


def test_results_are_not_computed_far_ahead(threads: int) -> None:
    done: list[int] = []
    results = map_in_threads(lambda number: done.append(number) or number, range(100))
    assert next(results) == 0
    time.sleep(0.05)
    assert len(done) <= 2 * threads + 1
    results.close()  # type: ignore[attr-defined]
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(("tokens", "is_shared"), [(CPU_BATCH_TOKENS, True), (CPU_BATCH_TOKENS + 1, False)])
def test_large_batches_are_computed_one_at_a_time(threads: int, tokens: int, is_shared: bool) -> None:
    def work(_: int) -> str:
        return threading.current_thread().name

    names = {*map_batches(work, range(8), tokens=tokens, device=torch.device("cpu"))}
    assert (names == {threading.current_thread().name}) == (threads == 1 or not is_shared)
