"""Configs of runs: one tree of settings per run, whose sections are specs.

`--set train.lr=3e-4` overrides one value; `run.json` stores the whole tree, and `--config run.json` repeats the run.
"""

import dataclasses
import hashlib
import json
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

from pretune.core import config as specs
from pretune.core import io
from pretune.core.config import Ge, Gt, Le, NonNegative, PathText, Positive, spec
from pretune.core.config.edit import parse_value
from pretune.core.config.read import format_value, read_yaml
from pretune.core.config.specs import get_fields, parse_annotation, to_plain
from pretune.core.errors import UsageError, suggest
from pretune.core.registry import Registry
from pretune.core.run_dir import LocatedSettings, MovedPath, RunDir, get_path, locate_paths
from pretune.data.plan import LengthSchedule, Phase
from pretune.data.sampling import Mixing
from pretune.models.spec import Model
from pretune.objectives import OBJECTIVES
from pretune.objectives.base import Objective
from pretune.training.config import Optim, ResidualPrecision, Schedule, TrainConfig
from pretune.training.distributed import Parallel

LayerDecay = Annotated[float, Gt(0), Le(1)]
LENGTHS = ("steps", "tokens", "epochs", "budget")
"""Fields of `train` for the length of a run, of which one is set."""


FITTED_PARTS: Mapping[str, Any] = {"train.optimizer": Optim, "train.schedule": Schedule}
"""Parts of a config that fitted settings replace as a whole."""

