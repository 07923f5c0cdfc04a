"""XLNet (Yang et al., 2019): a bidirectional encoder trained to predict tokens in random order."""

from dataclasses import dataclass

from torch import Tensor

from pretune.models.families.shared import Family, PaperDefaults, Size
from pretune.models.hf.config import (
    ACTIVATIONS,
    CustomKey,
    FixedKey,
    HfConfig,
    Key,
    SpecChanges,
    build_summary_keys,
    check_size,
)
from pretune.models.hf.weights import HeadLayout, Layout, LeadingAxisPacking, Rule, define_token_heads
from pretune.models.spec import Model, Special
from pretune.nn.block import Norms
from pretune.nn.heads import Head, PoolingConfig
from pretune.nn.layers import Embed, FeedForward, LayerNorm
from pretune.nn.relative_attention import RelativeAttention
from pretune.nn.two_stream import TwoStream, TwoStreamBlock


def build_spec(
    *,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    vocab: int = 32000,
    hidden: int | None = None,
    context: int = 512,
    dropout: float = 0.1,
) -> Model:
    """Build a spec: two-stream attention over relative distances and segments, post-norm; the head has a bias.

    The paper's segment memory is `model(batch, memory=…)`; pre-training does not use it.
    """
    return Model(
        family="xlnet",
        vocab=vocab,
        width=width,
        context=context,
        encoder=TwoStream(
            depth=depth,
            embed=Embed(dropout=dropout),
            blocks=(
                TwoStreamBlock(
                    attention=RelativeAttention(heads=heads, dropout=dropout),
                    feedforward=FeedForward(hidden=hidden or 4 * width, dropout=dropout),
                    norms=Norms(post=LayerNorm(eps=1e-12)),
                    dropout=dropout,
                ),
            ),
            dropout=dropout,
        ),
        head=Head(bias="learned"),
        special=Special(pad=5, bos=1, eos=(2,)),
    )


@dataclass(frozen=True)
class HeadPacking:
    """A matrix stored as [in, heads, head width], or [out, heads, head width] if not `is_transposed`."""

    is_transposed: bool = True

    def unpack(self, tensor: Tensor, sizes: list[int], spec: Model) -> list[Tensor]:
        matrix = tensor.flatten(1)
        return [matrix.t() if self.is_transposed else matrix]

    def pack(self, tensors: list[Tensor], spec: Model) -> Tensor:
        matrix = tensors[0].t() if self.is_transposed else tensors[0]
        return matrix.reshape(matrix.shape[0], spec.first_block.attention.heads, -1)


