"""Default settings of a run: those of the paper, fitted to the data, the device and the overrides."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pretune.core import config, io
from pretune.core.config.specs import get_fields
from pretune.core.errors import CheckpointError, UsageError
from pretune.core.hub import resolve_path
from pretune.core.migration import migrate_run
from pretune.data.prepared_data import PreparedData
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
"""Narrow models train at higher rates than their paper's, up to this maximum (Adam)."""
REFERENCE_BATCH_TOKENS = 131_072
"""Tokens per step; a paper's rate for larger batches is scaled by the square root of the ratio."""
MAX_CPU_BATCH_TOKENS, MAX_CUDA_BATCH_TOKENS = 2048, 65_536
"""Maximum default tokens per step."""
RUN_FILE = "run.json"


def build_default_config(
    name: str,
    *,
    data: str | Path,
    objective: str | None = None,
    init_from: str | Path | None = None,
    device: str = "cpu",
    length: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> PretrainConfig:
    """Build the settings for pre-training a model on data. `length` holds one of steps, tokens, epochs and budget.

    `init_from` is a directory of initial weights, which also gives the model. Changes are paths in the settings
    (`train.lr`, `data.max_length`, `objective.rate`, `model.depth`) or settings of the family (`model.width`).
    """
    overrides, all_overrides = dict(changes or {}), dict(changes or {})
    prepared_data = PreparedData.open(data)
    tokenizer = Tokenizer.load(prepared_data.tokenizer)
    model = _build_model_spec(
        name, tokenizer, init_from, {path: overrides.pop(path) for path in [*overrides] if path.startswith("model.")}
    )
    paper = _find_paper_training(name, model)
    if paper is None:
        raise UsageError(f"family '{model.family}' has no training defaults; choose another family")
    kinds = {
        path.removeprefix("objective."): overrides.pop(path) for path in [*overrides] if path.startswith("objective.")
    }
    objective_config = _build_objective(objective, paper)
    if kinds:
        objective_config = replace_in_section("objective", objective_config, kinds)
    model = replace_heads(model, objective_config)
    lengths = {
        f"train.{option}": overrides.pop(f"train.{option}") for option in LENGTHS if f"train.{option}" in overrides
    }
    settings = PretrainConfig(
        model=model,
        objective=objective_config,
        data=_build_data_config(prepared_data, paper, model),
        train=_build_train_config(paper, model, device, dict(length or {})),
    )
    if lengths and not length:
        lengths = {"train.epochs": None, **lengths}
    begin = {"train.init_from": None if init_from is None else str(init_from)}
    settings = fit_schedule(settings.replace({**begin, **lengths, **overrides}), prepared_data.tokens, overrides)
    knobs = {
        path for path in all_overrides if path.startswith("model.") and path.split(".")[1] not in get_fields(Model)
    }
    return refuse_unused(settings, {path: value for path, value in all_overrides.items() if path not in knobs})


def explain_rate(settings: PretrainConfig) -> str:
    """Return one line with the learning rate and its source."""
    train = settings.train
    kind, family = config.get_kind(train.optimizer), settings.model.family
    training = FAMILIES.get(family).training if family in FAMILIES else None
    if training is None:
        return f"learning rate {train.lr:g} ({kind})"
    paper_optimizer, paper = training.optimizer["kind"], compute_paper_rate(training, settings.model.width)
    if kind != paper_optimizer and train.lr == type(train.optimizer)().lr:
        return f"learning rate {train.lr:g}: default of {kind}; the paper's {paper:g} is for {paper_optimizer}"
    if kind == paper_optimizer and train.lr == paper:
        return f"learning rate {train.lr:g} ({kind}): from the paper, scaled to this width and batch size"
    return f"learning rate {train.lr:g} ({kind}): from the settings"


def _build_model_spec(name: str, tokenizer: Tokenizer, start: str | Path | None, changes: Mapping[str, Any]) -> Model:
    if start is None:
        return set_special_tokens(catalog.resolve(name, {"vocab": tokenizer.vocab, **changes}), tokenizer)
    model = checkpoint.inspect_checkpoint(start)[0]
    if name and catalog.parse_name(name)[0] != model.family:
        raise UsageError(f"{start}: family '{model.family}', not '{name}'; remove the name")
    _check_vocabulary(model, tokenizer, start)
    if not changes:
        return model
    return replace_in_section("model", model, {path.removeprefix("model."): value for path, value in changes.items()})


def set_special_tokens(model: Model, tokenizer: Tokenizer) -> Model:
    """Return the model with the special tokens of the tokenizer."""
    roles, eos = tokenizer.special, tokenizer.special.get("eos")
    special = Special(
        pad=roles.get("pad"),
        bos=roles.get("bos"),
        eos=() if eos is None else (eos,),
        start=None if model.decoder is None else _find_start_token(model, tokenizer),
    )
    return replace(model, special=special)


def _find_start_token(model: Model, tokenizer: Tokenizer) -> int | None:
    """Return the first decoder token, by its role in the family's own vocabulary."""
    special, roles = model.special, tokenizer.special
    if special.start is not None and special.start == special.pad and "pad" in roles:
        return roles["pad"]
    if special.start is not None and special.start in special.eos and "eos" in roles:
        return roles["eos"]
    return next((roles[role] for role in ("bos", "cls", "pad", "eos") if role in roles), None)


def replace_heads(model: Model, objective: Objective) -> Model:
    """Return the model with the heads that the objective trains, without those it would leave untrained."""
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
    """Return BERT's language-modelling head, for a model without one."""
    block = model.last_stack.blocks[0]
    return Head(bias="learned", transform=Transform(activation="gelu", norm=block.norms.post))


def _check_vocabulary(model: Model, tokenizer: Tokenizer, start: str | Path) -> None:
    start = resolve_path(start)
    file = start / "tokenizer.json"
    if tokenizer.vocab > model.vocab:
        raise CheckpointError(
            f"{start}: vocabulary of {model.vocab} tokens, but the data's tokenizer has {tokenizer.vocab}"
        )
    if file.is_file() and Tokenizer.load(start).sha256 != tokenizer.sha256:
        raise CheckpointError(
            f"{file}: differs from the tokenizer of the data; prepare the text with --tokenizer {start}"
        )


def _build_objective(name: str | None, paper: PaperDefaults) -> Objective:
    if name is None or name == paper.objective["kind"]:
        return read_objective(config.specs.to_plain(paper.objective))
    return read_objective(name)


def _find_paper_training(name: str, model: Model) -> PaperDefaults | None:
    """Return the paper's training settings, of the size in the name if there is one."""
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
        "length_schedule": short,
        "mixing": dict(paper.mixing) if several and paper.mixing else None,
    }
    return config.from_dict(DataConfig, tree, location="data")


