"""`pretune pretrain`: text that was prepared becomes a model."""

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
from pretune.core.counted import format_count
from pretune.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretune.runs.config import PretrainConfig


def pretrain(
    name: Annotated[
        str | None, typer.Argument(metavar="FAMILY[-SIZE]", autocompletion=complete_families, help="What to train.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", metavar="DATA", help="What `pretune prepare` wrote.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="RUN", help="Where the run goes.")] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            metavar="NAME",
            autocompletion=complete_objectives,
            help="What it learns; by default what its paper did.",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", help="Length of the run in steps …")] = None,
    tokens: Annotated[str | None, typer.Option("--tokens", metavar="N", help="… or in tokens: 10M, 1B …")] = None,
    epochs: Annotated[
        float | None, typer.Option("--epochs", metavar="N", help="… or in passes over the data …")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="TIME", help="… or by the clock: 90s, 10m, 1h30m, with the unit.")
    ] = None,
    start: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Go on from the weights of a MODEL.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in --out.")] = False,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings: a run.json, or YAML with the same tree.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            autocompletion=paths("pretrain"),
            help="train.lr=3e-4, data.max_length=128, model.depth=6. Repeatable.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME", autocompletion=complete_from(*DEVICES), help="cpu or cuda; found by default."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the settings and the cost; touch nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Pre-train a model on prepared data.

    What was killed goes on with --resume as if nothing had happened.

    Example: pretune pretrain bert-mini --data data/books --objective masked --budget 10m --out runs/books
    """
    begun = time.monotonic()  # a budget is that of the whole command
    from pretune.cli.show import parse_count
    from pretune.core.config import parse_assignments

    with shut_down_cleanly():  # importing takes a while
        from pretune.models.hf.checkpoint import inspect_checkpoint
        from pretune.runs.build_config import build_pretrain_config, resolve_device
        from pretune.runs.pretrain import pretrain as work
    if out is None and not dry_run:
        raise UsageError("missing option '--out': where the run goes")
    lengths: dict[str, Any] = {
        "steps": steps,
        "tokens": None if tokens is None else parse_count(tokens, "--tokens"),
        "epochs": epochs,
        "budget": budget,
    }
    wishes: dict[str, Any] = {
        "data": data,
        "objective": objective,
        "start": start,
        "changes": parse_assignments(settings or []),
        "settings": config,
        "device": device,
        **lengths,
    }
    if dry_run:
        here = resolve_device(device)  # which the run would refuse too
        _show(build_pretrain_config(name, **wishes), as_json, here)
        return
    assert out is not None
    run = work(name, out=out, resume=resume, started_at=begun, **wishes)
    if os.environ.get("RANK", "0") != "0":  # the first of several processes tells it
        return
    if as_json:
        log.print_json(run.summary)
    else:
        held = "" if run.loss is None else f", held-out loss {run.loss:.4f}"
        log.print_result(
            f"{run}: {format_count(run.summary['steps'], 'steps')}, {format_count(run.summary['tokens'], 'tokens')}{held}"
        )
    hint(*suggest_use(run, inspect_checkpoint(run.path)[0]), silent=as_json)
    tuned = quote(find_free_path(f"{run}-tuned"))
    hint_other(
        f"finetune {quote(run)} --train TABLE.csv --out {tuned}  (a table with texts and labels)", silent=as_json
    )


def _show(settings: "PretrainConfig", as_json: bool, device: str) -> None:
    """The tree, which `--config` reads, and below it what the run takes, as comments of YAML or as a part of JSON."""
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
    yield f"{cost['parameters']:,} parameters, {format_number(cost['flops_per_token'], billion='G')}FLOP a token"
    if budget is None:
        yield (
            f"{format_count(cost['steps'], 'steps')}, {format_count(cost['tokens'], 'tokens')}, "
            f"{format_number(cost['flops'], billion='G')}FLOP; with one "
            "device, estimated:"
        )
    else:
        yield f"so far one device comes in {format_duration(budget)}, estimated:"
    rows = [
        (
            name,
            format_duration(found["seconds"]) if budget is None else f"{format_number(found['tokens'])} tokens",
            format_energy(found["kwh"]),
            format_kilograms(found["co2e_kg"]),
            format_dollars(found["dollars"]),
        )
        for name, found in cost["devices"].items()
    ]
    yield from align_columns([("device", "time" if budget is None else "reads", "energy", "CO2e", "price"), *rows])
