"""Models of the quick start to try in a browser: an index to search, a decoder that writes, and installed ones."""

from collections.abc import Sequence
from pathlib import Path

from pretune.core.hub import INSTALLED_MODELS
from pretune.core.run_dir import RunDir
from pretune.inference.index import build
from pretune.inference.index_files import is_index
from pretune.models.families import FAMILIES
from pretune.runs.pretrain import pretrain
from pretune.tasks.example import Example

INDEX, WRITER = "library", "writer"
MAX_TEXTS = 500
BUDGET_SHARE = 1 / 12
"""Share of the budget in which the decoder is trained; it is for a demonstration only."""


def build_demo(
    run_dir: Path, encoder: str, reviews: Sequence[Example], length: int, budget: float, device: str
) -> None:
    """Write an index of reviews by the encoder, and a small decoder that is trained on the reviews."""
    build(encoder, [review.text for review in reviews[:MAX_TEXTS]], out=run_dir / INDEX, device=device)
    family = next(name for name in FAMILIES if FAMILIES.get(name).shape == "decoder")  # the simplest
    changes: dict[str, object] = {"data.max_length": length, "data.length_schedule": None}
    changes |= {"model.width": 128, "model.depth": 2, "model.heads": 2}
    changes |= {"train.batch_tokens": 512, "train.lr": 3e-3, "train.compile": False}
    seconds, epochs = (BUDGET_SHARE * budget, None) if device == "cpu" else (None, 10.0)
    pretrain(
        family,
        data=run_dir / "data",
        budget=seconds,
        epochs=epochs,
        paper=True,
        overrides=changes,
        out=run_dir / WRITER,
        device=device,
    )


def list_installed() -> list[str]:
    """Return installed models, served before those of the run: they fill and write with more sense."""
    return [name for name in ("small-encoder", "small-decoder", "smollm2") if INSTALLED_MODELS[name].find()]


def list_demo(run_dir: Path) -> list[str]:
    """Return the names of those that are finished."""
    names = [WRITER] if RunDir(run_dir / WRITER).is_finished else []
    return [*names, *([INDEX] if is_index(run_dir / INDEX) else [])]
