"""Logging of a run: metrics on disk, progress on the screen, and a summary of results and cost at the end.

A line of metrics.jsonl counts completed steps. Everything about a step is written before the next checkpoint, so the
file of a resumed run equals that of an uninterrupted run, except for times.

`metrics.jsonl`: metrics of a run, one JSON object per line, ordered by step; and experiment trackers.

    {"step": 100, "loss": 6.31, "rate": 1e-4, "tokens": 6553600}
    {"step": 100, "held_out": {"loss": 6.4}}
    {"step": 100, "event": "length", "length": 512}
    {"step": 101, "loss": null, "nonfinite": ["loss"]}

Lines are appended atomically. A resumed run truncates incomplete lines and lines of steps that it will repeat, so its
file equals that of an uninterrupted run, except for times. This requires that everything about a step is written before
the next checkpoint.

Trackers (TensorBoard, Weights & Biases) are for users who have the packages. Nothing is uploaded: TensorBoard's files
are in the run's folder `tensorboard`, those of Weights & Biases in `wandb`; `wandb sync` uploads them.
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, cast

from pretune.core import config, log
from pretune.core.config import from_dict, to_dict
from pretune.core.errors import CheckpointError, UsageError, suggest
from pretune.core.io import open_in_place, parse_json, translate_write_errors
from pretune.core.run_dir import RunDir
from pretune.training.batch_transfer import BatchStats
from pretune.training.config import TrainConfig
from pretune.training.cost import CostMeter, Totals, compute_cost
from pretune.training.loop import Loop
from pretune.training.optim.sgd import AveragedDescent
from pretune.training.progress import Progress, show_summary
from pretune.training.records import MetricsLine, RunSummaryRecord
from pretune.training.step import StepMetrics

Value = float | int | str | bool | None | Mapping[str, "Value"]


class MetricsLog:
    """Metrics file of one run, open for appending.

    A new run (`last_step` None) starts an empty file. A resumed run keeps the lines up to `last_step`, the step of its
    checkpoint, and of these at most the first `max_size` bytes.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, last_step: int | None = None, max_size: int | None = None
    ) -> None:
        self.path = RunDir(Path(directory)).metrics
        with translate_write_errors(self.path):
            self._file = open_in_place(self.path)
            self.size = 0 if last_step is None else _find_valid_size(self.path, last_step, max_size)
            os.ftruncate(self._file, self.size)
            os.lseek(self._file, 0, os.SEEK_END)

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        """Append a line. Non-finite numbers become null, and `nonfinite` lists their names."""
        if "step" in values or "nonfinite" in values:
            raise UsageError("'step' and 'nonfinite' are reserved names of metrics.jsonl; use other names")
        nonfinite: list[str] = []
        line: dict[str, object] = {"step": step}
        line |= {name: _replace_nonfinite(name, value, nonfinite) for name, value in values.items()}
        if nonfinite:
            line["nonfinite"] = nonfinite
        data = (json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode()
        with translate_write_errors(self.path):
            try:
                size = 0
                while size < len(data):
                    size += os.write(self._file, data[size:])
            except OSError:
                os.ftruncate(self._file, self.size)  # complete lines only, also when the disk is full
                os.lseek(self._file, 0, os.SEEK_END)
                raise
        self.size += len(data)

    def sync(self) -> None:
        """Flush to disk; call before saving a checkpoint of these steps."""
        with translate_write_errors(self.path):
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_metrics(directory: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the lines of a run, skipping invalid ones such as an incomplete line left by a crash."""
    lines = map(_parse_line, RunDir(Path(directory)).metrics.read_bytes().splitlines())
    return [line for line in lines if line is not None]


def _find_valid_size(path: Path, last_step: int, max_size: int | None) -> int:
    """Return the bytes before the first line of a later step, beyond `max_size`, or incomplete at the end."""
    size = end = 0
    with path.open("rb") as file:
        for text in file:
            end += len(text)
            line = _parse_line(text)
            if (line is not None and line["step"] > last_step) or (max_size is not None and end > max_size):
                return size
            if text.endswith(b"\n") and line is not None:
                size = end
    return size


def _parse_line(text: bytes) -> dict[str, Any] | None:
    try:
        line = parse_json(text.decode(), CheckpointError, "metrics")
        config.check_record(MetricsLine, line, CheckpointError, "metrics")
    except (UnicodeDecodeError, CheckpointError):
        return None
    return cast(dict[str, Any], line)


def _replace_nonfinite(name: str, value: Value, nonfinite: list[str]) -> Any:
    """Convert a value to JSON; append the names of non-finite numbers to `nonfinite`."""
    if isinstance(value, Mapping):
        return {key: _replace_nonfinite(f"{name}.{key}", item, nonfinite) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        nonfinite.append(name)
        return None
    return value


Tracker = tuple[Callable[[int, Mapping[str, float]], None], Callable[[], None]]
"""Functions that log the values of a step, and that flush and close."""


class Trackers:
    """A list of trackers as one; may be empty. `start` is the step at which a run resumes."""

    def __init__(
        self, names: Sequence[str], directory: Path, *, start: int = 0, config: Mapping[str, object] | None = None
    ) -> None:
        for name in names:
            if name not in _TRACKERS:
                raise UsageError(f"unknown tracker '{name}'; known: {', '.join(_TRACKERS)}{suggest(name, _TRACKERS)}")
        self._trackers: list[Tracker] = []
        for name in dict.fromkeys(names):
            try:
                self._trackers.append(_TRACKERS[name](directory, start, config or {}))
            except ImportError:
                raise UsageError(
                    f"tracker '{name}' needs the extra 'trackers': pip install 'pretune[trackers]'"
                ) from None

    def log(self, step: int, values: Mapping[str, float | None]) -> None:
        """Log the finite values of a step."""
        finite_values = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        for log_values, _ in self._trackers:
            log_values(step, finite_values)

    def close(self) -> None:
        """Flush and close."""
        for _, close in self._trackers:
            close()


def _open_tensorboard(directory: Path, start: int, config: Mapping[str, object]) -> Tracker:
    """Open event files for `tensorboard --logdir RUN`; a resumed run hides values of steps that it repeats."""
    from torch.utils.tensorboard import SummaryWriter

    purge = {"purge_step": start} if start else {}
    writer: Any = SummaryWriter(str(directory / "tensorboard"), **purge)

    def log_values(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log_values, writer.close


def _open_wandb(directory: Path, start: int, config: Mapping[str, object]) -> Tracker:
    """Open an offline W&B run; a resumed run creates another one of the same name."""
    import wandb

    name = directory.resolve().name
    settings = wandb.Settings(silent=True, console="off")  # pretune prints its own messages
    run: Any = wandb.init(
        mode="offline",
        dir=str(directory),
        project="pretune",
        name=name,
        group=name,
        config=dict(config),
        settings=settings,
    )
    return lambda step, values: run.log(dict(values), step=step), run.finish


_TRACKERS: dict[str, Callable[[Path, int, Mapping[str, object]], Tracker]] = {
    "tensorboard": _open_tensorboard,
    "wandb": _open_wandb,
}


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
        settings: Mapping[str, object] | None = None,
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
            values = {"loss": metrics.loss}
            if len(metrics.terms) > 1:
                values |= {name: total / max(count, 1) for name, (total, count) in metrics.terms.items()}
            values |= {"norm": metrics.norm, "rate": metrics.lr, "tokens": tokens, "skipped": not metrics.ok}
            self._write(step, values | {"seconds": round(metrics.elapsed_seconds, 3)})
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
            values = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            log.info(f"step {loop.state.step:,}: validation {values}")

    def warn(self, text: str) -> None:
        """Print a warning."""
        if self._metrics is not None:
            log.warn(text)

    def log(self, text: str) -> None:
        """Print a line."""
        if self._metrics is not None:
            log.info(text)

    def log_event(self, step: int, name: str, text: str, **values: Value) -> None:
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

    def summarize(
        self, loop: Loop, warnings: Sequence[str] = (), *, unigram_loss: float | None = None
    ) -> RunSummaryRecord:
        """Show and return the summary of the run; all ranks are assumed to use the same energy."""
        state, totals = loop.state, [self._meter.compute_totals()] * loop.ranks.world
        cost = compute_cost(totals, loop.ranks.device, self.config.cost_rates, precision=loop.precision)
        summary: RunSummaryRecord = {
            "steps": state.step,
            "tokens": state.tokens,
            "seconds": cost["seconds"],
            "loss": self.loss,
            "skipped": state.skipped_steps,
            "waiting": state.data_wait,
            "saving": state.saving,
            "evaluating": state.evaluating,
            "warnings": [*warnings],
            "elapsed": state.elapsed_seconds,
            "held_out": {**state.eval_metrics},
            "unigram_loss": unigram_loss,
            "best": state.best,
            "best_step": state.best_step,
            "cost": cost,
        }
        if unigram_loss is None:
            del summary["unigram_loss"]
        if loop.ranks.is_first:
            show_summary(self.run_dir.name, summary)
        return summary

    def _write(self, step: int, values: dict[str, Any]) -> None:
        assert self._metrics is not None and self._trackers is not None
        self._metrics.write(step, values)
        flat = {name: value for name, value in values.items() if isinstance(value, int | float)}
        for name, value in values.get("held_out", {}).items():
            flat[f"held_out/{name}"] = value
        self._trackers.log(step, flat)
