"""The settings of a run as one tree: `model`, `objective`, `data` and `train`.

`--set train.lr=3e-4` changes one, `run.json` holds them all, and a run is repeated from that file.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from pretune.core import config
from pretune.core.config import spec
from pretune.core.config.read import format_value
from pretune.core.config.specs import parse_annotation, to_plain
from pretune.core.config.text import parse_value
from pretune.core.errors import UsageError, suggest
from pretune.models.spec import Model
from pretune.nn.attention_mask import Backend
from pretune.objectives import OBJECTIVES
from pretune.objectives.base import Objective
from pretune.runs.training_data import DataConfig
from pretune.training.cost import Tariff
from pretune.training.distributed import Parallel
from pretune.training.optim import AdamW, Optim
from pretune.training.schedules import LinearSchedule, Schedule

T = TypeVar("T")
SECTIONS = ("model", "objective", "data", "train")


@spec(tagged=False)
class TrainConfig:
    """How a run learns. Of `steps`, `tokens`, `epochs` and `budget` (seconds) one says how long it is."""

    steps: int | None = None
    tokens: int | None = None
    epochs: float | None = None
    budget: float | None = None
    start: str | None = None  # a directory whose weights it goes on from (`--from`)
    lr: float
    optimizer: Optim = AdamW()  # its `lr` is the one above
    schedule: Schedule = LinearSchedule()
    batch_tokens: int = 65_536  # per step, over all ranks and micro-batches
    micro_tokens: int | None = None  # per rank at a time; found where it is not given
    clip: float | None = 1.0
    seed: int = 0
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    residual: Literal["auto", "fp32", "bf16"] = "auto"  # the stream between layers; auto: as the precision
    compile: bool | None = None  # None: on CUDA
    graphs: bool | None = None  # a step's kernels started as one; None: on CUDA, where it takes half its memory at most
    attention_backend: Backend | None = None
    recompute: bool = False  # activations, to save memory
    deterministic: bool = False  # on CUDA; a CPU is anyway
    parallel: Parallel = "ddp"
    workers: int | None = None  # processes that make batches; None: 0 on a CPU, else by its cores
    eval_every: int = 0  # 0: ten times in a run
    eval_tokens: int | None = None  # held-out tokens that are read each time; None: 500,000, on a CPU 50,000, or fewer
    checkpoint_every: int = 0  # 0: every five minutes
    keep: int = 2
    log_every: int = 10
    samples_every: int | None = None  # steps between looks at what the model says; 0: none; None: a few in a run
    prompts: tuple[str, ...] = ()  # what it is asked then; none: held-out text
    trackers: tuple[str, ...] = ()  # tensorboard, wandb
    tariff: Tariff = Tariff()

    def __post_init__(self) -> None:
        given = [name for name in ("steps", "tokens", "epochs", "budget") if getattr(self, name) is not None]
        if len(given) > 1:
            raise UsageError(f"a run has one length, found {' and '.join(given)}; keep one")
        for name in ("steps", "tokens", "epochs", "budget", "lr", "batch_tokens", "micro_tokens"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"train.{name} {value} must be greater than 0")
        for name in ("workers", "eval_every", "checkpoint_every", "log_every", "samples_every", "eval_tokens"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UsageError(f"train.{name} {value} must be 0 or more")
        if self.keep < 2:
            raise UsageError(f"train.keep {self.keep} must be at least 2")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"train.seed {self.seed} must be from 0 to 2**63 - 1")


MUTABLE_ON_RESUME = frozenset(
    {"workers", "eval_every", "eval_tokens", "checkpoint_every", "keep", "log_every", "parallel", "micro_tokens"}
    | {"samples_every", "prompts", "trackers", "tariff", "graphs"}
)
"""What may change when a run is resumed: none of it changes what is learnt (but for rounding). Data may have moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """The tree, typed."""

    model: Model
    objective: Objective
    data: DataConfig
    train: TrainConfig

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {name: config.to_dict(getattr(self, name)) for name in SECTIONS}

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any], source: str = "run.json") -> "PretrainConfig":
        """From JSON."""
        for name in SECTIONS:
            if not isinstance(tree.get(name), Mapping):
                raise UsageError(f"{source}: the section '{name}' is missing; it has: {', '.join(SECTIONS)}")
        return cls(
            model=config.from_dict(Model, tree["model"], location="model"),
            objective=read_objective(tree["objective"]),
            data=config.from_dict(DataConfig, tree["data"], location="data"),
            train=config.from_dict(TrainConfig, tree["train"], location="train"),
        )

    def replace(self, changes: Mapping[str, Any]) -> "PretrainConfig":
        """With values at some paths replaced: `train.lr`, `objective.rate`, `model.depth`."""
        return replace(self, **apply_changes({name: getattr(self, name) for name in SECTIONS}, changes))

    def diff_all(self, other: "PretrainConfig") -> dict[str, tuple[Any, Any]]:
        """The paths at which two runs differ."""
        return {
            f"{name}.{path}": pair
            for name in SECTIONS
            for path, pair in config.diff(getattr(self, name), getattr(other, name)).items()
        }

    def diff(self, other: "PretrainConfig") -> dict[str, tuple[Any, Any]]:
        """The paths at which two runs differ in what is learnt."""
        harmless = {"data.path", *(f"train.{name}" for name in MUTABLE_ON_RESUME)}
        found = self.diff_all(other)
        return {path: pair for path, pair in found.items() if ".".join(path.split(".")[:2]) not in harmless}

    def sha256(self) -> str:
        """A hash of all that changes what is learnt."""
        tree = self.to_dict()
        tree["train"] = {name: value for name, value in tree["train"].items() if name not in MUTABLE_ON_RESUME}
        tree["data"] = {name: value for name, value in tree["data"].items() if name != "path"}
        return hashlib.sha256(json.dumps(tree, sort_keys=True, allow_nan=False).encode()).hexdigest()


