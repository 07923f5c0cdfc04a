"""`pretune show`: what a model is and what it costs, from its spec alone."""

import json
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.core.errors import UsageError

if TYPE_CHECKING:
    from pretune.models.cost import Device, Memory
    from pretune.models.spec import Model
    from pretune.nn.stack import Stack

WIDTH = 80
"""No line is longer."""

BATCH = 8192
"""Tokens of the batch whose memory is shown, or one sequence where that is longer."""

_LONG = 4096  # the usual length is at most this, for some models are made for far more
_SCALES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_MOST = 10**18


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="FAMILY[-SIZE] (`pretune list`), or a model directory.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change the model: depth=6. Repeatable.")
    ] = None,
    tokens: Annotated[
        str, typer.Option("--tokens", metavar="N", help="Tokens to train on: 1e9, 10B, 300M, 2k.")
    ] = "1B",
    length: Annotated[
        str | None, typer.Option("--length", metavar="N", help="Tokens in a sequence; by default what it is made for.")
    ] = None,
    targets: Annotated[
        float | None,
        typer.Option("--targets", metavar="SHARE", help="Positions with a target; encoders 0.15, others 1."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a model's shape, parameters, FLOPs and memory, and what it takes to train it; builds nothing.

    Example: pretune show bert-base --set depth=6 --tokens 3B
    """
    from pretune.core.config import parse_assignments

    label, spec = _find(name, parse_assignments(settings or []))
    facts = collect(
        label,
        spec,
        tokens=count(tokens, "--tokens"),
        length=None if length is None else count(length, "--length"),
        targets=targets,
    )
    if as_json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    _print(_title(label, spec), _sections(spec, facts), _notes(spec, facts))


def count(text: str, what: str) -> int:
    """A whole number as people write it.

    >>> count("1.5B", "--tokens")
    1500000000
    """
    match = re.fullmatch(r"(\d[\d_]{,30}\.?\d{,30}|\.\d{1,30})(e[+-]?\d{1,2})?([kmbt]?)", text.strip().lower())
    value = float(f"{match[1]}{match[2] or ''}".replace("_", "")) * _SCALES[match[3]] if match else 0
    if not 1 <= value <= _MOST:
        raise UsageError(f"{what} '{text[:40]}' is not a number from 1 to 1e18; write it as 1e9, 10B, 300M or 2k")
    return round(value)


def collect(
    label: str, spec: "Model", *, tokens: int, length: int | None = None, targets: float | None = None
) -> dict[str, Any]:
    """Everything that is shown, JSON-ready."""
    from pretune.core.config import to_dict
    from pretune.models.cost import DEVICES, GRID, flops_per_token, memory, usual_targets
    from pretune.models.devices import DOLLARS_PER_KWH

    length = _length(spec, length)
    targets = usual_targets(spec) if targets is None else targets
    example = length * (2 if spec.both else 1)
    batch = max(1, BATCH // example) * example
    return {
        "name": label,
        "family": spec.family,
        "params": asdict(spec.params()),
        "flops_per_token": {
            "training": flops_per_token(spec, length=length, targets=targets),
            "inference": flops_per_token(spec, length=length, targets=targets, training=False),
        },
        "memory": {
            "training": _bytes(
                memory(spec, tokens=batch, length=length, training=True, precision="bf16", targets=targets)
            ),
            "inference": _bytes(memory(spec, tokens=example, length=length, training=False, precision="bf16")),
        },
        "devices": {name: _on(device, spec, tokens, length, targets) for name, device in DEVICES.items()},
        "assumptions": {
            "tokens": tokens,
            "length": length,
            "target_length": length if spec.both else None,
            "targets": targets,
            "training_batch_tokens": batch,
            "inference_batch_tokens": example,
            "precision": "bf16",
            "kg_co2_per_kwh": GRID,
            "dollars_per_kwh": DOLLARS_PER_KWH,
        },
        "spec": to_dict(spec),
    }


def _find(name: str, changes: dict[str, str]) -> "tuple[str, Model]":
    """What to call it, and its spec. A name of the catalogue comes before a directory: write ./NAME for that."""
    from pretune.core import config
    from pretune.models import catalog, checkpoint

    folder = Path(name)
    try:
        family, size = catalog.find(name)
    except UsageError:
        if folder.is_dir():
            spec = checkpoint.inspect(folder)[0]
            paths = {path.removeprefix("model."): value for path, value in changes.items()}
            return _changed(name, changes), config.replace(spec, paths)
        if os.sep in name:
            raise UsageError(f"{name}: no such directory, and no name that `pretune list` knows") from None
        raise
    return _changed(f"{family}-{size}", changes), catalog.resolve(name, changes)


def _changed(name: str, changes: dict[str, str]) -> str:
    return name + "".join(f" {path}={value}" for path, value in changes.items())


def _length(spec: "Model", given: int | None) -> int:
    longest = spec.longest
    if given is None:
        return min(longest or spec.context or 512, _LONG)
    if longest is not None and given > longest:
        raise UsageError(f"--length {given} is more than the {longest} positions this model has")
    return given


def _bytes(memory: "Memory") -> dict[str, int]:
    return {**asdict(memory), "total": memory.total}


def _on(device: "Device", spec: "Model", tokens: int, length: int, targets: float) -> dict[str, Any]:
    """One device's estimate; it fits where one sequence at a time does."""
    from pretune.models.cost import estimate, memory

    example = length * (2 if spec.both else 1)
    precision = "fp32" if device.precision == "fp32" else "bf16"
    least = memory(spec, tokens=example, length=length, training=True, precision=precision, targets=targets).total
    fits = least <= device.memory
    found = asdict(estimate(spec, tokens, device, length, targets))
    return {
        "memory": device.memory,
        "fits": fits,
        **{name: value if fits else None for name, value in found.items() if name != "flops"},
        "flops_per_second": device.flops[device.precision],
        "precision": device.precision,
        "utilisation": device.utilisation,
        "watts": device.watts,
        "dollars_per_hour": device.dollars_per_hour,
        "owned": device.owned,
    }


# From facts to lines.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """A heading over a table; columns after the first are aligned to the right where they are numbers."""

    title: str
    rows: Sequence[Sequence[str]]
    header: Sequence[str] | None = None
    right: bool = False


def _title(label: str, spec: "Model") -> list[str]:
    from pretune.core.config.read import shown
    from pretune.models.families import FAMILIES

    what = FAMILIES.describe(spec.family) if spec.family in FAMILIES else f"A model of the family {shown(spec.family)}."
    safe = "".join(c if c.isprintable() else "?" for c in label)
    return [*textwrap.wrap(safe, WIDTH), *textwrap.wrap(what, WIDTH)]


def _sections(spec: "Model", facts: dict[str, Any]) -> list[_Section]:
    from pretune.models.cost import parts

    given, params = facts["assumptions"], facts["params"]
    total = params["total"]
    counts = [(f"  {name}", f"{size:,}", f"{size / total:.0%}") for name, size in parts(spec).items()]
    sums = [(name.replace("_", " "), f"{size:,}", "") for name, size in params.items()]
    usages = facts["memory"]
    kinds = [kind for kind in usages["training"] if usages["training"][kind] or usages["inference"][kind]]
    return [
        _Section(title="Shape", rows=_shape(spec)),
        _Section(title="Parameters", rows=[*sums, *counts], right=True),
        _Section(
            title=f"FLOPs per token {_at(spec, given)}",
            rows=[(name, _amount(flops)) for name, flops in facts["flops_per_token"].items()],
            right=True,
        ),
        _Section(
            title="Memory, estimated, in bf16",
            header=("", *kinds),
            rows=[
                (f"{name}, {_batch(spec, given, name)}", *(_gigabytes(usage[kind]) for kind in kinds))
                for name, usage in usages.items()
            ],
            right=True,
        ),
        _Section(
            title=f"Training on {_amount(given['tokens'])} tokens with one device, estimated"
            f" ({_amount(facts['flops_per_token']['training'] * given['tokens'])} FLOPs)",
            header=("device", "memory", "time", "energy", "CO2e", "price"),
            rows=[_device_row(name, device) for name, device in facts["devices"].items()],
            right=True,
        ),
    ]


def _shape(spec: "Model") -> list[tuple[str, str]]:
    rows = [
        (side, _stack(stack, spec.width))
        for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder))
        if stack
    ]
    rows.append(("vocabulary", f"{spec.vocab:,} tokens"))
    made = "any length" if spec.context is None else f"made for {spec.context:,} tokens"
    rows.append(("positions", made if spec.longest is None else f"up to {spec.longest:,} tokens"))
    return rows


