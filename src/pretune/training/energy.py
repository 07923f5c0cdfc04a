"""Energy gauges: hardware counters where available, otherwise a stated assumption.

A gauge counts joules from its creation. Counters cover whole boards and processor packages, including other processes
running there. The rest of the machine (fans, disks, power supply losses) is never included.
"""

import ctypes
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pretune.core.log import format_count
from pretune.models.devices import DEVICES, Device

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
