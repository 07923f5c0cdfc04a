"""`pretune pretrain`: pre-train a model on prepared data."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli._hints import find_free_path, hint, hint_other, quote, suggest_use
from pretune.cli._names import DEVICES, complete_families, complete_from, complete_objectives
from pretune.cli._names import complete_settings as paths
from pretune.cli._signals import shut_down_cleanly
from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.format import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretune.runs.config import PretrainConfig


def pretrain(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="FAMILY[-SIZE]",
            autocompletion=complete_families,
            help="Model to train; see `pretune list families`.",
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", metavar="DATA", help="Data of `pretune prepare`.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="RUN", help="Output directory of the run.")] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            metavar="NAME",
            autocompletion=complete_objectives,
            help="Training objective (default: that of the model's paper).",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", help="Training steps.")] = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="N", help="Training tokens, instead of steps: 10M, 1B.")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option("--epochs", metavar="N", help="Training epochs, instead of steps.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            help="Training time, instead of steps: 90s, 10m, 1h30m. The learning rate follows the clock.",
        ),
    ] = None,
    start: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Initialize from the weights of a MODEL.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the unfinished run in --out.")] = False,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings file: YAML, or the run.json of a run.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            autocompletion=paths("pretrain"),
            help="Change a setting: train.lr=3e-4, data.max_length=128, model.depth=6. Repeatable.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="NAME",
            autocompletion=complete_from(*DEVICES),
            help="cpu or cuda (default: a GPU if available).",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print settings and estimated cost; train nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Pre-train a model on prepared data.

    An interrupted run continues with --resume, with identical results.

    Example: pretune pretrain bert-mini --data data/books --objective masked --budget 10m --out runs/books
    """
    start_time = time.monotonic()  # the budget covers the whole command
    from pretune.cli.show import parse_count
    from pretune.core.config import parse_assignments

    with shut_down_cleanly():  # imports take seconds
        from pretune.models.hf.checkpoint import inspect_checkpoint
        from pretune.runs.build_config import build_pretrain_config, resolve_device
        from pretune.runs.pretrain import run_pretrain
    if out is None and not dry_run:
        raise UsageError("missing option '--out': the output directory of the run")
    lengths: dict[str, Any] = {
        "steps": steps,
        "tokens": None if tokens is None else parse_count(tokens, "--tokens"),
        "epochs": epochs,
        "budget": budget,
    }
    options: dict[str, Any] = {
        "data": data,
        "objective": objective,
        "init_from": start,
        "changes": parse_assignments(settings or []),
        "settings": config,
        "device": device,
        **lengths,
    }
    if dry_run:
        target = resolve_device(device)  # a run rejects an unknown device too
        _show(build_pretrain_config(name, **options), as_json, target)
        return
    assert out is not None
    run = run_pretrain(name, out=out, resume=resume, started_at=start_time, **options)
    if os.environ.get("RANK", "0") != "0":  # only rank 0 prints
        return
    if as_json:
        log.print_json(run.summary)
    else:
        validation = "" if run.loss is None else f", validation loss {run.loss:.4f}"
        log.print_result(
            f"{run}: {format_count(run.summary['steps'], 'steps')}, "
            f"{format_count(run.summary['tokens'], 'tokens')}{validation}"
        )
    hint(*suggest_use(run, inspect_checkpoint(run.path)[0]), silent=as_json)
    tuned_path = quote(find_free_path(f"{run}-tuned"))
    hint_other(
        f"finetune {quote(run)} --train TABLE.csv --out {tuned_path}  (a table with texts and labels)", silent=as_json
    )


def _show(settings: "PretrainConfig", as_json: bool, device: str) -> None:
    """Print the settings in the format of `--config`, and the cost below them as YAML comments or as a key of JSON."""
    from pretune.runs.estimate import estimate_pretrain

    tree, cost = settings.to_dict(), estimate_pretrain(settings, device)
    if as_json:
        log.print_json({**tree, "cost": cost})
        return
    import yaml

    log.print_result(
        yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True), end=""
    )
    log.print_result("\n".join(f"# {line}".rstrip() for line in _format_costs(cost, settings.train.budget)))


def _format_costs(cost: dict[str, Any], budget: float | None) -> "Iterator[str]":
    from pretune.core.format import (
        align_columns,
        format_dollars,
        format_duration,
        format_energy,
        format_kilograms,
        format_number,
    )

    yield cost["rate"]
    yield f"{cost['parameters']:,} parameters, {format_number(cost['flops_per_token'], billion='G')}FLOP per token"
    if budget is None:
        yield (
            f"{format_count(cost['steps'], 'steps')}, {format_count(cost['tokens'], 'tokens')}, "
            f"{format_number(cost['flops'], billion='G')}FLOP; "
            "estimate for one device:"
        )
    else:
        yield f"estimate for one device in {format_duration(budget)}:"
    rows = [
        (
            name,
            format_duration(estimate["seconds"]) if budget is None else format_number(estimate["tokens"]),
            format_energy(estimate["kwh"]),
            format_kilograms(estimate["co2e_kg"]),
            format_dollars(estimate["dollars"]),
        )
        for name, estimate in cost["devices"].items()
    ]
    yield from align_columns([("device", "time" if budget is None else "tokens", "energy", "CO2e", "price"), *rows])
