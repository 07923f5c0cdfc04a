"""A run that goes on: what it was begun with, and that nothing has changed since."""

from pathlib import Path
from typing import Any

from pretune.core import config, io
from pretune.core.errors import CheckpointError
from pretune.data.prepare import Data
from pretune.runs.build_config import choose
from pretune.runs.config import Settings
from pretune.runs.defaults import RUN
from pretune.runs.duration import LENGTHS
from pretune.text.tokenizer import Tokenizer
from pretune.training.records import FoundFile


def resumed(where: Path, model: str | None, **wishes: Any) -> Settings:
    """The settings of the run that is there; only what does not change what is learnt may be changed.

    Wishes are those of `choose`: some, or all that the run was begun with; without a length it is as long as it was to
    be. The first that differs is refused.
    """
    if not (where / RUN).is_file():
        raise CheckpointError(f"{where}: there is no run to resume ({RUN} is missing); start it without --resume")
    tree = io.read_json(where / RUN, CheckpointError)
    stored, found = (
        Settings.of(tree, where=str(where / RUN)),
        config.check_record(FoundFile, tree, CheckpointError, str(where / RUN)).get("found", {}),
    )
    if model is None and wishes.get("settings") is None:
        wished = choose(**{**wishes, "settings": stored})
    else:
        if wishes.get("settings") is None and not any(_length(name, wishes) for name in LENGTHS):
            wishes |= {name: value for name in LENGTHS if (value := getattr(stored.train, name)) is not None}
        wished = choose(model, **wishes)
    for path, (new, old) in wished.differences(stored).items():
        raise CheckpointError(f"{where}: {path} was {old} and cannot become {new} in a run that goes on")
    _same_data(wished.data.path, found)
    return wished


def _length(name: str, wishes: dict[str, Any]) -> bool:
    return wishes.get(name) is not None or f"train.{name}" in (wishes.get("changes") or {})


def _same_data(path: str, found: dict[str, Any]) -> None:
    data = Data.open(path)
    now = {"tokenizer": Tokenizer.load(data.tokenizer).sha256, "data": data.fingerprint}
    told = {"tokenizer": "its tokenizer is not the one", "data": "its tokens are not those"}
    for name, value in now.items():
        if found.get(name, value) != value:
            raise CheckpointError(f"{path}: {told[name]} that the run began with; prepare it as it was, or start anew")
