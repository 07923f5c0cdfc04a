"""What a run tells of itself: metrics on disk, progress on the screen, and at the end what it learnt and what it cost.

A line of metrics.jsonl has the number of steps that were done. Everything about a step is written before a checkpoint
that has it behind it, so that the file of a resumed run is that of a run without interruption, but for times.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from pretune.core import config, log
from pretune.models.spec import Model
from pretune.training.async_metrics import Report
from pretune.training.batch_stats import Tally
from pretune.training.cost import Meter, Tariff, Totals, cost, flops_of, peak
from pretune.training.loop import Loop
from pretune.training.metrics_log import Metrics
from pretune.training.optim import AveragedDescent
from pretune.training.progress import Outlook, Progress
from pretune.training.summary import Summary, show
from pretune.training.trackers import Trackers

APART = ("title", "cost", "held_out", "more")
"""What a summary shows, and gives in another form."""


class Journal:
    """A hook that keeps the books of one rank; only the first rank writes and shows.

    `models` are all that are trained, the one with the vocabulary head first, or what counts the FLOPs where parts of
    them are not. `every` is the distance of the lines.
    """

    def __init__(
        self,
        where: Path,
        *,
        title: str,
        models: Sequence[Model] | Callable[[Tally], float],
        loop: Loop,
        resumed: bool,
        total: int | None,
        budget: float | None,
        every: int = 10,
        trackers: Sequence[str] = (),
        tariff: Tariff = Tariff(),  # noqa: B008 (a frozen value)
        settings: Mapping[str, Any] | None = None,
        outlook: Outlook | None = None,
    ) -> None:
        self.where, self.title, self.every, self.tariff = where, title, every, tariff
        self.loss: float | None = None
        self._loop, self._counted = loop, loop.state.step
        self._resumed, self._trackers, self._settings = resumed, trackers, settings
        first, before = loop.ranks.first, loop.state.meter
        self._meter = Meter(
            models if callable(models) else flops_of(*models),
            loop.ranks.device,
            before=config.from_dict(Totals, before, where="meter") if before else None,
            host=first,
        )
        rate = peak(loop.ranks.device, loop.precision)
        self._progress = Progress(title, total=total, budget=budget, peak=rate, outlook=outlook) if first else None
        self._metrics: Metrics | None = None
        self._log: Trackers | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(self._meter)
        if self._progress is not None:
            done = self._loop.state.step
            after, size = (done, self._loop.state.written) if self._resumed else (None, None)
            self._metrics = self._open.enter_context(Metrics(self.where, after=after, size=size))
            self._log = Trackers(self._trackers, self.where, start=done, config=self._settings)
            self._open.callback(self._log.close)
            self._open.enter_context(self._progress)
        return self

    def __exit__(self, *fault: object) -> None:
        self._open.close()

    def __call__(self, loop: Loop, reports: Sequence[Report]) -> None:
        """Hear of steps."""
        if loop.state.step > self._counted:
            self._counted = loop.state.step
            self._meter.add(loop.batches.seen)
        later = sum(report.tokens for report in reports)
        for report in reports:
            later -= report.tokens
            self._step(report, loop.state.tokens - later)

    def _step(self, report: Report, tokens: int) -> None:
        done = report.step + 1
        if report.ok:
            self.loss = report.loss
        if self._metrics is None or self._progress is None:
            return
        if self.every and done % self.every == 0:
            self._write(
                done,
                {
                    "loss": report.loss,
                    **(
                        {name: total / max(count, 1) for name, (total, count) in report.terms.items()}
                        if len(report.terms) > 1
                        else {}
                    ),
                    "norm": report.norm,
                    "rate": report.rate,
                    "tokens": tokens,
                    "skipped": not report.ok,
                    "seconds": round(report.elapsed, 3),
                },
            )
        self._progress(
            done,
            elapsed=report.elapsed,
            tokens=tokens,
            flops=self._meter.flops * self._loop.ranks.world,
            loss=report.loss,
        )

    def evaluated(self, loop: Loop, found: dict[str, float]) -> None:
        """Hear of held-out text."""
        if self._metrics is not None:
            self._write(loop.state.step, {"held_out": found})
            log.say(
                f"step {loop.state.step:,}: held-out "
                + ", ".join(f"{name} {value:.4g}" for name, value in found.items())
            )

    def note(self, text: str) -> None:
        """Something to look at."""
        if self._metrics is not None:
            log.warn(text)

    def tell(self, text: str) -> None:
        """Something to read."""
        if self._metrics is not None:
            log.say(text)

    def event(self, step: int, name: str, text: str, **values: Any) -> None:
        """Log something that happens once, and write it as a line {"step", "event", …} of the metrics."""
        if self._metrics is not None:
            self._metrics.write(step, {"event": name, **values})
        self.tell(f"step {step:,}: {text}")

    def observe(self, loop: Loop, loss: float) -> None:
        """Give a validation loss to an optimizer that averages weights once the loss stops falling."""
        optimizer = loop.optimizer
        if isinstance(optimizer, AveragedDescent) and optimizer.observe(loss):
            why = f"the validation loss is above one of more than {optimizer.interval} evaluations before"
            self.event(loop.state.step, "averaging", f"{why}: the weights are averaged from here on")

    def sampled(self, step: int, texts: Sequence[str], *, split: str) -> None:
        """Record answers to some texts of a split; the first is shown."""
        if self._metrics is not None:
            for text in texts:
                self._metrics.write(step, {"sample": text, "split": split})
        self.tell(f"step {step:,}{', training text' if split == 'train' else ''}: {texts[0]}")

    def settle(self, loop: Loop) -> None:
        """Before a checkpoint: what was written is on the disk, and what was counted is in the state."""
        loop.state.meter = config.to_dict(self._meter.totals())
        if self._metrics is not None:
            self._metrics.sync()
            loop.state.written = self._metrics.size

    def summary(self, loop: Loop) -> dict[str, Any]:
        """The run in numbers, shown and given back; ranks are taken to have drawn alike."""
        state = loop.state
        paid = cost([self._meter.totals()] * loop.ranks.world, loop.ranks.device, self.tariff, precision=loop.precision)
        found = Summary(
            title=self.title,
            steps=state.step,
            tokens=state.tokens,
            seconds=paid.seconds,
            cost=paid,
            loss=self.loss,
            held_out=state.held.get("loss"),
            more={name: value for name, value in state.held.items() if name != "loss"},
            skipped=state.skipped,
            waiting=state.waited,
            saving=state.saving,
            evaluating=state.evaluating,
        )
        if loop.ranks.first:
            show(found)
        facts = {name: value for name, value in asdict(found).items() if name not in APART}
        best = {"best": state.best, "best_step": state.best_step}
        return {**facts, "elapsed": state.elapsed, "held_out": state.held, **best, "cost": paid.facts()}

    def _write(self, step: int, values: dict[str, Any]) -> None:
        assert self._metrics is not None and self._log is not None
        self._metrics.write(step, values)
        flat = {name: value for name, value in values.items() if isinstance(value, int | float)}
        for name, value in values.get("held_out", {}).items():
            flat[f"held_out/{name}"] = value
        self._log.log(step, flat)
