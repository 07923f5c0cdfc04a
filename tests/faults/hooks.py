"""Faults injected into a run: it is killed, signalled, or denied a resource at a step."""

import contextlib
import functools
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from pretune.adaptation.heads.sequence import Classification
from pretune.core.types import Loss
from pretune.objectives.masked import MaskedLM
from pretune.runs.finetune import results
from pretune.runs.training_data import TrainingData
from pretune.training import validation
from pretune.training.checkpoints.manager import CheckpointHook
from pretune.training.step import MetricBuffer
from pretune.training.validation import ValidationHook
from tests.faults import deaths

ending = contextlib.ExitStack()
"""Contexts that last as long as the process."""


def at_step(step: int, work: Callable[[], None]) -> None:
    """Do something in the middle of a step, after its gradients and before its hooks."""
    put = MetricBuffer.put

    def watched(self: MetricBuffer, number: int, *rest: Any) -> None:
        put(self, number, *rest)
        if number == step:
            work()

    MetricBuffer.put = watched  # type: ignore[method-assign]


def second_time(step: int) -> None:
    """Killed in the middle of a step, when a process comes to it for the second time: in its second training."""
    count = 0

    def work() -> None:
        nonlocal count
        count += 1
        if count == 2:
            ask("SIGKILL")

    at_step(step, work)


def ask(name: str) -> None:
    """Send this process a signal."""
    os.kill(os.getpid(), signal.Signals[name])


def signalled(step: int, *names: str) -> None:
    at_step(step, lambda: [ask(name) for name in names] and None)


def signalled_while_judging(nth: int, name: str) -> None:
    """In the middle of the n-th evaluation, which is then a long one."""
    count, real = 0, ValidationHook.run

    def now(self: ValidationHook, loop: Any) -> None:
        nonlocal count
        count += loop.state.last_eval_step != loop.state.step
        real(self, loop)

    def over_ranks(loss: Loss, ranks: Any) -> Loss:
        if ranks is validation.LOCAL_RANK and count == nth:
            ask(name)
            time.sleep(0.1)
        return summed(loss, ranks)

    ValidationHook.run = now  # type: ignore[method-assign]
    summed, validation.reduce_over_ranks = validation.reduce_over_ranks, over_ranks


def signalled_while_saving(step: int, name: str) -> None:
    real = CheckpointHook.save

    def save(self: CheckpointHook, loop: Any, *, wait: bool = False) -> None:
        if loop.state.step == step and self.last_step != step:
            ask(name)
        real(self, loop, wait=wait)

    CheckpointHook.save = save  # type: ignore[method-assign]


def killed_after_saving(step: int) -> None:
    """Killed in the middle of a step, when every checkpoint before it is on the disk and expired ones are gone."""
    real = CheckpointHook.save

    def save(self: CheckpointHook, loop: Any, *, wait: bool = False) -> None:
        real(self, loop, wait=True)

    CheckpointHook.save = save  # type: ignore[method-assign]
    signalled(step, "SIGKILL")


def dies_at_call(moment: int) -> None:
    """Killed before the n-th thing that it asks of the file system."""
    ending.enter_context(deaths.watched(deaths.die(moment)))


def no_room(step: int, most: int) -> None:
    """From a step on (-1: from the start) no file can be larger than so many bytes, as on a full disk."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    full = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most, hard))
    full() if step < 0 else at_step(step, full)


def not_finite(first: int, last: int, value: str = "nan") -> None:
    """The losses of some calls are not finite."""
    real, calls, factor = MaskedLM.loss, 0, float(value)

    def loss(self: MaskedLM, model: Any, batch: Any) -> Loss:
        nonlocal calls
        found = real(self, model, batch)
        calls += model.training
        if not (model.training and first <= calls - 1 <= last):
            return found
        return Loss(sum=found.sum * factor, count=found.count)

    MaskedLM.loss = loss  # type: ignore[method-assign]


def stops_at(step: int) -> None:
    """It stands still until SIGCONT."""
    at_step(step, lambda: ask("SIGSTOP"))


def signalled_while_opening(name: str) -> None:
    """Before there is anything to save."""
    real = TrainingData.open.__func__  # type: ignore[attr-defined]

    def open_(cls: type[TrainingData], *arguments: Any, **named: Any) -> Any:
        ask(name)
        return real(cls, *arguments, **named)

    TrainingData.open = classmethod(open_)  # type: ignore[assignment, method-assign]


def only_rank(rank: int, name: str, *arguments: Any) -> None:
    """Another hook, in one of the ranks."""
    if int(os.environ["RANK"]) == rank:
        globals()[name](*arguments)


def reads_late() -> None:
    """Metrics are read one step late, as on a GPU."""
    make = MetricBuffer.__init__

    def late(self: MetricBuffer, device: Any) -> None:
        make(self, device)
        self._cuda = True

    MetricBuffer.__init__ = late  # type: ignore[method-assign]
    put = MetricBuffer.put

    def on_host(self: MetricBuffer, *rest: Any) -> None:
        self._cuda = False
        put(self, *rest)
        self._cuda = True

    MetricBuffer.put = on_host  # type: ignore[method-assign]


def reads_late_and(name: str, *arguments: Any) -> None:
    reads_late()
    globals()[name](*arguments)


def no_finite_class(first: int, last: int) -> None:
    """The losses of some steps of a classification are not finite."""
    real, calls = Classification.loss, 0

    def loss(self: Classification, model: Any, batch: Any) -> Loss:
        nonlocal calls
        found, calls = real(self, model, batch), calls + 1
        return Loss(sum=found.sum * float("nan"), count=found.count) if first <= calls - 1 <= last else found

    Classification.loss = loss  # type: ignore[method-assign]


def writes_nothing(folder: str) -> None:
    """Killed when it opens a file below a folder to write, or makes, renames or removes something there."""

    def watch(event: str, told: tuple[Any, ...]) -> None:
        writes = event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")
        writes |= event == "open" and isinstance(told[2], int) and bool(told[2] & (os.O_WRONLY | os.O_RDWR))
        if writes and any(str(one).startswith(folder) for one in told):
            ask("SIGKILL")

    sys.addaudithook(watch)


def slow_baselines(seconds: float, then: str | None = None) -> None:
    """Whoever fits baselines takes so long, and then gets a signal."""
    real = results.run_all_baselines

    def baselines(*given: Any) -> Any:
        time.sleep(seconds)
        if then is not None:
            ask(then)
        return real(*given)

    results.run_all_baselines = baselines


def measured_on_rank(rank: int) -> None:
    """A device that the others cannot measure; and plans in any time, however busy the machine is."""
    from pretune.runs.recipes import build
    from pretune.runs.recipes.facts import DeviceFacts

    def fail(*_: Any) -> None:
        raise AssertionError("measured")

    build.MIN_SHARE = -1e9
    if int(os.environ["RANK"]) != rank:
        DeviceFacts.measure = fail  # type: ignore[method-assign,assignment]
