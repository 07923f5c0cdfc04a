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

_PUBLIC = {
    "export": "pretune.exporters.export:export",
    "verify": "pretune.runs.verify:verify",
    "Tokenizer": "pretune.text.tokenizer:Tokenizer",
    "add_head": "pretune.adaptation.adapted:add_head",
    "add_adapter": "pretune.adaptation.adapted:add_adapter",
    "LoRA": "pretune.adaptation.peft.lora:LoRA",
    "QLoRA": "pretune.adaptation.peft.qlora:QLoRA",
    "IA3": "pretune.adaptation.peft.vectors:IA3",
    "BitFit": "pretune.adaptation.peft.vectors:BitFit",
    "Adapter": "pretune.adaptation.peft.adapter:Adapter",
    "PrefixTuning": "pretune.adaptation.peft.prefix:PrefixTuning",
    "PromptTuning": "pretune.adaptation.peft.prefix:PromptTuning",
    "list_models": "pretune.runs.listing:list_models",
    "list_objectives": "pretune.runs.listing:list_objectives",
    "list_studies": "pretune.studies:list_studies",
    "list_tasks": "pretune.runs.listing:list_tasks",
    "list_methods": "pretune.runs.listing:list_methods",
    "register": "pretune.runs.listing:register",
    "load": "pretune.adaptation.io:load",
    "save": "pretune.adaptation.io:save",
    "build": "pretune.models.catalog:build",
    "train_tokenizer": "pretune.text.tokenizer.training:train_tokenizer",
    "prepare": "pretune.runs.prepare:prepare",
    "objective": "pretune.objectives:build_objective",
    "pretrain": "pretune.runs.pretrain:pretrain",
    "quickstart": "pretune.runs.quickstart:quickstart",
    "compare": "pretune.studies.compare:compare",
    "train_embeddings": "pretune.runs.embedding:train_embeddings",
    "train_vectors": "pretune.runs.vectors:train_vectors",
    "finetune": "pretune.runs.finetune.entry:finetune",
    "predict": "pretune.runs.finetune.inference:predict_run",
    "evaluate": "pretune.runs.evaluate:evaluate",
    "report": "pretune.reports.page:report",
    "score": "pretune.inference.scoring:score",
    "batch": "pretune.data.layout:batch",
    "embed": "pretune.inference.embed:embed",
    "fill": "pretune.inference.fill:fill",
    "generate": "pretune.inference.generate:generate",
    "index": "pretune.inference.index:build",
    "Index": "pretune.inference.index:Index",
    "search": "pretune.inference.index:search",
    "analyze_attention": "pretune.analysis.attention:analyze_attention",
    "analyze_diff": "pretune.analysis.weight_change:analyze_diff",
    "analyze_embeddings": "pretune.analysis.embedding_map:analyze_embeddings",
    "analyze_forgetting": "pretune.runs.finetune.forgetting:analyze_forgetting",
    "analyze_layers": "pretune.analysis.layer_probes:analyze_layers",
    "view_attention": "pretune.analysis.attention:view_attention",
    "neighbors": "pretune.analysis.neighbors:neighbors",
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
