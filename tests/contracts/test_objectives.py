"""The laws that every objective keeps, by being listed."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core import config
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Loss
from pretune.data.sampling import Counters, SampleLengths
from pretune.data.sequences import Ints, Sequences
from pretune.objectives import OBJECTIVES
from pretune.objectives.base import MODEL_SHAPES, Corruption, ModelShape, Objective, Vocabulary
from pretune.text.styles import KINDS
from tests.contracts.objective_cases import (
    CASES,
    DETERMINISTIC,
    LONG,
    LOSSY,
    MODELS,
    RESTORE,
    Setting,
    alike,
    by_sequence,
    restore,
    setting,
    together,
)
from tests.selection import keep_quick, scale_examples
from tests.text.tokenizers import trained

EVERY = [(name, shape) for name, objective in CASES.items() for shape in objective.shapes]
TRAINED = [(name, shape) for name, shape in EVERY if shape in MODELS]

every = pytest.mark.parametrize(("name", "shape"), EVERY)
trained_shapes = pytest.mark.parametrize(("name", "shape"), TRAINED)
kinds = pytest.mark.parametrize("kind", KINDS)

length = st.one_of(st.integers(1, 40), st.sampled_from((63, 64, 127, 128, 510, 511, 512, 1024, 2046, 2047, 2048)))
lengths = st.lists(length, min_size=1, max_size=6)
seeds = st.integers(0, 10**6)


def test_every_shape_has_a_model_and_every_hook_an_objective() -> None:
    assert {shape for objective in CASES.values() for shape in objective.shapes} <= {*MODELS}
    assert {*RESTORE, *LOSSY, *DETERMINISTIC} <= {*OBJECTIVES}
    assert {name.partition("-")[0] for name in CASES} == {*OBJECTIVES}


# Corruption


@every
@kinds
@given(lengths=lengths, seed=seeds)
@settings(max_examples=3)
def test_corruption(name: str, shape: ModelShape, kind: str, lengths: list[int], seed: int) -> None:
    corruption_keeps_the_laws(setting(name, shape, kind), lengths, seed)


@pytest.mark.slow
@every
@kinds
@given(lengths=lengths, seed=seeds)
@settings(max_examples=scale_examples(60))
def test_corruption_at_length(name: str, shape: ModelShape, kind: str, lengths: list[int], seed: int) -> None:
    corruption_keeps_the_laws(setting(name, shape, kind), lengths, seed)


def corruption_keeps_the_laws(made: Setting, lengths: list[int], seed: int) -> None:
    """What it draws, it draws for each sequence by itself; what it makes, it has room for; specials are left alone."""
    before = made.sequences(lengths, seed)
    kept = before.tokens.copy()
    after = made.corrupt(before, seed)
    assert (before.tokens == kept).all(), "the text itself was changed"
    assert len(after) == len(before) == len(lengths)
    alike(after, made.corrupt(before, seed))
    for number in {0, len(lengths) - 1}:
        alone = made.corrupt(before.take(np.array([number])), seed)
        alike(after.take(np.array([number])), alone)
    bounds_hold(made, before, after)
    plans_hold(made, before, after, seed)
    specials_are_left_alone(made, before, after)
    text = restore(made.name, before, after)
    assert text is None or (text == before.tokens).all(), "the text cannot be restored"


def bounds_hold(made: Setting, before: Sequences, after: Sequences) -> None:
    source, target = made.corruption.lengths(before.lengths)
    assert (target is None) == (after.source is None)
    assert (after.lengths <= (source if target is None else target)).all()
    assert after.source is None or (after.source.lengths <= source).all()
    assert after.targets is not None and len(after.targets) == len(after.tokens)
    most = made.corruption.targets(len(after.tokens), len(after))
    # One draw of sequences that are few and short may use what is there for all but one in a thousand million.
    assert (after.targets != IGNORE_INDEX).sum() <= most <= len(after.tokens)


def plans_hold(made: Setting, before: Sequences, after: Sequences, seed: int) -> None:
    """What is told before the text is cut is enough; and without knowing what is drawn, enough for whatever is."""
    assert before.special is not None
    first = before.lengths if before.sides is None else np.where(before.sides > 0, before.sides, before.lengths)
    special = np.diff(np.append(0, np.cumsum(before.special))[before.offsets])
    ends = before.special[np.maximum(before.offsets[1:] - 1, 0)] & (before.lengths > 0)
    known = SampleLengths(first, before.lengths - first, special, ends)
    rng = Counters.from_sequences(seed, before, copies=made.corruption.copies)
    (source, target), most = made.corruption.predict_lengths(known, rng), made.corruption.predict_lengths(known, None)
    assert (target is None) == (most[1] is None) == (after.source is None)
    assert (after.lengths <= (source if target is None else target)).all() and (source <= most[0]).all()
    assert after.source is None or (after.source.lengths <= source).all()
    assert target is None or most[1] is None or (target <= most[1]).all()
    assert (source >= 1)[before.lengths > 0].all() and (target is None or (target >= 1).all())
    tokens = after.lengths if after.source is None else after.lengths + after.source.lengths
    assert (made.corruption.count_tokens(known, rng) == tokens).all(), "the tokens are miscounted"


def specials_are_left_alone(made: Setting, before: Sequences, after: Sequences) -> None:
    """No special token is drawn, predicted out of nothing, or changed, but for those that stand for what is missing."""
    assert before.special is not None and after.targets is not None
    vocabulary = made.vocabulary
    stand_ins = {vocabulary.find("mask"), vocabulary.start, *vocabulary.sentinels}
    read = after if after.source is None else after.source
    rows = zip(
        by_sequence(before.tokens, before.offsets),
        by_sequence(read.tokens, read.offsets),
        by_sequence(after.targets, after.offsets),
        strict=True,
    )
    special = {*vocabulary.special}
    for text, shown, labels in rows:
        there = {*text} & special
        assert {*shown} & special <= there | stand_ins
        assert {*labels} & special <= there | {*vocabulary.sentinels} | {vocabulary.find("eos")}
        assert {*labels} <= {*text, IGNORE_INDEX} | special
    if len(after.tokens) == len(before.tokens) and after.source is None and (after.offsets == before.offsets).all():
        assert (after.tokens[before.special] == before.tokens[before.special]).all()


MASK = Vocabulary.from_tokenizer(trained("wordpiece", "cls-sep")).require("mask", "the suite")
BROKEN: dict[str, Callable[[Sequences, Sequences], Sequences]] = {
    "looks at the others in the batch": lambda b, a: replace(
        a, tokens=a.tokens + (a.targets != IGNORE_INDEX) * (len(a) - 1)
    ),
    "hides a special token": lambda b, a: replace(a, tokens=np.where(b.special, MASK, a.tokens)),
    "asks for a special token": lambda b, a: replace(a, targets=np.where(b.special, 0, a.targets)),
    "draws a special token": lambda b, a: replace(a, tokens=np.where(a.tokens == MASK, 0, a.tokens)),
    "loses a token": lambda b, a: replace(a, targets=np.full_like(a.targets, IGNORE_INDEX)),
    "asks for something else": lambda b, a: replace(
        a, targets=np.where(a.targets == IGNORE_INDEX, IGNORE_INDEX, b.tokens[1])
    ),
    "asks for more than it has room for": lambda b, a: replace(a, targets=np.where(b.special, IGNORE_INDEX, b.tokens)),
    "drops a sequence": lambda b, a: a.take(np.arange(len(a) - 1)),
    "adds a token": lambda b, a: replace(
        a,
        tokens=np.append(a.tokens, 9),
        targets=np.append(a.targets, IGNORE_INDEX),
        offsets=np.append(a.offsets[:-1], a.offsets[-1] + 1),
    ),
    "is random": lambda b, a: replace(
        a, tokens=np.where(b.special, a.tokens, np.random.default_rng().permutation(a.tokens))
    ),
    "changes the text": lambda b, a: (b.tokens.__setitem__(1, 9), a)[1],
}


@dataclass(frozen=True)
class Broken(Corruption):
    """A corruption with a fault."""

    corruption: Corruption
    worse: Callable[[Sequences, Sequences], Sequences]

    @property
    def copies(self) -> int | None:
        return self.corruption.copies

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return self.corruption.lengths(n)

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        return self.worse(sequences, self.corruption.corrupt(sequences, rng))

    def targets(self, tokens: int, sequences: int) -> int:
        return self.corruption.targets(tokens, sequences)


@pytest.mark.parametrize("fault", BROKEN)
def test_the_laws_can_be_broken(fault: str) -> None:
    made = setting("masked", "encoder")
    corruption_keeps_the_laws(made, [200, 90, 300], 0)
    with pytest.raises(AssertionError):
        corruption_keeps_the_laws(replace(made, corruption=Broken(made.corruption, BROKEN[fault])), [200, 90, 300], 0)


@every
def test_other_seeds_and_epochs_change_the_corruption(name: str, shape: ModelShape) -> None:
    made = setting(name, shape)
    before = made.sequences([500] * 4)
    first = made.corrupt(before)
    again = [made.corrupt(before, 1), made.corrupt(_at(before, epoch=1))]
    for other in again:
        same = first.tokens.shape == other.tokens.shape and (first.tokens == other.tokens).all()
        same = same and first.targets.shape == other.targets.shape and (first.targets == other.targets).all()
        same = same and (first.order is None or (first.order == other.order).all())
        if first.source is not None and other.source is not None:
            same = same and np.array_equal(first.source.tokens, other.source.tokens)
        assert same == (name.partition("-")[0] in DETERMINISTIC)
    if made.corruption.copies is not None:
        alike(_at(first, epoch=0), _at(made.corrupt(_at(before, epoch=made.corruption.copies)), epoch=0))


def _at(sequences: Sequences, epoch: int) -> Sequences:
    return replace(sequences, epochs=np.full(len(sequences), epoch))


@every
@kinds
def test_nothing_in_nothing_out(name: str, shape: ModelShape, kind: str) -> None:
    made = setting(name, shape, kind)
    none = made.corrupt(made.sequences([5, 6]).take(np.arange(0)))
    assert len(none) == 0 and none.targets is not None and len(none.targets) == 0
    assert none.source is None or len(none.source) == 0


@every
def test_sequences_without_text(name: str, shape: ModelShape) -> None:
    """All that is special stays, whatever stands beside it."""
    made = setting(name, shape)
    before = made.sequences([9, 1, 3])
    bare = before.special is not None and bool(before.special.any())
    if not bare:
        pytest.skip("nothing stands around the texts of this style")
    empty = made.sequences([7, 0, 2])
    after = made.corrupt(empty)
    assert len(after) == 3
    bounds_hold(made, empty, after)
    plans_hold(made, empty, after, 0)
    specials_are_left_alone(made, empty, after)


@every
def test_bounds_grow(name: str, shape: ModelShape) -> None:
    """A longer text never has a smaller bound, and nothing is free."""
    source, target = setting(name, shape).corruption.lengths(np.arange(2050))
    for bound in (source, target):
        assert bound is None or ((np.diff(bound) >= 0).all() and bound[-1] >= 1)


@every
def test_target_slots_are_enough_and_not_wasted(name: str, shape: ModelShape) -> None:
    """In thirty batches of 8,192 tokens none needs more; what is expected to be spare is less than a third."""
    made, most, slots = setting(name, shape), 0, 0
    for seed in range(30):
        after = made.corrupt(made.sequences([128] * 64, seed), seed)
        found, slots = int((after.targets != IGNORE_INDEX).sum()), made.corruption.targets(len(after.tokens), 64)
        assert found <= slots
        most = max(most, found)
    assert slots <= 1.5 * most


# Loss


def losses(made: Setting, sequences: Sequences, per_row: int, model: object) -> Loss:
    with torch.no_grad():
        loss: Loss = made.attach(model).loss(model, together(sequences, per_row))
        return loss


def some(made: Setting, lengths: Sequence[int] = (12, 3, 20, 7, 16, 9, 14, 5)) -> Sequences:
    return made.corrupt(made.sequences(lengths, seed=5), seed=5)


@trained_shapes
def test_loss_adds_up(name: str, shape: ModelShape) -> None:
    """The loss of a batch is that of its parts, however they are laid out; loss terms have the declared counts."""
    made = setting(name, shape)
    model, sequences = made.model().eval(), some(made)
    whole = losses(made, sequences, 4, model)
    counts = made.objective.counts(together(sequences, 4))
    assert [*counts] == [*whole.get_terms()]
    for cut in (1, 3):
        halves = [
            losses(made, sequences.take(np.arange(*span)), rows, model)
            for span, rows in (((0, cut), 1), ((cut, len(sequences)), 2))
        ]
        total = halves[0] + halves[1]
        assert [*total.get_terms()] == [*whole.get_terms()]
        for term, loss in whole.get_terms().items():
            assert int(total.get_terms()[term].count) == int(loss.count) == int(counts[term]) > 0, term
            torch.testing.assert_close(total.get_terms()[term].sum, loss.sum, rtol=1e-5, atol=1e-5)
            assert loss.sum.item() > 0


@trained_shapes
def test_accumulation_changes_nothing(name: str, shape: ModelShape) -> None:
    """The gradient of a step is the same in one piece and in several, whose numbers of targets differ."""
    made = setting(name, shape)
    model, sequences = made.model().eval(), some(made)
    objective = made.attach(model)
    counts = objective.counts(together(sequences, 2))
    found = []
    for pieces in (1, 3):
        model.zero_grad()
        for which in np.array_split(np.arange(len(sequences)), pieces):
            objective.loss(model, together(sequences.take(which), 2)).normalize(counts).backward()
        found.append({key: value.grad.clone() for key, value in model.named_parameters() if value.grad is not None})
    assert found[0].keys() == found[1].keys() and found[0]
    for key, gradient in found[0].items():
        torch.testing.assert_close(found[1][key], gradient, rtol=1e-4, atol=1e-5, msg=key)


QUICK_LEARNED = [
    ("causal", "decoder"),
    ("bidirectional", "two-way"),
    ("next_sentence", "encoder"),
    ("replaced_token", "generator-discriminator"),
    ("span_corruption", "encoder-decoder"),
    ("permuted", "two-stream"),
    ("distill", "encoder"),
]
"""One objective of each shape of model and kind of loss."""


@pytest.mark.parametrize(("name", "shape"), keep_quick(TRAINED, *QUICK_LEARNED))
def test_one_batch_is_learned_by_heart(name: str, shape: ModelShape) -> None:
    """In a few steps the loss falls below half, and so does each of its terms that started above nothing."""
    made = setting(name, shape)
    torch.manual_seed(0)
    model = MODELS[shape](made.vocabulary.size).train()
    batch = together(some(made, [LONG // 4] * 8), 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    objective = made.attach(model)
    first = objective.loss(model, batch).mean().item()
    for _ in range(80):
        optimizer.zero_grad()
        loss = objective.loss(model, batch).mean()
        loss.backward()
        optimizer.step()
        if loss.item() < first / 2:
            return
    pytest.fail(f"{first:.3f} fell to {loss.item():.3f} only")


@trained_shapes
def test_a_batch_without_targets_costs_nothing(name: str, shape: ModelShape) -> None:
    made = setting(name, shape)
    sequences = some(made)
    assert sequences.targets is not None
    silent = replace(sequences, targets=np.full_like(sequences.targets, IGNORE_INDEX))
    if sequences.labels is not None:
        silent = replace(silent, labels=np.full_like(sequences.labels, IGNORE_INDEX))
    main = next(iter(losses(made, silent, 2, made.model().eval()).get_terms().values()))
    assert main.sum.item() == 0 and main.count.item() == 0


# Values


@pytest.mark.parametrize("name", [name for name, shape in EVERY if shape == "decoder"])
def test_attention_to_later_tokens_is_declared(name: str) -> None:
    case = setting(name, "decoder")
    corrupted = case.corrupt(case.sequences([*range(4, 40)]))
    assert case.objective.needs_attention == (corrupted.prefix is not None)


@pytest.mark.parametrize("name", CASES)
def test_round_trip(name: str) -> None:
    for objective in (CASES[name], CASES[name].to_evaluation()):
        written = json.loads(json.dumps(config.to_dict(objective)))
        assert config.from_dict(type(objective), written) == objective
        assert hash(objective) == hash(config.from_dict(type(objective), written))


@pytest.mark.parametrize("name", CASES)
def test_other_shapes_are_refused_in_one_line(name: str) -> None:
    objective = CASES[name]
    assert objective.shapes and {*objective.shapes} <= {*MODEL_SHAPES}
    for shape in {*MODEL_SHAPES} - {*objective.shapes}:
        with pytest.raises(UsageError) as caught:
            objective.bind(Vocabulary.from_tokenizer(trained("unigram", "s-mask")), shape)
        line = str(caught.value)
        assert "\n" not in line and shape in line and all(known in line for known in objective.shapes)


@pytest.mark.parametrize("name", CASES)
def test_evaluation_is_settled(name: str) -> None:
    """What is measured with is measured with by itself, and never masked anew from a few copies."""
    objective: Objective = CASES[name].to_evaluation()
    assert objective.to_evaluation() == objective
    assert type(objective) is type(CASES[name])
    assert objective.shapes == CASES[name].shapes and objective.pairs == CASES[name].pairs
