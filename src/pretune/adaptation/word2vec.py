"""Word2vec (Mikolov et al., 2013): skip-gram and CBOW with negative sampling, in batches of matrix products.

A batch is a stretch of running text. The words at distance d from each other are two shifted views of it, so a window
is a few products of whole arrays. Negatives are shared by `GROUP_SIZE` neighboring words (Ji et al., 2016), weighted so
that their expectation is that of the paper: `negatives` per positive. The updates of a batch for one word are summed,
but limited to `MAX_OCCURRENCES` occurrences; otherwise frequent words would diverge.

    "the cat sat on a mat", window 2, center "sat" with sampled window 1:      cat -> sat    sat <- on
    skip-gram:  sat predicts cat, sat predicts on          CBOW:  mean(cat, on) predicts sat
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pretune.core.config import spec
from pretune.core.errors import DataError, DivergedError, UsageError
from pretune.core.seed import make_generator
from pretune.data.sequences import Ints
from pretune.inference.word_vectors import WordVectors, split_words


@dataclass(frozen=True, slots=True)
class WordCorpus:
    """Words by descending frequency, and texts as concatenated word ids; rare words are dropped."""

    words: tuple[str, ...]
    counts: NDArray[np.int64]  # occurrences of each word
    ids: NDArray[np.int64]  # [N]
    text_ids: NDArray[np.int64]  # [N] number of the text of each word
    total: int  # words in the texts, including rare ones

    @classmethod
    def from_texts(
        cls, texts: Iterable[str] | Iterable[list[str]], *, min_count: int = 5, max_words: int | None = None
    ) -> "WordCorpus":
        """Count and number the words of texts (or of lists of words); those with fewer than `min_count` are dropped.

        At most `max_words` are kept, the most frequent; equally frequent words are in alphabetical order.
        """
        if isinstance(texts, str):
            raise UsageError("static vectors need a list of texts, got a single text; put it into a list")
        numbers: dict[str, int] = {}
        parts: list[NDArray[np.int32]] = []
        for text in texts:
            words = split_words(text) if isinstance(text, str) else text
            parts.append(np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int32))
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        flat = np.concatenate([np.empty(0, dtype=np.int32), *parts])
        counts = np.bincount(flat, minlength=len(numbers))
        names = list(numbers)
        frequent_ids = [i for i in range(len(names)) if counts[i] >= min_count]
        kept_ids = sorted(frequent_ids, key=lambda i: (-counts[i], names[i]))[:max_words]
        if not kept_ids:
            raise DataError(f"no word occurs {min_count} times in {len(flat)} words; add text, or lower `min_count`")
        new_ids = np.full(len(names), -1, dtype=np.int64)
        new_ids[kept_ids] = np.arange(len(kept_ids))
        ids, owner = new_ids[flat], np.repeat(np.arange(len(parts)), lengths)
        is_kept = ids >= 0
        return cls(tuple(names[i] for i in kept_ids), counts[kept_ids], ids[is_kept], owner[is_kept], len(flat))

    def __len__(self) -> int:
        return len(self.words)


class VectorTrainer:
    """Base class of methods for static vectors."""

    min_count: int
    max_words: int | None

    def train(self, texts: Iterable[str] | Iterable[list[str]], *, seed: int = 0) -> WordVectors:
        """Train vectors on texts, or on lists of words. The result is reproducible for seed, texts and threads."""
        return self.fit(WordCorpus.from_texts(texts, min_count=self.min_count, max_words=self.max_words), seed=seed)

    def fit(self, words: WordCorpus, *, seed: int = 0) -> WordVectors:
        """Train vectors on a corpus of word ids."""
        raise NotImplementedError


BATCH_SIZE, GROUP_SIZE, NEGATIVES_PER_GROUP, MAX_OCCURRENCES = 2048, 32, 32, 4.0
"""Maximum words of a batch, words that share negatives, negatives per group, and occurrences that are summed."""

_CHUNK_WORDS = 1 << 16  # words subsampled at once

Floats = NDArray[np.float64]

NeighborMasks = list[tuple[int, Tensor, Tensor]]
"""For every distance d: masks `[n - d, 1]` of the words with a context word d after and d before them."""


DEFAULT_RATES = {"skip_gram": 0.05, "cbow": 0.1}
"""Initial learning rate; CBOW's is higher, as each word of a mean is moved less."""


