"""From a name and some data to the settings of a run: what the paper did, fitted to the data, the device and wishes."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pretune.core import config, io
from pretune.core.config.specs import fields
from pretune.core.errors import CheckpointError, UsageError
from pretune.core.hub import located
from pretune.data.prepare import Data
from pretune.models import catalog
from pretune.models.families import FAMILIES
from pretune.models.family import Training
from pretune.models.hf import checkpoint
from pretune.models.spec import Model, Special
from pretune.nn.heads import Head, PairHead, Pooler, SpanHead, Transform
from pretune.objectives.base import Objective
from pretune.runs.config import Settings, Train, read_objective, refuse_unused, within
from pretune.runs.duration import LENGTHS, fit
from pretune.runs.training_data import Reading
from pretune.text.tokenizer import Tokenizer

HIGHEST = 2e-3
"""Narrow models learn at higher rates than their paper's, but not at more than this (Adam)."""
USUAL = 131_072
"""Tokens per step; a rate that a paper gives for more is lowered by the square root of the ratio."""
CPU_TOKENS, CUDA_TOKENS = 2048, 65_536
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
    given, all_given = dict(changes or {}), dict(changes or {})
    prepared = Data.open(data)
    tokenizer = Tokenizer.load(prepared.tokenizer)
    model = _model(name, tokenizer, start, {path: given.pop(path) for path in [*given] if path.startswith("model.")})
    paper = _paper(name, model)
    if paper is None:
        raise UsageError(f"no paper's way to train '{model.family}' is known; take a family that has one")
    kinds = {path.removeprefix("objective."): given.pop(path) for path in [*given] if path.startswith("objective.")}
    chosen = _objective(objective, paper)
    if kinds:
        chosen = within("objective", chosen, kinds)
    model = with_heads(model, chosen)
    lengths = {f"train.{one}": given.pop(f"train.{one}") for one in LENGTHS if f"train.{one}" in given}
    settings = Settings(
        model=model,
        objective=chosen,
        data=_reading(prepared, paper, model),
        train=_train(paper, model, device, dict(length or {})),
    )
    if lengths and not length:
        lengths = {"train.epochs": None, **lengths}
    begin = {"train.start": None if start is None else str(start)}
    settings = fit(settings.changed({**begin, **lengths, **given}), prepared.tokens, given)
    knobs = {path for path in all_given if path.startswith("model.") and path.split(".")[1] not in fields(Model)}
    return refuse_unused(settings, {path: value for path, value in all_given.items() if path not in knobs})


def explain_rate(settings: Settings) -> str:
    """The learning rate of a run and its source, in a line."""
    train = settings.train
    kind, family = config.kind(train.optimizer), settings.model.family
    training = FAMILIES.get(family).training if family in FAMILIES else None
    if training is None:
        return f"learning rate {train.lr:g} ({kind})"
    own, paper = training.optimizer["kind"], paper_rate(training, settings.model.width)
    if kind != own and train.lr == type(train.optimizer)().lr:
        return f"learning rate {train.lr:g}: the default of {kind}; the paper's, {paper:g} for this width, is for {own}"
    if kind == own and train.lr == paper:
        return f"learning rate {train.lr:g} ({kind}): the paper's, for this width and batch"
    return f"learning rate {train.lr:g} ({kind}): as set"


def _model(name: str, tokenizer: Tokenizer, start: str | Path | None, changes: Mapping[str, Any]) -> Model:
    if start is None:
        return fitted(catalog.resolve(name, {"vocab": tokenizer.vocab, **changes}), tokenizer)
    model = checkpoint.inspect(start)[0]
    if name and catalog.find(name)[0] != model.family:
        raise UsageError(f"{start}: a model of the family '{model.family}', not '{name}'; leave the name out")
    _same_vocabulary(model, tokenizer, start)
    if not changes:
        return model
    return within("model", model, {path.removeprefix("model."): value for path, value in changes.items()})


