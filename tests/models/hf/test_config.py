"""Config files of Hugging Face directories: silence, published texts, wrong values, unknown keys."""

import json
from dataclasses import replace
from typing import Any

import pytest

from pretune.core.errors import CheckpointError, PretuneError
from pretune.models.catalog import resolve
from pretune.models.families import FAMILIES, get_model_types
from pretune.models.hf.checkpoint import describe_checkpoint
from pretune.models.hf.config import CODE_KEYS, IGNORED_KEYS, HfConfig, check_size, is_equivalent
from pretune.models.hf.weights import Layout
from pretune.models.spec import Model, Special
from pretune.nn.positions import BandedScaling, LinearScaling, Rotary

LEFTOVERS = {
    "architectures": None, "bad_words_ids": None, "begin_suppress_tokens": None, "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None, "diversity_penalty": 0.0, "do_sample": False, "dtype": "float32",
    "early_stopping": False, "encoder_no_repeat_ngram_size": 0, "exponential_decay_length_penalty": None,
    "finetuning_task": None, "forced_bos_token_id": None, "forced_eos_token_id": None,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "length_penalty": 1.0,
    "max_length": 20, "min_length": 0, "no_repeat_ngram_size": 0, "num_beam_groups": 1, "num_beams": 1,
    "num_return_sequences": 1, "output_attentions": False, "output_hidden_states": False, "output_scores": False,
    "prefix": None, "problem_type": None, "pruned_heads": {}, "remove_invalid_values": False,
    "repetition_penalty": 1.0, "return_dict": True, "return_dict_in_generate": False, "sep_token_id": None,
    "suppress_tokens": None, "task_specific_params": None, "temperature": 1.0, "tf_legacy_loss": False,
    "tie_encoder_decoder": False, "tokenizer_class": None, "top_k": 50, "top_p": 1.0, "torch_dtype": "float16",
    "torchscript": False, "transformers_version": "4.44.0", "typical_p": 1.0, "use_bfloat16": False,
    "add_cross_attention": False, "is_decoder": False, "_name_or_path": "somewhere/else", "_commit_hash": "0f1e",
}  # fmt: skip
"""Keys that transformers 4 wrote into every config.json."""

