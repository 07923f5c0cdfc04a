"""Virtual tokens start from real ones: frequent ones, never those with a meaning of their own."""

import copy

import pytest
import torch

from pretune.adaptation.peft.prefix import Prefix, activations, sides_of
from pretune.adaptation.peft.prompt import Prompt
from pretune.adaptation.peft.token_init import COMMON, real_tokens
from pretune.models.catalog import resolve
from pretune.models.model import build
from tests.contracts.tiny import model_of

CASES = ["bert-base", "gpt2-small", "t5-base", "bart-base"]


@pytest.mark.parametrize("case", CASES)
def test_no_special_token_is_drawn(case: str) -> None:
    model = model_of(case)
    special = model.spec.special
    kept = {special.pad, special.bos, special.start, *special.eos} - {None}
    drawn = {*real_tokens(model, 5000, None, seed=1).tolist()}
    assert kept and drawn == {*range(model.spec.vocab)} - kept


def test_only_the_frequent_ones_are_drawn() -> None:
    model = build(resolve("bert-tiny", {"vocab": 2 * COMMON, "width": 8, "depth": 1, "heads": 1, "hidden": 8}))
    drawn = real_tokens(model, 20_000, None, seed=0)
    assert COMMON * 0.9 < drawn.max() < COMMON and len(drawn.unique()) > 0.9 * COMMON
    assert torch.equal(drawn, real_tokens(model, 20_000, None, seed=0))
    assert not torch.equal(drawn, real_tokens(model, 20_000, None, seed=1))


def test_those_that_are_given_come_in_turn() -> None:
    assert real_tokens(model_of("bert-base"), 5, (7, 9), seed=0).tolist() == [7, 9, 7, 9, 7]


@pytest.mark.parametrize("case", CASES)
def test_a_prefix_starts_as_the_keys_and_values_of_what_is_drawn(case: str) -> None:
    """In every block of every side, by default."""
    model = copy.deepcopy(model_of(case))
    expected = activations(model, real_tokens(model, 3, None, seed=6))
    Prefix(count=3).apply(model, seed=6)
    layers = [layer.attention for _, stack in sides_of(model) for layer in stack]
    assert len(layers) == sum(len(stack.layers) for stack in model.spec.stacks)
    for attention in layers:
        for found, wanted in zip(attention.prefix(), expected[attention], strict=True):
            assert torch.equal(found, wanted) and found.abs().max() > 0


@pytest.mark.parametrize("case", CASES)
def test_a_prompt_starts_as_the_rows_of_what_is_drawn(case: str) -> None:
    model = copy.deepcopy(model_of(case))
    Prompt(count=4).apply(model, seed=6)
    rows = model.tokens.weight[real_tokens(model, 4, None, seed=6)]
    assert torch.equal(model.get_parameter("prompt.table"), rows)
