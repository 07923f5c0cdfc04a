"""Tiny random reference models, one per family and per option that bites. Legend: small numbers, all different."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as tf

VOCAB = 97


@dataclass(frozen=True)
class Case:
    """A reference class with its config; `build` where the config alone cannot make it."""

    name: str
    cls: type
    config: type
    options: dict[str, Any]
    prepare: Callable[[Any], None] = field(default=lambda model: None)

    def build(self) -> Any:
        torch.manual_seed(7)
        config = self.config(**self.options, attn_implementation="eager")
        model = self.cls(config).eval()
        with torch.no_grad():
            for weight in model.parameters():  # defaults hide mistakes: no zero bias, no unit norm
                weight.add_(torch.randn_like(weight) * (0.05 if weight.dim() > 1 else 0.1))
        self.prepare(model)
        return model


ENCODER = {
    "vocab_size": VOCAB,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 52,
    "max_position_embeddings": 48,
}
DISTILBERT = {
    "vocab_size": VOCAB,
    "dim": 36,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 52,
    "max_position_embeddings": 48,
}
ELECTRA = {**ENCODER, "embedding_size": 20}
LAYER_TYPES = ["sliding_attention", "sliding_attention", "full_attention", "full_attention", "sliding_attention"]
ALBERT = ELECTRA
GPT = {"vocab_size": VOCAB, "n_embd": 36, "n_layer": 3, "n_head": 4, "n_positions": 48}
LLAMA = {**ENCODER, "hidden_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GEMMA = {
    **LLAMA,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "sliding_window": 5,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 12,
}
MODERN = {**LLAMA, "num_hidden_layers": 5, "local_attention": 6}
OPT = {
    "vocab_size": VOCAB,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_dim": 52,
    "max_position_embeddings": 48,
    "word_embed_proj_dim": 36,
}
NEOX = {**ENCODER, "hidden_size": 64, "bos_token_id": 0, "eos_token_id": 0}
BLOOM = {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 3, "n_head": 4}
XGLM = {
    "vocab_size": VOCAB,
    "d_model": 36,
    "num_layers": 3,
    "attention_heads": 4,
    "ffn_dim": 52,
    "max_position_embeddings": 48,
}
XLM = {
    "vocab_size": VOCAB,
    "emb_dim": 36,
    "n_layers": 3,
    "n_heads": 4,
    "max_position_embeddings": 48,
    "n_langs": 5,
}
MPT = {"vocab_size": VOCAB, "d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 48}
T5 = {
    "vocab_size": VOCAB,
    "d_model": 36,
    "d_kv": 10,
    "num_heads": 4,
    "d_ff": 52,
    "num_layers": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}
BART = {
    "vocab_size": VOCAB,
    "d_model": 36,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 52,
    "decoder_ffn_dim": 52,
    "max_position_embeddings": 48,
}
DEBERTA = {
    **ENCODER,
    "relative_attention": True,
    "position_buckets": 8,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}
XLNET = {"vocab_size": VOCAB, "d_model": 36, "n_layer": 3, "n_head": 4, "d_inner": 52}
ROPE3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def untied(model: Any) -> None:
    """transformers 5 ties T5's head whatever the config says: give it weights of its own."""
    model.lm_head.weight = torch.nn.Parameter(0.1 * torch.randn_like(model.lm_head.weight))
    for keys in ("_tied_weights_keys", "all_tied_weights_keys"):
        setattr(model, keys, {name: table for name, table in getattr(model, keys).items() if "lm_head" not in name})


def unscaled(model: Any) -> None:
    untied(model)
    model.config.scale_decoder_outputs = False


def small(model: Any) -> None:
    """Tied and never scaled: keep the logits of a size at which 1e-5 is a fair tolerance."""
    with torch.no_grad():
        model.shared.weight.mul_(0.2)


def one_table(model: Any) -> None:
    """BART with an untied head: encoder, decoder and the shared table are then three, but ours has one."""
    for side in (model.model.encoder, model.model.decoder):
        side.embed_tokens.weight = model.model.shared.weight


def shifted(model: Any) -> None:
    """A bias on the logits that is no parameter."""
    model.final_logits_bias.normal_()


def case(name: str, cls: type, config: type, base: dict[str, Any], prepare: Any = None, **options: Any) -> Case:
    given = {**base, **options}
    return Case(name, cls, config, given, prepare) if prepare else Case(name, cls, config, given)


