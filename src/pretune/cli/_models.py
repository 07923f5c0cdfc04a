"""Models that verbs use: the directory, the device, the precision."""

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
    Path | None, typer.Option("--base", metavar="DIR", help="Where the base model of an adapter is now.")
]


class Dtype(StrEnum):
    """How weights are computed with."""

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
    """The model of a directory, where it is to compute; the first GPU there is, unless told otherwise.

    Where it is to say something (`speaks`) and was saved without its vocabulary head, it is given it if that can be.
    """
    folder = resolve_path(directory)
    if not folder.exists():  # told before devices are looked for
        from pretune.models.not_found import make_missing_error

        raise make_missing_error(folder)
    import torch

    from pretune.adaptation.io import load

    found = load(
        folder,
        base=base,
        dtype=getattr(torch, dtype),
        device=resolve_device(device),
        head="tied" if needs_head else None,
    )
    model: Any = getattr(found, "model", found)  # what a task's head is on
    if needs_head and model is not found and model.spec.head is None and (folder / "task.json").is_file():
        raise UsageError(f"{folder}: a fine-tuned run; ask it with `pretune predict {quote(folder)} --input FILE`")
    return found


def resolve_device(device: str | None) -> "torch.device":
    """The device of a name, or the one that is found."""
    import torch

    if device is None:
        found = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        log.info(f"on {torch.cuda.get_device_name(found) if found.type == 'cuda' else 'the CPU'}")
        return found
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise UsageError(f"unknown device '{device}'; use cpu, cuda or cuda:N") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ResourceError(f"device '{device}': torch finds no GPU here; use --device cpu")
    return chosen
