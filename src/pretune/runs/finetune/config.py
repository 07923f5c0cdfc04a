"""The settings of a fine-tuning run as one tree: `base`, `task`, `method`, `tune`, `data` and `train`.

`--set method.rank=16` changes one, `run.json` holds them all, and a run is repeated from that file.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pretune.adaptation.freeze import FirstFrozen, Frozen, Full, LastOnly
from pretune.adaptation.gradual_unfreezing import Gradual
from pretune.adaptation.methods import METHODS, AnyMethod
from pretune.adaptation.scalar_mix import Mixing
from pretune.core import config
from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.nn.attention_mask import Backend
from pretune.nn.pooling import Reading
from pretune.runs.config import TrainConfig, apply_changes
from pretune.tasks.task import Type
from pretune.training.cost import Tariff
from pretune.training.optim import AdamW, Optim
from pretune.training.schedules import LinearSchedule, Schedule

SECTIONS = ("base", "task", "method", "tune", "data", "train")


@spec(tagged=False)
class BaseConfig:
    """What is adapted: the directory of a run or a Hugging Face model, with its weights or with new ones."""

    path: str
    weights: Literal["pretrained", "random"] = "pretrained"
    extra: int = 0  # new blocks on top
    tokenizer: str | None = None  # the directory of another, whose vocabulary the base is given
    positions: int | None = None  # another number of them, where they are learnt

    def __post_init__(self) -> None:
        if self.extra < 0:
            raise UsageError(f"base.extra {self.extra} must be 0 or more: how many new blocks are put on top")

    @property
    def changed_field(self) -> str | None:
        """What is done to the base before it is adapted, if anything."""
        return next((name for name in ("extra", "tokenizer", "positions") if getattr(self, name)), None)


@spec(tagged=False)
class TaskConfig:
    """The task: one of ours by `name`, or files of one's own by `train` and columns."""

    name: str | None = None
    type: Type | None = None  # of files of one's own; None: found by the rule of `tasks.own`
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    text: str | None = None
    pair: str | None = None
    label: str | None = None
    data: str | None = None  # the directory that has our tasks
    labels: int | None = None  # so many training examples, stratified; None: all
    each: int | None = None  # the same, at most: of several tasks so many of each; None: all
    most: int | None = None  # so many examples of dev and of test, stratified; None: all, as published
    split: int = 0  # the seed of divisions, and of which labels are kept
    force: bool = False  # train on fewer than a handful of examples, or without any of a class

    def __post_init__(self) -> None:
        if (self.name is None) == (self.train is None):
            what = "neither was given" if self.name is None else f"found '{self.name}' and '{self.train}'"
            raise UsageError(f"a task is one of ours (--task NAME) or one's own files (--train FILE); {what}")
        for name in ("dev", "test", "text", "pair", "label"):
            if self.name is not None and getattr(self, name) is not None:
                raise UsageError(f"--{name} is for files of one's own; leave it out, or give --train instead of --task")
        if self.type == "embedding":
            raise UsageError(
                "type embedding: vectors are trained by `pretune finetune --type embedding`, in Python by "
                "`pt.train_embeddings(MODEL, train=FILE, out=RUN)`"
            )
        for name in ("labels", "each", "most"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"task.{name} {value} must be at least 1: how many examples are kept")


@spec(tagged=False)
class AdaptationConfig:
    """What is trained beside what the method says, and how the head is made."""

    trained: Full | FirstFrozen | LastOnly | Gradual = Full()  # of what the method leaves to be trained
    decay: float | None = None  # the rate of each part over that of the next above; None: the same for all
    dropout: float | None = None  # of the head; None: its own
    reading: Reading | None = None  # which states stand for a text; None: as the directory states, or the paper
    head: Literal["drawn", "probe"] = "drawn"  # how the head begins: new, or fitted on the frozen model (LP-FT)
    mix: Mixing | None = None  # a BiLSTM over all layers of a frozen model, in place of the usual head (ELMo)
    language: float = 0.0  # the weight of the language model's loss beside a classification; 0.5 in GPT's paper
    text: bool | None = None  # the answer as text; None: where the model was made for that
    temperature: float = 1.0  # of mixing several tasks: 1 by their sizes, higher more evenly

    def __post_init__(self) -> None:
        if self.decay is not None and not 0 < self.decay <= 1:
            raise UsageError(f"tune.decay {self.decay:g} must be above 0 and at most 1")
        if not self.temperature >= 1:
            raise UsageError(f"tune.temperature {self.temperature:g} must be at least 1")


@spec(tagged=False)
class SequenceConfig:
    """How examples become sequences; None: what the model and the kind of task allow."""

    max_length: int | None = None  # special tokens included
    stride: int = 128  # of windows over long passages
    new_tokens: int | None = None  # of an answer that is text


