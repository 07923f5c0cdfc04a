"""Recovery of finished runs with missing model files: an error with the command that restores them."""

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
"""Facts of a finished trial, and scores of a fine-tuned run."""
TRIAL_KEYS = ("labels", "lr", "seed")
"""Facts that identify a trial."""


def check_model(run_dir: Path) -> None:
    """Raise a CheckpointError if a finished run lacks a model file, or one has a different size."""
    if not ((run_dir / RUN_FILE).is_file() and (run_dir / COST_FILE).is_file()):
        return
    try:
        for folder in [run_dir, *(run_dir / name for name in PARTNER_FOLDERS if (run_dir / name).is_dir())]:
            io.check_manifest(folder, hashes=False)
    except CheckpointError as fault:
        raise CheckpointError(f"{fault}; {_build_remedy(run_dir)}") from fault


def _build_remedy(run_dir: Path) -> str:
    """Return the command that restores the model: from the newest valid checkpoint, or by training."""
    sections = io.read_json(run_dir / RUN_FILE, CheckpointError)
    trial = _find_trial(run_dir) if "method" in sections else None
    files = (
        [run_dir / COST_FILE] if trial is None else [run_dir / COST_FILE, trial / TRIAL_FILE]
    )  # they mark the run as finished
    remove = " ".join(["rm", *(shlex.quote(str(path)) for path in files)])
    if "embedding" in sections:  # run.json does not hold its options
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
        return f"{checkpoint.folder} is valid: {command} restores the model from it"
    return "no valid checkpoint; " + (
        "start the run again elsewhere" if trial is None else f"{command} trains it again"
    )


def _find_trial(run_dir: Path) -> Path:
    """Return the directory of the trial whose model was saved; the run itself if there was only one."""
    selection = config.read_record(HeadlineFile, run_dir / SCORES_FILE, CheckpointError).get("model", {})
    for file in sorted(run_dir.glob(f"trials/labels-*/{TRIAL_FILE}")):
        facts = io.read_json(file, CheckpointError)
        if all(facts.get(name) == selection.get(name) for name in TRIAL_KEYS):
            return file.parent
    return run_dir
