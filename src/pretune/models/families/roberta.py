"""RoBERTa (Liu et al., 2019), XLM-R, BabyBERTa and MiniBERTa: BERT's encoder without sentence pairs."""

from dataclasses import replace
from functools import partial

from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.models.families.bert import build_spec as build_bert_spec
from pretune.models.families.shared import (
    ADAM,
    ENCODER_ACTIVATION,
    ENCODER_NAMES,
    LARGE_SETTINGS,
    POOLER,
    Family,
    PaperDefaults,
    Size,
    build_encoder_keys,
)
from pretune.models.hf.config import ACTIVATIONS, CustomKey, HfConfig, Key, SpecChanges, check_token, get_path
from pretune.models.hf.weights import OUT_PROJ_NAMES, HeadLayout, Layout, define_encoder_heads
from pretune.models.spec import Model, Special
from pretune.nn.heads import PoolingConfig
from pretune.nn.layers import LayerNorm
from pretune.nn.positions import LearnedEmbedding
from pretune.nn.stack import Stack


def build_spec(
    *,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    vocab: int = 50265,
    hidden: int | None = None,
    positions: int = 512,
    dropout: float = 0.1,
    family: str = "roberta",
) -> Model:
    """Build a spec: BERT with positions from row 2, one segment and no pair head."""
    return build_bert_spec(
        width=width,
        depth=depth,
        heads=heads,
        vocab=vocab,
        hidden=hidden,
        dropout=dropout,
        norm=LayerNorm(eps=1e-5),
        changes={
            "family": family,
            "encoder.position": LearnedEmbedding(rows=positions + 2, offset=2),
            "encoder.embed.segments": 1,
            "pair": None,
            "special": Special(pad=1, bos=0, eos=(2,)),
        },
    )


FIRST_TOKEN = PoolingConfig(mode="first", layer="own")
"""<s> through a new dense layer of the head: the pooler was not pre-trained."""


def _read_offset(hf_config: HfConfig) -> SpecChanges:
    pad = hf_config.read("pad_token_id", check=check_token, default=1)
    return {"encoder.position.offset": 2 if pad is None else pad + 1}


def _write_offset(spec: Model) -> dict[str, object]:
    offset = get_path(spec, "encoder.position.offset")
    if spec.special.pad != offset - 1:
        raise CheckpointError(
            f"key 'pad_token_id' = {format_value(spec.special.pad)}: positions start after this id, so it must be "
            f"{offset - 1}"
        )
    return {}


def fit_positions(spec: Model) -> Model:
    """Return the spec with positions after its padding id, as in transformers; unchanged for a large id or none."""
    stack, pad = spec.encoder, spec.special.pad
    if pad is None or not isinstance(stack, Stack) or not isinstance(stack.position, LearnedEmbedding):
        return spec
    length = stack.position.max_length
    if pad >= length:  # the rows up to this id would never be used
        return spec
    position = replace(stack.position, rows=length + pad + 1, offset=pad + 1)
    return replace(spec, encoder=replace(stack, position=position))


def build_layout(model_type: str, name: str, vocab: int) -> Layout:
    """Return the layout of RoBERTa or XLM-R, which differ in class names and the default vocabulary size."""
    # NOTE: the head always uses gelu.
    return Layout(
        model_type=model_type,
        template=partial(build_spec, family=model_type),
        entries=(
            *build_encoder_keys(vocab),
            Key("hidden_act", (ENCODER_ACTIVATION,), "gelu", ACTIVATIONS),
            CustomKey(("pad_token_id",), _read_offset, _write_offset),
        ),
        prefix="roberta.",
        classes={f"{name}ForMaskedLM": frozenset({"head"}), f"{name}Model": frozenset({"pooler"})},
        task_heads={
            **define_encoder_heads(name, OUT_PROJ_NAMES, FIRST_TOKEN),
            f"{name}ForMultipleChoice": HeadLayout(
                "choice", {"dense": "roberta.pooler.dense", "out": "classifier"}, POOLER
            ),
        },
        duplicates={"lm_head.bias": "lm_head.decoder.bias"},
        skipped_tensors=(r".*embeddings\.position_ids",),
        names={
            **{ours: f"roberta.{theirs}" for ours, theirs in ENCODER_NAMES.items()},
            "head.transform.dense.{p}": "lm_head.dense.{p}",
            "head.transform.norm.{p}": "lm_head.layer_norm.{p}",
            "head.weight": "lm_head.decoder.weight",
            "head.bias": "lm_head.bias",
        },
    )


