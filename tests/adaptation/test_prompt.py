"""Slots in the layout, and what a prompt does with them."""

import copy

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.adaptation.peft.prefix import PromptTuning
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Sequences, reserve
from tests.contracts.laws import equal, read
from tests.contracts.tiny import model_of, text


def test_slots_stand_before_each_sequence() -> None:
    sequences = Sequences(
        tokens=np.array([5, 6, 7, 8]),
        offsets=np.array([0, 3, 3, 4]),
        special=np.array([True, False, False, False]),
        targets=np.array([IGNORE_INDEX, 9, IGNORE_INDEX, 4]),
        prefix=np.array([2, 0, 0]),
    )
    slotted_sequences = reserve(sequences, 2)
    assert slotted_sequences.tokens.tolist() == [0, 0, 5, 6, 7, 0, 0, 0, 0, 8]
    assert slotted_sequences.offsets.tolist() == [0, 5, 7, 10]
    assert slotted_sequences.special is not None
    assert np.flatnonzero(~slotted_sequences.special).tolist() == [3, 4, 9]
    ignored = [IGNORE_INDEX]
    assert slotted_sequences.targets is not None
    assert slotted_sequences.targets.tolist() == ignored * 3 + [9] + ignored * 5 + [4]
    assert slotted_sequences.prefix is not None and slotted_sequences.prefix.tolist() == [4, 0, 0]
    assert slotted_sequences.words is None
    same = reserve(sequences, 0)
    assert same.tokens.tolist() == sequences.tokens.tolist() and same.offsets.tolist() == sequences.offsets.tolist()
    two_sided = reserve(Sequences(tokens=sequences.tokens, offsets=sequences.offsets, source=sequences), 2)
    assert two_sided.tokens.tolist() == sequences.tokens.tolist()
    assert two_sided.source is not None and two_sided.source.tokens.tolist() == slotted_sequences.tokens.tolist()
    with pytest.raises(UsageError, match=r"-1\b"):
        reserve(sequences, -1)


@pytest.mark.parametrize("case", ["bert-base", "gpt2-small", "llama3-8b"])
def test_a_prompt_of_real_tokens_is_those_tokens(case: str) -> None:
    """Whatever stands in the slots, and wherever in a row they are."""
    model = copy.deepcopy(model_of(case))
    sentences = text(4, 6, 3)
    expected = read(model, [[11, 7, *sentence] for sentence in sentences], row=17)
    PromptTuning(count=2, tokens=(11, 7)).apply(model)
    for slot in (0, 30):
        states = read(model, [[slot, slot, *sentence] for sentence in sentences], row=17)
        equal(torch.cat(states), torch.cat(expected), 1e-6)


def test_a_prompt_starts_from_real_tokens() -> None:
    model = copy.deepcopy(model_of("bert-base"))
    assert PromptTuning(count=5).apply(model) == ("prompt.table",)
    table = model.get_parameter("prompt.table")
    assert all((row == model.tokens.weight).all(-1).any() for row in table)
    with pytest.raises(UsageError, match="'prompt'"):
        PromptTuning(count=5).apply(model)
    with pytest.raises(UsageError, match=r"\b60\b.*\b99\b"):
        PromptTuning(count=1, tokens=(99,)).apply(pt.build(model.spec))
