"""Finished runs that lost a part of their model: an error that names the command which writes it again."""

import shlex
from pathlib import Path

from pretune.core import config, io
from pretune.core.errors import CheckpointError
from pretune.models.hf.checkpoint import PARTNERS
from pretune.runs.defaults import RUN
from pretune.runs.output_dir import going_on
from pretune.runs.pretrain_run import CHECKPOINTS
from pretune.runs.run_dir import COST
from pretune.training.checkpoints import Store
from pretune.training.records import HeadlineFile

TRIAL, SCORES = "trial.json", "scores.json"
"""The facts of a trial that has ended, and the scores of a fine-tuned run."""
NAMED = ("labels", "lr", "seed")
"""The facts that tell one trial of a run from another."""


def check_model(where: Path) -> None:
    """Raise a CheckpointError where a finished run lacks a file of its model, or one has another size."""
    if not ((where / RUN).is_file() and (where / COST).is_file()):
        return
    try:
        for folder in [where, *(where / name for name in PARTNERS if (where / name).is_dir())]:
            io.check_manifest(folder, hashes=False)
    except CheckpointError as fault:
        raise CheckpointError(f"{fault}; {_remedy(where)}") from fault


def _remedy(where: Path) -> str:
    """Return the command that writes the model again: from the newest whole checkpoint, or by training."""
    sections = io.read_json(where / RUN, CheckpointError)
    trial = _trial(where) if "method" in sections else None
    marks = [where / COST] if trial is None else [where / COST, trial / TRIAL]  # they say that the run has ended
    remove = " ".join(["rm", *(shlex.quote(str(mark)) for mark in marks)])
    if "embedding" in sections:  # its options are not in the run
        command = f"`{remove}`, then the same command with --resume,"
    else:
        command = f"`{remove} && {going_on('pretrain' if trial is None else 'finetune', where)}`"
    try:
        checkpoint = Store((trial or where) / CHECKPOINTS, on_note=lambda text: None).latest({})
    except CheckpointError:
        checkpoint = None
    if checkpoint is not None:
        return f"{checkpoint.folder} is whole: {command} writes the model again from it"
    return "no checkpoint is whole; " + ("run it again elsewhere" if trial is None else f"{command} trains it again")


def _trial(where: Path) -> Path:
    """Return the directory of the trial whose model the run has: the run itself, where there was only one trial."""
    chosen = config.read_record(HeadlineFile, where / SCORES, CheckpointError).get("model", {})
    for file in sorted(where.glob(f"trials/labels-*/{TRIAL}")):
        facts = io.read_json(file, CheckpointError)
        if all(facts.get(name) == chosen.get(name) for name in NAMED):
            return file.parent
    return where
