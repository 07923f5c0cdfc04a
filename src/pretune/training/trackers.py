"""Experiment trackers (TensorBoard, Weights & Biases) for users who have the packages. Nothing is uploaded.

TensorBoard's files are in the run's folder `tensorboard`, those of Weights & Biases in `wandb`; `wandb sync` uploads
them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pretune.core.errors import UsageError, suggest


class Tracker(Protocol):
    """Logs scalars by step."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step."""

    def close(self) -> None:
        """Flush and close."""


class Trackers:
    """A list of trackers as one; may be empty. `start` is the step at which a run resumes."""

    def __init__(
        self, names: Sequence[str], directory: Path, *, start: int = 0, config: Mapping[str, Any] | None = None
    ) -> None:
        for name in names:
            if name not in _TRACKERS:
                raise UsageError(f"unknown tracker '{name}'; known: {', '.join(_TRACKERS)}{suggest(name, _TRACKERS)}")
        self._trackers: list[Tracker] = [
            _TRACKERS[name](directory, start, config or {}) for name in dict.fromkeys(names)
        ]

    def log(self, step: int, values: Mapping[str, float | None]) -> None:
        """Log the finite values of a step."""
        finite_values = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        for tracker in self._trackers:
            tracker.log(step, finite_values)

    def close(self) -> None:
        """Flush and close."""
        for tracker in self._trackers:
            tracker.close()


class TensorBoard:
    """Event files for `tensorboard --logdir RUN`; a resumed run hides values of steps that it repeats."""

    def __init__(self, directory: Path, start: int, config: Mapping[str, Any]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise _build_missing_error("tensorboard") from None
        purge = {"purge_step": start} if start else {}
        self._writer: Any = SummaryWriter(str(directory / "tensorboard"), **purge)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Offline W&B run; a resumed run creates another one of the same name."""

    def __init__(self, directory: Path, start: int, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise _build_missing_error("wandb") from None
        name = directory.resolve().name
        settings = wandb.Settings(silent=True, console="off")  # pretune prints its own messages
        self._run: Any = wandb.init(
            mode="offline",
            dir=str(directory),
            project="pretune",
            name=name,
            group=name,
            config=dict(config),
            settings=settings,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


_TRACKERS: dict[str, Callable[[Path, int, Mapping[str, Any]], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}


def _build_missing_error(name: str) -> UsageError:
    return UsageError(f"tracker '{name}' needs the extra 'trackers': pip install 'pretune[trackers]'")
