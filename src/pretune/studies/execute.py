"""Execution of a plan: steps in order of their inputs, side by side in worker processes where the device has room.

A finished step has a record and is never run again. After a kill the interrupted step resumes from its last checkpoint,
so the results are those of an uninterrupted study. A failed step is reported, the steps that need it are skipped, and
all others run.
"""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from pretune.core import log
from pretune.core.errors import (
    CheckpointError,
    PretuneError,
    RemoteError,
    ResourceError,
    StoppedError,
    StopRequest,
    UserInterruptError,
)
from pretune.core.log import format_duration
from pretune.core.machine import count_cores, share_cores
from pretune.core.run_dir import RunDir
from pretune.runs.finetune.task_data import reuse_tasks
from pretune.studies.actions import StepRunner
from pretune.studies.plan import Plan, Step
from pretune.studies.schedule import count_pretrainings, select_step, sort_by_critical_path
from pretune.studies.study_dir import StepRecord, StudyDir

MEMORY_MESSAGE = "out of memory; use fewer --jobs, or a smaller scale"
SHARED_ACTIONS = ("tokenizer", "data")
"""Steps that most others wait for; they may use all cores."""
SHUTDOWN_SECONDS = 120.0
"""Time that workers have to save a checkpoint after a signal."""
STOP_ERRORS = (KeyboardInterrupt, StopRequest, StoppedError, UserInterruptError)


@dataclass(slots=True)
class StepFailure:
    """Error of a step, or of one that it needs."""

    step: Step
    error: RemoteError

    @property
    def message(self) -> str:
        """Last line of the error."""
        return (self.error.message.strip().splitlines() or [""])[-1]


@dataclass(slots=True)
class Execution:
    """Execution of steps of a plan: records of finished steps, and failures."""

    plan: Plan
    study_dir: StudyDir
    keys: list[str]  # in the order of the plan
    device: str | None = None
    data: str | None = None
    jobs: int = 1
    records: dict[str, StepRecord] = field(default_factory=dict)
    failures: dict[str, StepFailure] = field(default_factory=dict)

    def run(self) -> None:
        """Run all steps that are not finished.

        Raises:
            StoppedError, UserInterruptError: a signal; finished steps and checkpoints are kept.
        """
        self.records |= self.study_dir.read_records(self.plan)
        pending = self._list_pending()
        if not pending:
            return
        finished_count = len(self.keys) - len(pending)
        if finished_count:
            log.info(f"{finished_count} of {len(self.keys)} steps are finished")
        try:
            if self.jobs == 1:
                self._run_here(pending)
            else:
                WorkerPool(self, pending).run()
        except STOP_ERRORS as stop:
            kind: type[PretuneError] = (
                UserInterruptError if isinstance(stop, KeyboardInterrupt | UserInterruptError) else StoppedError
            )
            count = sum(key in self.records for key in self.keys)
            raise kind(
                f"stopped after {count} of {len(self.keys)} steps; run the same command again to resume"
            ) from None

    def _list_pending(self) -> list[str]:
        """Return the steps to run: those without a record, and finished ones whose files another step needs again."""
        pending: list[str] = []
        needed_keys = {key for key in self.keys if key not in self.records}
        for key in reversed(self.keys):
            if key not in needed_keys:
                continue
            pending.append(key)
            for other in self.plan.steps[key].file_inputs:
                source = self.plan.steps[self.find_source(other)]
                # Of a choice that is not made yet, any of the tries may be read.
                run_keys = source.inputs if source.action == "choose" else (source.key,)
                needed_keys.update(run for run in run_keys if not self.study_dir.has_output(self.plan.steps[run]))
        return pending[::-1]

    def find_source(self, key: str) -> str:
        """Return the key of the step whose files are those of a step: of a finished choice, the selected one."""
        return self.records[key].get("selected_key", key) if key in self.records else key

    def _run_here(self, pending: list[str]) -> None:
        runner = StepRunner(self.plan, self.study_dir, self.records, self.device, self.data)
        for place, key in enumerate(pending, 1):
            step = self.plan.steps[key]
            if self.is_blocked(step):
                continue
            self.announce(step, place, len(pending))
            start = time.monotonic()
            try:
                self.finish(step, run_step(runner, step), start)
            except STOP_ERRORS:
                raise
            except Exception as error:
                self.fail(step, RemoteError.from_exception(error, memory_message=MEMORY_MESSAGE))

    def is_blocked(self, step: Step) -> bool:
        """Return whether a step needs one that failed; it then fails with the same error."""
        for key in step.inputs:
            failure = self.failures.get(key) or self.failures.get(self.find_source(key))
            if failure is not None:
                self.failures[step.key] = StepFailure(failure.step, failure.error)
                return True
        return False

    def announce(self, step: Step, place: int, count: int) -> None:
        """Log the start of a step."""
        log.info(f"[{place}/{count}] {step.action}: {step.label}")

    def finish(self, step: Step, record: StepRecord, start: float, overlap: float = 1.0) -> None:
        """Write the record of a step, and remove the checkpoints that it no longer needs.

        `overlap` is the mean number of steps that ran at the same time.
        """
        record["cost"]["jobs"] = self.jobs
        record["cost"]["overlap"] = overlap if record["cost"].pop("is_shared", True) else 1.0
        self.study_dir.write_record(step, record)
        self.records[step.key] = record
        RunDir(self.study_dir.get_folder(step)).remove_checkpoints()
        score = next(iter(record["scores"].items()), None)
        detail = "" if score is None else f": {score[0]} {score[1]:.4g}"
        log.info(f"    {format_duration(time.monotonic() - start)}{detail}")

    def fail(self, step: Step, error: RemoteError) -> None:
        """Keep the error of a step; other steps go on."""
        failure = self.failures[step.key] = StepFailure(step, error)
        log.warn(f"{step.action} {step.label}: {failure.message or 'failed'}")