TALK = {"text-generation": {"do_sample": True, "max_length": 50}}
SUMMARY = {
    "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True, "task_specific_params": TALK,
}  # fmt: skip
BERT = {
    "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
    "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12,
    "num_hidden_layers": 12, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30522,
}  # fmt: skip
ROBERTA = {
    **BERT, "architectures": ["RobertaForMaskedLM"], "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1,
    "vocab_size": 50265,
}  # fmt: skip
ELECTRA = {
    **BERT, "architectures": ["ElectraForPreTraining"], "embedding_size": 128, "hidden_size": 256,
    "intermediate_size": 1024, "model_type": "electra", "num_attention_heads": 4, "summary_activation": "gelu",
    "summary_last_dropout": 0.1, "summary_type": "first", "summary_use_proj": True,
}  # fmt: skip
ALBERT = {
    "architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0, "bos_token_id": 2,
    "classifier_dropout_prob": 0.1, "down_scale_factor": 1, "embedding_size": 128, "eos_token_id": 3, "gap_size": 0,
    "hidden_act": "gelu_new", "hidden_dropout_prob": 0, "hidden_size": 768, "initializer_range": 0.02,
    "inner_group_num": 1, "intermediate_size": 3072, "layer_norm_eps": 1e-12, "layers_to_keep": [],
    "max_position_embeddings": 512, "model_type": "albert", "net_structure_type": 0, "num_attention_heads": 12,
    "num_hidden_groups": 1, "num_hidden_layers": 12, "num_memory_blocks": 0, "pad_token_id": 0,
    "type_vocab_size": 2, "vocab_size": 30000,
}  # fmt: skip
DISTILBERT = {
    "activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1, "dim": 768,
    "dropout": 0.1, "hidden_dim": 3072, "initializer_range": 0.02, "max_position_embeddings": 512,
    "model_type": "distilbert", "n_heads": 12, "n_layers": 6, "pad_token_id": 0, "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True, "vocab_size": 30522,
}  # fmt: skip
MODERNBERT = {
    "architectures": ["ModernBertForMaskedLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 50281, "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0,
    "classifier_pooling": "mean", "cls_token_id": 50281, "decoder_bias": True, "deterministic_flash_attn": False,
    "embedding_dropout": 0.0, "eos_token_id": 50282, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
    "gradient_checkpointing": False, "hidden_activation": "gelu", "hidden_size": 768,
    "initializer_cutoff_factor": 2.0, "initializer_range": 0.02, "intermediate_size": 1152, "layer_norm_eps": 1e-05,
    "local_attention": 128, "local_rope_theta": 10000.0, "max_position_embeddings": 8192, "mlp_bias": False,
    "mlp_dropout": 0.0, "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-05, "num_attention_heads": 12,
    "num_hidden_layers": 22, "pad_token_id": 50283, "position_embedding_type": "absolute", "sep_token_id": 50282,
    "tie_word_embeddings": True, "torch_dtype": "float32", "transformers_version": "4.47.0.dev0", "vocab_size": 50368,
}  # fmt: skip
LLAMA2 = {
    "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "float16",
    "transformers_version": "4.31.0.dev0", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
LLAMA31 = {
    **LLAMA2, "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "intermediate_size": 14336, "max_position_embeddings": 131072,
    "mlp_bias": False, "num_key_value_heads": 8, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
    "vocab_size": 128256,
    "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}  # fmt: skip
LLAMA32 = {
    **LLAMA31, "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "tie_word_embeddings": True, "rope_scaling": {**LLAMA31["rope_scaling"], "factor": 32.0},
}  # fmt: skip
MISTRAL = {
    **{key: value for key, value in LLAMA2.items() if key not in ("_name_or_path", "pretraining_tp", "rope_scaling")},
    "architectures": ["MistralForCausalLM"], "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mistral", "num_key_value_heads": 8, "rope_theta": 10000.0, "sliding_window": 4096,
    "torch_dtype": "bfloat16",
}  # fmt: skip
OLMO = {
    "architectures": ["OlmoForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "clip_qkv": None,
    "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 8192, "max_position_embeddings": 2048, "model_type": "olmo", "num_attention_heads": 16,
    "num_hidden_layers": 16, "num_key_value_heads": 16, "pad_token_id": 1, "rope_scaling": None,
    "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "float32", "use_cache": True,
    "transformers_version": "4.40.0.dev0", "vocab_size": 50304,
}  # fmt: skip
OLMO2 = {
    **{key: value for key, value in OLMO.items() if key != "clip_qkv"}, "architectures": ["Olmo2ForCausalLM"],
    "eos_token_id": 100257, "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 4096,
    "model_type": "olmo2", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_theta": 500000, "tie_word_embeddings": False,
    "use_cache": False, "vocab_size": 100352,
}  # fmt: skip
QWEN2 = {
    **{key: value for key, value in LLAMA2.items() if key not in ("_name_or_path", "pretraining_tp", "rope_scaling")},
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
    "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28,
    "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072, "use_sliding_window": False,
    "vocab_size": 152064,
}  # fmt: skip
QWEN3 = {
    **QWEN2, "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128, "hidden_size": 4096,
    "intermediate_size": 12288, "max_position_embeddings": 32768, "max_window_layers": 36, "model_type": "qwen3",
    "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rope_scaling": None,
    "rope_theta": 1000000, "sliding_window": None, "vocab_size": 151936,
}  # fmt: skip
SMOLLM3 = {
    **QWEN2,
    "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "bos_token_id": None, "eos_token_id": 128001,
    "hidden_size": 2048, "intermediate_size": 11008, "layer_types": ["full_attention"] * 36,
    "max_position_embeddings": 65536, "mlp_bias": False, "model_type": "smollm3", "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4,
    "pad_token_id": 128004, "pretraining_tp": 2, "rope_scaling": None, "rope_theta": 5000000.0,
    "sliding_window": None, "tie_word_embeddings": True, "vocab_size": 128256,
}  # fmt: skip
GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attn_logit_softcapping": None, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
    "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
    "initializer_range": 0.02, "intermediate_size": 6912, "max_position_embeddings": 32768,
    "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
    "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 262144,
}  # fmt: skip
_GEMMA3_4B = {
    **GEMMA3, "hidden_size": 2560, "intermediate_size": 10240, "max_position_embeddings": 131072,
    "num_attention_heads": 8, "num_hidden_layers": 34, "num_key_value_heads": 4, "sliding_window": 1024,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "vocab_size": 262208,
}  # fmt: skip
OPT = {
    "_name_or_path": "facebook/opt-125m", "_remove_final_layer_norm": False, "activation_dropout": 0.0,
    "activation_function": "relu", "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2,
    "do_layer_norm_before": True, "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 3072, "hidden_size": 768,
    "init_std": 0.02, "layerdrop": 0.0, "max_position_embeddings": 2048, "model_type": "opt",
    "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "prefix": "</s>",
    "torch_dtype": "float16", "use_cache": True, "vocab_size": 50272, "word_embed_proj_dim": 768,
}  # fmt: skip
NEOX = {
    "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
    "hidden_size": 512, "initializer_range": 0.02, "intermediate_size": 2048, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 8, "num_hidden_layers": 6,
    "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
    "use_cache": True, "use_parallel_residual": True, "vocab_size": 50304,
}  # fmt: skip
MPT = {
    "architectures": ["MPTForCausalLM"], "d_model": 4096, "emb_pdrop": 0, "embedding_fraction": 1.0,
    "attn_config": {
        "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0, "attn_type": "multihead_attention",
        "attn_uses_sequence_id": False, "clip_qkv": None, "prefix_lm": False, "qk_ln": False, "softmax_scale": None,
    },
    "expansion_ratio": 4, "init_device": "cpu", "learned_pos_emb": True, "logit_scale": None, "max_seq_len": 2048,
    "init_config": {"fan_mode": "fan_in", "init_gain": 0, "name": "kaiming_normal_", "verbose": 0},
    "model_type": "mpt", "n_heads": 32, "n_layers": 32, "no_bias": True, "norm_type": "low_precision_layernorm",
    "resid_pdrop": 0, "tokenizer_name": "EleutherAI/gpt-neox-20b", "torch_dtype": "bfloat16", "use_cache": False,
    "verbose": 0, "vocab_size": 50432,
}  # fmt: skip
BLOOM = {
    "apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"],
    "attention_dropout": 0.0, "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_dropout": 0.0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "masked_softmax_fusion": True, "model_type": "bloom", "n_embed": 1024, "n_inner": None, "n_layer": 24,
    "num_attention_heads": 16, "offset_alibi": 100, "pad_token_id": 3, "pretraining_tp": 1, "seq_length": 2048,
    "skip_bias_add": True, "skip_bias_add_qkv": False, "slow_but_exact": False, "transformers_version": "4.20.0",
    "unk_token_id": 0, "use_cache": True, "vocab_size": 250880,
}  # fmt: skip
XGLM = {
    "activation_dropout": 0, "activation_function": "gelu", "architectures": ["XGLMForCausalLM"],
    "attention_dropout": 0.1, "attention_heads": 16, "bos_token_id": 0, "d_model": 1024, "decoder_start_token_id": 2,
    "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 4096, "init_std": 0.02, "layerdrop": 0.0,
    "max_position_embeddings": 2048, "model_type": "xglm", "num_layers": 24, "pad_token_id": 1,
    "scale_embedding": True, "transformers_version": "4.16.0.dev0", "use_cache": True, "vocab_size": 256008,
}  # fmt: skip
XLM = {
    "architectures": ["XLMWithLMHeadModel"], "asm": False, "attention_dropout": 0.1, "bos_index": 0, "causal": False,
    "dropout": 0.1, "emb_dim": 1024, "embed_init_std": 0.02209708691207961, "end_n_top": 5, "eos_index": 1,
    "gelu_activation": True, "id2lang": {"0": "ar", "1": "bg", "4": "en"}, "init_std": 0.02, "is_encoder": True,
    "lang2id": {"ar": 0, "bg": 1, "en": 4}, "layer_norm_eps": 1e-12, "mask_index": 5, "max_position_embeddings": 512,
    "max_vocab": 95000, "model_type": "xlm", "n_heads": 8, "n_langs": 15, "n_layers": 12, "pad_index": 2,
    "same_enc_dec": True, "share_inout_emb": True, "sinusoidal_embeddings": False, "start_n_top": 5,
    "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
    "summary_type": "first", "summary_use_proj": True, "unk_index": 3, "use_lang_emb": True, "vocab_size": 95000,
}  # fmt: skip
T5 = {
    "architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 512,
    "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0,
    "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06, "model_type": "t5", "n_positions": 512,
    "num_decoder_layers": 6, "num_heads": 8, "num_layers": 6, "output_past": True, "pad_token_id": 0,
    "relative_attention_num_buckets": 32, "vocab_size": 32128,
    "task_specific_params": {"summarization": {"early_stopping": True, "num_beams": 4, "prefix": "summarize: "}},
}  # fmt: skip
T511 = {
    **{key: value for key, value in T5.items() if key not in ("n_positions", "task_specific_params")}, "d_ff": 1024,
    "feed_forward_proj": "gated-gelu", "num_decoder_layers": 8, "num_heads": 6, "num_layers": 8,
    "tie_word_embeddings": False,
}  # fmt: skip
MT5 = {
    **T511, "architectures": ["MT5ForConditionalGeneration"], "model_type": "mt5", "tokenizer_class": "T5Tokenizer",
    "vocab_size": 250112,
}  # fmt: skip
BART = {
    "activation_dropout": 0.1, "activation_function": "gelu", "add_bias_logits": False, "add_final_layer_norm": False,
    "architectures": ["BartModel"], "attention_dropout": 0.1, "bos_token_id": 0, "classif_dropout": 0.1,
    "classifier_dropout": 0.0, "d_model": 768, "decoder_attention_heads": 12, "decoder_ffn_dim": 3072,
    "decoder_layerdrop": 0.0, "decoder_layers": 6, "decoder_start_token_id": 2, "dropout": 0.1,
    "early_stopping": True, "encoder_attention_heads": 12, "encoder_ffn_dim": 3072, "encoder_layerdrop": 0.0,
    "encoder_layers": 6, "eos_token_id": 2, "forced_bos_token_id": 0, "forced_eos_token_id": 2,
    "gradient_checkpointing": False, "init_std": 0.02, "is_encoder_decoder": True, "max_position_embeddings": 1024,
    "model_type": "bart", "no_repeat_ngram_size": 3, "normalize_before": False, "normalize_embedding": True,
    "num_beams": 4, "num_hidden_layers": 6, "pad_token_id": 1, "scale_embedding": False, "torch_dtype": "float32",
    "use_cache": True, "vocab_size": 50265, "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
    "task_specific_params": {"summarization": {"length_penalty": 1.0, "max_length": 128, "min_length": 12}},
}  # fmt: skip
MBART = {
    **{key: value for key, value in BART.items() if key not in ("forced_bos_token_id", "decoder_start_token_id")},
    "_num_labels": 3, "activation_dropout": 0.0, "add_final_layer_norm": True, "attention_dropout": 0.0,
    "architectures": ["MBartForConditionalGeneration"], "d_model": 1024, "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096, "decoder_layers": 12, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096,
    "encoder_layers": 12, "model_type": "mbart", "normalize_before": True, "num_beams": 5, "num_hidden_layers": 12,
    "output_past": True, "scale_embedding": True, "static_position_embeddings": False, "vocab_size": 250027,
}  # fmt: skip

_STRETCHED = {
    "context": 131072,
    "decoder.position.scaling": BandedScaling(factor=8.0, low=1.0, high=4.0, original=8192),
}
DEBERTA = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
    "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-07, "max_position_embeddings": 512,
    "max_relative_positions": -1, "model_type": "deberta-v2", "norm_rel_ebd": "layer_norm", "num_attention_heads": 12,
    "num_hidden_layers": 12, "pos_att_type": "p2c|c2p", "position_biased_input": False, "position_buckets": 256,
    "relative_attention": True, "share_att_key": True, "type_vocab_size": 0, "vocab_size": 128100,
}  # fmt: skip
PUBLISHED: dict[str, tuple[dict[str, Any], Model]] = {
    "bert-base-uncased": (
        {**BERT, "gradient_checkpointing": False, "position_embedding_type": "absolute", "use_cache": True},
        resolve("bert-base"),
    ),
    "bert-base-multilingual-cased": (
        {
            **BERT, "directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12,
            "pooler_num_fc_layers": 3, "pooler_size_per_head": 128, "pooler_type": "first_token_transform",
            "vocab_size": 119547,
        },
        resolve("bert-multilingual"),
    ),
    "roberta-base": (ROBERTA, resolve("roberta-base")),
    "xlm-roberta-base": (
        {
            **ROBERTA, "architectures": ["XLMRobertaForMaskedLM"], "model_type": "xlm-roberta", "output_past": True,
            "vocab_size": 250002,
        },
        resolve("xlm-roberta-base"),
    ),
    "electra-small-discriminator": (ELECTRA, resolve("electra-small")),
    "electra-base-discriminator": (
        {
            **ELECTRA, "embedding_size": 768, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
        },
        resolve("electra-base"),
    ),
    "electra-base-generator": (
        {**ELECTRA, "architectures": ["ElectraForMaskedLM"], "embedding_size": 768}, resolve("electra-base-generator"),
    ),
    "albert-base-v2": (ALBERT, resolve("albert-base")),
    "albert-xlarge-v1": (
        {
            **ALBERT, "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
            "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "num_hidden_layers": 24,
        },
        resolve("albert-xlarge-v1"),
    ),
    "distilbert-base-uncased": (DISTILBERT, resolve("distilbert-base")),
    "distilbert-base-multilingual-cased": ({**DISTILBERT, "output_past": True, "vocab_size": 119547},
        resolve("distilbert-multilingual"),
    ),
    "TinyBERT_General_4L_312D": (
        {
            **BERT, "cell": {}, "emb_size": 312, "hidden_size": 312, "intermediate_size": 1200,
            "num_hidden_layers": 4, "pre_trained": "", "structure": [], "training": "",
        },
        resolve("tinybert-4"),
    ),
    "ModernBERT-base": (MODERNBERT, resolve("modernbert-base")),
    "ModernBERT-large": (
        {
            **MODERNBERT, "hidden_size": 1024, "intermediate_size": 2624, "num_attention_heads": 16,
            "num_hidden_layers": 28,
        },
        resolve("modernbert-large"),
    ),
    "deberta-v3-base": (DEBERTA, resolve("deberta-v3-base")),
    "mdeberta-v3-base": ({**DEBERTA, "vocab_size": 251000}, resolve("deberta-v3-base-multilingual")),
    "deberta-v2-xlarge": (
        {
            **DEBERTA, "attention_head_size": 64, "conv_act": "gelu", "conv_kernel_size": 3, "hidden_size": 1536,
            "intermediate_size": 6144, "num_attention_heads": 24, "num_hidden_layers": 24, "pooler_dropout": 0,
            "pooler_hidden_act": "gelu", "pooler_hidden_size": 1536,
        },
        resolve("deberta-v2-xlarge"),
    ),
    "openai-gpt": (
        {
            **SUMMARY, "afn": "gelu", "architectures": ["OpenAIGPTLMHeadModel"], "attn_pdrop": 0.1, "embd_pdrop": 0.1,
            "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "openai-gpt", "n_ctx": 512,
            "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 512, "n_special": 0,
            "predict_special_tokens": True, "resid_pdrop": 0.1, "vocab_size": 40478,
        },
        resolve("gpt-base"),
    ),
    "gpt2": (
        {
            **SUMMARY, "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
            "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
            "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
            "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257,
        },
        resolve("gpt2-small"),
    ),
    "Llama-2-7b-hf": (LLAMA2, resolve("llama2-7b")),
    "Llama-3.1-8B": (LLAMA31, resolve("llama3-8b", _STRETCHED)),
    "Llama-3.2-1B": (LLAMA32, resolve("llama3-1b")),
    "Mistral-7B-v0.1": (MISTRAL, resolve("mistral-7b")),
    "OLMo-1B-hf": (OLMO, resolve("olmo-1b")),
    "OLMo-2-1124-7B": (OLMO2, resolve("olmo2-7b")),
    "Qwen2-7B": (QWEN2, resolve("qwen2-7b", {"context": 131072})),
    "Qwen3-8B-Base": (QWEN3, resolve("qwen3-8b")),
    "SmolLM3-3B-Base": (SMOLLM3, resolve("smollm3-3b")),
    "gemma-3-1b-pt": (GEMMA3, resolve("gemma3-1b")),
    "gemma-3-4b-pt": (
        _GEMMA3_4B,
        resolve(
            "gemma3-1b",
            {
                "width": 2560, "depth": 34, "heads": 8, "kv_heads": 4, "hidden": 10240, "vocab": 262208, "window": 1024,
                "context": 131072, "decoder.position.scaling": LinearScaling(factor=8.0),
            },
        ),
    ),
    "opt-125m": (OPT, resolve("opt-125m")),
    "opt-350m": (
        {
            **OPT, "do_layer_norm_before": False, "ffn_dim": 4096, "hidden_size": 1024, "num_attention_heads": 16,
            "num_hidden_layers": 24, "word_embed_proj_dim": 512,
        },
        resolve("opt-350m"),
    ),
    "pythia-70m": (NEOX, resolve("pythia-70m")),
    "mpt-7b": (MPT, resolve("mpt-7b")),
    "bloom-560m": (BLOOM, resolve("bloom-560m")),
    "xglm-564M": (XGLM, resolve("xglm-564M")),
    "xglm-4.5B": ({**XGLM, "d_model": 2048, "ffn_dim": 16384, "num_layers": 48}, resolve("xglm-4.5B")),
    "xlm-mlm-tlm-xnli15-1024": (XLM, resolve("xlm-mlm-tlm-xnli15-1024")),
    "xlm-mlm-en-2048": (
        {**XLM, "emb_dim": 2048, "n_heads": 16, "n_langs": 1, "vocab_size": 30145, "n_words": 30145},
        resolve("xlm-mlm-en-2048"),
    ),
    "xlm-mlm-100-1280": (
        {
            **XLM, "emb_dim": 1280, "n_heads": 16, "n_langs": 100, "n_layers": 16, "use_lang_emb": False,
            "vocab_size": 200000,
        },
        resolve("xlm-mlm-100-1280"),
    ),
    "t5-small": (T5, resolve("t5-small")),
    "t5-small, early": ({**T5, "architectures": ["T5WithLMHeadModel"]}, resolve("t5-small")),
    "t5-v1_1-small": (T511, resolve("t5v1.1-small")),
    "mt5-small": (MT5, resolve("mt5-small")),
    "bart-base": (BART, resolve("bart-base")),
    "mbart-large-cc25": (MBART, resolve("mbart-large")),
    "xlnet-base-cased": (
        {
            "architectures": ["XLNetLMHeadModel"], "attn_type": "bi", "bi_data": False, "bos_token_id": 1,
            "clamp_len": -1, "d_head": 64, "d_inner": 3072, "d_model": 768, "dropout": 0.1, "end_n_top": 5,
            "eos_token_id": 2, "ff_activation": "gelu", "initializer_range": 0.02, "layer_norm_eps": 1e-12,
            "mem_len": None, "model_type": "xlnet", "n_head": 12, "n_layer": 12, "pad_token_id": 5, "reuse_len": None,
            "same_length": False, "start_n_top": 5, "summary_activation": "tanh", "summary_last_dropout": 0.1,
            "summary_type": "last", "summary_use_proj": True, "untie_r": True, "vocab_size": 32000,
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 250}},
        },
        resolve("xlnet-base"),
    ),
}  # fmt: skip
"""The config.json of released weights, as published, and the size of ours that it is."""


