"""BiLSTM with attention over static vectors: the neural baseline without pre-training on other text."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.adaptation.word2vec import Word2Vec
from pretune.core.config import spec
from pretune.core.seed import make_generator, mix
from pretune.core.types import IGNORE_INDEX, Batch, Loss
from pretune.data.layout import batch
from pretune.data.sequences import Ints
from pretune.evaluation.baselines.base import Classifier, ClassPredictor, Text
from pretune.inference.word_vectors import WordVectors, split_words
from pretune.nn.lstm import AdditiveAttention, BiLSTM
from pretune.training.batch_transfer import BatchStats
from pretune.training.distributed import Ranks
from pretune.training.loop import Loop
from pretune.training.optim import AdamW, build_parameter_groups
from pretune.training.step import ModelWithLoss, TrainingObjective, TrainState

Network = TypeVar("Network", bound=nn.Module)

UNKNOWN, SEPARATOR, FIRST_WORD = 0, 1, 2
"""Token of unknown words (and of empty texts), separator of the texts of a pair, token of the first word."""


@spec
class NetworkSpec:
    """Settings of the training of a network."""

    epochs: int
    steps: int = 200  # minimum; few examples get more epochs
    size: int = 32  # batch size
    optim: AdamW = AdamW(lr=2e-3)


@spec
class BiLSTMBaseline(Classifier, NetworkSpec):
    """BiLSTM with attention over word vectors, trained on the task's texts; a tenth of them selects the epoch."""

    hidden: int = 64
    words: int = 150  # maximum per text; longer texts are truncated
    dropout: float = 0.3
    epochs: int = 5
    start: Word2Vec = Word2Vec(width=64, min_count=2)  # initial word vectors

    def fit_classes(self, texts: Sequence[Text], y: Ints, seed: int) -> ClassPredictor:
        """Train on texts (or pairs, concatenated with a separator)."""
        parts = [part for text in texts for part in ([text] if isinstance(text, str) else text)]
        vectors = self.start.train(parts, seed=seed)
        tokens = [self._encode(text, vectors) for text in texts]
        model = train_network(
            self,
            len(texts),
            build=lambda: BiLSTMClassifier(self, vectors, int(y.max()) + 1),
            objective=_ClassificationLoss(),
            make_batch=lambda rows: _pack_batch([tokens[i] for i in rows], y[rows]),
            evaluate=lambda model, rows: _compute_accuracy(model, tokens, y, rows),
            seed=seed,
        )
        return lambda texts: _predict_classes(model, [self._encode(text, vectors) for text in texts])

    def _encode(self, text: Text, vectors: WordVectors) -> list[int]:
        if not isinstance(text, str):
            return [*self._encode(text[0], vectors), SEPARATOR, *self._encode(text[1], vectors)]
        unknown = UNKNOWN - FIRST_WORD
        ids = [vectors.index.get(word, unknown) + FIRST_WORD for word in split_words(text)[: self.words]]
        return ids or [UNKNOWN]


class BiLSTMClassifier(nn.Module):
    """Tokens to one row of logits per cell `[C, classes]`."""

    def __init__(self, spec: BiLSTMBaseline, vectors: WordVectors, classes: int) -> None:
        super().__init__()
        lstm = BiLSTM(hidden=spec.hidden)
        rows = np.concatenate((vectors.unknown[None], np.zeros_like(vectors.unknown[None]), vectors.matrix))
        self.tokens = nn.Embedding(len(rows), vectors.width, _weight=torch.from_numpy(rows))
        self.encoder = lstm.build(width=vectors.width)
        self.pool = AdditiveAttention(hidden=spec.hidden).build(width=lstm.width)
        self.out = nn.Linear(lstm.width, classes)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, batch: Batch) -> Tensor:
        states = self.encoder(self.dropout(self.tokens(batch.tokens)), batch)
        out: Tensor = self.out(self.dropout(self.pool(states, batch)))
        return out


