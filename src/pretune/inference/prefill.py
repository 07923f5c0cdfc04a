"""Prefill: all prompts in one forward pass, packed into rows without padding."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.inference_batches import pack_in_order
from pretune.data.sequences import Sequences, compute_offsets
from pretune.data.virtual_tokens import reserve
from pretune.models.model import LanguageModel
from pretune.nn.cache import KVCache


def count_prompt_slots(model: LanguageModel) -> int:
    """Count the positions of a tuned prompt before each sequence."""
    table = getattr(model.prompt, "table", None)
    return 0 if table is None else int(table.shape[0])


def get_length_limits(model: LanguageModel) -> tuple[int | None, int | None]:
    """Return the maximum tokens of the source and of the decoder (prompt and new tokens); None: no limit.

    Positions used by prefixes and tuned prompts are subtracted.
    """
    max_length = model.spec.max_length
    if max_length is None or model.decoder is None:
        return None, None
    decoder_limit = max_length - model.decoder.prefix_length
    if model.encoder is None:
        return None, decoder_limit - count_prompt_slots(model)
    return max_length - model.encoder.prefix_length - count_prompt_slots(model), decoder_limit


def prefill(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None,
    *,
    prefix: bool = False,
) -> tuple[KVCache, Tensor]:
    """Run the model on prompts; returns a cache with one row per prompt, and the logits `[P, V]` of the next token.

    With `prefix` attention is bidirectional within a prompt.
    """
    batch = pack_prompts(prompts, sources, count_prompt_slots(model), prefix=prefix)
    capacity = int(batch.positions.max()) + 1
    source_capacity = 0 if batch.source is None else int(batch.source.positions.max()) + 1
    cache = model.new_cache(len(prompts), capacity, source=source_capacity)
    logits = model(batch.to(model.tokens.weight.device), cache=cache).logits
    return cache, logits


def pack_prompts(
    prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None, slots: int, *, prefix: bool
) -> Batch:
    """Pack prompts and encoder sources into rows as long as the longest; the last token of each has a target."""
    flat = _flatten(prompts)
    targets = np.full(len(flat.tokens), IGNORE_INDEX)
    targets[flat.offsets[1:] - 1] = 0
    flat = Sequences(
        tokens=flat.tokens,
        offsets=flat.offsets,
        targets=targets,
        prefix=flat.lengths if prefix else None,
        source=None if sources is None else _flatten(sources),
    )
    if slots:
        flat = reserve(flat, slots)
    return pack_in_order(flat)


def _flatten(sequences: Sequence[Sequence[int]]) -> Sequences:
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    return Sequences(tokens=np.concatenate(arrays), offsets=compute_offsets(np.array([len(array) for array in arrays])))


def repeat_indices(count: int, times: int, device: torch.device) -> Tensor:
    """Return 0 0 1 1 2 2 …: the prompt of every row."""
    return torch.arange(count, device=device).repeat_interleave(times)
