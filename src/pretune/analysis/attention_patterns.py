"""Patterns of attention heads: the mean attention to each, the entropy, and the class of a head.

Patterns of Clark et al. (2019, section 3), Kovaleva et al. (2019) and Vig (2019): a query attends to the previous
token, the next, itself, the first token or a separator, punctuation, or other tokens of the same word. A head that has
none of them and spreads its attention is *broad*.

    statistics = HeadStatistics(layers=1, heads=2)
    statistics.add(0, weights, build_patterns(roles, roles), visible)      # [H, n, m]; any number of sequences
    statistics.means["previous"], statistics.entropy                       # [layers, heads] over the queries

Only sums are kept, in double precision: the result does not depend on how sequences are divided into batches.
Queries are the ordinary tokens that see at least two keys. A pattern counts where the query sees a key of it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pretune.data.sequences import Bools, Ints

PATTERNS = ("previous", "next", "self", "first/separator", "punctuation", "same word")
"""Patterns that are classes of heads."""
MEASURED_PATTERNS = (*PATTERNS, "first", "separator")
"""All measured patterns; the last two are parts of the fourth."""
BROAD_CLASS, MIXED_CLASS = "broad", "mixed"
CLASSES = (BROAD_CLASS, *PATTERNS, MIXED_CLASS)
LETTERS = dict(zip(CLASSES, "BPNSFUWM", strict=True))
"""A letter for each class: U is punctuation, W the same word, M mixed."""
PATTERN_THRESHOLD = 0.3
"""Minimum attention to a pattern beyond that of uniform attention (Clark et al., 2019, report heads above one half)."""
BROAD_THRESHOLD = 0.8
"""Minimum entropy of a broad head, relative to uniform attention."""

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TokenRoles:
    """Roles of the n tokens of a sequence. `index` counts the tokens of the text; special ones before it are negative,
    so that both sides of a cross-attention have the same index for the same token of the text.
    """

    special: Bools
    punctuation: Bools
    words: Ints  # the same number for the same word, ignoring case; -1: no word
    index: Ints


def build_patterns(queries: TokenRoles, keys: TokenRoles) -> Bools:
    """Return the keys of each pattern `[P, n, m]` for every query, in the order of `MEASURED_PATTERNS`."""
    distance = keys.index[None, :] - queries.index[:, None]
    is_first = np.zeros_like(distance, dtype=np.bool_)
    is_first[:, 0] = True
    is_separator = np.broadcast_to(keys.special, distance.shape) & ~is_first
    is_same_word = (queries.words[:, None] == keys.words[None, :]) & (queries.words >= 0)[:, None] & (distance != 0)
    return np.stack(
        [
            distance == -1,
            distance == 1,
            distance == 0,
            is_first | is_separator,
            np.broadcast_to(keys.punctuation, distance.shape) & (distance != 0),
            is_same_word,
            is_first,
            is_separator,
        ]
    )


def build_visible(n: int, m: int, *, causal: bool, window: int | None) -> Bools:
    """Return the keys `[n, m]` that each query of a sequence may attend to."""
    distance = np.arange(m)[None, :] - np.arange(n)[:, None]
    visible = distance <= 0 if causal else np.ones((n, m), dtype=np.bool_)
    return visible if window is None else visible & (np.abs(distance) < window)


@dataclass(slots=True)
class HeadStatistics:
    """Sums over queries of the attention to each pattern and of the entropy, of one part of a model."""

    layers: int
    heads: int
    sums: Doubles = field(init=False)  # [L, H, P] attention
    uniform_sums: Doubles = field(init=False)  # [L, P] of uniform attention
    counts: Doubles = field(init=False)  # [L, P] queries that see a key of the pattern
    entropy_sums: Doubles = field(init=False)  # [L, H] relative to that of uniform attention
    queries: Doubles = field(init=False)  # [L]

    def __post_init__(self) -> None:
        patterns = len(MEASURED_PATTERNS)
        self.sums = np.zeros((self.layers, self.heads, patterns))
        self.uniform_sums, self.counts = np.zeros((self.layers, patterns)), np.zeros((self.layers, patterns))
        self.entropy_sums, self.queries = np.zeros((self.layers, self.heads)), np.zeros(self.layers)

    def add(self, layer: int, weights: Tensor, patterns: Bools, visible: Bools, is_query: Bools) -> None:
        """Add the attention `[H, n, m]` of one sequence in a layer; `is_query` `[n]` are the queries that count.

        Learned keys (a prefix) are not among the m keys; attention to them belongs to no pattern, and the entropy is
        that of the others.
        """
        visible_counts = visible.sum(-1)  # [n]
        is_counted = is_query & (visible_counts >= 2)
        if not is_counted.any():
            return
        keys = patterns[:, is_counted] & visible[is_counted]  # [P, q, m]
        counts = visible_counts[is_counted]
        has_key = keys.any(-1)  # [P, q]
        rows = weights[:, torch.from_numpy(np.flatnonzero(is_counted)).to(weights.device)].float()  # [H, q, m]
        mask = torch.from_numpy(keys.astype(np.float32)).to(rows.device)
        self.sums[layer] += torch.einsum("hqm,pqm->hp", rows, mask).double().cpu().numpy()
        self.uniform_sums[layer] += (keys.sum(-1) / counts).sum(-1)
        self.counts[layer] += has_key.sum(-1)
        shares = rows / rows.sum(-1, keepdim=True).clamp(min=1e-12)
        entropy = torch.special.entr(shares).sum(-1).double().cpu().numpy() / np.log(counts)
        self.entropy_sums[layer] += entropy.sum(-1)
        self.queries[layer] += len(counts)

    @property
    def means(self) -> dict[str, Doubles]:
        """Mean attention to each pattern `[L, H]`, over the queries that see a key of it; 0 where none does."""
        return self._average(self.sums, self.counts[:, None, :])

    @property
    def uniform(self) -> dict[str, Doubles]:
        """Attention that uniform weights would give each pattern `[L]`."""
        return self._average(self.uniform_sums, self.counts)

    @property
    def entropy(self) -> Doubles:
        """Mean entropy `[L, H]` relative to uniform attention: 1 is uniform, 0 a single key."""
        return self.entropy_sums / np.maximum(self.queries, 1)[:, None]

    def classify(self, threshold: float, broad_threshold: float) -> NDArray[Any]:
        """Return the classes of the heads `[L, H]`."""
        uniform = {name: shares[:, None] for name, shares in self.uniform.items()}
        return classify_heads(self.means, uniform, self.entropy, threshold=threshold, broad_threshold=broad_threshold)

    @staticmethod
    def _average(sums: Doubles, counts: Doubles) -> dict[str, Doubles]:
        means = sums / np.maximum(counts, 1)
        return {name: means[..., place] for place, name in enumerate(MEASURED_PATTERNS)}


def compute_excess(means: ArrayLike, uniform: ArrayLike) -> Doubles:
    """Return the attention to a pattern beyond that of uniform attention, as a share of what it could be.

    >>> compute_excess([0.75, 0.2, 1.0], [0.5, 0.2, 1.0]).tolist()
    [0.5, 0.0, 0.0]
    """
    rest = 1 - np.asarray(uniform, dtype=np.float64)
    return np.where(rest > 0, (means - np.asarray(uniform)) / np.where(rest > 0, rest, 1.0), 0.0)


def classify_heads(
    means: Mapping[str, ArrayLike],
    uniform: Mapping[str, ArrayLike],
    entropy: ArrayLike,
    *,
    threshold: float = PATTERN_THRESHOLD,
    broad_threshold: float = BROAD_THRESHOLD,
) -> NDArray[Any]:
    """Return the classes of heads: the pattern with the most attention beyond uniform if that is at least `threshold`;
    else "broad" if the relative entropy is at least `broad_threshold`; else "mixed".

    >>> uniform = {"previous": 0.1, "self": 0.1}
    >>> classify_heads({"previous": [0.8, 0.2], "self": [0.1, 0.1]}, uniform, [0.3, 0.9]).tolist()
    ['previous', 'broad']
    """
    names = [name for name in PATTERNS if name in means]
    excess = np.stack([compute_excess(means[name], uniform[name]) for name in names])
    fallback = np.where(np.asarray(entropy) >= broad_threshold, BROAD_CLASS, MIXED_CLASS)
    return np.where(excess.max(0) >= threshold, np.array(names, dtype=object)[excess.argmax(0)], fallback)


def count_classes(classes: NDArray[Any]) -> dict[str, float]:
    """Return the share of heads in each class, in the order of `CLASSES`.

    >>> count_classes(np.array([["broad", "next"], ["next", "next"]]))["next"]
    0.75
    """
    return {name: float(math.fsum((classes == name).ravel()) / max(classes.size, 1)) for name in CLASSES}
