"""Token classification: named entities, parts of speech.

Paper: Devlin et al. (2019), section 5.3: a linear layer on every token's state; the first token of a word carries the
word's label, the others have none. For an encoder-decoder the decoder's states are used, with the text on both sides
(Lewis et al., 2020). See also: `span`.

    tokens   [CLS] John  lives in  Par  ##is  [SEP]
    targets  -     B-PER O     O   B-LOC -    -
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from torch import Tensor, nn

from pretune.adaptation.heads.base import (
    HeadedModel,
    build_token_head,
    check_classes,
    count_labels,
    resolve_transform,
)
from pretune.adaptation.heads.classification import cross_entropy
from pretune.adaptation.scalar_mix import Mixing
from pretune.core.config import Fraction, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch, Loss, Targets
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.nn.heads import Transform


@spec
class Tagging:
    """One of several tags per token; cross-entropy at the batch's targets."""

    classes: Positive[int]
    labels: tuple[str, ...] = ()  # names of the tags, in order
    dropout: Fraction = 0.1
    scalar_mix: Mixing | None = None  # scalar mix over all layers of a frozen model, instead of the last states
    transform: Transform | None = None  # before the classifier; None: as in the family's paper

    def __post_init__(self) -> None:
        check_classes(self.classes, self.labels)

    def resolve(self, spec: Model) -> Self:
        return self if self.transform else replace(self, transform=resolve_transform(spec))

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module:
        if self.scalar_mix is not None:
            return self.scalar_mix.build(model, self.classes, tagging=True, seed=seed)
        return build_token_head(model, self.classes, self.dropout, seed, self.transform)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": count_labels(get_targets(batch).labels)}

    def loss(self, model: HeadedModel, batch: Batch) -> Loss:
        targets = get_targets(batch)
        states = model.states(batch)
        if self.scalar_mix is not None:
            return cross_entropy(model.head(states, batch).index_select(0, targets.index), targets.labels)
        return cross_entropy(model.head(states.index_select(0, targets.index)), targets.labels)


def get_targets(batch: Batch) -> Targets:
    """Return the positions and labels of the tokens that have a label."""
    if batch.targets is None:
        raise UsageError("this head needs labels of tokens, but the batch has no targets")
    return batch.targets