def run_step(runner: StepRunner, step: Step) -> StepRecord:
    """Run a step, resumed if a killed process left a checkpoint; a run that cannot be resumed starts again."""
    resume = runner.study_dir.find_interrupted(step)
    with log.silence():
        try:
            return runner.run(step, resume=resume)
        except CheckpointError:
            if not resume:
                raise
            runner.study_dir.remove_folder(step)
            return runner.run(step)
        finally:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


@dataclass(slots=True)
class StepWorker:
    """Process that runs one step at a time."""

    process: Any
    connection: Connection
    step: Step | None = None
    start: float = 0.0


class WorkerPool:
    """Processes that run the steps of an execution side by side."""

    def __init__(self, execution: Execution, pending: list[str]) -> None:
        self.execution, self.count = execution, len(pending)
        self.pending = sort_by_critical_path(execution.plan, pending)
        self.max_pretrainings = count_pretrainings(execution.plan, execution.jobs, execution.device)
        self.context = multiprocessing.get_context("spawn")
        self.workers = [self._start() for _ in range(min(execution.jobs, len(pending)))]
        self.spans: list[tuple[float, float]] = []  # start and end of finished steps

    def run(self) -> None:
        """Run all steps; a signal makes the workers save their runs and end."""
        try:
            while self.pending or any(worker.step for worker in self.workers):
                self._assign()
                if any(worker.step for worker in self.workers):
                    self._receive()
        except STOP_ERRORS:
            self._stop()
            raise
        finally:
            for worker in self.workers:
                worker.connection.close()
                worker.process.join(SHUTDOWN_SECONDS)
                if worker.process.is_alive():
                    worker.process.kill()

    def _start(self) -> StepWorker:
        parent, child = self.context.Pipe()
        execution = self.execution
        options = (execution.plan, execution.study_dir, execution.device, execution.data, execution.jobs)
        process: Any = self.context.Process(target=run_worker, args=(child, *options), daemon=False)
        process.start()
        child.close()
        return StepWorker(process, parent)

    def _assign(self) -> None:
        """Give every idle worker a step whose inputs are finished; skip those whose inputs failed."""
        for worker in self.workers:
            if worker.step is None and (key := self._take_ready()) is not None:
                worker.step, worker.start = self.execution.plan.steps[key], time.monotonic()
                self.execution.announce(worker.step, self.count - len(self.pending), self.count)
                worker.connection.send((key, self.execution.records))

    def _take_ready(self) -> str | None:
        running = [worker.step for worker in self.workers if worker.step]
        ready, waiting = list[Step](), {*self.pending, *(step.key for step in running)}
        for key in [*self.pending]:
            step = self.execution.plan.steps[key]
            if self.execution.is_blocked(step):
                self.pending.remove(key)
            elif not any(waiting & {other, self.execution.find_source(other)} for other in step.inputs):
                ready.append(step)
        if not ready:
            return None
        step = select_step(ready, running, self.max_pretrainings)
        self.pending.remove(step.key)
        return step.key

    def _receive(self) -> None:
        """Wait for a worker to finish its step, or to die."""
        busy = {worker.connection: worker for worker in self.workers if worker.step}
        for connection in wait([*busy]):
            worker = busy[connection]  # type: ignore[index]
            step, start = worker.step, worker.start
            assert step is not None
            worker.step = None
            try:
                outcome: StepRecord | RemoteError = worker.connection.recv()
            except (EOFError, OSError):
                worker.process.join()
                message = f"a worker ended with code {worker.process.exitcode}: {MEMORY_MESSAGE}"
                self.execution.fail(step, RemoteError(ResourceError, message))
                self.workers[self.workers.index(worker)] = self._start()
                continue
            if isinstance(outcome, RemoteError):
                if outcome.kind is not None and issubclass(outcome.kind, StoppedError | UserInterruptError):
                    raise outcome.kind(outcome.message)
                self.execution.fail(step, outcome)
            else:
                self.execution.finish(step, outcome, start, self._compute_overlap(start))

    def _compute_overlap(self, start: float) -> float:
        """Return the mean number of steps at the same time from the start of a finished one until now."""
        end = time.monotonic()
        self.spans.append((start, end))
        spans = [*self.spans, *((worker.start, end) for worker in self.workers if worker.step)]
        shared_seconds = sum(max(min(last, end) - max(first, start), 0.0) for first, last in spans)
        return max(shared_seconds / max(end - start, 1e-9), 1.0)

    def _stop(self) -> None:
        for worker in self.workers:
            if worker.process.is_alive() and worker.process.pid is not None:
                os.kill(worker.process.pid, signal.SIGTERM)


