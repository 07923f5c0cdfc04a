"""Config of a fine-tuning run: one tree with the sections `base`, `task`, `method`, `tune`, `data` and `train`.

`--set method.rank=16` changes one value; `run.json` stores the whole tree, and `--config run.json` repeats the run.

A trial has an outlook: the time that evaluation, further trials and baselines will take.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pretune.adaptation.distillation import TaskDistill
from pretune.adaptation.freeze import FirstFrozen, Frozen, Full, Gradual, LastOnly
from pretune.adaptation.methods import METHODS, AnyMethod
from pretune.adaptation.policy_gradient import GRPO
from pretune.adaptation.preference import AnyPreferenceLoss
from pretune.adaptation.scalar_mix import Mixing
from pretune.core import config
from pretune.core.config import Constraint, Fraction, Ge, Gt, Le, NonNegative, PathText, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.registry import Registry
from pretune.evaluation.baselines import MAX_TRAIN_EXAMPLES
from pretune.nn.heads import PoolingConfig
from pretune.runs.config import RunConfig
from pretune.tasks.example import Example
from pretune.training.config import LinearSchedule, Schedule, TrainConfig

MIN_STEPS, MAX_EPOCHS = 300, 30.0
"""Least length of a run by default, in steps, but no more than so many epochs (Mosbach et al., 2021)."""
EVALUATIONS_PER_RUN, LONG_EPOCH_STEPS = 10, 500
"""Epochs of more than LONG_EPOCH_STEPS steps are evaluated EVALUATIONS_PER_RUN times per run instead."""


@spec(has_kind=False)
class BaseConfig:
    """The base model: the directory of a run or a Hugging Face model, with its weights or with random ones."""

    path: PathText
    weights: Literal["pretrained", "random"] = "pretrained"
    extra_layers: NonNegative[int] = 0  # new blocks on top
    tokenizer: PathText | None = None  # directory of a tokenizer that replaces the base's
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
    train: PathText | None = None
    dev: PathText | None = None
    test: PathText | None = None
    text: str | None = None
    pair: str | None = None
    label: str | None = None
    reward: str | None = None  # metric of sampled answers, which trains the model
    data: PathText | None = None  # directory of the built-in tasks
    train_examples: Positive[int] | None = None  # number of training examples, stratified; None: all
    max_examples_per_task: Positive[int] | None = None  # of several tasks, at most this many of each; None: all
    max_eval_examples: Positive[int] | None = None  # of dev and of test, stratified; None: all, as published
    split_seed: int = 0  # of splits and of the sample of training examples
    force: bool = False  # train on fewer than 5 examples, or without examples of a class
    strict: bool = False  # refuse files with a blank cell, instead of skipping such rows

    def __post_init__(self) -> None:
        if (self.name is None) == (self.train is None):
            values = "got neither" if self.name is None else f"got '{self.name}' and '{self.train}'"
            raise UsageError(f"a run needs either --task NAME or --train FILE; {values}")
        for name in ("dev", "test", "text", "pair", "label", "reward"):
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
    dropout_factor: Annotated[float, Ge(0)] = 1.0  # on all dropout rates of the body
    pooling: PoolingConfig | None = None  # of the head; None: that of the directory, else of the paper
    head: Literal["random", "probe"] = "random"  # initialization: random, or a linear probe (LP-FT)
    scalar_mix: Mixing | None = None  # a BiLSTM over a mix of all frozen layers, as head (ELMo)
    lm_loss_weight: NonNegative[float] = 0.0  # of the language modeling loss added to a classification; GPT: 0.5
    text_to_text: bool | None = None  # generate the answer as text; None: for models such as T5
    lm_epochs: Annotated[float, Ge(0)] = 0.0  # of pre-training on the task's texts first (ULMFiT, TAPT)
    lm_lr: Positive[float] | None = None  # its learning rate; None: that of pre-training
    temperature: Annotated[float, Ge(1)] = 1.0  # of sampling several tasks: 1 by their sizes, higher more evenly
    cache_features: bool = True  # of a frozen model: compute them once, if they are small enough
    preference: AnyPreferenceLoss | None = None  # loss of pairs of answers; None: DPO
    distill: TaskDistill | None = None  # imitation of a fine-tuned teacher (`--teacher`)
    grpo: GRPO | None = None  # training on rewards of sampled answers (`--reward`)


@spec(has_kind=False)
class SequenceConfig:
    """Encoding of examples as sequences; None: what the model and the task type allow."""

    max_length: int | None = None  # special tokens included
    stride: NonNegative[int] = 128  # overlap of windows over long passages
    max_new_tokens: Positive[int] | None = None  # of a generated answer


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
    default_epochs: Positive[float] = 3.0  # where neither steps nor epochs is set (Devlin et al., 2019)
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
        if (self.tune.grpo is None) != (self.task.reward is None):
            raise UsageError("tune.grpo is for tasks with a reward, and they need it; choose one with --reward NAME")
        if self.tune.grpo is not None and self.tune.distill is not None:
            raise UsageError(
                "answers are sampled for rewards, or imitated from a teacher; remove --teacher or --reward"
            )
        if isinstance(self.method, Full | Frozen | Gradual):
            return
        name = config.get_kind(self.method)
        if self.train.precision == "fp8":
            raise UsageError(
                f"train.precision=fp8 with '{name}': layers with adapters have no products in fp8; use bf16"
            )
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

    def count_steps(self, steps_per_epoch: int) -> int:
        """Return the number of steps; methods that train few parameters take twice as many by default."""
        if self.train.steps is not None:
            return self.train.steps
        if self.train.epochs is not None:
            return max(math.ceil(self.train.epochs * steps_per_epoch), 1)
        default_steps = max(self.train.default_epochs * steps_per_epoch, min(MIN_STEPS, MAX_EPOCHS * steps_per_epoch))
        return math.ceil(default_steps * (1 if isinstance(self.method, Full | Gradual) else 2))


@spec(has_kind=False)
class SweepPlan:
    """Trials of a run: rates are compared on dev with the first seed and all labels; other trials use the best rate."""

    rates: tuple[float, ...]
    seeds: tuple[int, ...] = (0,)
    train_examples: tuple[int | None, ...] = (None,)  # training examples; None: all
    baselines: tuple[str, ...] = ()
    forgetting: PathText | None = None  # prepared data for the pre-training loss before and after
    vectors: PathText | None = None  # word vectors for the baseline `vectors`

    def __post_init__(self) -> None:
        nouns = {"learning rates": self.rates, "seeds": self.seeds, "numbers of training examples": self.train_examples}
        for name, values in nouns.items():
            if not values or len(set(values)) < len(values):
                raise UsageError(f"{name} {', '.join(map(str, values))}: need at least one, without duplicates")

    @property
    def is_single(self) -> bool:
        """True for a single trial, which is then the run itself."""
        return len(self.rates) == len(self.seeds) == len(self.train_examples) == 1

    @property
    def trial_count(self) -> int:
        """Number of trials."""
        return len(self.rates) - 1 + len(self.seeds) * len(self.train_examples)

    @property
    def max_train_examples(self) -> int | None:
        """Largest training set size: that of the result."""
        return None if None in self.train_examples else max(count for count in self.train_examples if count is not None)

    def format_name(self, tuning: FinetuneConfig) -> str:
        """Return the name of a trial."""
        return f"labels-{tuning.task.train_examples or 'all'}-lr-{tuning.train.lr:g}-seed-{tuning.train.seed}"

    def list_rate_trials(self, tuning: FinetuneConfig) -> Iterator[FinetuneConfig]:
        """Yield the trials that select a learning rate; with one rate, its first trial."""
        for rate in self.rates:
            yield tuning.replace(
                {"train.lr": rate, "train.seed": self.seeds[0], "task.train_examples": self.max_train_examples}
            )

    def list_remaining_trials(self, tuning: FinetuneConfig, rate: float) -> Iterator[FinetuneConfig]:
        """Yield all other trials, with the selected rate."""
        largest = self.max_train_examples
        for count in sorted(self.train_examples, key=lambda count: count != largest):
            for seed in self.seeds:
                if (count, seed) != (largest, self.seeds[0]):
                    yield tuning.replace({"train.lr": rate, "train.seed": seed, "task.train_examples": count})


def compute_eval_interval(steps_per_epoch: int, steps: int) -> int:
    """Return the steps between evaluations: an epoch, or a tenth of the run if epochs are long or very short.

    >>> compute_eval_interval(100, 300), compute_eval_interval(2000, 6000), compute_eval_interval(2, 300)
    (100, 600, 30)
    """
    tenth = max(steps // EVALUATIONS_PER_RUN, 1)
    return tenth if steps_per_epoch > LONG_EPOCH_STEPS or steps_per_epoch < tenth else steps_per_epoch


FORWARD_SHARE = 1 / 3
"""Cost of a prediction relative to a training step, until one has been timed."""
BASELINE_SECONDS = {"majority": 0.0, "svm": 0.01, "vectors": 0.04, "logistic": 0.03, "bilstm": 1.4}
"""Seconds of a baseline per 1,000 characters, measured on one core of a Neoverse-N1; others take as long as `vectors`.
"""


@dataclass(slots=True, kw_only=True)
class TrialOutlook:
    """Time of a trial besides its `steps`: `eval_examples` predictions every `eval_every` steps, `final_examples` at
    the end.

    >>> outlook = TrialOutlook(steps=100, eval_every=50, eval_examples=10, final_examples=30, batch=1,
    ...                        baseline_seconds=5.0)
    >>> outlook.add_predictions(20, 10.0)  # seconds of predictions: 0.5 each
    >>> outlook.get_elapsed(), outlook.estimate_remaining(1.0, 60)  # (10 + 30) x 0.5 and 5
    (10.0, 25.0)
    """

    steps: int
    eval_every: int
    eval_examples: int
    final_examples: int
    batch: int
    remaining_trials: int = 0  # of the run after this one, like it
    baseline_seconds: float = 0.0  # of the run
    predictions: int = 0
    seconds: float = 0.0

    def add_predictions(self, predictions: int, seconds: float) -> None:
        """Count predictions and their time."""
        self.predictions, self.seconds = self.predictions + predictions, self.seconds + seconds

    def get_elapsed(self) -> float:
        """Return the seconds of predictions so far."""
        return self.seconds

    def estimate_remaining(self, step_seconds: float, step: int) -> float:
        """Return the expected seconds besides the steps; `step_seconds` is the mean duration of a step."""
        prediction_seconds = (
            self.seconds / self.predictions if self.predictions else step_seconds / self.batch * FORWARD_SHARE
        )
        trial = self.steps * step_seconds + self._count_predictions(0) * prediction_seconds
        rest = self._count_predictions(step) * prediction_seconds
        return rest + self.remaining_trials * trial + self.baseline_seconds

    def _count_predictions(self, step: int) -> int:
        """Return the number of predictions after a step."""
        evaluations = max(math.ceil(self.steps / self.eval_every) - step // self.eval_every, 0)
        return evaluations * self.eval_examples + self.final_examples


def estimate_baseline_seconds(names: Sequence[str], train: Sequence[Example], test: Sequence[Example]) -> float:
    """Estimate the seconds of these baselines, without those that train the model itself."""
    characters = sum(len(example.text) + len(example.pair or "") for example in [*train[:MAX_TRAIN_EXAMPLES], *test])
    return sum(BASELINE_SECONDS.get(name, BASELINE_SECONDS["vectors"]) for name in names) * characters / 1000
