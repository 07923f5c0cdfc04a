"""The config of a recipe's run: text becomes a tokenizer and data, facts are measured, and settings follow from a plan.

Everything is done once, by the first rank of a new run: run.json stores the settings and the plan, so that a run that
is resumed or repeated measures nothing.
"""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from pretune.adaptation.cooccurrence import COUNTED_TOKENS
from pretune.core import log
from pretune.core.api import StrPath
from pretune.core.config import check_record
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.io import recover
from pretune.core.log import format_duration, format_number, parse_duration
from pretune.core.run_dir import RunDir
from pretune.data.prepared_data import PreparedData
from pretune.objectives.base import Objective
from pretune.runs.config import PretrainConfig, merge_settings, read_objective, refuse_conflicts
from pretune.runs.defaults import build_paper_config, collect_overrides
from pretune.runs.options import PrepareOptions, PretrainOptions
from pretune.runs.prepare import run_prepare
from pretune.runs.recipes import RECIPES
from pretune.runs.recipes.facts import START_SECONDS, DeviceFacts, Facts, TextFacts
from pretune.runs.recipes.initial_model import VOCAB_PATH, InitialModel
from pretune.runs.recipes.plan import PlannedRun, PlanRecord, RecipeChoice, RecipePlan, SizeEstimate
from pretune.runs.recipes.recipe import VECTORS_PATH, ShapeRecipe, choose_tokenizer
from pretune.runs.recipes.rules import describe_plateau
from pretune.runs.recipes.timing import measure_token_seconds
from pretune.runs.training_data import DataFacts
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train_tokenizer

PIECE_BYTES, SECOND_BYTES = 2500, 100_000
"""Text that a tokenizer is trained on at most, for each of its pieces (more changes hardly one of them), and for each
second of the budget."""
TEXT_SHARE = 0.15
"""Share of the time that tokenizer and data are expected to take, before they are made."""
PART_FACTOR, MIN_PART_DOCUMENTS = 2.0, 1000
"""Text that is prepared, relative to what is read in the time as far as is known, and the least documents of a part."""
SECOND_TOKENS = 10_000
"""Tokens that are prepared for each second of the budget where they are counted, if fewer are read."""
STEP_SHARE = 0.9
"""Share of the training time on a processor that steps take; evaluations, samples and saves take the rest."""
MIN_SHARE = 0.3
"""Least share of the time that must be left for training."""


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
    for flag, value in (("--teacher", options.teacher), ("--config", options.config), ("--paper", options.paper)):
        if value:
            raise UsageError(f"{flag} needs the name of a model instead of '{options.model}'")
    if options.budget is None:
        raise UsageError(f"the recipe '{options.model}' chooses everything by the time: pass --budget, such as 10m")
    if (options.text is None) == (options.data is None):
        raise UsageError("a recipe takes --text, or --data of `pretune prepare`")
    overrides, budget = collect_overrides(options), options.budget
    refuse_conflicts(options.list_settings(), overrides)
    (recipe, objective), initial = choose_recipe(options), None
    if options.init_from is not None:
        initial = InitialModel.open(os.fspath(options.init_from), options.model, objective, overrides)
    return RecipeInputs(recipe, parse_duration(budget) if isinstance(budget, str) else float(budget), initial)


def choose_recipe(options: PretrainOptions) -> tuple[ShapeRecipe, Objective]:
    """Return the recipe that the options name, for their objective, and the objective."""
    recipe = RECIPES.get(str(options.model))
    objective = read_objective(options.objective or recipe.objective)
    return recipe.with_objective(objective), objective


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
    plan, size = recipe.plan(Facts(text=text, device=device, seconds=seconds), overrides, vocab, initial)
    tokens = PART_FACTOR * size.tokens
    if VECTORS_PATH in plan.choices:
        tokens = max(tokens, min(COUNTED_TOKENS, SECOND_TOKENS * budget))
    part = tokens / max(text.tokens, 1)
    if options.data is None and part < 0.5 and part * text.documents > MIN_PART_DOCUMENTS:
        reason = (
            f"{PART_FACTOR:g} times the text that is read in the time, or what is counted; documents by their hashes"
        )
        plan.note("part", float(f"{part:.2g}"), reason)
    if options.data is None and (initial is None or VOCAB_PATH in overrides):
        kind = (recipe.tokenizer if initial is None else initial.paper.tokenizer)[0]
        plan.note("tokenizer", *choose_tokenizer(kind, text))
    return plan, size


