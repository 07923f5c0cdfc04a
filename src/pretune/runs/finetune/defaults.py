"""Building the config of a fine-tuning run from a model, a task, a method, overrides and defaults."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pretune.adaptation import METHOD_PRESETS, METHODS
from pretune.adaptation.peft.io import ADAPTER_FILE
from pretune.adaptation.policy_gradient import GRPO
from pretune.core.config import from_dict, get_kind, read_record
from pretune.core.errors import CheckpointError, UsageError, suggest
from pretune.core.hub import resolve_path
from pretune.core.run_dir import RunDir
from pretune.metrics.rewards import register_reward
from pretune.models.hf import checkpoint
from pretune.models.spec import Model
from pretune.runs.config import find_rates, read_config, read_optimizer, read_registered, refuse_conflicts
from pretune.runs.finetune.adapted_model import find_family_tuning, load_base_model
from pretune.runs.finetune.config import (
    AdaptationConfig,
    BaseConfig,
    FinetuneConfig,
    FinetuneTrainConfig,
    SequenceConfig,
    TaskConfig,
)
from pretune.runs.task_options import FinetuneOptions
from pretune.tasks.types import list_type_options
from pretune.training.optim import AdamW
from pretune.training.records import CostFile, RunFile, read_run_record

FULL_METHODS = ("full", "gradual")
"""Methods that train the base model itself: their learning rate is higher for narrow models."""
REFERENCE_WIDTH, WIDTH_EXPONENT, MAX_RATE = 768, 1.5, 5e-4
"""The width of their usual learning rate, its growth for narrower models (Turc et al., 2019, take up to ten times more
for widths of 128 and 256), and its upper bound."""
BRIEF_STEPS, BRIEF_SHARE = 20_000, 0.5
"""After a pre-training of at most so many steps, weights are trained as random ones are, since they moved little from
their initialization; but at no more than this share of the peak rate of their pre-training."""
BRIEF_OPTIMIZERS = ("adam_w", "muon")
"""Optimizers of a brief pre-training whose updates are of one size. After 140 s of Muon on an H200, at width 512, the
mean of eight tasks is 0.668 at the usual rate of 5.5e-5, 0.675 at 1.5e-4 and 0.662 at 3e-4 (bench/log.md)."""
BRIEF_ENCODER: Mapping[str, object] = {"tune.layer_decay": 0.85, "train.default_epochs": 6.0}
"""Settings of whole encoders after a brief pre-training: the mean of eight tasks is 0.698, without them 0.682; with a
decay of 0.75 and three epochs 0.670 (bench/log.md)."""
MAX_RATE_FACTOR = 8.0
"""Upper bound of a learning rate relative to that of the family's paper, for narrow models and random weights: T5's
stays below that of its pre-training."""
ULMFIT = {"tune.layer_decay": 1 / 2.6, "train.schedule": {"kind": "slanted"}, "train.lr": 3e-3}
"""Discriminative learning rates and slanted triangular schedule, used with gradual unfreezing (Howard and Ruder, 2018);
the rate is that of the head, and each layer below has 2.6 times less."""
MIX_RATE = 1e-3
"""Learning rate of a head over mixed layers (Peters et al., 2018)."""
LAST_RATE = 1e-3
"""Learning rate of the topmost block and the head: that of a whole model is too low for a random head."""
EXTRA_LAYERS = 2
"""New blocks on top of a frozen model."""
PRESET_SETTINGS: Mapping[str, Mapping[str, object]] = {
    "last-only": {"tune.trainable_layers": {"kind": "last_only"}},
    "extra-layers": {
        "base.extra_layers": EXTRA_LAYERS,
        "tune.trainable_layers": {"kind": "last_only", "layers": EXTRA_LAYERS},
    },
    "ulmfit": ULMFIT,
    "scalar-mix": {"tune.scalar_mix": {"kind": "mixing"}},
    "from-scratch": {"base.weights": "random"},
}
"""Settings of the presets, besides `freeze-first`: its number of layers depends on the model."""
LAYER_CHOICES = ("freeze-first", "last-only", "extra-layers", "frozen")
"""Choices of the trained layers, of which a run has one."""
RATE_FACTORS = {"freeze-first": 2.0, "from-scratch": 3.0}
"""Learning rates of the upper half of a model, and of random weights, relative to that of a whole model."""

LENGTH_PATHS = ("train.epochs", "train.steps")
"""Settings of the length of a run, of which one is set."""
REWARD_SETTINGS: Mapping[str, object] = {"tune.grpo": {}, "tune.dropout_factor": 0.0, "train.batch": 8}
"""Settings of rewards: prompts of a step, and no dropout, since answers are sampled without."""
RATE_OPTIMIZER = get_kind(AdamW)
"""The optimizer of these learning rates and of those of the methods."""


def build_finetune_config(
    options: FinetuneOptions, whole_config: FinetuneConfig | None = None, *, base_spec: Model | None = None
) -> FinetuneConfig:
    """Return the config of a run.

    `options.config` is a tree, or a file with one: a run.json, or YAML; `whole_config` takes its place. `overrides`
    (paths and values, as `--set` takes them) and the other options go before it. `base_spec` is the spec of a model
    that is not trained yet, by default that on disk. Invalid or contradictory values are a UsageError.
    """
    overrides, settings = dict(options.overrides or {}), options.list_settings()
    if callable(options.reward):
        settings["task.reward"] = register_reward(options.reward)
    if options.rates:
        settings["train.lr"] = options.rates[0]
    is_typed = "task.type" in settings or "task.train" not in settings
    if not is_typed and settings.get("task.name") in list_type_options():  # the type of that table
        settings["task.type"] = settings.pop("task.name")
    refuse_conflicts(settings, overrides)
    lengths = dict.fromkeys(LENGTH_PATHS) if settings.keys() & {*LENGTH_PATHS} else {}
    overrides = {**lengths, **overrides, **settings}
    if options.teacher is not None:  # before its settings
        overrides = {"tune.distill": {"teacher": os.fspath(options.teacher)}, **overrides}
    tree = read_config(options.config if whole_config is None else whole_config)
    sections = FinetuneConfig.list_sections()
    if all(isinstance(tree.get(name), Mapping) for name in sections):
        tuning = (whole_config or FinetuneConfig.from_dict(tree)).replace(overrides)
        return tuning if options.method is None else _apply_method(tuning, options.method, overrides, base_spec)
    if tree:
        raise UsageError(f"a config needs the sections {', '.join(sections)}; `--dry-run` shows a whole tree")
    if options.model is None:
        raise UsageError("a run needs a model: a run, or a Hugging Face directory")
    path = overrides.pop("base.path")
    task = {path.removeprefix("task."): value for path, value in settings.items() if path.startswith("task.")}
    defaults = FinetuneConfig(
        base=BaseConfig(path=path),
        task=from_dict(TaskConfig, task, location="task"),
        method=read_registered(METHODS, "full", "method"),
        tune=AdaptationConfig(grpo=GRPO() if "reward" in task else None),
        data=SequenceConfig(),
        train=FinetuneTrainConfig(lr=1e-4),
    )
    spec, method = base_spec or read_base_spec(path), options.method
    if overrides.get("task.reward") is not None:
        overrides = {**REWARD_SETTINGS, **overrides}
    if method is None:
        family_tuning = find_family_tuning(spec)
        method = family_tuning.method
        if method in METHOD_PRESETS:
            overrides = {**family_tuning.settings, **overrides}
    return _apply_method(defaults, method, {**find_paper_settings(method, spec, overrides), **overrides}, spec)


def _apply_method(
    tuning: FinetuneConfig, name: str, overrides: Mapping[str, object], base_spec: Model | None = None
) -> FinetuneConfig:
    """Return the config with a method by its name, and the learning rate of that method."""
    spec = base_spec or read_base_spec(tuning.base.path)
    method, settings = parse_method(name, spec)
    defaults = {"train.lr": compute_default_rate(method, spec), **settings}
    if method in FULL_METHODS and not settings.keys() & {"base.weights", "base.extra_layers"}:  # that are new
        brief_rate = find_brief_rate(tuning.base.path, spec)
        if brief_rate >= defaults["train.lr"]:
            defaults["train.lr"] = brief_rate
            if (method, settings, spec.shape) == ("full", {}, "encoder"):
                defaults |= BRIEF_ENCODER
    kind = read_optimizer(overrides).get("kind", get_kind(tuning.train.optimizer))
    if find_rates(overrides) or kind != RATE_OPTIMIZER:
        del defaults["train.lr"]
    return replace(tuning, method=read_registered(METHODS, method, "method")).replace({**defaults, **overrides})


def find_paper_settings(name: str, spec: Model, overrides: Mapping[str, object]) -> dict[str, object]:
    """Return optimizer, schedule and learning rate of the family's paper, if it has any and all weights are trained.

    Not with another optimizer, and without a rate if one is chosen. It is higher for narrow models and random weights,
    as that of other families.
    """
    tuning, (method, settings) = find_family_tuning(spec), parse_method(name, spec)
    if tuning.method != method or not tuning.settings or "tune.trainable_layers" in settings:
        return {}
    paper_settings = dict(tuning.settings)
    rate, kind = paper_settings.pop("train.lr"), paper_settings["train.optimizer"]["kind"]
    if read_optimizer(overrides).get("kind", kind) != kind:
        return {}
    if find_rates(overrides):
        return paper_settings
    factor = RATE_FACTORS["from-scratch"] if settings.get("base.weights") == "random" else 1.0
    return {**paper_settings, "train.lr": float(f"{min(factor * scale_rate(rate, spec), MAX_RATE_FACTOR * rate):.3g}")}


def explain_rate(tuning: FinetuneConfig) -> str:
    """Return one line with the learning rate of a run and its source."""
    train, kind = tuning.train, get_kind(tuning.train.optimizer)
    if kind != RATE_OPTIMIZER and train.lr == type(train.optimizer)().lr:
        return f"learning rate {train.lr:g}: the default of {kind} (that of the method is for {RATE_OPTIMIZER})"
    trains_all = get_kind(tuning.method) in FULL_METHODS and tuning.base.weights == "pretrained"
    is_brief = trains_all and kind == RATE_OPTIMIZER and train.lr == find_brief_rate(tuning.base.path)
    return f"learning rate {train.lr:g} ({kind}){': as after a brief pre-training' if is_brief else ''}"


def parse_method(name: str, spec: Model) -> tuple[str, dict[str, Any]]:
    """Return the method of a name and the settings it stands for; `+` joins several: lora+gradual, full+last-only."""
    methods: list[str] = []
    settings: dict[str, Any] = {}
    parts = name.split("+")
    for part in parts:
        settings |= PRESET_SETTINGS.get(part, {})
        if part == "freeze-first":
            layers = sum(len(stack.layers) for stack in spec.stacks) // 2
            settings["tune.trainable_layers"] = {"kind": "first_frozen", "layers": layers}
        elif part == "ulmfit" or part in METHODS:
            methods.append("gradual" if part == "ulmfit" else part)
        elif part not in PRESET_SETTINGS:
            names = [*METHODS.list_names(), *METHOD_PRESETS]
            raise UsageError(f"unknown method '{part[:40]}'{suggest(part, names)} (allowed: {', '.join(names)})")
    choices = [part for part in parts if part in LAYER_CHOICES or (part in ("gradual", "ulmfit") and len(methods) > 1)]
    if len(choices) > 1:
        raise UsageError(f"'{name[:60]}': keep one of {' and '.join(choices)}: each chooses the trained layers")
    if "gradual" in methods and len(methods) == 2:
        methods.remove("gradual")
        settings["tune.trainable_layers"] = {"kind": "gradual"}
    if "scalar-mix" in parts and not methods and not choices:
        methods.append("frozen")
    if (methods or ["full"]) == ["full"]:
        settings |= _choose_rate(parts, spec)
    elif "scalar-mix" in parts and methods != ["gradual"]:
        settings["train.lr"] = MIX_RATE
    if len(methods) > 1:
        raise UsageError(f"'{name[:60]}': two methods on one model; keep one of {' and '.join(methods)}")
    return (methods or ["full"])[0], settings


def _choose_rate(parts: Sequence[str], spec: Model) -> dict[str, float]:
    """Return the learning rate where only a part of a pre-trained model is trained, if any."""
    factor = max((RATE_FACTORS.get(part, 1.0) for part in parts), default=1.0)
    if "last-only" in parts:
        return {"train.lr": LAST_RATE}
    if "extra-layers" in parts:
        return {"train.lr": MAX_RATE}
    rate = min(factor * compute_default_rate("full", spec), MAX_RATE)
    return {"train.lr": float(f"{rate:.3g}")} if factor > 1 else {}


def compute_default_rate(method: str, spec: Model) -> float:
    """Return the learning rate of a method; where the base model is trained, it is higher for narrow models."""
    rate: float = METHODS.get(method).rate
    if method in FULL_METHODS:
        rate = min(scale_rate(rate, spec), MAX_RATE)
    return float(f"{rate:.3g}")


def find_brief_rate(path: str | os.PathLike[str], spec: Model | None = None) -> float:
    """Return the learning rate for a model that was pre-trained briefly, by its run; 0 for any other directory.

    It falls with more steps than BRIEF_STEPS, so that the usual rate takes over. `spec` is by default that on disk.
    """
    run_dir = RunDir(resolve_path(path))
    if not run_dir.settings.is_file() or not run_dir.is_finished or run_dir.is_finetuned:
        return 0.0
    try:
        run = read_run_record(RunFile, run_dir.settings, CheckpointError)
        cost = read_record(CostFile, run_dir.cost, CheckpointError)
    except CheckpointError:  # of another program
        return 0.0
    train, steps = run.get("train", {}), cost.get("run", {}).get("steps", 0)
    kind = train.get("optimizer", {}).get("kind")
    if "objective" not in run or train.get("init_from") or kind not in BRIEF_OPTIMIZERS or not steps:
        return 0.0
    usual_rate = compute_default_rate("full", spec or read_base_spec(path))
    rate = min(RATE_FACTORS["from-scratch"] * usual_rate, BRIEF_SHARE * train.get("lr", 0.0), MAX_RATE)
    return float(f"{rate * min(1.0, BRIEF_STEPS / steps):.3g}")


def scale_rate(rate: float, spec: Model) -> float:
    """Return the learning rate of a whole model of this width, from that of the reference width.

    >>> from pretune.models.families.bert import build_spec
    >>> scale_rate(3e-5, build_spec(width=192, heads=3)), scale_rate(3e-5, build_spec(width=1024, heads=16))
    (0.00024, 3e-05)
    """
    return rate * math.pow(max(1.0, REFERENCE_WIDTH / spec.width), WIDTH_EXPONENT)


def read_base_spec(path: str | os.PathLike[str]) -> Model:
    """Return the spec of a base model, without reading its weights where possible."""
    folder = resolve_path(path)
    if (folder / ADAPTER_FILE).is_file():
        return load_base_model(BaseConfig(path=str(folder)), seed=0).spec
    return checkpoint.inspect_checkpoint(folder)[0]
