"""A learned mix of layers: its formula, what is trained, and that any family can be read."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.freeze import Frozen, freeze
from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.sequence import Choice, Classification, Regression
from pretune.adaptation.heads.token import Span, Tagging
from pretune.adaptation.scalar_mix import LayerMix, Mixing, ScalarMixHead, extract_layers
from pretune.core.errors import UsageError
from pretune.models.bidirectional_lm import reverse_sequences
from pretune.nn.lstm import BiLSTM
from tests.contracts.tiny import CASES, lay, model_of, text
from tests.selection import keep_quick

SMALL = Mixing(lstm=BiLSTM(hidden=8), attention=4, dropout=0.0)


def build_head(width: int, layers: int, *, tagging: bool = False) -> ScalarMixHead:
    return ScalarMixHead(SMALL, classes=3, width=width, layers=layers, tagging=tagging)


FAMILY_CASES = {name.partition("-")[0]: name for name in CASES}
UNEQUAL_WIDTHS = {"ulmfit": "the inner layers of an AWD-LSTM are wider than its embeddings and its last layer"}
"""Families whose layers cannot be added, with the reason."""


@pytest.mark.parametrize("name", [name for family, name in FAMILY_CASES.items() if family not in UNEQUAL_WIDTHS])
def test_the_layers_of_every_family_can_be_read(name: str) -> None:
    model = copy.deepcopy(model_of(name)).train()  # that one is shared by all tests
    hidden, batch = extract_layers(model, lay(model.spec, text(6, 3, 8)))
    assert model.training and not any(layer.requires_grad for layer in hidden)
    logits = build_head(model.spec.width, len(hidden))(hidden, batch)
    assert logits.shape == (batch.cells, 3) and torch.isfinite(logits).all()
    tags = build_head(model.spec.width, len(hidden), tagging=True)(hidden, batch)
    assert tags.shape == (len(batch.tokens), 3)


@pytest.mark.parametrize("family", UNEQUAL_WIDTHS)
def test_layers_of_unequal_widths_are_refused(family: str) -> None:
    model = model_of(FAMILY_CASES[family])
    hidden, batch = extract_layers(model, lay(model.spec, text(6, 3, 8)))
    widths = ", ".join(str(layer.shape[-1]) for layer in hidden)
    with pytest.raises(UsageError, match=f"equal width, got {widths};"):
        build_head(model.spec.width, len(hidden))(hidden, batch)
    for head in HEADS.values():
        with pytest.raises(UsageError, match=f"equal width, got {widths};"):
            adapt(model, head)


def test_a_mix_is_weighed_by_a_softmax_and_scaled() -> None:
    torch.manual_seed(0)
    mix = LayerMix().build(width=4, layers=3)
    hidden = tuple(torch.randn(5, 4) for _ in range(3))
    torch.testing.assert_close(mix(hidden), sum(hidden) / 3)
    with torch.no_grad():
        mix.s.copy_(torch.tensor([0.0, 1.0, -1.0]))
        mix.gamma.fill_(2.0)
    share = mix.s.softmax(0)
    torch.testing.assert_close(mix(hidden), 2 * (share[0] * hidden[0] + share[1] * hidden[1] + share[2] * hidden[2]))
    with pytest.raises(UsageError, match=r"\b2 .*\b3\b"):
        mix(hidden[:2])


def test_a_mix_of_the_lowest_layers_knows_no_context() -> None:
    hidden = tuple(torch.randn(5, 4) for _ in range(3))
    mix = LayerMix(layers=1).build(width=4, layers=3)
    assert torch.equal(mix(hidden), hidden[0]) and mix.s.numel() == 1
    torch.testing.assert_close(LayerMix(layers=2).build(width=4, layers=3)(hidden), (hidden[0] + hidden[1]) / 2)
    with pytest.raises(UsageError, match=r"\b4 layers.* has 3\b"):
        LayerMix(layers=4).build(width=4, layers=3)


def test_a_mix_finds_the_layer_that_tells() -> None:
    torch.manual_seed(0)
    model = model_of(next(iter(CASES)))
    _, batch = extract_layers(model, lay(model.spec, text(6, 3, 8, 5)))
    owners = [int(batch.sequence[start]) for start, _ in batch.list_spans()]
    labels = torch.full((batch.cells,), -100)
    labels[owners] = torch.tensor([0, 1, 2, 1])
    noise, telling = torch.randn(len(batch.tokens), 6), torch.zeros(len(batch.tokens), 6)
    telling[batch.sequence >= 0, labels[batch.sequence[batch.sequence >= 0].long()]] = 1.0
    reader = build_head(6, 3)
    optimizer = torch.optim.Adam(reader.parameters(), lr=0.03)
    losses = []
    for _ in range(60):
        new_layers = (torch.randn_like(noise), telling, torch.randn_like(noise))
        loss = F.cross_entropy(reader(new_layers, batch), labels)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.3 * losses[0]
    assert int(reader.mix.s.argmax()) == 1


MIXING = Mixing(lstm=BiLSTM(hidden=4), attention=4, dropout=0.0)
HEADS: dict[str, TaskHead] = {
    "classification": Classification(classes=3, scalar_mix=MIXING),
    "regression": Regression(scalar_mix=MIXING),
    "tagging": Tagging(classes=3, scalar_mix=MIXING),
    "span": Span(scalar_mix=MIXING),
    "choice": Choice(scalar_mix=Mixing(lstm=BiLSTM(hidden=4), attention=None, dropout=0.0)),
}


MIXED = [(name, head) for name in ("bert-base", "gpt2-small", "bart-base", "t5-base") for head in HEADS]


@pytest.mark.parametrize(
    ("name", "head"), keep_quick(MIXED, *(pair for pair in MIXED if "bert-base" in pair or "tagging" in pair))
)
def test_a_mix_is_a_head_of_every_kind(name: str, head: str, tmp_path: Path) -> None:
    model = adapt(copy.deepcopy(model_of(name)), HEADS[head], seed=1).eval()
    batch = lay(model.model.spec, text(6, 3, 8))
    logits = model(batch)
    assert len(logits) == (len(batch.tokens) if head in ("tagging", "span") else 3)
    pt.save(model, tmp_path / "run")
    second_model = pt.load(tmp_path / "run")
    assert isinstance(second_model, ModelWithHead) and second_model.spec == model.spec
    torch.testing.assert_close(second_model(batch), logits, rtol=0, atol=0)


@pytest.mark.parametrize("head", ["classification", "tagging"])
def test_both_ways_are_mixed_as_elmo_does(head: str, tmp_path: Path) -> None:
    """The layers of the model from the left and of that from the right, each turned to its token, side by side."""
    body = copy.deepcopy(model_of("gpt2-small")).eval()
    spec = HEADS[head]
    model = adapt(body, replace(spec, scalar_mix=replace(MIXING, ways="both")), seed=1).eval()  # type: ignore[type-var]
    reader = model.head
    assert isinstance(reader, ScalarMixHead) and reader.backwards is not None
    batch = lay(model.model.spec, text(6, 3, 8))
    reverse_batch, index = reverse_sequences(batch)
    hidden = zip(extract_layers(body, batch)[0], extract_layers(reader.backwards, reverse_batch)[0], strict=True)
    layers = tuple(torch.cat((left, right.index_select(0, index)), dim=-1) for left, right in hidden)
    second, reader.backwards = reader.backwards, None
    expected = reader(layers, batch)
    reader.backwards = second
    expected = expected if head == "tagging" else expected[batch.find_sequence_cells()]
    torch.testing.assert_close(model(batch), expected, rtol=0, atol=0)
    freeze(model, Frozen())
    assert not any(weight.requires_grad for weight in second.parameters()) and reader.out.weight.requires_grad
    pt.save(model, tmp_path / "run")
    torch.testing.assert_close(pt.load(tmp_path / "run")(batch), expected, rtol=0, atol=0)


def test_two_ways_are_those_of_decoders() -> None:
    with pytest.raises(UsageError, match="'encoder'"):
        adapt(copy.deepcopy(model_of("bert-base")), Regression(scalar_mix=Mixing(ways="both")))
