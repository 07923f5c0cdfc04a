"""Configs and costs of steps before anything is trained: parameters, FLOPs, time and memory, from specs alone."""

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pretune.core import config as specs
from pretune.core.errors import PretuneError
from pretune.models import catalog
from pretune.models.cost import estimate_memory, flops_per_token
from pretune.models.devices import DEVICES, Device
from pretune.models.families import FAMILIES
from pretune.models.generator_discriminator import Pair
from pretune.models.spec import Model
from pretune.runs.config import LENGTHS, PretrainConfig
from pretune.runs.defaults import build_paper_config
from pretune.runs.estimate import compute_training_flops, detect_device, estimate_batch_tokens, measure_flops
from pretune.runs.finetune.config import FinetuneConfig, count_steps
from pretune.runs.finetune.defaults import FULL_METHODS, build_finetune_config, read_base_spec
from pretune.runs.options.pretrain import PretrainOptions
from pretune.runs.options.tasks import FinetuneOptions
from pretune.runs.training_data import DataFacts
from pretune.studies.locations import HUB_PREFIX
from pretune.studies.plan import StepEstimate
from pretune.studies.task_sizes import TaskSize
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

    def resolve_model(
        self,
        arguments: Mapping[str, Any],
        tokenizer: Mapping[str, Any],
        data_bytes: int,
        sources: int,
        teacher: Model | None,
        base: Model | None,
    ) -> PlannedModel:
        """Return the model of the arguments of `pt.pretrain`; wrong names and paths are a UsageError."""
        overrides = {path: value for path, value in arguments["overrides"].items() if path != "train.seed"}
        key = json.dumps(
            [{**arguments, "overrides": overrides}, tokenizer, data_bytes, sources, repr(teacher)], allow_nan=False
        )
        if key not in self._models:
            planned_tokenizer = make_tokenizer(**tokenizer)
            facts = DataFacts("data", max(round(data_bytes / BYTES_PER_TOKEN), 1), sources)
            names = {name: arguments[name] for name in ("model", "objective", *LENGTHS) if name in arguments}
            teacher_path = "teacher" if "teacher" in arguments else None
            settings = PretrainOptions(**names, data="data", teacher=teacher_path).list_settings()
            vocab = {"model.vocab": base.vocab if base else tokenizer["vocab"]}
            config = build_paper_config(settings, facts, planned_tokenizer, self.device_type, {**vocab, **overrides})
            spec = catalog.convert_to_shape(config.model, config.objective.shapes)
            flops = compute_training_flops(config, spec, planned_tokenizer, teacher)
            parameters = sum(model.params().total for model in catalog.list_models(spec))
            self._models[key] = PlannedModel(
                config=config,
                flops_per_token=flops,
                parameters=parameters,
                data_tokens=facts.tokens,
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
        memory = estimate_memory(
            model.spec,
            tokens=min(train_config.micro_tokens or train_config.batch_tokens, train_config.batch_tokens),
            length=min(length, model.spec.max_length or length),
            training=True,
            precision="bf16" if self.device_type == "cuda" else "fp32",
        ).total
        return StepEstimate(
            flops=flops,
            seconds=seconds + START_SECONDS[self.device_type],
            memory=memory,
            parameters=model.parameters,
            tokens=tokens,
        )

    def resolve_finetune(self, arguments: Mapping[str, Any], spec: Model) -> FinetuneConfig:
        """Return the config of the arguments of `pt.finetune` for a model of this spec."""
        options = {
            name: value for name, value in arguments.items() if name not in ("model", "train_examples", "identity")
        }
        options = {name: value for name, value in options.items() if not name.startswith("rate_")}
        if "teacher" in options:
            options["teacher"] = "teacher"
        return build_finetune_config(FinetuneOptions(model="model", **options), base_spec=spec)

    def estimate_finetune(
        self, tuning: FinetuneConfig, spec: Model, train_examples: int | None, task: TaskSize
    ) -> StepEstimate:
        """Return the cost of fine-tuning, its validations and the scoring of dev and test."""
        examples = task.train if train_examples is None else min(train_examples, task.train)
        length = task.compute_length(BYTES_PER_TOKEN, tuning.data.max_length or spec.max_length)
        method = specs.get_kind(tuning.method)
        is_efficient = method not in FULL_METHODS
        steps = count_steps(tuning.train, -(-examples // tuning.train.batch), is_parameter_efficient=is_efficient)
        per_token = flops_per_token(spec, length=max(round(length), 1), targets=0.0, training=True)
        train_tokens = steps * tuning.train.batch * length
        evaluations = min(-(-steps // tuning.train.eval_every) if tuning.train.eval_every else steps, MAX_EVALUATIONS)
        eval_examples = evaluations * min(task.dev, tuning.train.eval_examples or 2000) + task.dev + task.test
        if tuning.tune.head == "probe":
            eval_examples += examples  # whose features a linear model is fitted on
        eval_tokens = eval_examples * length
        share = 1 / 3 if method == "frozen" else 2 / 3 if is_efficient else 1.0
        flops = train_tokens * per_token * share
        rate = self.find_rate(spec)
        seconds = (flops + eval_tokens * per_token / 3) / rate + steps * STEP_SECONDS[self.device_type]
        memory = estimate_memory(
            spec,
            tokens=max(round(tuning.train.batch * length), 1),
            length=max(round(length), 1),
            training=True,
            precision="bf16" if self.device_type == "cuda" else "fp32",
            targets=0.0,
        ).total
        return StepEstimate(
            flops=flops,
            seconds=seconds + START_SECONDS["cpu"],
            memory=memory,
            parameters=spec.params().total,
            tokens=round(train_tokens),
        )

    def estimate_embeddings(self, spec: Model | None, sequences: int, length: int) -> StepEstimate:
        """Return the cost of training embeddings on texts."""
        if spec is None:
            return StepEstimate(seconds=START_SECONDS["cpu"])
        tokens = sequences * length
        flops = tokens * flops_per_token(spec, length=length, targets=0.0, training=True)
        seconds = flops / self.find_rate(spec) + START_SECONDS["cpu"]
        return StepEstimate(flops=flops, seconds=seconds, parameters=spec.params().total, tokens=tokens)

    def estimate_evaluation(self, spec: Model | None, examples: int, length: float) -> StepEstimate:
        """Return the cost of scoring examples."""
        if spec is None:
            return StepEstimate(seconds=START_SECONDS["cpu"])
        flops = examples * length * flops_per_token(spec, length=max(round(length), 1), targets=1.0, training=False)
        return StepEstimate(
            flops=flops, seconds=flops / self.find_rate(spec) + START_SECONDS["cpu"], parameters=spec.params().total
        )


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


def find_default_tokenizer(model: str) -> dict[str, Any]:
    """Return kind, style and size of the tokenizer of a family's paper."""
    family = catalog.parse_name(model)[0]
    training = FAMILIES.get(family).training
    if training is None:
        return {"kind": "wordpiece", "vocab": 30_000}
    kind, style, vocab = training.tokenizer
    return {"kind": kind, "style": style, "vocab": vocab}


@functools.lru_cache
def make_tokenizer(kind: str, vocab: int, style: str | None = None, lowercase: bool = False, **_: Any) -> Tokenizer:
    """Return a small tokenizer with the special tokens of a planned one; a plan needs nothing else of it."""
    words = [f"{letter}{other} word text" for letter in "abcdefghijklmnopqrstuvwxyz" for other in "aeiou"]
    return train(kind, words * 3, vocab=min(vocab, 1000), style=style, lowercase=lowercase)


def find_published_spec(name: str) -> Model | None:
    """Return the spec of a released model by its name on the hub, without a download; None if it is not in the catalog.

    >>> find_published_spec("hf:google-bert/bert-base-uncased").family
    'bert'
    """
    parts = name.partition("@")[0].rpartition("/")[2].removeprefix(HUB_PREFIX).lower().split("-")
    names = {"-".join(parts[:end]): None for end in range(len(parts), 1, -1)}
    published_names = {*catalog.list_names()}
    return next((catalog.resolve(candidate) for candidate in names if candidate in published_names), None)


def find_spec(path: str) -> Model | None:
    """Return the spec of an existing model, or None if it has none, such as word vectors."""
    try:
        return read_base_spec(path)
    except PretuneError:
        return None
