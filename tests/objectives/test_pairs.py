"""Next sentence and sentence order: what the samples say, the pooled vector is asked."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.layout import lay_out
from pretune.data.pairs import SegmentPairs
from pretune.data.plan import BatchShape
from pretune.data.stream import BatchStream
from pretune.models.catalog import resolve
from pretune.models.model import LanguageModel, build
from pretune.nn.heads import SpanHead
from pretune.objectives.base import Vocabulary
from pretune.objectives.masked import MaskedLM
from pretune.objectives.next_sentence import NextSentence, SentenceOrder
from pretune.objectives.span_masked import Boundary, SpanMaskedLM
from tests.contracts.tiny import rough
from tests.data.corpora import CLS, FRAMES, SEP, opened
from tests.objectives.texts import VOCABULARY, corrupt, text

SMALL = {"width": 32, "depth": 1, "heads": 2, "hidden": 40, "dropout": 0.0}
BOTH = pytest.mark.parametrize("kind", [NextSentence, SentenceOrder])


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    spec = resolve("bert-tiny", {**SMALL, "vocab": VOCABULARY.size})
    return rough(build(replace(spec, span=SpanHead(rows=4, place_width=6)))).eval()


@BOTH
def test_the_parts_of_the_loss(kind: type[NextSentence], model: LanguageModel) -> None:
    before = text(6, 20, pairs=True)
    labels = np.array([0, 1, IGNORE_INDEX, 1, 1, 0])
    before = replace(before, labels=labels)
    made = kind(masking=MaskedLM(rate=0.3))
    after = corrupt(made, before)
    assert (after.labels == labels).all()
    batch = lay_out(after, np.array([0, 0, 1, 1, 2, 3]), BatchShape(rows=4, length=43, sequences=3, slots=20))
    with torch.no_grad():
        loss, states = made.loss(model, batch), model.states(batch)
        assert model.pooler is not None and model.pair is not None
        first = torch.stack([states[start] for start, _ in batch.list_spans()])
        logits = model.pair(model.pooler(first))
    known = torch.from_numpy(labels)
    by_hand = F.cross_entropy(logits[known != IGNORE_INDEX], known[known != IGNORE_INDEX], reduction="sum")
    assert [*loss.get_terms()] == ["masked", "pair"] == [*made.counts(batch)]
    assert loss.parts["pair"].sum.item() == pytest.approx(by_hand.item(), rel=1e-5)
    assert int(loss.parts["pair"].count) == 5
    assert loss.sum.item() == pytest.approx(model.loss(states, batch).sum.item(), rel=1e-6)


@BOTH
def test_with_spans_and_their_edges(kind: type[NextSentence], model: LanguageModel) -> None:
    made = kind(masking=SpanMaskedLM(boundary=Boundary()))
    assert made.words and not kind().words and kind(masking=MaskedLM(words=True)).words
    after = corrupt(made, text(6, 40, pairs=True))
    batch = lay_out(after, np.arange(6), BatchShape(rows=6, length=40))
    assert [*made.loss(model, batch).get_terms()] == ["masked", "boundary", "pair"] == [*made.counts(batch)]


def test_evaluation_masks_fifteen_percent() -> None:
    assert NextSentence(masking=MaskedLM(rate=0.4, words=True)).to_evaluation() == NextSentence()
    assert SentenceOrder(masking=SpanMaskedLM(rate=0.4)).to_evaluation() == SentenceOrder(masking=SpanMaskedLM())


@BOTH
def test_what_is_missing_is_named(kind: type[NextSentence]) -> None:
    spec = resolve("bert-tiny", {**SMALL, "vocab": VOCABULARY.size})
    after = corrupt(kind(), text(2, 20, pairs=True))
    batch = lay_out(after, np.arange(2), BatchShape(rows=2, length=20))
    with pytest.raises(UsageError):
        kind().loss(build(replace(spec, pair=None)), batch)
    with pytest.raises(UsageError):
        kind().loss(build(spec), replace(batch, labels=None))


@pytest.mark.parametrize(
    "made", [kind(masking=MaskedLM(split=(1.0, 0.0, 0.0))) for kind in (NextSentence, SentenceOrder)]
)
def test_from_shards_to_batches(made: NextSentence | SentenceOrder) -> None:
    """Half of the pairs are broken, the label says which, and both sides are masked."""
    documents = [[5, 7, 4, 6] * 3 for _ in range(60)]
    vocabulary = Vocabulary(size=SEP + 2, special=(CLS, SEP, SEP + 1), roles=(("mask", SEP + 1),))
    with opened(documents) as shards:
        samples = SegmentPairs(limit=40, broken=made.pairs).open(shards, FRAMES["around"])
        stream = BatchStream(
            samples,
            BatchShape(rows=16, length=64),
            seed=0,
            corruption=made.bind(vocabulary, "encoder"),
            words=made.words,
            sentences=made.sentences,
        )
        labels, sides = [], np.zeros((2, 2))
        for epoch in range(6):
            for step in stream.get_steps(epoch):
                sequences, _ = stream.read_sequences(step)
                assert sequences.labels is not None and sequences.segments is not None
                assert sequences.targets is not None and sequences.special is not None
                labels += sequences.labels.tolist()
                real = np.where(sequences.targets == IGNORE_INDEX, sequences.tokens, sequences.targets)
                for number, (start, end) in enumerate(pairwise(sequences.offsets)):
                    side = sequences.segments[start:end][~sequences.special[start:end]]
                    tokens = real[start:end][~sequences.special[start:end]]
                    if (side == 1).any():
                        follows = tokens[side == 1][0] == tokens[side == 0][-1] + 1
                        assert sequences.labels[number] == (0 if follows else 1)
                free = ~sequences.special
                np.add.at(sides, (sequences.segments[free], (sequences.targets != IGNORE_INDEX)[free].astype(int)), 1)
    known = np.array([label for label in labels if label != IGNORE_INDEX])
    assert len(known) > 700
    assert abs(known.mean() - 0.5) < 3 * np.sqrt(0.25 / len(known))
    for side in sides:
        assert abs(side[1] / side.sum() - 0.15) < 3 * np.sqrt(0.15 * 0.85 / side.sum())
