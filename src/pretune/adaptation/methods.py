"""Fine-tuning methods by name: full fine-tuning, partial fine-tuning and PEFT.

    model = adapt(pt.load("runs/bert"), Classification(classes=2))
    method = METHODS.get("lora")()
    names = apply_method(model, method)         # in place; names of the trained parameters, the head's included
    …                                           # the training loop, with build_hooks(model, method, epoch=…)
    save(model, method, "runs/sst2", base="runs/bert")
    model, method = load("runs/sst2")           # pt.load returns the model only

`count_slots(method)` is the number of slots the data layout reserves before each sequence, `count_positions(method)`
the number of positions that are not available to the text.
"""

from pathlib import Path

import torch

from pretune.adaptation import METHODS as METHODS
from pretune.adaptation import io
from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.freeze import Frozen, Full, Gradual, freeze
from pretune.adaptation.peft.base import TARGETS, PeftMethod, find_linears
from pretune.adaptation.peft.io import save_adapter
from pretune.adaptation.peft.prefix import PrefixTuning, PromptTuning
from pretune.models.model import LanguageModel
from pretune.training.loop import Hook
from pretune.training.optim import list_trained_names

load = io.load_with_method

AnyMethod = Full | Frozen | Gradual | PeftMethod


def apply_method(model: ModelWithHead, method: AnyMethod, *, seed: int = 0) -> tuple[str, ...]:
    """Prepare a model for a method, in place; return the names of the trained parameters, the head's included."""
    if isinstance(method, Frozen):
        return freeze(model, method)
    if isinstance(method, PeftMethod):
        method.apply(model.model, seed=seed)
    return list_trained_names(model)


def round_frozen_weights(model: LanguageModel, method: AnyMethod, precision: torch.dtype | None) -> None:
    """Store the frozen linear layers of a PEFT method's blocks in the precision of autocast, in place.

    Autocast rounds them before every product, so no result changes; but in fp32 they take twice the memory, and a
    rounded copy of each is kept for the backward pass. An adapter is saved without its base model, so nothing is lost.
    """
    if precision is None or not isinstance(method, PeftMethod) or model.spec.is_recurrent:
        return  # NOTE: the weights of a recurrent layer are sums of base and adapter in fp32
    for _, _, _, layer in find_linears(model, TARGETS):
        weight = layer._parameters.get("weight")
        if weight is not None and not weight.requires_grad and weight.is_floating_point():
            weight.data = weight.data.to(precision)


def build_hooks(model: ModelWithHead, method: AnyMethod, *, epoch: float) -> list[Hook]:
    """Return the hooks of a method for the training loop; build the optimizer's groups first."""
    return [method.build_hook(model, epoch=epoch)] if isinstance(method, Gradual) else []


def count_slots(method: AnyMethod) -> int:
    """Return the number of slots to reserve before each sequence (`data.sequences.reserve`)."""
    return method.count if isinstance(method, PromptTuning) else 0


def count_positions(method: AnyMethod) -> int:
    """Return the number of positions before the text: the maximum text length shrinks by as many."""
    return method.count if isinstance(method, PromptTuning | PrefixTuning) else 0


def save(
    model: ModelWithHead,
    method: AnyMethod,
    directory: str | Path,
    *,
    base: str | Path | None = None,
    overwrite: bool = False,
) -> None:
    """Save the trained weights: a full model, or an adapter with its head and the path of its base model."""
    if isinstance(method, Full | Frozen | Gradual):
        io.save(model, directory, overwrite=overwrite)
        return
    save_adapter(model, method, directory, base=None if base is None else str(base), overwrite=overwrite)
