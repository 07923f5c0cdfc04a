"""A model as it was loaded: its network, and what else a run, an index or a file of word vectors has."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from pretune.adaptation.io import load
from pretune.core.errors import UsageError
from pretune.core.hub import resolve_path
from pretune.core.run_dir import RunDir
from pretune.inference.embed import Embedder, WordEmbedder
from pretune.inference.index import Index
from pretune.inference.index_files import is_index
from pretune.inference.text_model import get_language_model, get_tokenizer
from pretune.inference.word_vectors import WordVectors, is_word_vectors
from pretune.models.model import LanguageModel
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.text.tokenizer import Tokenizer
from pretune.training.distributed import resolve_device


@dataclass(slots=True, kw_only=True)
class LoadedModel:
    """The parts of a model; those that it does not have are None."""

    path: Path | None = None
    model: nn.Module | None = None
    run: FinetunedRun | None = None
    index: Index | None = None
    embedder: Embedder | None = None
    network: LanguageModel | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.model is not None:
            self.network = get_language_model(self.model.eval())

    @classmethod
    def load(cls, source: str | os.PathLike[str] | nn.Module, device: str | None = None) -> "LoadedModel":
        """Load a model directory, a fine-tuned run, an index, or a file of word vectors; or take a model."""
        if isinstance(source, nn.Module):
            return cls(model=source)
        target = resolve_device(device)
        if not Path(source).is_dir() and is_word_vectors(source):
            return cls(path=Path(source), embedder=WordEmbedder(WordVectors.load(source)))
        folder = resolve_path(source)
        if is_index(folder):
            index = Index.open(folder)
            embedder = index.load_embedder(device=target)
            return cls(path=folder, model=embedder.encoder.model, index=index, embedder=embedder)
        if RunDir(folder).is_finetuned:
            run = FinetunedRun.open(folder, device=target)
            model = load(folder, device=target) if run.saved_task.members else run.load()
            return cls(path=folder, model=model, run=run)
        return cls(path=folder, model=load(folder, device=target, head="tied"))

    @property
    def word_vectors(self) -> WordVectors | None:
        """The word vectors, of a file of them."""
        return self.embedder.vectors if isinstance(self.embedder, WordEmbedder) else None

    def get_network(self) -> LanguageModel:
        """Return the network. Raises a UsageError for word vectors."""
        if self.network is None:
            raise UsageError("word vectors are no model")
        return self.network

    def get_tokenizer(self) -> Tokenizer:
        """Return the tokenizer. Raises a UsageError for a model without one."""
        return get_tokenizer(self.get_network())

    def get_readable_network(self) -> LanguageModel:
        """Return the network. Raises a UsageError for one without a tokenizer."""
        self.get_tokenizer()
        return self.get_network()
