"""Initial model of a fine-tuning run (a base, a task head, and a method), and the encoders of its examples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from pretune.adaptation import methods
from pretune.adaptation.adapted import ModelWithHead, MultiTask, adapt, select_head
from pretune.adaptation.distillation import TaskDistillation, TaskTeacher, compute_rescaling
from pretune.adaptation.freeze import Decay, Full, Gradual, UnfreezingHook, freeze
from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.sequence import Classification
from pretune.adaptation.heads.token import Generation
from pretune.adaptation.peft.io import ADAPTER_FILE
from pretune.adaptation.policy_gradient import PolicyGradient
from pretune.adaptation.preference import RewardModel
from pretune.adaptation.scalar_mix import ScalarMixHead
from pretune.adaptation.surgery import add_blocks, add_task_tokens, replace_vocabulary, resize_positions
from pretune.core import config
from pretune.core.config.specs import get_fields, is_spec
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.hub import resolve_path
from pretune.core.run_dir import RunDir
from pretune.data.sampling import SmoothedMixing
from pretune.inference.text_model import count_unknown, describe_unknown
from pretune.models.bidirectional_lm import BACKWARD_FOLDER as BACKWARD
from pretune.models.families import FAMILIES
from pretune.models.families.shared import TuningDefaults
from pretune.models.hf import checkpoint
from pretune.models.hf.checkpoint import check_weights
from pretune.models.hf.files import CONFIG_FILE
from pretune.models.model import LanguageModel, build, build_empty
from pretune.models.spec import Model
from pretune.nn.heads import get_running_statistics
from pretune.runs.finetune.config import AdaptationConfig, BaseConfig, FinetuneConfig
from pretune.runs.finetune.preferences import PreferenceRun, build_preference_run
from pretune.runs.finetune.saved_task import SavedTask
from pretune.runs.finetune.task_data import TaskData, find_member_tasks
from pretune.tasks.encoder import TaskEncoder, build_head, find_scale
from pretune.tasks.encoding import Counts, Items, mix_items
from pretune.tasks.example import Example, Prediction
from pretune.tasks.predict import predict
from pretune.tasks.stream import MultiTaskStream, TaskStream
from pretune.tasks.task import Task
from pretune.tasks.types import get_type
from pretune.tasks.types.text_to_text import has_template
from pretune.text.tokenizer import Tokenizer
from pretune.training.config import configure_model
from pretune.training.distributed import Ranks
from pretune.training.optim import ParameterGroup, build_parameter_groups
from pretune.training.step import TrainingObjective

MAX_UNKNOWN_SHARE = 0.05
"""Share of unknown tokens that triggers a warning; text in the vocabulary's language has well below 1%."""
SAMPLE_EXAMPLES = 1000
"""Number of examples on which unknown tokens are counted."""


@dataclass(slots=True)
class AdaptedModel:
    """Initial model, its pre-trained body (the same tensors), and its parameter groups."""

    model: ModelWithHead
    body: LanguageModel
    groups: list[ParameterGroup]
    unfreezing: list[UnfreezingHook]
    distillation: TaskDistillation | None = None
    preferences: PreferenceRun | None = None
    policy: PolicyGradient | None = None

    @property
    def objective(self) -> TrainingObjective:
        """Objective of the training: that of the head, of a teacher, of preferences, or of rewards."""
        preferences = None if self.preferences is None else self.preferences.objective
        return self.distillation or preferences or self.policy or self.model.spec

    @property
    def extra_share(self) -> float:
        """FLOPs of passes besides those of training, relative to a full training step."""
        return 0.0 if self.policy is None else self.policy.forward_share

    @property
    def trainable_parameters(self) -> dict[str, torch.nn.Parameter]:
        """All parameters that are ever trained, by name."""
        return {
            name: parameter
            for group in self.groups
            for name, parameter in zip(group.names, group.parameters, strict=True)
        }

    @property
    def trained_tensors(self) -> dict[str, torch.Tensor]:
        """Everything that training changes, by name: these parameters, and the running statistics of norms."""
        return {**self.trainable_parameters, **get_running_statistics(self.model)}

    def can_cache(self, tuning: FinetuneConfig, task_data: TaskData) -> bool:
        """Return whether the features of a run do not change, and the head needs nothing else."""
        model = self.model
        return (
            tuning.tune.cache_features
            and model.has_frozen_body
            and model.head is not None
            and not task_data.members
            and not getattr(model.head, "reads_all_layers", False)
            and not (isinstance(model.spec, Classification) and model.spec.lm_loss_weight)
            and tuning.tune.distill is None
        )


