"""`pretune show`: architecture and training cost of a model, computed from its spec."""

import os
import re
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from pretune.cli._options import SPEC_PATHS, TableFormat
from pretune.cli._output import WIDTH, find_free_path, hint, hint_other, print_data, print_page, quote
from pretune.core.api import Options, option, option_set
from pretune.core.errors import UsageError, explain_missing
from pretune.core.log import Section, format_count, format_number, parse_count
from pretune.models.families import FAMILIES, list_names
from pretune.runs.options import SET

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pretune.models.devices import Device
    from pretune.models.generator_discriminator import Pair
    from pretune.models.spec import Model
    from pretune.nn.recurrent_stack import AnyStack

BATCH_TOKENS = 8192
"""Batch size of the memory estimate in tokens, or one sequence where that is longer."""

_MAX_LENGTH = 4096  # maximum default length; some models support far more
_BYTES = ((" TB", 1e12), (" GB", 1e9), (" MB", 1e6), (" kB", 1e3))
_TIMES = ((" years", 365 * 86400.0, 2), (" days", 86400.0, 2), (" h", 3600.0, 1), (" min", 60.0, 1), (" s", 1.0, 0))
"""Units in seconds, with the number of units from which they are used."""


@option_set
class ShowOptions(Options):
    """Options of the facts of a model."""

    name: str = option(
        "NAME",
        "FAMILY[-SIZE], or MODEL (./DIR, hf:OWNER/NAME).",
        is_required=True,
        names=("pretune.models.families:list_names",),
    )
    settings: "Mapping[str, str] | None" = SET.field(about="Change the spec: depth=6. Repeatable.", names=SPEC_PATHS)
    tokens: str = option("--tokens N", "Training tokens: 1e9, 10B, 300M, 2k.", default="1B")
    length: str | None = option("--length N", "Sequence length (default: the model's context).")
    targets: float | None = option(
        "--targets SHARE", "Share of positions with a target (default: encoders 0.15, others 1)."
    )
    devices: str | None = option("--devices NxDEVICE", "Sharded training on several GPUs: 64xh100, or 8xh100,64xh100.")


def show(options: ShowOptions, output: TableFormat) -> None:
    """Show a model's parameters, FLOPs, memory and training cost.

    Everything is computed from the spec; no weights are allocated.

    Example: pretune show bert-base --set depth=6 --tokens 3B
    """
    name = options.name
    label, spec = _find(name, options.settings or {})
    facts = collect(label, spec, options)
    if print_data(output, facts, ("table", "row", "name", "value"), list_records(facts)):
        return
    printable = "".join(c if c.isprintable() else "?" for c in label)
    print_page(printable, _describe(spec), _build_sections(spec, facts), _build_note(facts))
    if name in list_names():
        hint(*_suggest_objective(spec.family))
        hint_other(
            f"pretrain {name} --data DATA --out {quote(find_free_path('runs/base'))}  (DATA from `pretune prepare`)"
        )
    else:
        hint("verify", name)


