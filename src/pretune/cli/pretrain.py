"""`pretune pretrain`: pre-train a model on prepared data."""

import os
import time
from typing import TYPE_CHECKING, Any

from pretune.cli import shut_down_cleanly
from pretune.cli._options import OutputFormat
from pretune.cli._output import find_free_path, format_costs, hint, hint_other, print_facts, print_plan, quote
from pretune.core import log
from pretune.core.api import Options, option, option_set
from pretune.core.log import format_count, format_duration, format_number
from pretune.runs.options import PretrainOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretune.models.spec import Model


@option_set
class PretrainMode(Options):
    """Extent of a run."""

    dry_run: bool = option("--dry-run", "Print settings and estimated cost; train nothing.", default=False)


def pretrain(options: PretrainOptions, mode: PretrainMode, output: OutputFormat) -> None:
    """Pre-train a model on text or prepared data.

    An interrupted run continues with --resume, with identical results.

    A recipe (encoder, decoder or encoder-decoder) chooses everything from text, device and time, and says why. Models
    of papers (`pretrain bert-mini --data DATA --budget 10m`) read data of `pretune prepare`.

    Example: pretune pretrain encoder --text texts/ --budget 10m --out runs/mine
    """
    start_time = time.monotonic()  # the budget covers the whole command
    with shut_down_cleanly():  # imports take seconds
        from pretune.models.hf.checkpoint import inspect_checkpoint
        from pretune.runs.pretrain import run_pretrain
        from pretune.runs.recipes import is_recipe
        from pretune.training.distributed import resolve_device
    if mode.dry_run and is_recipe(options):
        _show_plan(options, output.as_json)
        return
    if mode.dry_run:
        _show(options, output, resolve_device(options.device))  # a run rejects an unknown device too
        return
    run = run_pretrain(options, started_at=start_time)
    if os.environ.get("RANK", "0") != "0":  # only rank 0 prints
        return
    validation = "" if run.loss is None else f", validation loss {run.loss:.4f}"
    counts = ", ".join(format_count(run.summary[unit], unit) for unit in ("steps", "tokens"))
    print_facts(output, run.summary, f"{run}: {counts}{validation}")
    hint(*suggest_use(run, inspect_checkpoint(run.path)[0]), silent=output.as_json)
    command = f"finetune {quote(run)} --train TABLE.csv --out {quote(find_free_path(f'{run}-tuned'))}"
    hint_other(f"{command}  (a table with texts and labels)", silent=output.as_json)


def suggest_use(run: object, spec: "Model") -> list[object]:
    """Return a command that tries a new model: fill a blank, generate text, or verify."""
    if spec.head is None:
        return ["verify", run]
    is_left_to_right = spec.encoder is None or spec.shape == "two-way"
    return ["generate", run, "This is"] if is_left_to_right else ["fill", run, "This is the ___ of it."]


def _show_plan(options: PretrainOptions, as_json: bool) -> None:
    """Print the choices of a recipe with their reasons, and what it expects."""
    import torch

    from pretune.runs.recipes.build import describe_plan, plan_without_data
    from pretune.runs.recipes.facts import DeviceFacts
    from pretune.training.distributed import resolve_device

    device = DeviceFacts.measure(torch.device(resolve_device(options.device)))
    plan, size = plan_without_data(options, device)
    if as_json:
        log.print_json({**describe_plan(options, plan, size)})
        return
    for choice in plan.choices.values():
        log.print_result(str(choice))
    log.print_result(f"expected on {device.name}: {size.describe()}")


def _show(options: PretrainOptions, output: OutputFormat, device: str) -> None:
    """Print the settings, and the cost above them or as a key of JSON."""
    import torch

    from pretune.runs.config import PretrainConfig
    from pretune.runs.defaults import open_request
    from pretune.runs.estimate import estimate_pretrain
    from pretune.runs.short_runs import plan_named_run

    request = open_request(options)
    if isinstance(request, PretrainConfig):
        config, reasons = request, []
    else:
        planned_run = plan_named_run(request, options.paper, torch.device(device))
        config, reasons = (
            planned_run.config,
            [planned_run.reason, *([planned_run.warning] if planned_run.warning else [])],
        )
    cost = estimate_pretrain(config, device)
    lines = [*reasons, *_format_forecast(cost, config.train.budget)]
    print_plan(output, config.to_dict(), {"cost": cost}, lines)


def _format_forecast(cost: dict[str, Any], budget: float | None) -> "Iterator[str]":
    yield cost["rate"]
    yield f"{cost['parameters']:,} parameters, {format_number(cost['flops_per_token'], billion='G')}FLOP per token"
    if budget is None:
        steps, tokens = format_count(cost["steps"], "steps"), format_count(cost["tokens"], "tokens")
        yield f"{steps}, {tokens}, {format_number(cost['flops'], billion='G')}FLOP; estimate for one device:"
        yield from format_costs(cost["devices"], "time", lambda device: format_duration(device["seconds"]))
    else:
        yield f"estimate for one device in {format_duration(budget)}:"
        yield from format_costs(cost["devices"], "tokens", lambda device: format_number(device["tokens"]))
