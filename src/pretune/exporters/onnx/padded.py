"""Models without cache over padded inputs: states, logits and embeddings, as users of ONNX call them.

Our models take ragged batches; here a row of `input_ids` is a sequence, and `attention_mask` marks its tokens. Padding
may be on either side. Legend: B rows, T columns, W width, K classes.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.heads.base import SequenceHead, TokenHead, find_start_token
from pretune.adaptation.heads.sequence import Choice
from pretune.adaptation.heads.token import Span
from pretune.core.types import Batch
from pretune.inference.pooling import TextEncoder
from pretune.models.model import LanguageModel
from pretune.nn.heads import PoolingMode
from pretune.nn.stack import OutputFlags

FLAGS = OutputFlags(backend="rows")
"""The attention backend that is one masked product per row."""


def make_batch(tokens: Tensor, attention_mask: Tensor, segments: Tensor | None = None) -> Batch:
    """Return the batch of padded rows `[B, T]`: a row is a sequence, and its padding is filler."""
    rows, length = tokens.shape
    row = torch.arange(rows, device=tokens.device)
    return Batch(
        tokens=tokens.flatten(),
        offsets=(torch.arange(rows + 1, device=tokens.device) * length).to(torch.int32),
        sequence=torch.where(attention_mask > 0, row[:, None], -1).flatten(),
        positions=number_tokens(attention_mask).flatten(),
        rows=rows,
        segments=None if segments is None else segments.flatten(),
    )


def number_tokens(attention_mask: Tensor) -> Tensor:
    """Return the position of each token in its sequence `[B, T]`; 0 for padding before it."""
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)


def compute_states(model: LanguageModel, batch: Batch) -> Tensor:
    """Return the states `[B T, W]` of an encoder or decoder; of an encoder-decoder those of the encoder."""
    stack = model.encoder if model.encoder is not None else model.decoder
    assert stack is not None
    output = stack(model.embed_tokens(batch.tokens), model.add_language(batch), flags=FLAGS)
    states: Tensor = output.states
    return states


def pool_rows(states: Tensor, attention_mask: Tensor, mode: PoolingMode) -> Tensor:
    """Pool states `[B, T, W]` into one vector per row `[B, W]`, as `pretune.nn.heads.pool_states` does."""
    is_token, order = attention_mask > 0, attention_mask.long().cumsum(1)  # the n-th token is number n
    if mode == "max":
        return states.masked_fill(~is_token[..., None], torch.finfo(states.dtype).min).amax(1)
    count = order[:, -1:]
    if mode == "first":
        weights = (is_token & (order == 1)).to(states.dtype)
    elif mode == "last":
        weights = (is_token & (order == count)).to(states.dtype)
    else:
        size = count.clamp(min=1).to(states.dtype)
        weights = is_token.to(states.dtype) / (size.sqrt() if mode == "mean_sqrt" else size)
        if mode == "weighted":
            weights = weights * order.to(states.dtype) * 2 / (size + 1)
    return (weights[:, None] @ states).squeeze(1)


class PaddedLanguageModel(nn.Module):
    """An encoder with its vocabulary head (`logits`), or without one (`last_hidden_state`); a decoder without one."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model
        self.output_names = ("last_hidden_state",) if model.head is None else ("logits",)

    def forward(self, tokens: Tensor, attention_mask: Tensor, segments: Tensor | None = None) -> tuple[Tensor]:
        model, batch = self.model, make_batch(tokens, attention_mask, segments)
        if model.head is None:
            return (_split_rows(compute_states(model, batch), tokens),)
        assert model.encoder is not None
        output = model.encoder(model.embed_tokens(batch.tokens), model.add_language(batch), flags=FLAGS)
        logits = model.logits(model.decode_masks(output, batch))
        assert logits is not None
        return (_split_rows(logits, tokens),)


class PaddedEncoder(nn.Module):
    """The encoder of an encoder-decoder (`last_hidden_state`)."""

    output_names = ("last_hidden_state",)

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, attention_mask: Tensor, segments: Tensor | None = None) -> tuple[Tensor]:
        return (_split_rows(compute_states(self.model, make_batch(tokens, attention_mask, segments)), tokens),)


class PaddedTextEncoder(nn.Module):
    """A model that embeds texts: its token states, and the pooled vector after dense layers and normalization."""

    output_names = ("last_hidden_state", "sentence_embedding")

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: Tensor, attention_mask: Tensor, segments: Tensor | None = None) -> tuple[Tensor, Tensor]:
        states = compute_states(self.encoder.model, make_batch(tokens, attention_mask, segments))
        rows = _split_rows(states, tokens)
        modes: list[PoolingMode] = ["first" if name == "cls" else name for name in self.encoder.config.pooling]  # type: ignore[misc]
        return rows, self.encoder.finish(torch.cat([pool_rows(rows, attention_mask, mode) for mode in modes], dim=-1))


class PaddedModelWithHead(nn.Module):
    """A model with a task head: `logits` `[B, K]` or `[B, T, K]`; of spans `start_logits` and `end_logits` `[B, T]`.

    The options of a multiple choice are a dimension of the inputs `[B, C, T]`, with a logit each `[B, C]`. An
    encoder-decoder has the text on both sides.
    """

    def __init__(self, model: ModelWithHead) -> None:
        super().__init__()
        self.model = model
        self.has_options = isinstance(model.spec, Choice)
        self.output_names = ("start_logits", "end_logits") if isinstance(model.spec, Span) else ("logits",)

    def forward(self, tokens: Tensor, attention_mask: Tensor, segments: Tensor | None = None) -> tuple[Tensor, ...]:
        shape, head = tokens.shape, self.model.head
        if self.has_options:
            tokens, attention_mask = tokens.flatten(0, 1), attention_mask.flatten(0, 1)
            segments = None if segments is None else segments.flatten(0, 1)
        states = self._compute_states(tokens, attention_mask, segments)
        if isinstance(head, TokenHead):
            logits = _split_rows(head(states), tokens)
            return logits.unbind(-1) if isinstance(self.model.spec, Span) else (logits,)
        assert isinstance(head, SequenceHead)
        rows = _split_rows(states, tokens)
        logits = head.classify(torch.cat([pool_rows(rows, attention_mask, mode) for mode in head.places], dim=-1))
        return (logits.view(shape[0], shape[1]) if self.has_options else logits,)

    def _compute_states(self, tokens: Tensor, attention_mask: Tensor, segments: Tensor | None) -> Tensor:
        model = self.model.model
        batch = make_batch(tokens, attention_mask, segments)
        states = compute_states(model, batch)
        if not model.spec.is_encoder_decoder:
            return states
        assert model.decoder is not None
        is_first = (attention_mask > 0) & (attention_mask.long().cumsum(1) == 1)
        target_tokens = torch.where(is_first, find_start_token(model.spec), tokens.roll(1, 1))
        target = replace(batch, tokens=target_tokens.flatten(), segments=None, source=batch)
        out: Tensor = model.decoder(model.embed_tokens(target.tokens), target, states, flags=FLAGS).states
        return out


def _split_rows(values: Tensor, tokens: Tensor) -> Tensor:
    """Return values `[B T, …]` as `[B, T, …]`."""
    return values.view(tokens.shape[0], tokens.shape[1], -1)
