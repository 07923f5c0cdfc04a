"""One model, many spellings: config files of transformers 4 and 5, old tensor names, and what T5 leaves unsaid.

The weights are written by `transformers`, the config by hand as older releases wrote it; both libraries read the same
directory, and the logits are equal.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="the reference library is not installed")

import transformers as tf

import pretune as pt
from tests.faults.strangers import change_tensors
from tests.parity.cases import (
    BART,
    BLOOM,
    DISTILBERT,
    ENCODER,
    GPT,
    LLAMA,
    MODERN,
    NEOX,
    ROPE3,
    T5,
    VOCAB,
    XLNET,
    case,
    small,
    untied,
)
from tests.parity.test_parity import assert_rows, logits_of, our_batch, run
from tests.selection import keep_quick

BANDS = {key: value for key, value in ROPE3.items() if key != "rope_theta"}
PLAIN = {"rope_type": "default", "rope_theta": 500.0}
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}
SHORT = {**PLAIN, "partial_rotary_factor": 0.5}


def respell(folder: Path, drop: tuple[str, ...], **put: Any) -> None:
    file = folder / "config.json"
    actual = {key: value for key, value in json.loads(file.read_text()).items() if key not in drop}
    file.write_text(json.dumps({**actual, **put}))


@torch.no_grad()
def assert_both_read(folder: Path, cls: Any, expected: Tensor | None = None) -> Any:
    """The same logits from both libraries on a directory; and from the model it was made of, where that is known."""
    ours = pt.load(folder)
    theirs = cls.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    batch = our_batch(ours)
    mine = batch.split(ours(batch).logits)
    assert_rows(mine, logits_of(run(theirs, ours.spec.is_encoder_decoder)), "what transformers reads")
    if expected is not None:
        assert_rows(mine, expected, "the model it was made of")
    return ours


CASES = [
    # the reference, keys of today to leave out, keys of yesterday to put in
    (case("rope_theta", tf.LlamaForCausalLM, tf.LlamaConfig, LLAMA, rope_parameters=PLAIN),
     ("rope_parameters",), {"rope_theta": 500.0, "rope_scaling": None}),
    (case("rope_scaling", tf.LlamaForCausalLM, tf.LlamaConfig, LLAMA, rope_parameters=ROPE3),
     ("rope_parameters",), {"rope_theta": 500.0, "rope_scaling": BANDS}),
    (case("rope_scaling-type", tf.LlamaForCausalLM, tf.LlamaConfig, LLAMA, rope_parameters=LINEAR),
     ("rope_parameters",), {"rope_theta": 100.0, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    (case("rope-outside", tf.LlamaForCausalLM, tf.LlamaConfig, LLAMA, rope_parameters=ROPE3),
     (), {"rope_parameters": BANDS, "rope_theta": 500.0}),
    (case("no-head_dim", tf.LlamaForCausalLM, tf.LlamaConfig, LLAMA),
     ("rope_parameters", "head_dim", "num_key_value_heads", "attention_bias", "mlp_bias"), {"pretraining_tp": 1}),
    (case("mistral", tf.MistralForCausalLM, tf.MistralConfig, LLAMA, num_key_value_heads=2, sliding_window=4,
          rope_parameters={"rope_type": "default", "rope_theta": 300.0}),
     ("rope_parameters", "head_dim"), {"rope_theta": 300.0}),
    (case("rotary_pct", tf.GPTNeoXForCausalLM, tf.GPTNeoXConfig, NEOX, rope_parameters=SHORT),
     ("rope_parameters",), {"rotary_pct": 0.5, "rotary_emb_base": 500}),
    (case("rotary-twice", tf.GPTNeoXForCausalLM, tf.GPTNeoXConfig, NEOX, rope_parameters=SHORT),
     ("rope_parameters",),
     {"rotary_pct": 0.5, "rotary_emb_base": 500, "rope_theta": 500, "partial_rotary_factor": 0.5}),
    (case("modernbert-released", tf.ModernBertForMaskedLM, tf.ModernBertConfig, MODERN),  # as it lies on the hub
     ("rope_parameters", "layer_types"),
     {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "global_attn_every_n_layers": 3,
      "layer_norm_eps": 1e-5, "position_embedding_type": "absolute"}),
    (case("modernbert-thetas", tf.ModernBertForMaskedLM, tf.ModernBertConfig, MODERN,
          layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
          rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 500.0},
                           "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}),
     ("rope_parameters", "layer_types"),
     {"global_rope_theta": 500.0, "local_rope_theta": 50.0, "global_attn_every_n_layers": 2}),
    (case("bloom-released", tf.BloomForCausalLM, tf.BloomConfig, BLOOM), ("hidden_size", "n_head"),
     {"n_embed": 32, "num_attention_heads": 4, "seq_length": 2048, "offset_alibi": 100, "skip_bias_add": True}),
    (case("gpt2-aliases", tf.GPT2LMHeadModel, tf.GPT2Config, GPT),
     ("n_embd", "n_layer", "n_head", "n_positions", "n_inner"),
     {"hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 48, "n_ctx": 48}),
    (case("gpt-aliases", tf.OpenAIGPTLMHeadModel, tf.OpenAIGPTConfig, GPT),
     ("n_embd", "n_layer", "n_head", "n_positions"),
     {"hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 48}),
    (case("distilbert-aliases", tf.DistilBertForMaskedLM, tf.DistilBertConfig, DISTILBERT),
     ("dim", "n_layers", "n_heads"),
     {"hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 4, "tie_weights_": True}),
    (case("t5-aliases", tf.T5ForConditionalGeneration, tf.T5Config, T5),
     ("d_model", "num_layers", "num_heads", "d_kv", "is_gated_act", "dense_act_fn"),
     {"hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 10}),
    (case("bart-old", tf.BartForConditionalGeneration, tf.BartConfig, BART, decoder_layers=2),
     (), {"num_hidden_layers": 3, "normalize_before": False, "normalize_embedding": True, "add_bias_logits": False,
          "add_final_layer_norm": False, "static_position_embeddings": False, "extra_pos_embeddings": 2}),
    (case("xlnet-released", tf.XLNetLMHeadModel, tf.XLNetConfig, XLNET),  # as xlnet-base-cased lies on the hub
     ("use_mems_eval", "use_mems_train", "tie_word_embeddings"), {"mem_len": None, "untie_r": True, "n_token": VOCAB}),
    (case("xlnet-aliases", tf.XLNetLMHeadModel, tf.XLNetConfig, XLNET), ("d_model", "n_layer", "n_head"),
     {"hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 4}),
    (case("torch_dtype", tf.BertForMaskedLM, tf.BertConfig, ENCODER), ("dtype",), {"torch_dtype": "float32"}),
    (case("no-dtype", tf.BertForMaskedLM, tf.BertConfig, ENCODER), ("dtype",), {}),
]  # fmt: skip


QUICK = [
    "rope_theta",
    "rope_scaling",
    "mistral",
    "rotary_pct",
    "modernbert-released",
    "gpt2-aliases",
    "t5-aliases",
    "bart-old",
    "torch_dtype",
]


@pytest.mark.parametrize(
    ("case", "drop", "put"),
    [pytest.param(*row, id=row[0].name, marks=[] if row[0].name in QUICK else [pytest.mark.slow]) for row in CASES],
)
def test_old_config(case: Any, drop: tuple[str, ...], put: dict[str, Any], tmp_path: Path) -> None:
    reference = case.build()
    reference.save_pretrained(tmp_path)
    today = pt.load(tmp_path)
    respell(tmp_path, drop, **put)
    with torch.no_grad():
        expected = logits_of(run(reference, today.spec.is_encoder_decoder))
    ours = assert_both_read(tmp_path, case.cls, expected)
    assert ours.spec == today.spec


@torch.no_grad()
@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_half_precision(name: str, tmp_path: Path) -> None:
    """Stored in bf16, read as fp32: the values are those of the file, whatever the key is called."""
    reference = case("half", tf.LlamaForCausalLM, tf.LlamaConfig, LLAMA).build().bfloat16()
    reference.save_pretrained(tmp_path)
    respell(tmp_path, ("dtype",), **{name: "bfloat16"})
    ours = assert_both_read(tmp_path, tf.LlamaForCausalLM)
    assert all(weight.dtype == torch.float32 for weight in ours.parameters())


def old_norms(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """LayerNorm as the first releases of BERT spelled it."""
    renamed = {}
    for name, tensor in tensors.items():
        if "LayerNorm" in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        renamed[name] = tensor
    assert any(name.endswith(".beta") for name in renamed)
    return renamed


@torch.no_grad()
@pytest.mark.parametrize("cls", [tf.BertForPreTraining, tf.BertForMaskedLM])
def test_gamma_and_beta(cls: Any, tmp_path: Path) -> None:
    reference = case("old", cls, tf.BertConfig, ENCODER).build()
    reference.save_pretrained(tmp_path)
    change_tensors(tmp_path, old_norms)
    ours = pt.load(tmp_path)
    batch = our_batch(ours)
    assert_rows(batch.split(ours(batch).logits), logits_of(run(reference, False)), "logits")


T5_FLAGS: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"tie_word_embeddings": True}, True),
    ({"tie_word_embeddings": False}, False),
    ({"scale_decoder_outputs": True}, True),
    ({"scale_decoder_outputs": False}, False),
    ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, False),
    ({"tie_word_embeddings": False, "scale_decoder_outputs": True}, True),
]
# The two that are left out: mT5 does not know the key, and a head of its own that is not there is an error.
WAYS = [
    (kind, own, flags, scaled and kind == "t5")
    for kind in ("t5", "mt5")
    for own in (True, False)
    for flags, scaled in T5_FLAGS
    if not (kind == "mt5" and "scale_decoder_outputs" in flags)
    if own or flags.get("tie_word_embeddings") is not False
]


@pytest.mark.parametrize(("kind", "own", "flags", "scaled"), keep_quick(WAYS, *WAYS[::3]))
def test_output_scaling(kind: str, own: bool, flags: dict[str, Any], scaled: bool, tmp_path: Path) -> None:
    """Every way a T5 may say, or leave unsaid, whether its head is tied and its states are scaled; mT5 never scales."""
    cls, config = {
        "t5": (tf.T5ForConditionalGeneration, tf.T5Config),
        "mt5": (tf.MT5ForConditionalGeneration, tf.MT5Config),
    }[kind]
    case(kind, cls, config, T5, untied if own else small).build().save_pretrained(tmp_path)
    respell(tmp_path, ("tie_word_embeddings", "scale_decoder_outputs"), **flags)
    ours = assert_both_read(tmp_path, cls)
    assert ours.spec.head.tied == (not own)
    assert ours.spec.head.scale == (36**-0.5 if scaled else None)


def test_v1_1_of_transformers_4(tmp_path: Path) -> None:
    """As google/t5-v1_1-small lies on the hub: gated, a head of its own, and only the flag says that it is unscaled."""
    build = case("v1.1", tf.T5ForConditionalGeneration, tf.T5Config, T5, untied, feed_forward_proj="gated-gelu")
    build.build().save_pretrained(tmp_path)
    actual = {
        **build.options, "architectures": ["T5ForConditionalGeneration"], "decoder_start_token_id": 0,
        "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0, "is_encoder_decoder": True,
        "layer_norm_epsilon": 1e-06, "model_type": "t5", "num_decoder_layers": 3, "output_past": True,
        "pad_token_id": 0, "tie_word_embeddings": False, "use_cache": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(actual))
    ours = assert_both_read(tmp_path, tf.T5ForConditionalGeneration)
    assert ours.spec.head.scale is None and not ours.spec.head.tied
    feedforward = ours.spec.decoder.blocks[0].feedforward
    assert feedforward.gated and feedforward.activation == "gelu_tanh"
