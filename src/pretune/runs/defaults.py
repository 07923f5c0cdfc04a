"""The config of a pre-training run: defaults of the paper, fitted to data and device, then a file, then overrides."""

import math
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pretune.core import config as specs
from pretune.core import io
from pretune.core.config import from_dict, get_kind, to_dict
from pretune.core.config.read import format_value
from pretune.core.config.specs import get_fields, to_plain
from pretune.core.errors import CheckpointError, UsageError, suggest
from pretune.core.hub import resolve_path
from pretune.core.log import parse_duration
from pretune.core.run_dir import PATHS_KEY
from pretune.data.prepared_data import PreparedData
from pretune.models import catalog
from pretune.models.families import FAMILIES
from pretune.models.families.shared import PaperDefaults
from pretune.models.hf import checkpoint
from pretune.models.spec import Model, Special
from pretune.nn.heads import Head, PairHead, Pooler, SpanHead, Transform
from pretune.objectives.base import Objective
from pretune.objectives.distill import Distill
from pretune.runs.config import (
    LENGTHS,
    STOP_EARLY_PATIENCE,
    DataConfig,
    PretrainConfig,
    PretrainTrainConfig,
    merge_settings,
    read_config,
    read_objective,
    refuse_conflicts,
)
from pretune.runs.options import PretrainOptions
from pretune.runs.training_data import DataFacts
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.open_vocabulary import check_words
from pretune.training.config import Constant, InverseSquareRoot
from pretune.training.distributed import resolve_device

SECTIONS = PretrainConfig.list_sections()
NAMED_PATHS = ("data.path", "objective.kind", "objective.teacher", "train.init_from", "model.name")
"""Paths that a partial tree may set, from which the rest of a config is chosen."""
LENGTH_PATHS = tuple(f"train.{name}" for name in LENGTHS)
MAX_RATE = 2e-3
"""Narrow models train at higher rates than their paper's, up to this maximum (Adam)."""
REFERENCE_BATCH_TOKENS = 131_072
"""Tokens per step; a paper's rate for larger batches is scaled by the square root of the ratio."""
MAX_CPU_BATCH_TOKENS, MAX_CUDA_BATCH_TOKENS = 2048, 65_536
"""Maximum default tokens per step."""
CLOCK_WARMUP, CLOCK_DECAY = 0.05, 0.2
"""Shares of a run with a budget: warm-up where the paper has steps, decay where the paper has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRequest:
    """A run of a published model: the settings of the options, the data, and the settings of the user by path."""

    settings: Mapping[str, Any]
    data: DataFacts
    tokenizer: Tokenizer
    device: str
    overrides: Mapping[str, object]

    def build(self, fitted_settings: Mapping[str, object] | None = None) -> PretrainConfig:
        """Return the paper's config, with `fitted_settings` where the user has set none."""
        overrides = merge_settings(fitted_settings or {}, self.overrides)
        return build_paper_config(self.settings, self.data, self.tokenizer, self.device, overrides)

    def get_paper(self, model: Model) -> PaperDefaults | None:
        """Return the paper's training settings."""
        return _find_paper_training(self.settings.get("model.name", ""), model)


def build_pretrain_config(
    options: PretrainOptions,
    whole_config: PretrainConfig | None = None,
    fitted_settings: Mapping[str, object] | None = None,
) -> PretrainConfig:
    """Return the config of a run: the paper's defaults, or those in `options.config`, with the other options.

    `options.config` is a whole or partial tree, or a file with one: a run.json, or YAML; `whole_config` takes its
    place. `overrides` go before it, and the other options before both. `fitted_settings` replace those of the paper.
    With a `teacher`, the objective becomes a distillation. Invalid or contradictory values are a UsageError.
    """
    request = open_request(options, whole_config)
    return request if isinstance(request, PretrainConfig) else request.build(fitted_settings)


