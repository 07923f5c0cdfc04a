"""Parsing baselines: the neighbour as head, and a BiLSTM with the biaffine head (Dozat and Manning, 2017)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from pretune.adaptation.heads.base import TokenHead
from pretune.adaptation.heads.dependency import BiaffineHead, Dependency, encode_arcs
from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.core.seed import make_generator, mix
from pretune.core.types import Batch
from pretune.data.layout import pack_in_order
from pretune.data.sequences import Ints, Sequences, compute_offsets
from pretune.evaluation.baselines.base import Examples, TaskBaseline
from pretune.evaluation.baselines.bilstm import EpochBatches, train_epochs
from pretune.evaluation.baselines.tagging import FrequentTag
from pretune.metrics.parsing import attachment
from pretune.nn.recurrent import BiLSTM
from pretune.tasks.example import Example, Prediction
from pretune.tasks.types.dependency import build_tree
from pretune.training.optim import AdamW
from pretune.training.step import ModelWithLoss

SUFFIX, SUFFIX_MARK = 3, "\0"
"""Letters of a rare word that are read, and the mark before them in the vocabulary."""


@spec
class AdjacentHead(TaskBaseline):
    """Next word as head, or the previous one if that is more frequent; most frequent relation of a word."""

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Count the directions and the relations of the training sentences."""
        _check_trees(train)
        distances = Counter(h - w for example in train for w, h in enumerate(example.heads, start=1) if h)
        is_next = distances[1] >= distances[-1]
        tag = FrequentTag().fit([example.words for example in train], [example.tags for example in train], seed=seed)
        predictions: list[Prediction] = []
        for example, tags in zip(test, tag([example.words for example in test]), strict=True):
            count = len(example.words)
            heads = [*range(2, count + 1), 0] if is_next else [*range(count)]
            predictions.append(Prediction(heads=tuple(heads[:count]), tags=tuple(tags)))
        return predictions


@spec
class BiLSTMParser(TaskBaseline):
    """BiLSTM with the biaffine head over word vectors, trained on the task's sentences; a tenth selects the epoch.

    Words that occur once, and unknown ones, are read as their last three letters.
    """

    display_name: ClassVar[str] = "bilstm"

    hidden: int = 200
    depth: int = 2
    dropout: float = 0.33
    epochs: int = 10
    steps: int = 200  # minimum; few sentences get more epochs
    size: int = 32  # batch size
    optim: AdamW = AdamW(lr=2e-3)
    width: int = 100  # of word vectors

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Train on parsed sentences and parse others."""
        _check_trees(train)
        labels = tuple(sorted({tag for example in train for tag in example.tags}))
        vocabulary = _build_vocabulary(train)
        sequences, test_sequences = (
            [_encode(example, vocabulary, labels) for example in part] for part in (train, test)
        )
        valid_rows, train_rows = np.split(make_generator(seed, 0).permutation(len(train)), [len(train) // 10])
        head = Dependency(classes=len(labels), labels=labels, dropout=self.dropout)
        with torch.random.fork_rng(devices=[]):  # leaves the global random state unchanged
            torch.manual_seed(mix(seed, 1) >> 1)
            model = BiLSTMWithHead(self, head, len(vocabulary) + 1)
            batches = EpochBatches(lambda rows: _pack([sequences[i] for i in rows]), train_rows, self.size, seed)
            train_epochs(
                ModelWithLoss(model, head),
                batches,
                max(self.epochs, -(-self.steps // batches.steps)),
                self.optim,
                lambda: _score(model, [train[i] for i in valid_rows], [sequences[i] for i in valid_rows], labels),
            )
        return _parse(model, test_sequences, labels)


class BiLSTMWithHead(nn.Module):
    """Words to states, and the biaffine head on them."""

    def __init__(self, spec: BiLSTMParser, head: Dependency, vocab: int) -> None:
        super().__init__()
        lstm = BiLSTM(hidden=spec.hidden, depth=spec.depth, dropout=spec.dropout)
        self.tokens = nn.Embedding(vocab, spec.width)
        self.encoder = lstm.build(width=spec.width)
        self.dropout = nn.Dropout(spec.dropout)
        self.head = BiaffineHead(head, TokenHead(lstm.width, 2 * (head.arc + head.relation), 0.0))
        self.head.reset_scores()

    def states(self, batch: Batch) -> Tensor:
        """Return the states of the words `[N, 2 H]`."""
        out: Tensor = self.dropout(self.encoder(self.dropout(self.tokens(batch.tokens)), batch))
        return out


def _check_trees(examples: Examples) -> None:
    if not any(example.heads for example in examples):
        raise DataError("no parsed sentences; pass at least one")


def _build_vocabulary(examples: Examples) -> dict[str, int]:
    """Return the ids of frequent words and of the suffixes of rare ones, from 1; 0 is any other word."""
    counts = Counter(word.lower() for example in examples for word in example.words)
    names = [word if count > 1 else SUFFIX_MARK + word[-SUFFIX:] for word, count in counts.items()]
    return {name: number for number, name in enumerate(dict.fromkeys(names), start=1)}


def _encode(example: Example, vocabulary: Mapping[str, int], labels: Sequence[str]) -> Sequences:
    """Return a sentence as a sequence of words, with targets if its tree is known."""
    words = [word.lower() for word in example.words]
    ids = [vocabulary.get(word, vocabulary.get(SUFFIX_MARK + word[-SUFFIX:], 0)) for word in words]
    tokens = np.array(ids, dtype=np.int64)
    targets = None
    if example.heads and set(example.tags) <= set(labels):
        heads, places = np.array(example.heads), np.arange(1, len(tokens) + 1)
        relations = np.array([labels.index(tag) for tag in example.tags])
        targets = encode_arcs(np.where(heads == 0, 0, heads - places), relations, len(labels))
    return Sequences(tokens=tokens, offsets=np.array([0, len(tokens)]), targets=targets)


def _pack(sequences: Sequence[Sequences]) -> Batch:
    targets = [sequence.targets for sequence in sequences if sequence.targets is not None]
    return pack_in_order(
        Sequences(
            tokens=np.concatenate([sequence.tokens for sequence in sequences]),
            offsets=compute_offsets(np.array([len(sequence.tokens) for sequence in sequences])),
            targets=np.concatenate(targets) if len(targets) == len(sequences) else None,
        )
    )


@torch.no_grad()
def _parse(
    model: BiLSTMWithHead, sequences: Sequence[Sequences], labels: Sequence[str], size: int = 128
) -> list[Prediction]:
    """Return the tree of each sentence."""
    model.eval()
    predictions: list[Prediction] = []
    for start in range(0, len(sequences), size):
        batch = _pack(sequences[start : start + size])
        for block in batch.split(model.head(model.states(batch), batch)):
            words: Ints = np.arange(len(block))
            predictions.append(build_tree(len(block), words, block[:, : 1 + len(block)].numpy(), labels))
    model.train()
    return predictions


def _score(model: BiLSTMWithHead, examples: Examples, sequences: Sequence[Sequences], labels: Sequence[str]) -> float:
    """Return the LAS of held-out sentences; 0 without any, so that the first epoch wins."""
    if not examples:
        return 0.0
    predictions = _parse(model, sequences, labels)
    gold = [[*zip(example.heads, example.tags, strict=True)] for example in examples]
    return attachment(gold, [[*zip(tree.heads, tree.tags, strict=True)] for tree in predictions])["las"]
