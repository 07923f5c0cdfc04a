"""DeBERTa v2 and v3 (He et al., 2021, 2023): an encoder with attention by content and distance, separately projected.

Version 2 is trained on masked tokens, which an enhanced mask decoder predicts. Version 3 is trained to detect replaced
tokens; generator and discriminator share embeddings, but not their gradients.
"""

from dataclasses import replace
from typing import Any

from pretune.core.errors import CheckpointError
from pretune.models.families.shared import ENCODER_ACTIVATION, ENCODER_NAMES, Family, PaperDefaults, Size
from pretune.models.generator_discriminator import Pair
from pretune.models.hf.config import (
    ACTIVATIONS,
    CustomKey,
    Entry,
    FixedKey,
    HfConfig,
    Key,
    SpecChanges,
    allow_choices,
    check_flag,
    check_positive,
    check_rate,
    check_size,
    make_unsupported_error,
)
from pretune.models.hf.weights import Layout, define_encoder_heads
from pretune.models.spec import Model, Special
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.heads import Detector, Head, PoolingConfig, Transform
from pretune.nn.layers import ActivationName, Embed, Factor, FeedForward, LayerNorm
from pretune.nn.mask_decoder import MaskDecoder
from pretune.nn.positions import DistanceEmbedding, DistanceTerms, LearnedEmbedding
from pretune.nn.stack import Convolution, Stack

NORM = LayerNorm(eps=1e-7)


def build_spec(
    *,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    vocab: int = 128100,
    hidden: int | None = None,
    positions: int = 512,
    conv: bool = False,
    dropout: float = 0.1,
) -> Model:
    """Build a spec: distances in 256 buckets, projected by q and k, post-norm; `conv` adds a convolution.

    The head's mask decoder has absolute positions; the input has neither these nor segments.
    """
    return Model(
        family="deberta",
        vocab=vocab,
        width=width,
        context=positions,
        encoder=Stack(
            depth=depth,
            embed=Embed(norm=NORM, dropout=dropout),
            position=DistanceEmbedding(buckets=256, max_distance=512, norm=NORM, dropout=dropout),
            blocks=(
                Block(
                    attention=Attention(heads=heads, dropout=dropout, distances=DistanceTerms()),
                    feedforward=FeedForward(hidden=hidden or 4 * width),
                    norms=Norms(post=NORM),
                    dropout=dropout,
                ),
            ),
            conv=Convolution(activation="gelu", norm=NORM, dropout=dropout) if conv else None,
        ),
        head=HEAD,
        mask_decoder=MaskDecoder(rows=positions),
        special=Special(pad=0),
    )


DETECTOR = Detector(norm=NORM)
HEAD = Head(bias="learned", transform=Transform(activation="gelu", norm=NORM))


