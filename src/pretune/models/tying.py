"""Weights that two models share: one module in both."""

import torch
from torch import nn

from pretune.core.errors import UsageError


def tie(owner: nn.Module, name: str, module: nn.Module) -> None:
    """Let an owner use a module in place of its own, which must hold the same values where either has any."""
    for (path, ours), theirs in zip(owner.get_submodule(name).named_parameters(), module.parameters(), strict=True):
        if not (ours.is_meta or theirs.is_meta) and not torch.equal(ours, theirs):
            raise UsageError(f"'{name}.{path}' must be the same in both models, which share it, but it differs")
    setattr(owner, name, module)
