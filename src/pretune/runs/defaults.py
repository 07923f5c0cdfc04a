"""From a name and some data to the settings of a run: what the paper did, fitted to the data, the device and wishes."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pretune.core import config, io
from pretune.core.config.specs import get_fields
from pretune.core.errors import CheckpointError, UsageError
from pretune.core.hub import resolve_path
from pretune.data.prepare import PreparedData
from pretune.models import catalog
from pretune.models.families import FAMILIES
from pretune.models.family import PaperDefaults
from pretune.models.hf import checkpoint
from pretune.models.spec import Model, Special
from pretune.nn.heads import Head, PairHead, Pooler, SpanHead, Transform
from pretune.objectives.base import Objective
from pretune.runs.config import PretrainConfig, TrainConfig, read_objective, refuse_unused, replace_in_section
from pretune.runs.duration import LENGTHS, fit_schedule
from pretune.runs.training_data import DataConfig
from pretune.text.tokenizer import Tokenizer

MAX_RATE = 2e-3
"""Narrow models learn at higher rates than their paper's, but not at more than this (Adam)."""
REFERENCE_BATCH_TOKENS = 131_072
"""Tokens per step; a rate that a paper gives for more is lowered by the square root of the ratio."""
MAX_CPU_BATCH_TOKENS, MAX_CUDA_BATCH_TOKENS = 2048, 65_536
"""Tokens per step, where the paper's are more."""
RUN_FILE = "run.json"


