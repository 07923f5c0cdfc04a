"""Pre-train once, fine-tune many times.

    import pretune as pt

    model = pt.load("runs/bert")
    out = model(pt.batch([[101, 7592, 102], [101, 102]]))

Names are imported on first use: `import pretune` loads neither torch nor numpy.
"""

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pretune.adapt.saving import load, save
    from pretune.analyze.neighbors import neighbors
    from pretune.core.types import Batch, Loss, Output
    from pretune.data.layout import batch
    from pretune.evaluate.report import report
    from pretune.models.catalog import build
    from pretune.objectives import named as objective
    from pretune.recipes.embedding import train_embeddings
    from pretune.recipes.evaluate import evaluate
    from pretune.recipes.finetune.fine import predict_run as predict
    from pretune.recipes.finetune.work import finetune
    from pretune.recipes.prepare import prepare
    from pretune.recipes.pretrain import pretrain
    from pretune.recipes.quickstart import quickstart
    from pretune.recipes.vectors import train_vectors
    from pretune.text.tokenizer import train_tokenizer
    from pretune.use.embed import embed
    from pretune.use.fill import fill
    from pretune.use.index import Index, search
    from pretune.use.index import build as index
    from pretune.use.score import score
    from pretune.use.write import generate

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Index",
    "Loss",
    "Output",
    "__version__",
    "batch",
    "build",
    "embed",
    "evaluate",
    "fill",
    "finetune",
    "generate",
    "index",
    "load",
    "neighbors",
    "objective",
    "predict",
    "prepare",
    "pretrain",
    "quickstart",
    "save",
    "report",
    "score",
    "search",
    "train_embeddings",
    "train_tokenizer",
    "train_vectors",
]

_PUBLIC = {
    "load": "pretune.adapt.saving:load",
    "save": "pretune.adapt.saving:save",
    "build": "pretune.models.catalog:build",
    "train_tokenizer": "pretune.text.tokenizer:train_tokenizer",
    "prepare": "pretune.recipes.prepare:prepare",
    "objective": "pretune.objectives:named",
    "pretrain": "pretune.recipes.pretrain:pretrain",
    "quickstart": "pretune.recipes.quickstart:quickstart",
    "train_embeddings": "pretune.recipes.embedding:train_embeddings",
    "train_vectors": "pretune.recipes.vectors:train_vectors",
    "finetune": "pretune.recipes.finetune.work:finetune",
    "predict": "pretune.recipes.finetune.fine:predict_run",
    "evaluate": "pretune.recipes.evaluate:evaluate",
    "report": "pretune.evaluate.report:report",
    "score": "pretune.use.score:score",
    "batch": "pretune.data.layout:batch",
    "embed": "pretune.use.embed:embed",
    "fill": "pretune.use.fill:fill",
    "generate": "pretune.use.write:generate",
    "index": "pretune.use.index:build",
    "Index": "pretune.use.index:Index",
    "search": "pretune.use.index:search",
    "neighbors": "pretune.analyze.neighbors:neighbors",
    "Batch": "pretune.core.types:Batch",
    "Output": "pretune.core.types:Output",
    "Loss": "pretune.core.types:Loss",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'pretune' has no attribute '{name}'")
    module, _, attribute = _PUBLIC[name].partition(":")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


class _Package(types.ModuleType):
    """The package, of which `evaluate` is the function, though there is a folder of that name as well."""

    @property
    def evaluate(self) -> Any:
        return __getattr__("evaluate")

    @evaluate.setter
    def evaluate(self, folder: Any) -> None:
        """Importing the folder sets it here, which is left undone."""


sys.modules[__name__].__class__ = _Package
