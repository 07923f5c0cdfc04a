"""Weight tying between two models: one module in both."""

import torch
from torch import nn

from pretune.core.errors import UsageError


def tie(owner: nn.Module, name: str, module: nn.Module) -> None:
    """Replace a child of `owner` by `module`; their values must be equal, unless one is on the meta device."""
    for (path, ours), theirs in zip(owner.get_submodule(name).named_parameters(), module.parameters(), strict=True):
        if not (ours.is_meta or theirs.is_meta) and not torch.equal(ours, theirs):
            raise UsageError(f"'{name}.{path}' is tied and must be equal in both models, but it differs")
    setattr(owner, name, module)
