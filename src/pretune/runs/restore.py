"""Finished runs that lost a part of their model: an error that names the command which writes it again."""

import shlex
from pathlib import Path

from pretune.core import config, io
from pretune.core.errors import CheckpointError
from pretune.models.hf.checkpoint import PARTNER_FOLDERS
from pretune.runs.defaults import RUN_FILE
from pretune.runs.output_dir import build_resume_command
from pretune.runs.pretrain_run import CHECKPOINTS_DIR
from pretune.runs.run_dir import COST_FILE
from pretune.training.checkpoints import CheckpointManager
from pretune.training.records import HeadlineFile

TRIAL_FILE, SCORES_FILE = "trial.json", "scores.json"
"""The facts of a trial that has ended, and the scores of a fine-tuned run."""
TRIAL_KEYS = ("labels", "lr", "seed")
"""The facts that tell one trial of a run from another."""


def check_model(run_dir: Path) -> None:
    """Raise a CheckpointError where a finished run lacks a file of its model, or one has another size."""
    if not ((run_dir / RUN_FILE).is_file() and (run_dir / COST_FILE).is_file()):
        return
    try:
        for folder in [run_dir, *(run_dir / name for name in PARTNER_FOLDERS if (run_dir / name).is_dir())]:
            io.check_manifest(folder, hashes=False)
    except CheckpointError as fault:
        raise CheckpointError(f"{fault}; {_build_remedy(run_dir)}") from fault


def _build_remedy(run_dir: Path) -> str:
    """Return the command that writes the model again: from the newest whole checkpoint, or by training."""
    sections = io.read_json(run_dir / RUN_FILE, CheckpointError)
    trial = _find_trial(run_dir) if "method" in sections else None
    marks = (
        [run_dir / COST_FILE] if trial is None else [run_dir / COST_FILE, trial / TRIAL_FILE]
    )  # they say that the run has ended
    remove = " ".join(["rm", *(shlex.quote(str(mark)) for mark in marks)])
    if "embedding" in sections:  # its options are not in the run
        command = f"`{remove}`, then the same command with --resume,"
    else:
        command = f"`{remove} && {build_resume_command('pretrain' if trial is None else 'finetune', run_dir)}`"
    try:
        checkpoint = CheckpointManager((trial or run_dir) / CHECKPOINTS_DIR, on_warning=lambda text: None).find_latest(
            {}
        )
    except CheckpointError:
        checkpoint = None
    if checkpoint is not None:
        return f"{checkpoint.folder} is whole: {command} writes the model again from it"
    return "no checkpoint is whole; " + ("run it again elsewhere" if trial is None else f"{command} trains it again")


def _find_trial(run_dir: Path) -> Path:
    """Return the directory of the trial whose model the run has: the run itself, where there was only one trial."""
    chosen = config.read_record(HeadlineFile, run_dir / SCORES_FILE, CheckpointError).get("model", {})
    for file in sorted(run_dir.glob(f"trials/labels-*/{TRIAL_FILE}")):
        facts = io.read_json(file, CheckpointError)
        if all(facts.get(name) == chosen.get(name) for name in TRIAL_KEYS):
            return file.parent
    return run_dir
