"""Prompts: encoding, and prefill: all prompts in one forward pass, packed into rows without padding."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.layout import pack_in_order
from pretune.data.sequences import Sequences, compute_offsets, reserve
from pretune.inference.generation_config import GenerationTokens
from pretune.models.model import LanguageModel
from pretune.nn.block import raise_graph_limit
from pretune.nn.cache import KVCache
from pretune.nn.stack import TransformerStack
from pretune.text.tokenizer import Tokenizer

COMPILE_OPTIONS: dict[str, Any] = {"dynamic": True}
"""Options of compiled layers: one graph for prompts of all lengths."""
_COMPILED_CALLS: "WeakKeyDictionary[LanguageModel, dict[nn.Module, Any]]" = WeakKeyDictionary()
"""Compiled calls of the layers of each model; creating one takes longer than running it."""


def count_prompt_slots(model: LanguageModel) -> int:
    """Count the positions of a tuned prompt before each sequence."""
    table = getattr(model.prompt, "table", None)
    return 0 if table is None else int(table.shape[0])


def get_length_limits(model: LanguageModel) -> tuple[int | None, int | None]:
    """Return the maximum tokens of the encoder and of the decoder (prompt and new tokens); None: no limit.

    Positions used by prefixes and tuned prompts are subtracted.
    """
    max_length, slots = model.spec.max_length, count_prompt_slots(model)
    if max_length is None:
        return None, None
    encoder_limit = None if model.encoder is None else max_length - model.encoder.prefix_length - slots
    if model.decoder is None:
        return encoder_limit, None
    return encoder_limit, max_length - model.decoder.prefix_length - (slots if model.encoder is None else 0)


def prefill(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None,
    *,
    prefix: bool = False,
    torch_compile: bool = False,
) -> tuple[KVCache, Tensor]:
    """Run the model on prompts; returns a cache with one row per prompt, and the logits `[P, V]` of the next token.

    With `prefix` attention is bidirectional within a prompt. `torch_compile` compiles the layers: on a GPU a short
    prompt takes the time of launching its kernels one by one, which compiled layers have fewer of.
    """
    batch = pack_prompts(prompts, sources, count_prompt_slots(model), prefix=prefix)
    capacity = int(batch.positions.max()) + 1
    source_capacity = 0 if batch.source is None else int(batch.source.positions.max()) + 1
    cache = model.new_cache(len(prompts), capacity, source=source_capacity)
    with compile_layers(model) if torch_compile else nullcontext():
        logits = model(batch.to(model.tokens.weight.device), cache=cache).logits
    return cache, logits


@contextmanager
def compile_layers(model: LanguageModel) -> Iterator[None]:
    """Run the layers of a Transformer compiled, unless they are already; their graphs are kept for the next time.

    NOTE: not those of stacks with a position bias, whose kernels were not tried with dynamic shapes.
    """
    stacks = [stack for stack in (model.encoder, model.decoder) if isinstance(stack, TransformerStack)]
    stacks = [stack for stack in stacks if getattr(stack.spec.position, "mechanism", "input") in ("input", "rotation")]
    layers = [layer for stack in stacks for layer in {*stack} if layer._compiled_call_impl is None]
    raise_graph_limit()
    calls = _COMPILED_CALLS.setdefault(model, {})
    for layer in layers:
        if layer not in calls:
            calls[layer] = torch.compile(layer._call_impl, **COMPILE_OPTIONS)
        layer._compiled_call_impl = calls[layer]
    try:
        yield
    finally:
        for layer in layers:
            layer._compiled_call_impl = None


def pack_prompts(
    prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None, slots: int, *, prefix: bool
) -> Batch:
    """Pack prompts and encoder sources into rows as long as the longest; the last token of each has a target."""
    flat = _flatten(prompts)
    targets = np.full(len(flat.tokens), IGNORE_INDEX)
    targets[flat.offsets[1:] - 1] = 0
    source = None if sources is None else _flatten(sources)
    flat = replace(flat, targets=targets, prefix=flat.lengths if prefix else None, source=source)
    return pack_in_order(reserve(flat, slots))


def _flatten(sequences: Sequence[Sequence[int]]) -> Sequences:
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    return Sequences(tokens=np.concatenate(arrays), offsets=compute_offsets(np.array([len(array) for array in arrays])))


class EncodedPrompts(NamedTuple):
    """Token ids of prompts, special tokens included, and the total number of truncated tokens."""

    ids: list[list[int]]
    truncated_tokens: int


def encode_prompts(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    generation_tokens: GenerationTokens,
    *,
    max_new_tokens: int,
    truncate: bool,
) -> EncodedPrompts:
    """Encode texts, with room for `max_new_tokens`.

    A decoder's prompt starts with the tokenizer's prefix or, if there is none, with the model's start token; no suffix
    is added. An encoder's source gets prefix and suffix. Special tokens spelled out in a text are parsed. Texts that
    are too long raise a UsageError or, with `truncate`, are truncated: a decoder's prompt at the start, a source at the
    end.
    """
    if isinstance(texts, str):
        raise UsageError("prompts must be a list of texts, got a single text; use [text]")
    is_encoder_decoder = model.spec.is_encoder_decoder
    prefix, suffix = _get_special_tokens(tokenizer, generation_tokens, is_encoder_decoder=is_encoder_decoder)
    max_tokens = _compute_room(model, max_new_tokens, len(prefix) + len(suffix))
    ids, truncated_tokens = [], 0
    encoding = tokenizer.encode_batch(texts)
    for number, text in enumerate(texts):
        tokens = encoding[number].tolist()
        if not tokens:
            problem = "is empty" if not text else "has no tokens"
            raise UsageError(f"prompt {number + 1} {problem}; a model needs at least one token")
        if max_tokens is not None and len(tokens) > max_tokens:
            if not truncate:
                raise UsageError(_describe_too_long(number, len(tokens), max_new_tokens, max_tokens, model))
            truncated_tokens += len(tokens) - max_tokens
            tokens = tokens[:max_tokens] if is_encoder_decoder else tokens[-max_tokens:]
        ids.append([*prefix, *tokens, *suffix])
    context = model.spec.context
    total_tokens = max(map(len, ids), default=0) + (0 if is_encoder_decoder else max_new_tokens)
    if context is not None and total_tokens > context:
        log.warn(f"up to {total_tokens} tokens; the model was trained on {context}: the text beyond may be incoherent")
    return EncodedPrompts(ids, truncated_tokens)


def _get_special_tokens(
    tokenizer: Tokenizer, generation_tokens: GenerationTokens, *, is_encoder_decoder: bool
) -> tuple[list[int], list[int]]:
    """Return the special tokens before and after a text."""
    prefix, suffix = ([token for token, _ in part] for part in (tokenizer.template.prefix, tokenizer.template.suffix))
    if is_encoder_decoder:
        return prefix, suffix
    return prefix or ([] if generation_tokens.start is None else [generation_tokens.start]), []


def _compute_room(model: LanguageModel, max_new_tokens: int, special_count: int) -> int | None:
    """Return the maximum tokens of a text; None: no limit."""
    source_limit, decoder_limit = get_length_limits(model)
    if decoder_limit is not None and max_new_tokens >= decoder_limit:
        raise UsageError(f"max_new_tokens must be < {decoder_limit}, the model's limit, got {max_new_tokens}")
    if model.spec.is_encoder_decoder:
        return None if source_limit is None else max(source_limit - special_count, 1)
    return None if decoder_limit is None else max(decoder_limit - max_new_tokens - special_count, 1)


def _describe_too_long(number: int, tokens: int, max_new_tokens: int, room: int, model: LanguageModel) -> str:
    suffix = "" if model.spec.is_encoder_decoder else f" with {max_new_tokens} new ones"
    problem = f"prompt {number + 1} has {tokens} tokens; the model's limit is {room}{suffix}"
    remedy = "" if model.spec.is_encoder_decoder or max_new_tokens == 1 else "lower --max-new-tokens, "
    return f"{problem}; {remedy}shorten it, or use --truncate"


def find_token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token by its spelling."""
    token_id = tokenizer.raw.token_to_id(token)
    if token_id is None:
        raise UsageError(f"unknown token '{token}': not in the vocabulary of the model")
    return int(token_id)
