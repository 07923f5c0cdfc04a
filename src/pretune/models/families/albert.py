"""ALBERT (Lan et al., 2020): one layer for the whole depth, factorized embeddings, sentence-order prediction."""

from pretune.core.errors import CheckpointError
from pretune.models.families.bert import build_spec as build_bert_spec
from pretune.models.families.shared import (
    ADAM,
    ENCODER_ACTIVATION,
    LARGE_SETTINGS,
    POOLER,
    Family,
    PaperDefaults,
    Size,
    build_encoder_keys,
)
from pretune.models.hf.config import ACTIVATIONS, CustomKey, FixedKey, HfConfig, Key, SpecChanges, check_size
from pretune.models.hf.weights import Layout, define_encoder_heads
from pretune.models.spec import Model, Special
from pretune.nn.layers import ActivationName, Factor
from pretune.nn.stack import Stack


def build_spec(
    *,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    vocab: int = 30000,
    hidden: int | None = None,
    table: int = 128,
    groups: int = 1,
    positions: int = 512,
    dropout: float = 0.0,
    activation: ActivationName = "gelu_tanh",
) -> Model:
    """Build a spec: BERT with a token table of width `table` and `groups` layers for the whole depth."""
    return build_bert_spec(
        width=width,
        depth=depth,
        heads=heads,
        vocab=vocab,
        hidden=hidden,
        positions=positions,
        dropout=dropout,
        changes={
            "family": "albert",
            "encoder.share": None if groups == depth else groups,
            "encoder.embed.factor": Factor(width=table),
            "encoder.blocks.0.feedforward.activation": activation,
            "head.transform.activation": activation,
            "special": Special(pad=0, bos=2, eos=(3,)),
        },
    )


def _read_sharing(hf_config: HfConfig) -> SpecChanges:
    """Read three keys: `num_hidden_layers` times a group of `inner_group_num` layers, out of `num_hidden_groups`."""
    names = ("num_hidden_layers", "num_hidden_groups", "inner_group_num")
    rounds, groups, size = (
        hf_config.read(name, check=check_size, default=default) for name, default in zip(names, (12, 1, 1), strict=True)
    )
    if groups > rounds:
        raise CheckpointError(f"key 'num_hidden_groups' = {groups}: must be at most 'num_hidden_layers' = {rounds}")
    # NOTE: the reference divides floating-point numbers: by rounding, layer 9 of 18 is in group 6 of 14, not in 7.
    for i in range(rounds):
        if int(i / (rounds / groups)) != i * groups // rounds:
            raise CheckpointError(
                f"key 'num_hidden_groups' = {groups} is not supported with 'num_hidden_layers' = {rounds}: "
                f"the group of layer {i} is a matter of rounding; use a divisor of {rounds}"
            )
    share = None if size == 1 and groups == rounds else groups * size
    return {"encoder.depth": rounds * size, "encoder.share": share, "encoder.group_size": size}


def _write_sharing(spec: Model) -> dict[str, object]:
    assert isinstance(spec.encoder, Stack)
    stack = spec.encoder
    return {
        "num_hidden_layers": stack.depth // stack.group_size,
        "num_hidden_groups": len(stack.layers) // stack.group_size,
        "inner_group_num": stack.group_size,
    }


LAYER_NAMES = {
    "attention.q": "attention.query",
    "attention.k": "attention.key",
    "attention.v": "attention.value",
    "attention.out": "attention.dense",
    "attention_norm.post": "attention.LayerNorm",
    "feedforward.up": "ffn",
    "feedforward.down": "ffn_output",
    "feedforward_norm.post": "full_layer_layer_norm",
}
NAMES = {
    "tokens.weight": "albert.embeddings.word_embeddings.weight",
    "encoder.position.table.weight": "albert.embeddings.position_embeddings.weight",
    "encoder.embed.segments.weight": "albert.embeddings.token_type_embeddings.weight",
    "encoder.embed.norm.{p}": "albert.embeddings.LayerNorm.{p}",
    "encoder.embed.project.{p}": "albert.encoder.embedding_hidden_mapping_in.{p}",
    "pooler.dense.{p}": "albert.pooler.{p}",
    "head.transform.dense.{p}": "predictions.dense.{p}",
    "head.transform.norm.{p}": "predictions.LayerNorm.{p}",
    "head.weight": "predictions.decoder.weight",
    "head.bias": "predictions.bias",
    "pair.{p}": "sop_classifier.classifier.{p}",
}