def _read_head(hf_config: HfConfig) -> SpecChanges:
    """Check that d_head, if present, equals width / heads."""
    width = hf_config.read("d_model", "hidden_size", check=check_size, default=1024)
    heads = hf_config.read("n_head", "num_attention_heads", check=check_size, default=16)
    hf_config.require("d_head", width // heads)
    return {}


def _write_head(spec: Model) -> dict[str, object]:
    return {"d_head": spec.width // spec.first_block.attention.heads}


DROPOUTS = (
    "embed.dropout",
    "blocks.*.attention.dropout",
    "blocks.*.feedforward.dropout",
    "blocks.*.dropout",
    "dropout",
)
LAYER = "transformer.layer.{i}"
ATTENTION = f"{LAYER}.rel_attn"

LAST_TOKEN = PoolingConfig(mode="last", layer="own")
"""<cls>, the last token, through a dense layer."""
SUMMARY_NAMES = {"dense": "sequence_summary.summary", "out": "logits_proj"}
SUMMARY_KEYS = build_summary_keys("last", "tanh", to_labels=False)

xlnet = Family(
    build_spec=build_spec,
    shape="two-stream",
    pooling=LAST_TOKEN,
    default="base",
    training=PaperDefaults(
        objective={"kind": "permuted"},
        batch_tokens=4_194_304,
        tokens=2.1e12,  # 500,000 steps
        lr=4e-4,
        width=1024,
        schedule={"kind": "linear", "warmup": 40_000},
        tokenizer=("unigram", "cls-last", 32_000),
    ),
    sizes={
        "base": Size({}, 116_750_336),  # "110M"
        "large": Size({"width": 1024, "depth": 24, "heads": 16}, 360_300_800),  # "340M"
    },
    layout=Layout(
        model_type="xlnet",
        template=build_spec,
        entries=(
            Key("vocab_size", ("vocab",), 32000, aliases=("n_token",)),
            Key("d_model", ("width",), 1024, aliases=("hidden_size",)),
            Key("n_layer", ("encoder.depth",), 24, aliases=("num_hidden_layers",)),
            Key("n_head", ("encoder.blocks.*.attention.heads",), 16, aliases=("num_attention_heads",)),
            Key("d_inner", ("encoder.blocks.*.feedforward.hidden",), 4096),
            Key("ff_activation", ("encoder.blocks.*.feedforward.activation",), "gelu", ACTIVATIONS),
            Key("initializer_range", ("init.std",), 0.02),
            Key("layer_norm_eps", ("encoder.blocks.*.norms.post.eps",), 1e-12),
            Key("dropout", tuple(f"encoder.{place}" for place in DROPOUTS), 0.1),
            CustomKey(("d_head",), _read_head, _write_head),
            FixedKey("attn_type", ("bi",)),
            FixedKey("bi_data", (False,)),
            FixedKey("clamp_len", (-1, 0)),
            FixedKey("same_length", (False,)),
            FixedKey("untie_r", (True,)),
        ),
        # Sizes of the segment memory and settings of task heads; they do not change a forward pass.
        ignored_keys=frozenset(
            {"mem_len", "reuse_len", "use_mems", "use_mems_eval", "use_mems_train", "start_n_top", "end_n_top"}
            | {"summary_last_dropout"}
        ),
        prefix="transformer.",
        classes={"XLNetLMHeadModel": frozenset({"head"}), "XLNetModel": frozenset()},
        task_heads={
            "XLNetForSequenceClassification": HeadLayout(
                "classification", SUMMARY_NAMES, LAST_TOKEN, keys=SUMMARY_KEYS
            ),
            "XLNetForMultipleChoice": HeadLayout("choice", SUMMARY_NAMES, LAST_TOKEN, keys=SUMMARY_KEYS),
            "XLNetForQuestionAnsweringSimple": HeadLayout("span", {"out": "qa_outputs"}),
            **define_token_heads("XLNet", spans=None),
        },
        rules=(
            *(Rule(f"encoder.{{i}}.attention.{p}.weight", f"{ATTENTION}.{p}", HeadPacking()) for p in "qkvr"),
            Rule("encoder.{i}.attention.out.weight", f"{ATTENTION}.o", HeadPacking(is_transposed=False)),
            Rule("encoder.{i}.attention.segments", f"{ATTENTION}.seg_embed", HeadPacking(is_transposed=False)),
            Rule("encoder.query", "transformer.mask_emb", LeadingAxisPacking()),
        ),
        names={
            "encoder.{i}.attention.content": f"{ATTENTION}.r_w_bias",
            "encoder.{i}.attention.position": f"{ATTENTION}.r_r_bias",
            "encoder.{i}.attention.segment": f"{ATTENTION}.r_s_bias",
            "encoder.{i}.attention_norm.post.{p}": f"{ATTENTION}.layer_norm.{{p}}",
            "encoder.{i}.feedforward.up.{p}": f"{LAYER}.ff.layer_1.{{p}}",
            "encoder.{i}.feedforward.down.{p}": f"{LAYER}.ff.layer_2.{{p}}",
            "encoder.{i}.feedforward_norm.post.{p}": f"{LAYER}.ff.layer_norm.{{p}}",
            "tokens.weight": "transformer.word_embedding.weight",
            "head.weight": "lm_loss.weight",
            "head.bias": "lm_loss.bias",
        },
    ),
)
"""XLNet: tokens predicted in random order, two-stream attention (Yang et al., 2019)."""