def build_adapted_model(
    tuning: FinetuneConfig, task: Task, ranks: Ranks, *, teacher: TaskTeacher | None = None
) -> AdaptedModel:
    """Build the model of a run on its device, with its teacher; hooks learn the steps of an epoch later."""
    seed = tuning.train.seed
    body = apply_task_spec(load_base_model(tuning.base, seed=seed), tuning.tune.dropout_factor)
    right = load_backward_model(tuning)
    tune, body = tuning.tune, get_type(task).inputs.prepare_model(body)
    if should_add_tokens(tuning, body, task):
        body = add_task_tokens(body, seed=seed)
    if right is not None and tune.scalar_mix is not None:
        tune = replace(tune, scalar_mix=replace(tune.scalar_mix, ways="both"))
    model = adapt(body, build_task_head(task, body, body.tokenizer, tune), seed=seed).to(ranks.device)
    for module in model.modules():
        if isinstance(module, ScalarMixHead) and module.backwards is not None:
            if right is None:
                raise UsageError(
                    f"tune.scalar_mix.ways 'both': {tuning.base.path} has no {BACKWARD}/; remove the setting"
                )
            state = right.state_dict()
            module.backwards.load_state_dict({name: state[name] for name in module.backwards.state_dict()})
    methods.apply_method(model, tuning.method, seed=seed)
    configure_model(model, tuning.train, ranks.device)
    if not isinstance(tuning.tune.trainable_layers, Full | Gradual):
        freeze(model, tuning.tune.trainable_layers)
    decay = None if tuning.tune.layer_decay is None else Decay(factor=tuning.tune.layer_decay)
    distill = tuning.tune.distill
    distillation = None if teacher is None or distill is None else teacher.attach(distill, model, seed=seed)
    groups = build_parameter_groups(model, lr_factor=decay)
    schedules = [part for part in (tuning.method, tuning.tune.trainable_layers) if isinstance(part, Gradual)]
    unfreezing = [schedule.build_hook(model, epoch=1.0) for schedule in schedules]
    model.has_frozen_body = not any(name.startswith("model.") for group in groups for name in group.names)
    preferences = build_preference_run(tuning, task, model)
    policy = None if tuning.tune.grpo is None else PolicyGradient.from_model(tuning.tune.grpo, model)
    return AdaptedModel(model, body, groups, unfreezing, distillation, preferences, policy)


def load_task_teacher(tuning: FinetuneConfig, device: torch.device) -> TaskTeacher | None:
    """Load the teacher of a run, if it has one, with the scale of its task."""
    if tuning.tune.distill is None:
        return None
    path = tuning.tune.distill.require_teacher()
    folder = resolve_path(path)
    saved_task = SavedTask.read(folder) if RunDir(folder).task.is_file() else None
    return TaskTeacher.load(path, device, scale=None if saved_task is None else saved_task.scale)


def add_teacher_logits(
    items: tuple[Items, ...], teacher: TaskTeacher, distillation: TaskDistillation, precision: torch.dtype | None
) -> tuple[Items, ...]:
    """Return the items with the logits of the teacher if they are small enough to be computed once."""
    parts = teacher.add_logits([part.sequences for part in items], distillation.weights, precision)
    return tuple(replace(part, sequences=sequences) for part, sequences in zip(items, parts, strict=True))


def has_teacher_logits(items: Sequence[Items]) -> bool:
    """Return whether the teacher's logits are part of the items."""
    fields = (items[0].sequences.sequence_logits, items[0].sequences.token_logits)
    return any(logits is not None for logits in fields)


def should_add_tokens(tuning: FinetuneConfig, body: LanguageModel, task: Task) -> bool:
    """Return whether the run adds special tokens around texts, as the family's paper did.

    Not where the embeddings are not trained, where an adapter is saved without them, or where answers are generated.
    """
    family = FAMILIES.get(body.spec.family) if body.spec.family in FAMILIES else None
    if family is None or not family.adds_task_tokens or not isinstance(tuning.method, Full | Gradual):
        return False
    if not isinstance(tuning.tune.trainable_layers, Full | Gradual):
        return False
    return not isinstance(build_task_head(task, body, body.tokenizer, tuning.tune), Generation)


