"""What machines draw: read from their counters where they have some, otherwise a stated assumption.

A gauge counts joules from when it is made. Counters are those of whole boards and whole processor packages: what else
runs there is counted too. The rest of the machine (fans, disks, losses of the power supply) is never in them.
"""

import ctypes
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from pretune.core.format import format_count
from pretune.models.devices import DEVICES, Device

RAPL_DIR = Path("/sys/class/powercap")
ASSUMED_LOAD = 0.8
"""The share of its power limit that a board is assumed to draw while it trains, where it cannot be asked."""
UNKNOWN_WATTS = 300.0  # the limit of a board that is not in our table
CORE_WATTS = DEVICES["laptop-cpu"].watts / 8  # that machine has eight
_IGNORED_WORDS = {
    "nvidia",
    "tesla",
    "geforce",
    "sxm",
    "sxm2",
    "sxm4",
    "sxm5",
    "40gb",
    "80gb",
    "141gb",
    "hbm2e",
    "hbm3",
    "hbm3e",
}


class Gauge(Protocol):
    """Something that knows how much energy went through it."""

    @property
    def component(self) -> str:
        """The part of the machine."""

    @property
    def method(self) -> str:
        """How it is known."""

    @property
    def is_measured(self) -> bool:
        """Not assumed."""

    @property
    def max_interval(self) -> float | None:
        """Seconds within which it must be read again to be right; None: whenever."""

    def read_joules(self) -> float:
        """Since it was made."""


def find_gauges(device: torch.device, *, host: bool = True) -> list[Gauge]:
    """Those of a device and, with `host`, of the processor beside it where that can be read."""
    found: list[Gauge] = []
    packages = Rapl.open() if host else None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found.append(Board.open(properties.name, f"GPU-{properties.uuid}") or _assume_board(properties.name))
    elif device.type == "mps":
        found.append(AssumedPower("Apple GPU", DEVICES["apple-m2"].watts, f"{DEVICES['apple-m2'].watts:.0f} W"))
    elif packages is None and host:
        threads = torch.get_num_threads()
        how = f"{CORE_WATTS:.1f} W for each of {format_count(threads, 'threads')}"
        found.append(AssumedPower("processor", CORE_WATTS * threads, how))
    return [*found, packages] if packages else found


def find_device(name: str) -> Device | None:
    """The entry of our table for what a driver calls a board; None where it is not exactly one of them.

    >>> find_device("NVIDIA H100 80GB HBM3").name, find_device("NVIDIA H100 PCIe")
    ('h100', None)
    """
    words = [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _IGNORED_WORDS]
    return DEVICES.get("".join(words))


class AssumedPower:
    """No counter: so many watts all the time."""

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
    why = "" if device else " of a board we do not know"
    return AssumedPower(name, ASSUMED_LOAD * watts, f"{ASSUMED_LOAD:.0%} of the limit of {watts:.0f} W{why}")


class Rapl:
    """The energy counters of processor packages and their memory (Intel's and AMD's), for those who may read them."""

    component, method, is_measured = "processor", "RAPL", True
    max_interval = 60.0  # the counters start again, after a quarter of an hour at the least

    def __init__(self, zones: list[tuple[Path, int]]) -> None:
        self._zones = zones
        self._last_values = [_read_number(zone / "energy_uj") for zone, _ in zones]
        self._microjoules = 0

    @classmethod
    def open(cls, root: Path = RAPL_DIR) -> "Rapl | None":
        """The counters of this machine; None where it has none or hides them."""
        try:
            zones = [(zone, _read_number(zone / "max_energy_range_uj")) for zone in _find_zones(root)]
            return cls(zones) if zones else None
        except (OSError, ValueError):
            return None

    def read_joules(self) -> float:
        for number, (zone, full) in enumerate(self._zones):
            now = _read_number(zone / "energy_uj")
            self._microjoules += (now - self._last_values[number]) % (full + 1)
            self._last_values[number] = now
        return self._microjoules / 1e6


def _find_zones(root: Path) -> Iterator[Path]:
    """Packages, and the memory that they do not count themselves."""
    for zone in sorted(root.glob("intel-rapl:*")):
        name = (zone / "name").read_text().strip()
        if name.startswith("package") or name == "dram":
            yield zone


def _read_number(path: Path) -> int:
    return int(path.read_text())


class Board:
    """A GPU that NVML knows: by its energy counter, or where it has none by its power, read every second."""

    is_measured = True

    def __init__(self, name: str, read_value: Callable[[], float], *, has_counter: bool) -> None:
        self.component, self.method = name, "NVML energy counter" if has_counter else "NVML power, read every second"
        self.max_interval = None if has_counter else 1.0
        self._read_value, self._has_counter = read_value, has_counter
        self._start_value = self._last_value = read_value()
        self._last_time, self._joules = time.monotonic(), 0.0

    @classmethod
    def open(cls, name: str, uuid: str, library: Any = None) -> "Board | None":
        """A board by its number; None where there is no NVML or it does not tell."""
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
        now, value = time.monotonic(), self._read_value()
        if self._has_counter:
            return value - self._start_value
        self._joules += (now - self._last_time) * (self._last_value + value) / 2
        self._last_time, self._last_value = now, value
        return self._joules


def _build_reader(function: Any, handle: ctypes.c_void_p) -> Callable[[], float]:
    """A function of NVML that gives a number of thousandths; they are of two sizes, and little-endian."""

    def read() -> float:
        value = ctypes.c_ulonglong(0)
        _check_code(function(handle, ctypes.byref(value)))
        return value.value / 1000

    return read


def _check_code(code: int) -> None:
    if code:
        raise OSError(f"NVML says {code}")
