"""A prefix acts as tokens before every sequence, in every backend and with a cache."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.adaptation.peft.io import load_adapter, save_adapter
from pretune.adaptation.peft.prefix import PrefixTuning
from pretune.core.errors import UsageError
from pretune.core.types import Targets
from pretune.models.model import LanguageModel
from tests.contracts import laws
from tests.contracts.laws import equal, read
from tests.contracts.tiny import CASES, DECODERS, RECURRENT, lay, model_of, text
from tests.selection import keep_quick

P = 4


def build_random_prefix(case: str, size: float = 0.3, **settings: Any) -> LanguageModel:
    model = copy.deepcopy(model_of(case))
    names = PrefixTuning(count=P, **settings).apply(model)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name in names:
            parameter = model.get_parameter(name)
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("case", [case for case in DECODERS if case not in RECURRENT])
def test_a_prefix_of_real_tokens_is_those_tokens(case: str) -> None:
    """A decoder reads on as if they came before the text, whatever its positions, windows and shared keys are."""
    if CASES[case].last_stack.share is not None:
        pytest.skip("layers that are one have one prefix")
    model = copy.deepcopy(model_of(case))
    sentences, tokens = text(4, 6, 3), (11, 7, 40, 2)
    expected = [states[P:] for states in read(model, [[*tokens, *sentence] for sentence in sentences], row=21)]
    PrefixTuning(count=P, tokens=tokens).apply(model)
    equal(torch.cat(read(model, sentences, row=9)), torch.cat(expected))
    laws.cache_is_no_cache(model, (4, 1, 3))


@pytest.mark.parametrize(
    "case",
    keep_quick(
        ["bert-base", "t5-base", "made-windows", "gpt2-small", "llama3-8b", "mistral-7b", "mpt-7b"], "bert-base"
    ),
)
def test_backends_agree(case: str) -> None:
    model = build_random_prefix(next(name for name in CASES if name.startswith(case.rpartition("-")[0])))
    able = 0
    for row, sentences in ((13, text(6, 3, 8, 1, 5)), (None, text(6, 6))):
        model.attention_backend = "eager"
        expected = torch.cat(read(model, sentences, row=row))
        for backend in ("rows", "flex", "sdpa"):
            model.attention_backend = backend  # type: ignore[assignment]
            try:
                equal(torch.cat(read(model, sentences, row=row)), expected)
                able += 1
            except UsageError as error:
                assert backend == "sdpa", error
    assert able >= 4
    model.attention_backend = "varlen"
    with pytest.raises(UsageError, match="'varlen'"):
        read(model, text(3))


@pytest.mark.parametrize("case", ["bert-base", "gpt2-small", "t5-base", "xlnet-base"])
def test_weights_are_those_of_the_text(case: str) -> None:
    model = build_random_prefix(case)
    batch = lay(model.spec, text(6, 3), row=11)
    with torch.no_grad():
        attention_weights = model(batch, attention=True).attention
    for layer in attention_weights:
        assert [weights.shape[1:] for weights in layer] == [(6, 6), (3, 3)]
        assert all((weights.sum(-1) < 1).all() for weights in layer), "the prefix takes its share"


@pytest.mark.parametrize("case", ["bert-base", "gpt2-small", "xlnet-base"])
def test_attention_dropout_reaches_the_prefix(case: str) -> None:
    model = build_random_prefix(case)
    for module in model.modules():
        if isinstance(getattr(module, "prefix", None), torch.nn.Module):
            module.dropout = 0.5
    batch = lay(model.spec, text(6, 3), row=11)
    quiet = model(batch).logits
    model.train()
    torch.manual_seed(1)
    loud = model(batch).logits
    assert (loud - quiet).abs().max() > 1e-3
    loud.sum().backward()
    assert all(
        model.get_parameter(name).grad.abs().sum() > 0 for name in PrefixTuning(count=P).list_trainable_names(model)
    )


def test_queries_of_two_streams_see_it() -> None:
    """Even the first in an order, which sees nothing else."""
    base_model, model = model_of("xlnet-base"), build_random_prefix("xlnet-base")
    batch = pt.batch(text(5))
    order = torch.tensor([1, 2, 3, 4, 5])
    batch = replace(batch, order=order, targets=Targets(index=torch.arange(5), labels=torch.ones(5, dtype=torch.long)))
    with torch.no_grad():
        base_logits, logits = base_model(batch).logits, model(batch).logits
    assert ((base_logits - logits).abs().amax(-1) > 1e-3).all()


@pytest.mark.parametrize("case", ["bert-base", "t5-base", "xlnet-base"])
def test_a_network_makes_it_and_is_folded(case: str, tmp_path: Path) -> None:
    base_model = copy.deepcopy(model_of(case))
    PrefixTuning(count=P).apply(base_model, seed=4)
    model, method = copy.deepcopy(model_of(case)), PrefixTuning(count=P, hidden=5)
    names = method.apply(model, seed=4)
    sentences = text(6, 3, 8)
    equal(torch.cat(read(model, sentences)), torch.cat(read(base_model, sentences)), 0.0)  # it starts at the same place
    trunk_names = [name for name in names if ".trunk." in name]
    assert len(trunk_names) == 3, "one first layer for all blocks"
    model = build_random_prefix(case, hidden=5)
    expected = torch.cat(read(model, sentences))
    save_adapter(model, method, tmp_path / "adapter")
    second_model = copy.deepcopy(model_of(case))
    assert load_adapter(second_model, tmp_path / "adapter") == PrefixTuning(count=P)
    equal(torch.cat(read(second_model, sentences)), expected, 1e-6)


def test_a_side_may_be_left_out() -> None:
    model = copy.deepcopy(model_of("t5-base"))
    names = PrefixTuning(count=P, sides=("decoder",)).apply(model)
    assert names and all(name.startswith("decoder.") for name in names)
    with pytest.raises(UsageError, match="decoder"):
        PrefixTuning(sides=("decoder",)).apply(copy.deepcopy(model_of("bert-base")))


def test_positions_run_out_in_words() -> None:
    model = build_random_prefix("bert-base")
    with pytest.raises(UsageError, match=r"\b21\b.*\b24\b.*\b4\b"):
        read(model, text(21))
    read(model, text(20))
    model = build_random_prefix("gpt2-small")
    with pytest.raises(UsageError, match=r"\b21\b.*\b24\b"):
        model.new_cache(1, 21)
    with pytest.raises(UsageError, match=r"\b24\b"):
        PrefixTuning(count=24).apply(copy.deepcopy(model_of("bert-base")))
    with pytest.raises(UsageError, match=r"-1\b"):
        PrefixTuning(count=-1)
