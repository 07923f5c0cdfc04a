"""ModernBERT (Warner et al., 2024): an encoder with rotary positions, GeGLU, and local attention in most layers."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pretune.models.families.shared import (
    Family,
    PaperDefaults,
    Size,
)
from pretune.models.families.shared_rotary import FULL, SLIDING, read_layer_rotary, write_rotary
from pretune.models.hf.config import (
    ACTIVATIONS,
    CustomKey,
    HfConfig,
    Key,
    SpecChanges,
    allow_choices,
    check_flag,
    check_number,
    check_size,
)
from pretune.models.hf.weights import HeadLayout, Layout, Rule, fuse_qkv
from pretune.models.spec import Model, Normal, Special
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.heads import Head, PoolingConfig, PoolingMode, Transform
from pretune.nn.layers import Embed, FeedForward, LayerNorm
from pretune.nn.positions import Rotary
from pretune.nn.stack import MAX_LAYERS, Stack

NORM = LayerNorm(bias=False)
GLOBAL_ROTARY, LOCAL_ROTARY = Rotary(theta=160_000.0), Rotary(theta=10_000.0)


def build_spec(
    *,
    width: int = 768,
    depth: int = 22,
    heads: int = 12,
    vocab: int = 50368,
    hidden: int = 1152,
    window: int = 65,
    global_every: int = 3,
    context: int = 8192,
    dropout: float = 0.1,
) -> Model:
    """Build a spec: pre-norm without biases; every third layer is global, the others see 64 tokens to each side.

    `dropout` is that of the attention output, the only one in the paper. The first layer has no attention norm: its
    input has the embedding norm.
    """
    is_local = [i % global_every > 0 for i in range(depth)]
    return Model(
        family="modernbert",
        vocab=vocab,
        width=width,
        context=context,
        encoder=Stack(
            depth=depth,
            embed=Embed(norm=NORM),
            position=GLOBAL_ROTARY,
            blocks=build_blocks(is_local, window, LOCAL_ROTARY, heads=heads, hidden=hidden, dropout=dropout),
            norm=NORM,
        ),
        head=Head(bias="learned", transform=Transform(activation="gelu", norm=NORM, bias=False)),
        init=Normal(residual=True),
        special=Special(pad=50283, bos=50281, eos=(50282,)),
    )


def build_blocks(
    is_local: Sequence[bool], window: int, rotary: Rotary, *, heads: int = 12, hidden: int = 1152, dropout: float = 0.0
) -> tuple[Block, ...]:
    """Return the block of every layer: local ones have a window and their own rotary positions."""
    block = Block(
        attention=Attention(heads=heads, bias=False, out_dropout=dropout),
        feedforward=FeedForward(hidden=hidden, gated=True, bias=False),
        norms=Norms(pre=NORM),
    )
    local_block = replace(block, attention=replace(block.attention, window=window, rotary=rotary))
    blocks = [local_block if local else block for local in is_local]
    return (replace(blocks[0], attention_norms=Norms()), *blocks[1:])


def _read_layers(hf_config: HfConfig) -> SpecChanges:
    depth = hf_config.read("num_hidden_layers", check=check_size, default=22)
    if depth > MAX_LAYERS:
        return {}  # the stack refuses it
    period = hf_config.read("global_attn_every_n_layers", check=check_size, default=3)
    default_kinds = [SLIDING if i % period else FULL for i in range(depth)]
    kinds = hf_config.read_layer_types(default_kinds, (FULL, SLIDING))
    local_rotary = read_layer_rotary(hf_config, SLIDING, theta=LOCAL_ROTARY.theta, old_name="local_rope_theta")
    global_rotary = read_layer_rotary(hf_config, FULL, theta=GLOBAL_ROTARY.theta, old_name="global_rope_theta")
    window = hf_config.read("local_attention", check=check_size, default=128) // 2 + 1
    blocks = build_blocks([kind == SLIDING for kind in kinds], window, local_rotary)
    return {"encoder.blocks": blocks, "encoder.position": global_rotary}


def _write_layers(spec: Model) -> dict[str, object]:
    assert isinstance(spec.encoder, Stack) and isinstance(spec.encoder.position, Rotary)
    attentions = [block.attention for block in spec.encoder.layers]
    local = next((attention for attention in attentions if attention.window), attentions[0])
    return {
        "layer_types": [SLIDING if attention.window else FULL for attention in attentions],
        "local_attention": 128 if local.window is None else 2 * (local.window - 1),
        "rope_parameters": {
            FULL: write_rotary(spec.encoder.position),
            SLIDING: write_rotary(local.rotary or LOCAL_ROTARY),
        },
    }


def _read_transform(hf_config: HfConfig) -> Transform:
    """Return the layer between states and vocabulary matrix, or classifier."""
    return Transform(
        activation=hf_config.read("classifier_activation", check=allow_choices(ACTIVATIONS), default="gelu"),
        bias=hf_config.read("classifier_bias", check=check_flag, default=False),
        norm=LayerNorm(
            eps=hf_config.read("norm_eps", check=check_number, default=1e-5),
            bias=hf_config.read("norm_bias", check=check_flag, default=False),
        ),
    )


def _write_transform(transform: Transform) -> dict[str, object]:
    activation = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == transform.activation)
    return {"classifier_activation": activation, "classifier_bias": transform.bias}


def _read_head(hf_config: HfConfig) -> SpecChanges:
    has_bias = hf_config.read("decoder_bias", check=check_flag, default=True)
    return {"head.transform": _read_transform(hf_config), "head.bias": "learned" if has_bias else None}


def _write_head(spec: Model) -> dict[str, object]:
    if spec.head is None or spec.head.transform is None:
        return {}
    return {"decoder_bias": spec.head.bias is not None, **_write_transform(spec.head.transform)}


POOLING_MODES: dict[str, PoolingMode] = {"cls": "first", "mean": "mean"}


def _read_pooling(hf_config: HfConfig) -> dict[str, Any]:
    mode = hf_config.read("classifier_pooling", check=allow_choices(POOLING_MODES), default=POOLING_MODES["cls"])
    return {"pooling": PoolingConfig(mode=mode, layer=_read_transform(hf_config))}


def _write_pooling(head: Any) -> dict[str, object]:
    mode = next(theirs for theirs, ours in POOLING_MODES.items() if ours == head.pooling.mode)
    return {"classifier_pooling": mode, **_write_transform(head.pooling.layer)}


def _define_head(kind: str) -> HeadLayout:
    """Return a head of the family: the vocabulary head's transform, and a classifier."""
    names = {"transform.dense": "head.dense", "transform.norm": "head.norm", "out": "classifier"}
    if kind in ("tagging", "span"):
        return HeadLayout(
            kind,
            names,
            read_fields=lambda hf_config: {"transform": _read_transform(hf_config)},
            write_fields=lambda head: _write_transform(head.transform),
        )
    return HeadLayout(kind, names, read_fields=_read_pooling, write_fields=_write_pooling)


