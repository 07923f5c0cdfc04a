"""Learned keys and values before each sequence (prefix tuning; Li and Liang, 2021): a slot of attention.

They act like tokens: positions of the text start after them, distances are counted to their positions, and a window
may exclude them. All sequences of a row share them: they are the first columns of its keys. Legend: P prefix keys, K
key-value heads, D head width.
"""

from typing import Protocol

import torch
from torch import Tensor

from pretune.nn.cache import LayerCache


class KVPrefix(Protocol):
    """A module without inputs that returns prefix keys and values."""

    count: int

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Return keys (after rotation) and values: `[P, K, D]` each."""


def prepend_prefix(prefix: KVPrefix, k: Tensor, v: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Prepend the prefix to keys and values `[rows R, K, D]`: `[rows (P + R), K, D]`."""
    if not prefix.count:
        return k, v
    keys, values = prefix()
    return _prepend_rows(keys, k, rows), _prepend_rows(values, v, rows)


def _prepend_rows(prefix: Tensor, text: Tensor, rows: int) -> Tensor:
    by_row = text.view(rows, -1, *text.shape[1:])
    return torch.cat((prefix.to(text.dtype).expand(rows, -1, -1, -1), by_row), dim=1).flatten(0, 1)


@torch.no_grad()
def fill_prefix_cache(prefix: KVPrefix, cache: LayerCache) -> LayerCache:
    """Return an empty cache with the prefix in its first columns."""
    stores = [
        torch.cat((first.transpose(0, 1).to(store.dtype).expand(store.shape[0], -1, -1, -1), store), dim=2)
        for first, store in zip(prefix(), cache.store, strict=True)
    ]
    return LayerCache(store=(stores[0], stores[1]))