STOP_EARLY_PATIENCE = 3
"""Evaluations without improvement after which `--stop-early` ends a run: about a third of a run with ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Config of a run; the fields of a subclass are the sections."""

    moved_paths: Mapping[str, MovedPath] = field(default_factory=dict, repr=False, compare=False)
    """Paths that a resumed run finds elsewhere; the run is identified by their original text."""
    registries: ClassVar[Mapping[str, Registry[Any]]] = {}
    """Registries of the sections whose kind is a name in a registry."""
    mutable_paths: ClassVar[frozenset[str]] = frozenset(
        {"train.workers", "train.micro_tokens", "train.cuda_graphs", "train.checkpoint_every", "train.max_checkpoints"}
        | {"train.log_every", "train.trackers", "train.cost_rates"}
    )
    """Settings that may change on resume: the weights do not depend on them, except for rounding."""

    @classmethod
    def list_sections(cls) -> list[str]:
        """Return the names of the sections."""
        return [field.name for field in dataclasses.fields(cls) if field.name != "moved_paths"]

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form, as run.json stores it."""
        return {name: specs.to_dict(getattr(self, name)) for name in self.list_sections()}

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any], source: str = "run.json") -> Self:
        """Return the config of a plain form in the current format; `source` names it in errors."""
        names, types = cls.list_sections(), typing.get_type_hints(cls)
        for name in names:
            if not isinstance(tree.get(name), Mapping):
                raise UsageError(f"{source}: the section '{name}' is missing (expected: {', '.join(names)})")
        return cls(
            **{
                name: read_registered(cls.registries[name], tree[name], name)
                if name in cls.registries
                else specs.from_dict(types[name], tree[name], location=name)
                for name in names
            }
        )

    def replace(self, overrides: Mapping[str, object]) -> Self:
        """Return the config with the values at some paths replaced, such as `train.lr`, `model.depth`, `method.rank`.

        `train.lr` and `train.optimizer.lr` stay equal.
        """
        sections = {name: getattr(self, name) for name in self.list_sections()}
        if any(path.startswith("train.") for path in overrides):
            overrides = {**overrides, **_resolve_rate(overrides, sections["train"])}
        by_section: dict[str, dict[str, object]] = {}
        for path, value in overrides.items():
            section, _, rest = path.partition(".")
            if section not in sections or not rest:
                paths = [f"{name}.{path}" for name, part in sections.items() for path in specs.list_paths(part)]
                endings = [name for name in paths if name.endswith(f".{path}")]
                hint = f"; did you mean '{min(endings, key=len)}'?" if endings else suggest(path, paths)
                raise UsageError(f"unknown setting '{path}'{hint} (sections: {', '.join(sections)})")
            by_section.setdefault(section, {})[rest] = value
        new_sections = {
            name: specs.replace(sections[name], values, location=name) for name, values in by_section.items()
        }
        return dataclasses.replace(self, **new_sections)

    def diff_all(self, other: Self) -> dict[str, tuple[Any, Any]]:
        """Return the paths at which two configs differ, with both values."""
        return {
            f"{name}.{path}": pair
            for name in self.list_sections()
            for path, pair in specs.diff(getattr(self, name), getattr(other, name)).items()
        }

    def diff(self, other: Self) -> dict[str, tuple[Any, Any]]:
        """Return the differences that change the weights: those that a resumed run may not have."""
        differences = self.restore_paths().diff_all(other.restore_paths())
        return {path: pair for path, pair in differences.items() if not self._is_mutable(path)}

    def restore_paths(self) -> Self:
        """Return the config with the original text of all paths."""
        tree = self.to_dict()
        texts = {name: path.typed for name, path in self.moved_paths.items() if get_path(tree, name) == path.place}
        return self.replace(texts)

    def move_paths(self, located_settings: LocatedSettings) -> Self:
        """Return the config of a run whose paths are found elsewhere, or are missing and have new values here."""
        tree = self.to_dict()
        moved_paths = dict(located_settings.moved)
        for name in located_settings.missing:
            place, original = get_path(tree, name), get_path(located_settings.tree, name)
            if place is not None and original is not None and place != original:
                moved_paths[name] = MovedPath(place, original)
        return dataclasses.replace(self, moved_paths=moved_paths)

    def sha256(self) -> str:
        """Return a hash of all settings that the weights depend on."""
        config = self.restore_paths()
        parts = {name: specs.to_dict(getattr(config, name), for_hash=True) for name in self.list_sections()}
        tree = {
            name: {key: value for key, value in part.items() if not self._is_mutable(f"{name}.{key}")}
            for name, part in parts.items()
        }
        return hashlib.sha256(json.dumps(tree, sort_keys=True, allow_nan=False).encode()).hexdigest()

    def _is_mutable(self, path: str) -> bool:
        return ".".join(path.split(".")[:2]) in self.mutable_paths


SampleKind = Literal["documents", "sentences", "blocks", "pairs", "streams"]


@spec(has_kind=False)
class DataConfig:
    """Data settings of a run."""

    path: PathText
    samples: SampleKind = "documents"
    max_length: Annotated[int, Ge(2)] = 512  # including special tokens; of a window of streams
    memory: NonNegative[int] | None = None  # tokens of attention to earlier windows of streams; None: `max_length`
    vary_windows: bool | None = None  # of streams, in training; None: for recurrent models
    length_schedule: tuple[float, int] | None = None  # (share, length): first share of the run, on shorter sequences
    mixing: Mixing | None = None
    languages: tuple[str, ...] = ()  # of each source, in order; "en-de" if it is parallel

    @property
    def schedule(self) -> LengthSchedule:
        """Phases of the run."""
        if self.length_schedule is None or self.length_schedule[1] >= self.max_length:
            return LengthSchedule(phases=(Phase(share=1.0, length=self.max_length),))
        share, length = self.length_schedule
        return LengthSchedule(
            phases=(Phase(share=share, length=length), Phase(share=1 - share, length=self.max_length))
        )


@spec(has_kind=False)
class PretrainTrainConfig(TrainConfig):
    """Training settings of pre-training. One of `steps`, `tokens`, `epochs` and `budget` (seconds) is its length."""

    tokens: Positive[int] | None = None
    budget: Positive[float] | None = None
    init_from: PathText | None = None  # directory of the initial weights (`--from`)
    token_vectors: Literal["own", "counted"] = "own"  # counted: PPMI vectors of the text; of a trained model, added
    batch_tokens: Positive[int] = 65_536  # per optimizer step, over all ranks and micro-batches
    residual_precision: ResidualPrecision = "auto"  # of the residual stream; auto: as `precision`
    layer_decay: LayerDecay | None = None  # learning rate relative to the layer above; None: 1
    parallel: Parallel = "ddp"
    eval_tokens: NonNegative[int] | None = None  # validation tokens; None: at most 500,000, on a CPU 50,000
    samples_every: NonNegative[int] | None = None  # steps between text samples; 0: none; None: a few in a run
    prompts: tuple[str, ...] = ()  # of text samples; empty: validation text
    patience: Positive[int] | None = None  # evaluations without improvement; None: train on

    def __post_init__(self) -> None:
        lengths = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(lengths) > 1:
            raise UsageError(f"a run has one length, got {' and '.join(lengths)}; keep one")


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig(RunConfig):
    """The config of a pre-training run."""

    model: Model
    objective: Objective
    data: DataConfig
    train: PretrainTrainConfig

    registries: ClassVar[Mapping[str, Registry[Any]]] = {"objective": OBJECTIVES}
    mutable_paths = RunConfig.mutable_paths | {
        "data.path",
        "objective.teacher",
        "train.parallel",
        "train.eval_every",
        "train.eval_tokens",
        "train.samples_every",
        "train.prompts",
    }

    def __post_init__(self) -> None:
        if self.model.is_recurrent and self.objective.needs_attention:
            raise UsageError(
                f"the objective '{self.objective.name}' needs attention to later tokens, which the recurrent model "
                f"'{self.model.family}' lacks; choose another objective or family"
            )
        if self.objective.needs_recurrence and not (self.model.is_recurrent or self.model.is_encoder_decoder):
            raise UsageError(
                f"the objective '{self.objective.name}' needs a recurrent model, which keeps the text in its state; "
                f"'{self.model.family}' would copy it with attention; choose another objective or family"
            )
        if self.data.samples == "streams":
            self._check_streams()
        elif self.data.memory is not None or self.data.vary_windows is not None:
            raise UsageError("data.memory and data.vary_windows are settings of streams; add data.samples=streams")

    def _check_streams(self) -> None:
        """Raise `UsageError` for a run that cannot carry a state from one window of contiguous streams to the next."""
        if not (self.objective.allows_streams and self.model.carries_state):
            raise UsageError(
                "data.samples=streams needs an objective and a model that carry a state: causal with a recurrent model "
                "that reads from left to right, or permuted with a two-stream model; got "
                f"'{self.objective.name}' with '{self.model.family}'; use data.samples=blocks"
            )
        if self.data.mixing is not None:
            raise UsageError("data.samples=streams reads the sources one after another; remove data.mixing")
        if self.model.is_recurrent and self.data.memory is not None:
            raise UsageError("a recurrent model carries its states, of all earlier tokens; remove data.memory")
        for name in ("compile", "cuda_graphs"):
            if getattr(self.train, name):
                raise UsageError(f"train.{name} needs equal shapes, but windows and memory of streams vary; remove it")

    @property
    def memory(self) -> int:
        """Tokens of attention's memory of earlier windows."""
        return self.data.max_length if self.data.memory is None else self.data.memory

    @property
    def varies_windows(self) -> bool:
        """True if the lengths of windows vary in training."""
        return self.model.is_recurrent if self.data.vary_windows is None else self.data.vary_windows


