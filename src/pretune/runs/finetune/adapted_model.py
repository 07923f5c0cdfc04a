"""The model that a fine-tuning run begins with: a base, a head for the task, and a method on it."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from pretune.adaptation import methods
from pretune.adaptation.adapted import Adapted, adapt
from pretune.adaptation.extra_layers import taller
from pretune.adaptation.freeze import Decay, Full, freeze
from pretune.adaptation.gradual_unfreezing import Gradual, Unfreezing
from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.generation import Generation
from pretune.adaptation.heads.multi_task import Several
from pretune.adaptation.scalar_mix import MixReading
from pretune.adaptation.surgery import with_positions, with_task_tokens, with_vocabulary
from pretune.core import config
from pretune.core.errors import CheckpointError, UsageError
from pretune.core.hub import located
from pretune.inference.text_model import tokenizer_of
from pretune.models.bidirectional_lm import FOLDER as BACKWARD
from pretune.models.families import FAMILIES
from pretune.models.hf import checkpoint
from pretune.models.model import LanguageModel, build
from pretune.models.spec import Model
from pretune.models.verify import check_weights
from pretune.runs.finetune.config import Base, Tune, Tuning
from pretune.runs.finetune.task_data import members
from pretune.runs.initial_model import equipped
from pretune.tasks.encode import TaskEncoder, head_of
from pretune.tasks.example import Example
from pretune.tasks.task import Task
from pretune.text.tokenizer import Tokenizer
from pretune.training.distributed import Ranks
from pretune.training.optim import Group, parameter_groups

ADAPTER = "adapter.json"


@dataclass(slots=True)
class Begun:
    """A model at the start: itself, the body as it was pre-trained (the same tensors), and its parameters in groups."""

    model: Adapted
    body: LanguageModel
    groups: list[Group]
    unfreezing: list[Unfreezing]

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        """All that is ever trained, by name."""
        return {
            name: parameter
            for group in self.groups
            for name, parameter in zip(group.names, group.parameters, strict=True)
        }


def begin(tuning: Tuning, task: Task, ranks: Ranks, *, epoch: float) -> Begun:
    """The model of a run, on its device; `epoch` is how many steps one has, for what follows epochs."""
    seed = tuning.train.seed
    body = base_model(tuning.base, seed=seed)
    right = from_the_right(tuning)
    tune = tuning.tune
    if adds_tokens(tuning, body, task):
        body = with_task_tokens(body, seed=seed)
        body.assets.tokenizer = tokenizer_of(body)
    if right is not None and tune.mix is not None:
        tune = replace(tune, mix=replace(tune.mix, ways="both"))
    model = adapt(body, head_for(task, body, body.tokenizer, tune), seed=seed).to(ranks.device)
    for module in model.modules():
        if isinstance(module, MixReading) and module.backwards is not None:
            if right is None:
                raise UsageError(f"tune.mix.ways 'both': {tuning.base.path} has no {BACKWARD}/; leave it out")
            state = right.state_dict()
            module.backwards.load_state_dict({name: state[name] for name in module.backwards.state_dict()})
    methods.prepare(model, tuning.method, seed=seed)
    equipped(model, tuning.train.running(), ranks)
    gradual = tuning.tune.trained if isinstance(tuning.tune.trained, Gradual) else None
    if gradual is None and not isinstance(tuning.tune.trained, Full):
        freeze(model, tuning.tune.trained)
    decay = None if tuning.tune.decay is None else Decay(factor=tuning.tune.decay)
    groups = parameter_groups(model, rate=decay)
    hooks: list[Any] = [*methods.hooks(model, tuning.method, epoch=epoch)]
    if gradual is not None:
        hooks.append(gradual.hook(model, epoch=epoch))
    return Begun(model, body, groups, [hook for hook in hooks if isinstance(hook, Unfreezing)])


def adds_tokens(tuning: Tuning, body: LanguageModel, task: Task) -> bool:
    """Say if a run gives its model tokens around texts, as the family's paper did.

    Not where the token table is not trained, where an adapter is saved without it, or where answers are written.
    """
    family = FAMILIES.get(body.spec.family) if body.spec.family in FAMILIES else None
    if family is None or not family.task_tokens or not isinstance(tuning.method, Full | Gradual):
        return False
    if not isinstance(tuning.tune.trained, Full | Gradual):
        return False
    return not isinstance(head_for(task, body, body.tokenizer, tuning.tune), Generation)


def two_ways(base: Base) -> bool:
    """Whether a second model lies in the base's directory, which reads from the right."""
    return (located(base.path) / BACKWARD / checkpoint.CONFIG).is_file()


