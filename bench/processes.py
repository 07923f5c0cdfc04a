"""Processes of a benchmark that compile at the same time, and are then measured one at a time, alone on the device."""

import multiprocessing as mp
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

Row = dict[str, Any]

READY_MEMORY = 6.0
"""GB of a process that waits to be measured: weights and optimizers."""


class Workload(Protocol):
    """What a process measures."""

    @property
    def name(self) -> str:
        """Name for messages."""

    @property
    def memory(self) -> float:
        """GB while it compiles."""


class Worker(Protocol):
    """Compiles and measures one workload."""

    def compile(self) -> None:
        """Build everything and run the first steps."""

    def measure(self) -> Row:
        """Return the result."""

    def free_memory(self) -> None:
        """Return cached memory to the device."""


def serve(build: Callable[[], Worker], name: str, pipe: Connection) -> None:
    """Serve a workload in its own process: wait, compile, answer, wait, measure, answer with the row or the error."""
    import torch

    worker: Worker | None = None
    try:
        pipe.recv()
        try:
            worker = build()
            worker.compile()
        except torch.OutOfMemoryError:
            print(f"  {name}: out of memory; compiles when it has the device for itself", flush=True)
        if worker is not None:  # NOTE: outside the handler, whose traceback holds the activations
            worker.free_memory()
        pipe.send(None)
        pipe.recv()
        worker = worker or build()
        pipe.send(worker.measure())
    except Exception as error:
        traceback.print_exc(limit=-6)
        pipe.send({"work": name, "error": f"{type(error).__name__}: {str(error)[:300]}"})


def measure_alone(
    builders: Sequence[tuple[Workload, Callable[[], Worker]]],
    *,
    memory: float,
    compile_seconds: float,
    row_seconds: float,
) -> Iterator[Row]:
    """Compile all workloads, as many at a time as fit into `memory` GB, then measure one after the other.

    Yields rows in this order, errors first; a workload that takes too long is left out, with an error.
    """
    context, start = mp.get_context("spawn"), time.perf_counter()
    works = [work for work, _ in builders]
    pipes: dict[str, Any] = {}
    processes: dict[str, Any] = {}
    for work, build in builders:
        pipes[work.name], other = context.Pipe()
        processes[work.name] = context.Process(target=serve, args=(build, work.name, other))
        processes[work.name].start()
        other.close()
    waiting, busy, ready = list(works), list[Workload](), list[Workload]()
    while (waiting or busy) and time.perf_counter() - start < compile_seconds:
        for work in list(waiting):
            used = sum(other.memory for other in busy) + READY_MEMORY * len(ready)
            if not busy or used + work.memory <= memory:
                pipes[work.name].send(None)
                waiting.remove(work)
                busy.append(work)
        answers = wait([pipes[work.name] for work in busy], timeout=1)
        for work in [work for work in busy if pipes[work.name] in answers]:
            busy.remove(work)
            row = _receive(pipes[work.name], work)
            if row is not None:
                yield row
                continue
            ready.append(work)
            print(f"  {work.name}: compiled after {time.perf_counter() - start:.0f} s", flush=True)
    for work in busy + waiting:
        processes[work.name].kill()
        yield {"work": work.name, "error": f"not compiled within {compile_seconds:.0f} s"}
    for work in sorted(ready, key=works.index):
        pipes[work.name].send(None)
        in_time = pipes[work.name].poll(row_seconds)
        row = _receive(pipes[work.name], work) if in_time else None
        yield row or {"work": work.name, "error": f"not measured within {row_seconds:.0f} s"}
        processes[work.name].kill()
        processes[work.name].join()


def _receive(pipe: Any, work: Workload) -> Row | None:
    """Return what a process sent; a row with an error if it died."""
    try:
        row: Row | None = pipe.recv()
        return row
    except EOFError:
        return {"work": work.name, "error": "the process died"}
