"""Optimizers: a spec holds the hyperparameters, and `build(groups)` returns a `torch.optim.Optimizer`.

    groups = build_parameter_groups(model)
    optimizer = AdamW(lr=1e-4).build(groups)
    set_rates(optimizer, schedule.compute_factor(step, total))   # a float in each group: no recompilation, no sync
    norm = clip_gradients(model.parameters(), 1.0)
    step_if(optimizer, norm.isfinite())                          # skipped on the device if the norm is not finite

Here stand AdamW and what optimizers share: parameter groups, skippable steps, gradient clipping, state by name.

Groups differ in weight decay, in hidden matrices, and in the part of the model. A splitter (Howard and Gugger, 2020)
divides a model into ordered parts: embeddings, blocks, heads. It is sufficient for layer-wise learning rates and
gradual unfreezing.

A step can be skipped on the device, without the host reading the condition: torch's fused optimizers leave weights and
state unchanged if their attribute `found_inf` is 1 (made for loss scaling). Ours follow the same convention: they
compute the new values, and `write_if` writes them or the old ones.

State has names instead of indices (`encoder.0.attention.q.weight.exp_avg`): a checkpoint then fits a model with other
parameter groups, and errors name the tensor.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.optim import Optimizer

from pretune.core.config import Ge, Lt, NonNegative, spec
from pretune.core.errors import CheckpointError, UsageError
from pretune.training.distributed import fill, split_into_chunks, unshard

EMBEDDINGS_PART, HEADS_PART = "embeddings", "heads"
NORM_MODULES = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)

Splitter = Callable[[nn.Module], dict[str, list[str]]]
"""Model -> ordered parts, each with the names of its parameters."""

TorchGroup = dict[str, Any]
"""Parameter group of a torch optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters with the same treatment, in model order."""

    part: str  # of the model, or "all"
    names: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    has_decay: bool  # apply weight decay
    is_matrix: bool  # matrices inside blocks
    lr_factor: float = 1.0  # factor of the learning rate

    def to_param_group(self, *, lr: float, weight_decay: float) -> TorchGroup:
        """Convert to a torch parameter group. The schedule sets `lr` from `peak` before each step."""
        return {
            "params": list(zip(self.names, self.parameters, strict=True)),
            "part": self.part,
            "lr": lr * self.lr_factor,
            "peak": lr * self.lr_factor,
            "weight_decay": weight_decay if self.has_decay else 0.0,
            "has_decay": self.has_decay,
        }


def build_parameter_groups(
    model: nn.Module, *, lr_factor: Callable[[int], float] | None = None, split: Splitter | None = None
) -> list[ParameterGroup]:
    """Group the trainable parameters: tied ones once, frozen ones excluded, in an order that depends on the model only.

    `lr_factor(above)` is the learning rate factor of a part with `above` parts above it: 0 for the topmost (heads).
    ULMFiT's discriminative rates are `lambda above: 2.6**-above`. Without it, parts share groups.
    """
    parts = (split or split_parts)(model)
    owners = _map_owners(model)
    blocks = _find_blocks(model)
    names_by_group: dict[tuple[int, bool, bool], list[str]] = {}
    for depth, names in enumerate(parts.values()):
        for name in names:
            owner, parameter = owners[name]
            if parameter.requires_grad:
                has_decay = parameter.ndim >= 2 and not isinstance(owner, NORM_MODULES)
                is_weight_matrix = has_decay and parameter.ndim == 2 and not isinstance(owner, nn.Embedding)
                is_matrix = is_weight_matrix and _find_block(name, blocks) is not None
                names_by_group.setdefault((depth if lr_factor else 0, not has_decay, not is_matrix), []).append(name)
    if not names_by_group:
        raise UsageError("nothing to train: all parameters of the model are frozen")
    return [
        ParameterGroup(
            part=list(parts)[depth] if lr_factor else "all",
            names=tuple(names),
            parameters=tuple(owners[name][1] for name in names),
            has_decay=not is_exempt,
            is_matrix=not is_other,
            lr_factor=lr_factor(len(parts) - 1 - depth) if lr_factor else 1.0,
        )
        for (depth, is_exempt, is_other), names in sorted(names_by_group.items())
    ]


def split_parts(model: nn.Module) -> dict[str, list[str]]:
    """Return the parameter names of the embeddings, every block (`encoder.0`, …) and the heads; no empty parts.

    A block is a numbered child of a stack, or a recurrent layer, unless it is inside a module with `is_single_part =
    True` (a task's reader). In a stack, parameters before the first block belong to the embeddings, and those after the
    last block to that block. Outside of stacks, embedding tables, and all of a module with `is_embedding = True`, are
    embeddings and everything else is heads.
    """
    blocks = _find_blocks(model)
    embeddings = [path for path, module in model.named_modules() if getattr(module, "is_embedding", False)]
    names_by_part: dict[str, list[str]] = {EMBEDDINGS_PART: [], **{block: [] for block in blocks}, HEADS_PART: []}
    stacks = [_get_parent(block) for block in blocks]
    last_blocks: dict[str, str] = {}  # the block met last in each stack
    for name, (owner, _) in _map_owners(model).items():
        block = _find_block(name, blocks)
        if block is not None:
            last_blocks[_get_parent(block)] = block
            names_by_part[block].append(name)
            continue
        stack = _find_block(name, stacks)
        if stack is not None:
            names_by_part[last_blocks.get(stack, EMBEDDINGS_PART)].append(name)
        else:
            is_embedding = isinstance(owner, nn.Embedding) or _find_block(name, embeddings) is not None
            names_by_part[EMBEDDINGS_PART if is_embedding else HEADS_PART].append(name)
    return {part: names for part, names in names_by_part.items() if names}


def list_trained_names(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters that are not frozen."""
    return tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)


