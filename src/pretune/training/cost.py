"""Cost of a run: time, FLOPs, utilization, energy, CO2e and price; each number with how it was obtained.

    meter = CostMeter(build_flops_counter(spec), device, initial_totals=checkpoint_totals)
    with meter:
        meter.add(dataloader.stats)            # after every step
        meter.compute_totals()                 # for a checkpoint: a resumed run continues from there
    write_json(run / "cost.json", compute_cost([meter.compute_totals()], device, CostRates()))

Model FLOPs of useful tokens only, by the formulas of `models/cost.py`. Steps lost in a crash after the last checkpoint
are not in the totals.

An energy gauge is a hardware counter where available, otherwise a stated assumption. It counts joules from its
creation. Counters cover whole boards and processor packages, including other processes running there. The rest of the
machine (fans, disks, power supply losses) is never included.
"""

import contextlib
import ctypes
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import torch

from pretune.core.config import NonNegative, spec, to_dict
from pretune.core.log import format_count
from pretune.models.cost import CO2_KG_PER_KWH, flops_per_token
from pretune.models.devices import DEVICES, DOLLARS_PER_KWH, Device
from pretune.models.spec import Model
from pretune.training.batch_transfer import BatchStats
from pretune.training.records import CostFile, EnergyRecord

RAPL_DIR = Path("/sys/class/powercap")
ASSUMED_LOAD = 0.8
"""Fraction of its power limit that a board without a counter is assumed to draw during training."""
UNKNOWN_WATTS = 300.0  # power limit of a board missing in our table
CORE_WATTS = DEVICES["laptop-cpu"].watts / 8  # it has eight cores
_MAKERS = {"nvidia", "tesla", "geforce"}
_VARIANTS = {"sxm", "sxm2", "sxm4", "sxm5", "40gb", "80gb", "141gb", "hbm2e", "hbm3", "hbm3e"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """Energy counter of one component of the machine."""

    component: str
    method: str  # of measurement
    read_joules: Callable[[], float]  # since creation
    is_measured: bool = True  # False: assumed
    max_interval: float | None = None  # maximum seconds between two readings; None: no limit


def find_gauges(device: torch.device, *, host: bool = True) -> list[Gauge]:
    """Return the gauges of a device and, with `host`, of the host processor if readable."""
    gauges: list[Gauge] = []
    packages = open_rapl() if host else None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        gauges.append(open_board(properties.name, f"GPU-{properties.uuid}") or _assume_board(properties.name))
    elif device.type == "mps":
        gauges.append(assume_power("Apple GPU", DEVICES["apple-m2"].watts, f"{DEVICES['apple-m2'].watts:.0f} W"))
    elif packages is None and host:
        threads = torch.get_num_threads()
        method = f"{CORE_WATTS:.1f} W for each of {format_count(threads, 'threads')}"
        gauges.append(assume_power("processor", CORE_WATTS * threads, method))
    return [*gauges, packages] if packages else gauges


def find_device(name: str) -> Device | None:
    """Look up a driver's device name in our table; None if there is no exact match.

    >>> find_device("NVIDIA H100 80GB HBM3").name, find_device("NVIDIA H100 PCIe")
    ('h100', None)
    """
    words = [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _MAKERS | _VARIANTS]
    return DEVICES.get("".join(words))


def assume_power(component: str, watts: float, method: str) -> Gauge:
    """Return a constant power, for a component without a counter."""
    start_time = time.monotonic()
    return Gauge(
        component=component,
        method=f"assumed: {method}",
        read_joules=lambda: watts * (time.monotonic() - start_time),
        is_measured=False,
    )


def _assume_board(name: str) -> Gauge:
    device = find_device(name)
    watts = device.watts if device else UNKNOWN_WATTS
    suffix = "" if device else " of an unknown board"
    return assume_power(name, ASSUMED_LOAD * watts, f"{ASSUMED_LOAD:.0%} of the limit of {watts:.0f} W{suffix}")


def open_rapl(root: Path = RAPL_DIR) -> Gauge | None:
    """Open the RAPL counters of processor packages and their memory (Intel and AMD); None if there are none to read."""
    try:
        limits = {zone / "energy_uj": _read_number(zone / "max_energy_range_uj") for zone in _find_zones(root)}
        last_values = {path: _read_number(path) for path in limits}
    except (OSError, ValueError):
        return None
    microjoules = 0

    def read_joules() -> float:
        nonlocal microjoules
        for path, limit in limits.items():
            value = _read_number(path)
            microjoules += (value - last_values[path]) % (limit + 1)
            last_values[path] = value
        return microjoules / 1e6

    # The counters overflow, after a quarter of an hour at the earliest.
    gauge = Gauge(component="processor", method="RAPL", read_joules=read_joules, max_interval=60.0)
    return gauge if limits else None


def _find_zones(root: Path) -> Iterator[Path]:
    """Yield packages, and DRAM zones that packages do not include."""
    for zone in sorted(root.glob("intel-rapl:*")):
        name = (zone / "name").read_text().strip()
        if name.startswith("package") or name == "dram":
            yield zone


def _read_number(path: Path) -> int:
    return int(path.read_text())


def open_board(name: str, uuid: str, library: Any = None) -> Gauge | None:
    """Open a GPU by UUID; None if NVML is missing or does not report it.

    NVML has an energy counter or, on older boards, the power, which is read every second.
    """
    try:
        nvml = library or ctypes.CDLL("libnvidia-ml.so.1")
        handle = ctypes.c_void_p()
        _check_code(nvml.nvmlInit_v2())
        _check_code(nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)))
        try:
            read_energy = _build_reader(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
            start_value = read_energy()
        except OSError:  # older than Volta
            read_joules = _integrate_power(_build_reader(nvml.nvmlDeviceGetPowerUsage, handle))
            method = "NVML power, read every second"
            return Gauge(component=name, method=method, read_joules=read_joules, max_interval=1.0)
        method = "NVML energy counter"
        return Gauge(component=name, method=method, read_joules=lambda: read_energy() - start_value)
    except (OSError, AttributeError):
        return None


def _integrate_power(read_watts: Callable[[], float]) -> Callable[[], float]:
    """Return a reader of the joules since now, by the trapezoidal rule."""
    last_watts, last_time, joules = read_watts(), time.monotonic(), 0.0

    def read_joules() -> float:
        nonlocal last_watts, last_time, joules
        timestamp, watts = time.monotonic(), read_watts()
        joules += (timestamp - last_time) * (last_watts + watts) / 2
        last_watts, last_time = watts, timestamp
        return joules

    return read_joules


def _build_reader(function: Any, handle: ctypes.c_void_p) -> Callable[[], float]:
    """Return a reader of an NVML function in units of 1/1000; some fill 4 bytes and some 8, little-endian."""

    def read() -> float:
        value = ctypes.c_ulonglong(0)
        _check_code(function(handle, ctypes.byref(value)))
        return value.value / 1000

    return read


def _check_code(code: int) -> None:
    if code:
        raise OSError(f"NVML error {code}")


def build_flops_counter(*models: Model) -> Callable[[BatchStats], float]:
    """Return a function from token counts to training FLOPs; only the first model has vocabulary targets.

    Exact for full attention; with a sliding window, all sequences are taken to have the mean length.
    """

    def count(stats: BatchStats) -> float:
        if not stats.tokens:
            return 0.0
        target_share = min(1.0, stats.targets / stats.tokens)
        return sum(_count_flops(model, stats, 0.0 if number else target_share) for number, model in enumerate(models))

    return count


def _count_flops(model: Model, stats: BatchStats, target_share: float) -> float:
    if not model.is_encoder_decoder:
        length = max(1, round(stats.squares / stats.tokens))
        return stats.tokens * flops_per_token(model, length=length, targets=target_share)

    def compute_example(m: int, n: int) -> float:
        return (m + n) * flops_per_token(model, length=m, target_length=n, targets=target_share)

    # m source and n target tokens cost alpha m + b m² + c n + d n² + e m n; finite differences give the coefficients.
    base = compute_example(1, 1)
    b = (compute_example(3, 1) - 2 * compute_example(2, 1) + base) / 2
    d = (compute_example(1, 3) - 2 * compute_example(1, 2) + base) / 2
    e = compute_example(2, 2) - compute_example(2, 1) - compute_example(1, 2) + base
    alpha, c = compute_example(2, 1) - base - 3 * b - e, compute_example(1, 2) - base - 3 * d - e
    total = alpha * stats.source + b * stats.source_squares + c * stats.tokens + d * stats.squares
    return total + e * stats.products


@spec
class Energy:
    """Energy used by one component of the machine."""

    what: str  # component
    how: str  # method of measurement
    measured: bool
    joules: float


@spec
class Totals:
    """Totals of one rank over all processes of a run."""

    seconds: float = 0.0
    flops: float = 0.0
    energy: tuple[Energy, ...] = ()


class CostMeter:
    """Counts while it runs, starting from `initial_totals`. On each machine one rank counts the host."""

    def __init__(
        self,
        count_flops: Callable[[BatchStats], float],
        device: torch.device | str,
        *,
        initial_totals: Totals | None = None,
        include_host: bool = True,
    ) -> None:
        self._count_flops, self._device, self._include_host = count_flops, torch.device(device), include_host
        self._initial_totals = initial_totals or Totals()
        self._stats, self._start_time = BatchStats(), 0.0
        self._gauges: list[Gauge] = []
        self._joules: list[float] = []
        self._lock, self._stop_event = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Start counting."""
        self._start_time, self._gauges = time.monotonic(), find_gauges(self._device, host=self._include_host)
        self._joules = [0.0] * len(self._gauges)
        self._stop_event.clear()
        interval = min((gauge.max_interval for gauge in self._gauges if gauge.max_interval), default=None)
        self._thread = threading.Thread(target=self._poll, args=(interval,), daemon=True) if interval else None
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop counting; entering it again continues."""
        self._initial_totals = self.compute_totals()
        self._stop_event.set()
        if self._thread:
            self._thread.join()
        self._stats, self._start_time, self._gauges = BatchStats(), 0.0, []

    def add(self, stats: BatchStats) -> None:
        """Count a step."""
        self._stats += stats

    @property
    def flops(self) -> float:
        """FLOPs so far."""
        return self._initial_totals.flops + self._count_flops(self._stats)

    def compute_totals(self) -> Totals:
        """Return the totals so far."""
        if not self._start_time:
            return self._initial_totals
        self._read_gauges()
        energy = [
            Energy(what=gauge.component, how=gauge.method, measured=gauge.is_measured, joules=joules)
            for gauge, joules in zip(self._gauges, self._joules, strict=True)
        ]
        return Totals(
            seconds=self._initial_totals.seconds + time.monotonic() - self._start_time,
            flops=self.flops,
            energy=merge_energy([*self._initial_totals.energy, *energy]),
        )

    def _poll(self, interval: float) -> None:
        """Poll gauges that overflow or that report power, at their maximum interval."""
        while not self._stop_event.wait(interval):
            self._read_gauges()

    def _read_gauges(self) -> None:
        with self._lock:
            for number, gauge in enumerate(self._gauges):
                with contextlib.suppress(OSError):  # a failing counter must not end a run
                    self._joules[number] = gauge.read_joules()


def merge_energy(parts: Iterable[Energy]) -> tuple[Energy, ...]:
    """Sum energy of the same component and method."""
    energy_by_key: dict[tuple[str, str], Energy] = {}
    for part in parts:
        previous = energy_by_key.get((part.what, part.how))
        joules = part.joules + (previous.joules if previous else 0.0)
        energy_by_key[part.what, part.how] = replace(part, joules=joules)
    return tuple(energy_by_key.values())


_JOULES_PER_KWH = 3.6e6  # joules


@spec(has_kind=False)
class CostRates:
    """Emissions per kilowatt-hour, and prices of a kilowatt-hour and a device hour; None: from the table of devices.

    The default grid is the world average (475 g in 2018 by the IEA; 473 g in 2024 by Ember); countries lie between 20
    and 800. The rent of a device includes its electricity.
    """

    grid_g_per_kwh: NonNegative[float] = 1000 * CO2_KG_PER_KWH  # of CO2e
    dollars_per_device_hour: NonNegative[float] | None = None
    dollars_per_kwh: NonNegative[float] | None = None


def find_peak_flops(device: torch.device | str, precision: torch.dtype | None) -> float | None:
    """Return the peak FLOP/s of a known device by its data sheet; a precision of None is fp32."""
    known_device = _find_device(torch.device(device))
    name = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(precision or torch.float32, "fp32")
    return None if known_device is None else known_device.flops.get(name)


def compute_cost(
    totals: Sequence[Totals], device: torch.device | str, cost_rates: CostRates, *, precision: torch.dtype | None = None
) -> CostFile:
    """Compute the contents of cost.json from the totals of its ranks, which all use the same kind of device."""
    torch_device = torch.device(device)
    seconds, flops = max(total.seconds for total in totals), sum(total.flops for total in totals)
    rate, table = find_peak_flops(torch_device, precision), _find_device(torch_device)
    energy = merge_energy(part for total in totals for part in total.energy)
    kwh = sum(part.joules for part in energy) / _JOULES_PER_KWH
    hour, per_kwh = _resolve_prices(cost_rates, table)
    is_assumed = cost_rates.dollars_per_device_hour is None and cost_rates.dollars_per_kwh is None
    return CostFile(
        kind="cost",
        device=torch.cuda.get_device_name(torch_device) if torch_device.type == "cuda" else torch_device.type,
        devices=len(totals),
        seconds=seconds,
        flops=flops,
        peak_flops=rate,
        mfu=flops / (seconds * rate * len(totals)) if rate and seconds else None,
        kwh=kwh,
        energy=[cast(EnergyRecord, to_dict(part)) for part in energy],
        energy_label=_format_label(energy),
        left_out=[*_list_excluded(energy)],
        co2e_kg=kwh * cost_rates.grid_g_per_kwh / 1000,
        grid_g_per_kwh=cost_rates.grid_g_per_kwh,
        dollars=seconds / 3600 * len(totals) * hour + kwh * per_kwh,
        dollars_per_device_hour=hour,
        dollars_per_kwh=per_kwh,
        price_label="assumed" if is_assumed else "given",
    )


def _find_device(device: torch.device) -> Device | None:
    return find_device(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def _resolve_prices(cost_rates: CostRates, device: Device | None) -> tuple[float, float]:
    """Return dollars per hour and per kWh: the rent of the table, or the electricity of an owned device."""
    rent = (device.rent if device else None) or 0.0
    hour = rent if cost_rates.dollars_per_device_hour is None else cost_rates.dollars_per_device_hour
    electricity = 0.0 if hour else DOLLARS_PER_KWH
    return hour, electricity if cost_rates.dollars_per_kwh is None else cost_rates.dollars_per_kwh


def _format_label(energy: Sequence[Energy]) -> str:
    is_measured = {part.measured for part in energy}
    return "partly measured" if len(is_measured) == 2 else "measured" if is_measured == {True} else "estimated"


def _list_excluded(energy: Sequence[Energy]) -> tuple[str, ...]:
    processor = () if any(part.what == "processor" for part in energy) else ("the host's processor",)
    return (*processor, "the rest of the machine", "cooling")
