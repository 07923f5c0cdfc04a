"""Training settings, config keys and tensor names of left-to-right decoders (GPT-like and Llama-like)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pretune.models.family import ADAM_LARGE, PaperDefaults
from pretune.models.hf.checks import allow_null, check_size, read_key
from pretune.models.hf.config import ACTIVATIONS, CustomKey, Entry, Key, Layout
from pretune.models.hf.heads import HeadLayout
from pretune.models.hf.weights import FusedPacking, Rule, TransposedPacking, make_rules
from pretune.models.spec import Model


def build_decoder_training(
    *,
    length: int,
    batch_tokens: int,
    lr: float,
    width: int,
    warmup: int,
    tokenizer: tuple[str, str, int],
    schedule: str = "cosine",
    floor: float = 0.1,
    optimizer: Mapping[str, Any] = ADAM_LARGE,
) -> PaperDefaults:
    """Return the settings of causal language modelling on blocks of `length` tokens."""
    return PaperDefaults(
        objective={"kind": "causal"},
        samples="blocks",
        lengths=(length,),
        batch_tokens=batch_tokens,
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


def build_gpt_rules(body: str, norm: str) -> tuple[Rule, ...]:
    """Return the rules of a layer of GPT and GPT-2: matrices stored input first; queries, keys and values fused."""
    ours, theirs = "decoder.{i}", body + "h.{i}"
    return (
        Rule(
            tuple(f"{ours}.attention.{part}.{{p}}" for part in "qkv"),
            f"{theirs}.attn.c_attn.{{p}}",
            FusedPacking(is_transposed=True),
        ),
        Rule(f"{ours}.attention.out.{{p}}", f"{theirs}.attn.c_proj.{{p}}", TransposedPacking()),
        Rule(f"{ours}.feedforward.up.{{p}}", f"{theirs}.mlp.c_fc.{{p}}", TransposedPacking()),
        Rule(f"{ours}.feedforward.down.{{p}}", f"{theirs}.mlp.c_proj.{{p}}", TransposedPacking()),
        Rule(f"{ours}.attention_norm.{norm}.{{p}}", f"{theirs}.ln_1.{{p}}"),
        Rule(f"{ours}.feedforward_norm.{norm}.{{p}}", f"{theirs}.ln_2.{{p}}"),
    )


def read_gpt_width(hf_config: Mapping[str, Any]) -> int:
    """Return the width of a config; the feed-forward width may follow from it."""
    width: int = read_key(hf_config, "n_embd", "hidden_size", check=check_size, default=768)
    return width


GPT_KEYS = (
    Key("n_embd", ("width",), 768, aliases=("hidden_size",)),
    Key("n_layer", ("decoder.depth",), 12, aliases=("num_hidden_layers",)),
    Key("n_head", ("decoder.blocks.*.attention.heads",), 12, aliases=("num_attention_heads",)),
    Key("resid_pdrop", ("decoder.blocks.*.dropout",), 0.1),
    Key("embd_pdrop", ("decoder.embed.dropout",), 0.1),
    Key("attn_pdrop", ("decoder.blocks.*.attention.dropout",), 0.1),
    Key("initializer_range", ("init.std",), 0.02),
)


def build_llama_keys(
    vocab: int = 32000, hidden: int = 11008, kv_heads: int | None = None, context: int = 2048
) -> tuple[Key | CustomKey, ...]:
    """Return the keys that Llama-like decoders share, with the defaults of a family's reference."""
    return (
        Key("vocab_size", ("vocab",), vocab),
        Key("hidden_size", ("width",), 4096),
        Key("intermediate_size", ("decoder.blocks.*.feedforward.hidden",), hidden),
        Key("num_hidden_layers", ("decoder.depth",), 32),
        Key("num_attention_heads", ("decoder.blocks.*.attention.heads",), 32),
        CustomKey(("num_key_value_heads",), partial(_read_kv_heads, kv_heads), _write_kv_heads),
        Key("hidden_act", ("decoder.blocks.*.feedforward.activation",), "silu", {"silu": "silu", **ACTIVATIONS}),
        Key("attention_dropout", ("decoder.blocks.*.attention.dropout",), 0.0),
        Key("initializer_range", ("init.std",), 0.02),
        Key("max_position_embeddings", ("context",), context),
    )


def _read_kv_heads(default: int | None, hf_config: Mapping[str, Any]) -> dict[str, Any]:
    heads = read_key(hf_config, "num_attention_heads", check=check_size, default=32)
    kv_heads = read_key(hf_config, "num_key_value_heads", check=allow_null(check_size), default=default)
    return {"decoder.blocks.*.attention.kv_heads": None if kv_heads in (None, heads) else kv_heads}


def _write_kv_heads(spec: Model) -> dict[str, Any]:
    attention = spec.last_stack.blocks[0].attention
    return {"num_key_value_heads": attention.kv_heads or attention.heads}


def _read_head_width(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    width = read_key(hf_config, "hidden_size", check=check_size, default=4096)
    heads = read_key(hf_config, "num_attention_heads", check=check_size, default=32)
    head_width = read_key(hf_config, "head_dim", check=allow_null(check_size), default=None)
    return {
        "decoder.blocks.*.attention.head_width": None
        if head_width is None or heads * head_width == width
        else head_width
    }


def _write_head_width(spec: Model) -> dict[str, Any]:
    return {"head_dim": spec.last_stack.blocks[0].attention.resolve_shape(width=spec.width)[2]}


HEAD_WIDTH_KEY = CustomKey(("head_dim",), _read_head_width, _write_head_width)
RMS_NORM_KEY = Key("rms_norm_eps", ("decoder.blocks.*.norms.pre.eps", "decoder.norm.eps"), 1e-6)
LLAMA_NAMES = {
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


def build_llama_layout(
    model_type: str,
    name: str,
    *,
    template: Callable[[], Model],
    entries: tuple[Entry, ...],
    names: Mapping[str, str],
    task_heads: Mapping[str, HeadLayout],
) -> Layout:
    """Return the layout of a Llama-like family; `name` starts the names of its classes in `transformers`."""
    return Layout(
        model_type=model_type,
        template=template,
        entries=entries,
        prefix="model.",
        classes=build_decoder_classes(name),
        task_heads=task_heads,
        head="lm_head.weight",
        skipped_tensors=(r".*rotary_emb\.inv_freq",),
        rules=make_rules(names),
    )
