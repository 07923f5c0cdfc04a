"""The laws of parameter-efficient methods, for every method and every family (architecture.md, "methods")."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.adaptation.peft import PEFT_METHODS
from pretune.adaptation.peft.base import TARGETS, PeftMethod, find_linears, get_adapter_state
from pretune.adaptation.peft.io import load_adapter, save_adapter
from pretune.adaptation.peft.lora import LoRA
from pretune.adaptation.peft.peft_format import pack
from pretune.adaptation.peft.qlora import QLoRA, Weight4bit
from pretune.core.errors import CheckpointError, UsageError
from pretune.models.bidirectional_lm import build_bidirectional_lm, make_two_way
from pretune.models.model import LanguageModel
from tests.contracts import laws
from tests.contracts.laws import equal, read
from tests.contracts.tiny import CASES, DECODERS, PAIRS, RECURRENT, lay, model_of, text

SETTINGS: dict[str, dict[str, Any]] = {
    "lora": {"rank": 3, "alpha": 5.0, "targets": ("q", "k", "v", "out", "up", "gate", "down")},
    "qlora": {"rank": 3, "alpha": 5.0, "targets": ("q", "v", "down"), "block": 16, "group": 8},
    "adapter": {"bottleneck": 6},
    "prefix": {"count": 3},
    "prompt": {"count": 3},
}
SENTENCES = text(6, 3, 8, 1, 5)


def method_of(name: str, **settings: Any) -> PeftMethod:
    return PEFT_METHODS.get(name)(**{**SETTINGS.get(name, {}), **settings})


def applied(
    case: str, name: str, *, stirred: float = 0.0, **settings: Any
) -> tuple[LanguageModel, PeftMethod, tuple[str, ...]]:
    """A model of its own with a method on it, as if trained a little."""
    model, method = copy.deepcopy(model_of(case)), method_of(name, **settings)
    names = method.apply(model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for trained, parameter in model.named_parameters():
            if trained in names and stirred:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * stirred)
    return model, method, names


def base_of(case: str, method: PeftMethod) -> LanguageModel:
    """A case's model, its weights rounded to 4 bits where the method does that."""
    if not isinstance(method, QLoRA):
        return model_of(case)
    model = copy.deepcopy(model_of(case))
    with torch.no_grad():
        for _, _, _, layer in find_linears(model, TARGETS):
            small = Weight4bit(layer.weight, block=method.block, group=method.group)
            layer.weight.copy_(small.dequantize(torch.float32))
    return model


def logits(model: LanguageModel) -> torch.Tensor:
    return torch.cat(read(model, SENTENCES, row=11))


ATTENTIVE = {"ia3": "rescales keys", "prefix": "adds keys", "prompt": "needs attention"}
"""Methods that need attention, with their reason to refuse a recurrent model."""
every = pytest.mark.parametrize("name", PEFT_METHODS.list_names())
usual = {"bert-base", "llama3-8b", "made-recurrent"}
FUSED = ("gpt2-small", "modernbert-base")
"""Models whose reference has queries, keys and values in one layer."""
everywhere = pytest.mark.parametrize(
    ("case", "name"),
    [
        (case, name)
        if case in usual or (case, name) == ("made-unequal", "lora")
        else pytest.param(case, name, marks=pytest.mark.slow)
        for case in CASES
        for name in PEFT_METHODS.list_names()
        if not (case in RECURRENT and name in ATTENTIVE)
    ],
)


@pytest.mark.parametrize("case", RECURRENT)
def test_methods_on_attention_refuse_recurrent_models(case: str) -> None:
    for name, reason in ATTENTIVE.items():
        with pytest.raises(UsageError, match=f"{reason}.*which a recurrent model lacks; use LoRA, adapters or BitFit"):
            applied(case, name)
    with pytest.raises(UsageError, match="has no dropout of its inputs"):
        applied(case, "lora", dropout=0.1)


