"""Word2vec (Mikolov et al., 2013): skip-gram and CBOW with negative sampling, in batches of matrix products.

A batch is a stretch of running text. The words at distance d from each other are two shifted views of it, so a window
is a handful of products of whole arrays. The words drawn as negatives are shared by `GROUP_SIZE` neighbouring words (Ji et
al., 2016), each counted so often that the expectation is that of the paper: `negatives` for every positive. Updates
that a batch has for one word are added up, but at most `MAX_OCCURRENCES` occurrences' worth: a frequent word would otherwise leap.

    "the cat sat on a mat", window 2, centre "sat" with 1 drawn:      cat -> sat    sat <- on
    skip-gram:  sat says cat, sat says on          CBOW:  mean(cat, on) says sat
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pretune.adaptation.static.word_ids import WordCorpus
from pretune.core.config import spec
from pretune.core.errors import DivergedError
from pretune.core.seed import make_generator
from pretune.data.ragged import Ints
from pretune.inference.word_vectors import WordVectors

BATCH_SIZE, GROUP_SIZE, NEGATIVES_PER_GROUP, MAX_OCCURRENCES = 2048, 32, 32, 4.0
"""Words in a batch at most, words that share their negatives, how many those are, and occurrences that add up."""

_CHUNK_WORDS = 1 << 16  # words that are drawn from at once

Floats = NDArray[np.float64]

NeighborMasks = list[tuple[int, Tensor, Tensor]]
"""For every distance d: which words have the word d ahead in their window, and which of those them `[n - d, 1]`."""


DEFAULT_RATES = {"skip_gram": 0.05, "cbow": 0.1}
"""At the start; a mean of several words is moved less by each of them."""


@spec
class Word2Vec:
    """Vectors that tell a word's neighbours from other words.

    The defaults are gensim's but for the rate, which is higher: sums over a batch are damped (`MAX_OCCURRENCES`).
    """

    mode: Literal["skip_gram", "cbow"] = "skip_gram"
    width: int = 100
    window: int = 5  # the most; each word draws its own, from 1 on
    negatives: int = 5
    subsample: float | None = 1e-3  # the share from which on a word is left out now and then
    epochs: int = 5
    rate: float | None = None  # falls to 0 along a line; None: 0.05, and 0.1 for CBOW
    least: int = 5  # words met fewer times are left out
    most: int | None = None  # how many words have a vector

    def train(self, texts: Iterable[str] | Iterable[list[str]], *, seed: int = 0) -> WordVectors:
        """Vectors of the words of texts, or of lists of words. The same seed, texts and threads give the same bytes."""
        return self.fit(WordCorpus.from_texts(texts, min_count=self.least, max_words=self.most), seed=seed)

    def fit(self, words: WordCorpus, *, seed: int = 0) -> WordVectors:
        """Vectors from words that are numbered already."""
        tables, top = (
            _Tables.create(len(words), self.width, make_generator(seed, 0)),
            self.rate or DEFAULT_RATES[self.mode],
        )
        keep = _compute_keep_probabilities(words.counts, self.subsample)
        noise = np.cumsum(words.counts**0.75)
        size = min(BATCH_SIZE, max(256, 2 * len(words)))  # of few words all are frequent: smaller batches
        read, total = 0, max(len(words.ids), 1) * self.epochs
        for epoch in range(self.epochs):
            rng = make_generator(seed, 1, epoch)
            for start in range(0, len(words.ids), _CHUNK_WORDS):
                ids, text = words.ids[start : start + _CHUNK_WORDS], words.text_ids[start : start + _CHUNK_WORDS]
                kept = rng.random(len(ids)) < keep[ids]
                ids, text = ids[kept], text[kept]
                for at in range(0, len(ids), size):
                    done = (read + _CHUNK_WORDS * at / max(len(ids), 1)) / total
                    rate = top * max(1 - done, 1e-4)
                    self._step(tables, ids[at : at + size], text[at : at + size], noise, rate, rng)
                read += _CHUNK_WORDS
        if not torch.isfinite(tables.inputs).all():
            raise DivergedError(
                f"word vectors went to infinity at the rate {top}; lower it (the default is {DEFAULT_RATES[self.mode]})"
            )
        return WordVectors(words.words, tables.inputs.numpy())

    def _step(
        self, tables: "_Tables", ids: Ints, text: Ints, noise: Floats, rate: float, rng: np.random.Generator
    ) -> None:
        """One batch: the gradient of all its windows, then one update of both tables."""
        groups = -(-len(ids) // GROUP_SIZE)
        near = _find_neighbors(text, rng.integers(1, self.window + 1, len(ids)))
        drawn = torch.from_numpy(
            np.searchsorted(noise, rng.random(groups * NEGATIVES_PER_GROUP) * noise[-1], side="right")
        )
        words = torch.from_numpy(ids)
        read, said = tables.inputs.index_select(0, words), tables.outputs.index_select(0, words)
        against = _Negatives(
            tables.outputs.index_select(0, drawn).view(groups, NEGATIVES_PER_GROUP, -1),
            self.negatives / NEGATIVES_PER_GROUP,
        )
        d_read, d_said = _MODES[self.mode](read, said, near, against)
        both = torch.cat((words, drawn))
        tables.inputs.index_add_(0, words, d_read.mul_(_damp_rates(words, rate)))
        tables.outputs.index_add_(0, both, torch.cat((d_said, against.gradient)).mul_(_damp_rates(both, rate)))


@dataclass(slots=True)
class _Tables:
    """The vectors of words that are read, which are kept, and of words that are said."""

    inputs: Tensor
    outputs: Tensor

    @classmethod
    def create(cls, words: int, width: int, rng: np.random.Generator) -> "_Tables":
        start = (rng.random((words, width), dtype=np.float32) - 0.5) / width
        return cls(torch.from_numpy(start), torch.zeros(words, width))


@dataclass(slots=True)
class _Negatives:
    """Words that were not there, `[groups, DRAWN, W]`, shared by the words of a group."""

    vectors: Tensor
    weight: float  # of each, for one positive
    gradient: Tensor = field(
        default_factory=lambda: torch.empty(0)
    )  # [groups x DRAWN, W], known after `compute_gradient`

    def compute_gradient(self, states: Tensor, counts: Tensor) -> Tensor:
        """What states `[n, W]` gain by saying none of them, each counted `times` `[n, 1]`."""
        groups, n = len(self.vectors), len(states)
        x = F.pad(states, (0, 0, 0, groups * GROUP_SIZE - n)).view(groups, GROUP_SIZE, -1)
        weight = F.pad(counts, (0, 0, 0, groups * GROUP_SIZE - n)).view(groups, GROUP_SIZE, 1) * -self.weight
        # NOTE: transposed copies, for batched products of transposed views are several times slower on some processors.
        g = torch.bmm(x, self.vectors.transpose(1, 2).contiguous()).sigmoid_().mul_(weight)  # [groups, GROUP, DRAWN]
        self.gradient = torch.bmm(g.transpose(1, 2).contiguous(), x).flatten(0, 1)
        return torch.bmm(g, self.vectors).flatten(0, 1)[:n]


def _step_skip_gram(
    inputs: Tensor, outputs: Tensor, neighbors: NeighborMasks, negatives: _Negatives
) -> tuple[Tensor, Tensor]:
    """Every word says each word of its window: the gradients (upwards) of what it read and what was said `[n, W]`."""
    d_read, d_said, times = torch.zeros_like(inputs), torch.zeros_like(outputs), inputs.new_zeros(len(inputs), 1)
    for d, ahead, back in neighbors:
        for here, there, mask in ((slice(None, -d), slice(d, None), ahead), (slice(d, None), slice(None, -d), back)):
            g = torch.linalg.vecdot(inputs[here], outputs[there]).neg_().sigmoid_().unsqueeze(1).mul_(mask)
            d_read[here].addcmul_(outputs[there], g)
            d_said[there].addcmul_(inputs[here], g)
            times[here] += mask
    return d_read.add_(negatives.compute_gradient(inputs, times)), d_said


def _step_cbow(
    inputs: Tensor, outputs: Tensor, neighbors: NeighborMasks, negatives: _Negatives
) -> tuple[Tensor, Tensor]:
    """The mean of a window says its word. As in the paper's program, each word of it gets the mean's whole gradient."""
    mean, times = torch.zeros_like(inputs), inputs.new_zeros(len(inputs), 1)
    for d, ahead, back in neighbors:
        mean[:-d].addcmul_(inputs[d:], ahead)
        mean[d:].addcmul_(inputs[:-d], back)
        times[:-d] += ahead
        times[d:] += back
    mean /= times.clamp(min=1)
    times.clamp_(max=1)
    g = torch.linalg.vecdot(mean, outputs).neg_().sigmoid_().unsqueeze(1).mul_(times)
    d_mean, d_said = negatives.compute_gradient(mean, times).addcmul_(outputs, g), mean * g
    d_read = torch.zeros_like(inputs)
    for d, ahead, back in neighbors:
        d_read[d:].addcmul_(d_mean[:-d], ahead)
        d_read[:-d].addcmul_(d_mean[d:], back)
    return d_read, d_said


_MODES: dict[str, Callable[[Tensor, Tensor, NeighborMasks, _Negatives], tuple[Tensor, Tensor]]] = {
    "skip_gram": _step_skip_gram,
    "cbow": _step_cbow,
}


def _find_neighbors(text: Ints, windows: Ints) -> NeighborMasks:
    """Who is in whose window: not further than that reaches, and in the same text."""
    found: NeighborMasks = []
    for d in range(1, min(int(windows.max(initial=0)), len(text) - 1) + 1):
        same = text[:-d] == text[d:]
        masks = [torch.from_numpy(same & reach).float().unsqueeze(1) for reach in (windows[:-d] >= d, windows[d:] >= d)]
        found.append((d, masks[0], masks[1]))
    return found


def _compute_keep_probabilities(counts: Ints, subsample: float | None) -> Floats:
    """How probably each word is kept: frequent ones less, by the formula of the paper's program."""
    if subsample is None:
        return np.ones(len(counts))
    share = counts / counts.sum()
    return np.asarray(np.sqrt(subsample / share) + subsample / share)


def _damp_rates(words: Tensor, rate: float) -> Tensor:
    """The rate of each row `[n, 1]`, so that the rows of one word count for `MAX_OCCURRENCES` at most."""
    return (MAX_OCCURRENCES / torch.bincount(words)[words]).clamp_(max=1).mul_(rate).unsqueeze(1)
