"""A model that is served, by its name, with what it can do.

model = ServedModel.load("reviews", "runs/reviews")
model.capabilities                               # ['embed', 'predict', …]
model.get(TextEmbedder).run(["a text", "another"])      # one result per item
"""

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from torch import nn

from pretune.core.errors import PretuneError, UsageError
from pretune.server import capabilities, words
from pretune.server.capabilities import Capability, list_texts
from pretune.server.errors import CapabilityError
from pretune.server.loaded_model import LoadedModel

C = TypeVar("C", bound=Capability)
CAPABILITIES: tuple[type[Capability], ...] = (
    capabilities.Completer,
    capabilities.TextEmbedder,
    capabilities.MaskFiller,
    capabilities.RunPredictor,
    capabilities.Explainer,
    capabilities.TextScorer,
    capabilities.IndexSearcher,
    words.NeighborFinder,
    words.WordComparer,
    capabilities.AttentionViewer,
    capabilities.TextTokenizer,
)


class ServedModel:
    """A loaded model with its name and capabilities."""

    def __init__(self, name: str, loaded_model: LoadedModel) -> None:
        self.name, self.loaded_model = name, loaded_model
        self._capabilities: dict[str, Capability] = {}
        self.reasons: dict[str, str] = {}  # of what it cannot do
        for kind in CAPABILITIES:
            try:
                self._capabilities[kind.name] = kind(loaded_model)
            except PretuneError as error:
                self.reasons[kind.name] = str(error)

    @classmethod
    def load(cls, name: str, source: str | os.PathLike[str] | nn.Module, device: str | None = None) -> "ServedModel":
        """Load a model as `LoadedModel.load` does."""
        return cls(name, LoadedModel.load(source, device))

    @property
    def capabilities(self) -> list[str]:
        """Names of what the model can do."""
        return [*self._capabilities]

    def can(self, kind: type[Capability]) -> bool:
        """Return whether the model has a capability."""
        return kind.name in self._capabilities

    def get(self, kind: type[C]) -> C:
        """Return a capability. Raises a CapabilityError for what the model cannot do; it states what it can do."""
        capability = self._capabilities.get(kind.name)
        if not isinstance(capability, kind):
            raise CapabilityError(
                f"model '{self.name}' cannot {kind.name}: {self.reasons[kind.name]} "
                f"(it can {', '.join(self.capabilities) or 'do nothing that is served'})"
            )
        return capability

    def check_lengths(self, items: Sequence[Any], limit: int) -> None:
        """Raise a UsageError for a text of more tokens than the limit, if the model has no limit of its own."""
        network = self.loaded_model.network
        if network is None or network.tokenizer is None or network.spec.max_length is not None:
            return
        texts = [text for item in items for text in list_texts(item)]
        longest = int(np.diff(network.tokenizer.encode_batch(texts).offsets).max(initial=0))
        if longest > limit:
            raise UsageError(f"a text must have <= {limit} tokens, got {longest}; shorten it")
