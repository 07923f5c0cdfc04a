"""A model's parameters in groups: who is decayed, who is a hidden matrix, and which part of the model it stands in.

A splitter (Howard and Gugger, 2020) turns a model into ordered parts: embeddings, block after block, heads. Layer-wise
rates and gradual unfreezing need nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn import Parameter

from pretune.core.errors import UsageError

EMBEDDINGS, HEADS = "embeddings", "heads"
NORM_MODULES = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)

Splitter = Callable[[nn.Module], dict[str, list[str]]]
"""Model -> ordered parts, each with the names of its parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters that are treated alike, in the model's order."""

    part: str  # of the model, or "all"
    names: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    has_decay: bool  # whether weight decay is for them
    is_matrix: bool  # whether they are matrices inside blocks
    lr_factor: float = 1.0  # times the learning rate

    def to_param_group(self, *, lr: float, weight_decay: float) -> dict[str, Any]:
        """The group as torch takes it. `lr` is what counts in a step, and is set from `peak` by the schedule."""
        return {
            "params": list(zip(self.names, self.parameters, strict=True)),
            "part": self.part,
            "lr": lr * self.lr_factor,
            "peak": lr * self.lr_factor,
            "weight_decay": weight_decay if self.has_decay else 0.0,
        }


def build_parameter_groups(
    model: nn.Module, *, lr_factor: Callable[[int], float] | None = None, split: Splitter | None = None
) -> list[ParameterGroup]:
    """The parameters to be trained: tied ones once, frozen ones left out, in an order that depends on the model alone.

    `lr_factor(above)` is the factor on the learning rate of a part with so many parts above it: 0 for the topmost (heads).
    ULMFiT's discriminative rates are `lambda above: 2.6**-above`. Without it parts are not kept apart.
    """
    divided = (split or split_parts)(model)
    owners = _map_owners(model)
    blocks = _find_blocks(model)
    found: dict[tuple[int, bool, bool], list[str]] = {}
    for depth, names in enumerate(divided.values()):
        for name in names:
            owner, parameter = owners[name]
            if parameter.requires_grad:
                decay = parameter.ndim >= 2 and not isinstance(owner, NORM_MODULES)
                inside = decay and parameter.ndim == 2 and not isinstance(owner, nn.Embedding)
                matrix = inside and _find_block(name, blocks) is not None
                found.setdefault((depth if lr_factor else 0, not decay, not matrix), []).append(name)
    if not found:
        raise UsageError("every parameter of the model is frozen: there is nothing to train")
    return [
        ParameterGroup(
            part=list(divided)[depth] if lr_factor else "all",
            names=tuple(names),
            parameters=tuple(owners[name][1] for name in names),
            has_decay=not exempt,
            is_matrix=not other,
            lr_factor=lr_factor(len(divided) - 1 - depth) if lr_factor else 1.0,
        )
        for (depth, exempt, other), names in sorted(found.items())
    ]


def split_parts(model: nn.Module) -> dict[str, list[str]]:
    """Embeddings, every block by its path (`encoder.0`, …), heads: the names of their parameters; empty parts left out.

    A block is a numbered child of a stack, or a recurrent layer, unless it lies in a module that says it is undivided
    (`undivided = True`: a task's reader). In a stack, what comes before the first block belongs to the embeddings and
    what comes after the last to that one. Outside of stacks, tables are embeddings and the rest is heads.
    """
    blocks = _find_blocks(model)
    found: dict[str, list[str]] = {EMBEDDINGS: [], **{block: [] for block in blocks}, HEADS: []}
    last: dict[str, str] = {}  # the block met last in each stack
    for name, (owner, _) in _map_owners(model).items():
        block = _find_block(name, blocks)
        if block is not None:
            last[_get_parent(block)] = block
            found[block].append(name)
            continue
        stack = next((place for place in _list_ancestors(name) if place and place in map(_get_parent, blocks)), None)
        if stack is not None:
            found[last.get(stack, EMBEDDINGS)].append(name)
        else:
            found[EMBEDDINGS if isinstance(owner, nn.Embedding) else HEADS].append(name)
    return {part: names for part, names in found.items() if names}


def _map_owners(model: nn.Module) -> dict[str, tuple[nn.Module, Parameter]]:
    """Every parameter once, by its first name, with the module it belongs to."""
    modules = dict(model.named_modules())
    return {name: (modules[_get_parent(name)], parameter) for name, parameter in model.named_parameters()}


def _find_blocks(model: nn.Module) -> list[str]:
    """The paths of the blocks, none inside another, in the model's order."""
    found: list[str] = []
    closed: list[str] = []
    for path, module in model.named_modules():
        if getattr(module, "is_single_part", False):
            closed.append(path)
        if _find_block(path, closed) is not None:
            continue
        numbered = path.rpartition(".")[2].isdigit() and not isinstance(
            model.get_submodule(_get_parent(path)), nn.Sequential
        )
        if (numbered or isinstance(module, nn.RNNBase)) and _find_block(path, found) is None:
            found.append(path)
    return found


def _find_block(name: str, blocks: list[str]) -> str | None:
    return next((place for place in _list_ancestors(name) if place in blocks), None)


def _list_ancestors(name: str) -> list[str]:
    """'a.b.c' -> ['a.b.c', 'a.b', 'a']"""
    steps = name.split(".")
    return [".".join(steps[:n]) for n in range(len(steps), 0, -1)]


def _get_parent(name: str) -> str:
    return name.rpartition(".")[0]