def read_config(config: Mapping[str, object] | RunConfig | str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return a tree of settings, whole or partial: of a config, a mapping, a YAML file, or a run.json."""
    if isinstance(config, RunConfig):
        return config.to_dict()
    if config is None or isinstance(config, Mapping):
        return dict(config or {})
    path = specs.check_path(config)
    file = RunDir(path).settings if path.is_dir() else path
    if file.suffix == ".json":
        return locate_paths(io.read_formatted_json(file, UsageError), file.parent).tree
    return read_yaml(file)


def read_registered(registry: Registry[Any], tree: Mapping[str, object] | str, location: str) -> Any:
    """Return a spec of a registry from its name or kind, or from its plain form with either as `kind`."""
    values = {"kind": tree} if isinstance(tree, str) else dict(tree)
    name = values.get("kind")
    if not isinstance(name, str):
        raise UsageError(f"{location}: 'kind' must be one of {', '.join(registry.list_names())}")
    if name not in registry:
        name = next((other for other in registry if specs.get_kind(registry.get(other)) == name), name)
    cls = registry.get(name)
    return specs.from_dict(cls, {**values, "kind": specs.get_kind(cls)}, location)


def read_objective(tree: Mapping[str, object] | str) -> Objective:
    """Return an objective from its name, or from its plain form with the name as `kind`."""
    objective: Objective = read_registered(OBJECTIVES, tree, "objective")
    return objective


def _resolve_rate(overrides: Mapping[str, object], train: TrainConfig) -> dict[str, object]:
    """Return the learning rate under both names: as set, else the default of a new optimizer, else that of `train`."""
    rates = find_rates(overrides)
    if len({str(rate) for rate in rates}) > 1:
        raise UsageError(
            f"train.lr and train.optimizer.lr are the same setting, got {' and '.join(map(str, rates))}; keep one"
        )
    name = read_optimizer(overrides).get("kind")
    new_class = (
        parse_annotation(Optim).specs.get(name)
        if isinstance(name, str) and name != specs.get_kind(train.optimizer)
        else None
    )
    rate = rates[0] if rates else train.lr if new_class is None else new_class().lr
    return {"train.lr": rate, "train.optimizer.lr": rate}


def find_rates(overrides: Mapping[str, object]) -> list[object]:
    """Return every learning rate in overrides: under either name, or inside an optimizer."""
    rates = [overrides[path] for path in ("train.lr", "train.optimizer.lr") if path in overrides]
    optimizer = read_optimizer(overrides)
    return [*rates, optimizer["lr"]] if "lr" in optimizer else rates


def read_optimizer(overrides: Mapping[str, object]) -> Mapping[str, object]:
    """Return the optimizer in overrides, as plain data; empty where there is none."""
    value = overrides.get("train.optimizer")
    value = parse_value(Optim, value, "train.optimizer") if isinstance(value, str) else to_plain(value)
    return value if isinstance(value, Mapping) else {}


def merge_settings(fitted_settings: Mapping[str, object], overrides: Mapping[str, object]) -> dict[str, object]:
    """Return fitted settings, except those that a user has replaced, with those of the user.

    A fitted optimizer or schedule without the field that a user sets gives way as a whole, and its rate with it.
    """
    settings = dict(fitted_settings)
    for path in overrides:
        parent, _, name = path.rpartition(".")
        part = settings.get(parent)
        if isinstance(part, Mapping):
            part_class = parse_annotation(FITTED_PARTS[parent]).specs[part["kind"]]
            if name not in get_fields(part_class):
                del settings[parent]
        settings = {key: value for key, value in settings.items() if key != path and not key.startswith(f"{path}.")}
    if "train.optimizer.lr" in overrides or "train.optimizer" in fitted_settings.keys() - settings.keys():
        settings.pop("train.lr", None)
    return {**settings, **overrides}


def refuse_conflicts(options: Mapping[str, object], overrides: Mapping[str, object]) -> None:
    """Refuse a path that has different values in `options` and `overrides`; options that are None were not set."""
    for path, value in options.items():
        if value is not None and path in overrides and str(overrides[path]) != str(value):
            raise UsageError(
                f"'{path}' is set twice: to {format_value(value)} and to {format_value(overrides[path])}; keep one"
            )
