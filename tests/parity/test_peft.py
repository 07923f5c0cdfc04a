"""Adapters against peft: the same base weights, the same files, equal logits, both directions.

Not run by peft, and so not here: BitFit and Houlsby adapters (it has neither), LoRA and IA3 on XLNet (its projections
are not linear layers), prefixes on GPT and XLNet (it runs neither) and before an encoder that has a decoder.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.adaptation.peft.base import PeftMethod
from pretune.adaptation.peft.io import load_adapter, save_adapter
from pretune.adaptation.peft.lora import LoRA
from pretune.adaptation.peft.prefix import PrefixTuning, PromptTuning
from pretune.adaptation.peft.qlora import QLoRA
from pretune.adaptation.peft.vectors import IA3
from pretune.core.errors import CheckpointError
from pretune.models.model import LanguageModel
from tests.parity.cases import CASES
from tests.selection import keep_quick

peft = pytest.importorskip("peft")

BY_NAME = {case.name: case for case in CASES}
PLACES: dict[str, tuple[list[str], list[str], list[str]]] = {  # of LoRA; of IA3; those of IA3 that scale what is read
    "bert-masked": (["query", "value"], ["key", "value", "output.dense"], ["output.dense"]),
    "roberta": (["query", "key", "intermediate.dense"], ["key", "value"], []),
    "gpt2": (["c_attn", "mlp.c_proj"], ["c_attn", "mlp.c_proj"], ["mlp.c_proj"]),
    "pythia": (["query_key_value", "dense_h_to_4h"], ["query_key_value", "dense_4h_to_h"], ["dense_4h_to_h"]),
    "t5": (["q", "v", "wi"], ["k", "v", "wo"], ["wo"]),
    "llama-gqa-bias": (["q_proj", "v_proj", "gate_proj"], ["k_proj", "v_proj", "down_proj"], ["down_proj"]),
    "bart": (["q_proj", "fc1"], ["k_proj", "v_proj", "fc2"], ["fc2"]),
}
OTHERS = ("xlm-roberta", "albert-groups", "distilbert", "electra-generator", "gpt", "mistral-window", "olmo",
          "olmo2", "opt", "mpt", "t5v1.1", "mt5", "mbart")  # fmt: skip
OURS: dict[str, PeftMethod] = {
    "lora": LoRA(rank=3, alpha=7.0, targets=("q", "v")),
    "lora-all": LoRA(rank=2, alpha=4.0, targets=("q", "k", "v", "out", "up", "gate", "down")),
    "ia3": IA3(),
}
TOKENS = torch.tensor([[5, 17, 3, 44, 9, 60, 23, 8], [7, 2, 31, 90, 15, 4, 66, 12]])
SOURCE = torch.tensor([[9, 33, 21, 4, 6], [50, 8, 2, 71, 19]])


def base(name: str, folder: Path) -> tuple[Any, LanguageModel]:
    """The same weights in both libraries."""
    theirs = BY_NAME[name].build()
    theirs.save_pretrained(folder / "base")
    return theirs, pt.load(folder / "base")


@torch.no_grad()
def said(theirs: Any, ours: LanguageModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of both. The reference wants a mask where there are virtual tokens."""
    if ours.spec.is_encoder_decoder:
        batch = pt.batch(source=SOURCE.tolist(), target=TOKENS.tolist())
        given = {"input_ids": SOURCE, "attention_mask": torch.ones_like(SOURCE), "decoder_input_ids": TOKENS}
    else:
        batch = pt.batch(TOKENS.tolist())
        given = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    return theirs(**given).logits, torch.stack(batch.split(ours(batch).logits))


def alike(theirs: Any, ours: LanguageModel, plain: torch.Tensor) -> None:
    expected, actual = said(theirs, ours)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    assert (expected - plain).abs().max() > 1e-3, "the adapter does nothing"


def stir(parameters: Any, size: float = 0.1) -> None:
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("name", keep_quick([*PLACES, *OTHERS], "bert-masked", "t5", "llama-gqa-bias"))
def test_ours_is_read_by_peft(name: str, kind: str, tmp_path: Path) -> None:
    theirs, ours = base(name, tmp_path)
    plain, method = said(theirs, ours)[0], OURS[kind]
    method.apply(ours)
    stir(p for p in ours.parameters() if p.requires_grad)
    save_adapter(ours, method, tmp_path / "adapter")
    alike(peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval(), ours, plain)