def has_backward_model(base: BaseConfig) -> bool:
    """Return whether the base has a backward language model."""
    return (resolve_path(base.path) / BACKWARD / CONFIG_FILE).is_file()


def load_backward_model(tuning: FinetuneConfig) -> LanguageModel | None:
    """Load the backward model, if its layers are mixed with the forward one's."""
    if tuning.tune.scalar_mix is None or not has_backward_model(tuning.base):
        return None
    backward_model = checkpoint.load(resolve_path(tuning.base.path) / BACKWARD)
    if tuning.base.weights == "random":
        return build(backward_model.spec, seed=tuning.train.seed + 1)
    return backward_model


def load_base_model(base: BaseConfig, *, seed: int) -> LanguageModel:
    """Load the body to fine-tune; for a fine-tuned run, without its head and with its adapter merged."""
    folder = resolve_path(base.path)
    if (folder / ADAPTER_FILE).is_file():
        loaded_model, method = methods.load(folder)
        if method is None or not method.is_mergeable:
            raise UsageError(f"{folder}: this adapter cannot be merged into its base; fine-tune the base instead")
        model = loaded_model.model if isinstance(loaded_model, ModelWithHead) else loaded_model
        method.merge(model)
    else:
        model = checkpoint.load(folder)
    check_weights(model, folder)
    if model.tokenizer is None:
        raise CheckpointError(f"{folder}: no tokenizer; add tokenizer.json")
    if base.tokenizer is not None:
        model = replace_vocabulary(model, Tokenizer.load(base.tokenizer))
    if base.positions is not None:
        model = resize_positions(model, base.positions)
    if base.weights == "random":
        random_model = build(model.spec, seed=seed)
        random_model.assets = model.assets
        model = random_model
    if base.extra_layers:
        model = add_blocks(model, base.extra_layers, seed=seed)
    return model.train()


def find_family_tuning(spec: Model) -> TuningDefaults:
    """Return the method of a base model's paper and its settings; by default all weights are trained."""
    family = spec.family
    return (FAMILIES.get(family).tuning if family in FAMILIES else None) or TuningDefaults(method="full")


def apply_task_spec(model: LanguageModel, dropout_factor: float = 1.0) -> LanguageModel:
    """Return a model with the dropout rates that its family fine-tunes with, times a factor, and the same weights."""
    spec, build_spec = model.spec, find_family_tuning(model.spec).build_spec
    if build_spec is not None:
        spec = build_spec(spec)
    if dropout_factor != 1:
        spec = scale_dropout(spec, dropout_factor)
    if spec == model.spec:
        return model
    task_model = build_empty(spec)
    task_model.load_state_dict(model.state_dict(), assign=True)
    task_model.assets = model.assets
    return task_model.train(model.training)


def scale_dropout(value: Any, factor: float) -> Any:
    """Return a spec with all dropout rates in it times a factor."""
    if isinstance(value, tuple):
        return tuple(scale_dropout(part, factor) for part in value)
    if not is_spec(value):
        return value
    parts = {name: getattr(value, name) for name in get_fields(type(value))}
    changes = {
        name: part * factor if name.endswith("dropout") and isinstance(part, float) else scale_dropout(part, factor)
        for name, part in parts.items()
    }
    return replace(value, **{name: part for name, part in changes.items() if part != parts[name]})


def build_task_head(
    task: Task, model: LanguageModel | Model, tokenizer: Tokenizer | None, tune: AdaptationConfig
) -> TaskHead:
    """Build the head of a task on a model, with the settings of `tune`; several tasks share text-to-text or have one
    each.
    """
    if several := find_member_tasks(task):
        return _build_heads(several, model, tokenizer, tune)
    if tune.preference is not None and not get_type(task).inputs.compares_answers:
        raise UsageError(f"tune.preference: task '{task.name}' is of the type {task.kind}; remove the setting")
    text_to_text = tune.text_to_text
    if text_to_text is None and not (tune.scalar_mix is None and tune.pooling is None):
        text_to_text = False  # these heads cannot generate
    if isinstance(tune.preference, RewardModel):
        task = replace(task, kind="choice")  # a score for each answer
    head = build_head(task, model, tokenizer, text_to_text=text_to_text, lm_loss_weight=tune.lm_loss_weight)
    for name in ("dropout", "pooling", "scalar_mix"):
        value = getattr(tune, name)
        if value is not None and not hasattr(head, name):
            raise UsageError(f"tune.{name}: the head '{config.get_kind(head)}' does not support it; remove the setting")
        if value is not None:
            head = replace(head, **{name: value})  # type: ignore[type-var]
    return head


