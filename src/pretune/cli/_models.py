"""Loading of models for verbs: directory, device, dtype."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli._hints import quote
from pretune.core import log
from pretune.core.errors import ResourceError, UsageError
from pretune.core.hub import resolve_path

if TYPE_CHECKING:
    import torch

    from pretune.adaptation.adapted import ModelWithHead
    from pretune.models.model import LanguageModel


BaseOption = Annotated[
    Path | None, typer.Option("--base", metavar="DIR", help="Base model of an adapter, if it was moved.")
]


class Dtype(StrEnum):
    """Data type of the weights."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


def load_model(
    directory: str | Path,
    *,
    base: Path | None = None,
    device: str | None = None,
    dtype: Dtype = Dtype.FLOAT32,
    needs_head: bool = False,
) -> "LanguageModel | ModelWithHead":
    """Load a model directory onto a device, by default the first GPU if there is one.

    With `needs_head`, a model saved without its language-modelling head gets the tied one if possible.
    """
    folder = resolve_path(directory)
    if not folder.exists():  # checked before the slow imports
        from pretune.models.families import make_missing_error

        raise make_missing_error(folder)
    import torch

    from pretune.adaptation.io import load

    loaded_model = load(
        folder,
        base=base,
        dtype=getattr(torch, dtype),
        device=resolve_device(device),
        head="tied" if needs_head else None,
    )
    model: Any = getattr(loaded_model, "model", loaded_model)  # without the task head
    if needs_head and model is not loaded_model and model.spec.head is None and (folder / "task.json").is_file():
        command = f"pretune predict {quote(folder)} --input FILE"
        raise UsageError(f"{folder}: a fine-tuned run has no language-modelling head; use `{command}`")
    return loaded_model


def resolve_device(device: str | None) -> "torch.device":
    """Return the device of this name; None: the first GPU if available, else the CPU."""
    import torch

    if device is None:
        default = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        log.info(f"device: {torch.cuda.get_device_name(default) if default.type == 'cuda' else 'CPU'}")
        return default
    try:
        torch_device = torch.device(device)
    except RuntimeError:
        raise UsageError(f"unknown device '{device}'; use cpu, cuda or cuda:N") from None
    if torch_device.type == "cuda" and not torch.cuda.is_available():
        raise ResourceError(f"device '{device}': no GPU available to torch; use --device cpu")
    return torch_device
