"""Cost of a run: FLOPs, utilization, energy, CO2e and price; each number with how it was obtained.

    meter = CostMeter(build_flops_counter(spec), device, initial_totals=checkpoint_totals)
    with meter:
        meter.add(dataloader.stats)            # after every step
        meter.compute_totals()                 # for a checkpoint: a resumed run continues from there
    write_json(run / "cost.json", compute_cost([meter.compute_totals()], device, CostRates()).to_dict())

Model FLOPs of useful tokens only, as counted by `models/cost.py`. Steps lost in a crash after the last
checkpoint are not in the totals.
"""

from collections.abc import Sequence
from typing import Any

import torch

from pretune.core.config import spec, to_dict
from pretune.models.cost import CO2_KG_PER_KWH
from pretune.models.devices import DOLLARS_PER_KWH, Device
from pretune.training.cost_meter import CostMeter, Energy, Totals, merge_energy
from pretune.training.energy import find_device
from pretune.training.flops import build_flops_counter

__all__ = [
    "Cost",
    "Energy",
    "CostMeter",
    "CostRates",
    "Totals",
    "compute_cost",
    "build_flops_counter",
    "find_peak_flops",
]

_JOULES_PER_KWH = 3.6e6  # joules


@spec(has_kind=False)
class CostRates:
    """Emissions per kilowatt-hour, and prices of a kilowatt-hour and a device hour; None: from the table of devices.

    The default grid is the world average (475 g in 2018 by the IEA; 473 g in 2024 by Ember); countries lie between 20
    and 800. The rent of a device includes its electricity.
    """

    grid_g_per_kwh: float = 1000 * CO2_KG_PER_KWH  # of CO2e
    dollars_per_device_hour: float | None = None
    dollars_per_kwh: float | None = None


@spec
class Cost:
    """Contents of cost.json."""

    device: str
    devices: int
    seconds: float  # training time; all other numbers refer to it
    flops: float
    peak_flops: float | None  # of one device, per second; None: unknown
    mfu: float | None  # over the whole time: evaluation, saving and waiting included
    kwh: float
    energy: tuple[Energy, ...]
    energy_label: str  # measured, estimated, or partly measured
    left_out: tuple[str, ...]  # consumers of energy not included
    co2e_kg: float
    grid_g_per_kwh: float
    dollars: float
    dollars_per_device_hour: float
    dollars_per_kwh: float
    price_label: str  # given, or assumed

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return to_dict(self)


def find_peak_flops(device: torch.device | str, precision: torch.dtype | None) -> float | None:
    """Return the peak FLOP/s of a known device by its data sheet; a precision of None is fp32."""
    known_device = _find_device(torch.device(device))
    if known_device is None:
        return None
    return known_device.flops.get(
        {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(precision or torch.float32, "fp32")
    )


def compute_cost(
    totals: Sequence[Totals], device: torch.device | str, cost_rates: CostRates, *, precision: torch.dtype | None = None
) -> Cost:
    """Compute the cost of a run from the totals of its ranks, which all use the same kind of device."""
    torch_device = torch.device(device)
    seconds, flops = max(total.seconds for total in totals), sum(total.flops for total in totals)
    rate, table = find_peak_flops(torch_device, precision), _find_device(torch_device)
    energy = merge_energy(part for total in totals for part in total.energy)
    kwh = sum(part.joules for part in energy) / _JOULES_PER_KWH
    hour, per_kwh = _resolve_prices(cost_rates, table)
    return Cost(
        device=torch.cuda.get_device_name(torch_device) if torch_device.type == "cuda" else torch_device.type,
        devices=len(totals),
        seconds=seconds,
        flops=flops,
        peak_flops=rate,
        mfu=flops / (seconds * rate * len(totals)) if rate and seconds else None,
        kwh=kwh,
        energy=energy,
        energy_label=_format_label(energy),
        left_out=_list_excluded(energy),
        co2e_kg=kwh * cost_rates.grid_g_per_kwh / 1000,
        grid_g_per_kwh=cost_rates.grid_g_per_kwh,
        dollars=seconds / 3600 * len(totals) * hour + kwh * per_kwh,
        dollars_per_device_hour=hour,
        dollars_per_kwh=per_kwh,
        price_label="assumed"
        if cost_rates.dollars_per_device_hour is None and cost_rates.dollars_per_kwh is None
        else "given",
    )


def _find_device(device: torch.device) -> Device | None:
    return find_device(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def _resolve_prices(cost_rates: CostRates, device: Device | None) -> tuple[float, float]:
    """Return dollars per hour and per kWh: the rent of the table, or the electricity of an owned device."""
    rent = device.dollars_per_hour if device and not device.is_owned else 0.0
    hour = rent if cost_rates.dollars_per_device_hour is None else cost_rates.dollars_per_device_hour
    return hour, (
        0.0 if hour else DOLLARS_PER_KWH
    ) if cost_rates.dollars_per_kwh is None else cost_rates.dollars_per_kwh


def _format_label(energy: Sequence[Energy]) -> str:
    is_measured = {part.measured for part in energy}
    return "partly measured" if len(is_measured) == 2 else "measured" if is_measured == {True} else "estimated"


def _list_excluded(energy: Sequence[Energy]) -> tuple[str, ...]:
    processor = () if any(part.what == "processor" for part in energy) else ("the host's processor",)
    return (*processor, "the rest of the machine", "cooling")
