"""The small blocks, each by hand in a line or two, and their parameters counted."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pretune as pt
from pretune.core.errors import UsageError
from pretune.nn.attention import Attention
from pretune.nn.heads import Head, PairHead, Pooler, PoolingMode, Transform, pool_states
from pretune.nn.layers import ACTIVATIONS, Embed, Factor, FeedForward, LayerNorm, Norm, RMSNorm

X = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))


def random(module: nn.Module) -> Any:
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# Norms


@pytest.mark.parametrize(("scale", "bias"), [(True, True), (True, False), (False, False), (False, True)])
def test_layer_norm(scale: bool, bias: bool) -> None:
    spec = LayerNorm(eps=1e-3, scale=scale, bias=bias)
    module = random(spec.build(width=12))
    expected = (X - X.mean(-1, keepdim=True)) / (X.var(-1, unbiased=False, keepdim=True) + 1e-3).sqrt()
    if scale:
        expected = expected * module.weight + (module.bias if bias else 0)
    close(module(X), expected)
    assert numel(module) == spec.params(width=12) == 12 * (scale + (scale and bias))


def test_rms_norm() -> None:
    spec = RMSNorm(eps=1e-3)
    module = random(spec.build(width=12))
    close(module(X), X / (X.square().mean(-1, keepdim=True) + 1e-3).sqrt() * module.weight)
    assert numel(module) == spec.params(width=12) == 12


# Feed-forward

BY_HAND = {
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "tanh": lambda x: (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1),
    "identity": lambda x: x,
}


def test_activations() -> None:
    assert set(BY_HAND) == set(ACTIVATIONS)
    x = torch.linspace(-4, 4, 33)
    for name, activate in ACTIVATIONS.items():
        close(activate(x), BY_HAND[name](x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("activation", "gated"),
    [("relu", False), ("gelu_tanh", False), ("silu", True), ("gelu", True), ("gelu_tanh", True)],
)
def test_feedforward(activation: Any, gated: bool, bias: bool) -> None:
    """Plain, or SwiGLU and GEGLU: the activation is on the gate, not on the other half."""
    spec = FeedForward(hidden=7, activation=activation, gated=gated, bias=bias)
    module = random(spec.build(width=12))

    def project(layer: Any, x: Tensor) -> Tensor:
        return x @ layer.weight.T + (layer.bias if bias else 0)

    up = project(module.up, X)
    hidden = BY_HAND[activation](project(module.gate, X)) * up if gated else BY_HAND[activation](up)
    close(module(X), project(module.down, hidden))
    assert numel(module) == spec.params(width=12)


# Embeddings

TABLE = torch.randn(5, 6, generator=torch.Generator().manual_seed(4))
SEGMENTS = torch.tensor([0, 1, 2, 0, 1])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("after", ["tokens", "norm"])
def test_factorised_embedding(after: Any, bias: bool) -> None:
    """The projection before positions, segments and norm (OPT) or after them (ALBERT)."""
    spec = Embed(segments=3, scale=True, norm=LayerNorm(), factor=Factor(width=6, bias=bias, input=after))
    module = random(spec.build(width=12))
    inner = spec.get_inner_width(width=12)
    assert (inner, spec.get_table_width(width=12)) == (6 if after == "norm" else 12, 6)
    positions = torch.randn(5, inner)

    def project(x: Tensor, here: bool) -> Tensor:
        return x @ module.project.weight.T + (module.project.bias if bias else 0) if here else x

    x = project(TABLE * math.sqrt(12), after == "tokens")
    x = F.layer_norm(x + positions + module.segments.weight[SEGMENTS], (inner,), module.norm.weight, module.norm.bias)
    x = project(x, after == "norm")
    close(module(TABLE, positions, SEGMENTS), x)
    assert numel(module) == spec.params(width=12)


def test_plain_embedding() -> None:
    module = Embed().build(width=12)
    assert torch.equal(module(X, None, None), X)
    assert (
        Embed().params(width=12) == 0 and Embed().get_inner_width(width=12) == Embed().get_table_width(width=12) == 12
    )


def test_scaled_embedding_scales_tokens_alone() -> None:
    spec = Embed(scale=True, segments=2)
    module = random(spec.build(width=12))
    added = torch.randn(5, 12)
    segments = torch.tensor([0, 1, 1, 0, 1])
    close(module(X, added, segments), X * math.sqrt(12) + added + module.segments.weight[segments])
    close(module(X, None, None), X * math.sqrt(12) + module.segments.weight[0])  # silent: the first segment
    assert numel(module) == spec.params(width=12) == 24


# Heads

HEADS = [
    Head(),
    Head(tied=False),
    Head(bias="learned"),
    Head(bias="fixed", tied=False),
    Head(scale=0.25),
    Head(transform=Transform(bias=False)),
    Head(transform=Transform(activation="gelu", norm=LayerNorm()), bias="learned", scale=0.5),
]


@pytest.mark.parametrize("spec", HEADS, ids=range(len(HEADS)))
def test_vocabulary_head(spec: Head) -> None:
    table = 6 if spec.transform else 12
    module = random(spec.build(vocab=9, width=12, table=table))
    tokens = torch.randn(9, table)
    if spec.bias == "fixed":
        module.bias.copy_(torch.randn(9))
        assert "bias" in dict(module.named_buffers()) and "bias" in module.state_dict()
    x = X * (spec.scale or 1.0)
    if spec.transform is not None:
        dense = module.transform.dense
        x = BY_HAND[spec.transform.activation](x @ dense.weight.T + (dense.bias if spec.transform.bias else 0))
        x = module.transform.norm(x) if spec.transform.norm else x
    expected = x @ (tokens if spec.tied else module.weight).T + (0 if spec.bias is None else module.bias)
    close(module(X, tokens), expected)
    close(module.transform_states(X), x)
    assert numel(module) == spec.params(vocab=9, width=12, table=table)


def test_pooler_and_pair() -> None:
    pooler, pair = random(Pooler().build(width=12)), random(PairHead(classes=3).build(width=12))
    close(pooler(X), torch.tanh(X @ pooler.dense.weight.T + pooler.dense.bias))
    assert numel(pooler) == Pooler().params(width=12)
    assert numel(pair) == PairHead(classes=3).params(width=12) and pair(X).shape == (5, 3)


# Attention, as a spec


@pytest.mark.parametrize("norm", [None, RMSNorm(), LayerNorm(), LayerNorm(bias=False)], ids=repr)
@pytest.mark.parametrize(
    "sizes",
    [{}, {"kv_heads": 2}, {"kv_heads": 1, "bias": False}, {"head_width": 5}, {"head_width": 5, "kv_heads": 2}],
    ids=repr,
)
def test_attention_params(sizes: dict[str, Any], norm: Norm | None) -> None:
    spec = Attention(heads=4, norm=norm, **sizes)
    module = spec.build(width=12)
    assert numel(module) == spec.params(width=12)
    matrices = sum(part.weight.numel() for part in (module.q, module.k, module.v, module.out))
    assert matrices == spec.count_weights(width=12)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"heads": 0}, "heads"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads"),
        ({"heads": 4, "kv_heads": 0}, "kv_heads"),
        ({"heads": 4, "kv_heads": 8}, "kv_heads"),
        ({"heads": 4, "window": 0}, "window"),
    ],
)
def test_attention_refuses(given: dict[str, int], word: str) -> None:
    with pytest.raises(UsageError, match=word) as error:
        Attention(**given)
    assert "\n" not in str(error.value)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(UsageError, match=r"heads.*5.*width.*12"):
        Attention(heads=5).build(width=12)
    assert Attention(heads=5, head_width=3).resolve_shape(width=12) == (5, 5, 3)


@pytest.mark.parametrize("mode", ["mean", "mean_sqrt", "weighted"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_means_of_half_precision_are_exact(mode: PoolingMode, dtype: torch.dtype) -> None:
    """Half precision has no position 257 (bf16), and no sum of 300 times 700 (fp16)."""
    batch = pt.batch([range(700)])
    states = (torch.randn(700, 8, generator=torch.Generator().manual_seed(0)) + 3).mul(40).to(dtype)
    result, reference = (pool_states(part, batch, mode)[:1] for part in (states, states.double()))
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), reference, rtol=1e-5, atol=1e-5)


def test_a_single_segment_embedding_stands_for_all_segments() -> None:
    """RoBERTa has one row; a tokenizer may mark the second text of a pair as segment 1."""
    embed = Embed(segments=1).build(width=8)
    x = torch.randn(4, 8)
    assert torch.equal(embed(x, None, torch.tensor([0, 0, 1, 1])), embed(x, None, None))
