"""Text as the answer: the model's own vocabulary head, with nothing added.

Papers: Raffel et al. (2020) for every task; Radford et al. (2019), Brown et al. (2020) and others after them. The
batch's targets are the answer's tokens. Siblings: all other heads give something that is not text.

    source  sst2 sentence: a fine film </s>
    target  positive </s>
"""

from collections.abc import Mapping
from typing import Any, Self

from torch import Tensor

from pretune.adaptation.heads.base import count_labels
from pretune.adaptation.heads.tagging import get_targets
from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch, Loss
from pretune.models.model import LanguageModel
from pretune.models.spec import Model


@spec
class Generation:
    """The next token of the answer, by cross-entropy over the vocabulary."""

    def resolve(self, spec: Model) -> Self:
        if spec.decoder is None or spec.head is None:
            what = f"a model of the shape '{spec.shape}'" if spec.decoder is None else "one without a vocabulary head"
            raise UsageError(f"head 'generation' is not for {what}; take a decoder or an encoder-decoder with its head")
        return self

    def build(self, model: LanguageModel, *, seed: int = 0) -> None:
        self.resolve(model.spec)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": count_labels(get_targets(batch).labels)}

    def loss(self, model: Any, batch: Batch) -> Loss:
        out: Loss = model.model.loss(model.states(batch), batch)
        return out
