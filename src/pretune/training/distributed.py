"""Distributed training under `torchrun`: ranks, collectives, and DDP or FSDP2 wrapping of a module.

Every rank reads a different part of each batch. Losses are divided by the count of the whole step, and gradients are
summed over the ranks, so the number of ranks does not change the result.

    scores = run_on_rank_zero(ranks, lambda: run_baselines(…))     # the result on rank 0; None on the others
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from pretune.core import log
from pretune.core.errors import ResourceError, UsageError
from pretune.nn.block import TransformerBlock
from pretune.nn.lstm import LSTMLayer

T = TypeVar("T")
Parallel = Literal["ddp", "fsdp"]
TIMEOUT_VARIABLE = "PRETUNE_DISTRIBUTED_TIMEOUT"
"""Environment variable: timeout of collectives in seconds (default 600), after which a silent rank counts as dead."""
BUCKET_SIZE = 2**25
"""Elements per all-reduce when gradients are averaged without a wrapper; bounds the extra memory."""
HEARTBEAT_SECONDS = 1.0
"""Seconds between two heartbeats of rank 0; a signal to a waiting rank is handled after the next one."""
_RUNNING, _SUCCESS, _FAILURE = 0, 1, 2


class Ranks:
    """Rank of this process, world size and device. Without `torchrun` the world size is 1."""

    def __init__(self, device: torch.device, *, rank: int = 0, world: int = 1) -> None:
        self.device, self.rank, self.world = device, rank, world

    @property
    def is_first(self) -> bool:
        """True on rank 0, the only rank that writes files."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum over all ranks, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def max(self, value: int) -> int:
        """Return the maximum over all ranks; blocks."""
        if self.world == 1:
            return value
        result = torch.tensor(value, device=self.device)
        dist.all_reduce(result, op=dist.ReduceOp.MAX)
        return int(result)

    def wait(self) -> None:
        """Wait until all ranks are here."""
        self.max(0)

    def seed(self, number: int) -> None:
        """Seed the generators of dropout.

        NOTE: torch.manual_seed visits all kinds of devices, and takes milliseconds for those that are absent.
        """
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(number)

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's value on all ranks; blocks."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order; blocks."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Concatenate the rows `[E, …]` of all ranks, in rank order; blocks. Ranks may have different numbers of rows.

        Gradients flow into this rank's rows only: if all ranks compute the same function of all rows, the gradients
        summed over the ranks equal those of a single process.
        """
        if self.world == 1:
            return rows
        sizes = self.gather_objects(len(rows))
        padded_rows = rows.new_zeros((max(sizes), *rows.shape[1:]))
        padded_rows[: len(rows)] = rows.detach()
        gathered_rows = [torch.empty_like(padded_rows) for _ in sizes]
        dist.all_gather(gathered_rows, padded_rows)
        parts = [part[:size] for part, size in zip(gathered_rows, sizes, strict=True)]
        parts[self.rank] = rows
        return torch.cat(parts)

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Copy rank 0's values to all ranks, in place."""
        if self.world > 1:
            for tensor in tensors:
                values = tensor.detach().contiguous()
                dist.broadcast(values, src=0)
                tensor.detach().copy_(values)

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Average gradients over the ranks without a wrapper: for gradual unfreezing and alternating task heads.

        A gradient that any rank has exists on all ranks afterwards; one that no rank has stays None, so the optimizer
        skips the parameter as it does in a single process.
        """
        if self.world == 1:
            return
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        has_gradient = [parameter.grad is not None for parameter in trainable]
        rank_counts = self.sum(torch.tensor(has_gradient, dtype=torch.float32).to(self.device, non_blocking=True))
        if not all(has_gradient):  # NOTE: synchronizes with the device, only here: a rank that has all misses none
            trainable = [parameter for parameter, count in zip(trainable, rank_counts.tolist(), strict=True) if count]
            for parameter in trainable:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        all_gradients = [parameter.grad for parameter in trainable if parameter.grad is not None]
        for gradients in split_into_chunks(all_gradients, BUCKET_SIZE):
            averages = self.sum(torch.cat([gradient.flatten() for gradient in gradients])).div_(self.world)
            sizes = [gradient.numel() for gradient in gradients]
            for gradient, part in zip(gradients, torch.split(averages, sizes), strict=True):
                gradient.copy_(part.view_as(gradient))

    def check_parallel(self, mode: Parallel) -> None:
        """Raise a UsageError if these ranks cannot run a parallel mode."""
        if mode == "fsdp" and not dist.is_initialized():
            raise UsageError(
                "train.parallel=fsdp needs processes started by torchrun; "
                "run `torchrun --nproc-per-node N -m pretune pretrain …`, or use train.parallel=ddp"
            )

    def wrap(self, module: nn.Module, mode: Parallel) -> nn.Module:
        """Wrap a module so that gradients are averaged over the ranks; all ranks must hold the same weights."""
        if self.world == 1 and mode == "ddp":
            return module
        if mode == "fsdp":
            return _shard(module)
        return DistributedDataParallel(
            module, device_ids=[self.device.index] if self.device.type == "cuda" else None, gradient_as_bucket_view=True
        )

    @contextlib.contextmanager
    def delay_gradient_sync(self, module: nn.Module, *, is_last: bool) -> Iterator[None]:
        """Synchronize gradients with the last micro-batch only, where the wrapper supports it."""
        if is_last or not isinstance(module, DistributedDataParallel):
            yield
        else:
            with module.no_sync():
                yield


def resolve_device(device: str | None) -> str:
    """Return the requested device, which must exist; by default a GPU where there is one, else the CPU."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (":" in device and not (kind == "cuda" and index.isdecimal())):
        raise UsageError(f"unknown device '{device[:40]}' (allowed: cpu, cuda, cuda:N)")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ResourceError(f"device '{device[:40]}': torch finds no GPU; use --device cpu")
    if index and int(index[:9]) >= torch.cuda.device_count():
        raise ResourceError(
            f"device '{device[:40]}': torch finds {torch.cuda.device_count()} GPUs, numbered from cuda:0"
        )
    return device


