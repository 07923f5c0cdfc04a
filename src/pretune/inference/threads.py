"""Whole batches in threads, for inference on a CPU.

Threads that share a batch wait for each other after every operation, and more so the smaller the batch. Where there are
several batches, each thread computes its own instead: on two cores a sixth less time for texts of 20 words.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

import torch

CPU_BATCH_TOKENS = 1024
"""Tokens of a batch that one thread computes: enough to keep it busy, small enough for its caches."""
T = TypeVar("T")
Result = TypeVar("Result")


def map_batches(
    function: Callable[[T], Result], batches: Iterable[T], *, tokens: int, device: torch.device
) -> Iterator[Result]:
    """Yield `function(batch)` for batches of about `tokens` tokens: in threads on a CPU, unless batches are large.

    Large batches are computed one at a time by all threads, since every one at work takes memory.
    """
    if device.type == "cpu" and tokens <= CPU_BATCH_TOKENS:
        return map_in_threads(function, batches)
    return map(function, batches)


def map_in_threads(function: Callable[[T], Result], items: Iterable[T]) -> Iterator[Result]:
    """Yield `function(item)` for each item, in their order, with the threads that torch has in the caller.

    Items are computed at the same time, each by an equal part of the threads. The function must not change anything
    that another call reads. The modes of the caller (gradients, inference, autocast) hold for all calls.
    """
    threads, items = torch.get_num_threads(), iter(items)
    first_items = list(islice(items, threads))
    workers = len(first_items)
    if workers <= 1:
        yield from map(function, chain(first_items, items))
        return
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    autocast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def call(item: T) -> Result:
        with (
            torch.inference_mode(inference),
            torch.set_grad_enabled(grad and not inference),
            torch.autocast("cpu", dtype, enabled=autocast),
        ):
            return function(item)

    # NOTE: the number of threads is one of the calling thread; but it is also the default of threads that start later.
    pool = ThreadPoolExecutor(workers, "batches", torch.set_num_threads, (threads // workers,))
    pending: deque[Future[Result]] = deque()
    try:
        for item in chain(first_items, items):
            pending.append(pool.submit(call, item))
            if len(pending) > 2 * workers:  # results that nobody has read yet take memory
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
