"""OPT (Zhang et al., 2022): an open GPT-3, with ReLU and positions that start at row 2."""

from pretune.core import config
from pretune.models.families.gpt2 import build_spec as build_gpt2_spec
from pretune.models.families.shared import Family, Size, build_decoder_classes, build_decoder_training
from pretune.models.hf.config import (
    ACTIVATIONS,
    CustomKey,
    FixedKey,
    HfConfig,
    Key,
    SpecChanges,
    allow_null,
    check_flag,
    check_size,
    name_projections,
)
from pretune.models.hf.weights import Layout, define_score_head, define_token_heads
from pretune.models.spec import Model, Normal, Special
from pretune.nn.block import Norms
from pretune.nn.heads import Transform
from pretune.nn.layers import Factor, LayerNorm
from pretune.nn.positions import LearnedEmbedding


def build_spec(
    *,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    vocab: int = 50272,
    hidden: int | None = None,
    positions: int = 2048,
    dropout: float = 0.1,
    table: int | None = None,
    post_norm: bool = False,
) -> Model:
    """Build a spec: pre-norm, except for the 350m size, which is post-norm with a narrower token table."""
    base = build_gpt2_spec(width=width, depth=depth, heads=heads, vocab=vocab, hidden=hidden, dropout=0.0, family="opt")
    changes = {
        "decoder.position": LearnedEmbedding(rows=positions + 2, offset=2),
        "decoder.blocks.0.feedforward.activation": "relu",
        "decoder.blocks.0.dropout": dropout,
        "init": Normal(std=0.006),
        "special": Special(pad=1, bos=2, eos=(2,)),
    }
    if post_norm:
        changes |= {"decoder.blocks.0.norms": Norms(post=LayerNorm()), "decoder.norm": None}
    if table not in (None, width):
        changes["decoder.embed.factor"] = Factor(width=table, bias=False, input="tokens")
        changes["head.transform"] = Transform(bias=False)
    return config.replace(base, changes)


def _read_norms(hf_config: HfConfig) -> SpecChanges:
    has_scale = hf_config.read("layer_norm_elementwise_affine", check=check_flag, default=True)
    norm = LayerNorm(scale=has_scale)
    pre = hf_config.read("do_layer_norm_before", check=check_flag, default=True)
    final = pre and not hf_config.read("_remove_final_layer_norm", check=check_flag, default=False)
    return {
        "decoder.blocks.*.norms": Norms(pre=norm) if pre else Norms(post=norm),
        "decoder.norm": norm if final else None,
    }


def _write_norms(spec: Model) -> dict[str, object]:
    norms = spec.first_block.norms
    norm = norms.pre or norms.post
    return {
        "do_layer_norm_before": norms.pre is not None,
        "_remove_final_layer_norm": norms.pre is not None and spec.last_stack.norm is None,
        "layer_norm_elementwise_affine": isinstance(norm, LayerNorm) and norm.scale,
    }


def _read_table(hf_config: HfConfig) -> SpecChanges:
    width = hf_config.read("hidden_size", check=check_size, default=768)
    table = hf_config.read("word_embed_proj_dim", check=allow_null(check_size), default=None)
    if table in (None, width):
        return {}
    return {
        "decoder.embed.factor": Factor(width=table, bias=False, input="tokens"),
        "head.transform": Transform(bias=False),
    }


opt = Family(
    build_spec=build_spec,
    shape="decoder",
    default="125m",
    training=build_decoder_training(
        length=2048,
        batch_tokens=524_288,
        tokens=180e9,
        lr=6e-4,
        width=768,
        schedule="linear",
        warmup=2_000,
        tokenizer=("bpe", "endoftext", 50_272),
    ),
    sizes={
        "125m": Size({}, 125_239_296),
        "350m": Size({"width": 1024, "depth": 24, "heads": 16, "table": 512, "post_norm": True}, 331_196_416),
        "1.3b": Size({"width": 2048, "depth": 24, "heads": 32}, 1_315_758_080),
        "2.7b": Size({"width": 2560, "depth": 32, "heads": 32}, 2_651_596_800),
        "6.7b": Size({"width": 4096, "depth": 32, "heads": 32}, 6_658_473_984),
        "13b": Size({"width": 5120, "depth": 40, "heads": 40}, 12_853_473_280),
        "30b": Size({"width": 7168, "depth": 48, "heads": 56}, 29_974_540_288),
        "66b": Size({"width": 9216, "depth": 64, "heads": 72}, 65_719_701_504),
    },
    layout=Layout(
        model_type="opt",
        template=build_spec,
        entries=(
            Key("vocab_size", ("vocab",), 50272),
            Key("hidden_size", ("width",), 768),
            Key("num_hidden_layers", ("decoder.depth",), 12),
            Key("num_attention_heads", ("decoder.blocks.*.attention.heads",), 12),
            Key("ffn_dim", ("decoder.blocks.*.feedforward.hidden",), 3072),
            Key("activation_function", ("decoder.blocks.*.feedforward.activation",), "relu", ACTIVATIONS),
            Key("dropout", ("decoder.blocks.*.dropout",), 0.1),
            Key("attention_dropout", ("decoder.blocks.*.attention.dropout",), 0.0),
            Key("enable_bias", ("decoder.blocks.*.attention.bias", "decoder.blocks.*.feedforward.bias"), True),
            Key("init_std", ("init.std",), 0.02),
            CustomKey(
                ("do_layer_norm_before", "_remove_final_layer_norm", "layer_norm_elementwise_affine"),
                _read_norms,
                _write_norms,
            ),
            CustomKey(("word_embed_proj_dim",), _read_table, lambda spec: {"word_embed_proj_dim": spec.table}),
            Key("max_position_embeddings", ("decoder.position.rows",), 2048, shift=2),
            FixedKey("layerdrop", (0, 0.0)),
            FixedKey("activation_dropout", (0, 0.0)),
        ),
        prefix="model.",
        classes=build_decoder_classes("OPT"),
        task_heads={**define_score_head("OPT"), **define_token_heads("OPT", tags=None)},
        names={
            **name_projections("decoder", "model.decoder.layers.{i}.self_attn.{part}_proj.{p}"),
            **{
                f"decoder.{{i}}.{ours}_norm.{slot}.{{p}}": f"model.decoder.layers.{{i}}.{theirs}.{{p}}"
                for ours, theirs in (("attention", "self_attn_layer_norm"), ("feedforward", "final_layer_norm"))
                for slot in ("pre", "post")
            },
            "decoder.{i}.feedforward.up.{p}": "model.decoder.layers.{i}.fc1.{p}",
            "decoder.{i}.feedforward.down.{p}": "model.decoder.layers.{i}.fc2.{p}",
            "tokens.weight": "model.decoder.embed_tokens.weight",
            "decoder.position.table.weight": "model.decoder.embed_positions.weight",
            "decoder.embed.project.weight": "model.decoder.project_in.weight",
            "decoder.norm.{p}": "model.decoder.final_layer_norm.{p}",
            "head.transform.dense.weight": "model.decoder.project_out.weight",
            "head.weight": "lm_head.weight",
        },
    ),
)
"""OPT: an open GPT-3 with ReLU (Zhang et al., 2022)."""
