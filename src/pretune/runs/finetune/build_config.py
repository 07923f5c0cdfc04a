"""From wishes to the settings of a fine-tuning run: a model, a task, a method, and sensible numbers."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pretune.adaptation import METHOD_PRESETS, METHODS
from pretune.core import config, io
from pretune.core.config.yaml import read_yaml
from pretune.core.errors import UsageError, suggest
from pretune.core.hub import resolve_path
from pretune.models.hf import checkpoint
from pretune.models.spec import Model
from pretune.runs.config import find_rates, read_optimizer, refuse_conflicts
from pretune.runs.defaults import RUN_FILE
from pretune.runs.finetune.adapted_model import ADAPTER_FILE, load_base_model
from pretune.runs.finetune.config import (
    SECTIONS,
    AdaptationConfig,
    BaseConfig,
    FinetuneConfig,
    FinetuneTrainConfig,
    SequenceConfig,
    TaskConfig,
    read_method,
)
from pretune.training.optim import AdamW

FULL_METHODS = ("full", "gradual")
"""Methods that train the body itself: narrow bodies learn at higher rates."""
REFERENCE_WIDTH, WIDTH_EXPONENT, MAX_RATE = 768, 1.5, 5e-4
"""The width that their usual rate is for, how it grows for narrower ones (Turc et al., 2019, take up to ten times more
for widths of 128 and 256), and the highest that is given."""
ULMFIT = {"tune.decay": 1 / 2.6, "train.schedule": {"kind": "slanted"}, "train.lr": 3e-3}
"""Discriminative rates and slanted triangles, beside gradual unfreezing (Howard and Ruder, 2018); the rate is that of
the head, and each part below has 2.6 times less."""
MIX_RATE = 1e-3
"""Of a reader of mixed layers (Peters et al., 2018)."""
LAST_RATE = 1e-3
"""Of the topmost block and the head: a head that was just drawn learns too little at the rate of a whole model."""
EXTRA_LAYERS = 2
"""Blocks that are put on top of a frozen model."""
LAYER_CHOICES = ("first", "last", "extra", "frozen")
"""Of these a run has one."""
RATE_FACTORS = {"first": 2.0, "random": 3.0}
"""How much faster than a whole pre-trained model its upper half learns, and new weights do."""

RATE_OPTIMIZER = config.get_kind(AdamW)
"""The optimizer that all of these rates, and those of the methods, are for."""

TASK_OPTIONS = ("task", "type", "train", "dev", "test", "text", "pair", "label", "data", "force")


def build_finetune_config(
    model: str | os.PathLike[str] | None = None,
    *,
    method: str | None = None,
    lr: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    settings: Mapping[str, Any] | FinetuneConfig | str | os.PathLike[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    **task: Any,
) -> FinetuneConfig:
    """The settings of a run. `task` holds what is given of: task, type, train, dev, test, text, pair, label,
    data, force.

    `settings` may be a tree, or the file with one: a run.json, or YAML. Other wishes go before it, `changes` too.
    """
    wishes = _read_task_options(task)
    given = dict(changes or {})
    options = {"base.path": model, "train.lr": lr, "train.epochs": epochs, "train.steps": steps}
    refuse_conflicts(options | {f"task.{name}": value for name, value in wishes.items()}, given)
    length = {f"train.{name}": value for name, value in (("epochs", epochs), ("steps", steps)) if value is not None}
    if length:
        given = {**{f"train.{name}": None for name in ("epochs", "steps")}, **given, **length}
    if lr is not None:
        given["train.lr"] = lr
    tree = read_tree(settings)
    if all(isinstance(tree.get(name), Mapping) for name in SECTIONS):
        if model is not None:
            given["base.path"] = os.fspath(model)
        found = FinetuneConfig.from_dict(tree).replace(
            {**given, **{f"task.{name}": value for name, value in wishes.items()}}
        )
        return found if method is None else _apply_method(found, method, given)
    if tree:
        raise UsageError(f"settings need the sections {', '.join(SECTIONS)}; `--dry-run` shows a whole tree")
    if model is None:
        raise UsageError("a run needs a model: a run, or a Hugging Face directory")
    path = given.pop("base.path", os.fspath(model))
    plain = FinetuneConfig(
        base=BaseConfig(path=path),
        task=config.from_dict(TaskConfig, wishes, location="task"),
        method=read_method("full"),
        tune=AdaptationConfig(),
        data=SequenceConfig(),
        train=FinetuneTrainConfig(lr=1e-4),
    )
    return _apply_method(plain, "full" if method is None else method, given)


def _apply_method(tuning: FinetuneConfig, name: str, overrides: Mapping[str, Any]) -> FinetuneConfig:
    """The settings with a method by its name, and the learning rate that goes with it."""
    spec = read_base_spec(tuning.base.path)
    chosen, changes = parse_method(name, spec)
    made = FinetuneConfig(
        base=tuning.base,
        task=tuning.task,
        method=read_method(chosen),
        tune=tuning.tune,
        data=tuning.data,
        train=tuning.train,
    )
    defaults = {"train.lr": compute_default_rate(chosen, spec), **changes}
    train = {path.removeprefix("train."): value for path, value in overrides.items() if path.startswith("train.")}
    kind = read_optimizer(train).get("kind", config.get_kind(tuning.train.optimizer))
    if find_rates(train) or kind != RATE_OPTIMIZER:
        del defaults["train.lr"]
    return made.replace({**defaults, **overrides})


def explain_rate(tuning: FinetuneConfig) -> str:
    """The learning rate of a run and its source, in a line."""
    train, kind = tuning.train, config.get_kind(tuning.train.optimizer)
    if kind != RATE_OPTIMIZER and train.lr == type(train.optimizer)().lr:
        return f"learning rate {train.lr:g}: the default of {kind}; that of the method is for {RATE_OPTIMIZER}"
    return f"learning rate {train.lr:g} ({kind})"


def parse_method(name: str, spec: Model) -> tuple[str, dict[str, Any]]:
    """A method and what else a name stands for; several go together with `+`: lora+gradual, full+last."""
    methods: list[str] = []
    changes: dict[str, Any] = {}
    parts = name.split("+")
    for part in parts:
        if part == "first":
            changes["tune.trained"] = {"kind": "first_frozen", "layers": sum(len(s.layers) for s in spec.stacks) // 2}
        elif part == "last":
            changes["tune.trained"] = {"kind": "last_only"}
        elif part == "extra":
            changes |= {"base.extra": EXTRA_LAYERS, "tune.trained": {"kind": "last_only", "layers": EXTRA_LAYERS}}
        elif part == "ulmfit":
            changes |= ULMFIT
            methods.append("gradual")
        elif part == "mix":
            changes["tune.mix"] = {"kind": "mixing"}
        elif part == "random":
            changes["base.weights"] = "random"
        elif part in METHODS:
            methods.append(part)
        else:
            known = [*METHODS.list_names(), *METHOD_PRESETS]
            raise UsageError(f"unknown method '{part[:40]}'{suggest(part, known)} (allowed: {', '.join(known)})")
    layers = [part for part in parts if part in LAYER_CHOICES or (part in ("gradual", "ulmfit") and len(methods) > 1)]
    if len(layers) > 1:
        raise UsageError(f"'{name[:60]}': keep one of {' and '.join(layers)}: each says which layers are trained")
    if "gradual" in methods and len(methods) == 2:
        methods.remove("gradual")
        changes["tune.trained"] = {"kind": "gradual"}
    if "mix" in parts and not methods and not layers:
        methods.append("frozen")
    if (methods or ["full"]) == ["full"]:
        changes |= _choose_rate(parts, spec)
    elif "mix" in parts and methods != ["gradual"]:
        changes["train.lr"] = MIX_RATE
    if len(methods) > 1:
        raise UsageError(f"'{name[:60]}': two methods on one model; keep one of {' and '.join(methods)}")
    return (methods or ["full"])[0], changes


def _choose_rate(parts: Sequence[str], spec: Model) -> dict[str, float]:
    """The rate where not all of a pre-trained model learns at once, if any."""
    times = max((RATE_FACTORS.get(part, 1.0) for part in parts), default=1.0)
    if "last" in parts:
        return {"train.lr": LAST_RATE}
    if "extra" in parts:
        return {"train.lr": MAX_RATE}
    return {"train.lr": float(f"{min(times * compute_default_rate('full', spec), MAX_RATE):.3g}")} if times > 1 else {}


def compute_default_rate(method: str, spec: Model) -> float:
    """The learning rate of a method; where the body is trained, higher for narrow models."""
    rate: float = METHODS.get(method).rate
    if method in FULL_METHODS and spec.width < REFERENCE_WIDTH:
        rate = min(rate * (REFERENCE_WIDTH / spec.width) ** WIDTH_EXPONENT, MAX_RATE)
    return float(f"{rate:.3g}")


def read_base_spec(path: str | os.PathLike[str]) -> Model:
    """The spec of a base, without reading its weights where that can be."""
    folder = resolve_path(path)
    if (folder / ADAPTER_FILE).is_file():
        return load_base_model(BaseConfig(path=str(folder)), seed=0).spec
    return checkpoint.inspect_checkpoint(folder)[0]


def read_tree(settings: Mapping[str, Any] | FinetuneConfig | str | os.PathLike[str] | None) -> dict[str, Any]:
    """A tree of settings, from wherever it is."""
    if isinstance(settings, FinetuneConfig):
        return settings.to_dict()
    if settings is None or isinstance(settings, Mapping):
        return dict(settings or {})
    file = Path(settings) / RUN_FILE if Path(settings).is_dir() else Path(settings)
    return io.read_json(file, UsageError) if file.suffix == ".json" else read_yaml(file)


def _read_task_options(options: Mapping[str, Any]) -> dict[str, Any]:
    unknown = [name for name in options if name not in TASK_OPTIONS]
    if unknown:
        raise UsageError(
            f"unknown wish '{unknown[0]}'{suggest(unknown[0], TASK_OPTIONS)}; of a task: {', '.join(TASK_OPTIONS)}"
        )
    found = {"name" if name == "task" else name: value for name, value in options.items() if value is not None}
    return {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in found.items()}


def parse_numbers(text: str, option: str) -> tuple[float, ...]:
    """Numbers with commas between them, as `--lr 2e-5,3e-5` has them."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"cannot read {option} '{text[:40]}'; write numbers with commas: 2e-5,3e-5") from None


def parse_label_counts(text: str) -> tuple[int | None, ...]:
    """Numbers of labels with commas between them; `all` is None.

    >>> parse_label_counts("50,200,all")
    (50, 200, None)
    """
    parts: Sequence[str] = text.split(",")
    if any(part != "all" and (not part.isdecimal() or int(part) < 1) for part in parts):
        raise UsageError(f"cannot read --labels '{text[:40]}'; write 50,200,1000,all")
    return tuple(None if part == "all" else int(part) for part in parts)
