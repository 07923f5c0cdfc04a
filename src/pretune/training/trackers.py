"""Trackers: where else a run's numbers go, for those who have the packages. Nothing is sent anywhere.

TensorBoard's files lie in the run's folder `tensorboard`, those of Weights & Biases in `wandb`; `wandb sync` uploads
them whenever you want to.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pretune.core.errors import UsageError, suggest


class Tracker(Protocol):
    """Takes the numbers of steps."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The numbers of a step, by name."""

    def close(self) -> None:
        """Write what is left."""


class Trackers:
    """Several as one; a run without any has an empty one. `start` is the step that a resumed run goes on from."""

    def __init__(
        self, names: Sequence[str], directory: Path, *, start: int = 0, config: Mapping[str, Any] | None = None
    ) -> None:
        for name in names:
            if name not in _TRACKERS:
                raise UsageError(
                    f"unknown tracker '{name}'; there are: {', '.join(_TRACKERS)}{suggest(name, _TRACKERS)}"
                )
        self._trackers: list[Tracker] = [
            _TRACKERS[name](directory, start, config or {}) for name in dict.fromkeys(names)
        ]

    def log(self, step: int, values: Mapping[str, float | None]) -> None:
        """The finite numbers of a step."""
        found = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        for tracker in self._trackers:
            tracker.log(step, found)

    def close(self) -> None:
        """Write what is left."""
        for tracker in self._trackers:
            tracker.close()


class TensorBoard:
    """Event files that `tensorboard --logdir RUN` shows; what was logged of steps that are taken again is hidden."""

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
    """An offline run of W&B; a resumed run makes another one of the same name."""

    def __init__(self, directory: Path, start: int, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise _build_missing_error("wandb") from None
        name = directory.resolve().name
        quiet = wandb.Settings(silent=True, console="off")  # what is printed is ours to print
        self._run: Any = wandb.init(
            mode="offline",
            dir=str(directory),
            project="pretune",
            name=name,
            group=name,
            config=dict(config),
            settings=quiet,
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
    return UsageError(f"the tracker '{name}' needs the extra 'trackers': pip install 'pretune[trackers]'")