def build_default_config(
    name: str,
    *,
    data: str | Path,
    objective: str | None = None,
    start: str | Path | None = None,
    device: str = "cpu",
    length: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> PretrainConfig:
    """The settings of pre-training a model on data. `length` holds one of steps, tokens, epochs and budget.

    `start` is a directory of weights to go on from: the model is then the one that is there. Changes are paths in the
    tree (`train.lr`, `data.max_length`, `objective.scale_paper_rate`, `model.depth`) or settings of the family (`model.width`).
    """
    given, all_given = dict(changes or {}), dict(changes or {})
    prepared = PreparedData.open(data)
    tokenizer = Tokenizer.load(prepared.tokenizer)
    model = _build_model_spec(
        name, tokenizer, start, {path: given.pop(path) for path in [*given] if path.startswith("model.")}
    )
    paper = _find_paper_training(name, model)
    if paper is None:
        raise UsageError(f"no paper's way to train '{model.family}' is known; take a family that has one")
    kinds = {path.removeprefix("objective."): given.pop(path) for path in [*given] if path.startswith("objective.")}
    chosen = _build_objective(objective, paper)
    if kinds:
        chosen = replace_in_section("objective", chosen, kinds)
    model = replace_heads(model, chosen)
    lengths = {f"train.{one}": given.pop(f"train.{one}") for one in LENGTHS if f"train.{one}" in given}
    settings = PretrainConfig(
        model=model,
        objective=chosen,
        data=_build_data_config(prepared, paper, model),
        train=_build_train_config(paper, model, device, dict(length or {})),
    )
    if lengths and not length:
        lengths = {"train.epochs": None, **lengths}
    begin = {"train.start": None if start is None else str(start)}
    settings = fit_schedule(settings.replace({**begin, **lengths, **given}), prepared.tokens, given)
    knobs = {path for path in all_given if path.startswith("model.") and path.split(".")[1] not in get_fields(Model)}
    return refuse_unused(settings, {path: value for path, value in all_given.items() if path not in knobs})


def explain_rate(settings: PretrainConfig) -> str:
    """The learning rate of a run and its source, in a line."""
    train = settings.train
    kind, family = config.get_kind(train.optimizer), settings.model.family
    training = FAMILIES.get(family).training if family in FAMILIES else None
    if training is None:
        return f"learning rate {train.lr:g} ({kind})"
    own, paper = training.optimizer["kind"], compute_paper_rate(training, settings.model.width)
    if kind != own and train.lr == type(train.optimizer)().lr:
        return f"learning rate {train.lr:g}: the default of {kind}; the paper's, {paper:g} for this width, is for {own}"
    if kind == own and train.lr == paper:
        return f"learning rate {train.lr:g} ({kind}): the paper's, for this width and batch"
    return f"learning rate {train.lr:g} ({kind}): as set"


def _build_model_spec(name: str, tokenizer: Tokenizer, start: str | Path | None, changes: Mapping[str, Any]) -> Model:
    if start is None:
        return set_special_tokens(catalog.resolve(name, {"vocab": tokenizer.vocab, **changes}), tokenizer)
    model = checkpoint.inspect_checkpoint(start)[0]
    if name and catalog.parse_name(name)[0] != model.family:
        raise UsageError(f"{start}: a model of the family '{model.family}', not '{name}'; leave the name out")
    _check_vocabulary(model, tokenizer, start)
    if not changes:
        return model
    return replace_in_section("model", model, {path.removeprefix("model."): value for path, value in changes.items()})


def set_special_tokens(model: Model, tokenizer: Tokenizer) -> Model:
    """A model whose special tokens are the tokenizer's."""
    found, eos = tokenizer.special, tokenizer.special.get("eos")
    special = Special(
        pad=found.get("pad"),
        bos=found.get("bos"),
        eos=() if eos is None else (eos,),
        start=None if model.decoder is None else _find_start_token(model, tokenizer),
    )
    return replace(model, special=special)


def _find_start_token(model: Model, tokenizer: Tokenizer) -> int | None:
    """What its decoder reads first: by the role that it has in the family's own vocabulary."""
    special, found = model.special, tokenizer.special
    if special.start is not None and special.start == special.pad and "pad" in found:
        return found["pad"]
    if special.start is not None and special.start in special.eos and "eos" in found:
        return found["eos"]
    return next((found[role] for role in ("bos", "cls", "pad", "eos") if role in found), None)


def replace_heads(model: Model, objective: Objective) -> Model:
    """The model with the heads that the objective trains, and without those it would leave as they were drawn."""
    if "generator-discriminator" in objective.shapes:
        return replace(model, pooler=None, pair=None, span=None)
    pairs = objective.pairs in ("other", "swapped")
    edges = getattr(getattr(objective, "masking", objective), "boundary", None) is not None
    return replace(
        model,
        head=model.head or _build_head(model),
        detector=None,
        pooler=model.pooler or Pooler() if pairs else None,
        pair=model.pair or PairHead() if pairs else None,
        span=model.span or SpanHead() if edges else None,
    )


def _build_head(model: Model) -> Head:
    """Over the vocabulary, for a model that has none, as BERT's."""
    block = model.last_stack.blocks[0]
    return Head(bias="learned", transform=Transform(activation="gelu", norm=block.norms.post))


def _check_vocabulary(model: Model, tokenizer: Tokenizer, start: str | Path) -> None:
    start = resolve_path(start)
    file = start / "tokenizer.json"
    if tokenizer.vocab > model.vocab:
        raise CheckpointError(f"{start}: has {model.vocab} tokens, and the data's tokenizer {tokenizer.vocab}")
    if file.is_file() and Tokenizer.load(start).sha256 != tokenizer.sha256:
        raise CheckpointError(f"{file}: not the tokenizer of the data; prepare the text with --tokenizer {start}")


def _build_objective(name: str | None, paper: PaperDefaults) -> Objective:
    if name is None or name == paper.objective["kind"]:
        return read_objective(config.specs.to_plain(paper.objective))
    return read_objective(name)


def _find_paper_training(name: str, model: Model) -> PaperDefaults | None:
    """Return how the paper trained a model: its size where the name says one."""
    if model.family not in FAMILIES:
        return None
    return FAMILIES.get(model.family).get_training(catalog.parse_name(name)[1] if name else None)


def _build_data_config(data: PreparedData, paper: PaperDefaults, model: Model) -> DataConfig:
    lengths = [min(length, model.max_length or length) for length in paper.lengths]
    short = (0.9, lengths[0]) if len(lengths) > 1 and lengths[0] < lengths[-1] else None
    several = len(data.index.settings.get("corpus", {}).get("train", ())) > 1
    tree = {
        "path": str(data),
        "samples": paper.samples,
        "max_length": lengths[-1],
        "short": short,
        "mixing": dict(paper.mixing) if several and paper.mixing else None,
    }
    return config.from_dict(DataConfig, tree, location="data")


def scale_paper_rate(paper: PaperDefaults, width: int) -> float:
    """The learning rate of a model of some width: as the paper's, for its width and for steps of a usual size."""
    if paper.width is None:  # the optimiser scales by itself
        return paper.lr
    usual = paper.lr * min(1.0, math.sqrt(REFERENCE_BATCH_TOKENS / paper.batch_tokens))
    return (
        max(usual, min(usual * paper.width / width, MAX_RATE)) if width < paper.width else usual * paper.width / width
    )


def compute_paper_rate(paper: PaperDefaults, width: int) -> float:
    """The same in three digits."""
    return float(f"{scale_paper_rate(paper, width):.3g}")


def _build_train_config(paper: PaperDefaults, model: Model, device: str, length: dict[str, Any]) -> TrainConfig:
    lr = compute_paper_rate(paper, model.width)
    most = MAX_CPU_BATCH_TOKENS if device == "cpu" else MAX_CUDA_BATCH_TOKENS
    tree = {
        "lr": lr,
        "optimizer": {**paper.optimizer, "lr": lr},
        "schedule": dict(paper.schedule),
        "batch_tokens": min(paper.batch_tokens, most),
        **(length or {"epochs": 1.0}),
    }
    return config.from_dict(TrainConfig, config.specs.to_plain(tree), location="train")


def read_run_config(run: str | Path) -> PretrainConfig:
    """The settings of a run that exists."""
    file = Path(run) / RUN_FILE if Path(run).is_dir() else Path(run)
    return PretrainConfig.from_dict(io.read_json(file, CheckpointError), source=str(file))
