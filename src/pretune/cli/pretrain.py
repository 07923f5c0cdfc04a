"""`pretune pretrain`: text that was prepared becomes a model."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli._hints import free, hint, other, quoted, saying
from pretune.cli._names import DEVICES, among, families, objectives
from pretune.cli._names import settings as paths
from pretune.cli._signals import ending_well
from pretune.core import log
from pretune.core.counted import counted
from pretune.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretune.runs.config import Settings


def pretrain(
    name: Annotated[
        str | None, typer.Argument(metavar="FAMILY[-SIZE]", autocompletion=families, help="What to train.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", metavar="DATA", help="What `pretune prepare` wrote.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="RUN", help="Where the run goes.")] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            metavar="NAME",
            autocompletion=objectives,
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
        typer.Option("--device", metavar="NAME", autocompletion=among(*DEVICES), help="cpu or cuda; found by default."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the settings and the cost; touch nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Pre-train a model on prepared data.

    What was killed goes on with --resume as if nothing had happened.

    Example: pretune pretrain bert-mini --data data/books --objective masked --budget 10m --out runs/books
    """
    begun = time.monotonic()  # a budget is that of the whole command
    from pretune.cli.show import count
    from pretune.core.config import parse_assignments

    with ending_well():  # importing takes a while
        from pretune.models.hf.checkpoint import inspect
        from pretune.runs.build_config import choose, device_of
        from pretune.runs.pretrain import pretrain as work
    if out is None and not dry_run:
        raise UsageError("missing option '--out': where the run goes")
    lengths: dict[str, Any] = {
        "steps": steps,
        "tokens": None if tokens is None else count(tokens, "--tokens"),
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
        here = device_of(device)  # which the run would refuse too
        _show(choose(name, **wishes), as_json, here)
        return
    assert out is not None
    run = work(name, out=out, resume=resume, begun=begun, **wishes)
    if os.environ.get("RANK", "0") != "0":  # the first of several processes tells it
        return
    if as_json:
        log.print_json(run.summary)
    else:
        held = "" if run.loss is None else f", held-out loss {run.loss:.4f}"
        log.print_result(
            f"{run}: {counted(run.summary['steps'], 'steps')}, {counted(run.summary['tokens'], 'tokens')}{held}"
        )
    hint(*saying(run, inspect(run.path)[0]), silent=as_json)
    tuned = quoted(free(f"{run}-tuned"))
    other(f"finetune {quoted(run)} --train TABLE.csv --out {tuned}  (a table with texts and labels)", silent=as_json)


def _show(settings: "Settings", as_json: bool, device: str) -> None:
    """The tree, which `--config` reads, and below it what the run takes, as comments of YAML or as a part of JSON."""
    from pretune.runs.estimate import forecast

    tree, cost = settings.plain(), forecast(settings, device)
    if as_json:
        log.print_json({**tree, "cost": cost})
        return
    import yaml

    log.print_result(
        yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True), end=""
    )
    log.print_result("\n".join(f"# {line}".rstrip() for line in _costs(cost, settings.train.budget)))


def _costs(cost: dict[str, Any], budget: float | None) -> "Iterator[str]":
    from pretune.core.format import amount, clock, columns, dollars, energy, weight

    yield cost["rate"]
    yield f"{cost['parameters']:,} parameters, {amount(cost['flops_per_token'], billion='G')}FLOP a token"
    if budget is None:
        yield (
            f"{counted(cost['steps'], 'steps')}, {counted(cost['tokens'], 'tokens')}, "
            f"{amount(cost['flops'], billion='G')}FLOP; with one "
            "device, estimated:"
        )
    else:
        yield f"so far one device comes in {clock(budget)}, estimated:"
    rows = [
        (
            name,
            clock(found["seconds"]) if budget is None else f"{amount(found['tokens'])} tokens",
            energy(found["kwh"]),
            weight(found["co2e_kg"]),
            dollars(found["dollars"]),
        )
        for name, found in cost["devices"].items()
    ]
    yield from columns([("device", "time" if budget is None else "reads", "energy", "CO2e", "price"), *rows])
