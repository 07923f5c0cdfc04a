"""Saving of a model that has an adapter: the adapter with its task head, and the base model if no directory has it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.head_classes import export_head
from pretune.adaptation.peft.base import PeftMethod, is_adapter_module
from pretune.adaptation.peft.io import AdapterExtras, compute_fingerprint, save_adapter
from pretune.core.errors import CheckpointError, UsageError
from pretune.core.hub import is_hub
from pretune.models.hf import checkpoint
from pretune.models.hf.config import is_equivalent
from pretune.models.model import LanguageModel, build_empty
from pretune.models.spec import PARTS


def find_method(model: LanguageModel | ModelWithHead) -> PeftMethod | None:
    """Return the method that was applied to a model and not merged since, or None."""
    body = model.model if isinstance(model, ModelWithHead) else model
    method: PeftMethod | None = body.peft_method
    return method if any(map(is_adapter_module, body.modules())) else None


def save_with_adapter(
    model: LanguageModel | ModelWithHead, method: PeftMethod, directory: str | Path, *, overwrite: bool = False
) -> None:
    """Save the adapter of a model, and its task head if it has one.

    The directory from which the base model was loaded is referred to if it has the same weights. Otherwise the base
    model is saved too, in the folder `base`.
    """
    body = model.model if isinstance(model, ModelWithHead) else model
    source = body.assets.directory
    if source is not None and not is_hub(source) and Path(source).resolve() == Path(directory).resolve():
        raise UsageError(f"cannot save '{directory}': it is the base model of this adapter; choose another directory")
    is_stored = source is not None and _has_weights(source, body, method)
    extras = AdapterExtras(
        base=source if is_stored else None, base_model=None if is_stored else _rebuild_base(body, method)
    )
    if isinstance(model, ModelWithHead):
        extras = replace(extras, head=model.head, task=model.spec, layout=export_head(model))
    save_adapter(body, method, directory, extras=extras, overwrite=overwrite)


def _has_weights(source: str, model: LanguageModel, method: PeftMethod) -> bool:
    """Return whether a directory has the weights of a model, except for those that the method trains."""
    try:
        base = checkpoint.load(source)
    except (CheckpointError, UsageError):
        return False
    dropped_parts: dict[str, Any] = {part: None for part in (*PARTS, "span") if getattr(model, part) is None}
    base.spec = replace(base.spec, **dropped_parts)
    if not is_equivalent(base.spec, model.spec):
        return False
    for part in dropped_parts:  # a task head is in their place
        setattr(base, part, None)
    trained_names, base_weights = set(method.list_trainable_names(model)), dict(checkpoint.iterate_weights(base))
    for name, tensor in model.named_parameters():
        if name not in trained_names and (
            name not in base_weights
            or base_weights[name].shape != tensor.shape
            or not torch.equal(base_weights[name].to(tensor.dtype), tensor.detach().cpu())
        ):
            return False
    return compute_fingerprint(base, method) == compute_fingerprint(model, method)


def _rebuild_base(model: LanguageModel, method: PeftMethod) -> LanguageModel:
    """Return the base model without the modules of the method, sharing the weights."""
    base, weights = build_empty(model.spec), dict(checkpoint.iterate_weights(model))
    for name, _ in [*checkpoint.iterate_weights(base)]:
        if name not in weights:
            raise UsageError(
                f"the base model was changed, and '{name}' is quantized by {type(method).__name__}, so it cannot be "
                "saved; save the changed model with pt.save and load it before the adapter is added"
            )
        checkpoint.assign(base, name, weights[name].detach())
    base.assets = replace(model.assets, modules={})
    return base
