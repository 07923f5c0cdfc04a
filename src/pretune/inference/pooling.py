"""From the states of a text's tokens to one vector: which states, of which layer, and how they are put together.

Legend: N tokens, C cells (sequences, filler, spare ones), W width.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.core.config import spec
from pretune.core.errors import UsageError, suggest
from pretune.core.types import Batch
from pretune.models.model import LanguageModel
from pretune.nn.pooling import pool_states
from pretune.nn.stack import OutputFlags

Pooling = Literal["mean", "cls", "max", "last", "mean_sqrt", "weighted", "static"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
"""The mean, the first, the largest, the last; the sum over the root of the number; a mean that weighs the n-th state n
times; and the mean of the token table's rows, which asks no layer and leaves special tokens out."""


@spec
class Embedding:
    """How a text becomes one vector. Several poolings are laid side by side, as sentence-transformers does."""

    pooling: tuple[Pooling, ...] = ("mean",)
    layer: int | None = None  # 0: what the first layer reads; negative: from the end; None: the last
    normalise: bool = False  # to length one
    length: int | None = None  # the longest text in tokens, special ones included; None: what the model can read
    prompt: str = ""  # what is put before every text

    def __post_init__(self) -> None:
        for name in self.pooling:
            if name not in POOLINGS:
                raise UsageError(f"unknown pooling '{name}'{suggest(name, POOLINGS)} ({', '.join(POOLINGS)})")
        if not self.pooling or ("static" in self.pooling and (len(self.pooling) > 1 or self.layer is not None)):
            raise UsageError("pooling is one or more of the states' poolings, or 'static' alone, which has no layer")
        if self.length is not None and self.length < 1:
            raise UsageError(f"length {self.length} must be 1 or more tokens")


class TextEncoder(nn.Module):
    """A model, how its states become a vector, and the dense layers that follow, if any."""

    def __init__(self, model: LanguageModel, config: Embedding, dense: nn.ModuleList | None = None) -> None:
        super().__init__()
        self.model, self.config = model, config
        self.dense = dense or nn.ModuleList()
        depth = _get_depth(model)
        if config.layer is not None and not -depth - 1 <= config.layer <= depth:
            raise UsageError(f"layer {config.layer} is not among those of this model: 0 to {depth}, or from -1 back")

    @property
    def width(self) -> int:
        """Of the vectors."""
        if len(self.dense):
            return int(self.dense[-1].out_features)  # type: ignore[arg-type]
        return (
            self.model.spec.table
            if "static" in self.config.pooling
            else len(self.config.pooling) * self.model.spec.width
        )

    def forward(self, batch: Batch) -> Tensor:
        """A vector for each cell `[C, W]`; those of filler and spare cells mean nothing."""
        states = compute_states(self.model, batch, self.config.layer)
        return self.finish(torch.cat([pool(states, batch, name) for name in self.config.pooling], dim=-1))

    def embed_static(self, tokens: Tensor, offsets: Tensor) -> Tensor:
        """The mean of the table's rows for each text `[S, W]`, zeros for one without tokens."""
        return self.finish(F.embedding_bag(tokens, self.model.tokens.weight, offsets, mode="mean"))

    def finish(self, vectors: Tensor) -> Tensor:
        """What follows the pooling."""
        for layer in self.dense:
            vectors = layer(vectors)
        return F.normalize(vectors, dim=-1) if self.config.normalise else vectors


def compute_states(model: LanguageModel, batch: Batch, layer: int | None = None) -> Tensor:
    """The states `[N, W]` of one layer: of the encoder where there is one. No head is run."""
    if model.prompt is not None:
        raise UsageError("a model with a learned prompt gives no vectors; embed with the model below it")
    rows = F.embedding(batch.tokens, model.tokens.weight)
    found = _get_stack(model)(rows, batch, flags=OutputFlags(hidden=layer is not None, backend=model.attention_backend))
    out: Tensor = found.states if layer is None else found.hidden[layer]
    return out


def pool(states: Tensor, batch: Batch, pooling: Pooling) -> Tensor:
    """States `[N, W]` to one vector for each cell `[C, W]`."""
    if pooling == "static":
        raise UsageError("the pooling 'static' reads no states; see TextEncoder.static")
    return pool_states(states, batch, "first" if pooling == "cls" else pooling)


def _get_depth(model: LanguageModel) -> int:
    stack = model.spec.encoder or model.spec.decoder
    assert stack is not None
    return stack.depth


def _get_stack(model: LanguageModel) -> nn.Module:
    stack = model.encoder if model.encoder is not None else model.decoder
    assert stack is not None
    return stack
