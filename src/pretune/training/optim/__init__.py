"""Optimisers as values: a spec says which and how, `build(groups)` makes a `torch.optim.Optimizer`.

    groups = parameter_groups(model)
    optimizer = AdamW(lr=1e-4).build(groups)
    set_rates(optimizer, schedule.factor(step, total))   # a float in each group: no recompile, no wait
    norm = clip(model.parameters(), 1.0)
    step(optimizer, norm.isfinite())                     # skipped on the device where the norm is not finite

All state is there from the start, lies in tensors and is known by parameter names (`state_tensors`, `load_state`).
"""

from pretune.training.optim.adafactor import Adafactor
from pretune.training.optim.adamw import AdamW
from pretune.training.optim.asgd import ASGD, AveragedDescent, averaged
from pretune.training.optim.clip import clip
from pretune.training.optim.conditional_step import set_rates, step
from pretune.training.optim.groups import Group, parameter_groups, parts
from pretune.training.optim.lamb import Lamb
from pretune.training.optim.muon import Muon
from pretune.training.optim.sgd import SGD
from pretune.training.optim.state import load_state, state_tensors

Optim = AdamW | Adafactor | Lamb | Muon | SGD | ASGD

__all__ = [
    "ASGD",
    "SGD",
    "AdamW",
    "Adafactor",
    "AveragedDescent",
    "Group",
    "Lamb",
    "Muon",
    "Optim",
    "averaged",
    "clip",
    "load_state",
    "parameter_groups",
    "parts",
    "set_rates",
    "state_tensors",
    "step",
]