def open_request(options: PretrainOptions, whole_config: PretrainConfig | None = None) -> PaperRequest | PretrainConfig:
    """Return the inputs of a paper's config; the config itself where the settings are whole."""
    if options.text is not None:
        raise UsageError(
            "--text is for recipes (encoder, decoder, encoder-decoder); prepare the text with `pretune prepare`, and "
            "pass --data"
        )
    overrides, settings = collect_overrides(options), options.list_settings()
    lengths = [path for path in LENGTH_PATHS if path in settings]
    if len(lengths) > 1:
        names = " and ".join(path.removeprefix("train.") for path in lengths)
        raise UsageError(f"a run has one length, got {names}; keep one")
    if isinstance(options.budget, str):
        settings["train.budget"] = parse_duration(options.budget)
    tree = read_config(options.config if whole_config is None else whole_config)
    refuse_conflicts(settings, overrides)
    if all(isinstance(tree.get(name), Mapping) for name in SECTIONS) and "kind" in tree["model"]:
        if options.paper:
            raise UsageError("--paper is for a new run of a model; these settings are whole, leave --paper out")
        return _override_config(whole_config or PretrainConfig.from_dict(tree), settings, overrides)
    overrides = {**dict(_flatten_tree(tree)), **overrides}
    for path in NAMED_PATHS:
        value = overrides.pop(path, None)
        if value is not None and not isinstance(value, str | os.PathLike):
            raise UsageError(f"{path}: expected a text, got {format_value(value)}")
        if value is not None:
            settings.setdefault(path, value)
    if "data.path" not in settings or not settings.keys() & {"model.name", "train.init_from"}:
        raise UsageError("a run needs a model and --data; or a --config that names them")
    data = PreparedData.open(os.fspath(settings["data.path"]))
    return PaperRequest(
        settings=settings,
        data=DataFacts.from_prepared_data(data),
        tokenizer=Tokenizer.load(data.tokenizer),
        device=resolve_device(options.device).partition(":")[0],
        overrides=overrides,
    )


def collect_overrides(options: PretrainOptions) -> dict[str, object]:
    """Return the settings of a user by path, with that of `stop_early`."""
    patience = {"train.patience": STOP_EARLY_PATIENCE} if options.stop_early else {}
    return {**patience, **(options.overrides or {})}


def _override_config(
    config: PretrainConfig, settings: Mapping[str, Any], overrides: Mapping[str, object]
) -> PretrainConfig:
    """Return a whole config with overrides; its model stays, except for the heads of another objective."""
    if "model.name" in settings:
        raise UsageError(
            f"the settings contain a model; leave '{settings['model.name']}' out, or change it with --set model.…"
        )
    if settings.get("objective.kind", get_kind(config.objective)) != get_kind(config.objective):
        objective = read_objective(settings["objective.kind"])
        config = replace(config, objective=objective, model=replace_heads(config.model, objective))
    if "objective.teacher" in settings:
        config = replace(config, objective=Distill.from_base(config.objective, settings["objective.teacher"]))
    length: dict[str, object] = {path: settings[path] for path in LENGTH_PATHS if path in settings}
    if length or overrides.keys() & {*LENGTH_PATHS}:
        length = {**dict.fromkeys(LENGTH_PATHS), **length}
    files = {path: settings[path] for path in ("data.path", "train.init_from") if path in settings}
    if not (length or files or overrides):
        return config
    config = config.replace({**length, **files, **overrides})
    return fit_schedule(config, PreparedData.open(config.data.path).tokens, overrides) if length else config