CASES = [
    case("bert-pretraining", tf.BertForPreTraining, tf.BertConfig, ENCODER),
    case("bert-masked", tf.BertForMaskedLM, tf.BertConfig, ENCODER, hidden_act="gelu_new", layer_norm_eps=1e-5),
    case("bert-bare", tf.BertModel, tf.BertConfig, ENCODER, hidden_act="relu", type_vocab_size=3),
    case("bert-untied", tf.BertForMaskedLM, tf.BertConfig, ENCODER, tie_word_embeddings=False),
    case("roberta", tf.RobertaForMaskedLM, tf.RobertaConfig, ENCODER, type_vocab_size=1),
    case("roberta-pad-0", tf.RobertaForMaskedLM, tf.RobertaConfig, ENCODER, type_vocab_size=1, pad_token_id=0),
    case("roberta-bare", tf.RobertaModel, tf.RobertaConfig, ENCODER, type_vocab_size=1),
    case("xlm-roberta", tf.XLMRobertaForMaskedLM, tf.XLMRobertaConfig, ENCODER, type_vocab_size=1),
    case("electra", tf.ElectraForPreTraining, tf.ElectraConfig, ELECTRA),
    case("electra-wide", tf.ElectraForPreTraining, tf.ElectraConfig, ELECTRA, embedding_size=36, hidden_act="relu"),
    case("electra-generator", tf.ElectraForMaskedLM, tf.ElectraConfig, ELECTRA, hidden_act="gelu_new"),
    case("electra-generator-untied", tf.ElectraForMaskedLM, tf.ElectraConfig, ELECTRA, tie_word_embeddings=False,
         embedding_size=44, type_vocab_size=3, layer_norm_eps=1e-5),
    case("electra-bare", tf.ElectraModel, tf.ElectraConfig, ELECTRA),
    case("albert-pretraining", tf.AlbertForPreTraining, tf.AlbertConfig, ALBERT),
    case("albert-groups", tf.AlbertForMaskedLM, tf.AlbertConfig, ALBERT, num_hidden_layers=5, num_hidden_groups=2,
         inner_group_num=2, hidden_act="relu", layer_norm_eps=1e-5, type_vocab_size=3),
    case("albert-unshared", tf.AlbertForPreTraining, tf.AlbertConfig, ALBERT, num_hidden_groups=3, embedding_size=36),
    case("albert-untied", tf.AlbertForMaskedLM, tf.AlbertConfig, ALBERT, tie_word_embeddings=False, hidden_act="gelu"),
    case("albert-bare", tf.AlbertModel, tf.AlbertConfig, ALBERT, num_hidden_layers=4, num_hidden_groups=2),
    case("distilbert", tf.DistilBertForMaskedLM, tf.DistilBertConfig, DISTILBERT, activation="gelu_new"),
    case("distilbert-sinusoidal", tf.DistilBertForMaskedLM, tf.DistilBertConfig, DISTILBERT, sinusoidal_pos_embds=True,
         activation="relu", n_heads=6, tie_word_embeddings=False),
    case("distilbert-bare", tf.DistilBertModel, tf.DistilBertConfig, DISTILBERT),
    case("modernbert", tf.ModernBertForMaskedLM, tf.ModernBertConfig, MODERN),
    case("modernbert-odd", tf.ModernBertForMaskedLM, tf.ModernBertConfig, MODERN, layer_types=LAYER_TYPES,
         local_attention=9, norm_bias=True, norm_eps=1e-4, attention_bias=True, mlp_bias=True, classifier_bias=True,
         decoder_bias=False, classifier_activation="relu", hidden_activation="silu", rope_parameters={
             "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
             "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}),
    case("modernbert-untied", tf.ModernBertForMaskedLM, tf.ModernBertConfig, MODERN, tie_word_embeddings=False),
    case("modernbert-bare", tf.ModernBertModel, tf.ModernBertConfig, MODERN, norm_bias=True),
    case("xlm", tf.XLMWithLMHeadModel, tf.XLMConfig, XLM),
    case("xlm-odd", tf.XLMWithLMHeadModel, tf.XLMConfig, XLM, use_lang_emb=False, gelu_activation=False,
         sinusoidal_embeddings=True, layer_norm_eps=1e-4, tie_word_embeddings=False),
    case("xlm-bare", tf.XLMModel, tf.XLMConfig, XLM, n_langs=1),
    case("gpt", tf.OpenAIGPTLMHeadModel, tf.OpenAIGPTConfig, GPT),
    case("gpt-bare", tf.OpenAIGPTModel, tf.OpenAIGPTConfig, GPT, afn="silu"),
    case("gpt2", tf.GPT2LMHeadModel, tf.GPT2Config, GPT),
    case("gpt2-inner", tf.GPT2LMHeadModel, tf.GPT2Config, GPT, n_inner=52, activation_function="gelu"),
    case("gpt2-untied", tf.GPT2LMHeadModel, tf.GPT2Config, GPT, tie_word_embeddings=False),
    case("gpt2-bare", tf.GPT2Model, tf.GPT2Config, GPT),
    case("llama", tf.LlamaForCausalLM, tf.LlamaConfig, LLAMA),
    case("llama-tied", tf.LlamaForCausalLM, tf.LlamaConfig, LLAMA, tie_word_embeddings=True),
    case("llama-gqa-bias", tf.LlamaForCausalLM, tf.LlamaConfig, LLAMA,
         num_key_value_heads=2, attention_bias=True, mlp_bias=True, head_dim=12),
    case("llama-bands", tf.LlamaForCausalLM, tf.LlamaConfig, LLAMA, rope_parameters=ROPE3, num_key_value_heads=1),
    case("llama-linear", tf.LlamaForCausalLM, tf.LlamaConfig, LLAMA,
         rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}),
    case("mistral-window", tf.MistralForCausalLM, tf.MistralConfig, LLAMA, num_key_value_heads=2, sliding_window=5),
    case("mistral-full", tf.MistralForCausalLM, tf.MistralConfig, LLAMA, num_key_value_heads=2, sliding_window=None),
    case("olmo", tf.OlmoForCausalLM, tf.OlmoConfig, LLAMA, num_key_value_heads=2),
    case("olmo-clip", tf.OlmoForCausalLM, tf.OlmoConfig, LLAMA, clip_qkv=0.05, tie_word_embeddings=True),
    case("olmo2", tf.Olmo2ForCausalLM, tf.Olmo2Config, LLAMA, num_key_value_heads=2),
    case("qwen2", tf.Qwen2ForCausalLM, tf.Qwen2Config, LLAMA, num_key_value_heads=2),
    case("qwen2-tied-linear", tf.Qwen2ForCausalLM, tf.Qwen2Config, LLAMA, num_key_value_heads=1, rms_norm_eps=1e-3,
         tie_word_embeddings=True, rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}),
    case("qwen2-windows", tf.Qwen2ForCausalLM, tf.Qwen2Config, LLAMA, num_key_value_heads=4,
         use_sliding_window=True, sliding_window=5, max_window_layers=1, head_dim=12),
    case("qwen2-all-windows", tf.Qwen2ForCausalLM, tf.Qwen2Config, LLAMA, num_key_value_heads=2,
         use_sliding_window=True, sliding_window=4, max_window_layers=0),
    case("qwen3", tf.Qwen3ForCausalLM, tf.Qwen3Config, LLAMA, num_key_value_heads=2, head_dim=12, rms_norm_eps=1e-3),
    case("qwen3-wide", tf.Qwen3ForCausalLM, tf.Qwen3Config, LLAMA, num_key_value_heads=1, attention_bias=True,
         tie_word_embeddings=True, rope_parameters=ROPE3),
    case("qwen3-windows", tf.Qwen3ForCausalLM, tf.Qwen3Config, LLAMA, num_key_value_heads=2, head_dim=8,
         use_sliding_window=True, sliding_window=5,
         layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    case("smollm3", tf.SmolLM3ForCausalLM, tf.SmolLM3Config, LLAMA, num_key_value_heads=2, no_rope_layer_interval=2),
    case("smollm3-windows", tf.SmolLM3ForCausalLM, tf.SmolLM3Config, LLAMA, num_key_value_heads=2, mlp_bias=True,
         no_rope_layers=[0, 1, 0], use_sliding_window=True, sliding_window=4, rope_parameters=ROPE3),
    case("gemma3", tf.Gemma3ForCausalLM, tf.Gemma3TextConfig, GEMMA),
    case("gemma3-odd", tf.Gemma3ForCausalLM, tf.Gemma3TextConfig, GEMMA, num_key_value_heads=1, attention_bias=True,
         query_pre_attn_scalar=20, layer_types=["full_attention", "sliding_attention", "sliding_attention"],
         tie_word_embeddings=False, hidden_activation="silu", rope_parameters={
             "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 8.0},
             "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}),
    case("gemma3-bare", tf.Gemma3TextModel, tf.Gemma3TextConfig, GEMMA),
    case("opt", tf.OPTForCausalLM, tf.OPTConfig, OPT),
    case("opt-350m-like", tf.OPTForCausalLM, tf.OPTConfig, OPT, do_layer_norm_before=False, word_embed_proj_dim=20),
    case("opt-plain", tf.OPTForCausalLM, tf.OPTConfig, OPT,
         enable_bias=False, layer_norm_elementwise_affine=False, _remove_final_layer_norm=True),
    case("pythia", tf.GPTNeoXForCausalLM, tf.GPTNeoXConfig, NEOX),
    case("pythia-serial", tf.GPTNeoXForCausalLM, tf.GPTNeoXConfig, NEOX,
         use_parallel_residual=False, tie_word_embeddings=True, attention_bias=False,
         rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}),
    case("mpt", tf.MptForCausalLM, tf.MptConfig, MPT),
    case("mpt-six-heads", tf.MptForCausalLM, tf.MptConfig, MPT, n_heads=6, d_model=36,
         attn_config={"clip_qkv": 0.1, "softmax_scale": 0.3}),
    case("bloom", tf.BloomForCausalLM, tf.BloomConfig, BLOOM),
    case("bloom-six-heads", tf.BloomForCausalLM, tf.BloomConfig, BLOOM, n_head=6, hidden_size=36,
         layer_norm_epsilon=1e-4, tie_word_embeddings=False),
    case("bloom-bare", tf.BloomModel, tf.BloomConfig, BLOOM),
    case("xglm", tf.XGLMForCausalLM, tf.XGLMConfig, XGLM),
    case("xglm-odd", tf.XGLMForCausalLM, tf.XGLMConfig, XGLM, d_model=35, attention_heads=5, scale_embedding=False,
         activation_function="relu", tie_word_embeddings=False),
    case("xglm-bare", tf.XGLMModel, tf.XGLMConfig, XGLM),
    case("t5", tf.T5ForConditionalGeneration, tf.T5Config, T5),
    case("t5-deep-decoder", tf.T5ForConditionalGeneration, tf.T5Config, T5, num_decoder_layers=2, num_layers=4),
    case("t5v1.1", tf.T5ForConditionalGeneration, tf.T5Config, T5,
         unscaled, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    case("t5-untied-scaled", tf.T5ForConditionalGeneration, tf.T5Config, T5, untied, feed_forward_proj="gated-silu"),
    case("t5-bare", tf.T5Model, tf.T5Config, T5),
    case("mt5", tf.MT5ForConditionalGeneration, tf.MT5Config, T5, untied),
    case("mt5-tied", tf.MT5ForConditionalGeneration, tf.MT5Config, T5, small),
    case("bart", tf.BartForConditionalGeneration, tf.BartConfig, BART, shifted),
    case("bart-odd", tf.BartForConditionalGeneration, tf.BartConfig, BART, scale_embedding=True,
         decoder_layers=2, decoder_attention_heads=6, encoder_ffn_dim=40, activation_function="relu"),
    case("bart-untied", tf.BartForConditionalGeneration, tf.BartConfig, BART, one_table, tie_word_embeddings=False),
    case("bart-bare", tf.BartModel, tf.BartConfig, BART),
    case("deberta", tf.DebertaV2ForMaskedLM, tf.DebertaV2Config, DEBERTA, conv_kernel_size=3, conv_act="gelu"),
    case("deberta-new-head", tf.DebertaV2ForMaskedLM, tf.DebertaV2Config, DEBERTA, legacy=False, position_buckets=6,
         max_relative_positions=9, hidden_act="relu", layer_norm_eps=1e-5),
    case("deberta-separate", tf.DebertaV2ForMaskedLM, tf.DebertaV2Config, DEBERTA, share_att_key=False,
         position_biased_input=True, norm_rel_ebd="none", type_vocab_size=3, conv_kernel_size=5, conv_groups=4),
    case("deberta-untied", tf.DebertaV2ForMaskedLM, tf.DebertaV2Config, DEBERTA, tie_word_embeddings=False,
         pos_att_type=["c2p"], share_att_key=False, position_buckets=-1, max_relative_positions=7),
    case("deberta-p2c", tf.DebertaV2ForMaskedLM, tf.DebertaV2Config, DEBERTA, pos_att_type=["p2c"],
         share_att_key=False, embedding_size=20, position_buckets=7),
    case("deberta-content", tf.DebertaV2ForMaskedLM, tf.DebertaV2Config, DEBERTA, relative_attention=False,
         norm_rel_ebd="none", position_biased_input=True),
    case("deberta-bare", tf.DebertaV2Model, tf.DebertaV2Config, DEBERTA, position_buckets=-1),
    case("xlnet", tf.XLNetLMHeadModel, tf.XLNetConfig, XLNET),
    case("xlnet-odd", tf.XLNetLMHeadModel, tf.XLNetConfig, XLNET,
         ff_activation="relu", layer_norm_eps=1e-5, mem_len=None),
    case("xlnet-untied", tf.XLNetLMHeadModel, tf.XLNetConfig, XLNET, tie_word_embeddings=False),
    case("xlnet-bare", tf.XLNetModel, tf.XLNetConfig, XLNET),
    case("mbart", tf.MBartForConditionalGeneration, tf.MBartConfig, BART, scale_embedding=True),
]  # fmt: skip
