"""Permutation language modelling: which tokens are targets, in which order, and what that costs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape
from pretune.data.sequences import Sequences, compute_offsets
from pretune.models import catalog
from pretune.objectives.base import Vocabulary
from pretune.objectives.permuted import PermutationLM
from tests.objectives.texts import corrupt
from tests.selection import scale_examples

VOCABULARY = Vocabulary(size=50)


def texts(lengths: list[int], special: list[int] | None = None) -> Sequences:
    """Texts of these lengths, the tokens at some places of each special."""
    place = np.concatenate([np.arange(n) for n in lengths]).astype(np.int64)
    return Sequences(
        tokens=7 + np.arange(len(place)) % 40,
        offsets=compute_offsets(np.asarray(lengths)),
        special=None if special is None else np.isin(place, special),
        samples=np.arange(len(lengths)),
        epochs=np.zeros(len(lengths), dtype=np.int64),
    )


def lesson(sequences: Sequences, seed: int = 0, **how: int) -> Sequences:
    return corrupt(PermutationLM(**how), sequences, seed, VOCABULARY)


@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=8),
    every=st.integers(2, 8),
    longest=st.integers(1, 6),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=scale_examples(40))
def test_form(lengths: list[int], every: int, longest: int, seed: int) -> None:
    """Tokens stay; targets are ranked 1, 2, …; context and specials are not; spans are short, with room between."""
    before = texts(lengths, special=[0])
    after = lesson(before, seed, every=every, longest=longest)
    assert after.targets is not None and after.order is not None and before.special is not None
    assert (after.tokens == before.tokens).all()
    assert ((after.order > 0) == (after.targets != IGNORE_INDEX)).all()
    assert (after.targets[after.order > 0] == after.tokens[after.order > 0]).all()
    assert (after.order[before.special] == 0).all()
    for number in range(len(lengths)):
        order = after.take(np.array([number])).order
        ranks = np.sort(order[order > 0])
        assert ranks.tolist() == [*range(1, len(ranks) + 1)]
        # In any window as long as all stretches that may touch it, there is not more than their spans.
        for end in range(len(order)):
            assert (order[max(0, end - 2 * longest) : end + 1] > 0).sum() <= 2 * longest


def test_every_token_is_a_target_equally_often() -> None:
    """1 / K at each place, edges included, and whatever the length."""
    runs = 30_000
    for length, every, longest in ((1, 6, 5), (7, 6, 5), (40, 6, 5), (12, 3, 4)):
        after = lesson(texts([length] * runs), every=every, longest=longest)
        found = (after.order > 0).reshape(runs, length).mean(0)
        sigma = (1 / every * (1 - 1 / every) / runs) ** 0.5
        assert (abs(found - 1 / every) < 4.5 * sigma).all()  # of up to 40 places at once
        assert abs(found.mean() - 1 / every) < 3 * sigma


def test_spans_are_as_long_as_drawn() -> None:
    """Far apart they can be told: with K = 40 their lengths are uniform, 3 on average."""
    marked = lesson(texts([4000] * 30), every=40).order.reshape(30, 4000) > 0
    edges = np.diff(marked.astype(np.int8), axis=1)
    starts, ends = np.argwhere(edges == 1), np.argwhere(edges == -1)
    lengths = [
        int(ends[(ends[:, 0] == row) & (ends[:, 1] > at)][0, 1] - at)
        for row, at in starts
        if ((ends[:, 0] == row) & (ends[:, 1] > at)).any()
    ]
    share = np.bincount(lengths, minlength=6)[1:6] / len(lengths)
    assert (abs(share - 0.2) < 4 * (0.2 * 0.8 / len(lengths)) ** 0.5 + 0.02).all(), share  # two may touch


def test_any_order_is_as_likely() -> None:
    """Of two targets, the one that comes first in the text is first in half of the orders; ranks are uniform."""
    after = lesson(texts([60] * 4000))
    order = after.order.reshape(4000, 60)
    first, ranks = [], []
    for row in order:
        found = row[row > 0]
        if len(found) > 1:
            first.append(found[0] < found[1])
            ranks.append((found[0] - 0.5) / len(found))
    assert abs(np.mean(first) - 0.5) < 3 * 0.5 / len(first) ** 0.5
    assert abs(np.mean(ranks) - 0.5) < 3 * 12**-0.5 / len(ranks) ** 0.5


def test_slots() -> None:
    """Room for six deviations, of a variance that is never below what is drawn."""
    for every, longest, length in ((6, 5, 100), (2, 1, 9), (6, 1, 30), (3, 8, 24)):
        kind = PermutationLM(every=every, longest=longest)
        counts = (lesson(texts([length] * 5000), every=every, longest=longest).order > 0).reshape(5000, -1).sum(1)
        slots = kind.bind(VOCABULARY, "two-stream").targets(length * 64, 64)
        expected = 64 * length / every
        assert slots >= min(expected + 6 * (64 * counts.var() * 0.97) ** 0.5, 64 * length)
        assert slots - expected < 12 * (64 * counts.var()) ** 0.5 + 2


@torch.no_grad()
def test_loss_is_that_of_the_queries() -> None:
    """The head reads the query stream, and a target's own token changes nothing that is said of it."""
    spec = {"width": 16, "depth": 2, "heads": 2, "vocab": 50, "dropout": 0.0}
    model = catalog.build("xlnet-base", **spec).eval()
    for parameter in model.parameters():
        parameter.normal_(0, 0.3)
    after = lesson(texts([20, 30, 14], special=[0]))
    batch = lay_out(after, np.array([0, 0, 1]), BatchShape(rows=2, length=52, slots=12))
    kind = PermutationLM()
    loss = kind.loss(model, batch)
    count = int((batch.targets.labels != IGNORE_INDEX).sum())
    assert loss.count == kind.counts(batch)["loss"] == count > 5
    logits = model(batch).logits
    expected = F.cross_entropy(logits, batch.targets.labels, ignore_index=IGNORE_INDEX, reduction="sum")
    torch.testing.assert_close(loss.sum, expected)
    last = int(batch.order[:20].argmax())  # the last target of the first text: nobody else sees it
    tokens = batch.tokens.clone()
    tokens[last] = (tokens[last] + 3) % 50
    torch.testing.assert_close(model(replace(batch, tokens=tokens)).logits[:count], logits[:count])
    first = int((batch.order[:20] == 0).nonzero()[0])  # all see the context
    tokens[first] = (tokens[first] + 3) % 50
    assert (model(replace(batch, tokens=tokens)).logits[0] - logits[0]).abs().max() > 1e-3


def test_settings() -> None:
    assert PermutationLM(every=3, longest=2).to_evaluation() == PermutationLM()
    with pytest.raises(UsageError, match=r"every.*\b1\b"):
        PermutationLM(every=1)
    with pytest.raises(UsageError, match=r"longest.*\b0\b"):
        PermutationLM(longest=0)
    with pytest.raises(UsageError, match="two-stream"):
        PermutationLM().bind(VOCABULARY, "encoder")
