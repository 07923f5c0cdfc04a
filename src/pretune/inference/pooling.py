"""Pooling of token states into one vector per text.

Legend: N tokens, C cells (sequences, filler, spare ones), W width.
"""

from typing import Annotated, Literal, TypedDict, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.core.config import NonEmpty, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.models.model import LanguageModel
from pretune.nn.heads import pool_states
from pretune.nn.stack import OutputFlags, StackOutput

Pooling = Literal["mean", "cls", "max", "last", "mean_sqrt", "weighted", "static"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
"""Mean, first, maximum, last; sum over the square root of the length; mean weighted by position (the n-th state n
times); and mean of the token embeddings, which uses no layer and excludes special tokens."""


@spec
class Embedding:
    """Settings of text embeddings. Several poolings are concatenated, as in sentence-transformers."""

    pooling: Annotated[tuple[Pooling, ...], NonEmpty()] = ("mean",)
    layer: int | None = None  # 0: input of the first layer; negative: from the end; None: the last
    normalise: bool = False  # to unit length
    length: Positive[int] | None = None  # maximum tokens of a text, special ones included; None: the model's maximum
    prompt: str = ""  # prefix of every text

    def __post_init__(self) -> None:
        if "static" in self.pooling and (len(self.pooling) > 1 or self.layer is not None):
            raise UsageError("the pooling 'static' stands alone and without a layer")


class TextEncoderOptions(TypedDict, total=False):
    """Options of text embeddings, documented in `Embedding`; one that is None follows the model's directory."""

    pooling: str | tuple[str, ...] | None  # several are joined by "+"
    layer: int | None
    normalise: bool | None
    length: int | None
    prompt: str | None


class TextEncoder(nn.Module):
    """Language model with pooling and optional dense layers."""

    def __init__(self, model: LanguageModel, config: Embedding, dense: nn.ModuleList | None = None) -> None:
        super().__init__()
        self.model, self.config = model, config
        self.dense = dense or nn.ModuleList()
        stack = model.spec.encoder or model.spec.decoder
        assert stack is not None
        depth = stack.depth
        if config.layer is not None and not -depth - 1 <= config.layer <= depth:
            raise UsageError(f"layer must be from 0 to {depth}, or from -1 to {-depth - 1}, got {config.layer}")

    @property
    def width(self) -> int:
        """Width of the vectors."""
        if len(self.dense):
            return int(self.dense[-1].out_features)  # type: ignore[arg-type]
        if "static" in self.config.pooling:
            return self.model.spec.table
        return len(self.config.pooling) * self.model.spec.width

    def forward(self, batch: Batch) -> Tensor:
        """Return a vector per cell `[C, W]`; those of padding and unused cells are meaningless."""
        states = compute_states(self.model, batch, self.config.layer)
        return self.finish(torch.cat([pool(states, batch, name) for name in self.config.pooling], dim=-1))

    def embed_static(self, tokens: Tensor, offsets: Tensor) -> Tensor:
        """Return the mean token embedding of each text `[S, W]`, zeros for texts without tokens."""
        table = self.model.tokens.weight
        if self.model.spec.characters is not None:
            table, tokens = self.model.embed_tokens(tokens), torch.arange(len(tokens), device=tokens.device)
        return self.finish(F.embedding_bag(tokens, table, offsets, mode="mean"))

    def finish(self, vectors: Tensor) -> Tensor:
        """Apply the dense layers and normalization."""
        for layer in self.dense:
            vectors = layer(vectors)
        return F.normalize(vectors, dim=-1) if self.config.normalise else vectors


def compute_states(model: LanguageModel, batch: Batch, layer: int | None = None) -> Tensor:
    """Return the states `[N, W]` of a layer, of the encoder if there is one. No head is run."""
    return _run_stack(model, batch).states if layer is None else compute_layers(model, batch)[layer]


def compute_layers(model: LanguageModel, batch: Batch) -> tuple[Tensor, ...]:
    """Return the states `[N, W]` of the embeddings and of every layer, of the encoder if there is one."""
    hidden = _run_stack(model, batch, hidden=True).hidden
    assert hidden is not None
    return hidden


def pool(states: Tensor, batch: Batch, pooling: Pooling) -> Tensor:
    """Pool states `[N, W]` to one vector per cell `[C, W]`."""
    if pooling == "static":
        raise UsageError("pooling 'static' has no states; use TextEncoder.embed_static")
    return pool_states(states, batch, "first" if pooling == "cls" else pooling)


def _run_stack(model: LanguageModel, batch: Batch, *, hidden: bool = False) -> StackOutput:
    if model.prompt is not None:
        raise UsageError("a model with a tuned prompt cannot embed; use its base model")
    stack = model.encoder if model.encoder is not None else model.decoder
    assert stack is not None
    flags = OutputFlags(hidden=hidden, backend=model.attention_backend)
    output: StackOutput = stack(model.embed_tokens(batch.tokens), model.add_language(batch), flags=flags)
    return output