def _build_heads(
    tasks: list[Task], model: LanguageModel | Model, tokenizer: Tokenizer | None, tune: AdaptationConfig
) -> TaskHead:
    """Return a text-to-text head if the model and all tasks support it, else a head for each task."""
    missing_templates = [task.name for task in tasks if not has_template(task)]
    if tune.text_to_text and missing_templates:
        raise UsageError(f"task '{missing_templates[0]}' has no text-to-text template; remove tune.text_to_text")
    spec = model.spec if isinstance(model, LanguageModel) else model
    able = spec.shape != "encoder" and spec.head is not None and not missing_templates
    if tune.text_to_text or (tune.text_to_text is None and able and tune.scalar_mix is None and tune.pooling is None):
        return Generation().resolve(spec)
    heads: list[Any] = [build_task_head(task, model, tokenizer, replace(tune, text_to_text=False)) for task in tasks]
    return MultiTask(tuple(heads)).resolve(spec)


def build_encoder(tuning: FinetuneConfig, task: Task, model: ModelWithHead, train: list[Example]) -> TaskEncoder:
    """Build the encoder of a task's examples for a model."""
    make_encoder = partial(
        TaskEncoder.from_task,
        task,
        model,
        stride=tuning.data.stride,
        slots=methods.count_slots(tuning.method),
        scale=find_scale(task, train),
        max_new_tokens=tuning.data.max_new_tokens,
        examples=train,
    )
    encoder = make_encoder(max_length=tuning.data.max_length)
    longest = model.model.spec.max_length
    extra_positions = methods.count_positions(tuning.method) - encoder.slots  # of the method, without slots
    if longest is None or encoder.rules.max_length + extra_positions + encoder.slots <= longest:
        return encoder
    if tuning.data.max_length is not None:
        raise UsageError(
            f"data.max_length {tuning.data.max_length} plus {extra_positions} positions of the method exceed the "
            f"model's maximum of {longest}; decrease it"
        )
    return make_encoder(max_length=longest - extra_positions - encoder.slots)


