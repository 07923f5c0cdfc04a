"""The type of a model family, and config keys and tensor names that several share: encoders like BERT, decoders."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pretune.models.families.shared_rotary import build_rope_key
from pretune.models.generator_discriminator import Pair
from pretune.models.hf.config import (
    ACTIVATIONS,
    CustomKey,
    Entry,
    FixedKey,
    HfConfig,
    Key,
    SpecChanges,
    allow_null,
    check_size,
)
from pretune.models.hf.weights import (
    FusedPacking,
    HeadLayout,
    Layout,
    Rule,
    define_score_head,
    define_token_heads,
    fuse_qkv,
)
from pretune.models.spec import Model
from pretune.nn.heads import PoolingConfig


@dataclass(frozen=True)
class Size:
    """A published size: arguments of `build_spec`, and the number of parameters of the released weights.

    `counted_params` names the field of `Params` that `params` equals: `total`, `body` or `body_with_pooler`.
    """

    settings: Mapping[str, object]
    params: int
    counted_params: str = "total"
    training: Mapping[str, Any] = field(default_factory=dict)  # fields of `PaperDefaults` in which this size differs


ADAM = {"kind": "adam_w", "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01}
"""AdamW with the settings of BERT."""
ADAM_LARGE = {"kind": "adam_w", "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
"""AdamW with the settings of GPT-3."""


@dataclass(frozen=True, kw_only=True)
class PaperDefaults:
    """Training settings of a family's paper, as names and numbers; `pretune.runs` builds the run from them.

    `lr` is the learning rate at `width`; narrower models train with a proportionally higher rate. `batch_tokens` is the
    paper's batch size.
    """

    objective: Mapping[str, object]
    samples: str = "documents"
    lengths: tuple[int, ...] = (512,)  # the last length is used for the last tenth of the steps
    batch_tokens: int
    tokens: float | None = None  # that the paper's run read, all passes together; None: unknown
    lr: float
    width: int | None = None
    optimizer: Mapping[str, object] = field(default_factory=lambda: ADAM)
    schedule: Mapping[str, object] = field(default_factory=lambda: {"kind": "linear", "warmup": 10_000})
    tokenizer: tuple[str, str, int]  # kind, style, vocabulary size
    mixing: Mapping[str, object] | None = None  # of corpora, such as one per language; None: proportional to size
    distillation: Mapping[str, object] = field(default_factory=dict)  # of a student with a teacher; else DistilBERT's


@dataclass(frozen=True, kw_only=True)
class TuningDefaults:
    """Fine-tuning of a family's paper: a method of `--method`, the settings that it is used with, and a changed spec.

    They apply if no method is chosen; those of "full" whenever all weights are trained. The spec may differ in settings
    of training, such as dropout rates, and applies to every method.
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # path -> value
    build_spec: Callable[[Model], Model] | None = None  # from the pre-trained model's


@dataclass(frozen=True, kw_only=True)
class Family:
    """A published family. `build_spec` takes the settings (width, depth, heads, vocab, …) as keyword arguments."""

    build_spec: Callable[..., Model]
    sizes: Mapping[str, Size]
    default: str
    training: PaperDefaults | None = None  # None: not trained on its own
    layout: Layout | None = None  # None: saved in the native format only
    shape: str = field(default="")  # encoder, decoder or encoder-decoder
    build_pretraining_spec: Callable[[Model], Pair] | None = None  # adds the generator of a discriminator
    pooling: PoolingConfig | None = None  # for sequence classification; None: the default of its shape
    choice_pooling: PoolingConfig | None = None  # for multiple choice; None: the same as `pooling`
    fit_positions: Callable[[Model], Model] | None = None  # of a new model, to its special tokens; None: unchanged
    heads_have_transform: bool = False  # task heads start with the transform of the vocabulary head
    adds_task_tokens: bool = False  # fine-tuning adds start, delimiter and extract tokens
    tuning: TuningDefaults | None = None  # None: all weights, with the settings that most papers share

    def get_training(self, size: str | None = None) -> PaperDefaults | None:
        """Return the paper's training settings for a size, or those of the family if `size` is None."""
        if self.training is None or size is None:
            return self.training
        return replace(self.training, **self.sizes[size].training)

    def resolve_spec(self, size: str | None = None, **settings: object) -> Model:
        """Return the spec of a size (default: the family's default size) with `settings` overridden."""
        return self.build_spec(**{**self.sizes[size or self.default].settings, **settings})


def build_encoder_keys(
    vocab: int = 30522, width: int = 768, heads: int = 12, hidden: int = 3072, dropout: float = 0.1
) -> tuple[Key | FixedKey, ...]:
    """Return the keys that encoders like BERT share, with the defaults of a family's reference."""
    return (
        Key("hidden_size", ("width",), width),
        Key("num_hidden_layers", ("encoder.depth",), 12),
        Key("num_attention_heads", ("encoder.blocks.*.attention.heads",), heads),
        Key("intermediate_size", ("encoder.blocks.*.feedforward.hidden",), hidden),
        Key("hidden_dropout_prob", ("encoder.embed.dropout", "encoder.blocks.*.dropout"), dropout),
        Key("attention_probs_dropout_prob", ("encoder.blocks.*.attention.dropout",), dropout),
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
        Key("vocab_size", ("vocab",), vocab),
    )


