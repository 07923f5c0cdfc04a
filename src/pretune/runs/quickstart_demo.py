"""Models of the quick start to try in a browser: an index to search, and a decoder that writes."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.core.run_dir import RunDir
from pretune.inference.index import build
from pretune.inference.index_files import is_index
from pretune.models.families import FAMILIES
from pretune.runs.pretrain import pretrain

if TYPE_CHECKING:
    from pretune.runs.quickstart import QuickstartRun

INDEX, WRITER = "library", "writer"
MAX_TEXTS = 500
BUDGET_SHARE = 1 / 12
"""Share of the budget in which the decoder is trained; it is for a demonstration only."""


def build_demo(run: "QuickstartRun") -> None:
    """Write an index of reviews by the encoder, and a small decoder that is trained on the reviews."""
    build(
        run.encoder,
        [example.text for example in run.train_pool[:MAX_TEXTS]],
        out=run.run_dir / INDEX,
        device=run.device,
    )
    family = next(name for name in FAMILIES if FAMILIES.get(name).shape == "decoder")  # the simplest
    changes: dict[str, Any] = {"data.max_length": run.plan.length, "data.length_schedule": None}
    changes |= {"model.width": 128, "model.depth": 2, "model.heads": 2}
    changes |= {"train.batch_tokens": 512, "train.lr": 3e-3, "train.compile": False}
    budget, epochs = (BUDGET_SHARE * run.budget, None) if run.device == "cpu" else (None, 10.0)
    pretrain(
        family, data=run.run_dir / "data", budget=budget, epochs=epochs, overrides=changes, out=run.run_dir / WRITER,
        device=run.device,
    )  # fmt: skip


def list_demo(run_dir: Path) -> list[str]:
    """Return the names of those that are finished."""
    names = [WRITER] if RunDir(run_dir / WRITER).is_finished else []
    return [*names, *([INDEX] if is_index(run_dir / INDEX) else [])]
