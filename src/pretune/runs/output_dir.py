"""Checks that an output directory is safe to use; the command that resumes a run."""

import shlex
from pathlib import Path

from pretune.core.errors import UsageError
from pretune.runs.defaults import RUN_FILE

LOG_SUFFIXES = (".log", ".out", ".err", ".jsonl")
"""Suffixes of files that may already be there: the run's own output, opened by a scheduler or shell."""


def check_output_dir(run_dir: Path) -> None:
    """Raise if the directory has other files; settings of a run without a checkpoint are allowed."""
    if not run_dir.is_dir() or (run_dir / RUN_FILE).exists():  # a path that is no directory fails when it is written
        return
    files = sorted(
        path.name
        for path in run_dir.iterdir()
        if not path.name.startswith(".") and path.suffix.lower() not in LOG_SUFFIXES
    )
    if files:
        raise UsageError(
            f"{run_dir}: holds other files ({', '.join(files[:3])}{', …' if files[3:] else ''}); choose another --out"
        )


def build_resume_command(verb: str, run_dir: Path) -> str:
    """Return the command that resumes the run in a directory."""
    return f"pretune {verb} --out {shlex.quote(str(run_dir))} --resume"