def run_worker(
    connection: Connection, plan: Plan, study_dir: StudyDir, device: str | None, data: str | None, jobs: int
) -> None:
    """Run the steps that the parent sends, until it closes the connection."""
    log.set_quiet(True)
    threads = max(1, count_cores() // jobs)  # NOTE: more threads than cores wait for each other in busy loops
    torch.set_num_threads(threads)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))  # processes of a worker that compile
    records: dict[str, StepRecord] = {}
    runner = StepRunner(plan, study_dir, records, device, data)
    with reuse_tasks():
        for key, parent_records in _receive_keys(connection):
            records.update(parent_records)
            step = plan.steps[key]
            try:
                with contextlib.nullcontext() if step.action in SHARED_ACTIONS else share_cores(threads):
                    connection.send(run_step(runner, step))
            except STOP_ERRORS as stop:
                kind = UserInterruptError if isinstance(stop, KeyboardInterrupt | UserInterruptError) else StoppedError
                with contextlib.suppress(OSError):  # the parent, stopped by the same signal, no longer listens
                    connection.send(RemoteError(kind, str(stop)))
                return
            except Exception as error:
                with contextlib.suppress(BrokenPipeError):  # the parent was killed, and this error may be its end
                    connection.send(RemoteError.from_exception(error, memory_message=MEMORY_MESSAGE))


def _receive_keys(connection: Connection) -> Iterator[tuple[str, Mapping[str, StepRecord]]]:
    while True:
        try:
            yield connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