@everywhere
def test_a_new_method_changes_nothing(case: str, name: str) -> None:
    """… but for virtual tokens, of which none change nothing, and for what 4 bits cannot say of the weights."""
    model, method, _ = applied(case, name, **({"count": 0} if name in ("prompt", "prefix") else {}))
    torch.testing.assert_close(logits(model), logits(base_of(case, method)), rtol=0, atol=0)


@everywhere
def test_only_its_parameters_train(case: str, name: str) -> None:
    model, _, names = applied(case, name, stirred=0.05)  # what starts at zero lets no gradient through to its partner
    before = {path: parameter.detach().clone() for path, parameter in model.named_parameters()}
    assert set(names) <= set(before)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    labels = [[token % 50 for token in sentence] for sentence in SENTENCES]
    batch = lay(model.spec, SENTENCES, row=11, labels=labels)
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        sides = model.compute_directional_states(batch) if model.shape == "two-way" else (model.states(batch),)
        sum(model.loss(states, batch).mean() for states in sides).backward()
        optimizer.step()
    moved = {path for path, parameter in model.named_parameters() if not torch.equal(parameter, before[path])}
    assert moved <= set(names)
    assert len(moved) > 0.6 * len(names), sorted(set(names) - moved)  # shifts before a softmax do nothing, nor poolers


@everywhere
def test_merged_is_unmerged(case: str, name: str) -> None:
    model, method, _ = applied(case, name, stirred=0.1)
    model.double()  # in single precision the models themselves lose a digit more than is asked for
    before = logits(model)
    assert (before - logits(base_of(case, method))).abs().max() > 1e-3
    if not method.is_mergeable:
        with pytest.raises(UsageError):
            method.merge(model)
        return
    method.merge(model)
    equal(logits(model), before, 1e-7)
    assert [path for path, module in model.named_modules() if getattr(module, "is_adapter", False)] == []