def fitted(model: Model, tokenizer: Tokenizer) -> Model:
    """A model whose special tokens are the tokenizer's."""
    found, eos = tokenizer.special, tokenizer.special.get("eos")
    special = Special(
        pad=found.get("pad"),
        bos=found.get("bos"),
        eos=() if eos is None else (eos,),
        start=None if model.decoder is None else _start(model, tokenizer),
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
    if "generator-discriminator" in objective.shapes:
        return replace(model, pooler=None, pair=None, span=None)
    pairs = objective.pairs in ("other", "swapped")
    edges = getattr(getattr(objective, "masking", objective), "boundary", None) is not None
    return replace(
        model,
        head=model.head or _head(model),
        detector=None,
        pooler=model.pooler or Pooler() if pairs else None,
        pair=model.pair or PairHead() if pairs else None,
        span=model.span or SpanHead() if edges else None,
    )


def _head(model: Model) -> Head:
    """Over the vocabulary, for a model that has none, as BERT's."""
    block = model.last.blocks[0]
    return Head(bias="learned", transform=Transform(activation="gelu", norm=block.norms.post))


def _same_vocabulary(model: Model, tokenizer: Tokenizer, start: str | Path) -> None:
    start = located(start)
    file = start / "tokenizer.json"
    if tokenizer.vocab > model.vocab:
        raise CheckpointError(f"{start}: has {model.vocab} tokens, and the data's tokenizer {tokenizer.vocab}")
    if file.is_file() and Tokenizer.load(start).sha256 != tokenizer.sha256:
        raise CheckpointError(f"{file}: not the tokenizer of the data; prepare the text with --tokenizer {start}")


def _objective(name: str | None, paper: Training) -> Objective:
    if name is None or name == paper.objective["kind"]:
        return read_objective(config.specs.plain(paper.objective))
    return read_objective(name)


def _paper(name: str, model: Model) -> Training | None:
    """Return how the paper trained a model: its size where the name says one."""
    if model.family not in FAMILIES:
        return None
    return FAMILIES.get(model.family).training_of(catalog.find(name)[1] if name else None)


def _reading(data: Data, paper: Training, model: Model) -> Reading:
    lengths = [min(length, model.longest or length) for length in paper.lengths]
    short = (0.9, lengths[0]) if len(lengths) > 1 and lengths[0] < lengths[-1] else None
    several = len(data.index.settings.get("corpus", {}).get("train", ())) > 1
    tree = {
        "path": str(data),
        "samples": paper.samples,
        "max_length": lengths[-1],
        "short": short,
        "mixing": dict(paper.mixing) if several and paper.mixing else None,
    }
    return config.from_dict(Reading, tree, where="data")


def rate(paper: Training, width: int) -> float:
    """The learning rate of a model of some width: as the paper's, for its width and for steps of a usual size."""
    if paper.width is None:  # the optimiser scales by itself
        return paper.lr
    usual = paper.lr * min(1.0, math.sqrt(USUAL / paper.batch_tokens))
    return max(usual, min(usual * paper.width / width, HIGHEST)) if width < paper.width else usual * paper.width / width


def paper_rate(paper: Training, width: int) -> float:
    """The same in three digits."""
    return float(f"{rate(paper, width):.3g}")


def _train(paper: Training, model: Model, device: str, length: dict[str, Any]) -> Train:
    lr = paper_rate(paper, model.width)
    most = CPU_TOKENS if device == "cpu" else CUDA_TOKENS
    tree = {
        "lr": lr,
        "optimizer": {**paper.optimizer, "lr": lr},
        "schedule": dict(paper.schedule),
        "batch_tokens": min(paper.batch_tokens, most),
        **(length or {"epochs": 1.0}),
    }
    return config.from_dict(Train, config.specs.plain(tree), where="train")


def read_run(run: str | Path) -> Settings:
    """The settings of a run that exists."""
    file = Path(run) / RUN if Path(run).is_dir() else Path(run)
    return Settings.of(io.read_json(file, CheckpointError), where=str(file))
