"""Reading the prompts: all in one pass, packed into rows without padding, each once however often it is used."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pretune.core.types import IGNORE, Batch
from pretune.data.batch_shape import Shape
from pretune.data.layout import lay_out
from pretune.data.ragged import Ints, bounds
from pretune.data.sequences import Sequences
from pretune.data.virtual_tokens import reserve
from pretune.models.model import LanguageModel
from pretune.nn.cache import Cache


def slots_of(model: LanguageModel) -> int:
    """Positions that a tuned prompt takes before each sequence that is read first."""
    table = getattr(model.prompt, "table", None)
    return 0 if table is None else int(table.shape[0])


def limits(model: LanguageModel) -> tuple[int | None, int | None]:
    """How many tokens of a source, and of what the decoder reads and writes, the model's positions allow; None: any.

    What a method has put before them is taken off.
    """
    longest = model.spec.longest
    if longest is None or model.decoder is None:
        return None, None
    own = longest - model.decoder.ahead
    if model.encoder is None:
        return None, own - slots_of(model)
    return longest - model.encoder.ahead - slots_of(model), own


def prefill(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None,
    *,
    prefix: bool = False,
) -> tuple[Cache, Tensor]:
    """A cache with the prompts in it, one row each, and the logits `[P, V]` for what comes next.

    With `prefix` a prompt sees all of itself.
    """
    batch = packed(prompts, sources, slots_of(model), prefix=prefix)
    longest = int(batch.positions.max()) + 1
    source = 0 if batch.source is None else int(batch.source.positions.max()) + 1
    cache = model.new_cache(len(prompts), longest, source=source)
    logits = model(batch.to(model.tokens.weight.device), cache=cache).logits
    return cache, logits


def packed(
    prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None, slots: int, *, prefix: bool
) -> Batch:
    """Prompts, and what the encoder reads with them, in rows as long as the longest; the last token has a target."""
    flat = _flat(prompts)
    targets = np.full(len(flat.tokens), IGNORE)
    targets[flat.offsets[1:] - 1] = 0
    flat = Sequences(
        tokens=flat.tokens,
        offsets=flat.offsets,
        targets=targets,
        prefix=flat.lengths if prefix else None,
        source=None if sources is None else _flat(sources),
    )
    if slots:
        flat = reserve(flat, slots)
    if flat.source is None:
        row, shape = rows_of(flat.lengths)
        return lay_out(flat, row, Shape(rows=int(row[-1]) + 1, length=shape))
    row, source = rows_of(flat.source.lengths)
    length = int(np.bincount(row, weights=flat.lengths).max())
    return lay_out(flat, row, Shape(rows=int(row[-1]) + 1, length=length, source=source))


def _flat(sequences: Sequence[Sequence[int]]) -> Sequences:
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    return Sequences(tokens=np.concatenate(arrays), offsets=bounds(np.array([len(one) for one in arrays])))


def rows_of(lengths: Ints) -> tuple[Ints, int]:
    """The row of each sequence, in order: the one before's where there is room in it; and the length of a row."""
    room, row, used, rows = int(lengths.max()), 0, 0, []
    for length in lengths.tolist():
        if used + length > room:
            row, used = row + 1, 0
        used += length
        rows.append(row)
    return np.asarray(rows, dtype=np.int64), room


def repeated(count: int, times: int, device: torch.device) -> Tensor:
    """0 0 1 1 2 2 …: the prompt of every row."""
    return torch.arange(count, device=device).repeat_interleave(times)
