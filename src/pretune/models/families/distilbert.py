"""DistilBERT (Sanh et al., 2019): BERT with half of its layers, without segments and pooler."""

from dataclasses import replace

from pretune.models.families.bert import build_spec as build_bert_spec
from pretune.models.families.shared import ADAM, Family, PaperDefaults, Size
from pretune.models.hf.config import ACTIVATIONS, Key
from pretune.models.hf.weights import Layout, define_head, define_token_heads, make_rules
from pretune.models.spec import Model
from pretune.nn.heads import PoolingConfig


def build_spec(
    *,
    width: int = 768,
    depth: int = 6,
    heads: int = 12,
    vocab: int = 30522,
    hidden: int | None = None,
    positions: int = 512,
    dropout: float = 0.1,
) -> Model:
    """Build a spec: BERT's encoder and vocabulary head, without segments, pooler and pair head."""
    base = build_bert_spec(
        width=width, depth=depth, heads=heads, vocab=vocab, hidden=hidden, positions=positions, dropout=dropout
    )
    assert base.encoder is not None
    encoder = replace(base.encoder, embed=replace(base.encoder.embed, segments=None))
    return replace(base, family="distilbert", encoder=encoder, pooler=None, pair=None)


FIRST_TOKEN = PoolingConfig(mode="first", layer="own", activation="relu")
"""[CLS] through a new dense layer of the head."""
SEQUENCE_HEAD_NAMES = {"dense": "pre_classifier", "out": "classifier"}
BODY_NAMES = {
    "encoder.{i}.attention.q.{p}": "transformer.layer.{i}.attention.q_lin.{p}",
    "encoder.{i}.attention.k.{p}": "transformer.layer.{i}.attention.k_lin.{p}",
    "encoder.{i}.attention.v.{p}": "transformer.layer.{i}.attention.v_lin.{p}",
    "encoder.{i}.attention.out.{p}": "transformer.layer.{i}.attention.out_lin.{p}",
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
            Key(
                "activation",
                ("encoder.blocks.*.feedforward.activation", "head.transform.activation"),
                "gelu",
                ACTIVATIONS,
            ),
            Key("initializer_range", ("init.std",), 0.02),
        ),
        # NOTE: sinusoidal positions are the initial values of a table that is saved like a learned one.
        ignored_keys=frozenset({"sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_"}),
        prefix="distilbert.",
        classes={"DistilBertForMaskedLM": frozenset({"head"}), "DistilBertModel": frozenset()},
        task_heads={
            "DistilBertForSequenceClassification": define_head("classification", SEQUENCE_HEAD_NAMES, FIRST_TOKEN),
            "DistilBertForMultipleChoice": define_head("choice", SEQUENCE_HEAD_NAMES, FIRST_TOKEN),
            **define_token_heads("DistilBert"),
        },
        supports_cache=False,
        presence_keys={"head": "vocab_transform.weight"},
        head="vocab_projector.weight",
        skipped_tensors=(r".*embeddings\.position_ids",),
        rules=make_rules(
            {
                **{ours: f"distilbert.{theirs}" for ours, theirs in BODY_NAMES.items()},
                "head.transform.dense.{p}": "vocab_transform.{p}",
                "head.transform.norm.{p}": "vocab_layer_norm.{p}",
                "head.weight": "vocab_projector.weight",
                "head.bias": "vocab_projector.bias",
            }
        ),
    ),
)
"""DistilBERT: BERT with half of its layers, without segments and pooler (Sanh et al., 2019)."""