def layout_of(model_type: str) -> Layout:
    layout = FAMILIES.get(get_model_types()[model_type]).layout
    assert layout is not None
    return layout


def read(found: dict[str, Any], parts: frozenset[str] | None = None) -> Model:
    """Return the spec of a config whose file has all parts of its class (or the given parts)."""
    hf_config = HfConfig(found)
    hf_config.refuse_code()
    layout = layout_of(found["model_type"])
    promised, tied = layout.read_claims(hf_config)
    full = next(iter(layout.classes.values()))
    return layout.read(hf_config, parts if parts is not None else full if promised is None else promised, is_tied=tied)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published(name: str) -> None:
    found, ours = PUBLISHED[name]
    spec = read(json.loads(json.dumps(found)), ours.parts)
    assert is_equivalent(spec, ours)
    assert spec.params() == ours.params()


def test_published_is_complete() -> None:
    assert {found["model_type"] for found, _ in PUBLISHED.values()} == set(get_model_types())


def test_positions_of_roberta_start_after_its_padding() -> None:
    specs = {pad: read({**ROBERTA, "pad_token_id": pad}) for pad in (0, 1, 5, None)}
    assert [spec.encoder.position.offset for spec in specs.values()] == [1, 2, 6, 2]
    assert {spec.encoder.position.rows for spec in specs.values()} == {514}
    types = {pad: describe_checkpoint(replace(specs[1], special=Special(pad=pad)))[0]["model_type"] for pad in specs}
    assert types == {1: "roberta", 0: "pretune", 5: "pretune", None: "pretune"}  # transformers would shift, or fail
    assert describe_checkpoint(specs[0])[0]["pad_token_id"] == 0


