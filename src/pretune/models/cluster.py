"""Estimate of sharded training (FSDP2) on several devices: memory of each, time of a step, and cost.

Everything is computed from the spec, as `training/distributed.py` shards it: fp32 weights, gradients and AdamW's
moments are divided by the number of devices; a block is gathered in fp32 before its forward and its backward pass, the
next one at the same time; what is outside of blocks (embeddings, head) stays gathered during a step; gradients are
reduced in fp32. Under autocast the backward pass of a linear layer keeps the bf16 copy of its weight, so without
activation checkpointing a device holds 2 bytes for every parameter, however many devices there are. Formulas in
docs/cost.md.
"""

import re
from dataclasses import dataclass

from pretune.core.errors import UsageError, suggest
from pretune.models.cost import CO2_KG_PER_KWH, estimate_memory, estimate_recomputed_bytes, flops_per_token
from pretune.models.devices import DEVICES, LINKS, Device
from pretune.models.spec import Model
from pretune.nn.recurrent_stack import Recurrent

DEVICES_PER_NODE = 8
LINK_SHARE = 0.8
"""Share of a link's bandwidth that collective operations reach (an assumption)."""
MEMORY_SHARE = 0.9
"""Share of a device's memory that a run may use; the rest is for the allocator and libraries."""
MAX_DEVICES = 100_000
MAX_DEVICE_TOKENS = 65_536
"""Largest batch of one device that is considered: more tokens hardly raise the speed."""
RECOMPUTE_FACTOR = 4 / 3
"""FLOPs of a step with activation checkpointing, relative to those without: a second forward pass."""
_FP32, _BF16 = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedMemory:
    """Memory of one device in bytes, by purpose."""

    sharded: int  # its part of weights, gradients and optimizer state
    gathered: int  # weights and gradients of two blocks, and of everything outside of blocks
    half_precision: int  # bf16 copies of weights
    activations: int

    @property
    def total(self) -> int:
        return self.sharded + self.gathered + self.half_precision + self.activations


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedEstimate:
    """Training on `count` devices; `device_tokens` are the tokens of one device in a step."""

    device: str
    count: int
    memory: ShardedMemory
    device_tokens: int
    activation_checkpointing: bool
    compute_seconds: float  # of a step
    transfer_seconds: float  # of a step
    tokens_per_second: float
    seconds: float
    kwh: float
    co2_kg: float
    dollars: float

    @property
    def step_seconds(self) -> float:
        """Seconds of a step if transfers and computation overlap, as FSDP2's prefetching does."""
        return max(self.compute_seconds, self.transfer_seconds)


def parse_cluster(text: str) -> tuple[int, Device]:
    """Parse a number of devices and their name: "64xh100".

    >>> count, device = parse_cluster("64xh100")
    >>> count, device.name
    (64, 'h100')
    """
    match = re.fullmatch(r"(\d{1,9})x([\w-]+)", text.strip().lower())
    if match is None:
        raise UsageError(f"--devices {text[:40]!r}: expected a number and a device, such as 64xh100")
    count, name = int(match[1]), match[2]
    if name not in LINKS:
        raise UsageError(f"--devices: no link speeds of '{name}'{suggest(name, LINKS)} (known: {', '.join(LINKS)})")
    if not 1 <= count <= MAX_DEVICES:
        raise UsageError(f"--devices: the number of devices must be from 1 to {MAX_DEVICES:,}, got {count:,}")
    return count, DEVICES[name]


def estimate_sharded_memory(
    spec: Model, count: int, *, tokens: int, length: int, targets: float, activation_checkpointing: bool
) -> ShardedMemory:
    """Return the memory of one of `count` devices for a batch of `tokens` tokens per device."""
    total, blocks = spec.params().total, _count_block_weights(spec)
    block, outside = max(blocks, default=0), total - sum(blocks)
    activations = estimate_memory(
        spec, tokens=tokens, length=length, training=True, precision="bf16", targets=targets
    ).activations
    if activation_checkpointing:
        activations -= estimate_recomputed_bytes(spec, tokens=tokens, length=length, precision="bf16")
    is_sharded = count > 1
    return ShardedMemory(
        sharded=-(-(4 * _FP32 * total) // count),  # weights, gradients, two moments
        # The block in use, the next one, and the gradient of one; outside of blocks, weights and gradients.
        gathered=is_sharded * _FP32 * (3 * block + 2 * outside),
        half_precision=_BF16 * (block + outside if activation_checkpointing else total),
        activations=activations,
    )


def estimate_transfer_seconds(spec: Model, count: int, device: Device) -> float:
    """Return the seconds of all transfers of a step: gathers before forward and backward, and reduced gradients.

    Devices of a node share their adapters, so a node's links to others carry every byte once. Latency is not included.
    """
    total, blocks = spec.params().total, _count_block_weights(spec)
    size = _FP32 * (2 * sum(blocks) + (total - sum(blocks))) + _FP32 * total
    link = LINKS[device.name]
    bandwidth = link.inside if count <= DEVICES_PER_NODE else min(link.inside, DEVICES_PER_NODE * link.between)
    return size * (count - 1) / count / (LINK_SHARE * bandwidth)


def estimate_sharded(
    spec: Model, count: int, device: Device, *, tokens: float, length: int, targets: float
) -> ShardedEstimate | None:
    """Return the estimate with the batch per device, and with or without recomputation, that trains fastest.

    None if one sequence per device does not fit, even with recomputation.
    """
    per_token = flops_per_token(spec, length=length, targets=targets)
    example = length * (2 if spec.is_encoder_decoder else 1)
    transfer, best = estimate_transfer_seconds(spec, count, device), None
    highest = 0.0
    for recomputes in (False, True):
        size = example
        while size <= max(MAX_DEVICE_TOKENS, example):
            memory = estimate_sharded_memory(
                spec, count, tokens=size, length=length, targets=targets, activation_checkpointing=recomputes
            )
            if memory.total > MEMORY_SHARE * device.memory:
                break
            compute = size * per_token * (RECOMPUTE_FACTOR if recomputes else 1.0) / device.rate
            throughput = count * size / max(compute, transfer)
            if best is None or throughput > 1.001 * highest:
                highest, best = throughput, (memory, size, recomputes, compute)
            size *= 2
    if best is None:
        return None
    memory, size, recomputes, compute = best
    seconds = tokens / highest
    kwh = count * seconds * device.watts / 3.6e6
    return ShardedEstimate(
        device=device.name,
        count=count,
        memory=memory,
        device_tokens=size,
        activation_checkpointing=recomputes,
        compute_seconds=compute,
        transfer_seconds=transfer,
        tokens_per_second=highest,
        seconds=seconds,
        kwh=kwh,
        co2_kg=kwh * CO2_KG_PER_KWH,
        dollars=count * seconds / 3600 * device.dollars_per_hour,
    )


def _count_block_weights(spec: Model) -> list[int]:
    """Return the parameters of every block that is gathered by itself; shared weights once."""
    width, sizes = spec.width, []
    for stack in spec.stacks:
        if not isinstance(stack, Recurrent) and not (spec.shared and stack is spec.decoder):
            sizes += [block.params(width=width) for block in stack.layers]
    return sizes
