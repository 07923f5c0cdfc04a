"""Config of a resumed pre-training run: the stored one, checked against overrides and data."""

from pathlib import Path
from typing import Any

from pretune.core import config, io
from pretune.core.errors import CheckpointError
from pretune.core.migration import migrate_run
from pretune.data.prepare import PreparedData
from pretune.runs.build_config import build_pretrain_config
from pretune.runs.config import PretrainConfig
from pretune.runs.defaults import RUN_FILE
from pretune.runs.duration import LENGTHS
from pretune.text.tokenizer import Tokenizer
from pretune.training.records import ResumeFile


def load_resumed_config(run_dir: Path, model: str | None, **overrides: Any) -> PretrainConfig:
    """Return the config of the run in a directory, with overrides that do not change the weights.

    `overrides` are arguments of `build_pretrain_config`: some, or all that the run was started with. Without a length
    the run keeps its own. The first setting that differs is a CheckpointError, as are other data or another tokenizer.
    """
    file = run_dir / RUN_FILE
    if not file.is_file():
        raise CheckpointError(f"{run_dir}: no run to resume ({RUN_FILE} is missing); start it without --resume")
    tree = migrate_run(io.read_json(file, CheckpointError), CheckpointError, str(file))
    stored_config = PretrainConfig.from_dict(tree, source=str(file))
    environment = config.check_record(ResumeFile, tree, CheckpointError, str(file)).get("environment", {})
    if model is None and overrides.get("settings") is None:
        resumed_config = build_pretrain_config(**{**overrides, "settings": stored_config})
    else:
        if overrides.get("settings") is None and not any(_has_length(name, overrides) for name in LENGTHS):
            overrides |= {name: value for name in LENGTHS if (value := getattr(stored_config.train, name)) is not None}
        resumed_config = build_pretrain_config(model, **overrides)
    for path, (new, old) in resumed_config.diff(stored_config).items():
        raise CheckpointError(f"{run_dir}: {path} was {old} and cannot become {new} in a resumed run")
    _check_data(resumed_config.data.path, environment)
    return resumed_config


def _has_length(name: str, overrides: dict[str, Any]) -> bool:
    return overrides.get(name) is not None or f"train.{name}" in (overrides.get("changes") or {})


def _check_data(path: str, fingerprints: dict[str, Any]) -> None:
    data = PreparedData.open(path)
    current = {"tokenizer": Tokenizer.load(data.tokenizer).sha256, "data": data.fingerprint}
    nouns = {"tokenizer": "the tokenizer", "data": "the data"}
    for name, value in current.items():
        if fingerprints.get(name, value) != value:
            raise CheckpointError(
                f"{path}: {nouns[name]} changed since the run started; prepare it again as it was, or start a new run"
            )
