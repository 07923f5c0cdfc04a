"""Two ways: what each may see, what they share, how they are written down and read back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pretune as pt
from pretune.core import config
from pretune.core.errors import UsageError
from pretune.models.bidirectional_lm import (
    BidirectionalLM,
    TwoWay,
    build_bidirectional_lm,
    make_two_way,
    reverse_sequences,
)
from pretune.models.catalog import convert_to_shape, list_models
from tests.contracts import laws
from tests.contracts.tiny import rough, text, tiny
from tests.selection import scale_examples

FAMILIES = ("gpt2", "llama3", "mpt", "opt")


def model_of(family: str) -> BidirectionalLM:
    model = build_bidirectional_lm(make_two_way(tiny(family)))
    rough(model)  # type: ignore[arg-type]
    return model.eval()


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=7), room=st.integers(0, 5))
@settings(max_examples=scale_examples(40))
def test_mirrored(lengths: list[int], room: int) -> None:
    """Every sequence from its end, at the same place; twice is once again."""
    batch = pt.batch(text(*lengths), row=max(lengths) + room)
    turned, index = reverse_sequences(batch)
    assert [part.tolist() for part in turned.split(turned.tokens)] == [sequence[::-1] for sequence in text(*lengths)]
    assert torch.equal(turned.tokens[index], batch.tokens)
    assert torch.equal(turned.positions, batch.positions) and torch.equal(turned.offsets, batch.offsets)
    filler = batch.sequence < 0
    assert torch.equal(index[filler], torch.arange(len(filler))[filler])


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_what_each_way_sees(family: str) -> None:
    """A token at t changes the states forth from t on and the states back up to t, and no others."""
    model = model_of(family)
    (base,) = text(9)
    batch = pt.batch([base, *(laws.changed(base, t) for t in range(9))], row=21)
    forth, back = (batch.split(states) for states in model.compute_directional_states(batch))
    for t in range(9):
        laws.equal(forth[t + 1][:t], forth[0][:t])
        laws.moved(forth[t + 1][t : t + 2], forth[0][t : t + 2])
        laws.equal(back[t + 1][t + 1 :], back[0][t + 1 :])
        laws.moved(back[t + 1][max(t - 1, 0) : t + 1], back[0][max(t - 1, 0) : t + 1])


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_each_way_is_a_plain_model(family: str) -> None:
    """The way forth is the decoder alone; the way back is a decoder on reversed text. Packed or one at a time."""
    model, sequences = model_of(family), text(6, 3, 8, 1, 5)
    batch = pt.batch(sequences, row=11)
    forth, back = model.compute_directional_states(batch)
    laws.equal(forth, model.forwards.states(batch), laws.SAME)
    for sequence, one, other in zip(sequences, batch.split(forth), batch.split(back), strict=True):
        laws.equal(one, model.forwards.states(pt.batch([sequence])))
        laws.equal(other, model.backwards.states(pt.batch([sequence[::-1]])).flip(0))
    out = model(batch, hidden=True)
    laws.equal(out.states, torch.cat((forth, back), dim=1), laws.SAME)
    assert out.hidden is not None and torch.equal(out.hidden[-1], out.states)
    assert len(out.hidden) == model.spec.forwards.depth + 1


def test_counts_and_round_trip() -> None:
    for family in FAMILIES:
        spec = make_two_way(tiny(family))
        model = build_bidirectional_lm(spec)
        assert sum(p.numel() for p in model.parameters()) == spec.params().total
        stacks = (model.forwards.tokens, model.forwards.decoder, model.backwards.decoder)
        assert sum(p.numel() for part in stacks if part for p in part.parameters()) == spec.params().body
        assert config.from_dict(TwoWay, json.loads(json.dumps(config.to_dict(spec)))) == spec
        assert spec.shape == model.shape == "two-way" and list_models(spec) == (spec.forwards, spec.backward_spec)


def test_what_is_shared() -> None:
    model = pt.build(make_two_way(tiny("gpt2")), seed=3)
    shared = {id(p) for p in model.forwards.parameters()} & {id(p) for p in model.backwards.parameters()}
    assert {name for name, p in model.backwards.named_parameters() if id(p) in shared} == {"tokens.weight"}
    untied = pt.build(make_two_way(tiny("llama2")))
    assert untied.forwards.head is untied.backwards.head and untied.forwards.head.weight is not None
    alone = pt.build(model.spec.forwards, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(model.forwards.parameters(), alone.parameters(), strict=True))
    one, other = (dict(way.named_parameters()) for way in (model.forwards, model.backwards))
    drawn = [name for name in one if one[name].dim() > 1 and name != "tokens.weight"]
    assert drawn and not any(torch.equal(one[name], other[name]) for name in drawn)


def test_a_directory_is_the_way_forth_with_the_way_back_inside(tmp_path: Path) -> None:
    model = model_of("gpt2")
    pt.save(model, tmp_path / "run")
    assert pt.load(tmp_path / "run").spec == model.spec.forwards
    again = BidirectionalLM(pt.load(tmp_path / "run"), pt.load(tmp_path / "run/backward"))
    assert again.spec == model.spec
    batch = pt.batch(text(6, 3, 8))
    with torch.no_grad():
        assert all(map(torch.equal, again.compute_directional_states(batch), model.compute_directional_states(batch)))
    pt.save(model_of("llama3"), tmp_path / "other")
    (tmp_path / "run/backward").rename(tmp_path / "kept")
    (tmp_path / "other/backward").rename(tmp_path / "run/backward")
    with pytest.raises(UsageError):
        BidirectionalLM(pt.load(tmp_path / "run"), pt.load(tmp_path / "run/backward"))


def test_refused() -> None:
    spec = make_two_way(tiny("gpt2"))
    with pytest.raises(UsageError, match="'encoder'"):
        make_two_way(tiny("bert"))
    with pytest.raises(UsageError, match="causal"):
        replace(spec, backwards=replace(spec.backwards, causal=False))
    with pytest.raises(UsageError, match="prefix"):
        reverse_sequences(pt.batch(text(4, 5), prefix=[1, 2]))
    assert convert_to_shape(tiny("gpt2"), ["two-way"]) == spec
