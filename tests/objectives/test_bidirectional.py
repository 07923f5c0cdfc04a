"""Both ways: the labels of each, and that each half is a language model by itself."""

import pytest
import torch

import pretune as pt
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.models.bidirectional_lm import BidirectionalLM, build_bidirectional_lm, make_two_way
from pretune.models.catalog import resolve
from pretune.objectives.causal import Bidirectional, CausalLM, shift_targets_back
from tests.contracts.tiny import rough

SEQUENCES = [[5, 6, 7, 8], [9], [3, 4, 5]]


@pytest.fixture(scope="module")
def model() -> BidirectionalLM:
    spec = resolve("gpt2", {"width": 32, "depth": 2, "heads": 2, "vocab": 17, "positions": 12, "dropout": 0.0})
    made = build_bidirectional_lm(make_two_way(spec))
    rough(made)  # type: ignore[arg-type]
    return made


def shifted(sequences: list[list[int]]) -> list[list[int]]:
    return [[*sequence[1:], IGNORE_INDEX] for sequence in sequences]


def test_labels() -> None:
    """The cat sat down: forth `cat sat down`, back `The cat sat`, each under the token that says it."""
    batch = shift_targets_back(pt.batch([[11, 12, 13, 14]], labels=[[12, 13, 14, IGNORE_INDEX]]))
    assert batch.targets is not None
    assert batch.targets.index.tolist() == [1, 2, 3] and batch.targets.labels.tolist() == [11, 12, 13]


def test_spare_slots_stay_spare() -> None:
    from dataclasses import replace

    batch = pt.batch([[11, 12, 13]], labels=[[12, 13, IGNORE_INDEX]])
    assert batch.targets is not None
    spare = replace(
        batch.targets,
        index=torch.cat((batch.targets.index, torch.zeros(2, dtype=torch.long))),
        labels=torch.cat((batch.targets.labels, torch.full((2,), IGNORE_INDEX))),
    )
    found = shift_targets_back(replace(batch, targets=spare)).targets
    assert found is not None
    assert found.index.tolist() == [1, 2, 0, 0] and found.labels.tolist() == [11, 12, IGNORE_INDEX, IGNORE_INDEX]


def test_each_half_is_a_language_model(model: BidirectionalLM) -> None:
    batch = pt.batch(SEQUENCES, row=6, labels=shifted(SEQUENCES))
    turned = [sequence[::-1] for sequence in SEQUENCES]
    loss = Bidirectional().loss(model, batch)
    forward = CausalLM().loss(model.forwards, batch)
    backward = CausalLM().loss(model.backwards, pt.batch(turned, labels=shifted(turned)))
    torch.testing.assert_close(loss.parts["forward"].sum, forward.sum)
    torch.testing.assert_close(loss.parts["backward"].sum, backward.sum)
    assert loss.sum is loss.parts["forward"].sum
    counts = Bidirectional().counts(batch)
    assert {name: int(count) for name, count in counts.items()} == {"forward": 5, "backward": 5}
    assert {name: int(part.count) for name, part in loss.parts.items()} == {"forward": 5, "backward": 5}


def test_a_model_of_one_way_is_refused(model: BidirectionalLM) -> None:
    batch = pt.batch(SEQUENCES, labels=shifted(SEQUENCES))
    with pytest.raises(UsageError, match="bidirectional"):
        Bidirectional().loss(model.forwards, batch)