def plan_run(
    options: PretrainOptions, run_dir: RunDir, started_at: float, device: torch.device, count: int
) -> PlannedRun:
    """Prepare the text if there is one, measure the device, and return the settings; `count` is that of devices."""
    inputs = recipe, budget, initial = find_recipe(options)
    overrides = collect_overrides(options)
    if initial is not None:
        initial.check_weights()
    device_facts = DeviceFacts.measure(device, count)
    text_choices: list[RecipeChoice] = []
    if options.data is None:
        plan, _ = plan_without_data(options, device_facts)
        text_choices = [plan.choices[name] for name in ("tokenizer", "part") if name in plan.choices]
        data = prepare_text(options, inputs, run_dir.data, plan)
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
    start, vocab = {"model.name": recipe.family}, tokenizer.vocab
    if initial is not None:
        path = initial.name
        if tokenizer.sha256 != initial.tokenizer.sha256:
            path = str(run_dir.initial)
            initial.save_with_vocabulary(tokenizer, run_dir.initial)
        start = {"train.init_from": path}
        vocab = initial.spec.vocab if path == initial.name else tokenizer.vocab

    def build(facts: Facts) -> tuple[RecipePlan, SizeEstimate, PretrainConfig]:
        plan, size = recipe.plan(facts, overrides, vocab, initial)
        settings: dict[str, object] = {**start, "objective.kind": recipe.objective}
        settings |= {"data.path": str(data), "train.budget": min(budget, size.seconds + budget - seconds)}
        rest = merge_settings(select_settings(plan, initial), overrides)
        if initial is not None:  # the vocabulary is the model's
            rest.pop(VOCAB_PATH, None)
        config = build_paper_config(settings, DataFacts.from_prepared_data(data), tokenizer, device.type, rest)
        return plan, size, config

    facts = Facts(text=text, device=device_facts, seconds=max(seconds, 1.0))
    plan, size, config = build(facts)
    if device.type == "cpu":
        start_time = time.monotonic()
        pace = STEP_SHARE * size.token_seconds * count / measure_token_seconds(config)
        log.info(f"steps of this size read {pace:.2g} times the tokens that matrix products tell")
        seconds_left = max(facts.seconds - (time.monotonic() - start_time), 1.0)
        plan, size, config = build(replace(facts, device=replace(device_facts, pace=pace), seconds=seconds_left))
    for choice in text_choices:
        plan.note(choice.path, choice.value, choice.reason)
    for choice in plan.choices.values():
        log.info(str(choice))
    warning = describe_plateau(config, size.tokens) if initial is None else ""
    return PlannedRun(config, describe_plan(options, plan, size), warning=warning)


def select_settings(plan: RecipePlan, initial: InitialModel | None) -> dict[str, object]:
    """Return the settings of a plan, with those of an initial model for what the plan leaves open."""
    settings = plan.list_settings()
    return settings if initial is None else {"data.samples": "documents", "data.length_schedule": None, **settings}


def prepare_text(options: PretrainOptions, inputs: RecipeInputs, out: Path, plan: RecipePlan) -> PreparedData:
    """Train a tokenizer on the text and prepare it in `out`; what is there of the same text is used again.

    The tokenizer of an initial model is used as it is, unless the user has set a size of the vocabulary.
    """
    recipe, budget, initial = inputs
    part: float | None = plan.choices["part"].value if "part" in plan.choices else None
    prepare_options = PrepareOptions(
        inputs=list_text(options), out=out, clean=() if part is None else (f"sample={part}",)
    )
    style = recipe.tokenizer[1] if initial is None else initial.paper.tokenizer[1]
    vocab: int = plan.choices[VOCAB_PATH].value
    recover(out)
    if initial is not None and VOCAB_PATH not in plan.overrides:
        return run_prepare(replace(prepare_options, tokenizer=initial.tokenizer, overwrite=True))
    if (out / "tokenizer").is_dir():
        try:
            return run_prepare(replace(prepare_options, tokenizer=out / "tokenizer"))
        except DataError:
            log.info(f"{out}: prepared from other text; it is replaced")
    kind: str = plan.choices["tokenizer"].value
    log.info(f"training a tokenizer of {vocab:,} pieces ({kind})")
    sample_bytes = round(min(PIECE_BYTES * vocab, SECOND_BYTES * max(budget, 10.0)))
    names = [os.fspath(name) for name in list_text(options)]
    tokenizer = train_tokenizer(kind, names, vocab=vocab, style=style, sample_bytes=sample_bytes)
    data = run_prepare(replace(prepare_options, tokenizer=tokenizer, overwrite=True))
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
            "loss": size.loss if choose_recipe(options)[0].has_fit and options.init_from is None else None,
            "tokens": size.tokens,
            "epochs": size.epochs,
            "flops": size.flops,
        },
    }
