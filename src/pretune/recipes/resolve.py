"""From a name and some data to the settings of a run: what the paper did, fitted to the data, the device and wishes."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pretune.core import config, io
from pretune.core.errors import CheckpointError, UsageError
from pretune.data.prepare import Data
from pretune.models import catalog, checkpoint
from pretune.models.families import FAMILIES
from pretune.models.family import Training
from pretune.models.spec import Model, Special
from pretune.nn.heads import PairHead, Pooler
from pretune.objectives.objective import Objective
from pretune.recipes.reading import Reading
from pretune.recipes.settings import Settings, Train, read_objective
from pretune.text.tokenizer import Tokenizer

HIGHEST = 2e-3
"""Narrow models learn at higher rates than their paper's, but not at more than this (Adam)."""
CPU_TOKENS, CUDA_TOKENS = 4096, 65_536
"""Tokens per step, where the paper's are more."""
RUN = "run.json"


def resolve(
    name: str,
    *,
    data: str | Path,
    objective: str | None = None,
    start: str | Path | None = None,
    device: str = "cpu",
    length: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings of pre-training a model on data. `length` holds one of steps, tokens, epochs and budget.

    `start` is a directory of weights to go on from: the model is then the one that is there. Changes are paths in the
    tree (`train.lr`, `data.max_length`, `objective.rate`, `model.depth`) or settings of the family (`model.width`).
    """
    given = dict(changes or {})
    prepared = Data.open(data)
    tokenizer = Tokenizer.load(prepared.tokenizer)
    ours = {path: given.pop(path) for path in [*given] if path.startswith("model.")}
    if start is None:
        family = catalog.find(name)[0]
        model = fitted(catalog.resolve(name, {"vocab": tokenizer.vocab, **ours}), tokenizer)
    else:
        model = config.replace(
            checkpoint.inspect(start)[0], {path.removeprefix("model."): v for path, v in ours.items()}
        )
        family = model.family
        _same_vocabulary(model, tokenizer, start)
    paper = FAMILIES.get(family).training if family in FAMILIES else None
    if paper is None:
        raise UsageError(f"no paper's way to train '{family}' is known; take a family that has one")
    kinds = {path.removeprefix("objective."): given.pop(path) for path in [*given] if path.startswith("objective.")}
    chosen = _objective(objective, paper)
    chosen = config.replace(chosen, kinds) if kinds else chosen
    model = with_heads(model, chosen)
    settings = Settings(
        model=model,
        objective=chosen,
        data=_reading(Path(data), paper, model),
        train=_train(paper, model, device, dict(length or {})),
    )
    return settings.changed(given) if given else settings


def fitted(model: Model, tokenizer: Tokenizer) -> Model:
    """A model whose special tokens are the tokenizer's."""
    found, eos = tokenizer.special, tokenizer.special.get("eos")
    special = Special(
        pad=found.get("pad"),
        bos=found.get("bos"),
        eos=() if eos is None else (eos,),
        start=None if not model.both else _start(model, tokenizer),
    )
    return replace(model, special=special)


def _start(model: Model, tokenizer: Tokenizer) -> int | None:
    """What its decoder reads first: by the role that it has in the family's own vocabulary."""
    special, found = model.special, tokenizer.special
    if special.start is not None and special.start == special.pad and "pad" in found:
        return found["pad"]
    if special.start is not None and special.start in special.eos and "eos" in found:
        return found["eos"]
    return next((found[role] for role in ("bos", "cls", "pad", "eos") if role in found), None)


def with_heads(model: Model, objective: Objective) -> Model:
    """The model with the heads that the objective trains, and without those it would leave as they were drawn."""
    if objective.pairs in ("other", "swapped"):
        return replace(model, pooler=model.pooler or Pooler(), pair=model.pair or PairHead())
    return replace(model, pooler=None, pair=None)


def _same_vocabulary(model: Model, tokenizer: Tokenizer, start: str | Path) -> None:
    file = Path(start) / "tokenizer.json"
    if tokenizer.vocab > model.vocab:
        raise CheckpointError(f"{start}: has {model.vocab} tokens, and the data's tokenizer {tokenizer.vocab}")
    if file.is_file() and Tokenizer.load(start).sha256 != tokenizer.sha256:
        raise CheckpointError(f"{file}: not the tokenizer of the data; prepare the text with --tokenizer {start}")


def _objective(name: str | None, paper: Training) -> Objective:
    if name is None or name == paper.objective["kind"]:
        return read_objective(config.specs.plain(paper.objective))
    return read_objective(name)


def _reading(data: Path, paper: Training, model: Model) -> Reading:
    lengths = [min(length, model.longest or length) for length in paper.lengths]
    short = (0.9, lengths[0]) if len(lengths) > 1 and lengths[0] < lengths[-1] else None
    return config.from_dict(
        Reading, {"path": str(data), "samples": paper.samples, "max_length": lengths[-1], "short": short}, where="data"
    )


def _train(paper: Training, model: Model, device: str, length: dict[str, Any]) -> Train:
    scale = 1.0 if paper.width is None else paper.width / model.width
    lr = paper.lr if scale == 1 else max(paper.lr, min(paper.lr * scale, HIGHEST)) if scale > 1 else paper.lr * scale
    most = CPU_TOKENS if device == "cpu" else CUDA_TOKENS
    tree = {
        "lr": float(f"{lr:.3g}"),
        "optimizer": {**paper.optimizer, "lr": float(f"{lr:.3g}")},
        "schedule": dict(paper.schedule),
        "batch_tokens": min(paper.batch_tokens, most),
        **(length or {"epochs": 1.0}),
    }
    return config.from_dict(Train, config.specs.plain(tree), where="train")


def with_warmup(settings: Settings, steps: int | None) -> Settings:
    """A warm-up that is a number of steps takes at most a tenth of the run; against the clock, a twentieth."""
    warmup = getattr(settings.train.schedule, "warmup", 0)
    if warmup < 1:
        return settings
    if steps is None:
        return settings.changed({"train.schedule.warmup": 0.05})
    most = max(steps // 10, 1)
    return settings if warmup <= most else settings.changed({"train.schedule.warmup": most})


def seconds(text: str) -> float:
    """A length of time as people write it.

    >>> seconds("10m"), seconds("90s"), seconds("1.5h"), seconds("30")
    (600.0, 90.0, 5400.0, 30.0)
    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        found = float(number) * units[unit]
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise UsageError(f"cannot read the time '{text}'; write 90s, 10m or 1.5h")
    return found


def read_run(run: str | Path) -> Settings:
    """The settings of a run that exists."""
    file = Path(run) / RUN if Path(run).is_dir() else Path(run)
    return Settings.of(io.read_json(file, CheckpointError), where=str(file))