class _ClassificationLoss:
    """Cross-entropy over the labels of cells."""

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        assert batch.labels is not None
        return {"loss": (batch.labels != IGNORE_INDEX).sum()}

    def loss(self, model: BiLSTMClassifier, batch: Batch) -> Loss:
        assert batch.labels is not None
        total = F.cross_entropy(model(batch), batch.labels, ignore_index=IGNORE_INDEX, reduction="sum")
        return Loss(sum=total, count=(batch.labels != IGNORE_INDEX).sum())


class EpochBatches:
    """Batches of `size` examples, reshuffled every epoch; `make_batch` makes the batch of some of them."""

    wait_seconds = 0.0

    def __init__(self, make_batch: Callable[[Ints], Batch], examples: Ints, size: int, seed: int) -> None:
        self.make_batch, self.examples, self.size, self.seed = make_batch, examples, size, seed
        self.steps = -(-len(examples) // size)
        self.stats = BatchStats()
        self._step = 0

    def __next__(self) -> list[Batch]:
        epoch, step = divmod(self._step, self.steps)
        order = make_generator(self.seed, 2, epoch).permutation(self.examples)
        self._step += 1
        return [self.make_batch(order[step * self.size : (step + 1) * self.size])]

    def split(self, micro: int) -> None:
        """Do nothing: texts this short need no micro-batches."""


def train_network(
    spec: NetworkSpec,
    examples: int,
    *,
    build: Callable[[], Network],
    objective: TrainingObjective,
    make_batch: Callable[[Ints], Batch],
    evaluate: Callable[[Network, Ints], float],
    seed: int,
) -> Network:
    """Train a network on nine tenths of the examples; return it as of the first epoch with the best held-out score."""
    valid_rows, train_rows = np.split(make_generator(seed, 0).permutation(examples), [examples // 10])
    with torch.random.fork_rng(devices=[]):  # leaves the global random state unchanged
        torch.manual_seed(mix(seed, 1) >> 1)
        model = build()
        batches = EpochBatches(make_batch, train_rows, spec.size, seed)
        epochs = max(spec.epochs, -(-spec.steps // batches.steps))
        loop = Loop(
            module=ModelWithLoss(model, objective),
            optimizer=spec.optim.build(build_parameter_groups(model)),
            state=TrainState(),
            ranks=Ranks(torch.device("cpu")),
            lr_factor=lambda state: 1 - state.step / (batches.steps * epochs),
            seed=seed,
        )
        best, best_weights = -math.inf, model.state_dict()
        for epoch in range(1, epochs + 1):
            loop.run(batches, partial(_is_over, epoch * batches.steps))
            score = evaluate(model, valid_rows)
            if score > best:
                best, best_weights = score, copy.deepcopy(model.state_dict())
        model.load_state_dict(best_weights)
    return model


def _pack_batch(tokens: list[list[int]], y: Ints | None = None) -> Batch:
    """Pack texts into one row without filler, so that the first cells are the texts in order."""
    packed_batch = batch(tokens, row=sum(map(len, tokens)))
    labels = torch.full((packed_batch.cells,), IGNORE_INDEX)
    if y is not None:
        labels[: len(tokens)] = torch.from_numpy(y)
    return replace(packed_batch, labels=labels)


def _is_over(end: int, state: TrainState) -> bool:
    return state.step >= end


@torch.no_grad()
def _predict_classes(model: BiLSTMClassifier, tokens: list[list[int]], size: int = 128) -> list[int]:
    """Return the likeliest class of each text."""
    model.eval()
    classes: list[int] = []
    for start in range(0, len(tokens), size):
        chunk = tokens[start : start + size]
        classes += model(_pack_batch(chunk))[: len(chunk)].argmax(1).tolist()
    model.train()
    return classes


def _compute_accuracy(model: BiLSTMClassifier, tokens: list[list[int]], y: Ints, rows: Ints) -> float:
    """Return the accuracy on held-out texts; 0 without any, so that the first epoch wins."""
    predictions = np.array(_predict_classes(model, [tokens[i] for i in rows]), dtype=np.int64)
    return float((predictions == y[rows]).mean()) if len(rows) else 0.0