def collect(label: str, spec: "Model", options: ShowOptions) -> dict[str, Any]:
    """Return all facts, JSON-ready."""
    from pretune.core.config import to_dict
    from pretune.models.cost import CO2_KG_PER_KWH, estimate_memory, estimate_target_share, flops_per_token
    from pretune.models.devices import DEVICES, DOLLARS_PER_KWH

    tokens = parse_count(options.tokens, "--tokens")
    length = _resolve_length(spec, None if options.length is None else parse_count(options.length, "--length"))
    targets = estimate_target_share(spec) if options.targets is None else options.targets
    clusters = [] if options.devices is None else options.devices.split(",")
    example = length * (2 if spec.is_encoder_decoder else 1)
    batch = max(1, BATCH_TOKENS // example) * example
    flops = {
        name: flops_per_token(spec, length=length, targets=targets, training=name == "training")
        for name in ("training", "inference")
    }
    memory = {
        "training": estimate_memory(
            spec, tokens=batch, length=length, training=True, precision="bf16", targets=targets
        ),
        "inference": estimate_memory(spec, tokens=example, length=length, training=False, precision="bf16"),
    }
    return {
        "name": label,
        "family": spec.family,
        "params": asdict(spec.params()),
        "flops_per_token": flops | _compute_pair_flops(spec, length),
        "memory": {name: {**asdict(usage), "total": usage.total} for name, usage in memory.items()},
        "devices": {name: _estimate_device(device, spec, tokens, length, targets) for name, device in DEVICES.items()},
        **({"clusters": _estimate_clusters(spec, clusters, tokens, length, targets)} if clusters else {}),
        "assumptions": {
            "tokens": tokens,
            "length": length,
            "target_length": length if spec.is_encoder_decoder else None,
            "targets": targets,
            "training_batch_tokens": batch,
            "inference_batch_tokens": example,
            "precision": "bf16",
            "kg_co2_per_kwh": CO2_KG_PER_KWH,
            "dollars_per_kwh": DOLLARS_PER_KWH,
        },
        "spec": to_dict(spec),
    }


def list_records(facts: "Mapping[str, object]") -> "Iterator[tuple[str, str, str, object]]":
    """Yield one record per number: table, row (where it has several), name, value."""
    for table, values in facts.items():
        if table == "spec" or not isinstance(values, dict):
            continue
        for name, value in values.items():
            if isinstance(value, dict):
                yield from ((table, name, column, cell) for column, cell in value.items())
            else:
                yield table, "", name, value


def _compute_pair_flops(spec: "Model", length: int) -> dict[str, float]:
    """Return the FLOPs of pre-training with a second model that is discarded afterwards (ELECTRA's generator)."""
    from pretune.models.catalog import list_models
    from pretune.models.cost import estimate_target_share, flops_per_token

    pair = _build_pair(spec)
    if pair is None:
        return {}
    models = list_models(pair)
    costs = [flops_per_token(model, length=length, targets=estimate_target_share(model)) for model in models]
    return {"training with its generator": sum(costs)}


def _build_pair(spec: "Model") -> "Pair | None":
    """Return the generator-discriminator pair, if this spec is the discriminator of one."""
    build = FAMILIES.get(spec.family).build_pretraining_spec if spec.family in FAMILIES and spec.detector else None
    return None if build is None else build(spec)


def _find(name: str, changes: "Mapping[str, str]") -> "tuple[str, Model]":
    """Return the display name and spec. A catalogue name takes precedence over a directory; use ./NAME for that."""
    from pretune.core import config
    from pretune.core.hub import is_gguf, resolve_path
    from pretune.models import catalog
    from pretune.models.hf import checkpoint

    folder = resolve_path(name)
    try:
        family, size = catalog.parse_name(name)
    except UsageError:
        if name and (folder.is_dir() or is_gguf(folder)):  # an empty path would mean the current directory
            spec = checkpoint.inspect_checkpoint(folder)[0]
            paths = {path.removeprefix("model."): value for path, value in changes.items()}
            return _format_name(name, changes), config.replace(spec, paths)
        if os.sep in name:
            raise UsageError(
                f"{name}: {explain_missing(name, 'directory')}, and not a name of `pretune list`"
            ) from None
        raise
    return _format_name(f"{family}-{size}", changes), catalog.resolve(name, changes)


def _suggest_objective(family: str) -> tuple[str, str]:
    """Return the command that shows the objective of the family's paper."""
    training = FAMILIES.get(family).training
    return ("list", "objectives") if training is None else ("show-batch", str(training.objective["kind"]))


def _format_name(name: str, changes: "Mapping[str, str]") -> str:
    return name + "".join(f" {path}={value}" for path, value in changes.items())


def _resolve_length(spec: "Model", length: int | None) -> int:
    longest = spec.max_length
    if length is None:
        return min(longest or spec.context or 512, _MAX_LENGTH)
    if longest is not None and length > longest:
        raise UsageError(f"--length {length} exceeds the model's maximum of {longest} positions")
    return length


def _estimate_device(device: "Device", spec: "Model", tokens: int, length: int, targets: float) -> dict[str, object]:
    """Return the estimate for one device; it fits if one sequence at a time does."""
    from pretune.models.cost import estimate_cost, estimate_memory

    example = length * (2 if spec.is_encoder_decoder else 1)
    precision: Literal["fp32", "bf16"] = "fp32" if device.precision == "fp32" else "bf16"
    memory = estimate_memory(spec, tokens=example, length=length, training=True, precision=precision, targets=targets)
    fits, estimate = memory.total <= device.memory, asdict(estimate_cost(spec, tokens, device, length, targets))
    return {
        "memory": device.memory,
        "fits": fits,
        **{name: value if fits else None for name, value in estimate.items() if name != "flops"},
        "flops_per_second": device.flops[device.precision],
        "precision": device.precision,
        "utilisation": device.utilisation,
        "watts": device.watts,
        "dollars_per_hour": device.dollars_per_hour,
        "owned": device.is_owned,
    }


def _estimate_clusters(
    spec: "Model", clusters: "Sequence[str]", tokens: int, length: int, targets: float
) -> dict[str, object]:
    """Return the estimate of sharded training for each cluster; None for one that is too small."""
    from pretune.models.cluster import estimate_sharded, parse_cluster

    estimates: dict[str, object] = {}
    for text in clusters:
        count, device = parse_cluster(text)
        estimate = estimate_sharded(spec, count, device, tokens=tokens, length=length, targets=targets)
        facts: dict[str, object] = {"fits": estimate is not None}
        if estimate is not None:
            memory = {"memory": estimate.memory.total, "memory_parts": asdict(estimate.memory)}
            facts |= {**asdict(estimate), **memory, "step_seconds": estimate.step_seconds}
        estimates[f"{count}x{device.name}"] = facts
    return estimates


# Rendering.


def _describe(spec: "Model") -> str:
    from pretune.core.config.read import format_value

    if spec.family in FAMILIES:
        return FAMILIES.describe(spec.family)
    return f"Model of the family {format_value(spec.family)}."


def _build_sections(spec: "Model", facts: dict[str, Any]) -> list[Section]:
    assumptions, flops = facts["assumptions"], facts["flops_per_token"]
    tokens, sequence = assumptions["tokens"], _format_sequence(spec, assumptions)
    share = "all" if assumptions["targets"] == 1 else f"{100 * assumptions['targets']:.3g}% of the"
    flops_title = f"FLOPs per token, {sequence} tokens long, targets at {share} positions"
    flops_rows = [(name, format_number(value)) for name, value in flops.items()]
    total = _format_digits(flops["training"] * tokens)
    devices_title = f"Training on {format_number(tokens)} tokens on one device: {total} FLOPs"
    devices = [_format_device(name, device) for name, device in facts["devices"].items()]
    names = ("device", "memory", "time", "energy", "CO2e", "price")
    memory = _list_memory(sequence, facts)
    return [
        Section(title="Shape", rows=_describe_shape(spec)),
        Section(title="Parameters", rows=_list_parameters(spec), align_right=True),
        Section(title=flops_title, rows=flops_rows, align_right=True),
        Section(title="Memory in bf16, estimated", header=("", *facts["memory"]), rows=memory, align_right=True),
        Section(title=devices_title, header=names, rows=devices, align_right=True),
        *_list_clusters(facts),
    ]


def _list_clusters(facts: dict[str, Any]) -> list[Section]:
    """Return the sections on sharded training: speed and cost, and the memory of each device."""
    clusters = facts.get("clusters", {})
    if not clusters:
        return []
    speeds, memory = [], []
    for name, estimate in clusters.items():
        if not estimate["fits"]:
            speeds.append((name, "does not fit", "", "", "", "", ""))
            continue
        batch = f"{estimate['device_tokens']:,}{' *' if estimate['activation_checkpointing'] else ''}"
        throughput = format_number(estimate["tokens_per_second"])
        step = [f"{estimate[f'{part}_seconds']:.3g} s" for part in ("compute", "transfer")]
        price = _format_dollars(estimate["dollars"])
        speeds.append((name, batch, *step, throughput, _format_time(estimate["seconds"]), price))
        memory.append((name, *map(_format_size, (*estimate["memory_parts"].values(), estimate["memory"]))))
    title = f"FSDP2 on {format_number(facts['assumptions']['tokens'])} tokens (* activation checkpointing)"
    header = ("", "batch/GPU", "compute", "transfer", "tokens/s", "time", "price")
    parts = ("", "sharded", "gathered", "bf16 copy", "activations", "total")
    return [
        Section(title=title, header=header, rows=speeds, align_right=True),
        Section(title="Memory of one GPU", header=parts, rows=memory, align_right=True),
    ]


def _build_note(facts: dict[str, Any]) -> str:
    assumptions = facts["assumptions"]
    rates: dict[float, list[str]] = {}
    for name, device in facts["devices"].items():
        rates.setdefault(device["utilisation"], []).append(name)
    common_rate, *other_rates = sorted(rates, key=lambda rate: -len(rates[rate]))
    but = "".join(f"; {rate:.0%} on {' and '.join(rates[rate])}" for rate in other_rates)
    return (
        f"Assumptions: {common_rate:.0%} of the datasheet's dense FLOP/s{but}; power at the board limit; "
        f"{assumptions['kg_co2_per_kwh']} kg CO2e per kWh; approximate hourly rents of 2025 (* electricity only, at "
        f"${assumptions['dollars_per_kwh']:.2f} per kWh). 'Does not fit': one sequence at a time needs more memory. "
        "Change them with --tokens (default 1B), --length and --targets; see docs/cost.md."
    )


def _describe_shape(spec: "Model") -> list[tuple[str, str]]:
    sides = (("encoder", spec.encoder), ("decoder", spec.decoder))
    descriptions = [(side, _describe_stack(stack, spec.width)) for side, stack in sides if stack]
    if (pair := _build_pair(spec)) is not None:
        stack = _describe_stack(pair.generator.last_stack, pair.generator.width)
        descriptions.append(("generator", f"{stack}; discarded after training"))
    lines = [(side, textwrap.wrap(text, WIDTH - 16)) for side, text in descriptions]
    rows = [(side if line is text[0] else "", line) for side, text in lines for line in text]
    context = "any length" if spec.context is None else f"trained with {spec.context:,} tokens"
    return [
        *rows,
        ("vocabulary", f"{spec.vocab:,} tokens"),
        ("positions", context if spec.max_length is None else f"at most {spec.max_length:,} tokens"),
    ]


def _describe_stack(stack: "AnyStack", width: int) -> str:
    from pretune.nn.recurrent_stack import Recurrent

    if isinstance(stack, Recurrent):
        units = ", ".join(
            f"{block.hidden}{f' projected to {block.projection}' if block.projection else ''}" for block in stack.blocks
        )
        return f"{stack.depth} LSTM layer{'s' if stack.depth > 1 else ''}, width {width}, units {units}"
    block, kinds = stack.blocks[0], set(stack.blocks)
    heads, kv_heads, head = block.attention.resolve_shape(width=width)
    return "".join(
        (
            f"{stack.depth} layer{'s' if stack.depth > 1 else ''}",
            "" if stack.share is None else f" ({stack.share} unique)",
            f", width {width}, hidden {block.feedforward.hidden}, {format_count(heads, 'heads')} of {head}",
            "" if kv_heads == heads else f", keys {kv_heads}",
            "" if block.attention.window is None else f", window {block.attention.window}",
            "" if len(kinds) == 1 else f" (first of {len(kinds)} layer types)",
        )
    )


def _list_parameters(spec: "Model") -> list[tuple[str, str, str]]:
    """Return the totals that publications report, then the parts of the total."""
    from pretune.models.cost import count_params_by_part

    sums = asdict(spec.params())
    if sums["body"] == sums["body_with_pooler"]:
        del sums["body_with_pooler"]
    total = sums["total"]
    return [
        *((name.replace("_", " "), f"{size:,}", "") for name, size in sums.items()),
        *((f"  {name}", f"{size:,}", f"{size / total:.1%}") for name, size in count_params_by_part(spec).items()),
    ]


def _list_memory(sequence: str, facts: dict[str, Any]) -> list[tuple[str, ...]]:
    assumptions, usages = facts["assumptions"], facts["memory"]
    example = assumptions["inference_batch_tokens"]
    batches = [f"{assumptions[f'{name}_batch_tokens'] // example} x {sequence}" for name in usages]
    kinds = [kind for kind in usages["training"] if any(usage[kind] for usage in usages.values())]
    return [("batch", *batches), *((kind, *(_format_size(usage[kind]) for usage in usages.values())) for kind in kinds)]


def _format_device(name: str, estimate: dict[str, Any]) -> tuple[str, ...]:
    memory = _format_size(estimate["memory"])
    if not estimate["fits"]:
        return name, memory, "does not fit", "", "", ""
    price = _format_dollars(estimate["dollars"]) + ("*" if estimate["owned"] else " ")
    energy, carbon = (f"{_format_digits(estimate[key])} {unit}" for key, unit in (("kwh", "kWh"), ("co2_kg", "kg")))
    return name, memory, _format_time(estimate["seconds"]), energy, carbon, price


def _format_sequence(spec: "Model", assumptions: dict[str, Any]) -> str:
    length = f"{assumptions['length']:,}"
    return f"({length} + {length})" if spec.is_encoder_decoder else length


def _format_dollars(value: float) -> str:
    if value < 0.01:
        return "<$0.01"
    return f"${value:.2f}" if value < 100 else f"${_format_digits(value)}"


def _format_digits(value: float) -> str:
    """Format three significant digits, without exponent up to 10 million.

    >>> [_format_digits(value) for value in (0.00001, 0.01234, 12.345, 12345.6, 1.2e9)]
    ['<0.001', '0.0123', '12.3', '12,346', '1.2e9']
    """
    if value < 0.001:
        return "<0.001"
    if value >= 1e7:
        return re.sub(r"e\+0?", "e", f"{value:.3g}")
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _format_size(value: float) -> str:
    units = (f"{_format_digits(value / scale)}{unit}" for unit, scale in _BYTES if value >= scale)
    return next(units, f"{value:.0f} B" if value else "-")


def _format_time(seconds: float) -> str:
    unit, scale = next((unit, scale) for unit, scale, count in _TIMES if seconds >= count * scale)
    return f"{_format_digits(seconds / scale)}{unit}"