@spec
class Word2Vec(VectorTrainer):
    """Word2vec: vectors that predict neighboring words.

    The defaults are gensim's except the rate, which is higher: updates of a batch are damped (`MAX_OCCURRENCES`).
    """

    mode: Literal["skip_gram", "cbow"] = "skip_gram"
    width: int = 100
    window: int = 5  # maximum; each word samples its own, from 1
    negatives: int = 5
    subsample: float | None = 1e-3  # frequency above which occurrences of a word are dropped at random
    epochs: int = 5
    rate: float | None = None  # decays linearly to 0; None: 0.05, and 0.1 for CBOW
    min_count: int = 5  # words with fewer occurrences are ignored
    max_words: int | None = None  # maximum number of words with a vector

    def fit(self, words: WordCorpus, *, seed: int = 0) -> WordVectors:
        """Train vectors on a corpus of word ids."""
        draws = make_generator(seed, 0).random((len(words), self.width), dtype=np.float32)
        inputs = torch.from_numpy((draws - 0.5) / self.width)
        tables = inputs, torch.zeros_like(inputs)
        top = self.rate or DEFAULT_RATES[self.mode]
        keep = _compute_keep_probabilities(words.counts, self.subsample)
        noise = np.cumsum(words.counts**0.75)
        # In a small vocabulary all words are frequent, so batches are smaller.
        size = min(BATCH_SIZE, max(256, 2 * len(words)))
        words_done, total = 0, max(len(words.ids), 1) * self.epochs
        for epoch in range(self.epochs):
            rng = make_generator(seed, 1, epoch)
            for start in range(0, len(words.ids), _CHUNK_WORDS):
                ids, text = words.ids[start : start + _CHUNK_WORDS], words.text_ids[start : start + _CHUNK_WORDS]
                mask = rng.random(len(ids)) < keep[ids]
                ids, text = ids[mask], text[mask]
                for offset in range(0, len(ids), size):
                    progress = (words_done + _CHUNK_WORDS * offset / max(len(ids), 1)) / total
                    rate = top * max(1 - progress, 1e-4)
                    self._step(tables, ids[offset : offset + size], text[offset : offset + size], noise, rate, rng)
                words_done += _CHUNK_WORDS
        if not torch.isfinite(inputs).all():
            raise DivergedError(f"word vectors diverged at rate {top}; lower it (default: {DEFAULT_RATES[self.mode]})")
        return WordVectors(words.words, inputs.numpy())

    def _step(
        self, tables: tuple[Tensor, Tensor], ids: Ints, text: Ints, noise: Floats, rate: float, rng: np.random.Generator
    ) -> None:
        """Compute the gradients of a batch's windows and update both tables."""
        inputs, outputs = tables
        groups = -(-len(ids) // GROUP_SIZE)
        neighbors = _find_neighbors(text, rng.integers(1, self.window + 1, len(ids)))
        draws = rng.random(groups * NEGATIVES_PER_GROUP) * noise[-1]
        negative_ids = torch.from_numpy(np.searchsorted(noise, draws, side="right"))
        words = torch.from_numpy(ids)
        word_inputs, word_outputs = inputs.index_select(0, words), outputs.index_select(0, words)
        negative_vectors = outputs.index_select(0, negative_ids).view(groups, NEGATIVES_PER_GROUP, -1)
        negatives = _Negatives(negative_vectors, self.negatives / NEGATIVES_PER_GROUP)
        d_inputs, d_outputs = _MODES[self.mode](word_inputs, word_outputs, neighbors, negatives)
        output_ids = torch.cat((words, negative_ids))
        inputs.index_add_(0, words, d_inputs.mul_(_damp_rates(words, rate)))
        d_outputs = torch.cat((d_outputs, negatives.gradient))
        outputs.index_add_(0, output_ids, d_outputs.mul_(_damp_rates(output_ids, rate)))


@dataclass(slots=True)
class _Negatives:
    """Negative samples `[groups, NEGATIVES_PER_GROUP, W]`, shared by the words of a group."""

    vectors: Tensor
    weight: float  # of each negative, per positive
    # [groups x NEGATIVES_PER_GROUP, W], set by `compute_gradient`
    gradient: Tensor = field(default_factory=lambda: torch.empty(0))

    def compute_gradient(self, states: Tensor, counts: Tensor) -> Tensor:
        """Return the gradient for states `[n, W]`, each with its number of positives `counts` `[n, 1]`."""
        groups, n = len(self.vectors), len(states)
        x = F.pad(states, (0, 0, 0, groups * GROUP_SIZE - n)).view(groups, GROUP_SIZE, -1)
        weight = F.pad(counts, (0, 0, 0, groups * GROUP_SIZE - n)).view(groups, GROUP_SIZE, 1) * -self.weight
        # NOTE: transposed copies, because batched products of transposed views are several times slower on some CPUs.
        # g: [groups, GROUP_SIZE, NEGATIVES_PER_GROUP]
        g = torch.bmm(x, self.vectors.transpose(1, 2).contiguous()).sigmoid_().mul_(weight)
        self.gradient = torch.bmm(g.transpose(1, 2).contiguous(), x).flatten(0, 1)
        return torch.bmm(g, self.vectors).flatten(0, 1)[:n]


def _step_skip_gram(
    inputs: Tensor, outputs: Tensor, neighbors: NeighborMasks, negatives: _Negatives
) -> tuple[Tensor, Tensor]:
    """Predict the words of a window from its center; return the gradients (ascent) of inputs and outputs `[n, W]`."""
    d_inputs, d_outputs, counts = torch.zeros_like(inputs), torch.zeros_like(outputs), inputs.new_zeros(len(inputs), 1)
    for d, after_mask, before_mask in neighbors:
        for centers, contexts, mask in (
            (slice(None, -d), slice(d, None), after_mask),
            (slice(d, None), slice(None, -d), before_mask),
        ):
            g = torch.linalg.vecdot(inputs[centers], outputs[contexts]).neg_().sigmoid_().unsqueeze(1).mul_(mask)
            d_inputs[centers].addcmul_(outputs[contexts], g)
            d_outputs[contexts].addcmul_(inputs[centers], g)
            counts[centers] += mask
    return d_inputs.add_(negatives.compute_gradient(inputs, counts)), d_outputs


def _step_cbow(
    inputs: Tensor, outputs: Tensor, neighbors: NeighborMasks, negatives: _Negatives
) -> tuple[Tensor, Tensor]:
    """Predict a word from the mean of its window; each input gets the mean's full gradient, as in word2vec.c."""
    mean, counts = torch.zeros_like(inputs), inputs.new_zeros(len(inputs), 1)
    for d, after_mask, before_mask in neighbors:
        mean[:-d].addcmul_(inputs[d:], after_mask)
        mean[d:].addcmul_(inputs[:-d], before_mask)
        counts[:-d] += after_mask
        counts[d:] += before_mask
    mean /= counts.clamp(min=1)
    counts.clamp_(max=1)
    g = torch.linalg.vecdot(mean, outputs).neg_().sigmoid_().unsqueeze(1).mul_(counts)
    d_mean, d_outputs = negatives.compute_gradient(mean, counts).addcmul_(outputs, g), mean * g
    d_inputs = torch.zeros_like(inputs)
    for d, after_mask, before_mask in neighbors:
        d_inputs[d:].addcmul_(d_mean[:-d], after_mask)
        d_inputs[:-d].addcmul_(d_mean[d:], before_mask)
    return d_inputs, d_outputs


_MODES: dict[str, Callable[[Tensor, Tensor, NeighborMasks, _Negatives], tuple[Tensor, Tensor]]] = {
    "skip_gram": _step_skip_gram,
    "cbow": _step_cbow,
}


def _find_neighbors(text: Ints, windows: Ints) -> NeighborMasks:
    """Return the masks of words within a window and in the same text."""
    neighbors: NeighborMasks = []
    for d in range(1, min(int(windows.max(initial=0)), len(text) - 1) + 1):
        same_text = text[:-d] == text[d:]
        reaches = (windows[:-d] >= d, windows[d:] >= d)
        after_mask, before_mask = (torch.from_numpy(same_text & reach).float().unsqueeze(1) for reach in reaches)
        neighbors.append((d, after_mask, before_mask))
    return neighbors


def _compute_keep_probabilities(counts: Ints, subsample: float | None) -> Floats:
    """Return the probability to keep each word: lower for frequent ones, by the formula of the paper's program."""
    if subsample is None:
        return np.ones(len(counts))
    share = counts / counts.sum()
    return np.asarray(np.sqrt(subsample / share) + subsample / share)


def _damp_rates(words: Tensor, rate: float) -> Tensor:
    """Return the rate of each row `[n, 1]`, limiting the rows of a word to a total weight of `MAX_OCCURRENCES`."""
    return (MAX_OCCURRENCES / torch.bincount(words)[words]).clamp_(max=1).mul_(rate).unsqueeze(1)
