"""Span masking: runs of whole words, numbered, and their edges."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.config import from_dict, to_dict
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape
from pretune.data.sequences import Sequences, compute_offsets
from pretune.models.catalog import resolve
from pretune.models.cost import count_params_by_part
from pretune.models.model import LanguageModel, build
from pretune.models.spec import Model
from pretune.nn.heads import SpanHead
from pretune.objectives.segment_sampling import WordSpans
from pretune.objectives.span_masked import Boundary, Geometric, NGram, SpanMaskedLM, cut_runs, find_span_edges
from tests.contracts.tiny import rough
from tests.objectives.texts import MASK, VOCABULARY, corrupt, text


def spans(after: Sequences) -> list[list[int]]:
    """The places of every span, found one token at a time."""
    assert after.blanks is not None
    found: dict[tuple[int, int], list[int]] = {}
    for place, (owner, number) in enumerate(zip(after.find_owners().tolist(), after.blanks.tolist(), strict=True)):
        if number >= 0:
            found.setdefault((owner, number), []).append(place)
    return list(found.values())


def test_lengths_are_geometric_and_never_above_ten() -> None:
    drawn = Geometric().draw(np.random.default_rng(0).integers(0, 2**64, 200_000, dtype=np.uint64))
    assert drawn.min() == 1 and drawn.max() == 10
    odds = 0.8 ** np.arange(10)
    found = np.bincount(drawn, minlength=11)[1:] / 200_000
    assert np.abs(found - odds / odds.sum()).max() < 4 * np.sqrt(0.22 * 0.78 / 200_000)
    assert abs(drawn.mean() - 3.797) < 4 * drawn.std() / np.sqrt(200_000)  # the paper's 3.8


def test_short_n_grams_are_more_likely() -> None:
    drawn = NGram().draw(np.random.default_rng(0).integers(0, 2**64, 200_000, dtype=np.uint64))
    found = np.bincount(drawn, minlength=5)[1:] / 200_000
    expected = np.array([6, 3, 2, 0]) / 11  # 1, 1/2 and 1/3 over their sum
    assert np.abs(found - expected).max() < 4 * np.sqrt(0.25 / 200_000)


def test_all_words_are_cut_into_runs() -> None:
    words = WordSpans(np.array([1, 2, 4, 6, 9, 10]), np.array([1, 2, 1, 2, 1, 3]), np.array([4, 0, 2]))
    # In tokens: [1][2 3][4]  |  [6 7]  |  [9][10 11 12], with something special at 5 and the next sequence from 8 on
    runs = cut_runs(words, np.array([2, 9, 9, 1, 1, 1]))
    assert runs.start.tolist() == [1, 4, 6, 9, 10]
    assert runs.length.tolist() == [3, 1, 2, 1, 3]
    assert runs.sizes.tolist() == [3, 0, 2]


@given(length=st.integers(3, 90), pairs=st.booleans(), rate=st.sampled_from((0.15, 0.5, 1.0)), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_spans(length: int, pairs: bool, rate: float, seed: int) -> None:
    """Contiguous, of whole words but for the one that meets the budget, numbered, apart from what is special."""
    before = text(3, length, pairs=pairs, seed=seed)
    after = corrupt(SpanMaskedLM(rate=rate), before, seed)
    assert before.special is not None and before.words is not None
    assert after.blanks is not None and after.targets is not None
    assert ((after.blanks >= 0) == (after.targets != IGNORE_INDEX)).all()
    assert (after.blanks[before.special] == -1).all()
    ordinary = (~before.special).reshape(3, -1).sum(1)
    counts = (after.blanks >= 0).reshape(3, -1).sum(1)
    assert (np.abs(counts - rate * ordinary) < 1).all()
    number = np.cumsum(before.words)
    cuts = [0, 0, 0]
    for places in spans(after):
        assert places == list(range(places[0], places[-1] + 1))
        assert before.words[places[0]]
        inside = len(np.unique(number[places]))
        assert inside <= 10
        whole = places[-1] + 1 == len(number) or number[places[-1] + 1] != number[places[-1]]
        cuts[places[0] // length] += not whole
    assert max(cuts) <= 1
    for row in after.blanks.reshape(3, -1):
        used = row[row >= 0]
        assert (np.diff(used) >= 0).all() and set(used) == set(range(len(set(used))))


def test_statistics() -> None:
    before = text(300, 514)
    after = corrupt(SpanMaskedLM(), before)
    assert before.words is not None and after.targets is not None
    chosen = after.targets != IGNORE_INDEX
    assert abs(chosen.sum() - 0.15 * 300 * 512) < 3 * np.sqrt(300 / 4)
    number, found = np.cumsum(before.words), spans(after)
    words = np.array([len(np.unique(number[places])) for places in found])
    # One in some dozen is cut where the budget ends, and one per text where the text does.
    assert 3.4 < words.mean() < 3.8
    shown = np.array([_kind(after.tokens[places], before.tokens[places]) for places in found])
    for kind, share in (("masked", 0.8), ("replaced", 0.1), ("kept", 0.1)):
        deviation = np.sqrt(share * (1 - share) / len(found))
        assert abs((shown == kind).mean() - share) < 3 * deviation, kind
    for place in (1, 2, 100, 511, 512):  # every word is as likely to be hidden, but for those at the ends
        assert abs(chosen.reshape(300, -1)[:, place].mean() - 0.15) < 4 * np.sqrt(0.15 * 0.85 / 300)


def test_n_grams_are_replaced_token_by_token() -> None:
    """ALBERT's shares hold for tokens, and a span may be shown in several ways."""
    before = text(300, 514)
    after = corrupt(SpanMaskedLM(spans=NGram(), replace_by="token"), before)
    assert before.words is not None and after.targets is not None
    number = np.cumsum(before.words)
    found = spans(after)
    assert max(len(np.unique(number[places])) for places in found) == 3
    chosen = after.targets != IGNORE_INDEX
    shown, count = after.tokens[chosen], chosen.sum()
    share = (shown == MASK).mean()
    assert abs(share - 0.8) < 3 * np.sqrt(0.8 * 0.2 / count)
    several = [after.tokens[places] == MASK for places in found if len(places) == 2]
    mixed = np.mean([masked.any() and not masked.all() for masked in several])
    assert abs(mixed - 2 * 0.8 * 0.2) < 3 * np.sqrt(0.32 * 0.68 / len(several))


