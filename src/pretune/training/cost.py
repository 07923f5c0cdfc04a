"""What a run costs: FLOPs, utilisation, energy, CO2e and price; each with how it is known.

    meter = Meter(flops_of(spec), device, before=checkpoint_totals)
    with meter:
        meter.add(feed.seen)                   # after every step
        meter.totals()                         # for a checkpoint: a resumed run goes on from there
    write_json(run / "cost.json", cost([meter.totals()], device, Tariff()).facts())

Model FLOPs of useful tokens only: what `models/compute_cost.py` counts. What a crash threw away after the last checkpoint is
not in the totals.
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

__all__ = ["Cost", "Energy", "CostMeter", "Tariff", "Totals", "compute_cost", "build_flops_counter", "find_peak_flops"]

_JOULES_PER_KWH = 3.6e6  # joules


@spec(tagged=False)
class Tariff:
    """What a kilowatt-hour emits, and what it and an hour of a device cost; None: what our table of devices says.

    The default grid is the world's average (475 g in 2018 by the IEA; 473 g in 2024 by Ember); a country's own lies
    between 20 and 800. A rented device's electricity is in its rent.
    """

    grid: float = 1000 * CO2_KG_PER_KWH  # g of CO2e per kWh
    hour: float | None = None  # dollars, for each device
    kwh: float | None = None  # dollars


@spec
class Cost:
    """What stands in cost.json."""

    device: str
    devices: int
    seconds: float  # the training time, which all other numbers are of
    flops: float
    peak_flops: float | None  # of one device, per second; None: not known
    mfu: float | None  # of the whole time: evaluation, saving and waiting included
    kwh: float
    energy: tuple[Energy, ...]
    energy_label: str  # measured, estimated, or partly measured
    left_out: tuple[str, ...]  # what draws energy and is in none of these numbers
    co2e_kg: float
    grid_g_per_kwh: float
    dollars: float
    dollars_per_device_hour: float
    dollars_per_kwh: float
    price_label: str  # given, or assumed

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return to_dict(self)


def find_peak_flops(device: torch.device | str, precision: torch.dtype | None) -> float | None:
    """FLOPs per second of a device's data sheet in a precision (None: fp32), where we know the device."""
    found = _find_device(torch.device(device))
    if found is None:
        return None
    return found.flops.get({torch.bfloat16: "bf16", torch.float16: "fp16"}.get(precision or torch.float32, "fp32"))


def compute_cost(
    totals: Sequence[Totals], device: torch.device | str, tariff: Tariff, *, precision: torch.dtype | None = None
) -> Cost:
    """The cost of a run from what its ranks counted, each with a device of the same kind."""
    where = torch.device(device)
    seconds, flops = max(total.seconds for total in totals), sum(total.flops for total in totals)
    rate, table = find_peak_flops(where, precision), _find_device(where)
    energy = merge_energy(part for total in totals for part in total.energy)
    kwh = sum(part.joules for part in energy) / _JOULES_PER_KWH
    hour, per_kwh = _resolve_prices(tariff, table)
    return Cost(
        device=torch.cuda.get_device_name(where) if where.type == "cuda" else where.type,
        devices=len(totals),
        seconds=seconds,
        flops=flops,
        peak_flops=rate,
        mfu=flops / (seconds * rate * len(totals)) if rate and seconds else None,
        kwh=kwh,
        energy=energy,
        energy_label=_format_label(energy),
        left_out=_list_excluded(energy),
        co2e_kg=kwh * tariff.grid / 1000,
        grid_g_per_kwh=tariff.grid,
        dollars=seconds / 3600 * len(totals) * hour + kwh * per_kwh,
        dollars_per_device_hour=hour,
        dollars_per_kwh=per_kwh,
        price_label="assumed" if tariff.hour is None and tariff.kwh is None else "given",
    )


def _find_device(device: torch.device) -> Device | None:
    return find_device(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def _resolve_prices(tariff: Tariff, device: Device | None) -> tuple[float, float]:
    """Dollars per hour and per kWh: the table's rent, or the electricity where nothing is rented."""
    rent = device.dollars_per_hour if device and not device.is_owned else 0.0
    hour = rent if tariff.hour is None else tariff.hour
    return hour, (0.0 if hour else DOLLARS_PER_KWH) if tariff.kwh is None else tariff.kwh


def _format_label(energy: Sequence[Energy]) -> str:
    known_how = {part.measured for part in energy}
    return "partly measured" if len(known_how) == 2 else "measured" if known_how == {True} else "estimated"


def _list_excluded(energy: Sequence[Energy]) -> tuple[str, ...]:
    processor = () if any(part.what == "processor" for part in energy) else ("the host's processor",)
    return (*processor, "the rest of the machine", "cooling")
