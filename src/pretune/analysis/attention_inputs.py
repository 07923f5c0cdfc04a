"""Inputs of attention analyses: texts as batches with the roles of their tokens, and the weights of every part.

The parts of a model are "encoder" and "decoder" (self-attention) and "cross" (decoder to encoder).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch

from pretune.analysis.attention_patterns import TokenRoles
from pretune.analysis.words import find_punctuation, find_words
from pretune.core.errors import UsageError
from pretune.core.types import Output
from pretune.data.layout import pack_batches
from pretune.data.sequences import Sequences, compute_offsets
from pretune.inference.embed import encode_texts
from pretune.inference.text_model import get_tokenizer
from pretune.models.model import LanguageModel
from pretune.nn.stack import Stack
from pretune.nn.two_stream import AttentionStack
from pretune.text.tokenizer import Tokenizer

Part = Literal["encoder", "decoder", "cross"]
MAX_WEIGHT_BYTES = 2**28
"""Approximate size of the attention weights of a batch, which bounds the memory."""


class EncodedChunk(NamedTuple):
    """Tokenized texts, the input of the first stack and of the decoder of an encoder-decoder, and roles of tokens."""

    source: Sequences
    target: Sequences | None
    source_roles: list[TokenRoles]
    target_roles: list[TokenRoles]
    truncated_texts: int


def list_parts(model: LanguageModel) -> dict[Part, AttentionStack]:
    """Return the stacks with attention weights by part."""
    spec = model.spec
    parts: dict[Part, AttentionStack] = {}
    if isinstance(spec.encoder, AttentionStack):
        parts["encoder"] = spec.encoder
    if isinstance(spec.decoder, Stack):
        parts["decoder"] = spec.decoder
        if spec.is_encoder_decoder:
            parts["cross"] = spec.decoder
    if not parts:
        raise UsageError(f"a recurrent model ('{spec.family}') has no attention weights; analyze its layers instead")
    return parts


def count_heads(stack: AttentionStack, *, is_cross: bool) -> int:
    """Return the number of heads of every layer."""
    attentions = [layer.cross if is_cross and layer.cross is not None else layer.attention for layer in stack.layers]
    counts = {attention.heads for attention in attentions}
    if len(counts) > 1:
        raise UsageError(f"layers with different numbers of heads ({sorted(counts)}) cannot be analyzed")
    return counts.pop()


def encode_chunk(model: LanguageModel, texts: Sequence[str], length: int) -> EncodedChunk:
    """Tokenize texts, truncated to `length`; the decoder of an encoder-decoder reads the same after a start token."""
    tokenizer = get_tokenizer(model)
    stacks = [stack for stack in (model.encoder, model.decoder) if stack is not None]
    start_tokens = int(model.spec.is_encoder_decoder)
    positions = model.spec.max_length
    free_positions = None if positions is None else positions - max(stack.prefix_length for stack in stacks)
    limits = [length, free_positions, tokenizer.length]
    room = min(limit for limit in limits if limit is not None) - start_tokens
    encoded_texts = encode_texts(tokenizer, texts, room)
    sequences = encoded_texts.sequences
    roles = _find_roles(tokenizer, texts, sequences)
    if not model.spec.is_encoder_decoder:
        return EncodedChunk(sequences, None, roles, [], encoded_texts.truncated_texts)
    start = model.spec.special.start
    if start is None:
        raise UsageError("the model has no start token for its decoder; set decoder_start_token_id in config.json")
    last_special = int(bool(tokenizer.template.suffix))  # the decoder reads the text shifted by the start token
    pieces = [tokens[: len(tokens) - last_special] for tokens in np.split(sequences.tokens, sequences.offsets[1:-1])]
    lengths = np.array([len(piece) + 1 for piece in pieces], dtype=np.int64)
    target = Sequences(
        tokens=np.concatenate([np.append(start, piece) for piece in pieces]), offsets=compute_offsets(lengths)
    )
    target_roles = [_shift_roles(part, len(part.index) - last_special) for part in roles]
    return EncodedChunk(sequences, target, roles, target_roles, encoded_texts.truncated_texts)


def _find_roles(tokenizer: Tokenizer, texts: Sequence[str], sequences: Sequences) -> list[TokenRoles]:
    """Return the roles of the tokens of every sequence."""
    words = find_words(tokenizer, texts, sequences.lengths)
    spellings = [texts[text][slice(*span)].lower() for text, span in zip(words.text_ids, words.spans, strict=True)]
    _, numbers = np.unique(np.array(spellings, dtype=object), return_inverse=True)
    word_ids = np.where(words.owner >= 0, numbers[words.owner] if len(numbers) else -1, -1)
    assert sequences.special is not None
    punctuation = find_punctuation(tokenizer, sequences.tokens) & ~sequences.special
    prefix_tokens = len(tokenizer.template.prefix)
    bounds = zip(sequences.offsets[:-1].tolist(), sequences.offsets[1:].tolist(), strict=True)
    return [
        TokenRoles(
            special=sequences.special[start:end],
            punctuation=punctuation[start:end],
            words=word_ids[start:end],
            index=np.arange(end - start) - prefix_tokens,
        )
        for start, end in bounds
    ]


def _shift_roles(roles: TokenRoles, count: int) -> TokenRoles:
    """Return the roles after a start token, of the first `count` tokens."""
    return TokenRoles(
        special=np.append(True, roles.special[:count]),
        punctuation=np.append(False, roles.punctuation[:count]),
        words=np.append(-1, roles.words[:count]),
        index=np.append(roles.index[0] - 1 if count else -1, roles.index[:count]),
    )


def run_batches(model: LanguageModel, chunk: EncodedChunk) -> Iterator[tuple[list[int], Output]]:
    """Yield the sequences of each batch, and the outputs of the model with attention weights."""
    device = model.tokens.weight.device
    sequences = chunk.source if chunk.target is None else replace(chunk.target, source=chunk.source)
    stacks = [stack for stack in (model.spec.encoder, model.spec.decoder) if isinstance(stack, AttentionStack)]
    longest = max(64, int(chunk.source.lengths.max()))
    token_bytes = 4 * longest * sum(stack.depth * stack.blocks[0].attention.heads for stack in stacks)
    for part in pack_batches(sequences, tokens=max(64, MAX_WEIGHT_BYTES // token_bytes), device=device.type):
        yield part.indices.tolist(), model(part.batch.to(device), attention=True)


def get_weights(output: Output, part: Part) -> tuple[tuple[torch.Tensor, ...], ...]:
    """Return the weights of a part, per layer and sequence."""
    side = output.source if part == "encoder" and output.source is not None else output
    weights = side.cross if part == "cross" else side.attention
    assert weights is not None
    return weights
