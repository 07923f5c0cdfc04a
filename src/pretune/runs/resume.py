"""A run that goes on: what it was begun with, and that nothing has changed since."""

from pathlib import Path
from typing import Any

from pretune.core import config, io
from pretune.core.errors import CheckpointError
from pretune.data.prepare import PreparedData
from pretune.runs.build_config import build_pretrain_config
from pretune.runs.config import PretrainConfig
from pretune.runs.defaults import RUN_FILE
from pretune.runs.duration import LENGTHS
from pretune.text.tokenizer import Tokenizer
from pretune.training.records import ResumeFile


def load_resumed_config(run_dir: Path, model: str | None, **overrides: Any) -> PretrainConfig:
    """The settings of the run that is there; only what does not change what is learnt may be changed.

    Wishes are those of `build_pretrain_config`: some, or all that the run was begun with; without a length it is as long as it was to
    be. The first that differs is refused.
    """
    if not (run_dir / RUN_FILE).is_file():
        raise CheckpointError(
            f"{run_dir}: there is no run to resume ({RUN_FILE} is missing); start it without --resume"
        )
    tree = io.read_json(run_dir / RUN_FILE, CheckpointError)
    stored, found = (
        PretrainConfig.from_dict(tree, source=str(run_dir / RUN_FILE)),
        config.check_record(ResumeFile, tree, CheckpointError, str(run_dir / RUN_FILE)).get("found", {}),
    )
    if model is None and overrides.get("settings") is None:
        wished = build_pretrain_config(**{**overrides, "settings": stored})
    else:
        if overrides.get("settings") is None and not any(_has_length(name, overrides) for name in LENGTHS):
            overrides |= {name: value for name in LENGTHS if (value := getattr(stored.train, name)) is not None}
        wished = build_pretrain_config(model, **overrides)
    for path, (new, old) in wished.diff(stored).items():
        raise CheckpointError(f"{run_dir}: {path} was {old} and cannot become {new} in a run that goes on")
    _check_data(wished.data.path, found)
    return wished


def _has_length(name: str, overrides: dict[str, Any]) -> bool:
    return overrides.get(name) is not None or f"train.{name}" in (overrides.get("changes") or {})


def _check_data(path: str, fingerprints: dict[str, Any]) -> None:
    data = PreparedData.open(path)
    now = {"tokenizer": Tokenizer.load(data.tokenizer).sha256, "data": data.fingerprint}
    told = {"tokenizer": "its tokenizer is not the one", "data": "its tokens are not those"}
    for name, value in now.items():
        if fingerprints.get(name, value) != value:
            raise CheckpointError(f"{path}: {told[name]} that the run began with; prepare it as it was, or start anew")