def apply_changes(sections: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some sections that changes touch, changed. One of them is `train`, whose rate has two names."""
    inner: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        section, _, rest = path.partition(".")
        if section not in sections or not rest:
            known = [f"{name}.{path}" for name, part in sections.items() for path in config.list_paths(part)]
            ends = [one for one in known if one.endswith(f".{path}")]
            hint = f"; did you mean '{min(ends, key=len)}'?" if ends else suggest(path, known)
            raise UsageError(f"unknown setting '{path}'{hint}; it starts with {' or '.join(sections)}")
        inner.setdefault(section, {})[rest] = value
    if "train" in inner:
        inner["train"] |= _resolve_rate(inner["train"], sections["train"])
    return {name: replace_in_section(name, sections[name], some) for name, some in inner.items()}


def replace_in_section(section: str, part: T, changes: Mapping[str, Any]) -> T:
    """A section with values at some of its paths replaced; errors name whole paths."""
    try:
        return config.replace(part, changes)
    except UsageError as error:
        raise (error if str(error).startswith(f"{section}.") else UsageError(f"{section}: {error}")) from None


def _resolve_rate(changes: Mapping[str, Any], train: Any) -> dict[str, Any]:
    """The rate under both of its names: as given, else the default of another optimizer, else the one of `train`."""
    rates = find_rates(changes)
    if len({str(rate) for rate in rates}) > 1:
        raise UsageError(f"train.lr and train.optimizer.lr are one, found {' and '.join(map(str, rates))}; keep one")
    name = read_optimizer(changes).get("kind")
    other = (
        parse_annotation(Optim).specs.get(name)
        if isinstance(name, str) and name != config.get_kind(train.optimizer)
        else None
    )
    rate = rates[0] if rates else train.lr if other is None else other().lr
    return {"lr": rate, "optimizer.lr": rate}


def find_rates(changes: Mapping[str, Any]) -> list[Any]:
    """Every learning rate that changes of the section `train` give, by either name or inside an optimizer."""
    rates = [changes[name] for name in ("lr", "optimizer.lr") if name in changes]
    optimizer = read_optimizer(changes)
    return [*rates, optimizer["lr"]] if "lr" in optimizer else rates


def read_optimizer(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The optimizer that changes of the section `train` give, as plain data; empty where they give none."""
    value = changes.get("optimizer")
    value = parse_value(Optim, value, "train.optimizer") if isinstance(value, str) else to_plain(value)
    return value if isinstance(value, Mapping) else {}


def refuse_conflicts(options: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Refuse a path that an option and `changes` give different values; options that are None were not given."""
    for path, value in options.items():
        if value is not None and path in changes and str(changes[path]) != str(value):
            raise UsageError(
                f"'{path}' is set twice: to {format_value(value)} and to {format_value(changes[path])}; keep one"
            )


def refuse_unused(settings: PretrainConfig, changes: Mapping[str, Any]) -> PretrainConfig:
    """Return the settings, unless they lack one of the changes: then name it in a UsageError.

    What the rest of a run decides (special tokens, heads that the objective does not train) cannot be set.
    """
    for path, (wanted, now) in settings.replace(changes).diff_all(settings).items():
        raise UsageError(
            f"'{path}' cannot be {_format_value(wanted)}: the model, the objective and the data make it {_format_value(now)}; leave "
            "it out"
        )
    return settings


def _format_value(value: Any) -> str:
    return f"'{value['kind']}'" if isinstance(value, Mapping) and "kind" in value else format_value(value)


def read_objective(tree: Mapping[str, Any] | str) -> Objective:
    """An objective from its name, or from JSON with its name as `kind`."""
    given = {"kind": tree} if isinstance(tree, str) else dict(tree)
    name = given.get("kind")
    if not isinstance(name, str):
        raise UsageError(f"objective: 'kind' must be one of {', '.join(OBJECTIVES.list_names())}")
    return config.from_dict(OBJECTIVES.get(name), given, location="objective")
