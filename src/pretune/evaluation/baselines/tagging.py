"""Baselines for words: their most frequent tag, and a linear model of the word and its neighbours.

For parsing: the neighbour as head, and a BiLSTM with the biaffine head (Dozat and Manning, 2017).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from pretune.adaptation.heads.base import TokenHead
from pretune.adaptation.heads.dependency import BiaffineHead, Dependency, encode_arcs
from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.core.types import Batch
from pretune.data.layout import pack_in_order
from pretune.data.sequences import Ints, Sequences, compute_offsets
from pretune.evaluation.baselines.base import Baseline
from pretune.evaluation.baselines.bilstm import NetworkSpec, train_network
from pretune.metrics.entities import attachment
from pretune.nn.lstm import BiLSTM
from pretune.tasks.example import Example, Examples, Prediction
from pretune.tasks.types.dependency import build_tree

Sentences = Sequence[Sequence[str]]
Tagger = Callable[[Sentences], list[list[str]]]


class TaggingBaseline(Baseline):
    """Base class of baselines that tag words."""

    def fit(self, sentences: Sentences, tags: Sentences, *, seed: int = 0) -> Tagger:
        """Train on tagged sentences."""
        raise NotImplementedError

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Fit on tagged examples and tag others."""
        tagger = self.fit([example.words for example in train], [example.tags for example in train], seed=seed)
        return [Prediction(tags=tuple(tags)) for tags in tagger([example.words for example in test])]


@spec
class FrequentTag(TaggingBaseline):
    """Most frequent tag of a word.

    The word is looked up as written, or else in lower case; unknown words get the most frequent tag of words seen once.
    """

    def fit(self, sentences: Sentences, tags: Sentences, *, seed: int = 0) -> Tagger:
        """Count the tags of every word. Ties are broken alphabetically."""
        tag_counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for words, word_tags in zip(sentences, tags, strict=True):
            if len(words) != len(word_tags):
                raise DataError(f"a sentence of {len(words)} words has {len(word_tags)} tags; expected one per word")
            for word, tag in zip(words, word_tags, strict=True):
                for form in {word, word.lower()}:
                    tag_counts[form][tag] += 1
        if not tag_counts:
            raise DataError("no tagged words; pass at least one sentence")
        table = {word: _find_most_frequent(counts) for word, counts in tag_counts.items()}
        rare = [table[word] for word, counts in tag_counts.items() if counts.total() == 1]
        unknown = _find_most_frequent(Counter(rare or table.values()))

        def predict(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
            return [[table.get(word) or table.get(word.lower()) or unknown for word in words] for words in sentences]

        return predict


@spec
class WindowTags(TaggingBaseline):
    """Linear SVM on the word and its neighbours.

    Features are the word, its suffixes and shape, and the two words on each side; tags do not depend on each other.
    """

    display_name: ClassVar[str] = "svm"

    epochs: int = 5
    penalty: float = 1e-5
    size: int = 2**18  # of the feature hash

    def fit(self, sentences: Sentences, tags: Sentences, *, seed: int = 0) -> Tagger:
        """Train on tagged sentences."""
        from sklearn.feature_extraction import FeatureHasher
        from sklearn.linear_model import SGDClassifier

        y = [tag for sentence_tags in tags for tag in sentence_tags]
        if len(set(y)) < 2:
            return FrequentTag().fit(sentences, tags)
        table = FeatureHasher(self.size, input_type="string", alternate_sign=False)
        model = SGDClassifier(alpha=self.penalty, max_iter=self.epochs, tol=None, average=True, random_state=seed)
        model.fit(table.transform(_extract_features(sentences)), y)

        def predict(sentences: Sentences) -> list[list[str]]:
            features = [*_extract_features(sentences)]
            predictions = iter(model.predict(table.transform(features)).tolist() if features else [])
            return [[next(predictions) for _ in words] for words in sentences]

        return predict


def _extract_features(sentences: Sentences) -> Iterator[list[str]]:
    """Yield the features of each word."""
    for words in sentences:
        low = ["", "", *(word.lower() for word in words), "", ""]
        for i, word in enumerate(words):
            form = "".join("A" if c.isupper() else "a" if c.islower() else "0" if c.isdigit() else c for c in word)
            neighbours = [f"{side}={low[i + 2 + side]}" for side in (-2, -1, 1, 2)]
            lower = low[i + 2]
            affixes = [f"s3={lower[-3:]}", f"s2={lower[-2:]}", f"p3={lower[:3]}"]
            bigrams = [f"-1,0={low[i + 1]} {lower}", f"0,1={lower} {low[i + 3]}"]
            place = "start" if i == 0 else "in"
            yield [f"w={word}", f"l={lower}", f"f={form[:6]}", *affixes, *neighbours, *bigrams, place]


def _find_most_frequent(counts: Counter[str]) -> str:
    return min(counts, key=lambda tag: (-counts[tag], tag))


SUFFIX, SUFFIX_MARK = 3, "\0"
"""Letters of a rare word that are read, and the mark before them in the vocabulary."""


@spec
class AdjacentHead(Baseline):
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
class BiLSTMParser(Baseline, NetworkSpec):
    """BiLSTM with the biaffine head over word vectors, trained on the task's sentences; a tenth selects the epoch.

    Words that occur once, and unknown ones, are read as their last three letters.
    """

    display_name: ClassVar[str] = "bilstm"

    hidden: int = 200
    depth: int = 2
    dropout: float = 0.33
    epochs: int = 10
    width: int = 100  # of word vectors

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Train on parsed sentences and parse others."""
        _check_trees(train)
        labels = tuple(sorted({tag for example in train for tag in example.tags}))
        vocabulary = _build_vocabulary(train)
        sequences = [_encode(example, vocabulary, labels) for example in train]
        head = Dependency(classes=len(labels), labels=labels, dropout=self.dropout)
        model = train_network(
            self,
            len(train),
            build=lambda: BiLSTMWithHead(self, head, len(vocabulary) + 1),
            objective=head,
            make_batch=lambda rows: _pack([sequences[i] for i in rows]),
            evaluate=lambda model, rows: _score(model, [train[i] for i in rows], [sequences[i] for i in rows], labels),
            seed=seed,
        )
        return _parse(model, [_encode(example, vocabulary, labels) for example in test], labels)


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