def build_pretraining_spec(spec: Model) -> Pair:
    """Add a generator as wide and half as deep; the token table is shared, its gradient is not (He et al., 2023)."""
    assert isinstance(spec.encoder, Stack)
    body = replace(spec, head=None, mask_decoder=None, pooler=None, pair=None, span=None, detector=None)
    generator = replace(
        body,
        encoder=replace(spec.encoder, depth=max(1, spec.depth // 2)),
        head=spec.head or HEAD,
        mask_decoder=spec.mask_decoder or (MaskDecoder(rows=spec.context) if spec.context else None),
    )
    discriminator = replace(body, detector=spec.detector or DETECTOR)
    return Pair(generator=generator, discriminator=discriminator, sharing="disentangled")


XLARGE_SETTINGS = {"width": 1536, "depth": 24, "heads": 24, "conv": True}
V2_TRAINING = {
    "objective": {"kind": "masked"},
    "batch_tokens": 2048 * 512,
    "tokens": 1.05e12,
    "lr": 1.5e-4,
    "width": 1536,
}
LARGE_TRAINING = {"lr": 3e-4, "width": 1024}


BODY = "deberta."
OLD_HEAD, NEW_HEAD = "cls.predictions", "lm_predictions.lm_head"
"""Tensor names of the two vocabulary heads of the reference, which compute the same."""


def _read_attention(hf_config: HfConfig) -> SpecChanges:
    """Return attention and positions: disentangled, or by content alone without relative_attention."""
    width = hf_config.read("hidden_size", check=check_size, default=1536)
    heads = hf_config.read("num_attention_heads", check=check_size, default=24)
    rows = hf_config.read("max_position_embeddings", check=check_size, default=512)
    dropout = hf_config.read("attention_probs_dropout_prob", check=check_rate, default=0.1)
    is_relative = hf_config.read("relative_attention", check=check_flag, default=False)
    is_shared = hf_config.read("share_att_key", check=check_flag, default=False)
    has_input = hf_config.read("position_biased_input", check=check_flag, default=True)
    terms = _read_terms(hf_config)
    for name, value in (("attention_head_size", width // heads), ("pooler_hidden_size", width)):
        if hf_config.read(name, check=check_size, default=value) != value:
            raise make_unsupported_error(name, hf_config[name], [value])
    absolute = LearnedEmbedding(rows=rows) if has_input else None
    distances = _read_distances(hf_config, rows, absolute)
    if is_relative and not terms:
        raise make_unsupported_error("pos_att_type", hf_config.get("pos_att_type"), TERMS)
    attention = Attention(heads=heads, dropout=dropout)
    if is_relative:
        attention = replace(attention, distances=DistanceTerms(terms=terms, shared=is_shared))
    elif terms:  # NOTE: the reference scales by the number of terms, though it then leaves them out
        attention = replace(attention, scale=(width // heads * (1 + len(terms))) ** -0.5)
    return {
        "encoder.blocks.*.attention": attention,
        "encoder.position": distances if is_relative else absolute,
        "mask_decoder": MaskDecoder(rows=rows) if is_relative and not has_input else None,
    }


TERMS = {"c2p": ("c2p",), "p2c": ("p2c",), "c2p|p2c": ("c2p", "p2c")}
"""Supported values of pos_att_type, which may also be a list."""


def _read_terms(hf_config: HfConfig) -> tuple[Any, ...]:
    value = hf_config.get("pos_att_type")
    if value is None or value == []:
        return ()
    names = value.lower().split("|") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(
        isinstance(name, str) and name.strip() in ("c2p", "p2c") for name in names
    ):
        raise make_unsupported_error("pos_att_type", value, TERMS)
    return TERMS["|".join(sorted({name.strip() for name in names}))]


def _check_limit(key: str, value: Any) -> int | None:
    """Return a size, or None for -1."""
    return None if type(value) is int and value == -1 else check_size(key, value)


def _read_distances(hf_config: HfConfig, rows: int, absolute: LearnedEmbedding | None) -> DistanceEmbedding:
    norms = hf_config.get("norm_rel_ebd", "none")
    norms = norms.lower().strip() if isinstance(norms, str) else norms
    return DistanceEmbedding(
        buckets=hf_config.read("position_buckets", check=_check_limit, default=None),
        max_distance=hf_config.read("max_relative_positions", check=_check_limit, default=None) or rows,
        norm=_read_norm(hf_config) if allow_choices(NORM_NAMES)("norm_rel_ebd", norms) else None,
        input=absolute,
        dropout=hf_config.read("hidden_dropout_prob", check=check_rate, default=0.1),
    )


NORM_NAMES = {"none": False, "layer_norm": True}


def _read_norm(hf_config: HfConfig) -> LayerNorm:
    return LayerNorm(eps=hf_config.read("layer_norm_eps", check=check_positive, default=1e-7))


def _write_attention(spec: Model) -> dict[str, object]:
    assert isinstance(spec.encoder, Stack)
    attention, position = spec.encoder.blocks[0].attention, spec.encoder.position
    out: dict[str, object] = {
        "num_attention_heads": attention.heads,
        "attention_head_size": spec.width // attention.heads,
        "attention_probs_dropout_prob": attention.dropout,
        "pooler_hidden_size": spec.width,
        "max_position_embeddings": spec.context,
        "max_relative_positions": -1,
        "position_buckets": -1,
        "norm_rel_ebd": "none",
        "share_att_key": False,
        "pos_att_type": None,
        "relative_attention": isinstance(position, DistanceEmbedding),
        "position_biased_input": isinstance(getattr(position, "input", position), LearnedEmbedding),
    }
    if attention.distances is None:  # by content alone; a scale other than the default counts terms
        terms = 0 if attention.scale is None else round(attention.scale**-2 * attention.heads / spec.width) - 1
        return out | {"pos_att_type": [None, "c2p", "c2p|p2c"][terms]}
    assert isinstance(position, DistanceEmbedding)
    return out | {
        "pos_att_type": "|".join(sorted(attention.distances.terms)),
        "share_att_key": attention.distances.shared,
        "max_relative_positions": -1 if position.max_distance == spec.context else position.max_distance,
        "position_buckets": position.buckets or -1,
        "norm_rel_ebd": "layer_norm" if position.norm else "none",
    }


def _read_embedding(hf_config: HfConfig) -> SpecChanges:
    width = hf_config.read("hidden_size", check=check_size, default=1536)
    table = hf_config.read("embedding_size", check=check_size, default=width)
    return {
        "encoder.embed.segments": hf_config.read("type_vocab_size", check=_check_count, default=None),
        "encoder.embed.factor": None if table == width else Factor(width=table, bias=False, input="sum"),
    }


def _check_count(key: str, value: Any) -> int | None:
    """Return a size, or None for 0."""
    return None if type(value) is int and value == 0 else check_size(key, value)


def _write_embedding(spec: Model) -> dict[str, object]:
    return {"type_vocab_size": spec.last_stack.embed.segments or 0, "embedding_size": spec.table}


CONV_ACTIVATIONS: dict[str, ActivationName] = {**ACTIVATIONS, "tanh": "tanh"}


def _read_conv(hf_config: HfConfig) -> SpecChanges:
    kernel = hf_config.read("conv_kernel_size", check=_check_count, default=None)
    groups = hf_config.read("conv_groups", check=check_size, default=1)
    activation = hf_config.read("conv_act", check=allow_choices(CONV_ACTIVATIONS), default=CONV_ACTIVATIONS["tanh"])
    if kernel is None:
        return {"encoder.conv": None}
    if kernel % 2 == 0:
        raise CheckpointError(f"key 'conv_kernel_size' = {kernel}: must be odd")
    dropout = hf_config.read("hidden_dropout_prob", check=check_rate, default=0.1)
    conv = Convolution(kernel=kernel, groups=groups, activation=activation, norm=_read_norm(hf_config), dropout=dropout)
    return {"encoder.conv": conv}


def _write_conv(spec: Model) -> dict[str, object]:
    assert isinstance(spec.encoder, Stack)
    conv = spec.encoder.conv or Convolution()
    activation = next(theirs for theirs, ours in CONV_ACTIVATIONS.items() if ours == conv.activation)
    kernel = conv.kernel if spec.encoder.conv else 0
    return {"conv_kernel_size": kernel, "conv_groups": conv.groups, "conv_act": activation}


def _read_legacy(hf_config: HfConfig) -> SpecChanges:
    """Check the key; the names of the tensors show the kind of head."""
    hf_config.read("legacy", check=check_flag, default=True)
    return {}


ENTRIES: tuple[Entry, ...] = (
    CustomKey(
        tuple(
            """num_attention_heads attention_head_size attention_probs_dropout_prob max_position_embeddings
            relative_attention position_biased_input pos_att_type share_att_key max_relative_positions position_buckets
            norm_rel_ebd pooler_hidden_size""".split()  # noqa: SIM905 (a list of this length reads better as words)
        ),
        _read_attention,
        _write_attention,
    ),
    CustomKey(("type_vocab_size", "embedding_size"), _read_embedding, _write_embedding),
    CustomKey(("conv_kernel_size", "conv_groups", "conv_act"), _read_conv, _write_conv),
    # NOTE: both vocabulary heads of the reference compute the same; the legacy one can also be untied.
    CustomKey(("legacy",), _read_legacy, lambda spec: {"legacy": True}),
    Key("vocab_size", ("vocab",), 128100),
    Key("hidden_size", ("width",), 1536),
    Key("num_hidden_layers", ("encoder.depth",), 24),
    Key("max_position_embeddings", ("context",), 512),
    Key("intermediate_size", ("encoder.blocks.*.feedforward.hidden",), 6144),
    Key("hidden_dropout_prob", ("encoder.embed.dropout", "encoder.blocks.*.dropout"), 0.1),
    Key("initializer_range", ("init.std",), 0.02),
    Key(
        "layer_norm_eps",
        (
            "encoder.embed.norm.eps",
            "encoder.blocks.*.norms.post.eps",
            "head.transform.norm.eps",
            "detector.norm.eps",
        ),
        1e-7,
    ),
    Key("hidden_act", (ENCODER_ACTIVATION, "head.transform.activation", "detector.activation"), "gelu", ACTIVATIONS),
)


def _name_tensors(spec: Model) -> dict[str, str]:
    table = "encoder.position.table.weight"
    names = {ours: theirs for ours, theirs in ENCODER_NAMES.items() if not ours.startswith("pooler")}
    for part in ("query", "key", "value"):
        names = {ours: theirs.replace(f".{part}.", f".{part}_proj.") for ours, theirs in names.items()}
    absolute = names["encoder.position.table.weight"]
    if isinstance(spec.last_stack.position, DistanceEmbedding):
        names |= {
            table: "encoder.rel_embeddings.weight",
            "encoder.position.norm.{p}": "encoder.LayerNorm.{p}",
            "encoder.position.input.table.weight": absolute,
            "encoder.{i}.attention.position_k.{p}": "encoder.layer.{i}.attention.self.pos_key_proj.{p}",
            "encoder.{i}.attention.position_q.{p}": "encoder.layer.{i}.attention.self.pos_query_proj.{p}",
        }
    names |= {
        "encoder.conv.{p}": "encoder.conv.conv.{p}",
        "encoder.conv.norm.{p}": "encoder.conv.LayerNorm.{p}",
        "encoder.embed.project.weight": "embeddings.embed_proj.weight",
        "mask_decoder.positions.weight": absolute,
    }
    heads = {
        "head.transform.dense.{p}": f"{OLD_HEAD}.transform.dense.{{p}}",
        "head.transform.norm.{p}": f"{OLD_HEAD}.transform.LayerNorm.{{p}}",
        "head.weight": f"{OLD_HEAD}.decoder.weight",
        "head.bias": f"{OLD_HEAD}.bias",
        "detector.norm.{p}": "mask_predictions.LayerNorm.{p}",
        "detector.dense.{p}": "mask_predictions.dense.{p}",
        "detector.out.{p}": "mask_predictions.classifier.{p}",
    }
    return {**{ours: BODY + theirs for ours, theirs in names.items()}, **heads}


CONTEXT_POOLER = PoolingConfig(mode="first", layer="own", activation="gelu")
"""[CLS] through a new dense layer of the head."""


deberta = Family(
    build_spec=build_spec,
    shape="encoder",
    pooling=CONTEXT_POOLER,
    default="v3-base",
    training=PaperDefaults(
        objective={"kind": "replaced_token", "masking": {"kind": "masked", "split": (1.0, 0.0, 0.0)}},
        batch_tokens=8192 * 512,
        tokens=2.1e12,  # 500,000 steps
        lr=6e-4,
        width=768,
        optimizer={"kind": "adam_w", "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.01},
        tokenizer=("unigram", "cls-sep", 128_000),
    ),
    build_pretraining_spec=build_pretraining_spec,
    # Counts are of the body, as `transformers` has it.
    sizes={
        "v2-xlarge": Size(XLARGE_SETTINGS, 884_593_152, "body", V2_TRAINING),  # "900M"
        "v2-xxlarge": Size({**XLARGE_SETTINGS, "depth": 48}, 1_564_549_632, "body", V2_TRAINING),  # "1.5B"
        "v3-xsmall": Size({"width": 384, "heads": 6}, 70_682_112, "body"),  # "22M" without the token table
        "v3-small": Size({"depth": 6}, 141_304_320, "body"),  # "44M" without it
        "v3-base": Size({}, 183_831_552, "body"),  # "86M" without it
        "v3-large": Size({"width": 1024, "depth": 24, "heads": 16}, 434_012_160, "body", LARGE_TRAINING),
        "v3-base-multilingual": Size({"vocab": 251000}, 278_218_752, "body"),  # mDeBERTa
    },
    layout=Layout(
        model_type="deberta-v2",
        template=lambda: replace(build_spec(), detector=DETECTOR),
        entries=ENTRIES,
        ignored_keys=frozenset({"pooler_dropout", "pooler_hidden_act", "cls_dropout"}),
        prefix=BODY,
        classes={"DebertaV2ForMaskedLM": frozenset({"head"}), "DebertaV2Model": frozenset()},
        task_heads=define_encoder_heads(
            "DebertaV2",
            {"dense": "pooler.dense", "out": "classifier"},
            CONTEXT_POOLER,
            keys=(FixedKey("pooler_hidden_act", ("gelu",)),),
        ),
        duplicates={f"{OLD_HEAD}.bias": f"{OLD_HEAD}.decoder.bias"},
        aliases={
            **{f"{NEW_HEAD}.{part}": f"{OLD_HEAD}.transform.{part}" for part in ("dense.weight", "dense.bias")},
            **{f"{NEW_HEAD}.LayerNorm.{part}": f"{OLD_HEAD}.transform.LayerNorm.{part}" for part in ("weight", "bias")},
            f"{NEW_HEAD}.bias": f"{OLD_HEAD}.bias",
        },
        omitted_parts={
            "mask_decoder": "the enhanced mask decoder, so that its predictions of masked tokens differ",
            "detector": "the detector of replaced tokens",
        },
        skipped_tensors=(r".*embeddings\.position_ids",),
        names=_name_tensors,
    ),
)
"""DeBERTa: attention by content and distance, masked or replaced tokens (He et al., 2021, 2023)."""