def _kind(shown: np.ndarray, was: np.ndarray) -> str:
    """What a span is shown as: all of it the same."""
    if (shown == MASK).all():
        return "masked"
    assert not (shown == MASK).any()
    return "kept" if (shown == was).all() else "replaced"


# The boundary objective


def batch_of(*, blanks: list[list[int]], room: int, row: list[int]) -> tuple[object, ...]:
    lengths = np.array([len(one) for one in blanks])
    flat = np.concatenate([np.array(one) for one in blanks])
    tokens = np.arange(len(flat)) + 10
    made = Sequences(
        tokens=tokens, offsets=compute_offsets(lengths), blanks=flat, targets=np.where(flat >= 0, tokens, IGNORE_INDEX)
    )
    return made, lay_out(made, np.array(row), BatchShape(rows=max(row) + 1, length=room, sequences=4, slots=9))


def test_edges() -> None:
    """Two neighbouring spans, spans at the ends of texts without special tokens, and spare slots."""
    _, batch = batch_of(blanks=[[-1, 0, 0, 1, -1], [0, 0, 0], [-1, -1], [-1, 0, -1, 1, 1]], room=9, row=[0, 0, 1, 1])
    found = find_span_edges(batch)
    count = int((batch.targets.labels != IGNORE_INDEX).sum())
    assert batch.targets.index[:count].tolist() == [1, 2, 3, 5, 6, 7, 12, 14, 15]
    assert found.left[:count].tolist() == [0, 0, 2, 5, 5, 5, 11, 13, 13]
    assert found.right[:count].tolist() == [3, 3, 4, 7, 7, 7, 13, 15, 15]
    assert found.place[:count].tolist() == [0, 1, 0, 0, 1, 2, 0, 0, 1]
    assert ((found.left >= 0) & (found.right < 18)).all()


