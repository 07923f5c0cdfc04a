"""The module a spec builds: losses add up, the pooler looks at first tokens, and what cannot be is refused."""

from typing import Any

import pytest
import torch

import pretune as pt
from pretune.core.errors import UsageError
from pretune.models.model import LanguageModel
from tests.contracts.tiny import CASES, ROOM, lay, model_of, text


def refused(words: str, call: Any) -> None:
    with pytest.raises(UsageError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


# Loss


def loss(total: float, count: int, **parts: pt.Loss) -> pt.Loss:
    return pt.Loss(sum=torch.tensor(total), count=torch.tensor(count), parts=parts)


def test_losses_add_with_their_parts() -> None:
    """Parts that both have are added, parts that one has are kept, and neither side is changed.

    The mean is that of the parts, each over its own count; sum and count are the main one's.
    """
    left = loss(9.0, 3, masked=loss(6.0, 2), pair=loss(3.0, 1))
    right = loss(5.0, 2, masked=loss(4.0, 1), order=loss(1.0, 1))
    both = left + right
    assert (both.sum.item(), both.count.item(), both.mean().item()) == (14.0, 5, pytest.approx(10 / 3 + 3 / 1 + 1 / 1))
    assert {name: (part.sum.item(), part.count.item()) for name, part in both.parts.items()} == {
        "masked": (10.0, 3),
        "pair": (3.0, 1),
        "order": (1.0, 1),
    }
    assert set(left.parts) == {"masked", "pair"} and left.parts["masked"].sum.item() == 6.0


def test_parts_of_parts_add_too() -> None:
    one = loss(1.0, 1, outer=loss(1.0, 1, inner=loss(1.0, 1)))
    assert (one + one + one).parts["outer"].parts["inner"].sum.item() == 3.0


def test_nothing_to_predict_is_no_loss() -> None:
    assert loss(0.0, 0).mean().item() == 0.0
    model, batch = model_of("bert-base"), lay(CASES["bert-base"], text(3, 2), labels=[[-100] * 3, [-100] * 2])
    actual = model.loss(model.states(batch), batch)
    assert actual.count == 0 and actual.mean() == 0


@torch.no_grad()
def test_halves_of_a_batch_add_up() -> None:
    model, sequences = model_of("gpt2-small"), text(6, 3, 8, 5)
    labels = [row[::-1] for row in sequences]

    def over(part: slice) -> pt.Loss:
        batch = pt.batch(sequences[part], labels=labels[part])
        return model.loss(model.states(batch), batch)

    whole, halves = over(slice(None)), over(slice(2)) + over(slice(2, None))
    assert whole.count == halves.count == 22
    torch.testing.assert_close(whole.sum, halves.sum, rtol=1e-5, atol=1e-4)


def test_a_loss_needs_targets_and_a_head() -> None:
    model = model_of("bert-base")
    batch = lay(model.spec, text(3))
    refused("targets", lambda: model.loss(model.states(batch), batch))


# Pooler


@torch.no_grad()
def test_the_pooler_takes_first_tokens() -> None:
    model, batch = model_of("bert-base"), lay(CASES["bert-base"], text(6, 3, 8, 1, 5), row=11)
    states = model(batch).states
    pooled = model.pool(states, batch)
    assert pooled.shape == (batch.cells, model.spec.width)
    cells = [int(batch.sequence[start]) for start, _ in batch.list_spans()]
    first = torch.stack([part[0] for part in batch.split(states)])
    expected = torch.tanh(first @ model.pooler.dense.weight.T + model.pooler.dense.bias)
    torch.testing.assert_close(pooled[cells], expected, rtol=0, atol=1e-6)
    assert torch.isfinite(pooled).all(), "those of filler mean nothing, but spoil nothing"


def test_no_pooler_is_told() -> None:
    model, batch = model_of("gpt2-small"), pt.batch([[1, 2]])
    refused("pooler", lambda: model.pool(model(batch).states, batch))


# What cannot be


def test_an_encoder_has_no_cache() -> None:
    model = model_of("bert-base")
    refused("decoder", lambda: model.new_cache(1, 4))
    refused("decoder", lambda: model.step(torch.tensor([1]), model_of("gpt2-small").new_cache(1, 4)))


@pytest.mark.parametrize("name", ["gpt2-small", "opt-125m", "bart-base"])
def test_a_cache_ends_where_positions_do(name: str) -> None:
    model = model_of(name)
    assert model.spec.max_length == ROOM
    assert model.new_cache(2, ROOM, source=ROOM).capacity == ROOM
    refused(rf"\b{ROOM}\b", lambda: model.new_cache(2, ROOM + 1))
    if model.spec.is_encoder_decoder:
        refused(rf"\b{ROOM}\b", lambda: model.new_cache(2, 4, source=ROOM + 1))


def test_a_cache_without_positions_has_no_end() -> None:
    assert model_of("llama-7b").spec.max_length is None
    assert model_of("llama-7b").new_cache(1, 10 * ROOM).capacity == 10 * ROOM


@pytest.mark.parametrize("name", ["bert-base", "opt-125m", "bart-base"])
def test_a_sequence_beyond_the_positions_is_refused(name: str) -> None:
    """In one line, not from inside a kernel; a longer row of short sequences is fine."""
    model = model_of(name)
    with torch.no_grad():
        assert model(lay(model.spec, text(ROOM))).states.shape[0] == ROOM
        assert model(lay(model.spec, text(ROOM - 1, 6), row=ROOM + 5)).states.shape[0] > ROOM
    refused(str(ROOM), lambda: model(lay(model.spec, text(ROOM + 1))))
    if model.spec.is_encoder_decoder:
        refused(str(ROOM), lambda: model(lay(model.spec, text(2), text(ROOM + 1))))


@pytest.mark.parametrize("name", ["t5-base", "bart-base"])
def test_an_encoder_decoder_needs_both_sides(name: str) -> None:
    model, batch = model_of(name), pt.batch([[1, 2, 3]])
    refused("source", lambda: model(batch))
    refused("source", lambda: model.states(batch))


@pytest.mark.parametrize("name", ["bert-base", "gpt2-small"])
def test_one_side_takes_no_source(name: str) -> None:
    """A source that would be passed over in silence is a mistake of whoever gave it."""
    refused("source", lambda: model_of(name)(pt.batch(source=[[1, 2]], target=[[3]])))


def test_a_bare_model_has_no_logits() -> None:
    model: Any = pt.build(CASES["gpt2-small"], head=None)
    out = model(pt.batch([[1, 2, 3]], labels=[[1, 2, 3]]))
    assert out.logits is None and out.states.shape == (3, 32)
    refused("head", lambda: model.step(torch.tensor([1]), model.new_cache(1, 2)))


def test_names_of_parameters_are_api() -> None:
    """Adaptation and analysis rely on these."""
    actual = dict(model_of("bert-base").named_parameters())
    for part in ("q", "k", "v", "out"):
        assert f"encoder.1.attention.{part}.weight" in actual
    assert {"tokens.weight", "encoder.0.feedforward.up.bias", "pooler.dense.weight", "head.bias"} <= set(actual)
    assert "decoder.1.cross.q.weight" in dict(model_of("t5-base").named_parameters())
    model: LanguageModel = model_of("made-shared-layers")
    assert {path.split(".")[1] for path, _ in model.named_parameters() if path.startswith("encoder.0")} == {"0"}
