"""Mistral (Jiang et al., 2023): Llama with grouped-query attention and a sliding window."""

from dataclasses import replace

from pretune.models.families import llama
from pretune.models.family import ADAM_LARGE, Family, PaperDefaults, Size
from pretune.models.hf.checks import allow_null, check_size
from pretune.models.hf.config import Key, Layout
from pretune.models.hf.heads import define_score_head, define_token_heads
from pretune.models.hf.weights import make_rules
from pretune.models.spec import Model
from pretune.nn.norm import RMSNorm


def build_spec(
    *,
    width: int = 4096,
    depth: int = 32,
    heads: int = 32,
    kv_heads: int | None = 8,
    vocab: int = 32000,
    hidden: int | None = 14336,
    window: int | None = 4096,
) -> Model:
    """Every layer sees `window` tokens back."""
    base = llama.build_spec(
        width=width,
        depth=depth,
        heads=heads,
        kv_heads=kv_heads,
        vocab=vocab,
        hidden=hidden,
        family="mistral",
        norm=RMSNorm(eps=1e-5),
        context=32768,
    )
    assert base.decoder is not None
    block = base.decoder.blocks[0]
    block = replace(block, attention=replace(block.attention, window=window))
    return replace(base, decoder=replace(base.decoder, blocks=(block,)))


mistral = Family(
    build_spec=build_spec,
    shape="decoder",
    default="7b",
    training=PaperDefaults(
        objective={"kind": "causal"},
        samples="blocks",
        lengths=(8192,),
        batch_tokens=4_194_304,
        lr=3e-4,
        width=4096,
        optimizer=ADAM_LARGE,
        schedule={"kind": "cosine", "warmup": 2_000, "floor": 0.1},
        tokenizer=("bpe", "endoftext", 32_000),
    ),
    sizes={"7b": Size({}, 7_241_732_096)},
    layout=Layout(
        model_type="mistral",
        template=build_spec,
        entries=(
            *llama.build_keys(hidden=14336, kv_heads=8, context=131072),
            llama.build_rope_key(),
            llama.HEAD_WIDTH,
            llama.NORM_EPS,
            # NOTE: an explicit null means no window, silence the class default.
            Key("sliding_window", ("decoder.blocks.*.attention.window",), 4096, check=allow_null(check_size)),
        ),
        prefix="model.",
        classes={"MistralForCausalLM": frozenset({"head"}), "MistralModel": frozenset()},
        task_heads={**define_score_head("Mistral"), **define_token_heads("Mistral", tags="score")},
        head="lm_head.weight",
        skipped_tensors=(r".*rotary_emb\.inv_freq",),
        rules=make_rules({**llama.LAYER, **llama.PRE_NORM}),
    ),
)
"""Mistral: Llama with a sliding window and grouped-query attention (Jiang et al., 2023)."""
