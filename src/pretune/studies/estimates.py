"""Configs and costs of steps before anything is trained: parameters, FLOPs, time and memory, from specs alone.

The number and length of examples are estimated without reading all of a published task.
"""

import functools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice

from pretune.core import config as specs
from pretune.models import catalog
from pretune.models.cost import Precision, estimate_memory, flops_per_token
from pretune.models.devices import DEVICES, Device
from pretune.models.families import FAMILIES
from pretune.models.generator_discriminator import Pair
from pretune.models.spec import Model
from pretune.runs.config import PretrainConfig
from pretune.runs.defaults import build_paper_config
from pretune.runs.estimate import compute_training_flops, detect_device, estimate_batch_tokens, measure_flops
from pretune.runs.finetune.config import FinetuneConfig, TaskConfig
from pretune.runs.finetune.defaults import FULL_METHODS
from pretune.runs.finetune.task_data import SPLIT_SHARES, find_trainable_task, open_task
from pretune.runs.options import PretrainOptions, TokenizerOptions
from pretune.runs.training_data import DataFacts
from pretune.studies.plan import StepEstimate
from pretune.tasks.example import Example
from pretune.tasks.task import AvailableSplit
from pretune.text.corpora.builtin import Reviews
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train

BYTES_PER_TOKEN = 4.3
"""English text in a vocabulary of 8,000 to 50,000 tokens."""
STEP_SECONDS = {"cpu": 0.012, "cuda": 0.006}
"""Overhead of an optimizer step of a small model: data, optimizer, logging."""
START_SECONDS = {"cpu": 2.0, "cuda": 20.0}
"""Start of a run, its validations and its files; on a GPU with compilation."""
PREPARE_BYTES_PER_SECOND, TOKENIZER_BYTES_PER_SECOND = 2e6, 8e6
"""Text that one core tokenizes, and that a tokenizer is trained on, per second."""
BASELINE_SECONDS = 2.0
MAX_EVALUATIONS = 10
"""Evaluations of a fine-tuning run, as far as its settings do not state fewer."""
VALIDATION_SHARE = 0.1
"""Cost of the validations of a run, relative to its training."""
CPU_UTILISATION, CPU_WIDTHS = 0.65, (32, 512)
"""Share of the speed of square matrix products of a model's width that one core reaches, and the measured widths."""
SAMPLE_EXAMPLES = 500
"""Examples whose length is measured."""
SPECIAL_TOKENS = 3
"""Special tokens of a sequence or pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """A model that is not trained yet: its config, the FLOPs of a training token, and its parameters."""

    config: PretrainConfig
    flops_per_token: float
    parameters: int  # of all models that are trained together: a generator is included
    data_tokens: int
    batch_tokens: float  # of a step, if all rows are full

    @property
    def spec(self) -> Model:
        """Spec of the model that fine-tuning starts from."""
        spec = catalog.convert_to_shape(self.config.model, self.config.objective.shapes)
        return catalog.list_models(spec)[-1 if isinstance(spec, Pair) else 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSize:
    """Numbers of examples of the splits of a task, and the characters of a sample of them."""

    train: int
    dev: int
    test: int
    characters: tuple[int, ...]

    def compute_length(self, characters_per_token: float, limit: int | None) -> float:
        """Return the mean number of tokens of an example, with at most `limit` of each."""
        sizes = [count / characters_per_token + SPECIAL_TOKENS for count in self.characters]
        return sum(min(size, limit or size) for size in sizes) / max(len(sizes), 1) or 1.0

    def limit(self, max_train: int | None, max_eval: int | None) -> "TaskSize":
        """Return the size with at most these numbers of examples."""
        train = self.train if max_train is None else min(self.train, max_train)
        if max_eval is None:
            return replace(self, train=train)
        return replace(self, train=train, dev=min(self.dev, max_eval), test=min(self.test, max_eval))


class TaskSizes:
    """Measures each task once, whatever the seed of its splits; a published task by the sizes of its files."""

    def __init__(self) -> None:
        self._sizes: dict[TaskConfig, TaskSize] = {}

    def measure(self, task_config: TaskConfig) -> TaskSize:
        """Return the size of a task, or of several comma-separated ones; the table of a user is opened and checked."""
        key = replace(task_config, split_seed=0, train_examples=None, max_eval_examples=None, force=False)
        if key not in self._sizes:
            if key == TaskConfig(train=Reviews().name, data=key.data):
                self._sizes[key] = _measure_reviews()
            elif key.name is None:
                parts = open_task(key).parts
                counts = len(parts.train), len(parts.dev), len(parts.test)
                self._sizes[key] = _make_size(*counts, parts.train or parts.dev)
            else:
                self._sizes[key] = _measure_published(key)
        return self._sizes[key].limit(None, task_config.max_eval_examples)


def _measure_reviews() -> TaskSize:
    """Return the size of the built-in reviews, whose columns need no check."""
    texts = [text for text, _ in Reviews().read_examples()]
    train, dev, test = (round(len(texts) * share) for share in SPLIT_SHARES)
    return TaskSize(train=train, dev=dev, test=test, characters=tuple(map(len, texts[:SAMPLE_EXAMPLES])))


def _measure_published(task_config: TaskConfig) -> TaskSize:
    """Return the size of tasks by the number of examples that the catalog gives for their files."""
    sizes = []
    for name in (task_config.name or "").split(","):
        available = find_trainable_task(name).find_available(task_config.data)
        counts = {split: _count_examples(files) for split, files in available.items()}
        first = available.get("train") or next(iter(available.values()))
        train, dev, test = (counts.get(split, 0) for split in ("train", "dev", "test"))
        if not train:  # another split is divided
            total = dev or next(iter(counts.values()))
            train, dev, test = (round(total * share) for share in SPLIT_SHARES)
        elif not dev:
            train, dev = round(train * 0.9), round(train * 0.1)
        size = _make_size(train, dev, test, islice(first.read(), SAMPLE_EXAMPLES))
        sizes.append(size.limit(task_config.max_examples_per_task, None))
    characters = [count for size in sizes for count in size.characters]
    return TaskSize(
        train=sum(size.train for size in sizes),
        dev=sum(size.dev for size in sizes),
        test=sum(size.test for size in sizes),
        characters=tuple(characters),
    )


def _count_examples(files: AvailableSplit) -> int:
    return files.file.rows if files.file.rows is not None else sum(1 for _ in files.read())


def _make_size(train: int, dev: int, test: int, examples: Iterable[Example]) -> TaskSize:
    characters = (
        len(example.text) + len(example.pair or "") + sum(map(len, example.choices))
        for example in islice(examples, SAMPLE_EXAMPLES)
    )
    return TaskSize(train=train, dev=dev, test=test, characters=tuple(characters))


class Estimator:
    """Resolves the settings of runs on a device, and estimates their cost."""

    def __init__(self, device: str) -> None:
        self.device_type = device.partition(":")[0]
        self._models: dict[str, PlannedModel] = {}

    @functools.cached_property
    def device(self) -> Device:
        """The device: this machine's, or an H200 where a plan for a GPU is made without one."""
        import torch

        if self.device_type == "cuda" and not torch.cuda.is_available():
            return DEVICES["h200"]
        return detect_device(self.device_type)

    def find_rate(self, spec: Model) -> float:
        """Return the FLOP/s of a model: on a CPU those of one core, on which narrow models are slower."""
        if self.device_type != "cpu":
            return self.device.rate
        low, high = CPU_WIDTHS
        return CPU_UTILISATION * measure_core(min(max(spec.width, low), high))

    def _estimate_memory(self, spec: Model, tokens: int, length: int, targets: float = 1.0) -> int:
        precision: Precision = "bf16" if self.device_type == "cuda" else "fp32"
        return estimate_memory(
            spec, tokens=tokens, length=length, training=True, precision=precision, targets=targets
        ).total

    def resolve_model(
        self,
        options: PretrainOptions,
        tokenizer: TokenizerOptions,
        data: DataFacts,
        *,
        teacher: Model | None,
        base: Model | None,
    ) -> PlannedModel:
        """Return the model of a pre-training whose data and teacher are only named; wrong names are a UsageError."""
        overrides = {path: value for path, value in (options.overrides or {}).items() if path != "train.seed"}
        changes = {**options.list_changes(), "overrides": overrides}
        key = json.dumps([changes, tokenizer.list_changes(), repr((data, teacher, base))], allow_nan=False)
        if key not in self._models:
            planned_tokenizer = make_tokenizer(
                tokenizer.kind, tokenizer.vocab, tokenizer.style, lowercase=tokenizer.lowercase
            )
            vocab = {"model.vocab": base.vocab if base else tokenizer.vocab}
            config = build_paper_config(
                options.list_settings(), data, planned_tokenizer, self.device_type, {**vocab, **overrides}
            )
            spec = catalog.convert_to_shape(base or config.model, config.objective.shapes)
            flops = compute_training_flops(config, spec, planned_tokenizer, teacher)
            parameters = sum(model.params().total for model in catalog.list_models(spec))
            self._models[key] = PlannedModel(
                config=config,
                flops_per_token=flops,
                parameters=parameters,
                data_tokens=data.tokens,
                batch_tokens=estimate_batch_tokens(config, spec, planned_tokenizer),
            )
        return self._models[key]

    def estimate_pretrain(self, model: PlannedModel) -> StepEstimate:
        """Return the cost of a pre-training run."""
        train_config = model.config.train
        if train_config.steps is not None:
            tokens = round(train_config.steps * model.batch_tokens)
        else:
            tokens = train_config.tokens or round((train_config.epochs or 1.0) * model.data_tokens)
        steps = train_config.steps or math.ceil(tokens / model.batch_tokens)
        flops = tokens * model.flops_per_token
        rate = self.find_rate(model.spec)
        seconds = flops * (1 + VALIDATION_SHARE) / rate + steps * STEP_SECONDS[self.device_type]
        if train_config.budget is not None:
            seconds, tokens = train_config.budget, round(train_config.budget * rate / model.flops_per_token)
            flops = tokens * model.flops_per_token
        length = model.config.data.max_length
        batch_tokens = min(train_config.micro_tokens or train_config.batch_tokens, train_config.batch_tokens)
        length = min(length, model.spec.max_length or length)
        return StepEstimate(
            flops=flops,
            seconds=seconds + START_SECONDS[self.device_type],
            memory=self._estimate_memory(model.spec, batch_tokens, length),
            parameters=model.parameters,
            tokens=tokens,
        )

    def estimate_finetune(self, tuning: FinetuneConfig, spec: Model, task: TaskSize) -> StepEstimate:
        """Return the cost of fine-tuning, its validations and the scoring of dev and test."""
        examples, length = task.train, task.compute_length(BYTES_PER_TOKEN, tuning.data.max_length or spec.max_length)
        method = specs.get_kind(tuning.method)
        steps = tuning.count_steps(-(-examples // tuning.train.batch))
        per_token = flops_per_token(spec, length=max(round(length), 1), targets=0.0, training=True)
        train_tokens = steps * tuning.train.batch * length
        evaluations = min(-(-steps // tuning.train.eval_every) if tuning.train.eval_every else steps, MAX_EVALUATIONS)
        eval_examples = evaluations * min(task.dev, tuning.train.eval_examples or 2000) + task.dev + task.test
        if tuning.tune.head == "probe":
            eval_examples += examples  # whose features a linear model is fitted on
        eval_tokens = eval_examples * length
        share = 1 / 3 if method == "frozen" else 2 / 3 if method not in FULL_METHODS else 1.0
        flops = train_tokens * per_token * share
        rate = self.find_rate(spec)
        seconds = (flops + eval_tokens * per_token / 3) / rate + steps * STEP_SECONDS[self.device_type]
        batch_tokens = max(round(tuning.train.batch * length), 1)
        return StepEstimate(
            flops=flops,
            seconds=seconds + START_SECONDS["cpu"],
            memory=self._estimate_memory(spec, batch_tokens, max(round(length), 1), targets=0.0),
            parameters=spec.params().total,
            tokens=round(train_tokens),
        )

    def estimate_texts(self, spec: Model | None, count: int, length: float, *, training: bool) -> StepEstimate:
        """Return the cost of training embeddings on texts, or of scoring texts."""
        if spec is None:
            return StepEstimate(seconds=START_SECONDS["cpu"])
        targets = 0.0 if training else 1.0
        token_flops = flops_per_token(spec, length=max(round(length), 1), targets=targets, training=training)
        flops = count * length * token_flops
        seconds = flops / self.find_rate(spec) + START_SECONDS["cpu"]
        tokens = round(count * length) if training else 0
        return StepEstimate(flops=flops, seconds=seconds, parameters=spec.params().total, tokens=tokens)


@functools.cache
def measure_core(width: int) -> float:
    """Return the FLOP/s of one core for products of matrices of this width."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return measure_flops(torch.device("cpu"), torch.float32, width)
    finally:
        torch.set_num_threads(threads)


def find_default_tokenizer(model: str | None) -> TokenizerOptions:
    """Return kind, style and size of the tokenizer of a family's paper."""
    training = None if model is None else FAMILIES.get(catalog.parse_name(model)[0]).training
    if training is None:
        return TokenizerOptions(kind="wordpiece", vocab=30_000)
    kind, style, vocab = training.tokenizer
    return TokenizerOptions(kind=kind, style=style, vocab=vocab)


@functools.lru_cache
def make_tokenizer(kind: str, vocab: int, style: str | None, *, lowercase: bool) -> Tokenizer:
    """Return a small tokenizer with the special tokens of a planned one; a plan needs nothing else of it."""
    words = [f"{letter}{other} word text" for letter in "abcdefghijklmnopqrstuvwxyz" for other in "aeiou"]
    return train(kind, words * 3, vocab=min(vocab, 1000), style=style, lowercase=lowercase)
