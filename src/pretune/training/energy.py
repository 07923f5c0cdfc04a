"""Energy gauges: hardware counters where available, otherwise a stated assumption.

A gauge counts joules from its creation. Counters cover whole boards and processor packages, including other processes
running there. The rest of the machine (fans, disks, power supply losses) is never included.
"""

import ctypes
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

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


class Gauge(Protocol):
    """Energy counter of one component."""

    @property
    def component(self) -> str:
        """Component of the machine."""

    @property
    def method(self) -> str:
        """Method of measurement."""

    @property
    def is_measured(self) -> bool:
        """False if assumed."""

    @property
    def max_interval(self) -> float | None:
        """Maximum seconds between two readings; None: no limit."""

    def read_joules(self) -> float:
        """Return the joules since creation."""


def find_gauges(device: torch.device, *, host: bool = True) -> list[Gauge]:
    """Return the gauges of a device and, with `host`, of the host processor if readable."""
    gauges: list[Gauge] = []
    packages = Rapl.open() if host else None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        gauges.append(Board.open(properties.name, f"GPU-{properties.uuid}") or _assume_board(properties.name))
    elif device.type == "mps":
        gauges.append(AssumedPower("Apple GPU", DEVICES["apple-m2"].watts, f"{DEVICES['apple-m2'].watts:.0f} W"))
    elif packages is None and host:
        threads = torch.get_num_threads()
        method = f"{CORE_WATTS:.1f} W for each of {format_count(threads, 'threads')}"
        gauges.append(AssumedPower("processor", CORE_WATTS * threads, method))
    return [*gauges, packages] if packages else gauges


def find_device(name: str) -> Device | None:
    """Look up a driver's device name in our table; None if there is no exact match.

    >>> find_device("NVIDIA H100 80GB HBM3").name, find_device("NVIDIA H100 PCIe")
    ('h100', None)
    """
    words = [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _MAKERS | _VARIANTS]
    return DEVICES.get("".join(words))


class AssumedPower:
    """Constant power, for a component without a counter."""

    is_measured, max_interval = False, None

    def __init__(self, component: str, watts: float, method: str) -> None:
        self.component, self.method, self._watts, self._start_time = (
            component,
            f"assumed: {method}",
            watts,
            time.monotonic(),
        )

    def read_joules(self) -> float:
        return self._watts * (time.monotonic() - self._start_time)


def _assume_board(name: str) -> AssumedPower:
    device = find_device(name)
    watts = device.watts if device else UNKNOWN_WATTS
    suffix = "" if device else " of an unknown board"
    return AssumedPower(name, ASSUMED_LOAD * watts, f"{ASSUMED_LOAD:.0%} of the limit of {watts:.0f} W{suffix}")


class Rapl:
    """RAPL energy counters of processor packages and their memory (Intel and AMD), if readable."""

    component, method, is_measured = "processor", "RAPL", True
    max_interval = 60.0  # the counters overflow, after a quarter of an hour at the earliest

    def __init__(self, zones: list[tuple[Path, int]]) -> None:
        self._zones = zones
        self._last_values = [_read_number(zone / "energy_uj") for zone, _ in zones]
        self._microjoules = 0

    @classmethod
    def open(cls, root: Path = RAPL_DIR) -> "Rapl | None":
        """Open the counters of this machine; None if it has none or they are not readable."""
        try:
            zones = [(zone, _read_number(zone / "max_energy_range_uj")) for zone in _find_zones(root)]
            return cls(zones) if zones else None
        except (OSError, ValueError):
            return None

    def read_joules(self) -> float:
        for number, (zone, full) in enumerate(self._zones):
            value = _read_number(zone / "energy_uj")
            self._microjoules += (value - self._last_values[number]) % (full + 1)
            self._last_values[number] = value
        return self._microjoules / 1e6


def _find_zones(root: Path) -> Iterator[Path]:
    """Yield packages, and DRAM zones that packages do not include."""
    for zone in sorted(root.glob("intel-rapl:*")):
        name = (zone / "name").read_text().strip()
        if name.startswith("package") or name == "dram":
            yield zone


def _read_number(path: Path) -> int:
    return int(path.read_text())


class Board:
    """GPU read by NVML: its energy counter or, on older boards, its power every second."""

    is_measured = True

    def __init__(self, name: str, read_value: Callable[[], float], *, has_counter: bool) -> None:
        self.component, self.method = name, "NVML energy counter" if has_counter else "NVML power, read every second"
        self.max_interval = None if has_counter else 1.0
        self._read_value, self._has_counter = read_value, has_counter
        self._start_value = self._last_value = read_value()
        self._last_time, self._joules = time.monotonic(), 0.0

    @classmethod
    def open(cls, name: str, uuid: str, library: Any = None) -> "Board | None":
        """Open a board by UUID; None if NVML is missing or does not report it."""
        try:
            nvml = library or ctypes.CDLL("libnvidia-ml.so.1")
            handle = ctypes.c_void_p()
            _check_code(nvml.nvmlInit_v2())
            _check_code(nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)))
            try:
                return cls(name, _build_reader(nvml.nvmlDeviceGetTotalEnergyConsumption, handle), has_counter=True)
            except OSError:  # older than Volta
                return cls(name, _build_reader(nvml.nvmlDeviceGetPowerUsage, handle), has_counter=False)
        except (OSError, AttributeError):
            return None

    def read_joules(self) -> float:
        timestamp, value = time.monotonic(), self._read_value()
        if self._has_counter:
            return value - self._start_value
        self._joules += (timestamp - self._last_time) * (self._last_value + value) / 2
        self._last_time, self._last_value = timestamp, value
        return self._joules


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