def test_token_roles() -> None:
    assert read(LLAMA31).special.eos == (128001, 128008, 128009)
    assert read({**LLAMA2, "pad_token_id": -1}).special.pad is None
    assert read({"model_type": "gpt2"}).special.eos == (50256,)
    assert read({"model_type": "gpt2", "eos_token_id": None, "bos_token_id": None}).special.bos is None
    assert read({"model_type": "gpt2", "eos_token_id": None}).special.eos == ()


@pytest.mark.parametrize("model_type", get_model_types())
def test_silence_means_the_default_of_the_reference(model_type: str) -> None:
    """A full dump of the reference's config is accepted, and says what an empty one does."""
    pytest.importorskip("transformers", reason="the reference library is not installed")
    from transformers import CONFIG_MAPPING

    full = json.loads(CONFIG_MAPPING[model_type]().to_json_string(use_diff=False))
    assert full["model_type"] == model_type and len(full) > 25
    silent = read({"model_type": model_type})
    assert read(full) == silent
    assert read({**LEFTOVERS, **full}) == silent
    layout = layout_of(model_type)
    known = {name for entry in layout.entries for name in entry.names}
    assert silent.special == read({key: value for key, value in full.items() if key in known | {"model_type"}}).special


@pytest.mark.parametrize("model_type", get_model_types())
def test_what_we_write_has_no_key_that_we_ignore(model_type: str) -> None:
    layout = layout_of(model_type)
    written = layout.write(read({"model_type": model_type}))
    known = {name for entry in layout.entries for name in entry.names}  # it may read a key that others ignore
    assert (IGNORED_KEYS - known) & set(written) == {"architectures", "model_type"}
    assert read(written) == read({"model_type": model_type})


