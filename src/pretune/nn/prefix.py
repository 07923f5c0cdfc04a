"""Learned keys and values that stand before each sequence, as so many tokens would: a slot of attention.

Positions of the text start after them, distances to them count as to tokens there, and a window passes them by in its
time. All sequences of a row share them, so they are the first columns of its keys. Legend: P of them, K key heads, D
width of a head.
"""

from typing import Protocol

import torch
from torch import Tensor

from pretune.nn.cache import LayerCache


class KVPrefix(Protocol):
    """What fills the slot: a module without inputs."""

    count: int

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Keys, as they are after any rotation, and values: `[P, K, D]` each."""


def prepend_prefix(prefix: KVPrefix, k: Tensor, v: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Keys and values `[rows R, K, D]` of the text as `[rows (P + R), K, D]`."""
    if not prefix.count:
        return k, v
    keys, values = prefix()
    return _prepend_rows(keys, k, rows), _prepend_rows(values, v, rows)


def _prepend_rows(prefix: Tensor, text: Tensor, rows: int) -> Tensor:
    by_row = text.view(rows, -1, *text.shape[1:])
    return torch.cat((prefix.to(text.dtype).expand(rows, -1, -1, -1), by_row), dim=1).flatten(0, 1)


@torch.no_grad()
def fill_prefix_cache(prefix: KVPrefix, cache: LayerCache) -> LayerCache:
    """An empty cache with what is learned in its first columns."""
    stores = [
        torch.cat((first.transpose(0, 1).to(store.dtype).expand(store.shape[0], -1, -1, -1), store), dim=2)
        for first, store in zip(prefix(), cache.store, strict=True)
    ]
    return LayerCache(store=(stores[0], stores[1]))