def _stack(stack: "Stack", width: int) -> str:
    block = stack.blocks[0]
    heads, kv_heads, head = block.attention.shape(width=width)
    shared = "" if stack.share is None else f" ({stack.share} of their own)"
    keys = "" if kv_heads == heads else f", {kv_heads} for keys"
    window = "" if block.attention.window is None else f", window {block.attention.window}"
    text = f"{stack.depth} layers{shared}, width {width}, {heads} heads of {head}{keys}"
    return f"{text}, hidden {block.feedforward.hidden}{window}"


def _at(spec: "Model", given: dict[str, Any]) -> str:
    where = f"at {given['length']:,} + {given['length']:,} tokens" if spec.both else f"at {given['length']:,} tokens"
    return f"{where}, targets at {given['targets']:.3g} of {'the target' if spec.both else 'the'} positions"


def _batch(spec: "Model", given: dict[str, Any], which: str) -> str:
    length = given["length"]
    sequences = given[f"{which}_batch_tokens"] // (length * (2 if spec.both else 1))
    return f"{sequences} x {f'({length:,} + {length:,})' if spec.both else f'{length:,}'} tokens"


def _device_row(name: str, device: dict[str, Any]) -> tuple[str, ...]:
    memory = f"{device['memory'] / 1e9:.0f} GB"
    if not device["fits"]:
        return name, memory, "does not fit", "", "", ""
    price = f"{_money(device['dollars'])}{'*' if device['owned'] else ' '}"
    return name, memory, _time(device["seconds"]), f"{device['kwh']:,.3g} kWh", f"{device['co2_kg']:,.3g} kg", price


def _notes(spec: "Model", facts: dict[str, Any]) -> list[str]:
    given = facts["assumptions"]
    return [
        "Assumed: 40 % of the datasheet's dense rate (30 % on apple-m2 and laptop-cpu), power at the board's limit, "
        f"{given['kg_co2_per_kwh']} kg CO2e/kWh, rough rents per hour of 2025; * electricity alone at "
        f"${given['dollars_per_kwh']:.2f}/kWh. Does not fit: one sequence at a time needs more memory. "
        "Change --tokens (default 1B), --length and --targets; docs/cost.md has the formulas.",
    ]