BAD: dict[type, list[Any]] = {
    int: ["7", "seven", "", 7.0, 7.5, -5, 0, 2**31, 10**30, True, False, [7], [[[7]]], {"a": 7}, None],
    float: ["0.1", "nan", "", -0.5, 10**400, True, [0.1], {"a": 0.1}, None],
    bool: [1, 0, 1.0, "true", "", [True], {"a": True}],
    str: ["", "gelu_", "os.system", 5, True, ["gelu"], {"gelu": "gelu"}],
    list: ["full_attention", 5, True, [], [7], [["full_attention"]], ["chunked_attention"] * 22, {"a": 1}],
}
ROLES = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
NULLS = {
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "num_decoder_layers",
    "word_embed_proj_dim",
    "n_inner",
} | {"d_head"}
"""Keys that may be null though they are numbers otherwise."""

FULL: dict[str, dict[str, Any]] = {
    # What a key is, by an example; every key of every layout that takes a plain value.
    model_type: layout_of(model_type).write(read({"model_type": model_type}))
    | {"rope_parameters": None, "attn_config": None, "eos_token_id": 1, "pad_token_id": 1, "bos_token_id": 1}
    for model_type in get_model_types()
}


@pytest.mark.parametrize("model_type", get_model_types())
def test_wrong_values_are_refused_by_their_key(model_type: str) -> None:
    good = {key: value for key, value in FULL[model_type].items() if value is not None}
    read(good)
    seen = 0
    for key, value in good.items():
        if key in ("architectures", "model_type"):
            continue
        for bad in BAD[type(value)]:
            if bad is None and key in (*ROLES, *NULLS):
                continue
            if (
                type(bad) is int and bad == 0 and (key in (*ROLES, "max_window_layers") or value == 0)
            ):  # 0: a token, or none
                continue
            if bad == [7] and key == "eos_token_id":
                continue
            with pytest.raises(CheckpointError) as caught:
                read({**good, key: bad})
            message = str(caught.value)
            assert f"'{key}'" in message and len(message) < 600 and message.isprintable(), (key, bad, message)
            seen += 1
    assert seen > 80


