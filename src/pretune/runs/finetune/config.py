"""Config of a fine-tuning run: one tree with the sections `base`, `task`, `method`, `tune`, `data` and `train`.

`--set method.rank=16` changes one value; `run.json` stores the whole tree, and `--config run.json` repeats the run.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pretune.adaptation.freeze import FirstFrozen, Frozen, Full, LastOnly
from pretune.adaptation.gradual_unfreezing import Gradual
from pretune.adaptation.methods import METHODS, AnyMethod
from pretune.adaptation.scalar_mix import Mixing
from pretune.core import config
from pretune.core.config import Fraction, Ge, Gt, Le, NonNegative, Positive, spec
from pretune.core.errors import UsageError
from pretune.nn.attention_mask import Backend
from pretune.nn.heads import PoolingConfig
from pretune.runs.config import TrainConfig, apply_changes
from pretune.tasks.task import Type
from pretune.training.cost import CostRates
from pretune.training.optim import AdamW, Optim
from pretune.training.schedules import LinearSchedule, Schedule

SECTIONS = ("base", "task", "method", "tune", "data", "train")


@spec(has_kind=False)
class BaseConfig:
    """The base model: the directory of a run or a Hugging Face model, with its weights or with random ones."""

    path: str
    weights: Literal["pretrained", "random"] = "pretrained"
    extra_layers: NonNegative[int] = 0  # new blocks on top
    tokenizer: str | None = None  # directory of a tokenizer that replaces the base's
    positions: int | None = None  # new number of learned positions

    @property
    def changed_field(self) -> str | None:
        """Return the first field that changes the base model before adaptation, if any."""
        return next((name for name in ("extra_layers", "tokenizer", "positions") if getattr(self, name)), None)


@spec(has_kind=False)
class TaskConfig:
    """The task: a built-in one by `name`, or files of the user by `train` and columns."""

    name: str | None = None
    type: Type | None = None  # of the user's files; None: detected by `tasks.user_table`
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    text: str | None = None
    pair: str | None = None
    label: str | None = None
    data: str | None = None  # directory of the built-in tasks
    train_examples: Positive[int] | None = None  # number of training examples, stratified; None: all
    max_examples_per_task: Positive[int] | None = None  # of several tasks, at most this many of each; None: all
    max_eval_examples: Positive[int] | None = None  # of dev and of test, stratified; None: all, as published
    split_seed: int = 0  # of splits and of the sample of training examples
    force: bool = False  # train on fewer than 5 examples, or without examples of a class

    def __post_init__(self) -> None:
        if (self.name is None) == (self.train is None):
            values = "got neither" if self.name is None else f"got '{self.name}' and '{self.train}'"
            raise UsageError(f"a run needs either --task NAME or --train FILE; {values}")
        for name in ("dev", "test", "text", "pair", "label"):
            if self.name is not None and getattr(self, name) is not None:
                raise UsageError(f"--{name} needs --train FILE, not --task; leave one of them out")
        if self.type == "embedding":
            raise UsageError(
                "type embedding: train with `pretune finetune --type embedding`, in Python with "
                "`pt.train_embeddings(MODEL, train=FILE, out=RUN)`"
            )


@spec(has_kind=False)
class AdaptationConfig:
    """Adaptation settings besides those of the method: trainable layers, learning rates per layer, and the head."""

    trainable_layers: Full | FirstFrozen | LastOnly | Gradual = Full()  # of those that the method trains
    layer_decay: Annotated[float, Gt(0), Le(1)] | None = None  # learning rate relative to the layer above; None: 1
    dropout: Fraction | None = None  # of the head; None: its default
    pooling: PoolingConfig | None = None  # of the head; None: that of the directory, else of the paper
    head: Literal["random", "probe"] = "random"  # initialization: random, or a linear probe (LP-FT)
    scalar_mix: Mixing | None = None  # a BiLSTM over a mix of all frozen layers, as head (ELMo)
    lm_loss_weight: float = 0.0  # of the language modeling loss added to a classification; GPT: 0.5
    text_to_text: bool | None = None  # generate the answer as text; None: for models such as T5
    temperature: Annotated[float, Ge(1)] = 1.0  # of sampling several tasks: 1 by their sizes, higher more evenly


@spec(has_kind=False)
class SequenceConfig:
    """Encoding of examples as sequences; None: what the model and the task type allow."""

    max_length: int | None = None  # special tokens included
    stride: int = 128  # of windows over long passages
    max_new_tokens: int | None = None  # of a generated answer


@spec(has_kind=False)
class FinetuneTrainConfig:
    """Training settings of fine-tuning. `steps` or `epochs` is the length of the run."""

    steps: Positive[int] | None = None
    epochs: Positive[float] | None = None
    batch: Positive[int] = 32  # examples per optimizer step
    lr: Positive[float]
    optimizer: Optim = AdamW()  # its `lr` equals `lr` above
    schedule: Schedule = LinearSchedule(warmup=0.1)
    clip: float | None = 1.0
    seed: int = 0
    patience: Positive[int] | None = None  # evaluations without improvement; None: no early stopping
    eval_every: NonNegative[int] = 0  # steps; 0: every epoch, at least ten times in a run of long epochs
    eval_examples: Positive[int] | None = None  # dev examples per evaluation; None: 2,000, or 200 for generation
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool = False
    cuda_graphs: bool | None = None  # None: on CUDA, where there is memory
    attention_backend: Backend | None = None
    activation_checkpointing: bool = False
    deterministic: bool = False  # on CUDA; runs on a CPU always are
    micro_tokens: Positive[int] | None = None
    workers: NonNegative[int] | None = None  # data loader processes; None: none, but a thread for a GPU
    checkpoint_every: NonNegative[int] = 0  # steps; 0: every five minutes
    max_checkpoints: NonNegative[int] = 2  # 0: no checkpoints, so an interrupted trial starts again
    log_every: NonNegative[int] = 10
    trackers: tuple[str, ...] = ()
    cost_rates: CostRates = CostRates()

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise UsageError("a run has one length, got steps and epochs; keep one")
        if self.max_checkpoints == 1:
            raise UsageError("max_checkpoints must be 0 (no checkpoints) or >= 2, got 1")

    def to_train_config(self) -> TrainConfig:
        """Return the settings of pre-training that describe the computation of a step."""
        return TrainConfig(
            lr=self.lr,
            optimizer=self.optimizer,
            micro_tokens=self.micro_tokens,
            precision=self.precision,
            residual_precision="fp32",
            attention_backend=self.attention_backend,
            activation_checkpointing=self.activation_checkpointing,
            deterministic=self.deterministic,
            cuda_graphs=self.cuda_graphs,
            workers=self.workers,
        )


MUTABLE_ON_RESUME = frozenset(
    {f"train.{name}" for name in ("workers", "checkpoint_every", "log_every", "micro_tokens", "trackers")}
    | {"train.max_checkpoints", "train.cost_rates", "train.cuda_graphs", "task.data", "task.force"}
)
"""Settings that may change on resume: the weights do not depend on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneConfig:
    """The config of a fine-tuning run."""

    base: BaseConfig
    task: TaskConfig
    method: AnyMethod
    tune: AdaptationConfig
    data: SequenceConfig
    train: FinetuneTrainConfig

    def __post_init__(self) -> None:
        """Refuse changes of the base model with methods that save an adapter only, which needs the base unchanged."""
        if isinstance(self.method, Full | Frozen | Gradual):
            return
        name = config.get_kind(self.method)
        if self.base.weights == "random":
            raise UsageError(
                f"'{name}' with random weights: an adapter needs a saved base model; use --method from-scratch"
            )
        if self.base.changed_field == "extra_layers":
            raise UsageError(
                f"base.extra_layers {self.base.extra_layers}: an adapter of '{name}' cannot store new blocks; use "
                "--method extra-layers, full, frozen or gradual"
            )
        if self.base.changed_field is not None:
            raise UsageError(
                f"base.{self.base.changed_field}: an adapter of '{name}' needs the base model unchanged; save the "
                "changed model first (docs/adaptation.md, Surgery), or use --method full, frozen or gradual"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form, as run.json stores it."""
        return {name: config.to_dict(getattr(self, name)) for name in SECTIONS}

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any], source: str = "run.json") -> "FinetuneConfig":
        """Return the config of a plain form in the current format; `source` names it in errors."""
        for name in SECTIONS:
            if not isinstance(tree.get(name), Mapping):
                raise UsageError(f"{source}: the section '{name}' is missing (expected: {', '.join(SECTIONS)})")
        return cls(
            base=config.from_dict(BaseConfig, tree["base"], location="base"),
            task=config.from_dict(TaskConfig, tree["task"], location="task"),
            method=read_method(tree["method"]),
            tune=config.from_dict(AdaptationConfig, tree["tune"], location="tune"),
            data=config.from_dict(SequenceConfig, tree["data"], location="data"),
            train=config.from_dict(FinetuneTrainConfig, tree["train"], location="train"),
        )

    def replace(self, changes: Mapping[str, Any]) -> "FinetuneConfig":
        """Return the config with the values at some paths replaced: `train.lr`, `method.rank`, `tune.layer_decay`."""
        return replace(self, **apply_changes({name: getattr(self, name) for name in SECTIONS}, changes))

    def diff(self, other_config: "FinetuneConfig") -> dict[str, tuple[Any, Any]]:
        """Return the differences that change the weights: those that a resumed run may not have."""
        differences = {
            f"{name}.{path}": pair
            for name in SECTIONS
            for path, pair in config.diff(getattr(self, name), getattr(other_config, name)).items()
        }
        return {path: pair for path, pair in differences.items() if not _is_mutable(path)}

    def sha256(self) -> str:
        """Return a hash of all settings that the weights depend on."""
        tree = {
            name: {key: value for key, value in part.items() if not _is_mutable(f"{name}.{key}")}
            for name, part in self.to_dict().items()
        }
        return hashlib.sha256(json.dumps(tree, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _is_mutable(path: str) -> bool:
    return ".".join(path.split(".")[:2]) in MUTABLE_ON_RESUME


def read_method(tree: Mapping[str, Any] | str) -> AnyMethod:
    """Return a method from its name, or from its plain form with the name as `kind`."""
    values = {"kind": tree} if isinstance(tree, str) else dict(tree)
    kinds = {config.get_kind(METHODS.get(name)): METHODS.get(name) for name in METHODS}
    classes, name = {**kinds, **{name: METHODS.get(name) for name in METHODS}}, values.get("kind")
    if not isinstance(name, str) or name not in classes:
        raise UsageError(f"method: unknown kind '{str(name)[:40]}' (allowed: {', '.join(METHODS.list_names())})")
    cls = classes[name]
    method: AnyMethod = config.from_dict(cls, {**values, "kind": config.get_kind(cls)}, location="method")
    return method