@given(seed=st.integers(0, 999), length=st.integers(3, 40), pairs=st.booleans())
@settings(max_examples=20)
def test_edges_are_those_one_would_point_at(seed: int, length: int, pairs: bool) -> None:
    after = corrupt(SpanMaskedLM(rate=0.4), text(5, length, pairs=pairs, seed=seed), seed)
    batch = lay_out(after, np.array([0, 0, 1, 2, 2]), BatchShape(rows=4, length=2 * length + 3, sequences=3, slots=80))
    assert batch.targets is not None
    found = find_span_edges(batch)
    base = [0, length, 2 * length + 3, 2 * (2 * length + 3), 2 * (2 * length + 3) + length]
    expected = {}
    for places in spans(after):
        shift = base[places[0] // length] - places[0] // length * length
        for number, place in enumerate(places):
            expected[place + shift] = (places[0] - 1 + shift, places[-1] + 1 + shift, number)
    real = batch.targets.labels != IGNORE_INDEX
    rows = zip(batch.targets.index[real].tolist(), *(part[real].tolist() for part in found), strict=True)
    assert {index: rest for index, *rest in rows} == {key: [*value] for key, value in expected.items()}


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    small = {"width": 32, "depth": 1, "heads": 2, "hidden": 40, "vocab": VOCABULARY.size, "dropout": 0.0}
    return rough(build(replace(resolve("bert-tiny", small), span=SpanHead(rows=4, place_width=6)))).eval()


def test_the_boundary_loss_by_hand(model: LanguageModel) -> None:
    after = corrupt(SpanMaskedLM(rate=0.3), text(4, 30, seed=3))
    batch = lay_out(after, np.array([0, 1, 1, 2]), BatchShape(rows=3, length=61, slots=30))
    masked = SpanMaskedLM(boundary=Boundary(weight=0.5))
    with torch.no_grad():
        loss, states = masked.loss(model, batch), model.states(batch)
    assert model.span is not None
    total, longest = 0.0, 0
    base = [0, 61, 91, 122]
    for places in spans(after):
        shift = base[places[0] // 30] - places[0] // 30 * 30
        for number, place in enumerate(places):
            read = [states[places[0] - 1 + shift], states[places[-1] + 1 + shift]]
            hidden = torch.cat([*read, model.span.place.weight[min(number, 3)]])
            for layer in (model.span.first, model.span.second):
                hidden = F.layer_norm(F.gelu(layer.dense(hidden)), (32,), layer.norm.weight, layer.norm.bias)
            logits = model.tokens.weight @ hidden + model.span.bias
            total += F.cross_entropy(logits, torch.tensor(int(after.targets[place]))).item()
            longest = max(longest, number)
    assert longest >= 4  # beyond the table of places
    assert [*loss.get_terms()] == ["masked", "boundary"] and loss.parts["boundary"].weight == 0.5
    assert loss.parts["boundary"].sum.item() == pytest.approx(total, rel=1e-5)
    assert loss.sum.item() == pytest.approx(model.loss(states, batch).sum.item(), rel=1e-6)
    assert int(loss.parts["boundary"].count) == int(loss.count) == (after.targets != IGNORE_INDEX).sum()


def test_the_span_head_is_counted_and_saved(model: LanguageModel) -> None:
    spec = model.spec
    assert spec.params().total == sum(p.numel() for p in model.parameters()) == sum(count_params_by_part(spec).values())
    without = replace(spec, span=None).params().total
    assert spec.params().total - without == sum(p.numel() for p in model.span.parameters())
    assert from_dict(Model, to_dict(spec)) == spec


def test_a_model_without_a_span_head() -> None:
    small = {"width": 32, "depth": 1, "heads": 2, "hidden": 40, "vocab": VOCABULARY.size}
    bare = build(resolve("bert-tiny", small))
    after = corrupt(SpanMaskedLM(), text(4, 30))
    batch = lay_out(after, np.arange(4), BatchShape(rows=4, length=30))
    assert SpanMaskedLM().loss(bare, batch).sum > 0
    with pytest.raises(UsageError):
        SpanMaskedLM(boundary=Boundary()).loss(bare, batch)
    with pytest.raises(UsageError):
        find_span_edges(replace(batch, blanks=None))


def test_settings() -> None:
    for name, value in (("p", 0.0), ("p", 1.0), ("max_length", 0)):
        with pytest.raises(UsageError, match=rf"\b{value}\b"):
            Geometric(**{name: value})
    harder = SpanMaskedLM(rate=0.5, copies=2, spans=Geometric(max_length=3), boundary=Boundary())
    assert harder.to_evaluation() == SpanMaskedLM(spans=Geometric(max_length=3), boundary=Boundary())
    albert = SpanMaskedLM(rate=0.3, spans=NGram(), replace_by="token")
    assert albert.to_evaluation() == replace(albert, rate=0.15)
    assert from_dict(SpanMaskedLM, to_dict(albert)) == albert
