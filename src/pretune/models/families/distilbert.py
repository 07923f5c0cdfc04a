"""DistilBERT (Sanh et al., 2019): BERT with half of its layers, without segments and pooler."""

from functools import partial

from pretune.models.families.bert import build_spec as build_bert_spec
from pretune.models.families.shared import ADAM, ENCODER_ACTIVATION, Family, PaperDefaults, Size
from pretune.models.hf.config import ACTIVATIONS, Key, name_projections
from pretune.models.hf.weights import Layout, define_encoder_heads
from pretune.nn.heads import PoolingConfig

build_spec = partial(
    build_bert_spec,
    depth=6,
    changes={"family": "distilbert", "encoder.embed.segments": None, "pooler": None, "pair": None},
)
"""BERT's encoder and vocabulary head, without segments, pooler and pair head."""

FIRST_TOKEN = PoolingConfig(mode="first", layer="own", activation="relu")
"""[CLS] through a new dense layer of the head."""
BODY_NAMES = {
    **name_projections("encoder", "transformer.layer.{i}.attention.{part}_lin.{p}"),
    "encoder.{i}.attention_norm.post.{p}": "transformer.layer.{i}.sa_layer_norm.{p}",
    "encoder.{i}.feedforward.up.{p}": "transformer.layer.{i}.ffn.lin1.{p}",
    "encoder.{i}.feedforward.down.{p}": "transformer.layer.{i}.ffn.lin2.{p}",
    "encoder.{i}.feedforward_norm.post.{p}": "transformer.layer.{i}.output_layer_norm.{p}",
    "tokens.weight": "embeddings.word_embeddings.weight",
    "encoder.position.table.weight": "embeddings.position_embeddings.weight",
    "encoder.embed.norm.{p}": "embeddings.LayerNorm.{p}",
}
"""Parameter -> tensor, without the prefix of the body."""

distilbert = Family(
    build_spec=build_spec,
    shape="encoder",
    pooling=FIRST_TOKEN,
    default="base",
    training=PaperDefaults(
        objective={"kind": "masked"},
        batch_tokens=2_097_152,  # up to 4,000 sequences a step
        tokens=13e9,  # three passes over Wikipedia and books
        lr=5e-4,
        width=768,
        optimizer={**ADAM, "weight_decay": 0.0},
        schedule={"kind": "linear", "warmup": 0.05},
        tokenizer=("wordpiece", "cls-sep", 30_522),
    ),
    sizes={
        "base": Size({}, 66_362_880, "body"),  # "66M"
        "multilingual": Size({"vocab": 119547}, 134_734_080, "body", {"mixing": {"kind": "smoothed", "alpha": 0.7}}),
    },
    layout=Layout(
        model_type="distilbert",
        template=build_spec,
        entries=(
            Key("vocab_size", ("vocab",), 30522),
            Key("dim", ("width",), 768, aliases=("hidden_size",)),
            Key("n_layers", ("encoder.depth",), 6, aliases=("num_hidden_layers",)),
            Key("n_heads", ("encoder.blocks.*.attention.heads",), 12, aliases=("num_attention_heads",)),
            Key("hidden_dim", ("encoder.blocks.*.feedforward.hidden",), 3072),
            Key("dropout", ("encoder.embed.dropout", "encoder.blocks.*.dropout"), 0.1),
            Key("attention_dropout", ("encoder.blocks.*.attention.dropout",), 0.1),
            Key("max_position_embeddings", ("encoder.position.rows",), 512),
            Key("activation", (ENCODER_ACTIVATION, "head.transform.activation"), "gelu", ACTIVATIONS),
            Key("initializer_range", ("init.std",), 0.02),
        ),
        # NOTE: sinusoidal positions are the initial values of a table that is saved like a learned one.
        ignored_keys=frozenset({"sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_"}),
        prefix="distilbert.",
        classes={"DistilBertForMaskedLM": frozenset({"head"}), "DistilBertModel": frozenset()},
        task_heads=define_encoder_heads("DistilBert", {"dense": "pre_classifier", "out": "classifier"}, FIRST_TOKEN),
        supports_cache=False,
        skipped_tensors=(r".*embeddings\.position_ids",),
        names={
            **{ours: f"distilbert.{theirs}" for ours, theirs in BODY_NAMES.items()},
            "head.transform.dense.{p}": "vocab_transform.{p}",
            "head.transform.norm.{p}": "vocab_layer_norm.{p}",
            "head.weight": "vocab_projector.weight",
            "head.bias": "vocab_projector.bias",
        },
    ),
)
"""DistilBERT: BERT with half of its layers, without segments and pooler (Sanh et al., 2019)."""