ACTIVATION_KEYS: Mapping[str, object] = {"silu": "silu", **ACTIVATIONS}
"""Names of activation functions in Llama-like decoders; the first match is written."""
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

SENTENCE_CONFIG_FILE = "sentence_bert_config.json"
"""Settings of the module Transformer of sentence-transformers, which it names after its first model."""

LARGE_SETTINGS = {"width": 1024, "depth": 24, "heads": 16}
NO_CHANGES: SpecChanges = {}
"""Changes to the spec of a family, from which others are derived: path -> value."""


def build_decoder_training(
    *,
    length: int,
    batch_tokens: int,
    tokens: float,
    lr: float,
    width: int,
    warmup: int,
    tokenizer: tuple[str, str, int],
    schedule: str = "cosine",
    floor: float = 0.1,
    optimizer: Mapping[str, object] = ADAM_LARGE,
) -> PaperDefaults:
    """Return the settings of causal language modelling on blocks of `length` tokens."""
    return PaperDefaults(
        objective={"kind": "causal"},
        samples="blocks",
        lengths=(length,),
        batch_tokens=batch_tokens,
        tokens=tokens,
        lr=lr,
        width=width,
        optimizer=optimizer,
        schedule={"kind": schedule, "warmup": warmup, "floor": floor},
        tokenizer=tokenizer,
    )


def build_decoder_classes(name: str, head: str = "ForCausalLM") -> dict[str, frozenset[str]]:
    """Return the two classes of a decoder in `transformers`: with the vocabulary head, and the body alone.

    >>> build_decoder_classes("Llama")
    {'LlamaForCausalLM': frozenset({'head'}), 'LlamaModel': frozenset()}
    """
    return {f"{name}{head}": frozenset({"head"}), f"{name}Model": frozenset()}


GPT_KEYS = (
    Key("n_embd", ("width",), 768, aliases=("hidden_size",)),
    Key("n_layer", ("decoder.depth",), 12, aliases=("num_hidden_layers",)),
    Key("n_head", ("decoder.blocks.*.attention.heads",), 12, aliases=("num_attention_heads",)),
    Key("resid_pdrop", ("decoder.blocks.*.dropout",), 0.1),
    Key("embd_pdrop", ("decoder.embed.dropout",), 0.1),
    Key("attn_pdrop", ("decoder.blocks.*.attention.dropout",), 0.1),
    Key("initializer_range", ("init.std",), 0.02),
)
GPT_RULES = (
    fuse_qkv("decoder", "transformer.h.{i}.attn.c_attn.{p}", FusedPacking(is_transposed=True)),
    Rule("decoder.{i}.attention.out.{p}", "transformer.h.{i}.attn.c_proj.{p}", FusedPacking(is_transposed=True)),
    Rule("decoder.{i}.feedforward.up.{p}", "transformer.h.{i}.mlp.c_fc.{p}", FusedPacking(is_transposed=True)),
    Rule("decoder.{i}.feedforward.down.{p}", "transformer.h.{i}.mlp.c_proj.{p}", FusedPacking(is_transposed=True)),
)
"""Matrices of GPT and GPT-2, stored input first."""


def derive_hidden(side: str, *names: str, default: int, key: str | None = None) -> CustomKey:
    """Return the rule that the feed-forward width is four times the width, which is the key of these names.

    A family may have a `key` that states another one; it may be null.
    """

    def read(hf_config: HfConfig) -> SpecChanges:
        width = hf_config.read(*names, check=check_size, default=default)
        hidden = hf_config.read(key, check=allow_null(check_size), default=None) if key else None
        return {f"{side}.blocks.*.feedforward.hidden": 4 * width if hidden is None else hidden}

    def write(spec: Model) -> dict[str, object]:
        return {key: spec.first_block.feedforward.hidden} if key else {}

    return CustomKey((key,) if key else (), read, write)


def build_llama_keys(
    vocab: int = 32000,
    hidden: int = 11008,
    kv_heads: int | None = None,
    context: int = 2048,
    *,
    width: int = 4096,
    depth: int = 32,
    heads: int = 32,
    activation: str = "hidden_act",
    layers: CustomKey | None = None,
) -> tuple[Key | CustomKey, ...]:
    """Return the keys that Llama-like decoders share, with the defaults of a family's reference.

    `activation` is the name of its key. `layers` are the keys of blocks and positions that differ by layer, which are
    read before those that set a field of all; None: all layers have the same.
    """
    default_activation = "silu" if activation == "hidden_act" else "gelu_tanh"
    keys = (
        Key("vocab_size", ("vocab",), vocab),
        Key("hidden_size", ("width",), width),
        Key("intermediate_size", ("decoder.blocks.*.feedforward.hidden",), hidden),
        Key("num_hidden_layers", ("decoder.depth",), depth),
        Key("num_attention_heads", ("decoder.blocks.*.attention.heads",), heads),
        CustomKey(("num_key_value_heads",), partial(_read_kv_heads, kv_heads, heads), _write_kv_heads),
        Key(activation, ("decoder.blocks.*.feedforward.activation",), default_activation, ACTIVATION_KEYS),
        Key("attention_dropout", ("decoder.blocks.*.attention.dropout",), 0.0),
        Key("initializer_range", ("init.std",), 0.02),
        Key("max_position_embeddings", ("context",), context),
    )
    return (*keys, build_rope_key()) if layers is None else (layers, *keys)