@contextlib.contextmanager
def init_distributed(device: torch.device | str) -> Iterator[Ranks]:
    """Join the process group of `torchrun` (RANK, LOCAL_RANK, WORLD_SIZE) for the duration of the block."""
    requested_device = torch.device(device)
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        yield Ranks(_select_device(requested_device, 0))
        return
    rank, world, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    local_device = _select_device(requested_device, local)
    if local_device.type == "cuda":
        torch.cuda.set_device(local_device)
    with _translate_errors():
        dist.init_process_group(
            "nccl" if local_device.type == "cuda" else "gloo",
            timeout=timedelta(seconds=float(os.environ.get(TIMEOUT_VARIABLE, "600"))),
            device_id=local_device if local_device.type == "cuda" else None,
        )
        try:
            with log.silence(rank > 0):  # rank 0 logs for all
                yield Ranks(local_device, rank=rank, world=world)
        finally:
            dist.destroy_process_group()


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn errors of collectives into a ResourceError."""
    try:
        yield
    except RuntimeError as error:
        # NOTE: gloo's errors can only be recognized by their text.
        if not isinstance(error, dist.DistError) and not any(name in str(error) for name in ("gloo", "NCCL")):
            raise
        reason = str(error).strip().splitlines()[0]
        raise ResourceError(f"lost contact to another rank ({reason:.200}); continue with --resume") from error


def split_into_chunks(tensors: Iterable[Tensor], max_size: int) -> Iterator[list[Tensor]]:
    """Group tensors, in order, into chunks of one dtype and at most `max_size` elements; a larger tensor is alone."""
    chunk: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if chunk and (tensor.dtype != chunk[0].dtype or size + tensor.numel() > max_size):
            yield chunk
            chunk, size = [], 0
        chunk.append(tensor)
        size += tensor.numel()
    if chunk:
        yield chunk


def _select_device(device: torch.device, local_rank: int) -> torch.device:
    if device.type != "cuda":
        return device
    index: int | None = device.index
    index = local_rank if index is None else index
    if index >= torch.cuda.device_count():
        raise ResourceError(
            f"no GPU for local rank {local_rank}: {torch.cuda.device_count()} visible; lower --nproc-per-node"
        )
    return torch.device("cuda", index)


def _shard(module: nn.Module) -> nn.Module:
    """Shard weights, gradients and optimizer state (FSDP2), block by block; the rest with the root module."""
    from torch.distributed.fsdp import fully_shard

    for part in module.modules():
        if isinstance(part, TransformerBlock | LSTMLayer):
            fully_shard(part)
    fully_shard(module)  # in place
    return module


def reshard(module: nn.Module) -> None:
    """Reshard weights left unsharded by a forward pass without a backward pass; a no-op for unsharded modules."""
    for part in module.modules():
        if callable(reshard_part := getattr(part, "reshard", None)):
            reshard_part()


def unshard_all(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gather sharded tensors (a collective: all ranks must call it); others are returned unchanged."""
    return {name: unshard(tensor) for name, tensor in tensors.items()}


def unshard(tensor: Tensor) -> Tensor:
    """Return the full tensor, detached."""
    values = tensor.detach()
    return values.full_tensor() if isinstance(values, DTensor) else values


def fill(tensor: Tensor, value: Tensor) -> None:
    """Copy a value into a tensor that may be sharded."""
    if tuple(tensor.shape) != tuple(value.shape):
        raise UsageError(f"shape mismatch: value {list(value.shape)}, tensor {list(tensor.shape)}")
    with torch.no_grad():
        tensor.copy_(shard_like(value, tensor))


def shard_like(value: Tensor, tensor: Tensor) -> Tensor:
    """Shard a full value, the same on all ranks, like a tensor; return any other value unchanged."""
    if not isinstance(tensor, DTensor) or isinstance(value, DTensor):
        return value
    return distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)


def run_on_rank_zero(ranks: Ranks, function: Callable[[], T]) -> T | None:
    """Run a function on rank 0 while the others wait, however long it takes.

    A rank waiting for a single message would time out (`TIMEOUT_VARIABLE`), so rank 0 sends a heartbeat every second.
    The function must not use collectives.

    Returns the result on rank 0 and None elsewhere. A ResourceError is raised on the other ranks if the function fails.
    """
    if ranks.world == 1:
        return function()
    if ranks.is_first:
        return _run_with_heartbeat(ranks, function)
    status = _RUNNING
    while status == _RUNNING:
        status = ranks.max(_RUNNING)
    if status == _FAILURE:
        raise ResourceError("rank 0 failed; see its error message")
    return None


def _run_with_heartbeat(ranks: Ranks, function: Callable[[], T]) -> T:
    stop_event, status = threading.Event(), _FAILURE

    def beat() -> None:
        try:
            while not stop_event.wait(HEARTBEAT_SECONDS):
                ranks.max(_RUNNING)
            ranks.max(status)
        except RuntimeError:
            pass  # another rank is gone: this function does not need it, and the next collective will notice

    thread = threading.Thread(target=beat, name="pretune-heartbeat", daemon=True)
    thread.start()
    try:
        result = function()
        status = _SUCCESS
        return result
    finally:
        stop_event.set()
        thread.join()