@dataclass(frozen=True, slots=True)
class TaskEncoders:
    """Task data with the encoders of its examples; with `has_separate_heads`, each task has a head."""

    task_data: TaskData
    encoders: tuple[TaskEncoder, ...]
    has_separate_heads: bool = False

    @classmethod
    def from_model(
        cls, tuning: FinetuneConfig, task_data: TaskData, model: ModelWithHead, train: list[Example]
    ) -> "TaskEncoders":
        """Build the encoders for a model with its head."""
        if not isinstance(model.spec, MultiTask):
            encoder = build_encoder(tuning, task_data.task, model, train)
            rules = [replace(encoder.rules, task=member.task, scale=member.task.scale) for member in task_data.members]
            return cls(task_data, tuple(replace(encoder, rules=member_rules) for member_rules in rules) or (encoder,))
        encoders: list[TaskEncoder] = []
        for number, (member, mine) in enumerate(task_data.index_examples(train)):
            examples = [train[place] for place in mine] or member.parts.train
            encoders.append(build_encoder(tuning, member.task, select_head(model, number), examples))
        return cls(task_data, tuple(encoders), has_separate_heads=True)

    @property
    def is_generative(self) -> bool:
        """True if answers are generated, which is slow."""
        return any(encoder.is_generative for encoder in self.encoders)

    def encode(self, examples: Sequence[Example]) -> tuple[Items, ...]:
        """Return the items of each task."""
        parts: list[Items] = []
        for encoder, (_, mine) in zip(self.encoders, self.task_data.index_examples(examples), strict=True):
            if not mine:
                raise DataError(
                    f"task '{encoder.task.name}': none of {len(examples)} training examples belongs to it; "
                    "increase task.train_examples"
                )
            parts.append(encoder.encode([examples[place] for place in mine]))
        return tuple(parts)

    def check_teacher(self, model: ModelWithHead, distillation: TaskDistillation, teacher: TaskTeacher) -> None:
        """Raise unless the teacher can read these examples; scores of a regression get the student's scale."""
        for encoder in self.encoders:
            teacher.check(model, distillation.weights, length=encoder.rules.max_length, slots=encoder.slots)
        if not self.has_separate_heads:
            distillation.rescaling = compute_rescaling(self.encoders[0].rules.scale, teacher.scale)

    def describe_counts(self, items: Sequence[Items]) -> list[str]:
        """Return notes on chats that are too long, and so lose the end of their answers."""
        notes = []
        for encoder, part in zip(self.encoders, items, strict=True):
            counts = part.counts
            if get_type(encoder.task).inputs.has_own_encoding and counts.cut:
                lost = f", {counts.answers_lost:,} of which lose all answers" if counts.answers_lost else ""
                limit = f"data.max_length ({encoder.rules.max_length})"
                notes.append(f"train: {counts.cut:,} of {counts.examples:,} chats are cut at {limit}{lost}")
        return notes

    def find_notes(self, examples: Sequence[Example]) -> list[str]:
        """Return notes on the model and the examples: a type that it suits badly, and many unknown tokens.

        Tokens are unknown in text of another language or script.
        """
        limits = [
            get_type(encoder.task).inputs.describe_limits(encoder.task, encoder.rules.spec) for encoder in self.encoders
        ]
        subset = examples[:: max(len(examples) // SAMPLE_EXAMPLES, 1)]
        texts = [text for example in subset for text in (example.text, example.pair or "", *example.choices) if text]
        rules = self.encoders[0].rules
        ids = rules.tokenize(texts).ids
        count = count_unknown(rules.tokenizer, ids)
        notes = [note for note in dict.fromkeys(limits) if note]
        if count < MAX_UNKNOWN_SHARE * len(ids):
            return notes
        return [
            *notes,
            f"train: {describe_unknown(count, len(ids))}; use a model whose vocabulary covers this language",
        ]

    def build_stream(
        self, items: Sequence[Items], tuning: FinetuneConfig, *, fixed_shape: bool = False
    ) -> TaskStream | MultiTaskStream:
        """Return the batches of a run: of one task, of all tasks mixed, or of alternating tasks with a head each."""
        fit, temperature = tuning.train, tuning.tune.temperature
        if self.has_separate_heads:
            streams = [
                TaskStream(task_items, batch=fit.batch, seed=fit.seed, fixed_shape=fixed_shape) for task_items in items
            ]
            return MultiTaskStream(streams, temperature=temperature, seed=fit.seed)
        several = len(items) > 1
        mixing = SmoothedMixing(alpha=1 / temperature) if several else None
        combined_items = mix_items(items) if several else items[0]
        return TaskStream(combined_items, batch=fit.batch, seed=fit.seed, fixed_shape=fixed_shape, mixing=mixing)

    def predict(
        self,
        model: ModelWithHead,
        examples: Sequence[Example],
        precision: torch.dtype | None,
        items: Items | None = None,
    ) -> list[Prediction]:
        """Return one prediction for each example, in order; `items` are those of a single task, encoded before."""
        with torch.compiler.set_stance("force_eager"):  # each length would be compiled again
            if not self.task_data.members:
                return predict(model, self.encoders[0], examples, precision=precision, items=items)
            predictions: dict[int, Prediction] = {}
            for number, (_, mine) in enumerate(self.task_data.index_examples(examples)):
                view = select_head(model, number) if self.has_separate_heads else model
                if mine:
                    member_examples = [examples[place] for place in mine]
                    outputs = predict(view, self.encoders[number], member_examples, precision=precision)
                    predictions |= zip(mine, outputs, strict=True)
            return [predictions[place] for place in range(len(examples))]


def sum_counts(items: Sequence[Items]) -> Counts:
    """Sum the encoding counts of all tasks."""
    return sum((task_items.counts for task_items in items[1:]), start=items[0].counts)
