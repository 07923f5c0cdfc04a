"""Logging of a run: metrics on disk, progress on the screen, and a summary of results and cost at the end.

A line of metrics.jsonl counts completed steps. Everything about a step is written before the next checkpoint, so the
file of a resumed run equals that of an uninterrupted run, except for times.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

from pretune.core import log
from pretune.core.config import from_dict, to_dict
from pretune.core.run_dir import RunDir
from pretune.training.batch_transfer import BatchStats
from pretune.training.config import TrainConfig
from pretune.training.cost import CostMeter, Totals, compute_cost
from pretune.training.loop import Loop
from pretune.training.metrics_log import MetricsLog, Trackers
from pretune.training.optim import AveragedDescent
from pretune.training.progress import Progress, RunSummary, show_summary
from pretune.training.step import StepMetrics


class RunLogger:
    """Hook that logs one rank; only rank 0 writes files and shows progress.

    A line of metrics is written every `config.log_every` steps. `settings` are for trackers.
    """

    def __init__(
        self,
        run_dir: RunDir,
        loop: Loop,
        config: TrainConfig,
        *,
        count_flops: Callable[[BatchStats], float],
        progress: Progress | None = None,
        settings: Mapping[str, Any] | None = None,
        is_resumed: bool = False,
    ) -> None:
        self.run_dir, self.config = run_dir, config
        self.loss: float | None = None
        self._loop, self._counted_step = loop, loop.state.step
        self._is_resumed, self._settings, self._progress = is_resumed, settings, progress
        first, totals = loop.ranks.is_first, loop.state.meter
        self._meter = CostMeter(
            count_flops,
            loop.ranks.device,
            initial_totals=from_dict(Totals, totals, location="meter") if totals else None,
            include_host=first,
        )
        self._metrics: MetricsLog | None = None
        self._trackers: Trackers | None = None
        self._exit_stack = ExitStack()

    def __enter__(self) -> Self:
        self._exit_stack.enter_context(self._meter)
        if self._progress is not None:
            step, path = self._loop.state.step, self.run_dir.path
            last_step, max_size = (step, self._loop.state.metrics_bytes) if self._is_resumed else (None, None)
            self._metrics = self._exit_stack.enter_context(MetricsLog(path, last_step=last_step, max_size=max_size))
            self._trackers = Trackers(self.config.trackers, path, start=step, config=self._settings)
            self._exit_stack.callback(self._trackers.close)
            self._exit_stack.enter_context(self._progress)
        return self

    def __exit__(self, *fault: object) -> None:
        self._exit_stack.close()

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        """Log the metrics of completed steps."""
        if loop.state.step > self._counted_step:
            self._counted_step = loop.state.step
            self._meter.add(loop.batches.stats)
        later_tokens = sum(step_metrics.tokens for step_metrics in metrics)
        for step_metrics in metrics:
            later_tokens -= step_metrics.tokens
            self._log_step(step_metrics, loop.state.tokens - later_tokens)

    def _log_step(self, metrics: StepMetrics, tokens: int) -> None:
        step = metrics.step + 1
        if metrics.ok:
            self.loss = metrics.loss
        if self._metrics is None or self._progress is None:
            return
        if self.config.log_every and step % self.config.log_every == 0:
            self._write(
                step,
                {
                    "loss": metrics.loss,
                    **(
                        {name: total / max(count, 1) for name, (total, count) in metrics.terms.items()}
                        if len(metrics.terms) > 1
                        else {}
                    ),
                    "norm": metrics.norm,
                    "rate": metrics.lr,
                    "tokens": tokens,
                    "skipped": not metrics.ok,
                    "seconds": round(metrics.elapsed_seconds, 3),
                },
            )
        self._progress(
            step,
            elapsed_seconds=metrics.elapsed_seconds,
            tokens=tokens,
            flops=self._meter.flops * self._loop.ranks.world,
            loss=metrics.loss,
        )

    def log_evaluation(self, loop: Loop, metrics: dict[str, float]) -> None:
        """Log the metrics of an evaluation on the validation split."""
        if self._metrics is not None:
            self._write(loop.state.step, {"held_out": metrics})
            log.info(
                f"step {loop.state.step:,}: validation "
                + ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            )

    def warn(self, text: str) -> None:
        """Print a warning."""
        if self._metrics is not None:
            log.warn(text)

    def log(self, text: str) -> None:
        """Print a line."""
        if self._metrics is not None:
            log.info(text)

    def log_event(self, step: int, name: str, text: str, **values: Any) -> None:
        """Print an event, and write it to the metrics as a line {"step", "event", …}."""
        if self._metrics is not None:
            self._metrics.write(step, {"event": name, **values})
        self.log(f"step {step:,}: {text}")

    def observe(self, loop: Loop, loss: float) -> None:
        """Pass a validation loss to an optimizer that averages weights once the loss stops falling."""
        optimizer = loop.optimizer
        if isinstance(optimizer, AveragedDescent) and optimizer.observe(loss):
            reason = f"the validation loss is above one of more than {optimizer.interval} evaluations before"
            self.log_event(loop.state.step, "averaging", f"{reason}: averaging the weights from here on")

    def log_samples(self, step: int, texts: Sequence[str], *, split: str) -> None:
        """Write generated samples of a split to the metrics; print the first."""
        if self._metrics is not None:
            for text in texts:
                self._metrics.write(step, {"sample": text, "split": split})
        self.log(f"step {step:,}{', training text' if split == 'train' else ''}: {texts[0]}")

    def flush(self, loop: Loop) -> None:
        """Sync the metrics file and store the totals in the train state; call before saving a checkpoint."""
        loop.state.meter = to_dict(self._meter.compute_totals())
        if self._metrics is not None:
            self._metrics.sync()
            loop.state.metrics_bytes = self._metrics.size

    def summarize(self, loop: Loop, warnings: Sequence[str] = (), *, unigram_loss: float | None = None) -> RunSummary:
        """Show and return the summary of the run; all ranks are assumed to use the same energy."""
        state, totals = loop.state, [self._meter.compute_totals()] * loop.ranks.world
        cost = compute_cost(totals, loop.ranks.device, self.config.cost_rates, precision=loop.precision)
        summary = RunSummary(
            title=self.run_dir.name,
            steps=state.step,
            tokens=state.tokens,
            seconds=cost.seconds,
            loss=self.loss,
            skipped=state.skipped_steps,
            waiting=state.data_wait,
            saving=state.saving,
            evaluating=state.evaluating,
            warnings=warnings,
            elapsed=state.elapsed_seconds,
            held_out=state.eval_metrics,
            unigram_loss=unigram_loss,
            best=state.best,
            best_step=state.best_step,
            cost=cost,
        )
        if loop.ranks.is_first:
            show_summary(summary)
        return summary

    def _write(self, step: int, values: dict[str, Any]) -> None:
        assert self._metrics is not None and self._trackers is not None
        self._metrics.write(step, values)
        flat = {name: value for name, value in values.items() if isinstance(value, int | float)}
        for name, value in values.get("held_out", {}).items():
            flat[f"held_out/{name}"] = value
        self._trackers.log(step, flat)
