"""One process or many: who we are under `torchrun`, what is summed over all, and how a module is spread.

Every rank reads its own part of each batch. Losses are divided by the count of the whole step, and gradients are summed
over the ranks, so that the number of ranks does not change what is computed.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from pretune.core import log
from pretune.core.errors import ResourceError, UsageError
from pretune.nn.block import TransformerBlock

Parallel = Literal["ddp", "fsdp"]
TIMEOUT_VARIABLE = "PRETUNE_PATIENCE"
"""A rank that hears nothing for so many seconds (600) gives up: another one has died."""
BUCKET_SIZE = 2**25
"""Numbers that travel at once where gradients are averaged without a wrapper: it bounds the memory this takes."""


class Ranks:
    """This process among all. Without `torchrun` there is one."""

    def __init__(self, device: torch.device, *, rank: int = 0, world: int = 1) -> None:
        self.device, self.rank, self.world = device, rank, world

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def max(self, value: int) -> int:
        """The largest over all ranks; waits."""
        if self.world == 1:
            return value
        found = torch.tensor(value, device=self.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return int(found)

    def seed(self, number: int) -> None:
        """What dropout draws from now on.

        NOTE: torch.manual_seed looks at all kinds of devices, and takes milliseconds for those that are not there.
        """
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(number)

    def broadcast_object(self, value: Any) -> Any:
        """The first rank's value, on all; waits."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's value, on all, in the order of the ranks; waits."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value)
        return found

    def gather_rows(self, rows: Tensor) -> Tensor:
        """The rows `[E, …]` of all ranks, which may differ in number, in their order; waits for the device.

        A gradient reaches this rank's own rows alone: what is computed of all rows, on all ranks alike, then has in the
        sum over the ranks the gradient that it has on one.
        """
        if self.world == 1:
            return rows
        sizes = self.gather_objects(len(rows))
        room = rows.new_zeros((max(sizes), *rows.shape[1:]))
        room[: len(rows)] = rows.detach()
        found = [torch.empty_like(room) for _ in sizes]
        dist.all_gather(found, room)
        parts = [part[:size] for part, size in zip(found, sizes, strict=True)]
        parts[self.rank] = rows
        return torch.cat(parts)

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Give all ranks the first one's values, in place."""
        if self.world > 1:
            for tensor in tensors:
                values = tensor.detach().contiguous()
                dist.broadcast(values, src=0)
                tensor.detach().copy_(values)

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Average gradients over the ranks, where no wrapper does it: for parts that open and heads that take turns.

        One that some rank has is on all of them afterwards; one that no rank has stays None, so that an optimiser
        passes it over as it does without ranks.
        """
        if self.world == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        mine = [parameter.grad is not None for parameter in trained]
        have = self.sum(torch.tensor(mine, dtype=torch.float32).to(self.device, non_blocking=True))
        if not all(mine):  # NOTE: waits for the device, and only here: who has all knows that none is missing
            some = have.tolist()
            trained = [parameter for parameter, count in zip(trained, some, strict=True) if count]
            for parameter in trained:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for slopes in _split_into_buckets([parameter.grad for parameter in trained if parameter.grad is not None]):
            whole = self.sum(torch.cat([slope.flatten() for slope in slopes])).div_(self.world)
            for slope, part in zip(slopes, torch.split(whole, [slope.numel() for slope in slopes]), strict=True):
                slope.copy_(part.view_as(slope))

    def check_parallel(self, mode: Parallel) -> None:
        """Refuse a way of training in parallel that these ranks cannot take."""
        if mode == "fsdp" and not dist.is_initialized():
            raise UsageError(
                "train.parallel=fsdp shards a model over the processes of torchrun, and this one was started without; "
                "start `torchrun --nproc-per-node N -m pretune pretrain …`, or use train.parallel=ddp"
            )

    def wrap(self, module: nn.Module, mode: Parallel) -> nn.Module:
        """A module whose gradients come out averaged over the ranks; all must have built the same weights."""
        if self.world == 1 and mode == "ddp":
            return module
        if mode == "fsdp":
            return _shard(module)
        return DistributedDataParallel(
            module, device_ids=[self.device.index] if self.device.type == "cuda" else None, gradient_as_bucket_view=True
        )

    @contextlib.contextmanager
    def delay_gradient_sync(self, module: nn.Module, *, is_last: bool) -> Iterator[None]:
        """Gradients travel with the last micro-batch only, where the wrapper can wait for it."""
        if is_last or not isinstance(module, DistributedDataParallel):
            yield
        else:
            with module.no_sync():
                yield


@contextlib.contextmanager
def init_distributed(device: torch.device | str) -> Iterator[Ranks]:
    """The ranks `torchrun` started (it sets RANK, LOCAL_RANK and WORLD_SIZE), for the length of a run."""
    found = torch.device(device)
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        yield Ranks(_select_device(found, 0))
        return
    rank, world, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    here = _select_device(found, local)
    if here.type == "cuda":
        torch.cuda.set_device(here)
    with _translate_errors():
        dist.init_process_group(
            "nccl" if here.type == "cuda" else "gloo",
            timeout=timedelta(seconds=float(os.environ.get(TIMEOUT_VARIABLE, "600"))),
            device_id=here if here.type == "cuda" else None,
        )
        try:
            with log.silence(rank > 0):  # the first tells it for all
                yield Ranks(here, rank=rank, world=world)
        finally:
            dist.destroy_process_group()


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """What the others do not answer becomes an error that says so."""
    try:
        yield
    except RuntimeError as error:
        # NOTE: gloo's errors are told from others by their text alone.
        if not isinstance(error, dist.DistError) and not any(name in str(error) for name in ("gloo", "NCCL")):
            raise
        why = str(error).strip().splitlines()[0]
        raise ResourceError(f"another rank has ended or fallen silent ({why:.200}); go on with --resume") from error


def _split_into_buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors in their order, some at a time, each time of one type."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or size + tensor.numel() > BUCKET_SIZE):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel()
    if bucket:
        yield bucket


def _select_device(device: torch.device, local_rank: int) -> torch.device:
    if device.type != "cuda":
        return device
    index: int | None = device.index
    index = local_rank if index is None else index
    if index >= torch.cuda.device_count():
        raise ResourceError(f"process {local_rank} has no GPU of its own; {torch.cuda.device_count()} are visible")
    return torch.device("cuda", index)


def _shard(module: nn.Module) -> nn.Module:
    """Weights, gradients and optimiser state in equal shards (FSDP2), layer by layer; the rest with the root."""
    from torch.distributed.fsdp import fully_shard

    for part in module.modules():
        if isinstance(part, TransformerBlock):
            fully_shard(part)
    fully_shard(module)  # in place
    return module


def reshard(module: nn.Module) -> None:
    """Shard again what a forward pass without a backward one left whole; nothing where nothing is sharded."""
    for part in module.modules():
        if callable(again := getattr(part, "reshard", None)):
            again()


def unshard_all(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sharded tensors put together (all ranks must ask); others as they are."""
    return {name: unshard(tensor) for name, tensor in tensors.items()}


def unshard(tensor: Tensor) -> Tensor:
    """A tensor without its shards."""
    found = tensor.detach()
    return found.full_tensor() if isinstance(found, DTensor) else found


def fill(tensor: Tensor, value: Tensor) -> None:
    """Put a whole value into a tensor that may be sharded."""
    if tuple(tensor.shape) != tuple(value.shape):
        raise UsageError(f"a value of shape {list(value.shape)} does not fit one of {list(tensor.shape)}")
    with torch.no_grad():
        if isinstance(tensor, DTensor):
            value = distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements)
        tensor.copy_(value)
