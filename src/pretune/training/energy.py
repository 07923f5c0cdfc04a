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

from pretune.core.counted import counted
from pretune.models.devices import DEVICES, Device

RAPL = Path("/sys/class/powercap")
LOAD = 0.8
"""The share of its power limit that a board is assumed to draw while it trains, where it cannot be asked."""
UNKNOWN_WATTS = 300.0  # the limit of a board that is not in our table
CORE_WATTS = DEVICES["laptop-cpu"].watts / 8  # that machine has eight
_NOISE = {
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
    def what(self) -> str:
        """The part of the machine."""

    @property
    def how(self) -> str:
        """How it is known."""

    @property
    def measured(self) -> bool:
        """Not assumed."""

    @property
    def every(self) -> float | None:
        """Seconds within which it must be read again to be right; None: whenever."""

    def joules(self) -> float:
        """Since it was made."""


def gauges(device: torch.device, *, host: bool = True) -> list[Gauge]:
    """Those of a device and, with `host`, of the processor beside it where that can be read."""
    found: list[Gauge] = []
    packages = Rapl.open() if host else None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found.append(Board.open(properties.name, f"GPU-{properties.uuid}") or _assumed_board(properties.name))
    elif device.type == "mps":
        found.append(Assumed("Apple GPU", DEVICES["apple-m2"].watts, f"{DEVICES['apple-m2'].watts:.0f} W"))
    elif packages is None and host:
        threads = torch.get_num_threads()
        how = f"{CORE_WATTS:.1f} W for each of {counted(threads, 'threads')}"
        found.append(Assumed("processor", CORE_WATTS * threads, how))
    return [*found, packages] if packages else found


def known(name: str) -> Device | None:
    """The entry of our table for what a driver calls a board; None where it is not exactly one of them.

    >>> known("NVIDIA H100 80GB HBM3").name, known("NVIDIA H100 PCIe")
    ('h100', None)
    """
    words = [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _NOISE]
    return DEVICES.get("".join(words))


class Assumed:
    """No counter: so many watts all the time."""

    measured, every = False, None

    def __init__(self, what: str, watts: float, how: str) -> None:
        self.what, self.how, self._watts, self._begun = what, f"assumed: {how}", watts, time.monotonic()

    def joules(self) -> float:
        return self._watts * (time.monotonic() - self._begun)


def _assumed_board(name: str) -> Assumed:
    device = known(name)
    watts = device.watts if device else UNKNOWN_WATTS
    why = "" if device else " of a board we do not know"
    return Assumed(name, LOAD * watts, f"{LOAD:.0%} of the limit of {watts:.0f} W{why}")


class Rapl:
    """The energy counters of processor packages and their memory (Intel's and AMD's), for those who may read them."""

    what, how, measured = "processor", "RAPL", True
    every = 60.0  # the counters start again, after a quarter of an hour at the least

    def __init__(self, zones: list[tuple[Path, int]]) -> None:
        self._zones = zones
        self._last = [_number(zone / "energy_uj") for zone, _ in zones]
        self._micro = 0

    @classmethod
    def open(cls, root: Path = RAPL) -> "Rapl | None":
        """The counters of this machine; None where it has none or hides them."""
        try:
            zones = [(zone, _number(zone / "max_energy_range_uj")) for zone in _zones(root)]
            return cls(zones) if zones else None
        except (OSError, ValueError):
            return None

    def joules(self) -> float:
        for number, (zone, full) in enumerate(self._zones):
            now = _number(zone / "energy_uj")
            self._micro += (now - self._last[number]) % (full + 1)
            self._last[number] = now
        return self._micro / 1e6


def _zones(root: Path) -> Iterator[Path]:
    """Packages, and the memory that they do not count themselves."""
    for zone in sorted(root.glob("intel-rapl:*")):
        name = (zone / "name").read_text().strip()
        if name.startswith("package") or name == "dram":
            yield zone


def _number(path: Path) -> int:
    return int(path.read_text())


class Board:
    """A GPU that NVML knows: by its energy counter, or where it has none by its power, read every second."""

    measured = True

    def __init__(self, name: str, read: Callable[[], float], *, counter: bool) -> None:
        self.what, self.how = name, "NVML energy counter" if counter else "NVML power, read every second"
        self.every = None if counter else 1.0
        self._read, self._counter = read, counter
        self._begun = self._last = read()
        self._then, self._sum = time.monotonic(), 0.0

    @classmethod
    def open(cls, name: str, uuid: str, library: Any = None) -> "Board | None":
        """A board by its number; None where there is no NVML or it does not tell."""
        try:
            nvml = library or ctypes.CDLL("libnvidia-ml.so.1")
            handle = ctypes.c_void_p()
            _check(nvml.nvmlInit_v2())
            _check(nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)))
            try:
                return cls(name, _reader(nvml.nvmlDeviceGetTotalEnergyConsumption, handle), counter=True)
            except OSError:  # older than Volta
                return cls(name, _reader(nvml.nvmlDeviceGetPowerUsage, handle), counter=False)
        except (OSError, AttributeError):
            return None

    def joules(self) -> float:
        now, value = time.monotonic(), self._read()
        if self._counter:
            return value - self._begun
        self._sum += (now - self._then) * (self._last + value) / 2
        self._then, self._last = now, value
        return self._sum


def _reader(function: Any, handle: ctypes.c_void_p) -> Callable[[], float]:
    """A function of NVML that gives a number of thousandths; they are of two sizes, and little-endian."""

    def read() -> float:
        value = ctypes.c_ulonglong(0)
        _check(function(handle, ctypes.byref(value)))
        return value.value / 1000

    return read


def _check(code: int) -> None:
    if code:
        raise OSError(f"NVML says {code}")
