"""Devices for cost estimates: datasheet figures, and assumed prices and utilisation."""

from collections.abc import Mapping
from dataclasses import dataclass

DOLLARS_PER_KWH = 0.30
"""Assumed price of electricity at home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device. Rates are the datasheet's, without sparsity; price and utilisation are assumptions.

    Memory is in decimal gigabytes, which leaves about the share of the driver. Power is the board's limit, without
    host, cooling and idle time.
    """

    name: str
    flops: Mapping[str, float]  # per second, by precision; the one for training comes first
    memory: float  # bytes
    watts: float
    dollars_per_hour: float
    is_owned: bool = False  # the price is electricity, not rent
    utilisation: float = 0.4  # the share of the rate that training reaches

    @property
    def precision(self) -> str:
        """Precision for training."""
        return next(iter(self.flops))

    @property
    def rate(self) -> float:
        """Expected FLOPs per second in training."""
        return self.flops[self.precision] * self.utilisation


def _make_device(
    name: str,
    flops: Mapping[str, float],
    gigabytes: float,
    watts: float,
    dollars: float | None = None,
    utilisation: float = 0.4,
) -> Device:
    """Return a device, with rates in TFLOP/s. `dollars` is a rough on-demand price of 2025; without one it is owned."""
    return Device(
        name=name,
        flops={kind: rate * 1e12 for kind, rate in flops.items()},
        memory=gigabytes * 1e9,
        watts=watts,
        dollars_per_hour=watts / 1000 * DOLLARS_PER_KWH if dollars is None else dollars,
        is_owned=dollars is None,
        utilisation=utilisation,
    )


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
    device.name: device
    for device in (
        _make_device("h200", {"bf16": 989, "fp32": 67}, 141, 700, 3.80),  # SXM
        _make_device("h100", {"bf16": 989, "fp32": 67}, 80, 700, 3.00),  # SXM
        _make_device("a100", {"bf16": 312, "fp32": 19.5}, 80, 400, 1.80),  # SXM, 80 GB
        _make_device("l40s", {"bf16": 362, "fp32": 91.6}, 48, 350, 1.00),
        _make_device("l4", {"bf16": 121, "fp32": 30.3}, 24, 72, 0.70),
        _make_device("t4", {"fp16": 65, "fp32": 8.1}, 16, 70, 0.35),  # no bf16
        # Half precision with fp32 accumulation: half the advertised rate.
        _make_device("rtx4090", {"bf16": 165.2, "fp32": 82.6}, 24, 450),
        _make_device("rtx3090", {"bf16": 71, "fp32": 35.6}, 24, 350),
        # The ten-core GPU; half precision is no faster. Memory of a common model, shared with the system.
        _make_device("apple-m2", {"fp32": 3.6}, 16, 20, utilisation=0.3),
        # Eight cores at 3 GHz, two fused multiply-adds on eight lanes a cycle: 8 x 3e9 x 32.
        _make_device("laptop-cpu", {"fp32": 0.768}, 16, 45, utilisation=0.3),
    )
}
"""Devices by name, fastest first within rented and owned."""