@pytest.mark.parametrize("model_type", get_model_types())
def test_every_key_is_tried_above(model_type: str) -> None:
    """So that a key added to a family is tested by being listed: each is written, or is one of these."""
    others = {
        "rope_scaling", "rope_theta", "partial_rotary_factor", "rotary_emb_base", "rotary_pct",  # spellings
        "global_rope_theta", "local_rope_theta", "global_attn_every_n_layers", "n_embed",
        "sliding_window_pattern", "_sliding_window_pattern", "rope_local_base_freq", "no_rope_layer_interval",
        "is_gated_act", "dense_act_fn",  # derived
    }  # fmt: skip
    for entry in layout_of(model_type).entries:
        aliases = set(getattr(entry, "aliases", ()))
        fixed = hasattr(entry, "allowed_values")
        for name in set(entry.names) - aliases - others:
            assert fixed or name in FULL[model_type] or name in ("num_hidden_layers", "hidden_size"), name


@pytest.mark.parametrize("model_type", get_model_types())
def test_fixed_keys(model_type: str) -> None:
    for entry in layout_of(model_type).entries:
        if not hasattr(entry, "allowed_values"):
            continue
        for value in (*entry.allowed_values, None):
            read({"model_type": model_type, entry.name: value})
        for value in ("nonsense", 0.75, 77, [1], {"a": 1}, not entry.allowed_values[0]):
            with pytest.raises(CheckpointError, match=f"'{entry.name}'"):
                read({"model_type": model_type, entry.name: value})


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({**BERT, "hidden_size": 770}, "'hidden_size', 'num_attention_heads'.*12.*770"),
        ({**LLAMA2, "num_key_value_heads": 5}, "'num_attention_heads', 'num_key_value_heads'.*32"),
        ({**LLAMA2, "head_dim": 63}, "head_width.*63"),
        ({**BERT, "num_hidden_layers": 10**6}, r"'num_hidden_layers'.*\b10,000\b.*\b1000000\b"),
        ({**BERT, "vocab_size": 10**9, "hidden_size": 12 * 10**6}, "100,000,000,000,000"),
        ({**T5, "num_hidden_layers": 7}, "'num_layers' = 6.*'num_hidden_layers' = 7"),
        ({**T5, "hidden_size": 7}, "'d_model' = 512.*'hidden_size' = 7"),
        ({**BART, "num_hidden_layers": 3}, "'encoder_layers' = 6.*'num_hidden_layers' = 3"),
        ({**T511, "is_gated_act": False}, "'is_gated_act' = false.*true"),
        ({**T511, "dense_act_fn": "relu"}, "'dense_act_fn' = 'relu'.*'gelu_new'"),
        ({**T511, "feed_forward_proj": "gated-gated-gelu"}, "'feed_forward_proj' = 'gated-gated-gelu'"),
        ({**BERT, "architectures": ["BertLMHeadModel"]}, "'architectures' = 'BertLMHead"),
        ({**BERT, "architectures": [7]}, "'architectures' = 7"),
        ({**BERT, "architectures": {"a": 1}}, "'architectures'"),
        ({**MPT, "attn_config": {"alibi": False}}, "'attn_config.alibi' = false.*true"),
        ({**MPT, "attn_config": {"alibi_bias_max": 4}}, "'attn_config.alibi_bias_max' = 4.*8"),
        ({**MPT, "attn_config": {"attn_pdrop": 3}}, "'attn_config.attn_pdrop' = 3"),
        ({**MPT, "attn_config": {"clip_qkv": "1"}}, "'attn_config.clip_qkv' = '1'"),
        ({**MPT, "attn_config": {"rope": True}}, "'attn_config.rope'"),
        ({**MPT, "attn_config": 7}, "'attn_config' = 7"),
        ({**ROBERTA, "pad_token_id": 514}, "offset must be < rows 514, got 515"),
        ({**ALBERT, "num_hidden_groups": 13}, "'num_hidden_groups' = 13.*'num_hidden_layers' = 12"),
        ({**ALBERT, "num_hidden_groups": 14, "num_hidden_layers": 18}, "'num_hidden_groups' = 14.*layer 9 .*rounding"),
        ({**ALBERT, "inner_group_num": 0}, "'inner_group_num' = 0"),
        ({**ALBERT, "net_structure_type": 1}, "'net_structure_type' = 1.*0"),
        ({**DISTILBERT, "hidden_size": 7}, "'dim' = 768.*'hidden_size' = 7"),
        ({**DISTILBERT, "n_heads": 5}, "'dim', 'n_heads'.*5.*768"),
        ({**XGLM, "pad_token_id": 5}, "'pad_token_id' = 5.*1, 0"),
        ({**XGLM, "add_cross_attention": True}, "'add_cross_attention' = true.*false"),
        ({**XLM, "asm": True}, "'asm' = true.*false"),
        ({**XLM, "causal": True}, "'causal' = true.*false"),
        ({**XLM, "is_encoder": False}, "'is_encoder' = false.*true"),
        ({**XLM, "num_hidden_layers": 6}, "'n_layers' = 12 and 'num_hidden_layers' = 6"),
        ({**XLM, "n_heads": 7}, "'n_heads'.*7.*1024"),
        ({**BLOOM, "hidden_size": 512}, "'hidden_size' = 512 and 'n_embed' = 1024"),
        ({**BLOOM, "apply_residual_connection_post_layernorm": True}, "'apply_res.*' = true.*false"),
        ({**MODERNBERT, "num_hidden_layers": 10**6}, r"'num_hidden_layers'.*\b10,000\b.*\b1000000\b"),
        ({**MODERNBERT, "layer_types": ["full_attention"] * 21}, "'layer_types'.*22 times"),
        ({**MODERNBERT, "rope_parameters": {"rope_theta": 5.0}}, "'rope_parameters' = 'rope_theta'.*'full_attention'"),
        ({**MODERNBERT, "rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
         "'rope_parameters.full_attention.rope_type' = 'yarn'"),
        ({**MODERNBERT, "rope_parameters": {"sliding_attention": {"rope_theta": 7.0}}},
         "'rope_parameters.sliding_attention.rope_theta' = 7.0.*'local_rope_theta' = 10000.0"),
    ],
)  # fmt: skip
def test_impossible(found: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(found)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hidden_sise", 768, "'hidden_sise' = 768.*'hidden_size'"),
        ("embedding_size", 128, "'embedding_size' = 128"),
        ("pruned_heads", {"0": [1]}, "'pruned_heads'"),
        ("tie_encoder_decoder", True, "'tie_encoder_decoder' = true"),
        ("is_decoder", True, "'is_decoder' = true.*false"),
        ("add_cross_attention", True, "'add_cross_attention' = true.*false"),
        ("position_embedding_type", "relative_key", "'position_embedding_type' = 'relative_key'"),
        ("quantization_config", {"bits": 4}, "'quantization_config'"),
        ("a\nb\x1b[31m", 1, r"'a\\nb\\x1b\[31m' = 1"),
        ("k" * 10**6, 1, "'kkk.*' = 1"),
    ],
)
def test_unknown_keys(key: str, value: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read({**BERT, key: value})
    assert len(str(caught.value)) < 400 and str(caught.value).isprintable()
    assert read({**BERT, key: None}) == read(BERT)


@pytest.mark.parametrize("key", CODE_KEYS)
@pytest.mark.parametrize("value", [{"AutoModel": "modeling.Model"}, None, False, ""])
def test_code_is_never_named(key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"'{key}'"):
        read({**MPT, key: value})


def test_a_kernel_is_code() -> None:
    with pytest.raises(CheckpointError, match="'_attn_implementation' = 'owner/kernel'"):
        read({**BERT, "_attn_implementation": "owner/kernel"})
    read({**BERT, "_attn_implementation": "sdpa"})


LLAMA3 = LLAMA31["rope_scaling"]
BANDED = BandedScaling(factor=8.0, low=1.0, high=4.0, original=8192)


@pytest.mark.parametrize(
    ("spelling", "rotary"),
    [
        ({}, Rotary()),
        ({"rope_theta": 500}, Rotary(theta=500.0)),
        ({"rope_theta": 500.0, "rope_scaling": None}, Rotary(theta=500.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, Rotary(theta=500.0)),
        ({"rope_parameters": {"rope_type": "default"}, "rope_theta": 500.0}, Rotary(theta=500.0)),
        ({"rope_theta": 500.0, "rope_scaling": LLAMA3}, Rotary(theta=500.0, scaling=BANDED)),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 500.0}}, Rotary(theta=500.0, scaling=BANDED)),
        ({"rope_parameters": LLAMA3, "rope_scaling": LLAMA3}, Rotary(scaling=BANDED)),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, Rotary(scaling=LinearScaling(factor=2.0))),
        (
            {"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}},
            Rotary(scaling=LinearScaling(factor=2)),
        ),
        ({"rope_scaling": {"type": None, "factor": None}, "partial_rotary_factor": 1.0}, Rotary()),
    ],
)
def test_rope_spellings(spelling: dict[str, Any], rotary: Rotary) -> None:
    spec = read({"model_type": "llama", **spelling})
    assert spec.decoder is not None and spec.decoder.position == rotary


