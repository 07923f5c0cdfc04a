"""Integrity of models and runs: `pt.verify`, `pretune verify`, and the check of a finished run."""

import os
import shlex
from pathlib import Path

from pretune.adaptation.io import is_adapter_directory, verify_adapter
from pretune.core import config, io
from pretune.core.api import check_arguments
from pretune.core.errors import CheckpointError
from pretune.core.hub import is_short_name, resolve_path
from pretune.core.run_dir import RunDir
from pretune.models.hf.checkpoint import PARTNER_FOLDERS
from pretune.models.verify import verify as verify_model
from pretune.training.checkpoints.manager import CheckpointManager, verify_checkpoints
from pretune.training.records import HeadlineFile

TRIAL_KEYS = ("labels", "lr", "seed")
"""Facts that identify a trial."""


@check_arguments()
def verify(model: str | os.PathLike[str], *, base: str | os.PathLike[str] | None = None) -> list[str]:
    """Verify the integrity of a model or a run, and return a line for each part that was checked.

    Hashes, config, tensors, values, tokenizer, and every checkpoint are checked.

    Args:
        model: A run, a Hugging Face directory, hf:OWNER/NAME, or a short name (small-encoder).
        base: Directory of an adapter's base model, if it was moved.

    Raises:
        CheckpointError: a part is missing or damaged; the message names it.
    """
    directory = resolve_path(Path(model))
    run_dir = RunDir(directory)
    if not is_short_name(model):  # what restores a run does not restore an installed model
        check_model(run_dir)  # a finished run has a manifest
    lines = verify_checkpoints(directory)
    if is_adapter_directory(directory):
        return [*verify_adapter(directory, base=None if base is None else Path(base)), *lines]
    if not lines or run_dir.model_config.exists():  # a finished run holds a model
        return [*verify_model(directory), *lines]
    return lines


def check_model(run_dir: RunDir) -> None:
    """Raise a CheckpointError if a finished run lacks a model file, or one has a different size.

    The error gives the command that restores the model.
    """
    if not (run_dir.settings.is_file() and run_dir.is_finished):
        return
    path = run_dir.path
    try:
        for folder in [path, *(path / name for name in PARTNER_FOLDERS if (path / name).is_dir())]:
            io.check_manifest(folder, hashes=False)
    except CheckpointError as fault:
        raise CheckpointError(f"{fault}; {_build_remedy(run_dir)}") from fault


def _build_remedy(run_dir: RunDir) -> str:
    """Return the command that restores the model: from the newest valid checkpoint, or by training."""
    sections = io.read_json(run_dir.settings, CheckpointError)
    trial = _find_trial(run_dir) if "method" in sections else None
    files = [run_dir.cost] if trial is None else [run_dir.cost, trial.trial]  # they mark the run as finished
    remove = " ".join(["rm", *(shlex.quote(str(path)) for path in files)])
    if "embedding" in sections:  # run.json does not hold its options
        command = f"`{remove}`, then the same command with --resume,"
    else:
        command = f"`{remove} && {run_dir.build_resume_command('pretrain' if trial is None else 'finetune')}`"
    try:
        checkpoint = CheckpointManager((trial or run_dir).checkpoints, on_warning=lambda text: None).find_latest({})
    except CheckpointError:
        checkpoint = None
    if checkpoint is not None:
        return f"{checkpoint.folder} is valid: {command} restores the model from it"
    return "no valid checkpoint; " + (
        "start the run again elsewhere" if trial is None else f"{command} trains it again"
    )


def _find_trial(run_dir: RunDir) -> RunDir:
    """Return the directory of the trial whose model was saved; the run itself if there was only one."""
    selection = config.read_record(HeadlineFile, run_dir.scores, CheckpointError).get("model", {})
    for folder in sorted(run_dir.trials.glob("labels-*")):
        trial = RunDir(folder)
        if trial.trial.is_file():
            facts = io.read_json(trial.trial, CheckpointError)
            if all(facts.get(name) == selection.get(name) for name in TRIAL_KEYS):
                return trial
    return run_dir
