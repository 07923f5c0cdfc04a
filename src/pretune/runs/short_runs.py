"""Settings of short runs of published models: those that read less than a hundredth of their paper's tokens.

A paper's batch, rate and warm-up are for its length; a run of minutes with them leaves BERT at the frequencies of
words. Its batch, optimizer, rate, schedule and decay are then those of the recipes, fitted to the tokens of the run.
Architecture and objective stay the paper's.

    pretune pretrain bert-mini --data DATA --budget 3m             # fitted
    pretune pretrain bert-mini --data DATA --budget 3m --paper     # the paper's
"""

from collections.abc import Mapping
from typing import Any

import torch

from pretune.core.config import get_kind
from pretune.core.log import format_number
from pretune.models import catalog
from pretune.models.families.shared import PaperDefaults
from pretune.objectives.distill import Distill
from pretune.runs.config import PretrainConfig, merge_settings
from pretune.runs.defaults import PaperRequest, estimate_steps
from pretune.runs.estimate import compute_training_flops
from pretune.runs.recipes.facts import START_SECONDS, DeviceFacts
from pretune.runs.recipes.plan import PlannedRun, PlanRecord
from pretune.runs.recipes.rules import NEW_WEIGHTS, Regularization, describe_plateau

PAPER_SHARE = 0.01
"""Share of the paper's tokens from which a run takes the paper's settings."""


def plan_named_run(request: PaperRequest, takes_paper: bool, device: torch.device, count: int = 1) -> PlannedRun:
    """Return the settings of a run on `count` devices, fitted ones if it is short, and their source in words."""
    config = request.build()
    paper, is_short = request.get_paper(config.model), False
    if exemption := _find_exemption(config, paper):
        return PlannedRun(config, None, f"settings of the paper: {exemption}")
    tokens = _estimate_tokens(request, config, device, count)
    comparison = "the length of its run is unknown"
    if paper is not None and paper.tokens is not None:
        is_short = tokens < PAPER_SHARE * paper.tokens
        comparison = (
            f"{'less' if is_short else 'more'} than 1/{1 / PAPER_SHARE:.0f} of its {format_number(paper.tokens)}"
        )
        comparison = f"about {format_number(tokens)} tokens are {comparison}"
    is_fitted = is_short and not takes_paper
    warning = describe_plateau(config, tokens, is_paper=not is_fitted)
    if not is_fitted:
        reason = f"settings of the paper: {'--paper' if takes_paper else comparison}"
        return PlannedRun(config, None, reason, warning)
    epochs = tokens / max(request.data.tokens, 1)
    choices = {**NEW_WEIGHTS.choose(tokens, epochs, config.model.width, Regularization())}
    if config.train.steps is not None:  # the user has the steps of another batch in mind
        del choices["train.batch_tokens"]
    settings = {path: value for path, (value, _) in choices.items()}
    merged_settings = merge_settings(settings, request.overrides)
    record: PlanRecord = {
        "recipe": None,
        "overrides": [*request.overrides],
        "choices": [
            {"path": path, "value": value, "reason": reason}
            for path, (value, reason) in choices.items()
            if merged_settings.get(path) is value
        ],
        "expected": {"loss": None, "tokens": tokens, "epochs": epochs, "flops": None},
    }
    config = request.build(settings)
    reason = f"{_describe_settings(config)} instead of the paper's (--paper): {comparison}"
    return PlannedRun(config, record, reason, warning)


def list_fitted(plan: Mapping[str, Any] | None) -> dict[str, object]:
    """Return the fitted settings of a stored plan by path; none of that of a recipe."""
    if plan is None or plan.get("recipe") is not None:
        return {}
    return {choice["path"]: choice["value"] for choice in plan["choices"]}


def _find_exemption(config: PretrainConfig, paper: PaperDefaults | None) -> str:
    """Return the reason for which a run of any length takes the paper's settings, or nothing."""
    model, shapes = config.model, config.objective.shapes
    if config.train.init_from is not None:
        return "the run starts from trained weights"
    if isinstance(config.objective, Distill):
        return "the run imitates a teacher"
    if config.data.samples == "streams" or model.is_recurrent or model.shape == "two-way":
        return "others are measured for attention only"
    if model.shape not in shapes and "generator-discriminator" in shapes:
        return "a discriminator needs low rates"
    # NOTE: such a table begins with weights of size 1, for which Adafactor has larger rates than for the others.
    if paper is not None and paper.optimizer["kind"] == "adafactor" and model.head is not None and model.head.tied:
        return "its token table needs rates of its own"
    return ""


def _estimate_tokens(request: PaperRequest, config: PretrainConfig, device: torch.device, count: int) -> float:
    """Return the tokens that a run reads."""
    steps = estimate_steps(config.train, request.data.tokens)
    if steps is not None:
        return float(steps * config.train.batch_tokens)
    spec = catalog.convert_to_shape(config.model, config.objective.shapes)
    flops = compute_training_flops(config, spec, request.tokenizer)
    units = sum(stack.depth * model.width for model in catalog.list_models(spec) for stack in model.stacks)
    seconds = max((config.train.budget or 0.0) - START_SECONDS[device.type], 1.0)
    return seconds / DeviceFacts.measure(device, count).compute_token_seconds(flops, units)


def _describe_settings(config: PretrainConfig) -> str:
    train = config.train
    names = [get_kind(train.optimizer), f"rate {train.lr:g}", f"{get_kind(train.schedule)} schedule"]
    return f"settings of a short run ({train.batch_tokens:,} tokens a step, {', '.join(names)})"