def _map_owners(model: nn.Module) -> dict[str, tuple[nn.Module, Parameter]]:
    """Map every parameter, under its first name, to its module."""
    modules = dict(model.named_modules())
    return {name: (modules[_get_parent(name)], parameter) for name, parameter in model.named_parameters()}


def _find_blocks(model: nn.Module) -> list[str]:
    """Return the paths of the blocks, not nested, in model order."""
    blocks: list[str] = []
    single_parts: list[str] = []
    for path, module in model.named_modules():
        if getattr(module, "is_single_part", False):
            single_parts.append(path)
        if _find_block(path, single_parts) is not None:
            continue
        parent = model.get_submodule(_get_parent(path))
        is_numbered = path.rpartition(".")[2].isdigit() and not isinstance(parent, nn.Sequential)
        if (is_numbered or isinstance(module, nn.RNNBase)) and _find_block(path, blocks) is None:
            blocks.append(path)
    return blocks


def _find_block(name: str, blocks: list[str]) -> str | None:
    """Return the innermost of some modules that a path lies in, itself included, or None."""
    return next((ancestor for ancestor in _list_ancestors(name) if ancestor in blocks), None)


def _list_ancestors(name: str) -> list[str]:
    """Return a path and its parents: 'a.b.c' -> ['a.b.c', 'a.b', 'a']."""
    components = name.split(".")
    return [".".join(components[:n]) for n in range(len(components), 0, -1)]


def _get_parent(name: str) -> str:
    return name.rpartition(".")[0]


Beta = Annotated[float, Ge(0), Lt(1)]
"""Decay rate of a moving average."""
CHUNK_SIZE = 2**26
"""Elements of weights processed at once; bounds the memory of temporaries."""


def step_if(optimizer: Optimizer, ok: Tensor) -> None:
    """Take a step if `ok` (a scalar on the weights' device) is true; otherwise change nothing, bit for bit."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        name = type(optimizer).__name__
        raise UsageError(f"optimizer '{name}' cannot skip a step on the device; build it from a spec of training.optim")
    untyped_optimizer: Any = optimizer
    untyped_optimizer.found_inf = 1.0 - ok.to(torch.float32)
    try:
        optimizer.step()
    finally:
        del untyped_optimizer.found_inf


def set_rates(optimizer: Optimizer, factor: float) -> None:
    """Set every group's learning rate to its peak times the schedule's factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor


def use_averages(optimizer: Optimizer) -> AbstractContextManager[None]:
    """Return a context in which the model has the weights to evaluate and save: the averages if there are any."""
    context: AbstractContextManager[None] = getattr(optimizer, "use_averages", nullcontext)()
    return context


def get_step_condition(optimizer: Optimizer) -> Tensor | None:
    """Return the condition passed to `step_if`, a bool on the device; None in an unconditional step."""
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    return None if found_inf is None else found_inf == 0


