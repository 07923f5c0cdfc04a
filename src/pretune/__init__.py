"""Pre-train once, fine-tune many times.

    import pretune as pt

    model = pt.load("runs/bert")
    out = model(pt.batch([[101, 7592, 102], [101, 102]]))

Names are imported on first use: `import pretune` loads neither torch nor numpy.
"""

import importlib
from typing import TYPE_CHECKING, Any

from pretune.core import __version__

if TYPE_CHECKING:
    from pretune.adaptation.adapted import add_adapter, add_head
    from pretune.adaptation.io import load, save
    from pretune.adaptation.peft.adapter import Adapter
    from pretune.adaptation.peft.lora import LoRA
    from pretune.adaptation.peft.prefix import PrefixTuning, PromptTuning
    from pretune.adaptation.peft.qlora import QLoRA
    from pretune.adaptation.peft.vectors import IA3, BitFit
    from pretune.analysis.attention import analyze_attention, view_attention
    from pretune.analysis.embedding_map import analyze_embeddings
    from pretune.analysis.layer_probes import analyze_layers
    from pretune.analysis.neighbors import neighbors
    from pretune.analysis.weight_change import analyze_diff
    from pretune.core.types import Batch, Loss, Output
    from pretune.data.layout import batch
    from pretune.exporters.export import export
    from pretune.inference.chat import chat
    from pretune.inference.embed import embed
    from pretune.inference.fill import fill
    from pretune.inference.generate import generate
    from pretune.inference.index import Index, search
    from pretune.inference.index import build as index
    from pretune.inference.scoring import score
    from pretune.models.catalog import build
    from pretune.objectives import build_objective as objective
    from pretune.reports.page import report
    from pretune.runs.embedding import train_embeddings
    from pretune.runs.evaluate import evaluate
    from pretune.runs.finetune.entry import finetune
    from pretune.runs.finetune.forgetting import analyze_forgetting
    from pretune.runs.finetune.inference import predict_run as predict
    from pretune.runs.listing import list_methods, list_models, list_objectives, list_tasks, register
    from pretune.runs.prepare import prepare
    from pretune.runs.pretrain import pretrain
    from pretune.runs.quickstart import quickstart
    from pretune.runs.vectors import train_vectors
    from pretune.runs.verify import verify
    from pretune.studies import list_studies
    from pretune.studies.compare import compare
    from pretune.text.tokenizer import Tokenizer
    from pretune.text.tokenizer.training import train_tokenizer


__all__ = [
    "__version__",
    "Adapter",
    "add_adapter",
    "add_head",
    "analyze_attention",
    "analyze_diff",
    "analyze_embeddings",
    "analyze_forgetting",
    "analyze_layers",
    "Batch",
    "batch",
    "BitFit",
    "build",
    "chat",
    "compare",
    "embed",
    "export",
    "evaluate",
    "fill",
    "finetune",
    "generate",
    "IA3",
    "Index",
    "index",
    "list_methods",
    "list_models",
    "list_objectives",
    "list_studies",
    "list_tasks",
    "load",
    "LoRA",
    "Loss",
    "neighbors",
    "objective",
    "Output",
    "predict",
    "PrefixTuning",
    "prepare",
    "pretrain",
    "PromptTuning",
    "QLoRA",
    "quickstart",
    "register",
    "report",
    "save",
    "score",
    "search",
    "Tokenizer",
    "train_embeddings",
    "train_tokenizer",
    "train_vectors",
    "verify",
    "view_attention",
]

_MODULES = {
    "pretune.adaptation.adapted": ("add_adapter", "add_head"),
    "pretune.adaptation.io": ("load", "save"),
    "pretune.adaptation.peft.adapter": ("Adapter",),
    "pretune.adaptation.peft.lora": ("LoRA",),
    "pretune.adaptation.peft.prefix": ("PrefixTuning", "PromptTuning"),
    "pretune.adaptation.peft.qlora": ("QLoRA",),
    "pretune.adaptation.peft.vectors": ("BitFit", "IA3"),
    "pretune.analysis.attention": ("analyze_attention", "view_attention"),
    "pretune.analysis.embedding_map": ("analyze_embeddings",),
    "pretune.analysis.layer_probes": ("analyze_layers",),
    "pretune.analysis.neighbors": ("neighbors",),
    "pretune.analysis.weight_change": ("analyze_diff",),
    "pretune.core.types": ("Batch", "Loss", "Output"),
    "pretune.data.layout": ("batch",),
    "pretune.exporters.export": ("export",),
    "pretune.inference.chat": ("chat",),
    "pretune.inference.embed": ("embed",),
    "pretune.inference.fill": ("fill",),
    "pretune.inference.generate": ("generate",),
    "pretune.inference.index": ("index", "Index", "search"),
    "pretune.inference.scoring": ("score",),
    "pretune.models.catalog": ("build",),
    "pretune.objectives": ("objective",),
    "pretune.reports.page": ("report",),
    "pretune.runs.embedding": ("train_embeddings",),
    "pretune.runs.evaluate": ("evaluate",),
    "pretune.runs.finetune.entry": ("finetune",),
    "pretune.runs.finetune.forgetting": ("analyze_forgetting",),
    "pretune.runs.finetune.inference": ("predict",),
    "pretune.runs.listing": ("list_methods", "list_models", "list_objectives", "list_tasks", "register"),
    "pretune.runs.prepare": ("prepare",),
    "pretune.runs.pretrain": ("pretrain",),
    "pretune.runs.quickstart": ("quickstart",),
    "pretune.runs.vectors": ("train_vectors",),
    "pretune.runs.verify": ("verify",),
    "pretune.studies": ("list_studies",),
    "pretune.studies.compare": ("compare",),
    "pretune.text.tokenizer": ("Tokenizer",),
    "pretune.text.tokenizer.training": ("train_tokenizer",),
}
"""Public names by module."""
_ATTRIBUTES = {"index": "build", "objective": "build_objective", "predict": "predict_run"}
"""Names inside of their modules, where they differ."""


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module 'pretune' has no attribute '{name}'")
    value = getattr(importlib.import_module(module), _ATTRIBUTES.get(name, name))
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