@everywhere
def test_an_adapter_is_small_and_comes_back_as_it_was(case: str, name: str, tmp_path: Path) -> None:
    model, method, _ = applied(case, name, stirred=0.1)
    save_adapter(model, method, tmp_path / "adapter")
    again = copy.deepcopy(model_of(case))
    found = load_adapter(again, tmp_path / "adapter")
    assert found == method
    learned, read_back = get_adapter_state(method, model), get_adapter_state(found, again)
    assert learned.keys() == read_back.keys()
    for path, tensor in learned.items():
        assert torch.equal(tensor, read_back[path]), path
    torch.testing.assert_close(logits(again), logits(model), rtol=0, atol=0)
    numbers = sum(tensor.numel() for tensor in learned.values())
    size = (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size
    assert size < 4 * numbers * 3 + 200 * (len(learned) + 1)  # a block diagonal of three has three times the numbers


@pytest.mark.parametrize("name", ["lora", "ia3", "prompt"])
@pytest.mark.parametrize(
    "case",
    [
        *sorted(usual),
        *(pytest.param(case, marks=pytest.mark.slow) for case in CASES if case not in {*usual, *FUSED}),
        *FUSED,
    ],
)
def test_an_adapter_is_stored_from_any_device(case: str, name: str) -> None:
    """… also where the reference has one layer for three of ours, and not all of them are adapted."""
    if case in RECURRENT and name in ATTENTIVE:
        return  # refused: test_methods_on_attention_refuse_recurrent_models
    model, method, _ = applied(case, name, **({"targets": ("q", "v")} if name == "lora" else {}))
    packed = pack(method, model.to("meta"))
    assert packed is None or {tensor.device.type for tensor in packed.tensors.values()} == {"meta"}
    assert packed is not None or case not in FUSED


@everywhere
def test_packed_is_alone(case: str, name: str) -> None:
    model, _, _ = applied(case, name, stirred=0.1)
    laws.packed_is_alone(model)
    if name != "prompt":  # in whose slots another token is no change
        laws.sequences_are_apart(model)


@every
@pytest.mark.parametrize("case", sorted({*DECODERS, *PAIRS} & usual))
def test_cache_is_no_cache(case: str, name: str) -> None:
    if case in RECURRENT and name in ATTENTIVE:
        return  # refused: test_methods_on_attention_refuse_recurrent_models
    model, _, _ = applied(case, name, stirred=0.1)
    laws.cache_is_no_cache(model, (4, 3, 5) if name == "prompt" else (4, 1, 3))  # slots are read at once


@every
@pytest.mark.parametrize("case", ["bert-base", "gpt2-small", "made-unequal"])
def test_joined_projections_are_right(case: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention takes the products of q, k and v in one, adapted or not."""
    model, _, _ = applied(case, name, stirred=0.1)
    apart = logits(model)
    monkeypatch.setattr("pretune.nn.attention.FUSE_MIN_TOKENS", 1)
    equal(logits(model), apart, 1e-5)


def test_joined_projections_are_used_with_low_rank_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, _ = applied("bert-base", "lora")
    calls: list[tuple[int, ...]] = []
    real = torch.nn.functional.linear

    def counted(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        calls.append(tuple(weight.shape))
        return real(x, weight, bias)

    monkeypatch.setattr("pretune.nn.attention.FUSE_MIN_TOKENS", 1)
    monkeypatch.setattr("pretune.nn.attention.F.linear", counted)
    logits(model)
    assert calls.count((96, 32)) == 2  # one product a layer for the three


def test_a_method_is_applied_once() -> None:
    model, method, _ = applied("bert-base", "lora")
    with pytest.raises(UsageError, match=r"'encoder\.0\.attention\.q'"):
        method.apply(model)


@every
def test_several_models_in_one_are_refused(name: str) -> None:
    pair = build_bidirectional_lm(make_two_way(CASES["gpt2-small"]))
    with pytest.raises(UsageError, match=type(pair).__name__):
        method_of(name).apply(pair)
    assert all(parameter.requires_grad for parameter in pair.parameters())
    method_of(name).apply(pair.forwards)


def test_an_adapter_for_another_base_is_refused(tmp_path: Path) -> None:
    model, method, _ = applied("bert-base", "lora", stirred=0.1)
    save_adapter(model, method, tmp_path / "a")
    other = pt.build(CASES["bert-base"], seed=9)
    before = {path: parameter.clone() for path, parameter in other.named_parameters()}
    with pytest.raises(CheckpointError, match=str(tmp_path / "a")) as error:
        load_adapter(other, tmp_path / "a")
    assert "\n" not in str(error.value)
    assert all(torch.equal(parameter, before[path]) for path, parameter in other.named_parameters())
    with pytest.raises(CheckpointError, match=r"'bert'.*'gpt2'"):
        load_adapter(copy.deepcopy(model_of("gpt2-small")), tmp_path / "a")
    (tmp_path / "a" / "adapter.json").unlink()  # the reference's own files say nothing of the base but its shapes
    with pytest.raises(CheckpointError, match=str(tmp_path / "a")):
        load_adapter(copy.deepcopy(model_of("gpt2-small")), tmp_path / "a")


def test_what_is_asked_of_a_method_is_checked() -> None:
    for wrong in ({"rank": 0}, {"alpha": 0.0}, {"dropout": 1.0}, {"targets": ()}, {"targets": ("query",)}):
        with pytest.raises(UsageError, match="LoRA"):
            LoRA(**wrong)
    with pytest.raises(UsageError, match=r"\b0\b"):
        PEFT_METHODS.get("adapter")(bottleneck=0)


def test_a_whole_model_is_saved_after_merging(tmp_path: Path) -> None:
    model, method, _ = applied("bert-base", "lora", stirred=0.1)
    expected = logits(model)
    method.merge(model)
    pt.save(model, tmp_path / "whole")
    equal(logits(pt.load(tmp_path / "whole")), expected, 1e-5)
