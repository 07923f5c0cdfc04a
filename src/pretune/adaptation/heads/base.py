"""What every head is (`TaskHead`), and the two modules they are made of: one for sequences, one for tokens.

Legend: N tokens, C cells (sequences, filler, spare ones), W width, K classes.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from pretune.core import config
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss
from pretune.inference.sentence_modules import read_pooling
from pretune.models.families import FAMILIES
from pretune.models.hf.heads import LAST_TOKEN
from pretune.models.init import initialise
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.nn.feedforward import ACTIVATIONS
from pretune.nn.pooling import Reading, pool_states

Head = TypeVar("Head")

DEFAULT_POOLING = {
    "encoder": Reading(at="first", layer="own"),
    "decoder": LAST_TOKEN,
    "encoder-decoder": Reading(at="last", layer="own"),
    "two-stream": Reading(at="last", layer="own"),
}
"""How a model is read whose family does not say it."""


class HeadedModel(Protocol):
    """A model with a head on it."""

    model: LanguageModel
    head: Any

    def states(self, batch: Batch) -> Tensor: ...


class TaskHead(Protocol):
    """A head as a value; see `pretune.adaptation.adapted` for what it is put on."""

    def resolve(self, spec: Model) -> "TaskHead":
        """With all that the model's family says of it; a model that cannot have it is refused."""

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module | None:
        """The module, with new weights. None: the model's own vocabulary head is used."""

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        """How many targets the loss has."""

    def loss(self, model: Any, batch: Batch) -> Loss:
        """The summed loss of a batch."""


class SequenceHead(nn.Module):
    """States to classes, one row a cell: summary, dense layer, classes; dropout before the layers that are its own.

    In the precision of its own weights, also where the body computes in less: its work is little, and what tells
    summaries apart may be small. Before the classes, dropout puts `center` in the place of what it drops: nothing, or
    the mean of what a fitted head reads, for its bias takes off what stands there.
    """

    def __init__(self, reading: Reading, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.places = reading.modes
        width *= len(self.places)
        self.dense = nn.Linear(width, width) if reading.layer else None
        self.activate = ACTIVATIONS[reading.activation]
        self.before = nn.Dropout(dropout if reading.layer == "own" else 0.0)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, classes, bias=reading.bias)
        self.center: Tensor | None = None  # [W]; for training alone: it is in no file

    def pool(self, states: Tensor, batch: Batch) -> Tensor:
        """States `[N, W]` to one vector for each cell; several poolings are concatenated."""
        return torch.cat([pool_states(states, batch, place) for place in self.places], dim=-1)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """States `[N, W]` to logits `[C, K]`."""
        with torch.autocast(states.device.type, enabled=False):
            x = self.pool(states, batch).to(self.out.weight.dtype)
            if self.dense is not None:
                x = self.activate(self.dense(self.before(x)))
            x = self.dropout(x) if self.center is None else self.dropout(x - self.center) + self.center
            out: Tensor = self.out(x)
        return out


class TokenHead(nn.Module):
    """States to classes, one row a token."""

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, classes)

    def forward(self, states: Tensor, batch: Batch | None = None) -> Tensor:
        """States `[N, W]` to logits `[N, K]`."""
        out: Tensor = self.out(self.dropout(states))
        return out


def resolve_pooling(spec: Model, *, is_choice: bool = False) -> Reading:
    """How the family of a model reads a whole sequence; where it says nothing, as models of its shape are read."""
    family = FAMILIES.get(spec.family) if spec.family in FAMILIES else None
    stated = family and ((family.choice_pooling if is_choice else None) or family.pooling)
    if stated:
        return stated
    if spec.shape not in DEFAULT_POOLING:
        raise UsageError(
            f"a model of the shape '{spec.shape}' cannot have this head; allowed: {', '.join(DEFAULT_POOLING)}"
        )
    return DEFAULT_POOLING[spec.shape]


def use_stored_pooling(head: Head, model: LanguageModel) -> Head:
    """Return a head that pools as the model's directory states (`1_Pooling/config.json`), where neither says otherwise.

    The normalisation and the dense layers that may follow there are left out: a linear layer learns its own scale.
    """
    if getattr(head, "reading", False) is not None or model.spec.is_encoder_decoder:
        return head
    places = [("first" if name == "cls" else name) for name in read_pooling(model) or ()]
    if not places:
        return head
    stated = config.from_dict(Reading, {"at": places[0], "concat": places[1:]}, location="pooling")
    return replace(head, reading=stated)  # type: ignore[type-var]


def init_head(model: LanguageModel, head: nn.Module, seed: int) -> nn.Module:
    """A head made without weights, with new ones: drawn as the body's were, where the body lies."""
    like = model.tokens.weight
    head = head.to_empty(device="cpu")
    initialise(head, model.spec.init, model.spec.depth, seed)
    return head.to(like.device, like.dtype)


def build_sequence_head(model: LanguageModel, reading: Reading, classes: int, dropout: float, seed: int) -> nn.Module:
    """A new head for sequences; its dense layer begins as the model's pooler where that is how it reads."""
    with torch.device("meta"):
        head = SequenceHead(reading, model.spec.width, classes, dropout)
    made = init_head(model, head, seed)
    if reading.layer == "pooler" and model.pooler is not None:
        made.get_submodule("dense").load_state_dict(model.pooler.dense.state_dict())
    return made


def build_token_head(model: LanguageModel, classes: int, dropout: float, seed: int) -> nn.Module:
    """A new head for tokens."""
    with torch.device("meta"):
        head = TokenHead(model.spec.width, classes, dropout)
    return init_head(model, head, seed)


def get_labels(batch: Batch) -> Tensor:
    """The label of every cell `[C]`."""
    if batch.labels is None:
        raise UsageError("this head learns from one label a sequence, and the batch has none; give the data labels")
    return batch.labels


def count_labels(labels: Tensor) -> Tensor:
    """How many there are."""
    return (labels != IGNORE_INDEX).sum()


def check_classes(classes: int, labels: tuple[str, ...]) -> None:
    """Refuse numbers that do not fit."""
    if classes < 1 or (labels and len(labels) != classes):
        raise UsageError(f"classes {classes} must be at least 1, and as many as there are labels ({len(labels)})")
