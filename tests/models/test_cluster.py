"""Estimates of sharded training: memory against real shards, laws of time, sizes that do not fit, bad input."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from pretune.core.errors import UsageError
from pretune.models.catalog import resolve
from pretune.models.cluster import (
    estimate_sharded,
    estimate_sharded_memory,
    estimate_transfer_seconds,
    parse_cluster,
)
from pretune.models.devices import DEVICES

SMALL = {"width": 32, "depth": 3, "heads": 2, "vocab": 96, "positions": 64, "dropout": 0.0}
H100 = DEVICES["h100"]


def memory(name: str, count: int, **options: Any) -> Any:
    options = {"tokens": 4096, "length": 4096, "targets": 1.0, "activation_checkpointing": False, **options}
    return estimate_sharded_memory(resolve(name, {}), count, **options)


def test_memory_by_hand() -> None:
    """LLaMA 2 7B: 32 blocks of 202,383,360 weights, 262,148,096 outside of them."""
    total, block, outside = 6_738_415_616, 202_383_360, 262_148_096
    whole, sharded = memory("llama2-7b", 1), memory("llama2-7b", 64)
    assert whole.sharded == 16 * total and whole.gathered == 0 and whole.half_precision == 2 * total
    assert sharded.sharded == 16 * total // 64 and sharded.gathered == 4 * (3 * block + 2 * outside)
    assert sharded.half_precision == 2 * total and sharded.activations == whole.activations
    recomputed = memory("llama2-7b", 64, activation_checkpointing=True)
    assert recomputed.half_precision == 2 * (block + outside)
    # All blocks but one are replaced by their inputs: 2 bytes of 4,096 for each of 4,096 tokens.
    assert recomputed.activations < sharded.activations / 5
    assert recomputed.activations > 32 * 2 * 4096 * 4096


def test_what_fits() -> None:
    large = resolve("llama2-70b", {})
    options = {"tokens": 1e12, "length": 4096, "targets": 1.0}
    assert estimate_sharded(large, 8, H100, **options) is None
    fitting = estimate_sharded(large, 64, H100, **options)
    assert fitting is not None and fitting.activation_checkpointing and fitting.memory.total < 0.9 * 80e9
    small = estimate_sharded(resolve("llama3-1b", {}), 8, H100, **options)
    assert small is not None and not small.activation_checkpointing
    # Time is FLOPs over the rate where transfers are hidden, and the same over more devices.
    assert small.seconds == pytest.approx(1e12 / small.device_tokens / 8 * small.step_seconds)
    assert small.compute_seconds > small.transfer_seconds and small.step_seconds == small.compute_seconds


def test_transfers() -> None:
    """Three times fp32 over the link of a node, or its adapters; slow links are a bound."""
    spec = resolve("llama2-7b", {})
    total, outside = 6_738_415_616, 262_148_096
    assert estimate_transfer_seconds(spec, 1, H100) == 0
    expected = 4 * (3 * total - outside) * 7 / 8 / (0.8 * 450e9)
    assert estimate_transfer_seconds(spec, 8, H100) == pytest.approx(expected)
    assert estimate_transfer_seconds(spec, 64, H100) == pytest.approx(expected * 8 / 7 * 63 / 64 * 450 / 400)
    fast = replace(H100, utilisation=40.0)
    bound = estimate_sharded(spec, 8, fast, tokens=1e9, length=512, targets=1.0)
    assert bound is not None and bound.tokens_per_second == pytest.approx(
        8 * bound.device_tokens / max(bound.compute_seconds, bound.transfer_seconds)
    )


@pytest.mark.parametrize("text", ["64", "x", "h100", "0xh100", "8xh1000", "8xlaptop-cpu", "-1xh100", "999999999xh100"])
def test_bad_clusters(text: str) -> None:
    with pytest.raises(UsageError, match="--devices"):
        parse_cluster(text)


def _measure(rank: int, port: int, queue: Any) -> None:
    """Train a step of two gloo ranks with FSDP2, and return the bytes of this rank's shards."""
    import torch.distributed as dist

    from pretune.models.model import build
    from pretune.training.distributed import _shard

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = build(resolve("gpt2", SMALL))
    _shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    import pretune as pt

    model(pt.batch([[1, 2, 3, 4]])).logits.float().sum().backward()
    optimizer.step()
    tensors = [*model.parameters()] + [p.grad for p in model.parameters()]
    tensors += [value for state in optimizer.state.values() for value in state.values() if value.ndim]
    queue.put(sum(tensor.to_local().numel() * tensor.element_size() for tensor in tensors))
    dist.destroy_process_group()


@pytest.mark.slow
def test_shards_of_two_ranks_are_as_large_as_estimated() -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(_measure, args=(port, queue), nprocs=2)
    sizes = sorted(queue.get() for _ in range(2))
    options: dict[str, Any] = {"tokens": 64, "length": 64, "targets": 1.0, "activation_checkpointing": False}
    estimate = estimate_sharded_memory(resolve("gpt2", SMALL), 2, **options)
    assert sum(sizes) == 2 * estimate.sharded and sizes[0] == pytest.approx(estimate.sharded, rel=0.01)
