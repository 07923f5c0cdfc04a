"""Reading the prompts: all in one pass, packed into rows without padding, each once however often it is used."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.batch_shape import BatchShape
from pretune.data.layout import lay_out
from pretune.data.ragged import Ints, compute_offsets
from pretune.data.sequences import Sequences
from pretune.data.virtual_tokens import reserve
from pretune.models.model import LanguageModel
from pretune.nn.cache import KVCache


def count_prompt_slots(model: LanguageModel) -> int:
    """Positions that a tuned prompt takes before each sequence that is read first."""
    table = getattr(model.prompt, "table", None)
    return 0 if table is None else int(table.shape[0])


def get_length_limits(model: LanguageModel) -> tuple[int | None, int | None]:
    """How many tokens of a source, and of what the decoder reads and writes, the model's positions allow; None: any.

    What a method has put before them is taken off.
    """
    longest = model.spec.max_length
    if longest is None or model.decoder is None:
        return None, None
    own = longest - model.decoder.prefix_length
    if model.encoder is None:
        return None, own - count_prompt_slots(model)
    return longest - model.encoder.prefix_length - count_prompt_slots(model), own


def prefill(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None,
    *,
    prefix: bool = False,
) -> tuple[KVCache, Tensor]:
    """A cache with the prompts in it, one row each, and the logits `[P, V]` for what comes next.

    With `prefix` a prompt sees all of itself.
    """
    batch = pack_prompts(prompts, sources, count_prompt_slots(model), prefix=prefix)
    longest = int(batch.positions.max()) + 1
    source = 0 if batch.source is None else int(batch.source.positions.max()) + 1
    cache = model.new_cache(len(prompts), longest, source=source)
    logits = model(batch.to(model.tokens.weight.device), cache=cache).logits
    return cache, logits


def pack_prompts(
    prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None, slots: int, *, prefix: bool
) -> Batch:
    """Prompts, and what the encoder reads with them, in rows as long as the longest; the last token has a target."""
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
    if flat.source is None:
        row, shape = assign_rows(flat.lengths)
        return lay_out(flat, row, BatchShape(rows=int(row[-1]) + 1, length=shape))
    row, source = assign_rows(flat.source.lengths)
    length = int(np.bincount(row, weights=flat.lengths).max())
    return lay_out(flat, row, BatchShape(rows=int(row[-1]) + 1, length=length, source=source))


def _flatten(sequences: Sequence[Sequence[int]]) -> Sequences:
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    return Sequences(tokens=np.concatenate(arrays), offsets=compute_offsets(np.array([len(one) for one in arrays])))


def assign_rows(lengths: Ints) -> tuple[Ints, int]:
    """The row of each sequence, in order: the one before's where there is room in it; and the length of a row."""
    room, row, used, rows = int(lengths.max()), 0, 0, []
    for length in lengths.tolist():
        if used + length > room:
            row, used = row + 1, 0
        used += length
        rows.append(row)
    return np.asarray(rows, dtype=np.int64), room


def repeat_indices(count: int, times: int, device: torch.device) -> Tensor:
    """0 0 1 1 2 2 …: the prompt of every row."""
    return torch.arange(count, device=device).repeat_interleave(times)