def test_rope_spellings_of_neox() -> None:
    four = {"rotary_emb_base": 100, "rope_theta": 100, "rotary_pct": 0.5, "partial_rotary_factor": 0.5}
    for found in ({"rope_parameters": {"rope_theta": 100, "partial_rotary_factor": 0.5}}, four):
        spec = read({"model_type": "gpt_neox", **found})
        assert spec.decoder is not None and spec.decoder.position == Rotary(theta=100.0, fraction=0.5)
    with pytest.raises(CheckpointError, match="'rotary_emb_base' = 200"):
        read({"model_type": "gpt_neox", **four, "rotary_emb_base": 200})


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ({"rope_scaling": "linear"}, "'rope_scaling' = 'linear'"),
        ({"rope_parameters": [1]}, "'rope_parameters'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'rope_scaling.type' = 'dynamic'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'rope_parameters.rope_type' = 'yarn'.*'llama3'"),
        ({"rope_scaling": {"type": ["linear"]}}, "'rope_scaling.type'"),
        ({"rope_scaling": {"type": "linear"}}, "'rope_parameters.factor'.*'linear'"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "'rope_scaling.factor' = '2'"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "'rope_scaling.factor' = 0"),
        ({"rope_scaling": {**LLAMA3, "mscale": 1.0}}, "'rope_scaling.mscale'.*'llama3'"),
        ({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": -1}}, "embeddings' = -1"),
        ({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 6.0}}, "= 6.0.*'rope_theta' = 5.0"),
        ({"rope_theta": 0}, "'rope_theta' = 0"),
        ({"rope_theta": True}, "'rope_theta' = true"),
        ({"partial_rotary_factor": 0.5}, "'partial_rotary_factor' = 0.5.*1.0"),
        ({"rotary_pct": 0.5}, "'rotary_pct' = 0.5"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "'rope_parameters.full_attention'"),
    ],
)
def test_bad_rope(spelling: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read({"model_type": "llama", **spelling})


@pytest.mark.parametrize(
    ("found", "scaled"),
    [
        (T5, True),
        ({**T5, "tie_word_embeddings": True}, True),
        ({**T5, "tie_word_embeddings": False}, False),
        ({**T5, "tie_word_embeddings": None}, True),
        ({**T5, "tie_word_embeddings": True, "scale_decoder_outputs": False}, False),
        ({**T5, "tie_word_embeddings": False, "scale_decoder_outputs": True}, True),
        ({**T5, "tie_word_embeddings": False, "scale_decoder_outputs": None}, False),
        (MT5, False),
        ({**MT5, "tie_word_embeddings": True}, False),
    ],
)
def test_output_scaling(found: dict[str, Any], scaled: bool) -> None:
    spec = read(found)
    assert spec.head is not None and spec.head.scale == (512**-0.5 if scaled else None)


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_as_many_keys_as_queries_are_no_groups(model_type: str) -> None:
    """Said or not said, it is the same model, and the reference can read it."""
    small = {"width": 32, "depth": 1, "heads": 4}
    said, silent = (resolve(model_type, {**small, "kv_heads": groups}) for groups in (4, None))
    assert said == silent
    written = layout_of(model_type).write(said)
    assert is_equivalent(layout_of(model_type).read(written, frozenset({"head"}), is_tied=False), said)


def test_take() -> None:
    assert HfConfig({}).read("a", "b", check=check_size, default=3) == 3
    assert HfConfig({"b": 4}).read("a", "b", check=check_size, default=3) == 4
    assert HfConfig({"a": 4, "b": 4}).read("a", "b", check=check_size, default=3) == 4
    with pytest.raises(CheckpointError, match=r"'a' = 4.*'b' = 5"):
        HfConfig({"a": 4, "b": 5}).read("a", "b", check=check_size, default=3)


def test_deep_values_do_not_recurse() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for key in ("hidden_size", "hidden_act", "layer_norm_eps", "is_decoder", "eos_token_id", "unknown", "pad_token_id"):
        with pytest.raises(PretuneError, match=key):
            read({**BERT, key: deep})
