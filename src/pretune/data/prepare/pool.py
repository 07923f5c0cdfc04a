"""Process pool with ordered results, bounded memory and no orphaned processes.

    with closing(map_ordered(tasks, setup, workers=4)) as results:
        for result in results: ...

Every worker has a separate pipe and one task at a time. If either process is killed, the other one detects the closed
pipe. An exception in a task is raised in the parent in task order: the same one for any number of workers.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from pretune.core.errors import PretuneError, RemoteError, ResourceError

_MEMORY_HINT = "out of memory; use fewer workers, or a larger machine"

T = TypeVar("T", contravariant=True)
R = TypeVar("R", covariant=True)

_MAX_PENDING = 4  # maximum number of unfinished or unread tasks per worker
_EXIT_TIMEOUT = 5.0  # seconds to wait for a worker to exit before it is killed
_PARALLELISM_VARIABLE = "TOKENIZERS_PARALLELISM"


class WorkerSetup(Protocol[T, R]):
    """Setup of a worker; pickled, sent to the worker process and started there once."""

    def start(self) -> Callable[[T], R]:
        """Load the resources, and return the function that runs one task."""


def map_ordered(
    tasks: Iterable[T],
    setup: WorkerSetup[T, R],
    workers: int,
    *,
    label: Callable[[T], str] = str,
    method: str | None = None,
) -> Generator[R, None, None]:
    """Yield the result of every task, in order. Close the iterator to stop the workers.

    Args:
        tasks: Tasks; must be picklable.
        setup: Setup of each worker.
        workers: Number of processes; 0 runs the tasks in this process.
        label: Returns the name of a task for error messages.
        method: Start method of `multiprocessing`; None for its default.

    Raises:
        ResourceError: A worker process died.
    """
    if workers == 0 or multiprocessing.current_process().daemon:  # a daemonic process cannot have children
        yield from map(setup.start(), tasks)
        return
    with _WorkerPool(setup, workers, label, method) as pool:
        yield from pool.run(tasks)


class _WorkerPool(Generic[T, R]):
    """Worker processes, started on demand and stopped on exit."""

    def __init__(self, setup: WorkerSetup[T, R], count: int, label: Callable[[T], str], method: str | None) -> None:
        self._setup, self._count, self._label = setup, count, label
        self._context: Any = multiprocessing.get_context(method)
        self._processes: dict[Connection, BaseProcess] = {}
        self._running: dict[Connection, tuple[int, T]] = {}

    def __enter__(self) -> "_WorkerPool[T, R]":
        return self

    def __exit__(self, *reason: object) -> None:
        """Stop all processes: close the pipes of idle workers, kill busy ones."""
        for connection, process in self._processes.items():
            if connection in self._running:
                process.kill()
            connection.close()
        for process in self._processes.values():
            process.join(_EXIT_TIMEOUT)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()

    def run(self, tasks: Iterable[T]) -> Iterator[R]:
        """Yield the results in the order of `tasks`."""
        coming = _iter_tasks(tasks)
        task = next(coming, None)
        results: dict[int, R | RemoteError] = {}
        send_count = yield_count = 0
        while True:
            while task is not None and send_count - yield_count < self._count * _MAX_PENDING:
                if isinstance(task, RemoteError):
                    results[send_count] = task
                elif not self._send(send_count, task):
                    break
                send_count += 1
                task = next(coming, None)  # read ahead while the workers are busy
            if yield_count in results:
                result = results.pop(yield_count)
                if isinstance(result, RemoteError):
                    result.throw()
                yield result
                yield_count += 1
            elif self._running:
                self._receive(results)
            elif task is None:
                return

    def _send(self, number: int, task: T) -> bool:
        """Send a task to an idle worker, started if necessary; return False if all workers are busy."""
        idle = next((connection for connection in self._processes if connection not in self._running), None)
        if idle is None:
            if len(self._processes) == self._count:
                return False
            idle = self._start()
        self._running[idle] = (number, task)
        try:
            idle.send((number, task))
        except (BrokenPipeError, ConnectionResetError):
            self._raise_worker_death(idle)
        return True

    def _receive(self, results: dict[int, Any]) -> None:
        """Wait for results, and store all that are available."""
        for ready in wait(list(self._running)):
            assert isinstance(ready, Connection)
            try:
                number, result = ready.recv()
            except (EOFError, ConnectionResetError):
                self._raise_worker_death(ready)
            results[number] = result
            del self._running[ready]

    def _start(self) -> Connection:
        ours: Connection
        ours, theirs = self._context.Pipe()
        is_fork = self._context.get_start_method() == "fork"
        # A forked process inherits copies of these connections and must close them.
        inherited_connections = (*self._processes, ours) if is_fork else ()
        process = self._context.Process(
            target=_serve_tasks, args=(theirs, self._setup, inherited_connections), daemon=True
        )
        with _block_interrupts():
            process.start()
        theirs.close()
        self._processes[ours] = process
        return ours

    def _raise_worker_death(self, connection: Connection) -> NoReturn:
        """Raise a ResourceError with the cause of death of a worker."""
        process, (_, task) = self._processes[connection], self._running[connection]
        process.join(_EXIT_TIMEOUT)
        code = process.exitcode
        reason = f"exit code {code}"
        if code is not None and code < 0:
            reason = f"signal {signal.Signals(-code).name}{', possibly out of memory' if code == -9 else ''}"
        hint = "use fewer workers"
        if code == 1 and self._context.get_start_method() != "fork":  # it failed to import the main script
            hint = "put the call under `if __name__ == '__main__':`, or use workers=0"
        raise ResourceError(f"a worker process died ({reason}) while processing {self._label(task)}; {hint}")


def _iter_tasks(tasks: Iterable[T]) -> Iterator[T | RemoteError]:
    """Yield the tasks; a PretuneError raised by the iterable is yielded in its place and ends the iteration."""
    try:
        yield from tasks
    except PretuneError as error:
        yield RemoteError.from_exception(error, memory_message=_MEMORY_HINT)


def _serve_tasks(
    connection: Connection, setup: WorkerSetup[Any, Any], inherited_connections: Iterable[Connection]
) -> None:
    """Run tasks and send results until the pipe is closed."""
    for inherited_connection in inherited_connections:
        inherited_connection.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of the terminal; the parent handles it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ[_PARALLELISM_VARIABLE] = "false"
    work: Callable[[Any], Any] | None = None
    while True:
        try:
            number, task = connection.recv()
        except (EOFError, OSError):
            return
        try:
            work = work or setup.start()
            result = work(task)
        except Exception as error:
            result = RemoteError.from_exception(error, memory_message=_MEMORY_HINT)
        try:
            connection.send((number, result))
        except OSError:
            return


@contextlib.contextmanager
def _block_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C and silence the fork warning of `tokenizers` while a process starts."""
    old_value = os.environ.get(_PARALLELISM_VARIABLE)
    main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    os.environ[_PARALLELISM_VARIABLE] = "false"
    try:
        yield
    finally:
        if old_value is None:
            del os.environ[_PARALLELISM_VARIABLE]
        else:
            os.environ[_PARALLELISM_VARIABLE] = old_value
        if main and handler is not None:  # None: the handler was not installed from Python
            signal.signal(signal.SIGINT, handler)
