"""ELECTRA (Clark et al., 2020): an encoder trained to tell which tokens a small masked language model has replaced."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pretune.models.families.bert import ACTIVATION, ACTIVATIONS, ENCODER_KEYS, LAYER
from pretune.models.families.bert import recipe as bert
from pretune.models.family import Family, Size, Training
from pretune.models.generator_discriminator import Pair, with_generator
from pretune.models.hf.checks import size, take
from pretune.models.hf.config import Fixed, Key, Layout, Odd
from pretune.models.hf.heads import headed, tokenwise
from pretune.models.hf.weights import rules
from pretune.models.spec import Model
from pretune.nn.embeddings import Factor
from pretune.nn.heads import Detector
from pretune.nn.pooling import Reading


def recipe(
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
    """BERT's encoder over a token table that may be narrower or wider, with no pooler and one head.

    That head is the detector at every position, or with `generator` the one over the vocabulary.
    """
    base = bert(width=width, depth=depth, heads=heads, vocab=vocab, hidden=hidden, positions=positions, dropout=dropout)
    assert base.encoder is not None
    factor = None if table in (None, width) else Factor(width=table or width)
    return replace(
        base,
        family="electra",
        encoder=replace(base.encoder, embed=replace(base.encoder.embed, factor=factor)),
        head=base.head if generator else None,
        detector=None if generator else Detector(),
        pooler=None,
        pair=None,
    )


def pretraining(spec: Model) -> Pair:
    """With a generator a quarter as wide; the paper takes a third for its base size (its table 6)."""
    return with_generator(spec, multiplier=1 / 3 if spec.width == 768 else 1 / 4)


SMALL = {"width": 256, "depth": 12, "heads": 4, "table": 128}
DEFAULTS = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}


def _read_table(found: Mapping[str, Any]) -> dict[str, Any]:
    width = take(found, "hidden_size", check=size, default=DEFAULTS["hidden_size"])
    table = take(found, "embedding_size", check=size, default=128)
    return {"encoder.embed.factor": None if table == width else {"kind": "factor", "width": table}}


def _template() -> Model:
    """With both heads: a checkpoint has one of them."""
    return replace(recipe(**SMALL, generator=True), detector=Detector())


FIRST = Reading(at="first", layer="own", activation="gelu")
"""[CLS] through a dense layer of the head, with the activation of the body."""
# NOTE: of choices the class reads this from its config; other values than the paper's are refused.
SUMMARY = (
    Fixed("summary_type", ("first",)),
    Fixed("summary_activation", ("gelu",)),
    Fixed("summary_use_proj", (True,)),
    Fixed("summary_proj_to_labels", (False,)),
)

electra = Family(
    recipe=recipe,
    shape="encoder",
    reading=FIRST,
    default="base",
    training=Training(
        objective={"kind": "replaced_token"},
        batch_tokens=131_072,
        lr=2e-4,
        width=768,
        tokenizer=("wordpiece", "cls-sep", 30_522),
    ),
    pretraining=pretraining,
    sizes={
        "small": Size(SMALL, 13_483_008, "body"),  # "14M"
        "base": Size({}, 108_891_648, "body"),  # "110M"
        "large": Size({"width": 1024, "depth": 24, "heads": 16}, 334_092_288, "body"),  # "335M"
        # As released. NOTE: that of the small one is as wide as its discriminator, where the paper has a quarter.
        "small-generator": Size({**SMALL, "generator": True}, 13_483_008, "body"),
        "base-generator": Size({**SMALL, "table": 768, "generator": True}, 33_511_168, "body"),
        "large-generator": Size({**SMALL, "depth": 24, "table": 1024, "generator": True}, 50_999_552, "body"),
    },
    layout=Layout(
        model_type="electra",
        template=_template,
        entries=(
            *(
                replace(entry, default=DEFAULTS.get(entry.name, entry.default)) if isinstance(entry, Key) else entry
                for entry in ENCODER_KEYS
            ),
            Key("vocab_size", ("vocab",), 30522),
            # NOTE: the generator's head has a gelu whatever the config says.
            Key("hidden_act", (ACTIVATION, "detector.activation"), "gelu", ACTIVATIONS),
            Odd(("embedding_size",), _read_table, lambda spec: {"embedding_size": spec.table}),
        ),
        ignored=frozenset({"summary_last_dropout", "generator_size"}),
        prefix="electra.",
        classes={
            "ElectraForPreTraining": frozenset({"detector"}),
            "ElectraForMaskedLM": frozenset({"head"}),
            "ElectraModel": frozenset(),
        },
        headed={
            "ElectraForSequenceClassification": headed(
                "classification", {"dense": "classifier.dense", "out": "classifier.out_proj"}, FIRST
            ),
            "ElectraForMultipleChoice": headed(
                "choice", {"dense": "sequence_summary.summary", "out": "classifier"}, FIRST, keys=SUMMARY
            ),
            **tokenwise("Electra"),
        },
        marks={"detector": "discriminator_predictions.dense.weight", "head": "generator_lm_head.bias"},
        head="generator_lm_head.weight",
        skipped=(r".*embeddings\.position_ids",),
        rules=(
            *rules({ours: f"electra.{theirs}" for ours, theirs in LAYER.items() if not ours.startswith("pooler")}),
            *rules(
                {
                    "encoder.embed.project.{p}": "electra.embeddings_project.{p}",
                    "head.transform.dense.{p}": "generator_predictions.dense.{p}",
                    "head.transform.norm.{p}": "generator_predictions.LayerNorm.{p}",
                    "head.weight": "generator_lm_head.weight",
                    "head.bias": "generator_lm_head.bias",
                    "detector.dense.{p}": "discriminator_predictions.dense.{p}",
                    "detector.out.{p}": "discriminator_predictions.dense_prediction.{p}",
                }
            ),
        ),
    ),
)
"""ELECTRA: an encoder that detects replaced tokens, and its generator (Clark et al., 2020)."""
