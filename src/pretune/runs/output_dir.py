"""Where a run may go, not among files of something else, of which it would replace some; and how it goes on there."""

import shlex
from pathlib import Path

from pretune.core.errors import UsageError
from pretune.runs.defaults import RUN_FILE

LOG_SUFFIXES = (".log", ".out", ".err", ".jsonl")
"""What may lie there before: what a scheduler or a shell has opened for the run's own output."""


def check_output_dir(run_dir: Path) -> None:
    """Refuse a directory that has files, but no run; one killed before its first checkpoint has its settings there."""
    if not run_dir.is_dir() or (run_dir / RUN_FILE).exists():  # what is no directory is told when it is written
        return
    others = sorted(
        one.name for one in run_dir.iterdir() if not one.name.startswith(".") and one.suffix.lower() not in LOG_SUFFIXES
    )
    if others:
        raise UsageError(
            f"{run_dir}: holds something else already ({', '.join(others[:3])}{', …' if others[3:] else ''}); choose "
            "another --out"
        )


def build_resume_command(verb: str, run_dir: Path) -> str:
    """What to type to go on with the run that is there."""
    return f"pretune {verb} --out {shlex.quote(str(run_dir))} --resume"