@torch.no_grad()
def write_if(ok: Tensor | None, old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    """Write the new values if `ok`. By selection, not multiplication: 0 x NaN is NaN, and -0 + 0 is 0."""
    for target, value in zip(map(_to_local, old), map(_to_local, new), strict=True):
        if ok is None:
            target.copy_(value)
        else:
            torch.where(ok, value, target, out=target)


def iter_chunks(group: TorchGroup, *, same_shape: bool = False) -> Iterator[list[Tensor]]:
    """Yield chunks of the group's weights that have a gradient; with `same_shape` each chunk has a single shape."""
    lists: dict[Any, list[Tensor]] = {}
    for parameter in group["params"]:
        if parameter.grad is not None:
            lists.setdefault(tuple(parameter.shape) if same_shape else None, []).append(parameter)
    for weights in lists.values():
        yield from split_into_chunks(weights, CHUNK_SIZE)


class SkippableOptimizer(Optimizer):
    """Optimizer whose step can be skipped on the device; a subclass has the state and the rule of an update."""

    _step_supports_amp_scaling = True
    updates_same_shapes = False
    """True if the weights of an update have a single shape."""

    def __init__(self, spec: Any, groups: Sequence[ParameterGroup]) -> None:
        super().__init__([group.to_param_group(lr=spec.lr, weight_decay=spec.weight_decay) for group in groups], {})
        self.spec, self.updated_groups = spec, [*self.param_groups]
        for group in groups:
            for weight in group.parameters:
                self.state[weight] = self.init_state(weight)

    def init_state(self, weight: Tensor) -> dict[str, Tensor]:
        """Return the initial state of a weight."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient."""
        ok = get_step_condition(self)
        for group in self.updated_groups:
            for weights in iter_chunks(group, same_shape=self.updates_same_shapes):
                self.update(ok, group, weights, [weight.grad for weight in weights if weight.grad is not None])

    def update(self, ok: Tensor | None, group: TorchGroup, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Write the new weights and states, if `ok`."""
        raise NotImplementedError


def create_counter(weight: Tensor, value: float = 0.0) -> Tensor:
    """Create a step counter on a weight's device (float32, exact up to 2^24)."""
    return torch.full((), value, dtype=torch.float32, device=weight.device)


def init_moments(weight: Tensor, step: float = 0.0) -> dict[str, Tensor]:
    """Return Adam's state of a weight, under torch's names."""
    zeros = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
    return {"step": create_counter(weight, step), **zeros}


def _to_local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], max_norm: float | None) -> Tensor:
    """Scale gradients to a total norm of at most `max_norm` (None: measure only); returns the norm before clipping.

    The norm is a float32 on the device, over all shards of sharded weights. If it is not finite, the gradients are
    useless afterwards: skip the step.
    """
    if max_norm is not None and not max_norm > 0:
        raise UsageError(f"clip must be > 0 or null for no clipping, got {max_norm}")
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros(())
    norms = torch._foreach_norm(gradients, 2.0, torch.float32)
    norm = unshard(torch.linalg.vector_norm(torch.stack(list(norms))))
    if max_norm is not None:
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def get_state_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return all tensors of the optimizer state, step counts included, in model order, without copies."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = {id(parameter): parameter for group in optimizer.param_groups for parameter in group["params"]}
    if not parameters.keys() <= names.keys():
        raise UsageError("the optimizer has parameters of another model; build it after the model is on its device")
    return {
        f"{name}.{key}": value
        for identity, name in names.items()
        if identity in parameters
        for key, value in sorted(optimizer.state.get(parameters[identity], {}).items())
    }


def load_state(optimizer: Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load state; a missing, unexpected or mismatched tensor raises a CheckpointError, and then nothing is changed."""
    state_tensors = get_state_tensors(optimizer, model)
    for name, tensor in state_tensors.items():
        if name not in tensors:
            raise CheckpointError(
                f"optimizer state '{name}' is missing; the checkpoint is of another model or optimizer"
            )
        value = tensors[name]
        if (value.shape, value.dtype) != (tensor.shape, tensor.dtype):
            raise CheckpointError(
                f"optimizer state '{name}' is {_describe_tensor(value)}; this run needs {_describe_tensor(tensor)}"
            )
    for name in tensors:
        if name not in state_tensors:
            raise CheckpointError(f"unexpected optimizer state '{name}'; the checkpoint is of another run")
    for name, tensor in state_tensors.items():
        fill(tensor, tensors[name])


def _describe_tensor(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


@spec
class AdamW:
    """AdamW by torch's fused kernel, on CPU and CUDA.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g²;  w -= lr (m̂ / (√v̂ + eps) + weight_decay w)

    Papers: BERT 1e-4, betas (0.9, 0.999), eps 1e-6, decay 0.01, without bias correction in its code; RoBERTa 6e-4,
    (0.9, 0.98), 1e-6, 0.01; ELECTRA 5e-4 (small), (0.9, 0.999), 1e-6, 0.01; GPT-3 6e-4 (small), (0.9, 0.95), 1e-8, 0.1.
    """

    lr: NonNegative[float] = 1e-4
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: NonNegative[float] = 1e-8
    weight_decay: NonNegative[float] = 0.01
    bias_correction: bool = True

    def build(self, groups: Sequence[ParameterGroup]) -> torch.optim.AdamW:
        """Build the optimizer; the weights must already be on their device."""
        param_groups = [group.to_param_group(lr=self.lr, weight_decay=self.weight_decay) for group in groups]
        optimizer = torch.optim.AdamW(param_groups, betas=self.betas, eps=self.eps, fused=True)
        # NOTE: the correction is 1 - beta^steps: at an infinite number of steps it is exactly 1, which disables it.
        initial_step = 0.0 if self.bias_correction else math.inf
        for group in groups:
            for weight in group.parameters:
                optimizer.state[weight] = init_moments(weight, initial_step)
        return optimizer