def _flatten_tree(tree: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the paths and values of a partial tree."""
    shorthands = {"model": "model.name", "objective": "objective.kind", "data": "data.path"}
    for section, values in tree.items():
        if isinstance(values, Mapping) and section in SECTIONS:
            yield from _flatten_section(section, values)
        elif section in shorthands and isinstance(values, str):
            yield shorthands[section], values
        elif section not in (*io.FORMAT, PATHS_KEY, "environment"):
            allowed_sections = f"expected: {', '.join(SECTIONS)}"
            if section in SECTIONS:
                raise UsageError(
                    f"the section '{section}' must hold settings, got {type(values).__name__} ({allowed_sections})"
                )
            raise UsageError(f"unknown section '{section}'{suggest(section, SECTIONS)} ({allowed_sections})")


def _flatten_section(path: str, values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield paths and values; a part that names its kind is one value, because each kind has its own fields."""
    for name, value in values.items():
        if isinstance(value, Mapping) and "kind" not in value:
            yield from _flatten_section(f"{path}.{name}", value)
        else:
            yield f"{path}.{name}", value


def build_paper_config(
    settings: Mapping[str, Any], data: DataFacts, tokenizer: Tokenizer, device: str, overrides: Mapping[str, object]
) -> PretrainConfig:
    """Return the paper's config for the settings of the options and the data.

    The initial weights, if any, also give the model. Overrides are paths in the config (`train.lr`, `data.max_length`,
    `objective.rate`, `model.depth`) or settings of the family (`model.width`).
    """
    name, init_from = settings.get("model.name", ""), settings.get("train.init_from")
    init_from = None if init_from is None else os.fspath(init_from)
    length = {path.removeprefix("train."): settings[path] for path in LENGTH_PATHS if path in settings}
    by_section: dict[str, dict[str, object]] = {"model": {}, "objective": {}}
    rest_overrides = {}
    for path, value in overrides.items():
        section, _, rest = path.partition(".")
        if section in by_section and rest:
            by_section[section][rest] = value
        else:
            rest_overrides[path] = value
    model = _build_model_spec(name, tokenizer, init_from, by_section["model"])
    paper = _find_paper_training(name, model)
    if paper is None:
        raise UsageError(f"family '{model.family}' has no training defaults; choose another family")
    objective = _build_objective(settings.get("objective.kind"), paper, settings.get("objective.teacher"))
    if by_section["objective"]:
        objective = specs.replace(objective, by_section["objective"], location="objective")
    model = replace_heads(model, objective)
    config = PretrainConfig(
        model=model,
        objective=objective,
        data=_build_data_config(data, paper, model, objective),
        train=_build_train_config(paper, model, device, length, data.tokens),
    )
    if not length and rest_overrides.keys() & {*LENGTH_PATHS}:
        rest_overrides = {"train.epochs": None, **rest_overrides}
    config = config.replace({"train.init_from": init_from, **rest_overrides})
    config = fit_schedule(config, data.tokens, overrides)
    _refuse_unused(
        config,
        {
            path: value
            for path, value in overrides.items()
            if not path.startswith("model.") or path.split(".")[1] in get_fields(Model)
        },
    )
    return config


def _refuse_unused(config: PretrainConfig, overrides: Mapping[str, object]) -> None:
    """Raise a UsageError that names the first override that the config does not have.

    Values that follow from the rest of a run (special tokens, heads that the objective does not train) cannot be set.
    """
    for path, (value, actual) in config.replace(overrides).diff_all(config).items():
        raise UsageError(
            f"'{path}' cannot be {_format_value(value)}: the model, the objective and the data set it to "
            f"{_format_value(actual)}; leave it out"
        )


def _format_value(value: Any) -> str:
    return f"'{value['kind']}'" if isinstance(value, Mapping) and "kind" in value else format_value(value)


def estimate_steps(train: PretrainTrainConfig, tokens: int) -> int | None:
    """Estimate the steps of a run on data of `tokens` tokens, before the data is packed; None if the budget decides."""
    if train.budget is not None:
        return None
    if train.steps is not None:
        return train.steps
    read = train.tokens if train.tokens is not None else (train.epochs or 1.0) * tokens
    return max(round(read / train.batch_tokens), 1)


def fit_schedule(config: PretrainConfig, tokens: int, fixed_paths: Collection[str]) -> PretrainConfig:
    """Return the config with a schedule that fits into the run; `fixed_paths` stay unchanged.

    Papers count in steps, and most trained for a million. A warm-up, or the hold before an inverse square root decay,
    takes at most a tenth of the run. With a budget, warm-up takes a twentieth of the time, and every schedule reaches
    zero when the budget ends, a slanted triangular one its `floor`.
    """
    if "train.schedule" in fixed_paths:
        return config
    steps, schedule = estimate_steps(config.train, tokens), config.train.schedule
    tree = to_dict(schedule)
    values: dict[str, float] = {}
    if steps is not None:
        values = {name: steps // 10 for name in ("warmup", "hold") if tree.get(name, 0) > max(steps // 10, 0.999)}
    elif isinstance(schedule, Constant | InverseSquareRoot):
        if not any(path.startswith("train.schedule.") for path in fixed_paths):
            rise = CLOCK_WARMUP if schedule.warmup else 0.0
            return config.replace(
                {"train.schedule": {"kind": "stable", "warmup": rise, "decay": CLOCK_DECAY, "shape": "linear"}}
            )
    else:
        values = {"warmup": CLOCK_WARMUP} if tree.get("warmup", 0) >= 1 else {}
        values |= {"floor": 0.0} if tree.get("floor") else {}
    overrides = {f"train.schedule.{name}": value for name, value in values.items()}
    return config.replace({path: value for path, value in overrides.items() if path not in fixed_paths})


def explain_rate(config: PretrainConfig) -> str:
    """Return one line with the learning rate and its source."""
    train = config.train
    kind, family = get_kind(train.optimizer), config.model.family
    training = FAMILIES.get(family).training if family in FAMILIES else None
    if training is None:
        return f"learning rate {train.lr:g} ({kind})"
    paper_optimizer, paper = training.optimizer["kind"], compute_paper_rate(training, config.model.width)
    if kind != paper_optimizer and train.lr == type(train.optimizer)().lr:
        return f"learning rate {train.lr:g}: default of {kind}; the paper's {paper:g} is for {paper_optimizer}"
    if kind == paper_optimizer and train.lr == paper:
        return f"learning rate {train.lr:g} ({kind}): from the paper, scaled to this width and batch size"
    return f"learning rate {train.lr:g} ({kind}): from the settings"


def _build_model_spec(name: str, tokenizer: Tokenizer, init_from: str | None, overrides: Mapping[str, object]) -> Model:
    if init_from is None:
        new_model = catalog.resolve(name, {"vocab": tokenizer.vocab, **overrides})
        if new_model.characters is not None:
            check_words(tokenizer)
        return set_special_tokens(new_model, tokenizer)
    model = checkpoint.inspect_checkpoint(init_from)[0]
    if name and catalog.parse_name(name)[0] != model.family:
        raise UsageError(f"{init_from}: family '{model.family}', not '{name}'; remove the name")
    _check_vocabulary(model, tokenizer, init_from)
    if not overrides:
        return model
    return specs.replace(model, overrides, location="model")


def set_special_tokens(model: Model, tokenizer: Tokenizer) -> Model:
    """Return a new model with the special tokens of the tokenizer, and positions that fit them."""
    roles, eos = tokenizer.special, tokenizer.special.get("eos")
    special = Special(
        pad=roles.get("pad"),
        bos=roles.get("bos"),
        eos=() if eos is None else (eos,),
        start=None if model.decoder is None else _find_start_token(model, tokenizer),
    )
    family = FAMILIES.get(model.family) if model.family in FAMILIES else None
    new_model = replace(model, special=special)
    return family.fit_positions(new_model) if family is not None and family.fit_positions else new_model


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
    return Head(bias="learned", transform=Transform(activation="gelu", norm=model.first_block.norms.post))


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


def _build_objective(name: str | None, paper: PaperDefaults, teacher: str | None) -> Objective:
    """Return an objective by its name, with the paper's settings; by default, that of the paper."""
    is_distilled = name == get_kind(Distill)
    if name is None or name == paper.objective["kind"] or is_distilled:
        objective = read_objective(to_plain(paper.objective))
    else:
        objective = read_objective(name)
    if teacher is None and not is_distilled:
        return objective
    return Distill.from_base(objective, teacher, paper.distillation)


def _find_paper_training(name: str, model: Model) -> PaperDefaults | None:
    """Return the paper's training settings, of the size in the name if there is one."""
    if model.family not in FAMILIES:
        return None
    return FAMILIES.get(model.family).get_training(catalog.parse_name(name)[1] if name else None)


def _build_data_config(data: DataFacts, paper: PaperDefaults, model: Model, objective: Objective) -> DataConfig:
    lengths = [min(length, model.max_length or length) for length in paper.lengths]
    short = (0.9, lengths[0]) if len(lengths) > 1 and lengths[0] < lengths[-1] else None
    is_alone = paper.samples == "streams" and not (objective.allows_streams and model.carries_state)
    tree = {
        "path": data.path,
        "samples": "blocks" if is_alone else paper.samples,
        "max_length": lengths[-1],
        "length_schedule": short,
        "mixing": dict(paper.mixing) if data.sources > 1 and paper.mixing else None,
    }
    return from_dict(DataConfig, tree, location="data")


def scale_paper_rate(paper: PaperDefaults, width: int) -> float:
    """Return the paper's learning rate scaled to a width and the reference batch size."""
    if paper.width is None:  # the optimizer scales it
        return paper.lr
    batch_rate = paper.lr * min(1.0, math.sqrt(REFERENCE_BATCH_TOKENS / paper.batch_tokens))
    rate = batch_rate * paper.width / width
    return max(batch_rate, min(rate, MAX_RATE)) if width < paper.width else rate


def compute_paper_rate(paper: PaperDefaults, width: int) -> float:
    """Return `scale_paper_rate` with three significant digits."""
    return float(f"{scale_paper_rate(paper, width):.3g}")


def _build_train_config(
    paper: PaperDefaults, model: Model, device: str, length: Mapping[str, object], tokens: int
) -> PretrainTrainConfig:
    lr = compute_paper_rate(paper, model.width)
    max_tokens = MAX_CPU_BATCH_TOKENS if device == "cpu" else MAX_CUDA_BATCH_TOKENS
    if paper.samples == "streams":  # each has a window at least
        max_tokens = min(max_tokens, max(tokens, 1))
    tree = {
        "lr": lr,
        "optimizer": {**paper.optimizer, "lr": lr},
        "schedule": dict(paper.schedule),
        "batch_tokens": min(paper.batch_tokens, max_tokens),
        **(length or {"epochs": 1.0}),
    }
    return from_dict(PretrainTrainConfig, to_plain(tree), location="train")
