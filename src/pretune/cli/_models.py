"""Models that verbs use: the directory, the device, the precision."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli._hints import quoted
from pretune.core import log
from pretune.core.errors import ResourceError, UsageError
from pretune.core.hub import located

if TYPE_CHECKING:
    import torch

    from pretune.adaptation.adapted import Adapted
    from pretune.models.model import LanguageModel


BaseOption = Annotated[
    Path | None, typer.Option("--base", metavar="DIR", help="Where the base model of an adapter is now.")
]


class Number(StrEnum):
    """How weights are computed with."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


def opened(
    directory: str | Path,
    *,
    base: Path | None = None,
    device: str | None = None,
    dtype: Number = Number.FLOAT32,
    speaks: bool = False,
) -> "LanguageModel | Adapted":
    """The model of a directory, where it is to compute; the first GPU there is, unless told otherwise.

    Where it is to say something (`speaks`) and was saved without its vocabulary head, it is given it if that can be.
    """
    folder = located(directory)
    if not folder.exists():  # told before devices are looked for
        from pretune.models.not_found import missing

        raise missing(folder)
    import torch

    from pretune.adaptation.io import load

    found = load(folder, base=base, dtype=getattr(torch, dtype), device=placed(device), head="tied" if speaks else None)
    model: Any = getattr(found, "model", found)  # what a task's head is on
    if speaks and model is not found and model.spec.head is None and (folder / "task.json").is_file():
        raise UsageError(f"{folder}: a fine-tuned run; ask it with `pretune predict {quoted(folder)} --input FILE`")
    return found


def placed(device: str | None) -> "torch.device":
    """The device of a name, or the one that is found."""
    import torch

    if device is None:
        found = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        log.say(f"on {torch.cuda.get_device_name(found) if found.type == 'cuda' else 'the CPU'}")
        return found
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise UsageError(f"unknown device '{device}'; use cpu, cuda or cuda:N") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ResourceError(f"device '{device}': torch finds no GPU here; use --device cpu")
    return chosen
