"""Config keys and tensor names of BERT-like encoders."""

from pretune.models.hf.config import FixedKey, Key
from pretune.nn.heads import PoolingConfig

ENCODER_KEYS = (
    Key("hidden_size", ("width",), 768),
    Key("num_hidden_layers", ("encoder.depth",), 12),
    Key("num_attention_heads", ("encoder.blocks.*.attention.heads",), 12),
    Key("intermediate_size", ("encoder.blocks.*.feedforward.hidden",), 3072),
    Key("hidden_dropout_prob", ("encoder.embed.dropout", "encoder.blocks.*.dropout"), 0.1),
    Key("attention_probs_dropout_prob", ("encoder.blocks.*.attention.dropout",), 0.1),
    Key("max_position_embeddings", ("encoder.position.rows",), 512),
    Key("type_vocab_size", ("encoder.embed.segments",), 2),
    Key("initializer_range", ("init.std",), 0.02),
    Key(
        "layer_norm_eps",
        ("encoder.embed.norm.eps", "encoder.blocks.*.norms.post.eps", "head.transform.norm.eps"),
        1e-12,
    ),
    FixedKey("position_embedding_type", ("absolute",)),
    FixedKey("is_decoder", (False,)),
    FixedKey("add_cross_attention", (False,)),
)

ENCODER_ACTIVATION = "encoder.blocks.*.feedforward.activation"

ENCODER_NAMES = {
    "encoder.{i}.attention.q.{p}": "encoder.layer.{i}.attention.self.query.{p}",
    "encoder.{i}.attention.k.{p}": "encoder.layer.{i}.attention.self.key.{p}",
    "encoder.{i}.attention.v.{p}": "encoder.layer.{i}.attention.self.value.{p}",
    "encoder.{i}.attention.out.{p}": "encoder.layer.{i}.attention.output.dense.{p}",
    "encoder.{i}.attention_norm.post.{p}": "encoder.layer.{i}.attention.output.LayerNorm.{p}",
    "encoder.{i}.feedforward.up.{p}": "encoder.layer.{i}.intermediate.dense.{p}",
    "encoder.{i}.feedforward.down.{p}": "encoder.layer.{i}.output.dense.{p}",
    "encoder.{i}.feedforward_norm.post.{p}": "encoder.layer.{i}.output.LayerNorm.{p}",
    "tokens.weight": "embeddings.word_embeddings.weight",
    "encoder.position.table.weight": "embeddings.position_embeddings.weight",
    "encoder.embed.segments.weight": "embeddings.token_type_embeddings.weight",
    "encoder.embed.norm.{p}": "embeddings.LayerNorm.{p}",
    "pooler.dense.{p}": "pooler.dense.{p}",
}
"""Parameter -> tensor, without the prefix of the body."""

POOLER = PoolingConfig(mode="first", layer="pooler")
"""[CLS] through the pre-trained pooler (Devlin et al., 2019, section 3.2)."""

LARGE_SETTINGS = {"width": 1024, "depth": 24, "heads": 16}
