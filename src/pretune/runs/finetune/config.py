"""Config of a fine-tuning run: one tree with the sections `base`, `task`, `method`, `tune`, `data` and `train`.

`--set method.rank=16` changes one value; `run.json` stores the whole tree, and `--config run.json` repeats the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pretune.adaptation.freeze import FirstFrozen, Frozen, Full, Gradual, LastOnly
from pretune.adaptation.methods import METHODS, AnyMethod
from pretune.adaptation.scalar_mix import Mixing
from pretune.core import config
from pretune.core.config import Constraint, Fraction, Ge, Gt, Le, NonNegative, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.registry import Registry
from pretune.nn.heads import PoolingConfig
from pretune.runs.config import RunConfig
from pretune.training.config import TrainConfig
from pretune.training.schedules import LinearSchedule, Schedule


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
    type: str | None = None  # of the user's files; None: detected by `tasks.user_table`
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


class ZeroOrSeveral(Constraint):
    """A number other than 1."""

    def allows(self, value: Any) -> bool:
        return bool(value == 0 or value >= 2)

    def __str__(self) -> str:
        return "0 or >= 2"


@spec(has_kind=False)
class FinetuneTrainConfig(TrainConfig):
    """Training settings of fine-tuning. `steps` or `epochs` is the length of the run."""

    schedule: Schedule = LinearSchedule(warmup=0.1)
    compile: bool | None = False
    workers: NonNegative[int] | None = None  # data loader processes; None: none, but a thread for a GPU
    eval_every: NonNegative[int] = 0  # steps; 0: every epoch, at least ten times in a run of long epochs
    max_checkpoints: Annotated[int, ZeroOrSeveral()] = 2  # 0: no checkpoints, so an interrupted trial starts again
    batch: Positive[int] = 32  # examples per optimizer step
    patience: Positive[int] | None = None  # evaluations without improvement; None: no early stopping
    eval_examples: Positive[int] | None = None  # dev examples per evaluation; None: 2,000, or 200 for generation

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise UsageError("a run has one length, got steps and epochs; keep one")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneConfig(RunConfig):
    """The config of a fine-tuning run: base model, task, method, adaptation, sequences and training."""

    base: BaseConfig
    task: TaskConfig
    method: AnyMethod
    tune: AdaptationConfig
    data: SequenceConfig
    train: FinetuneTrainConfig

    registries: ClassVar[Mapping[str, Registry[Any]]] = {"method": METHODS}
    mutable_paths = RunConfig.mutable_paths | {"task.data", "task.force"}

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