def from_the_right(tuning: Tuning) -> LanguageModel | None:
    """That model, where its layers are mixed with the other's."""
    if tuning.tune.mix is None or not two_ways(tuning.base):
        return None
    found = checkpoint.load(located(tuning.base.path) / BACKWARD)
    return found if tuning.base.weights == "pretrained" else build(found.spec, seed=tuning.train.seed + 1)


def base_model(base: Base, *, seed: int) -> LanguageModel:
    """The body that is adapted; of a run that was fine-tuned already, without its head and with its method merged."""
    folder = located(base.path)
    if (folder / ADAPTER).is_file():
        found, method = methods.load(folder)
        if method is None or not method.merges:
            raise UsageError(
                f"{folder}: what was learned there cannot be merged into a model to go on from; take its base"
            )
        model = found.model if isinstance(found, Adapted) else found
        method.merge(model)
    else:
        model = checkpoint.load(folder)
    check_weights(model, folder)
    if model.tokenizer is None:
        raise CheckpointError(f"{folder}: has no tokenizer, so it cannot read a task's text; put tokenizer.json there")
    if base.tokenizer is not None:
        model = with_vocabulary(model, Tokenizer.load(base.tokenizer))
    if base.positions is not None:
        model = with_positions(model, base.positions)
    model.assets.tokenizer = tokenizer_of(model)
    if base.weights == "random":
        fresh = build(model.spec, seed=seed)
        fresh.assets = model.assets
        model = fresh
    if base.extra:
        model = taller(model, base.extra, seed=seed)
    return model.train()


def head_for(task: Task, model: LanguageModel | Model, tokenizer: Tokenizer | None, tune: Tune) -> TaskHead:
    """The head that a task needs on a model, with what is wished for of it; several tasks write, or have one each."""
    if several := members(task):
        return _heads(several, model, tokenizer, tune)
    silent = tune.text is None and (tune.mix is not None or tune.reading is not None)  # such a head cannot write
    head = head_of(task, model, tokenizer, text=False if silent else tune.text, language=tune.language)
    for name in ("dropout", "reading", "mix"):
        value = getattr(tune, name)
        if value is not None and not hasattr(head, name):
            raise UsageError(f"tune.{name}: the head '{config.kind(head)}' has none; leave it out")
        if value is not None:
            head = replace(head, **{name: value})  # type: ignore[type-var]
    return head


def _heads(tasks: list[Task], model: LanguageModel | Model, tokenizer: Tokenizer | None, tune: Tune) -> TaskHead:
    """One that writes all answers, where the model can and all tasks have templates; else a head for each."""
    without = [task.name for task in tasks if task.template is None and task.kind != "generation"]
    if tune.text and without:
        raise UsageError(f"task '{without[0]}' has no template, so its answers cannot be written; leave tune.text out")
    spec = model.spec if isinstance(model, LanguageModel) else model
    able = spec.shape != "encoder" and spec.head is not None and not without
    if tune.text or (tune.text is None and able and tune.mix is None and tune.reading is None):
        return Generation().resolve(spec)
    made: list[Any] = [head_for(task, model, tokenizer, replace(tune, text=False)) for task in tasks]
    return Several(tuple(made)).resolve(spec)


def encoder_for(tuning: Tuning, task: Task, model: Adapted, train: list[Example]) -> TaskEncoder:
    """How a task's examples are read by a model."""
    scale = None
    if task.kind == "regression" and task.scale is None:
        values = [float(example.label) for example in train if example.label is not None]
        scale = (min(values), max(values))
    made = partial(
        TaskEncoder.of,
        task,
        model,
        stride=tuning.data.stride,
        slots=methods.slots(tuning.method),
        scale=scale,
        new_tokens=tuning.data.new_tokens,
        examples=train,
    )
    encoder = made(max_length=tuning.data.max_length)
    longest = model.model.spec.longest
    taken = methods.positions(tuning.method) - encoder.slots  # before the text, by what is no slot
    if longest is None or encoder.rules.max_length + taken + encoder.slots <= longest:
        return encoder
    if tuning.data.max_length is not None:
        raise UsageError(
            f"data.max_length {tuning.data.max_length} and {taken} positions of the method: this model's end at "
            f"{longest}; lower it"
        )
    return made(max_length=longest - taken - encoder.slots)
