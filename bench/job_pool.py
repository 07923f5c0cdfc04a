"""Jobs that share a device: several processes, dependencies, a time limit, and results that survive an interruption.

    jobs = Jobs(work, 5, 400, priority=len)
    jobs.add("first", train, steps=10)  # calls train(str(work), "first", steps=10) in a process
    for name in jobs.run():             # has ended: in jobs.results or jobs.errors
        jobs.add(...)                   # jobs that need it

A job that fails does not stop the others. If a process dies, all running jobs are repeated once.
"""

import concurrent.futures
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

Facts = dict[str, Any]


class Jobs:
    """Jobs in a pool of processes, by priority; results are files, so that finished jobs are not repeated."""

    def __init__(self, work: Path, workers: int, seconds: float, priority: Callable[[str], Any]) -> None:
        self.work, self.workers, self.limit, self.priority = work, workers, seconds, priority
        self.folder, self.start = work / "results", time.monotonic()
        self.folder.mkdir(exist_ok=True)
        self.results: dict[str, Facts] = {}
        self.errors: dict[str, str] = {}
        self.waiting: dict[str, tuple[Any, Facts]] = {}
        self.running: dict[Any, tuple[str, tuple[Any, Facts]]] = {}
        self.repeated: set[str] = set()
        self.pool = self.build_pool()

    def build_pool(self) -> concurrent.futures.ProcessPoolExecutor:
        """Return a new pool of processes that stay for several jobs."""
        return concurrent.futures.ProcessPoolExecutor(self.workers, mp_context=multiprocessing.get_context("spawn"))

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    def add(self, name: str, function: Any, **options: Any) -> None:
        """Add a job: a function that is called with the working directory, its name and options."""
        self.waiting[name] = (function, options)

    def run(self) -> Iterator[str]:
        """Run all jobs, also those that are added meanwhile, and yield the name of each that has ended."""
        while self.waiting or self.running:
            while self.waiting and len(self.running) < self.workers:
                name = min(self.waiting, key=self.priority)
                function, options = job = self.waiting.pop(name)
                if (self.folder / f"{name}.json").exists():
                    self.results[name] = json.loads((self.folder / f"{name}.json").read_text())
                    yield name
                elif self.seconds > self.limit:
                    self.errors[name] = f"not started after {self.limit:g} s"
                    yield name
                else:
                    self.running[self.pool.submit(function, str(self.work), name, **options)] = (name, job)
            if self.running:
                wait = concurrent.futures.wait(self.running, return_when=concurrent.futures.FIRST_COMPLETED)
                for future in wait.done:
                    yield from self.finish(future)
        self.pool.shutdown()

    def finish(self, future: Any) -> Iterator[str]:
        """Store the result or the error of a job, and yield its name unless it is repeated."""
        if future not in self.running:
            return
        name, job = self.running.pop(future)
        try:
            self.results[name] = future.result()
            (self.folder / f"{name}.json").write_text(json.dumps(self.results[name]))
            yield name
        except BrokenProcessPool as error:  # a process died, and with it the jobs of all others
            jobs = {name: job, **dict(self.running.values())}
            self.running.clear()
            self.pool = self.build_pool()
            for name in jobs:
                if name in self.repeated:
                    self.errors[name] = repr(error)
                    yield name
                else:
                    self.waiting[name] = jobs[name]
                    self.repeated.add(name)
        except Exception as error:
            self.errors[name] = f"{type(error).__name__}: {error}"[:300]
            yield name
