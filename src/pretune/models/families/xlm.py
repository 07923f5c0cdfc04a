"""XLM (Lample and Conneau, 2019): an encoder for several languages, with language embeddings and translation pairs."""

from pretune.models.families.bert import build_spec as build_bert_spec
from pretune.models.families.shared import ENCODER_ACTIVATION, Family, PaperDefaults, Size, derive_hidden
from pretune.models.hf.config import (
    CustomKey,
    FixedKey,
    HfConfig,
    Key,
    SpecChanges,
    build_summary_keys,
    check_flag,
    check_size,
    name_projections,
)
from pretune.models.hf.weights import HeadLayout, Layout, define_token_heads
from pretune.models.spec import Model, Special
from pretune.nn.heads import PoolingConfig


def build_spec(
    *,
    width: int = 1024,
    depth: int = 12,
    heads: int = 8,
    vocab: int = 95_000,
    positions: int = 512,
    languages: int | None = 15,
    dropout: float = 0.1,
) -> Model:
    """Build a spec: BERT with an embedding per language (None: without) instead of segments; a head without transform.

    The hidden width is four times the width.
    """
    return build_bert_spec(
        width=width,
        depth=depth,
        heads=heads,
        vocab=vocab,
        positions=positions,
        dropout=dropout,
        changes={
            "family": "xlm",
            "encoder.embed.segments": None,
            "encoder.embed.languages": languages,
            "head.transform": None,
            "pooler": None,
            "pair": None,
            "special": Special(pad=2, bos=0, eos=(1,)),
        },
    )


def _read_languages(hf_config: HfConfig) -> SpecChanges:
    count = hf_config.read("n_langs", check=check_size, default=1)
    is_used = hf_config.read("use_lang_emb", check=check_flag, default=True)
    return {"encoder.embed.languages": count if is_used and count > 1 else None}


def _write_languages(spec: Model) -> dict[str, object]:
    languages = spec.last_stack.embed.languages
    return {"n_langs": languages or 1, "use_lang_emb": True}


FIRST_TOKEN = PoolingConfig(mode="first")
SUMMARY_KEYS = build_summary_keys("first", None, to_labels=True)
LANGUAGE_MIXING = {"kind": "smoothed", "alpha": 0.7}
_SIZE_1280 = {"width": 1280, "depth": 16, "heads": 16, "vocab": 200_000, "languages": None}

xlm = Family(
    build_spec=build_spec,
    shape="encoder",
    pooling=FIRST_TOKEN,
    default="mlm-xnli15-1024",
    training=PaperDefaults(
        objective={"kind": "masked"},
        lengths=(256,),
        batch_tokens=64 * 256 * 64,  # 64 streams on each of 64 devices
        tokens=500e9,  # not published: about half a million steps
        lr=1e-4,
        width=1024,
        schedule={"kind": "inverse_square_root", "warmup": 30_000},
        tokenizer=("bpe", "s-mask", 95_000),
        mixing=LANGUAGE_MIXING,
    ),
    sizes={
        "mlm-en-2048": Size({"width": 2048, "heads": 16, "vocab": 30_145, "languages": None}, 667_119_041),
        "mlm-xnli15-1024": Size({}, 249_071_384),
        "mlm-tlm-xnli15-1024": Size({}, 249_071_384, training={"objective": {"kind": "translation"}}),
        "mlm-17-1280": Size(_SIZE_1280, 571_696_960),
        "mlm-100-1280": Size(_SIZE_1280, 571_696_960),
    },
    layout=Layout(
        model_type="xlm",
        template=lambda: build_spec(languages=None),
        entries=(
            Key("emb_dim", ("width",), 2048, aliases=("hidden_size",)),
            derive_hidden("encoder", "emb_dim", "hidden_size", default=2048),
            CustomKey(("n_langs", "use_lang_emb"), _read_languages, _write_languages),
            Key("vocab_size", ("vocab",), 30_145, aliases=("n_words",)),
            Key("n_layers", ("encoder.depth",), 12, aliases=("num_hidden_layers",)),
            Key("n_heads", ("encoder.blocks.*.attention.heads",), 16, aliases=("num_attention_heads",)),
            Key("dropout", ("encoder.embed.dropout", "encoder.blocks.*.dropout"), 0.1),
            Key("attention_dropout", ("encoder.blocks.*.attention.dropout",), 0.1),
            Key("max_position_embeddings", ("encoder.position.rows",), 512),
            Key("layer_norm_eps", ("encoder.embed.norm.eps", "encoder.blocks.*.norms.post.eps"), 1e-12),
            Key("init_std", ("init.std",), 0.02),
            Key("gelu_activation", (ENCODER_ACTIVATION,), "gelu", {True: "gelu", False: "relu"}),
            FixedKey("causal", (False,)),
            FixedKey("asm", (False,)),  # adaptive softmax
            FixedKey("is_encoder", (True,)),
            FixedKey("pad_index", (2,)),
            FixedKey("bos_index", (0,)),
            FixedKey("eos_index", (1,)),
        ),
        # NOTE: sinusoidal positions are the values of a table that is saved like a learned one.
        ignored_keys=frozenset(
            {"sinusoidal_embeddings", "embed_init_std", "lang2id", "id2lang", "lang_id", "mask_index", "unk_index"}
            | {"mask_token_id", "max_vocab", "same_enc_dec", "share_inout_emb", "start_n_top", "end_n_top"}
        ),
        prefix="transformer.",
        classes={"XLMWithLMHeadModel": frozenset({"head"}), "XLMModel": frozenset()},
        task_heads={
            "XLMForSequenceClassification": HeadLayout(
                "classification", {"out": "sequence_summary.summary"}, FIRST_TOKEN, keys=SUMMARY_KEYS
            ),
            "XLMForQuestionAnsweringSimple": HeadLayout("span", {"out": "qa_outputs"}),
            **define_token_heads("XLM", spans=None),
        },
        skipped_tensors=(r".*position_ids",),
        names={
            **name_projections("encoder", "transformer.attentions.{i}.{part}_lin.{p}"),
            "encoder.{i}.attention_norm.post.{p}": "transformer.layer_norm1.{i}.{p}",
            "encoder.{i}.feedforward.up.{p}": "transformer.ffns.{i}.lin1.{p}",
            "encoder.{i}.feedforward.down.{p}": "transformer.ffns.{i}.lin2.{p}",
            "encoder.{i}.feedforward_norm.post.{p}": "transformer.layer_norm2.{i}.{p}",
            "tokens.weight": "transformer.embeddings.weight",
            "encoder.position.table.weight": "transformer.position_embeddings.weight",
            "encoder.embed.languages.weight": "transformer.lang_embeddings.weight",
            "encoder.embed.norm.{p}": "transformer.layer_norm_emb.{p}",
            "head.weight": "pred_layer.proj.weight",
            "head.bias": "pred_layer.proj.bias",
        },
    ),
)
"""XLM: masked tokens in several languages and in translations (Lample and Conneau, 2019)."""
