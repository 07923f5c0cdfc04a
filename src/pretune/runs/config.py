"""Config of a pre-training run: one tree with the sections `model`, `objective`, `data` and `train`.

`--set train.lr=3e-4` changes one value; `run.json` stores the whole tree, and `--config run.json` repeats the run.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

from pretune.core import config
from pretune.core.config import Ge, NonNegative, Positive, Seed, spec
from pretune.core.config.read import format_value
from pretune.core.config.specs import parse_annotation, to_plain
from pretune.core.config.text import parse_value
from pretune.core.errors import UsageError, suggest
from pretune.core.migration import refuse_old_settings
from pretune.models.spec import Model
from pretune.nn.attention_mask import Backend
from pretune.objectives import OBJECTIVES
from pretune.objectives.base import Objective
from pretune.runs.training_data import DataConfig
from pretune.training.cost import CostRates
from pretune.training.distributed import Parallel
from pretune.training.optim import AdamW, Optim
from pretune.training.schedules import LinearSchedule, Schedule

T = TypeVar("T")
SECTIONS = ("model", "objective", "data", "train")


@spec(has_kind=False)
class TrainConfig:
    """Training settings. One of `steps`, `tokens`, `epochs` and `budget` (seconds) is the length of the run."""

    steps: Positive[int] | None = None
    tokens: Positive[int] | None = None
    epochs: Positive[float] | None = None
    budget: Positive[float] | None = None
    init_from: str | None = None  # directory of the initial weights (`--from`)
    lr: Positive[float]
    optimizer: Optim = AdamW()  # its `lr` equals `lr` above
    schedule: Schedule = LinearSchedule()
    batch_tokens: Positive[int] = 65_536  # per optimizer step, over all ranks and micro-batches
    micro_tokens: Positive[int] | None = None  # per rank and micro-batch; None: what fits into memory
    clip: float | None = 1.0
    seed: Seed = 0
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    residual_precision: Literal["auto", "fp32", "bf16"] = "auto"  # of the residual stream; auto: as `precision`
    compile: bool | None = None  # None: on CUDA
    cuda_graphs: bool | None = None  # None: on CUDA, where a graph takes at most half of the memory
    attention_backend: Backend | None = None
    activation_checkpointing: bool = False
    deterministic: bool = False  # on CUDA; runs on a CPU always are
    parallel: Parallel = "ddp"
    workers: NonNegative[int] | None = None  # data loader processes; None: 0 on a CPU, else by its cores
    eval_every: NonNegative[int] = 0  # steps; 0: ten times in a run
    eval_tokens: NonNegative[int] | None = None  # validation tokens; None: at most 500,000, on a CPU 50,000
    checkpoint_every: NonNegative[int] = 0  # steps; 0: every five minutes
    max_checkpoints: Annotated[int, Ge(2)] = 2
    log_every: NonNegative[int] = 10
    samples_every: NonNegative[int] | None = None  # steps between text samples; 0: none; None: a few in a run
    prompts: tuple[str, ...] = ()  # of text samples; empty: validation text
    trackers: tuple[str, ...] = ()  # tensorboard, wandb
    cost_rates: CostRates = CostRates()

    def __post_init__(self) -> None:
        lengths = [name for name in ("steps", "tokens", "epochs", "budget") if getattr(self, name) is not None]
        if len(lengths) > 1:
            raise UsageError(f"a run has one length, got {' and '.join(lengths)}; keep one")


MUTABLE_ON_RESUME = frozenset(
    {"workers", "eval_every", "eval_tokens", "checkpoint_every", "max_checkpoints", "log_every", "parallel"}
    | {"micro_tokens", "samples_every", "prompts", "trackers", "cost_rates", "cuda_graphs"}
)
"""Fields of `train` that may change on resume: the weights do not depend on them, except for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """The config of a pre-training run."""

    model: Model
    objective: Objective
    data: DataConfig
    train: TrainConfig

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form, as run.json stores it."""
        return {name: config.to_dict(getattr(self, name)) for name in SECTIONS}

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any], source: str = "run.json") -> "PretrainConfig":
        """Return the config of a plain form in the current format; `source` names it in errors."""
        for name in SECTIONS:
            if not isinstance(tree.get(name), Mapping):
                raise UsageError(f"{source}: the section '{name}' is missing (expected: {', '.join(SECTIONS)})")
        return cls(
            model=config.from_dict(Model, tree["model"], location="model"),
            objective=read_objective(tree["objective"]),
            data=config.from_dict(DataConfig, tree["data"], location="data"),
            train=config.from_dict(TrainConfig, tree["train"], location="train"),
        )

    def replace(self, changes: Mapping[str, Any]) -> "PretrainConfig":
        """Return the config with the values at some paths replaced: `train.lr`, `objective.rate`, `model.depth`."""
        return replace(self, **apply_changes({name: getattr(self, name) for name in SECTIONS}, changes))

    def diff_all(self, other_config: "PretrainConfig") -> dict[str, tuple[Any, Any]]:
        """Return the paths at which two configs differ, with both values."""
        return {
            f"{name}.{path}": pair
            for name in SECTIONS
            for path, pair in config.diff(getattr(self, name), getattr(other_config, name)).items()
        }

    def diff(self, other_config: "PretrainConfig") -> dict[str, tuple[Any, Any]]:
        """Return the differences that change the weights: those that a resumed run may not have."""
        mutable = {"data.path", *(f"train.{name}" for name in MUTABLE_ON_RESUME)}
        differences = self.diff_all(other_config)
        return {path: pair for path, pair in differences.items() if ".".join(path.split(".")[:2]) not in mutable}

    def sha256(self) -> str:
        """Return a hash of all settings that the weights depend on."""
        tree = self.to_dict()
        tree["train"] = {name: value for name, value in tree["train"].items() if name not in MUTABLE_ON_RESUME}
        tree["data"] = {name: value for name, value in tree["data"].items() if name != "path"}
        return hashlib.sha256(json.dumps(tree, sort_keys=True, allow_nan=False).encode()).hexdigest()


def apply_changes(sections: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections that `changes` touch, changed; `train.lr` and `train.optimizer.lr` stay equal."""
    refuse_old_settings(changes)
    inner: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        section, _, rest = path.partition(".")
        if section not in sections or not rest:
            paths = [f"{name}.{path}" for name, part in sections.items() for path in config.list_paths(part)]
            endings = [name for name in paths if name.endswith(f".{path}")]
            hint = f"; did you mean '{min(endings, key=len)}'?" if endings else suggest(path, paths)
            raise UsageError(f"unknown setting '{path}'{hint} (sections: {', '.join(sections)})")
        inner.setdefault(section, {})[rest] = value
    if "train" in inner:
        inner["train"] |= _resolve_rate(inner["train"], sections["train"])
    return {name: replace_in_section(name, sections[name], values) for name, values in inner.items()}


