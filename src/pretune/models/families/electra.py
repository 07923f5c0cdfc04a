"""ELECTRA (Clark et al., 2020): an encoder trained to detect tokens replaced by a small masked language model."""

from dataclasses import replace

from pretune.models.families.bert import build_spec as build_bert_spec
from pretune.models.families.shared import (
    ENCODER_ACTIVATION,
    ENCODER_NAMES,
    LARGE_SETTINGS,
    Family,
    PaperDefaults,
    Size,
    build_encoder_keys,
)
from pretune.models.generator_discriminator import Pair, add_generator
from pretune.models.hf.config import ACTIVATIONS, CustomKey, HfConfig, Key, SpecChanges, build_summary_keys, check_size
from pretune.models.hf.weights import OUT_PROJ_NAMES, HeadLayout, Layout, define_encoder_heads
from pretune.models.spec import Model
from pretune.nn.heads import Detector, PoolingConfig
from pretune.nn.layers import Factor


def build_spec(
    *,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    vocab: int = 30522,
    hidden: int | None = None,
    table: int | None = None,
    positions: int = 512,
    dropout: float = 0.1,
    generator: bool = False,
) -> Model:
    """Build a spec: BERT's encoder without a pooler, with a token table of width `table`, and one head.

    The head is the detector or, with `generator`, the vocabulary head.
    """
    changes: dict[str, object] = {"family": "electra", "pooler": None, "pair": None}
    if table not in (None, width):
        changes["encoder.embed.factor"] = Factor(width=table)
    return build_bert_spec(
        width=width,
        depth=depth,
        heads=heads,
        vocab=vocab,
        hidden=hidden,
        positions=positions,
        dropout=dropout,
        changes=changes if generator else {**changes, "head": None, "detector": Detector()},
    )


def build_pretraining_spec(spec: Model) -> Pair:
    """Add a generator of a quarter of the width, or a third for the base size (table 6 of the paper)."""
    return add_generator(spec, multiplier=1 / 3 if spec.width == 768 else 1 / 4)


SMALL_SETTINGS = {"width": 256, "depth": 12, "heads": 4, "table": 128}


def _read_table(hf_config: HfConfig) -> SpecChanges:
    width = hf_config.read("hidden_size", check=check_size, default=256)
    table = hf_config.read("embedding_size", check=check_size, default=128)
    return {"encoder.embed.factor": None if table == width else Factor(width=table)}


def _build_template() -> Model:
    """Build a spec with both heads; a checkpoint has one of them."""
    return replace(build_spec(**SMALL_SETTINGS, generator=True), detector=Detector())


FIRST_TOKEN = PoolingConfig(mode="first", layer="own", activation="gelu")
"""[CLS] through a new dense layer of the head, with the activation of the body."""
# NOTE: the multiple-choice class reads these from its config; only the paper's values are supported.
SUMMARY_KEYS = build_summary_keys("first", "gelu", to_labels=False)

electra = Family(
    build_spec=build_spec,
    shape="encoder",
    pooling=FIRST_TOKEN,
    default="base",
    training=PaperDefaults(
        objective={"kind": "replaced_token"},
        batch_tokens=131_072,
        tokens=100e9,  # 766,000 steps of the base size
        lr=2e-4,
        width=768,
        tokenizer=("wordpiece", "cls-sep", 30_522),
    ),
    build_pretraining_spec=build_pretraining_spec,
    sizes={
        "small": Size(SMALL_SETTINGS, 13_483_008, "body", {"tokens": 16e9}),  # "14M"
        "base": Size({}, 108_891_648, "body"),  # "110M"
        "large": Size(LARGE_SETTINGS, 334_092_288, "body", {"tokens": 1.8e12}),  # "335M"
        # As released. NOTE: the small generator is as wide as its discriminator; the paper has a quarter.
        "small-generator": Size({**SMALL_SETTINGS, "generator": True}, 13_483_008, "body"),
        "base-generator": Size({**SMALL_SETTINGS, "table": 768, "generator": True}, 33_511_168, "body"),
        "large-generator": Size({**SMALL_SETTINGS, "depth": 24, "table": 1024, "generator": True}, 50_999_552, "body"),
    },
    layout=Layout(
        model_type="electra",
        template=_build_template,
        entries=(
            *build_encoder_keys(width=256, heads=4, hidden=1024),
            # NOTE: the generator's head uses gelu whatever the config states.
            Key("hidden_act", (ENCODER_ACTIVATION, "detector.activation"), "gelu", ACTIVATIONS),
            CustomKey(("embedding_size",), _read_table, lambda spec: {"embedding_size": spec.table}),
        ),
        ignored_keys=frozenset({"summary_last_dropout", "generator_size"}),
        prefix="electra.",
        classes={
            "ElectraForPreTraining": frozenset({"detector"}),
            "ElectraForMaskedLM": frozenset({"head"}),
            "ElectraModel": frozenset(),
        },
        task_heads={
            **define_encoder_heads("Electra", OUT_PROJ_NAMES, FIRST_TOKEN),
            "ElectraForMultipleChoice": HeadLayout(
                "choice", {"dense": "sequence_summary.summary", "out": "classifier"}, FIRST_TOKEN, keys=SUMMARY_KEYS
            ),
        },
        skipped_tensors=(r".*embeddings\.position_ids",),
        names={
            **{ours: f"electra.{theirs}" for ours, theirs in ENCODER_NAMES.items() if not ours.startswith("pooler")},
            "encoder.embed.project.{p}": "electra.embeddings_project.{p}",
            "head.transform.dense.{p}": "generator_predictions.dense.{p}",
            "head.transform.norm.{p}": "generator_predictions.LayerNorm.{p}",
            "head.weight": "generator_lm_head.weight",
            "head.bias": "generator_lm_head.bias",
            "detector.dense.{p}": "discriminator_predictions.dense.{p}",
            "detector.out.{p}": "discriminator_predictions.dense_prediction.{p}",
        },
    ),
)
"""ELECTRA: an encoder that detects replaced tokens, with its generator (Clark et al., 2020)."""
