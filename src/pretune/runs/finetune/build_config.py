"""From wishes to the settings of a fine-tuning run: a model, a task, a method, and sensible numbers."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pretune.adaptation import METHODS, MORE
from pretune.core import config, io
from pretune.core.config.yaml import read_yaml
from pretune.core.errors import UsageError, nearest
from pretune.core.hub import located
from pretune.models.hf import checkpoint
from pretune.models.spec import Model
from pretune.runs.config import optimizer_of, rates_of, refuse_conflicts
from pretune.runs.defaults import RUN
from pretune.runs.finetune.adapted_model import ADAPTER, base_model
from pretune.runs.finetune.config import SECTIONS, Base, Cut, Fit, Tune, Tuning, Wanted, read_method
from pretune.training.optim import AdamW

WHOLE = ("full", "gradual")
"""Methods that train the body itself: narrow bodies learn at higher rates."""
WIDTH, POWER, HIGHEST = 768, 1.5, 5e-4
"""The width that their usual rate is for, how it grows for narrower ones (Turc et al., 2019, take up to ten times more
for widths of 128 and 256), and the highest that is given."""
ULMFIT = {"tune.decay": 1 / 2.6, "train.schedule": {"kind": "slanted"}, "train.lr": 3e-3}
"""Discriminative rates and slanted triangles, beside gradual unfreezing (Howard and Ruder, 2018); the rate is that of
the head, and each part below has 2.6 times less."""
MIX_RATE = 1e-3
"""Of a reader of mixed layers (Peters et al., 2018)."""
LAST_RATE = 1e-3
"""Of the topmost block and the head: a head that was just drawn learns too little at the rate of a whole model."""
EXTRA = 2
"""Blocks that are put on top of a frozen model."""
LAYERS = ("first", "last", "extra", "frozen")
"""Of these a run has one."""
FASTER = {"first": 2.0, "random": 3.0}
"""How much faster than a whole pre-trained model its upper half learns, and new weights do."""

RATED = config.kind(AdamW)
"""The optimizer that all of these rates, and those of the methods, are for."""

FIELDS = ("task", "type", "train", "dev", "test", "text", "pair", "label", "data", "force")


def choose(
    model: str | os.PathLike[str] | None = None,
    *,
    method: str | None = None,
    lr: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    settings: Mapping[str, Any] | Tuning | str | os.PathLike[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    **task: Any,
) -> Tuning:
    """The settings of a run. `task` holds what is given of: task, type, train, dev, test, text, pair, label,
    data, force.

    `settings` may be a tree, or the file with one: a run.json, or YAML. Other wishes go before it, `changes` too.
    """
    wishes = _task(task)
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
        found = Tuning.of(tree).changed({**given, **{f"task.{name}": value for name, value in wishes.items()}})
        return found if method is None else _resolved(found, method, given)
    if tree:
        raise UsageError(f"settings need the sections {', '.join(SECTIONS)}; `--dry-run` shows a whole tree")
    if model is None:
        raise UsageError("a run needs a model: a run, or a Hugging Face directory")
    path = given.pop("base.path", os.fspath(model))
    plain = Tuning(
        base=Base(path=path),
        task=config.from_dict(Wanted, wishes, where="task"),
        method=read_method("full"),
        tune=Tune(),
        data=Cut(),
        train=Fit(lr=1e-4),
    )
    return _resolved(plain, "full" if method is None else method, given)


def _resolved(tuning: Tuning, name: str, given: Mapping[str, Any]) -> Tuning:
    """The settings with a method by its name, and the learning rate that goes with it."""
    spec = spec_of(tuning.base.path)
    chosen, changes = named(name, spec)
    made = Tuning(
        base=tuning.base,
        task=tuning.task,
        method=read_method(chosen),
        tune=tuning.tune,
        data=tuning.data,
        train=tuning.train,
    )
    defaults = {"train.lr": usual_rate(chosen, spec), **changes}
    train = {path.removeprefix("train."): value for path, value in given.items() if path.startswith("train.")}
    kind = optimizer_of(train).get("kind", config.kind(tuning.train.optimizer))
    if rates_of(train) or kind != RATED:
        del defaults["train.lr"]
    return made.changed({**defaults, **given})


def explain_rate(tuning: Tuning) -> str:
    """The learning rate of a run and its source, in a line."""
    train, kind = tuning.train, config.kind(tuning.train.optimizer)
    if kind != RATED and train.lr == type(train.optimizer)().lr:
        return f"learning rate {train.lr:g}: the default of {kind}; that of the method is for {RATED}"
    return f"learning rate {train.lr:g} ({kind})"


def named(name: str, spec: Model) -> tuple[str, dict[str, Any]]:
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
            changes |= {"base.extra": EXTRA, "tune.trained": {"kind": "last_only", "layers": EXTRA}}
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
            known = [*METHODS.names(), *MORE]
            raise UsageError(f"unknown method '{part[:40]}'{nearest(part, known)} (allowed: {', '.join(known)})")
    layers = [part for part in parts if part in LAYERS or (part in ("gradual", "ulmfit") and len(methods) > 1)]
    if len(layers) > 1:
        raise UsageError(f"'{name[:60]}': keep one of {' and '.join(layers)}: each says which layers are trained")
    if "gradual" in methods and len(methods) == 2:
        methods.remove("gradual")
        changes["tune.trained"] = {"kind": "gradual"}
    if "mix" in parts and not methods and not layers:
        methods.append("frozen")
    if (methods or ["full"]) == ["full"]:
        changes |= _quicker(parts, spec)
    elif "mix" in parts and methods != ["gradual"]:
        changes["train.lr"] = MIX_RATE
    if len(methods) > 1:
        raise UsageError(f"'{name[:60]}': two methods on one model; keep one of {' and '.join(methods)}")
    return (methods or ["full"])[0], changes


def _quicker(parts: Sequence[str], spec: Model) -> dict[str, float]:
    """The rate where not all of a pre-trained model learns at once, if any."""
    times = max((FASTER.get(part, 1.0) for part in parts), default=1.0)
    if "last" in parts:
        return {"train.lr": LAST_RATE}
    if "extra" in parts:
        return {"train.lr": HIGHEST}
    return {"train.lr": float(f"{min(times * usual_rate('full', spec), HIGHEST):.3g}")} if times > 1 else {}


def usual_rate(method: str, spec: Model) -> float:
    """The learning rate of a method; where the body is trained, higher for narrow models."""
    rate: float = METHODS.get(method).rate
    if method in WHOLE and spec.width < WIDTH:
        rate = min(rate * (WIDTH / spec.width) ** POWER, HIGHEST)
    return float(f"{rate:.3g}")


def spec_of(path: str | os.PathLike[str]) -> Model:
    """The spec of a base, without reading its weights where that can be."""
    folder = located(path)
    if (folder / ADAPTER).is_file():
        return base_model(Base(path=str(folder)), seed=0).spec
    return checkpoint.inspect(folder)[0]


def read_tree(settings: Mapping[str, Any] | Tuning | str | os.PathLike[str] | None) -> dict[str, Any]:
    """A tree of settings, from wherever it is."""
    if isinstance(settings, Tuning):
        return settings.plain()
    if settings is None or isinstance(settings, Mapping):
        return dict(settings or {})
    file = Path(settings) / RUN if Path(settings).is_dir() else Path(settings)
    return io.read_json(file, UsageError) if file.suffix == ".json" else read_yaml(file)


def _task(given: Mapping[str, Any]) -> dict[str, Any]:
    unknown = [name for name in given if name not in FIELDS]
    if unknown:
        raise UsageError(f"unknown wish '{unknown[0]}'{nearest(unknown[0], FIELDS)}; of a task: {', '.join(FIELDS)}")
    found = {"name" if name == "task" else name: value for name, value in given.items() if value is not None}
    return {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in found.items()}


def numbers(text: str, what: str) -> tuple[float, ...]:
    """Numbers with commas between them, as `--lr 2e-5,3e-5` has them."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"cannot read {what} '{text[:40]}'; write numbers with commas: 2e-5,3e-5") from None


def label_counts(text: str) -> tuple[int | None, ...]:
    """Numbers of labels with commas between them; `all` is None.

    >>> label_counts("50,200,all")
    (50, 200, None)
    """
    parts: Sequence[str] = text.split(",")
    if any(part != "all" and (not part.isdecimal() or int(part) < 1) for part in parts):
        raise UsageError(f"cannot read --labels '{text[:40]}'; write 50,200,1000,all")
    return tuple(None if part == "all" else int(part) for part in parts)