def replace_in_section(section: str, part: T, changes: Mapping[str, Any]) -> T:
    """Return a section with the values at some of its paths replaced; errors name whole paths."""
    try:
        return config.replace(part, changes, location=section)
    except UsageError as error:
        raise (error if str(error).startswith(f"{section}.") else UsageError(f"{section}: {error}")) from None


def _resolve_rate(changes: Mapping[str, Any], train: Any) -> dict[str, Any]:
    """Return the learning rate under both names: as set, else the default of a new optimizer, else that of `train`."""
    rates = find_rates(changes)
    if len({str(rate) for rate in rates}) > 1:
        raise UsageError(
            f"train.lr and train.optimizer.lr are the same setting, got {' and '.join(map(str, rates))}; keep one"
        )
    name = read_optimizer(changes).get("kind")
    new_class = (
        parse_annotation(Optim).specs.get(name)
        if isinstance(name, str) and name != config.get_kind(train.optimizer)
        else None
    )
    rate = rates[0] if rates else train.lr if new_class is None else new_class().lr
    return {"lr": rate, "optimizer.lr": rate}


def find_rates(changes: Mapping[str, Any]) -> list[Any]:
    """Return every learning rate in changes of the section `train`: under either name, or inside an optimizer."""
    rates = [changes[name] for name in ("lr", "optimizer.lr") if name in changes]
    optimizer = read_optimizer(changes)
    return [*rates, optimizer["lr"]] if "lr" in optimizer else rates


def read_optimizer(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the optimizer in changes of the section `train`, as plain data; empty where there is none."""
    value = changes.get("optimizer")
    value = parse_value(Optim, value, "train.optimizer") if isinstance(value, str) else to_plain(value)
    return value if isinstance(value, Mapping) else {}


def refuse_conflicts(options: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Refuse a path that has different values in `options` and `changes`; options that are None were not set."""
    for path, value in options.items():
        if value is not None and path in changes and str(changes[path]) != str(value):
            raise UsageError(
                f"'{path}' is set twice: to {format_value(value)} and to {format_value(changes[path])}; keep one"
            )


def refuse_unused(settings: PretrainConfig, changes: Mapping[str, Any]) -> PretrainConfig:
    """Return the config, or raise a UsageError that names the first change it does not have.

    Values that follow from the rest of a run (special tokens, heads that the objective does not train) cannot be set.
    """
    for path, (value, actual) in settings.replace(changes).diff_all(settings).items():
        raise UsageError(
            f"'{path}' cannot be {_format_value(value)}: the model, the objective and the data set it to "
            f"{_format_value(actual)}; leave it out"
        )
    return settings


def _format_value(value: Any) -> str:
    return f"'{value['kind']}'" if isinstance(value, Mapping) and "kind" in value else format_value(value)


def read_objective(tree: Mapping[str, Any] | str) -> Objective:
    """Return an objective from its name, or from its plain form with the name as `kind`."""
    values = {"kind": tree} if isinstance(tree, str) else dict(tree)
    name = values.get("kind")
    if not isinstance(name, str):
        raise UsageError(f"objective: 'kind' must be one of {', '.join(OBJECTIVES.list_names())}")
    return config.from_dict(OBJECTIVES.get(name), values, location="objective")