@spec(tagged=False)
class FinetuneTrainConfig:
    """How it learns. `steps` or `epochs` say how long."""

    steps: int | None = None
    epochs: float | None = None
    batch: int = 32  # examples of a step
    lr: float
    optimizer: Optim = AdamW()  # its `lr` is the one above
    schedule: Schedule = LinearSchedule(warmup=0.1)
    clip: float | None = 1.0
    seed: int = 0
    patience: int | None = None  # so many evaluations without anything better end it; None: it goes to its end
    eval_every: int = 0  # steps; 0: every epoch, and of long ones ten times in a run
    judge: int | None = None  # examples of dev that choices are made on; None: 2,000, or 200 where text is written
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool = False
    graphs: bool | None = None  # a step's kernels started as one; None: on CUDA, where there is room
    attention_backend: Backend | None = None
    recompute: bool = False
    deterministic: bool = False  # on CUDA; a CPU is anyway
    micro_tokens: int | None = None
    workers: int | None = None  # processes that make batches; None: none, a thread does it for a GPU
    checkpoint_every: int = 0  # 0: every five minutes
    keep: int = 2  # checkpoints; 0: none are written, and what is killed begins anew
    log_every: int = 10
    trackers: tuple[str, ...] = ()
    tariff: Tariff = Tariff()

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise UsageError("a run has one length, found steps and epochs; keep one")
        for name in ("steps", "epochs", "batch", "lr", "patience", "judge", "micro_tokens"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"train.{name} {value} must be greater than 0")
        for name in ("eval_every", "checkpoint_every", "log_every", "workers"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UsageError(f"train.{name} {value} must be 0 or more")
        if self.keep < 2 and self.keep != 0:
            raise UsageError(f"train.keep {self.keep} must be 0 (no checkpoints), or at least 2")

    def to_train_config(self) -> TrainConfig:
        """What pre-training's settings say of how a step is computed."""
        return TrainConfig(
            lr=self.lr,
            optimizer=self.optimizer,
            micro_tokens=self.micro_tokens,
            precision=self.precision,
            residual="fp32",
            attention_backend=self.attention_backend,
            recompute=self.recompute,
            deterministic=self.deterministic,
            graphs=self.graphs,
            workers=self.workers,
        )


MUTABLE_ON_RESUME = frozenset(
    {f"train.{name}" for name in ("workers", "checkpoint_every", "keep", "log_every", "micro_tokens", "trackers")}
    | {"train.tariff", "train.graphs", "task.data", "task.force"}
)
"""What may change when a run is resumed: none of it changes what is learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneConfig:
    """The tree, typed."""

    base: BaseConfig
    task: TaskConfig
    method: AnyMethod
    tune: AdaptationConfig
    data: SequenceConfig
    train: FinetuneTrainConfig

    def __post_init__(self) -> None:
        """What is saved of a method is a small file beside the base, which has to be there as it was."""
        if isinstance(self.method, Full | Frozen | Gradual):
            return
        name = config.get_kind(self.method)
        if self.base.weights == "random":
            raise UsageError(f"'{name}' on new weights: its file would have no base to go with; use --method random")
        if self.base.changed_field == "extra":
            raise UsageError(
                f"base.extra {self.base.extra}: a file of '{name}' has no room for new blocks; use --method extra, "
                "full, frozen or gradual"
            )
        if self.base.changed_field is not None:
            raise UsageError(
                f"base.{self.base.changed_field}: a file of '{name}' goes with the base as it is; save the changed one first "
                "(docs/adaptation.md, Surgery), or use --method full, frozen or gradual"
            )

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {name: config.to_dict(getattr(self, name)) for name in SECTIONS}

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any], source: str = "run.json") -> "FinetuneConfig":
        """From JSON."""
        for name in SECTIONS:
            if not isinstance(tree.get(name), Mapping):
                raise UsageError(f"{source}: the section '{name}' is missing; it has: {', '.join(SECTIONS)}")
        return cls(
            base=config.from_dict(BaseConfig, tree["base"], location="base"),
            task=config.from_dict(TaskConfig, tree["task"], location="task"),
            method=read_method(tree["method"]),
            tune=config.from_dict(AdaptationConfig, tree["tune"], location="tune"),
            data=config.from_dict(SequenceConfig, tree["data"], location="data"),
            train=config.from_dict(FinetuneTrainConfig, tree["train"], location="train"),
        )

    def replace(self, changes: Mapping[str, Any]) -> "FinetuneConfig":
        """With values at some paths replaced: `train.lr`, `method.rank`, `tune.decay`."""
        return replace(self, **apply_changes({name: getattr(self, name) for name in SECTIONS}, changes))

    def diff(self, other: "FinetuneConfig") -> dict[str, tuple[Any, Any]]:
        """The paths at which two runs differ in what is learnt."""
        found = {
            f"{name}.{path}": pair
            for name in SECTIONS
            for path, pair in config.diff(getattr(self, name), getattr(other, name)).items()
        }
        return {path: pair for path, pair in found.items() if not _is_mutable(path)}

    def sha256(self) -> str:
        """A hash of all that changes what is learnt."""
        tree = {
            name: {key: value for key, value in part.items() if not _is_mutable(f"{name}.{key}")}
            for name, part in self.to_dict().items()
        }
        return hashlib.sha256(json.dumps(tree, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _is_mutable(path: str) -> bool:
    return ".".join(path.split(".")[:2]) in MUTABLE_ON_RESUME


def read_method(tree: Mapping[str, Any] | str) -> AnyMethod:
    """A method from its name, or from JSON with its name as `kind`."""
    given = {"kind": tree} if isinstance(tree, str) else dict(tree)
    kinds = {config.get_kind(METHODS.get(name)): METHODS.get(name) for name in METHODS}
    known, name = {**kinds, **{name: METHODS.get(name) for name in METHODS}}, given.get("kind")
    if not isinstance(name, str) or name not in known:
        raise UsageError(f"method: unknown kind '{str(name)[:40]}' (allowed: {', '.join(METHODS.list_names())})")
    found: AnyMethod = config.from_dict(known[name], {**given, "kind": config.get_kind(known[name])}, location="method")
    return found