def _read_kv_heads(default: int | None, default_heads: int, hf_config: HfConfig) -> SpecChanges:
    heads = hf_config.read("num_attention_heads", check=check_size, default=default_heads)
    kv_heads = hf_config.read("num_key_value_heads", check=allow_null(check_size), default=default)
    return {"decoder.blocks.*.attention.kv_heads": None if kv_heads in (None, heads) else kv_heads}


def _write_kv_heads(spec: Model) -> dict[str, object]:
    attention = spec.first_block.attention
    return {"num_key_value_heads": attention.kv_heads or attention.heads}


def build_head_width_key(default: int | None = None, *, width: int = 4096, heads: int = 32) -> CustomKey:
    """Return the key of the head width, which is None in a spec if it follows from width and heads."""
    default_width, default_heads = width, heads

    def read(hf_config: HfConfig) -> SpecChanges:
        width = hf_config.read("hidden_size", check=check_size, default=default_width)
        heads = hf_config.read("num_attention_heads", check=check_size, default=default_heads)
        head_width = hf_config.read("head_dim", check=allow_null(check_size), default=default)
        is_derived = head_width is None or heads * head_width == width
        return {"decoder.blocks.*.attention.head_width": None if is_derived else head_width}

    def write(spec: Model) -> dict[str, object]:
        return {"head_dim": spec.first_block.attention.resolve_shape(width=spec.width)[2]}

    return CustomKey(("head_dim",), read, write)


HEAD_WIDTH_KEY = build_head_width_key()
BIAS_KEY = Key("attention_bias", ("decoder.blocks.*.attention.bias",), False)
RMS_NORM_KEY = Key("rms_norm_eps", ("decoder.blocks.*.norms.pre.eps", "decoder.norm.eps"), 1e-6)
_LLAMA_NAMES = {
    **{f"decoder.{{i}}.attention.{part}.{{p}}": f"model.layers.{{i}}.self_attn.{part}_proj.{{p}}" for part in "qkv"},
    "decoder.{i}.attention.out.{p}": "model.layers.{i}.self_attn.o_proj.{p}",
    "decoder.{i}.feedforward.up.{p}": "model.layers.{i}.mlp.up_proj.{p}",
    "decoder.{i}.feedforward.gate.{p}": "model.layers.{i}.mlp.gate_proj.{p}",
    "decoder.{i}.feedforward.down.{p}": "model.layers.{i}.mlp.down_proj.{p}",
    "tokens.weight": "model.embed_tokens.weight",
    "decoder.norm.{p}": "model.norm.{p}",
    "head.weight": "lm_head.weight",
}
PRE_NORM_NAMES = {
    "decoder.{i}.attention_norm.pre.{p}": "model.layers.{i}.input_layernorm.{p}",
    "decoder.{i}.feedforward_norm.pre.{p}": "model.layers.{i}.post_attention_layernorm.{p}",
}
QK_NORM_NAMES = {
    f"decoder.{{i}}.attention.{part}_norm.{{p}}": f"model.layers.{{i}}.self_attn.{part}_norm.{{p}}" for part in "qk"
}


def define_llama_heads(name: str, *, spans: str | None = "transformer.") -> dict[str, HeadLayout]:
    """Return the task heads of a Llama-like family; `spans` is another prefix of the body in question answering."""
    return {
        **define_score_head(name),
        **define_token_heads(name, tags="score", spans=None),
        f"{name}ForQuestionAnswering": HeadLayout("span", {"out": "qa_outputs"}, prefix=spans),
    }


def build_llama_layout(
    model_type: str,
    name: str,
    *,
    template: Callable[[], Model],
    entries: tuple[Entry, ...],
    norms: Mapping[str, str] = PRE_NORM_NAMES,
    task_heads: Mapping[str, HeadLayout] | None = None,
    ignored_keys: frozenset[str] = frozenset(),
) -> Layout:
    """Return the layout of a Llama-like family; `name` starts the names of its classes in `transformers`.

    `norms` are the names of all norms but the last; `task_heads` are those of Llama unless given.
    """
    return Layout(
        model_type=model_type,
        template=template,
        entries=entries,
        ignored_keys=ignored_keys,
        prefix="model.",
        classes=build_decoder_classes(name),
        task_heads=define_llama_heads(name) if task_heads is None else task_heads,
        skipped_tensors=(r".*rotary_emb\.inv_freq",),
        names={**_LLAMA_NAMES, **norms},
    )
