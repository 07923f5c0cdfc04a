"""Virtual tokens start from real ones: frequent ones, never those with a meaning of their own."""

import copy
from dataclasses import replace

import pytest
import torch

from pretune.adaptation.peft.base import NUM_COMMON_TOKENS, choose_tokens
from pretune.adaptation.peft.prefix import PrefixTuning, PromptTuning, compute_keys_values, list_stacks
from pretune.models.catalog import resolve
from pretune.models.model import build
from tests.contracts.tiny import model_of

CASES = ["bert-base", "gpt2-small", "t5-base", "bart-base"]


@pytest.mark.parametrize("case", CASES)
def test_no_special_token_is_drawn(case: str) -> None:
    spec = model_of(case).spec
    special = replace(spec.special, eos=(3,))
    model = build(replace(spec, special=special))
    special_ids = {special.pad, special.bos, special.start, *special.eos} - {None}
    ids = {*choose_tokens(model, 5000, None, seed=1).tolist()}
    assert ids == {*range(model.spec.vocab)} - special_ids


def test_only_the_frequent_ones_are_drawn() -> None:
    model = build(
        resolve("bert-tiny", {"vocab": 2 * NUM_COMMON_TOKENS, "width": 8, "depth": 1, "heads": 1, "hidden": 8})
    )
    ids = choose_tokens(model, 20_000, None, seed=0)
    assert NUM_COMMON_TOKENS * 0.9 < ids.max() < NUM_COMMON_TOKENS and len(ids.unique()) > 0.9 * NUM_COMMON_TOKENS
    assert torch.equal(ids, choose_tokens(model, 20_000, None, seed=0))
    assert not torch.equal(ids, choose_tokens(model, 20_000, None, seed=1))


def test_those_that_are_given_come_in_turn() -> None:
    assert choose_tokens(model_of("bert-base"), 5, (7, 9), seed=0).tolist() == [7, 9, 7, 9, 7]


@pytest.mark.parametrize("case", CASES)
def test_a_prefix_starts_as_the_keys_and_values_of_what_is_drawn(case: str) -> None:
    """In every block of every side, by default."""
    model = copy.deepcopy(model_of(case))
    expected = compute_keys_values(model, choose_tokens(model, 3, None, seed=6))
    PrefixTuning(count=3).apply(model, seed=6)
    layers = [layer.attention for _, stack in list_stacks(model) for layer in stack]
    assert len(layers) == sum(len(stack.layers) for stack in model.spec.stacks)
    for attention in layers:
        for tensor, expected_tensor in zip(attention.prefix(), expected[attention], strict=True):
            assert torch.equal(tensor, expected_tensor) and tensor.abs().max() > 0


@pytest.mark.parametrize("case", CASES)
def test_a_prompt_starts_as_the_rows_of_what_is_drawn(case: str) -> None:
    model = copy.deepcopy(model_of(case))
    PromptTuning(count=4).apply(model, seed=6)
    rows = model.tokens.weight[choose_tokens(model, 4, None, seed=6)]
    assert torch.equal(model.get_parameter("prompt.table"), rows)
