"""The config of a recipe's run: text becomes a tokenizer and data, facts are measured, and settings follow from a plan.

Everything is done once, by the first rank of a new run: run.json stores the settings and the plan, so that a run that
is resumed or repeated measures nothing.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch

from pretune.core import log
from pretune.core.api import StrPath
from pretune.core.config import Number, check_record
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.io import recover
from pretune.core.log import format_duration, format_number
from pretune.core.run_dir import RunDir
from pretune.data.prepared_data import PreparedData
from pretune.runs.config import PretrainConfig, read_objective, read_optimizer, refuse_conflicts
from pretune.runs.defaults import build_paper_config, collect_overrides, parse_duration
from pretune.runs.options import PrepareOptions, PretrainOptions
from pretune.runs.prepare import run_prepare
from pretune.runs.recipes import RECIPES
from pretune.runs.recipes.facts import DeviceFacts, Facts, TextFacts
from pretune.runs.recipes.initial_model import VOCAB_PATH, InitialModel
from pretune.runs.recipes.plan import RecipePlan, SizeEstimate
from pretune.runs.recipes.recipe import ShapeRecipe
from pretune.runs.training_data import DataFacts
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train_tokenizer

TEXT_SHARE = 0.15
"""Share of the time that tokenizer and data are expected to take, before they are made."""
START_SECONDS = {"cpu": 2.0, "cuda": 25.0}
"""Seconds from the plan to the first steps, compilation included, and for the end of the run."""
MIN_SHARE = 0.3
"""Least share of the time that must be left for training."""


class PlannedRun(NamedTuple):
    """The settings of a run, and the plan that they come from."""

    config: PretrainConfig
    plan: "PlanRecord"


class ChoiceRecord(TypedDict):
    """A choice, as run.json stores it."""

    path: str
    value: Any
    reason: str


class Expectation(TypedDict):
    """Expected loss and amounts of a run."""

    loss: Number | None
    tokens: Number
    epochs: Number
    flops: Number


class PlanRecord(TypedDict):
    """The plan of a run, as run.json stores it."""

    recipe: str
    overrides: list[str]  # paths that the user has set
    choices: list[ChoiceRecord]
    expected: Expectation


class RecipeInputs(NamedTuple):
    """A recipe, its time in seconds, and the model that it continues."""

    recipe: ShapeRecipe
    budget: float
    initial: InitialModel | None


def find_recipe(options: PretrainOptions) -> RecipeInputs:
    """Return the inputs of a recipe; options that it has no use for, and an unfit model, are a UsageError."""
    assert options.model is not None
    for name in ("steps", "tokens", "epochs"):
        if getattr(options, name) is not None:
            raise UsageError(f"a recipe takes its length as --budget, not --{name}; or name a model instead")
    for flag, value in (("--teacher", options.teacher), ("--config", options.config)):
        if value is not None:
            raise UsageError(f"{flag} needs the name of a model instead of '{options.model}'")
    if options.budget is None:
        raise UsageError(f"the recipe '{options.model}' chooses everything by the time: pass --budget, such as 10m")
    if (options.text is None) == (options.data is None):
        raise UsageError("a recipe takes --text, or --data of `pretune prepare`")
    overrides, recipe, budget = collect_overrides(options), RECIPES.get(options.model), options.budget
    refuse_conflicts(options.list_settings(), overrides)
    initial = None
    if options.init_from is not None:
        objective = read_objective(options.objective or recipe.objective)
        initial = InitialModel.open(os.fspath(options.init_from), options.model, objective, overrides)
    return RecipeInputs(recipe, parse_duration(budget) if isinstance(budget, str) else float(budget), initial)


def list_text(options: PretrainOptions) -> list[StrPath]:
    """Return the files and folders of the text."""
    text = options.text
    return [text] if isinstance(text, str | os.PathLike) else [*(text or ())]


def plan_without_data(options: PretrainOptions, device: DeviceFacts) -> tuple[RecipePlan, SizeEstimate]:
    """Return the plan for a text or data, before anything is made of it."""
    recipe, budget, initial = find_recipe(options)
    overrides = collect_overrides(options)
    if options.data is not None:
        data = PreparedData.open(options.data)
        text, vocab, share = TextFacts.from_prepared_data(data), data.vocab, 0.0
    else:
        tokenizer = None if initial is None or VOCAB_PATH in overrides else initial.tokenizer
        text, vocab, share = TextFacts.scan(list_text(options), tokenizer), None, TEXT_SHARE
        if initial is not None:
            initial.check_text(text)
    seconds = max(budget * (1 - share) - START_SECONDS[device.device_type], 1.0)
    return recipe.plan(Facts(text=text, device=device, seconds=seconds), overrides, vocab, initial)


def plan_run(
    options: PretrainOptions, run_dir: RunDir, device: torch.device, *, count: int, started_at: float
) -> PlannedRun:
    """Prepare the text if there is one, measure the device, and return the settings; `count` is that of devices."""
    recipe, budget, initial = find_recipe(options)
    overrides = collect_overrides(options)
    if initial is not None:
        initial.check_weights()
    device_facts = DeviceFacts.measure(device, count)
    if options.data is None:
        plan, _ = plan_without_data(options, device_facts)
        data = prepare_text(options, recipe, run_dir.data, plan, initial)
    else:
        data = PreparedData.open(options.data)
    tokenizer, text = Tokenizer.load(data.tokenizer), TextFacts.from_prepared_data(data)
    if not text.tokens:
        raise DataError(f"{data}: no training text")
    seconds = budget - (time.monotonic() - started_at) - START_SECONDS[device.type]
    if seconds < MIN_SHARE * budget:
        sufficient_budget = format_duration((budget - seconds) / (1 - MIN_SHARE))
        raise UsageError(
            f"a budget of {format_duration(budget)} leaves {format_duration(max(seconds, 0))} for training after the "
            f"text is prepared; use at least {sufficient_budget}, or prepare it first (`pretune prepare`, --data)"
        )
    facts = Facts(text=text, device=device_facts, seconds=max(seconds, 1.0))
    start: dict[str, object] = {"model.name": recipe.family}
    if initial is None:
        plan, size = recipe.plan(facts, overrides, tokenizer.vocab)
    else:
        path = initial.name
        if tokenizer.sha256 != initial.tokenizer.sha256:
            path = str(run_dir.initial)
            initial.save_with_vocabulary(tokenizer, run_dir.initial)
        start = {"train.init_from": path}
        vocab = initial.spec.vocab if path == initial.name else tokenizer.vocab
        plan, size = recipe.plan(facts, overrides, vocab, initial)
    for choice in plan.choices.values():
        log.info(str(choice))
    settings = {
        **start,
        "objective.kind": options.objective or recipe.objective,
        "data.path": str(data),
        "train.budget": budget,
    }
    rest = merge_settings(plan, overrides, options.objective)
    if initial is not None:  # they are those of the model
        rest.pop(VOCAB_PATH, None)
        rest = {"data.samples": "documents", "data.length_schedule": None, **rest}
    config = build_paper_config(settings, DataFacts.from_prepared_data(data), tokenizer, device.type, rest)
    return PlannedRun(config=config, plan=describe_plan(options, plan, size))


def merge_settings(plan: RecipePlan, overrides: Mapping[str, object], objective: str | None) -> dict[str, object]:
    """Return the settings of the plan, except those that a user has replaced, with those of the user."""
    settings = plan.list_settings()
    if objective is not None:  # another objective has its own settings
        settings = {path: value for path, value in settings.items() if not path.startswith("objective.")}
    if "train.optimizer.lr" in overrides or read_optimizer(overrides):
        settings.pop("train.lr", None)
    for path in overrides:
        settings = {name: value for name, value in settings.items() if name != path and not name.startswith(f"{path}.")}
    return {**settings, **overrides}


def prepare_text(
    options: PretrainOptions, recipe: ShapeRecipe, out: Path, plan: RecipePlan, initial: InitialModel | None = None
) -> PreparedData:
    """Train a tokenizer on the text and prepare it in `out`; what is there of the same text is used again.

    The tokenizer of an initial model is used as it is, unless the user has set a size of the vocabulary.
    """
    inputs = list_text(options)
    kind, style = recipe.tokenizer if initial is None else initial.paper.tokenizer[:2]
    vocab: int = plan.choices[VOCAB_PATH].value
    recover(out)
    if initial is not None and VOCAB_PATH not in plan.overrides:
        return run_prepare(PrepareOptions(inputs=inputs, out=out, tokenizer=initial.tokenizer, overwrite=True))
    if (out / "tokenizer").is_dir():
        try:
            return run_prepare(PrepareOptions(inputs=inputs, out=out, tokenizer=out / "tokenizer"))
        except DataError:
            log.info(f"{out}: prepared from other text; it is replaced")
    log.info(f"training a tokenizer of {vocab:,} pieces ({kind})")
    tokenizer = train_tokenizer(kind, [os.fspath(name) for name in inputs], vocab=vocab, style=style)
    data = run_prepare(PrepareOptions(inputs=inputs, out=out, tokenizer=tokenizer, overwrite=True))
    log.info(f"{data}: {format_number(data.tokens)} tokens")
    return data


def drop_choices(options: PretrainOptions, plan: object, run_dir: RunDir) -> PretrainOptions:
    """Return the options of a resumed run without those that its plan has used: its settings are stored."""
    record = check_record(PlanRecord, plan, CheckpointError, f"{run_dir.settings}: 'plan'")
    if record["recipe"] != options.model:
        raise CheckpointError(f"{run_dir.path}: made by the recipe '{record['recipe']}', not '{options.model}'")
    model = next((choice["value"] for choice in record["choices"] if choice["path"] == "model"), None)
    if options.init_from is not None and os.fspath(options.init_from) != model:
        raise CheckpointError(f"{run_dir.path}: its model is '{model}'; it cannot be resumed from another")
    rest = {path: value for path, value in (options.overrides or {}).items() if path not in record["overrides"]}
    options = replace(options, model=None, text=None, data=None, init_from=None)
    return replace(options, objective=None, budget=None, overrides=rest)


def describe_plan(options: PretrainOptions, plan: RecipePlan, size: SizeEstimate) -> PlanRecord:
    """Return a plan as run.json stores it."""
    return {
        "recipe": str(options.model),
        "overrides": [*plan.overrides],
        "choices": [
            {"path": choice.path, "value": choice.value, "reason": choice.reason} for choice in plan.choices.values()
        ],
        "expected": {
            "loss": size.loss if RECIPES.get(str(options.model)).has_fit and options.init_from is None else None,
            "tokens": size.tokens,
            "epochs": size.epochs,
            "flops": size.flops,
        },
    }
