"""Devices for cost estimates: datasheet figures, and assumed prices and utilisation."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

DOLLARS_PER_KWH = 0.30
"""Assumed price of electricity at home."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device. Rates are the datasheet's, without sparsity; price and utilisation are assumptions.

    Memory is in decimal gigabytes, which leaves about the share of the driver. Power is the board's limit, without
    host, cooling and idle time.
    """

    name: str
    flops: Mapping[str, float]  # per second, by precision; the one for training comes first
    _: KW_ONLY
    memory: float  # bytes
    watts: float
    rent: float | None = None  # dollars per hour; None: it is owned
    utilisation: float = 0.4  # the share of the rate that training reaches

    @property
    def is_owned(self) -> bool:
        """True if the price is that of electricity."""
        return self.rent is None

    @property
    def dollars_per_hour(self) -> float:
        return self.watts / 1000 * DOLLARS_PER_KWH if self.rent is None else self.rent

    @property
    def precision(self) -> str:
        """Precision for training."""
        return next(iter(self.flops))

    @property
    def rate(self) -> float:
        """Expected FLOPs per second in training."""
        return self.flops[self.precision] * self.utilisation


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Bandwidth of one device in bytes per second and direction, from datasheets: inside a node, and between nodes."""

    inside: float
    between: float


LINKS: Mapping[str, Link] = {
    "h200": Link(inside=450e9, between=50e9),  # NVLink 4; one 400 Gb/s adapter for each GPU
    "h100": Link(inside=450e9, between=50e9),
    "a100": Link(inside=300e9, between=25e9),  # NVLink 3; 200 Gb/s
}
"""Links of the devices that are built into nodes of eight."""

DEVICES: Mapping[str, Device] = {
    # SXM boards; rents are rough on-demand prices of 2025.
    "h200": Device("h200", {"bf16": 989e12, "fp32": 67e12}, memory=141e9, watts=700, rent=3.80),
    "h100": Device("h100", {"bf16": 989e12, "fp32": 67e12}, memory=80e9, watts=700, rent=3.00),
    "a100": Device("a100", {"bf16": 312e12, "fp32": 19.5e12}, memory=80e9, watts=400, rent=1.80),
    "l40s": Device("l40s", {"bf16": 362e12, "fp32": 91.6e12}, memory=48e9, watts=350, rent=1.00),
    "l4": Device("l4", {"bf16": 121e12, "fp32": 30.3e12}, memory=24e9, watts=72, rent=0.70),
    "t4": Device("t4", {"fp16": 65e12, "fp32": 8.1e12}, memory=16e9, watts=70, rent=0.35),  # no bf16
    # Half precision with fp32 accumulation: half the advertised rate.
    "rtx4090": Device("rtx4090", {"bf16": 165.2e12, "fp32": 82.6e12}, memory=24e9, watts=450),
    "rtx3090": Device("rtx3090", {"bf16": 71e12, "fp32": 35.6e12}, memory=24e9, watts=350),
    # The ten-core GPU; half precision is no faster. Memory of a common model, shared with the system.
    "apple-m2": Device("apple-m2", {"fp32": 3.6e12}, memory=16e9, watts=20, utilisation=0.3),
    # Eight cores at 3 GHz, two fused multiply-adds on eight lanes a cycle: 8 x 3e9 x 32.
    "laptop-cpu": Device("laptop-cpu", {"fp32": 0.768e12}, memory=16e9, watts=45, utilisation=0.3),
}
"""Devices by name, fastest first within rented and owned."""
