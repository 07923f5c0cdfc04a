"""Decoding steps on a CPU: they read the columns of a cache that are in use, whatever else it holds."""

from copy import deepcopy

import pytest
import torch

from pretune.adaptation.peft.prefix import PrefixTuning
from pretune.models.model import build
from pretune.nn import cache as decoding_step
from pretune.nn.cache import prepare_steps
from pretune.nn.stack import TransformerStack
from tests.contracts import laws
from tests.contracts.tiny import DECODERS, PAIRS, model_of

NAMES = [name for name in (*DECODERS, *PAIRS) if isinstance(model_of(name).decoder, TransformerStack)]
PROMPTS = [(4, 4, 4), (4, 1, 3), (7,)]


@pytest.fixture(autouse=True)
def short_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two columns at a time, which the small models outgrow."""
    monkeypatch.setattr(decoding_step, "COLUMN_ALIGNMENT", 2)


@pytest.mark.parametrize("prompts", PROMPTS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_columns_in_use_are_enough(name: str, prompts: tuple[int, ...]) -> None:
    laws.cache_is_no_cache(model_of(name), prompts, spare=3)


@pytest.mark.parametrize("prompts", PROMPTS, ids=str)
def test_a_prefix_takes_columns(prompts: tuple[int, ...]) -> None:
    model = deepcopy(model_of("llama3-8b"))
    PrefixTuning(count=3).apply(model)
    laws.cache_is_no_cache(model.eval(), prompts, spare=3)


@torch.no_grad()
@pytest.mark.parametrize("lengths", [[5, 5], [5, 2]], ids=str)
def test_what_lies_beyond_is_not_read(lengths: list[int]) -> None:
    """… nor written: with a number that is none there, and in the spare row, a step has the same result."""
    model, tokens = build(model_of("llama3-8b").spec).eval(), torch.tensor([3, 4])
    results = []
    for filler in (0.0, float("nan")):
        cache = model.new_cache(2, 16)
        for layer in cache.layers:
            for store in layer.store:
                store.normal_(generator=torch.Generator().manual_seed(1))
                store[:, :, 6:], store[-1] = filler, filler
        cache.lengths = torch.tensor(lengths)
        results.append(model.step(tokens, cache))
        assert all(torch.equal(layer.store[0][-1].isnan(), layer.store[0][-1] != 0) for layer in cache.layers)
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_lengths_decide_what_is_read() -> None:
    cache = model_of("llama3-8b").new_cache(3, 9)
    for lengths, columns, column in (([2, 2, 2], 3, 2), ([3, 0, 5], 6, None), ([8, 8, 8], 9, 8)):
        cache.lengths = torch.tensor(lengths)
        step = prepare_steps(cache, {None: None}, None)(None, None, 1)
        assert (step.visible_columns, step.column) == (columns, column)
        keys, values = step.read(cache.layers[0])
        assert keys.shape[2] == values.shape[2] == columns
        if column is None:
            assert step.mask.sum(-1).flatten().tolist() == [length + 1 for length in lengths]
        else:
            assert step.mask is None  # every sequence reads all of these columns