def scale_paper_rate(paper: PaperDefaults, width: int) -> float:
    """Return the paper's learning rate scaled to a width and the reference batch size."""
    if paper.width is None:  # the optimizer scales it
        return paper.lr
    scaled_rate = paper.lr * min(1.0, math.sqrt(REFERENCE_BATCH_TOKENS / paper.batch_tokens))
    return (
        max(scaled_rate, min(scaled_rate * paper.width / width, MAX_RATE))
        if width < paper.width
        else scaled_rate * paper.width / width
    )


def compute_paper_rate(paper: PaperDefaults, width: int) -> float:
    """Return `scale_paper_rate` with three significant digits."""
    return float(f"{scale_paper_rate(paper, width):.3g}")


def _build_train_config(paper: PaperDefaults, model: Model, device: str, length: dict[str, Any]) -> TrainConfig:
    lr = compute_paper_rate(paper, model.width)
    max_tokens = MAX_CPU_BATCH_TOKENS if device == "cpu" else MAX_CUDA_BATCH_TOKENS
    tree = {
        "lr": lr,
        "optimizer": {**paper.optimizer, "lr": lr},
        "schedule": dict(paper.schedule),
        "batch_tokens": min(paper.batch_tokens, max_tokens),
        **(length or {"epochs": 1.0}),
    }
    return config.from_dict(TrainConfig, config.specs.to_plain(tree), location="train")


def read_run_config(run: str | Path) -> PretrainConfig:
    """Read the settings of an existing run."""
    file = Path(run) / RUN_FILE if Path(run).is_dir() else Path(run)
    tree = migrate_run(io.read_json(file, CheckpointError), CheckpointError, str(file))
    return PretrainConfig.from_dict(tree, source=str(file))
