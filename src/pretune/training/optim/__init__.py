"""Optimizers: a spec holds the hyperparameters, and `build(groups)` returns a `torch.optim.Optimizer`.

    groups = build_parameter_groups(model)
    optimizer = AdamW(lr=1e-4).build(groups)
    set_rates(optimizer, schedule.compute_factor(step, total))   # a float in each group: no recompilation, no sync
    norm = clip_gradients(model.parameters(), 1.0)
    step_if(optimizer, norm.isfinite())                          # skipped on the device if the norm is not finite

All state is allocated at construction, held in tensors and keyed by parameter name (`get_state_tensors`, `load_state`).
"""

from pretune.training.optim.adafactor import Adafactor
from pretune.training.optim.base import (
    AdamW,
    ParameterGroup,
    build_parameter_groups,
    clip_gradients,
    get_state_tensors,
    load_state,
    set_rates,
    split_parts,
    step_if,
    use_averages,
)
from pretune.training.optim.lamb import Lamb
from pretune.training.optim.muon import Muon
from pretune.training.optim.sgd import ASGD, SGD, Adagrad, AveragedDescent

Optim = AdamW | Adafactor | Adagrad | Lamb | Muon | SGD | ASGD

__all__ = [
    "ASGD",
    "SGD",
    "AdamW",
    "Adafactor",
    "Adagrad",
    "AveragedDescent",
    "ParameterGroup",
    "Lamb",
    "Muon",
    "Optim",
    "use_averages",
    "clip_gradients",
    "load_state",
    "build_parameter_groups",
    "split_parts",
    "set_rates",
    "get_state_tensors",
    "step_if",
]
