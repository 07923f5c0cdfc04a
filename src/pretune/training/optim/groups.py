"""Parameter groups: weight decay, hidden matrices, and the part of the model.

A splitter (Howard and Gugger, 2020) divides a model into ordered parts: embeddings, blocks, heads. It is sufficient for
layer-wise learning rates and gradual unfreezing.
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
    """Parameters with the same treatment, in model order."""

    part: str  # of the model, or "all"
    names: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    has_decay: bool  # apply weight decay
    is_matrix: bool  # matrices inside blocks
    lr_factor: float = 1.0  # factor of the learning rate

    def to_param_group(self, *, lr: float, weight_decay: float) -> dict[str, Any]:
        """Convert to a torch parameter group. The schedule sets `lr` from `peak` before each step."""
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
    last block to that block. Outside of stacks, embedding tables are embeddings and everything else is heads.
    """
    blocks = _find_blocks(model)
    names_by_part: dict[str, list[str]] = {EMBEDDINGS: [], **{block: [] for block in blocks}, HEADS: []}
    last_blocks: dict[str, str] = {}  # the block met last in each stack
    for name, (owner, _) in _map_owners(model).items():
        block = _find_block(name, blocks)
        if block is not None:
            last_blocks[_get_parent(block)] = block
            names_by_part[block].append(name)
            continue
        stack = next(
            (ancestor for ancestor in _list_ancestors(name) if ancestor and ancestor in map(_get_parent, blocks)), None
        )
        if stack is not None:
            names_by_part[last_blocks.get(stack, EMBEDDINGS)].append(name)
        else:
            names_by_part[EMBEDDINGS if isinstance(owner, nn.Embedding) else HEADS].append(name)
    return {part: names for part, names in names_by_part.items() if names}


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
        is_numbered = path.rpartition(".")[2].isdigit() and not isinstance(
            model.get_submodule(_get_parent(path)), nn.Sequential
        )
        if (is_numbered or isinstance(module, nn.RNNBase)) and _find_block(path, blocks) is None:
            blocks.append(path)
    return blocks


def _find_block(name: str, blocks: list[str]) -> str | None:
    return next((ancestor for ancestor in _list_ancestors(name) if ancestor in blocks), None)


def _list_ancestors(name: str) -> list[str]:
    """Return a path and its parents: 'a.b.c' -> ['a.b.c', 'a.b', 'a']."""
    components = name.split(".")
    return [".".join(components[:n]) for n in range(len(components), 0, -1)]


def _get_parent(name: str) -> str:
    return name.rpartition(".")[0]
