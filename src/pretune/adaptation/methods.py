"""The ways to fine-tune a model, by name: all of it, a part of it, or a few new parameters.

    model = adapt(pt.load("runs/bert"), Classification(classes=2))
    method = METHODS.get("lora")()
    names = prepare(model, method)              # in place; what is trained, the task's head always among it
    …                                           # the one training loop, with hooks(model, method, epoch=…)
    save(model, method, "runs/sst2", base="runs/bert")
    model, method = load("runs/sst2")           # so does pt.load, without telling the method

`count_slots(method)` says how many slots the data layout must leave before each sequence, `count_positions(method)` how many
positions are not the text's.
"""

from pathlib import Path

import torch

from pretune.adaptation import METHODS as METHODS
from pretune.adaptation import io
from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.freeze import Frozen, Full, freeze
from pretune.adaptation.gradual_unfreezing import Gradual
from pretune.adaptation.peft.base import PeftMethod
from pretune.adaptation.peft.io import (
    ADAPTER_FILE,
    HEAD_FILE,
    PEFT_CONFIG_FILE,
    WEIGHTS_FILE,
    AdapterExtras,
    save_adapter,
)
from pretune.adaptation.peft.prefix import PrefixTuning
from pretune.adaptation.peft.prompt import Prompt
from pretune.models.model import LanguageModel
from pretune.training.loop import Hook

AnyMethod = Full | Frozen | Gradual | PeftMethod


def apply_method(model: ModelWithHead, method: AnyMethod, *, seed: int = 0) -> tuple[str, ...]:
    """Make a model ready to be trained by a method, in place: the names of all that is trained, the head's included."""
    if isinstance(method, Full | Gradual):
        return tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    if isinstance(method, Frozen):
        return freeze(model, method)
    method.apply(model.model, seed=seed)
    return tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)


def build_hooks(model: ModelWithHead, method: AnyMethod, *, epoch: float) -> list[Hook]:
    """What a method does while the loop runs; make the optimiser's groups first."""
    return [method.build_hook(model, epoch=epoch)] if isinstance(method, Gradual) else []


def count_slots(method: AnyMethod) -> int:
    """How many slots `data.count_slots.reserve` has to leave before each sequence."""
    return method.count if isinstance(method, Prompt) else 0


def count_positions(method: AnyMethod) -> int:
    """How many of a model's positions are taken before the text: so much shorter the longest text is."""
    return method.count if isinstance(method, Prompt | PrefixTuning) else 0


def save(
    model: ModelWithHead,
    method: AnyMethod,
    directory: str | Path,
    *,
    base: str | Path | None = None,
    overwrite: bool = False,
) -> None:
    """Write what was learned: a whole model, or an adapter with its head and the way to its base."""
    if isinstance(method, Full | Frozen | Gradual):
        io.save(model, directory, overwrite=overwrite)
        for name in (ADAPTER_FILE, PEFT_CONFIG_FILE, WEIGHTS_FILE, HEAD_FILE):  # of an adapter that was here before
            (Path(directory) / name).unlink(missing_ok=True)
        return
    path = None if base is None else str(base)
    beside = AdapterExtras(head=model.head, task=model.spec, base=path, layout=io.export_head(model))
    save_adapter(model.model, method, directory, extras=beside, overwrite=overwrite)


def load(
    directory: str | Path,
    *,
    base: str | Path | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> tuple[LanguageModel | ModelWithHead, PeftMethod | None]:
    """A fine-tuned model and the method that is on it, None where the directory holds a whole model."""
    return io.load_with_method(directory, base=base, dtype=dtype, device=device)