_define_training = partial(
    PaperDefaults, objective={"kind": "masked"}, width=768, optimizer={**ADAM, "betas": (0.9, 0.98)}
)
_define_family = partial(
    Family, shape="encoder", pooling=FIRST_TOKEN, choice_pooling=POOLER, fit_positions=fit_positions
)
ROBERTA_LAYOUT = build_layout("roberta", "Roberta", 50265)

roberta = _define_family(
    build_spec=build_spec,
    default="base",
    training=_define_training(
        batch_tokens=4_194_304,
        tokens=2.1e12,  # 500,000 steps
        lr=6e-4,
        schedule={"kind": "linear", "warmup": 24_000},
        tokenizer=("bpe", "s-mask", 50_265),
    ),
    sizes={
        "base": Size({}, 124_645_632, "body_with_pooler"),  # "125M"
        "large": Size(LARGE_SETTINGS, 355_359_744, "body_with_pooler"),  # "355M"
    },
    layout=ROBERTA_LAYOUT,
)
"""RoBERTa: BERT trained longer, without sentence pairs (Liu et al., 2019)."""

xlm_roberta = _define_family(
    build_spec=partial(build_spec, vocab=250002, family="xlm-roberta"),
    default="base",
    training=_define_training(
        batch_tokens=4_194_304,
        tokens=6.3e12,  # 1.5 million steps
        lr=6e-4,
        schedule={"kind": "linear", "warmup": 24_000},
        tokenizer=("unigram", "s-mask", 250_002),
        mixing={"kind": "smoothed", "alpha": 0.3},  # of languages (section 3.1)
    ),
    sizes={
        "base": Size({}, 278_043_648, "body_with_pooler"),  # "270M"
        "large": Size(LARGE_SETTINGS, 559_890_432, "body_with_pooler"),  # "550M"
    },
    layout=build_layout("xlm-roberta", "XLMRoberta", 30522),
)
"""XLM-R: RoBERTa over a hundred languages and one vocabulary (Conneau et al., 2020)."""

babyberta = _define_family(
    build_spec=partial(
        build_spec, width=256, depth=8, heads=8, hidden=1024, vocab=8192, positions=512, family="babyberta"
    ),
    default="base",
    training=_define_training(
        objective={"kind": "masked", "split": (0.9, 0.1, 0.0)},
        samples="sentences",
        lengths=(128,),
        batch_tokens=2_048,
        tokens=26e6,  # 160,000 steps of 16 short sentences
        lr=1e-4,
        width=256,
        schedule={"kind": "linear", "warmup": 24_000},
        tokenizer=("bpe", "s-mask", 8_192),
    ),
    sizes={"base": Size({}, 8_613_376, "body_with_pooler")},  # "8M"
    layout=ROBERTA_LAYOUT,
)
"""BabyBERTa: a RoBERTa for five million words of child-directed speech (Huebner et al., 2021)."""

miniberta = _define_family(
    build_spec=partial(build_spec, family="miniberta"),
    default="base",
    training=_define_training(
        batch_tokens=262_144,
        tokens=26e9,  # 100,000 steps
        lr=6e-4,
        schedule={"kind": "linear", "warmup": 6_000},
        tokenizer=("bpe", "s-mask", 50_265),
    ),
    sizes={
        "base": Size({}, 124_645_632, "body_with_pooler"),  # 10M to 1B words
        "med-small": Size({"width": 512, "depth": 6, "heads": 8, "hidden": 2048}, 45_177_344, "body_with_pooler"),  # 1M
    },
    layout=ROBERTA_LAYOUT,
)
"""MiniBERTas: RoBERTa on one million to one billion words (Warstadt et al., 2020)."""