@pytest.mark.parametrize(
    ("name", "kind"),
    keep_quick(
        [("bert-masked", "rslora"), *((n, k) for n in PLACES for k in ("lora", "ia3"))],
        ("bert-masked", "rslora"),
        ("gpt2", "lora"),
        ("t5", "ia3"),
    ),
)
def test_theirs_is_read_by_us(name: str, kind: str, tmp_path: Path) -> None:
    theirs, ours = base(name, tmp_path)
    plain = said(theirs, ours)[0]
    low, scaled, read = PLACES[name]
    if kind == "ia3":
        config = peft.IA3Config(target_modules=scaled, feedforward_modules=read)
    else:
        odd = {low[0]: 11}  # one of the layers has an alpha of its own
        config = peft.LoraConfig(
            r=3,
            lora_alpha=5,
            target_modules=low,
            alpha_pattern=odd,
            rank_pattern={low[0]: 2},
            use_rslora=kind == "rslora",
        )
    wrapped = peft.get_peft_model(theirs, config).eval()
    stir(p for p in wrapped.parameters() if p.requires_grad)
    wrapped.save_pretrained(tmp_path / "adapter")
    method = load_adapter(ours, tmp_path / "adapter")
    alike(wrapped, ours, plain)
    save_adapter(ours, method, tmp_path / "again")  # and saved by us it is still the same
    third = pt.load(tmp_path / "base")
    load_adapter(third, tmp_path / "again")
    torch.testing.assert_close(said(wrapped, third)[1], said(wrapped, ours)[1], rtol=0, atol=1e-6)
    method.merge(ours)
    alike(wrapped, ours, plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bart", *OTHERS[4:]])
def test_all_layers_of_theirs_are_read_by_us(name: str, tmp_path: Path) -> None:
    """Of encoders that is more than the blocks (the dense layer before the vocabulary), which is told."""
    theirs, ours = base(name, tmp_path)
    plain = said(theirs, ours)[0]
    wrapped = peft.get_peft_model(theirs, peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear")).eval()
    stir(p for p in wrapped.parameters() if p.requires_grad)
    wrapped.save_pretrained(tmp_path / "adapter")
    load_adapter(ours, tmp_path / "adapter")
    alike(wrapped, ours, plain)


@pytest.mark.parametrize("name", ["bert-masked", "roberta"])
def test_layers_outside_of_blocks_are_told(name: str, tmp_path: Path) -> None:
    theirs, ours = base(name, tmp_path)
    wrapped = peft.get_peft_model(theirs, peft.LoraConfig(r=2, target_modules="all-linear"))
    wrapped.save_pretrained(tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=r"dense.lora_A.w"):
        load_adapter(ours, tmp_path / "adapter")


@pytest.mark.parametrize("name", ["bert-masked", "gpt2"])
def test_what_was_learned_on_4_bits_is_read_by_peft(name: str, tmp_path: Path) -> None:
    """On a base with the weights that 4 bits say; ours are written back by merging what has learned nothing yet."""
    theirs, ours = base(name, tmp_path)
    method = QLoRA(rank=3, block=16)
    rounded = pt.load(tmp_path / "base")
    method.apply(rounded)
    method.merge(rounded)
    pt.save(rounded, tmp_path / "rounded")
    theirs = type(theirs).from_pretrained(tmp_path / "rounded", attn_implementation="eager").eval()
    plain = said(theirs, ours)[0]
    method.apply(ours)
    stir(p for p in ours.parameters() if p.requires_grad)
    save_adapter(ours, method, tmp_path / "adapter")
    alike(peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval(), ours, plain)


SLOTS = 4


@torch.no_grad()
def prompted(theirs: Any, ours: LanguageModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of both for a text with a prompt before it."""
    slots = [[0] * SLOTS + row for row in (SOURCE if ours.spec.is_encoder_decoder else TOKENS).tolist()]
    if ours.spec.is_encoder_decoder:
        batch = pt.batch(source=slots, target=TOKENS.tolist())
        expected = theirs(input_ids=SOURCE, attention_mask=torch.ones_like(SOURCE), decoder_input_ids=TOKENS).logits
    else:
        batch = pt.batch(slots)
        expected = theirs(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS)).logits
    return expected, torch.stack(batch.split(ours(batch).logits))


PROMPTED = (
    "xlm-roberta", "distilbert", "gpt", "mistral-window", "olmo", "olmo2", "opt", "pythia", "mpt", "t5v1.1", "mt5",
    "bart", "xlnet",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        *("bert-masked", "roberta", "gpt2", "t5", "llama"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in PROMPTED),
    ],
)
def test_prompts_go_both_ways(name: str, tmp_path: Path) -> None:
    theirs, ours = base(name, tmp_path)
    go_both_ways(theirs, ours, PromptTuning(count=SLOTS), prompted, tmp_path)


def go_both_ways(theirs: Any, ours: LanguageModel, method: PeftMethod, compute: Any, folder: Path) -> torch.Tensor:
    """Save virtual tokens for the reference and read those it saves; return its logits with the first ones."""
    method.apply(ours)
    stir(p for p in ours.parameters() if p.requires_grad)
    save_adapter(ours, method, folder / "adapter")
    wrapped = peft.PeftModel.from_pretrained(theirs, folder / "adapter").eval()
    first, actual = compute(wrapped, ours)
    torch.testing.assert_close(actual, first, rtol=0, atol=1e-5)
    stir(wrapped.prompt_encoder.parameters(), 0.5)
    wrapped.save_pretrained(folder / "theirs")
    fresh = pt.load(folder / "base")
    assert load_adapter(fresh, folder / "theirs") == method
    expected, actual = compute(wrapped, fresh)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    assert (actual - compute(wrapped, ours)[1]).abs().max() > 1e-3
    return first


def test_prompts_of_a_model_that_scales_its_embeddings(tmp_path: Path) -> None:
    """peft adds prompts after the scale, we before it."""
    theirs, ours = base("xglm", tmp_path)
    width, heads, depth = ours.spec.width, ours.spec.stacks[0].blocks[0].attention.heads, ours.spec.stacks[0].depth
    options = {"token_dim": width, "num_attention_heads": heads, "num_layers": depth}
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=SLOTS, **options)
    wrapped = peft.get_peft_model(theirs, config)
    stir(wrapped.prompt_encoder.parameters(), 0.5)
    wrapped.eval().save_pretrained(tmp_path / "theirs")
    plain = torch.stack(pt.batch(TOKENS.tolist()).split(ours(pt.batch(TOKENS.tolist())).logits))
    load_adapter(ours, tmp_path / "theirs")
    expected, actual = prompted(wrapped, ours)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    assert (actual[:, -plain.shape[1] :] - plain).abs().max() > 1e-3


@pytest.mark.parametrize(
    "method",
    [
        IA3(targets=("k", "v", "down"), inputs=("v", "down")),
        IA3(targets=("q", "k", "v"), inputs=("q", "k", "v")),
        IA3(targets=("k", "v", "down"), inputs=("down",)),
    ],
)
def test_scales_of_inputs_survive_in_a_fused_layer(method: IA3, tmp_path: Path) -> None:
    """GPT-2 has one layer for queries, keys and values, for whose inputs peft has one scale."""
    _, ours = base("gpt2", tmp_path)
    method.apply(ours)
    stir((p for p in ours.parameters() if p.requires_grad), 0.5)
    save_adapter(ours, method, tmp_path / "adapter")
    fresh = pt.load(tmp_path / "base")
    load_adapter(fresh, tmp_path / "adapter")
    batch = pt.batch(TOKENS.tolist())
    torch.testing.assert_close(fresh(batch).logits, ours(batch).logits, rtol=0, atol=1e-6)
    assert (tmp_path / "adapter/adapter_config.json").exists() == (method.inputs == ("down",))


PREFIXED = (
    "bert-masked", "roberta", "electra-generator", "gpt2", "llama-gqa-bias", "llama-bands", "mistral-window", "olmo2",
    "opt", "pythia", "mpt", "t5", "bart", "mbart", "xlm-roberta", "olmo", "t5v1.1", "mt5",
)  # fmt: skip

USUAL = {"bert-masked", "gpt2", "llama-gqa-bias", "mistral-window", "mpt", "t5", "bart"}


@pytest.mark.parametrize(
    "name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.slow) for name in PREFIXED]
)
def test_prefixes_go_both_ways(name: str, tmp_path: Path) -> None:
    theirs, ours = base(name, tmp_path)
    plain = said(theirs, ours)[0]
    method = PrefixTuning(count=SLOTS, sides=("decoder",) if ours.spec.is_encoder_decoder else PrefixTuning().sides)
    with_prefix = go_both_ways(theirs, ours, method, said, tmp_path)
    assert (with_prefix - plain).abs().max() > 1e-3, "the prefix does nothing"


@pytest.mark.parametrize("name", ["gpt", "xlnet"])
def test_a_prefix_that_peft_would_pass_over_is_not_written_for_it(name: str, tmp_path: Path) -> None:
    _, ours = base(name, tmp_path)
    method = PrefixTuning(count=2)
    method.apply(ours)
    stir(p for p in ours.parameters() if p.requires_grad)
    save_adapter(ours, method, tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "adapter_config.json").exists()
    fresh = pt.load(tmp_path / "base")
    assert load_adapter(fresh, tmp_path / "adapter") == method
    batch = pt.batch(TOKENS.tolist())
    torch.testing.assert_close(fresh(batch).logits, ours(batch).logits, rtol=0, atol=0)


def test_prefixes_of_an_even_decoder(tmp_path: Path) -> None:
    """The reference reads the lower half's prefix twice: such files are read as it reads them, and none is written."""
    case = replace(BY_NAME["bart"], options={**BY_NAME["bart"].options, "decoder_layers": 4, "encoder_layers": 4})
    theirs = case.build()
    theirs.save_pretrained(tmp_path / "base")
    ours = pt.load(tmp_path / "base")
    wrapped = peft.get_peft_model(theirs, peft.PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=SLOTS))
    stir(wrapped.prompt_encoder.parameters(), 0.5)
    wrapped.eval().save_pretrained(tmp_path / "theirs")
    method = load_adapter(ours, tmp_path / "theirs")
    expected, actual = said(wrapped, ours)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    save_adapter(ours, method, tmp_path / "ours")
    assert not (tmp_path / "ours" / "adapter_config.json").exists()
    again = pt.load(tmp_path / "base")
    load_adapter(again, tmp_path / "ours")
    torch.testing.assert_close(said(wrapped, again)[1], actual, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["gpt2", "bert-masked"])
def test_a_projected_prefix_is_read_by_us(name: str, tmp_path: Path) -> None:
    """The reference saves the output of its prompt network, not the network."""
    theirs, ours = base(name, tmp_path)
    task = "CAUSAL_LM" if ours.spec.decoder else "FEATURE_EXTRACTION"
    config = peft.PrefixTuningConfig(
        task_type=task, num_virtual_tokens=SLOTS, prefix_projection=True, encoder_hidden_size=7
    )
    wrapped = peft.get_peft_model(theirs, config).eval()
    wrapped.save_pretrained(tmp_path / "theirs")
    load_adapter(ours, tmp_path / "theirs")
    expected, actual = said(wrapped, ours)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "LOHA"}, "'peft_type' = 'LOHA'.*LORA, IA3, PROMPT_TUNING, PREFIX_TUNING"),
        ({"use_dora": True}, "'use_dora' = true"),
        ({"bias": "all"}, "'bias' = 'all'.*'none'"),
        ({"alora_invocation_tokens": [12, 7]}, "'alora_invocation_tokens'"),
        ({"init_lora_weights": "pissa"}, "'init_lora_weights' = 'pissa'"),
        ({"alpha_pattern": {"(a|b)": 3}}, "'alpha_pattern' = "),
        ({"r": "eight"}, "'r' = 'eight'"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    _, ours = base("gpt2", tmp_path)
    method = LoRA()
    method.apply(ours)
    save_adapter(ours, method, tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter.json").unlink()
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(CheckpointError, match=message) as error:
        load_adapter(pt.load(tmp_path / "base"), tmp_path / "adapter")
    assert "\n" not in str(error.value)