def _name_tensors(spec: Model) -> dict[str, str]:
    """Return the names of a spec: tensors have two indices, of the group and of the layer in it."""
    assert isinstance(spec.encoder, Stack)
    names = dict(NAMES)
    for i in range(len(spec.encoder.layers)):
        group, layer = divmod(i, spec.encoder.group_size)
        for ours, theirs in LAYER_NAMES.items():
            path = f"albert.encoder.albert_layer_groups.{group}.albert_layers.{layer}.{theirs}"
            names[f"encoder.{i}.{ours}.{{p}}"] = f"{path}.{{p}}"
    return names


XLARGE = {"width": 2048, "depth": 24, "heads": 16}
XXLARGE = {"width": 4096, "depth": 12, "heads": 64}
FIRST_VERSION = {"activation": "gelu", "dropout": 0.1}
albert = Family(
    build_spec=build_spec,
    shape="encoder",
    pooling=POOLER,
    default="base",
    training=PaperDefaults(
        objective={
            "kind": "sentence_order",
            "masking": {"kind": "span_masked", "spans": {"kind": "ngram"}, "replace_by": "token"},
        },
        batch_tokens=2_097_152,
        tokens=262e9,  # 125,000 steps
        lr=1.76e-3,
        width=768,  # each size has its own: one rate for all
        optimizer={**ADAM, "kind": "lamb"},
        schedule={"kind": "linear", "warmup": 3_125},
        tokenizer=("unigram", "cls-sep-pieces", 30_000),
    ),
    # Released twice: version 2 without dropout, with the other gelu. Counts are of the body with the pooler.
    sizes={
        "base": Size({}, 11_683_584, "body_with_pooler"),  # "12M"
        "large": Size(LARGE_SETTINGS, 17_683_968, "body_with_pooler", {"width": 1024}),  # "18M"
        "xlarge": Size(XLARGE, 58_724_864, "body_with_pooler", {"width": 2048}),  # "60M"
        "xxlarge": Size(XXLARGE, 222_595_584, "body_with_pooler", {"width": 4096}),  # "235M"
        "base-v1": Size(FIRST_VERSION, 11_683_584, "body_with_pooler"),
        "large-v1": Size({**LARGE_SETTINGS, **FIRST_VERSION}, 17_683_968, "body_with_pooler", {"width": 1024}),
        "xlarge-v1": Size({**XLARGE, **FIRST_VERSION}, 58_724_864, "body_with_pooler", {"width": 2048}),
        "xxlarge-v1": Size({**XXLARGE, "activation": "gelu"}, 222_595_584, "body_with_pooler", {"width": 4096}),
    },
    layout=Layout(
        model_type="albert",
        template=build_spec,
        entries=(
            # The defaults of the reference are those of xxlarge.
            *(
                entry
                for entry in build_encoder_keys(30000, width=4096, heads=64, hidden=16384, dropout=0.0)
                if isinstance(entry, Key) and entry.name != "num_hidden_layers"
            ),
            Key("embedding_size", ("encoder.embed.factor.width",), 128),
            Key("hidden_act", (ENCODER_ACTIVATION, "head.transform.activation"), "gelu_tanh", ACTIVATIONS),
            CustomKey(("num_hidden_layers", "num_hidden_groups", "inner_group_num"), _read_sharing, _write_sharing),
            # Options of the released code that the reference does not have.
            FixedKey("net_structure_type", (0,)),
            FixedKey("num_memory_blocks", (0,)),
            FixedKey("down_scale_factor", (1,)),
            FixedKey("gap_size", (0,)),
            FixedKey("position_embedding_type", ("absolute",)),
        ),
        ignored_keys=frozenset({"classifier_dropout_prob"}),
        prefix="albert.",
        classes={
            "AlbertForPreTraining": frozenset({"head", "pooler", "pair"}),
            "AlbertForMaskedLM": frozenset({"head"}),
            "AlbertModel": frozenset({"pooler"}),
        },
        task_heads=define_encoder_heads("Albert", {"dense": "albert.pooler", "out": "classifier"}, POOLER),
        supports_cache=False,
        duplicates={"predictions.bias": "predictions.decoder.bias"},
        skipped_tensors=(r".*embeddings\.position_ids",),
        names=_name_tensors,
    ),
)
"""ALBERT: BERT with shared layers, factorized embeddings and sentence order (Lan et al., 2020)."""
