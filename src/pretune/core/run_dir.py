"""Directory of a run: the names of its files, whether it is free or finished, and the command that resumes it.

In `core`, because models, training, reports and commands all look into runs.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretune.core import io
from pretune.core.errors import CheckpointError, UsageError
from pretune.core.migration import FORMAT_KEY, FORMAT_VERSION, migrate_run

LOG_SUFFIXES = (".log", ".out", ".err", ".jsonl")
"""Suffixes of files that may already be there: the run's own output, opened by a scheduler or shell."""


class RunDir:
    """Directory of a run. A fine-tuning run with several trials has a directory for each of them in `trials`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "run.json"
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.task = path / "task.json"
        self.trials = path / "trials"
        self.trial = path / "trial.json"  # facts of a finished trial
        self.predictions = path / "predictions.jsonl"
        self.scores = path / "scores.json"
        self.card = path / "README.md"
        self.cost = path / "cost.json"  # written last: marks the run as finished
        self.model_config = path / "config.json"  # of the saved model

    @property
    def name(self) -> str:
        """Name of the directory."""
        return self.path.name

    @property
    def is_finished(self) -> bool:
        """True if the run has written all its results."""
        return self.cost.is_file()

    @property
    def is_finetuned(self) -> bool:
        """True if the directory holds a fine-tuned model with its task."""
        return self.task.is_file()

    @property
    def has_checkpoints(self) -> bool:
        """True if there are checkpoints, valid or not, of the run or of its trials."""
        return any(any(folder.glob("checkpoints/step-*")) for folder in (self.path, *self.trials.glob("*")))

    def get_trial(self, name: str) -> "RunDir":
        """Return the directory of a trial."""
        return RunDir(self.trials / name)

    def check_free(self) -> None:
        """Raise a UsageError if the directory holds a run, a model or other files.

        Log files and the settings of a run without a checkpoint are allowed. A path that is no directory fails when it
        is written.
        """
        if not self.path.is_dir():
            return
        if not self.settings.exists():
            names = sorted(
                path.name
                for path in self.path.iterdir()
                if not path.name.startswith(".") and path.suffix.lower() not in LOG_SUFFIXES
            )
            if names:
                more = ", …" if names[3:] else ""
                raise UsageError(f"{self.path}: holds other files ({', '.join(names[:3])}{more}); choose another --out")
        if self.has_checkpoints or self.is_finetuned:
            raise UsageError(f"{self.path}: already holds a run; use --resume, or choose another --out")
        if self.model_config.exists():
            raise UsageError(f"{self.path}: already holds a model; choose another --out")

    def build_resume_command(self, verb: str) -> str:
        """Return the command that resumes the run."""
        return f"pretune {verb} --out {shlex.quote(str(self.path))} --resume"

    def write_settings(self, tree: Mapping[str, Any]) -> None:
        """Write run.json."""
        io.write_json(self.settings, {FORMAT_KEY: FORMAT_VERSION, **tree})

    def read_settings(self) -> dict[str, Any]:
        """Return run.json, of any format, in the current one; a run that has none cannot be resumed."""
        if not self.settings.is_file():
            raise CheckpointError(
                f"{self.path}: no run to resume ({self.settings.name} is missing); start it without --resume"
            )
        return migrate_run(io.read_json(self.settings, CheckpointError), CheckpointError, str(self.settings))

    def write_cost(self, summary: Mapping[str, Any]) -> None:
        """Write cost.json from the summary of a run, which marks it as finished."""
        about = {name: value for name, value in summary.items() if name != "cost"}
        io.write_json(self.cost, {**summary["cost"], "run": about})