LAYER = "model.layers.{i}"

modernbert = Family(
    build_spec=build_spec,
    shape="encoder",
    pooling=PoolingConfig(mode="mean"),
    heads_have_transform=True,
    default="base",
    # The optimizer of the paper is StableAdamW: AdamW with the update clipping of Adafactor.
    training=PaperDefaults(
        objective={"kind": "masked", "rate": 0.3},
        lengths=(1024, 8192),
        batch_tokens=4608 * 1024,
        tokens=2e12,
        lr=8e-4,
        width=768,
        optimizer={"kind": "adam_w", "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 1e-5},
        schedule={"kind": "stable", "warmup": 636, "shape": "root"},  # 3B tokens
        tokenizer=("bpe", "cls-sep", 50_368),
    ),
    sizes={
        "base": Size({}, 149_655_232),
        "large": Size(
            {"width": 1024, "depth": 28, "heads": 16, "hidden": 2624},
            395_881_664,
            training={"lr": 5e-4, "width": 1024, "batch_tokens": 4928 * 1024},
        ),
    },
    layout=Layout(
        model_type="modernbert",
        template=partial(build_spec, dropout=0.0),
        entries=(
            CustomKey(
                (
                    *("layer_types", "global_attn_every_n_layers", "local_attention"),
                    *("rope_parameters", "rope_scaling", "global_rope_theta", "local_rope_theta"),
                ),
                _read_layers,
                _write_layers,
            ),
            Key("vocab_size", ("vocab",), 50368),
            Key("hidden_size", ("width",), 768),
            Key("num_hidden_layers", ("encoder.depth",), 22),
            Key("num_attention_heads", ("encoder.blocks.*.attention.heads",), 12),
            Key("intermediate_size", ("encoder.blocks.*.feedforward.hidden",), 1152),
            Key("hidden_activation", ("encoder.blocks.*.feedforward.activation",), "gelu", ACTIVATIONS),
            Key("attention_bias", ("encoder.blocks.*.attention.bias",), False),
            Key("mlp_bias", ("encoder.blocks.*.feedforward.bias",), False),
            Key(
                "attention_dropout",
                ("encoder.blocks.*.attention.dropout", "encoder.blocks.*.attention.out_dropout"),
                0.0,
            ),
            Key("mlp_dropout", ("encoder.blocks.*.feedforward.dropout",), 0.0),
            Key("embedding_dropout", ("encoder.embed.dropout",), 0.0),
            Key("norm_eps", ("encoder.embed.norm.eps", "encoder.blocks.*.norms.pre.eps", "encoder.norm.eps"), 1e-5),
            Key(
                "norm_bias", ("encoder.embed.norm.bias", "encoder.blocks.*.norms.pre.bias", "encoder.norm.bias"), False
            ),
            CustomKey(("decoder_bias", "classifier_bias", "classifier_activation"), _read_head, _write_head),
            Key("initializer_range", ("init.std",), 0.02),
            Key("max_position_embeddings", ("context",), 8192),
        ),
        # `classifier_pooling` is a setting of task heads; the first releases have keys of BERT without a meaning here.
        ignored_keys=frozenset(
            {"classifier_pooling", "cls_token_id", "initializer_cutoff_factor", "layer_norm_eps"}
            | {"position_embedding_type", "deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index"}
            | {"reference_compile", "repad_logits_with_grad"}
        ),
        prefix="model.",
        classes={"ModernBertForMaskedLM": frozenset({"head"}), "ModernBertModel": frozenset()},
        task_heads={
            "ModernBertForSequenceClassification": _define_head("classification"),
            "ModernBertForTokenClassification": _define_head("tagging"),
            "ModernBertForQuestionAnswering": _define_head("span"),
            "ModernBertForMultipleChoice": _define_head("choice"),
        },
        skipped_tensors=(r".*rotary_emb\..*inv_freq",),
        rules=(
            fuse_qkv("encoder", f"{LAYER}.attn.Wqkv.{{p}}"),
            Rule(("encoder.{i}.feedforward.gate.{p}", "encoder.{i}.feedforward.up.{p}"), f"{LAYER}.mlp.Wi.{{p}}"),
        ),
        names={
            "encoder.{i}.attention.out.{p}": f"{LAYER}.attn.Wo.{{p}}",
            "encoder.{i}.attention_norm.pre.{p}": f"{LAYER}.attn_norm.{{p}}",
            "encoder.{i}.feedforward.down.{p}": f"{LAYER}.mlp.Wo.{{p}}",
            "encoder.{i}.feedforward_norm.pre.{p}": f"{LAYER}.mlp_norm.{{p}}",
            "tokens.weight": "model.embeddings.tok_embeddings.weight",
            "encoder.embed.norm.{p}": "model.embeddings.norm.{p}",
            "encoder.norm.{p}": "model.final_norm.{p}",
            "head.transform.dense.{p}": "head.dense.{p}",
            "head.transform.norm.{p}": "head.norm.{p}",
            "head.weight": "decoder.weight",
            "head.bias": "decoder.bias",
        },
    ),
)
"""ModernBERT: rotary positions, GeGLU, alternating local and global attention (Warner et al., 2024)."""
