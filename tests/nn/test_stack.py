"""A stack of blocks by hand: where the norms stand, what is shared, and in which order layers come."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pretune as pt
from pretune.core import config
from pretune.core.errors import UsageError
from pretune.nn import attention as attention_module
from pretune.nn.attention import Attention, MultiHeadAttention
from pretune.nn.block import Block, Norms
from pretune.nn.layers import Embed, FeedForward, LayerNorm, RMSNorm
from pretune.nn.positions import LearnedEmbedding, Position, RelativeBias, Rotary, rotate
from pretune.nn.stack import OutputFlags, Stack, TransformerStack
from tests.contracts.tiny import tiny

WIDTH = 12
BATCH = pt.batch([[1, 2, 3, 4], [5, 6], [7, 8, 9]], row=7)
PAIR = pt.batch(source=[[1] * 4, [2] * 3], target=[[3] * 2, [4] * 5])


def block(hidden: int = 10, **more: Any) -> Block:
    given = {"attention": Attention(heads=3), "norms": Norms(pre=LayerNorm()), **more}
    return Block(feedforward=FeedForward(hidden=hidden), **given)


def made(spec: Stack) -> TransformerStack:
    """A stack with random weights, norms and biases included."""
    torch.manual_seed(2)
    stack = spec.build(width=WIDTH).eval()
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.5)
    return stack


def rows(batch: pt.Batch) -> Tensor:
    return torch.randn(len(batch.tokens), WIDTH, generator=torch.Generator().manual_seed(1))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


# One block


@pytest.mark.parametrize("slots", [("pre",), ("out",), ("post",), ("pre", "post"), ("pre", "out", "post"), ()])
@torch.no_grad()
def test_norm_slots(slots: tuple[str, ...]) -> None:
    """post(x + out(f(pre(x)))), around the attention, the attention to the source and the feed-forward."""
    norms = Norms(**{slot: RMSNorm() if slot == "out" else LayerNorm() for slot in slots})
    spec = Stack(depth=1, causal=True, blocks=(block(norms=norms, cross=Attention(heads=2)),))
    stack, x, source = made(spec), rows(PAIR), rows(PAIR.source)
    layer = stack[0]
    own, across = (
        stack.build_contexts(PAIR, x.dtype, OutputFlags())[None, None],
        stack.build_cross_context(PAIR, x.dtype, OutputFlags()),
    )

    def around(x: Tensor, f: Any, slot: Any) -> Tensor:
        return slot.post(x + slot.out(f(slot.pre(x))))

    expected = around(x, lambda y: layer.attention(y, own)[0], layer.attention_norm)
    expected = around(expected, lambda y: layer.cross(y, across, source)[0], layer.cross_norm)
    expected = around(expected, layer.feedforward, layer.feedforward_norm)
    close(stack(x, PAIR, source).states, expected)
    assert sum(p.numel() for p in stack.parameters()) == spec.params(width=WIDTH)


@torch.no_grad()
def test_parallel_residual() -> None:
    """Both sublayers read x, each through its own norm, and are added together."""
    spec = Stack(depth=1, causal=True, blocks=(block(parallel=True),))
    stack, x = made(spec), rows(BATCH)
    layer, own = stack[0], stack.build_contexts(BATCH, torch.float32, OutputFlags())[None, None]
    mixed = layer.attention(layer.attention_norm.pre(x), own)[0]
    close(stack(x, BATCH).states, x + mixed + layer.feedforward(layer.feedforward_norm.pre(x)))


@pytest.mark.parametrize(
    "more", [{"cross": Attention(heads=2)}, {"norms": Norms(post=LayerNorm())}], ids=["cross", "post"]
)
def test_parallel_refuses_what_it_would_leave_out(more: dict[str, Any]) -> None:
    """A parallel block has no place for these: they would have weights that are never used."""
    with pytest.raises(UsageError, match="parallel"):
        block(parallel=True, **more)


# Attention by hand


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@torch.no_grad()
def test_attention_by_hand(kv_heads: int) -> None:
    """Clipped, normed over all heads together, turned, scaled; then the output projection."""
    spec = Stack(
        depth=1,
        position=Rotary(theta=50.0),
        blocks=(
            block(attention=Attention(heads=4, kv_heads=kv_heads, head_width=6, clip=0.8, scale=0.4, norm=RMSNorm())),
        ),
    )
    stack = made(spec)
    layer: MultiHeadAttention = stack[0].attention
    batch, x = pt.batch([[1, 2, 3, 4, 5]]), rows(pt.batch([[1] * 5]))
    q, k, v = (part(x).clamp(-0.8, 0.8) for part in (layer.q, layer.k, layer.v))
    turn = stack.position(torch.arange(5))
    q = rotate(layer.q_norm(q).view(5, 4, 6), turn)
    k = rotate(layer.k_norm(k).view(5, kv_heads, 6), turn)
    v = v.view(5, kv_heads, 6)
    heads = [(q[:, h] @ k[:, h * kv_heads // 4].T * 0.4).softmax(-1) @ v[:, h * kv_heads // 4] for h in range(4)]
    actual, _ = layer(x, stack.build_contexts(batch, torch.float32, OutputFlags())[None, None])
    close(actual, layer.out(torch.cat(heads, dim=-1)))


@torch.no_grad()
def test_norms_of_queries_and_keys_leave_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """As autocast has norms on CUDA: in fp32, whatever comes in. The kernels there take no mixture."""
    layer = Attention(heads=3, norm=RMSNorm()).build(width=WIDTH).bfloat16()
    plain = nn.RMSNorm.forward
    monkeypatch.setattr(nn.RMSNorm, "forward", lambda self, x: plain(self.float(), x.float()))
    q, k, v = layer.project(torch.randn(5, WIDTH).bfloat16(), None)
    assert q.dtype == k.dtype == v.dtype == torch.bfloat16


def test_the_source_is_not_turned() -> None:
    """Rotary positions act within a sequence; across, queries and keys meet as they are."""
    spec = Stack(depth=1, causal=True, position=Rotary(theta=3.0), blocks=(block(cross=Attention(heads=3)),))
    stack, source = made(spec), rows(PAIR.source)
    x = rows(PAIR)
    across = stack.build_cross_context(PAIR, x.dtype, OutputFlags())
    assert across.rotation is None and across.bias is None
    layer = stack[0].cross
    actual = PAIR.split(layer(x, across, source)[0])
    for mine, read, (start, end) in zip(actual, PAIR.source.split(source), PAIR.list_spans(), strict=True):
        q, k, v = layer.q(x[start:end]), layer.k(read), layer.v(read)
        heads = [(q[:, h : h + 4] @ k[:, h : h + 4].T * 0.5).softmax(-1) @ v[:, h : h + 4] for h in range(0, WIDTH, 4)]
        close(mine, layer.out(torch.cat(heads, dim=-1)))


@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_many_tokens_are_multiplied_as_one(cross: bool, bias: bool) -> None:
    """The joined product gives what three products give, and steps aside for anything put around a projection."""
    lengths = [90] * 4
    tokens = [[1] * n for n in lengths]
    batch = pt.batch(source=tokens, target=[t[:70] for t in tokens]) if cross else pt.batch(tokens)
    attention = Attention(heads=3, kv_heads=1, bias=bias)
    spec = Stack(depth=1, blocks=(block(attention=attention, cross=attention if cross else None),))
    stack, x = made(spec), rows(batch)
    assert len(x) > attention_module.FUSE_MIN_TOKENS
    source = rows(batch.source) if cross else None
    joined = stack(x, batch, source).states
    calls: list[str] = []
    for layer in (stack[0].attention, *([stack[0].cross] if cross else [])):
        for name in "qkv":
            part = getattr(layer, name)
            part.register_forward_hook(lambda module, given, out, name=name: calls.append(name))
    close(stack(x, batch, source).states, joined)
    assert sorted(calls) == sorted("qkv" * (2 if cross else 1))
    stack[0].attention.v = Doubled(stack[0].attention.v)  # as an adapter would
    assert (stack(x, batch, source).states - joined).abs().max() > 0.1


class Doubled(nn.Module):
    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside
        self.out_features = inside.out_features

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.inside(x)


# Many blocks


@torch.no_grad()
def test_one_layer_many_times() -> None:
    """share=1: one set of weights, `depth` applications."""
    spec = Stack(depth=3, share=1, blocks=(block(),), norm=LayerNorm())
    stack, x = made(spec), rows(BATCH)
    assert [name for name, _ in stack.named_children() if name.isdigit()] == ["0"]
    own = stack.build_contexts(BATCH, torch.float32, OutputFlags())[None, None]
    expected = x
    for _ in range(3):
        expected = stack[0](expected, own)[0]
    close(stack(x, BATCH).states, stack.norm(expected))
    assert sum(p.numel() for p in stack.parameters()) == spec.params(width=WIDTH)
    assert spec.params(width=WIDTH) == replace(spec, depth=1, share=None).params(width=WIDTH)
    assert len(stack(x, BATCH, flags=OutputFlags(hidden=True)).hidden) == 4


@pytest.mark.parametrize(
    ("depth", "share", "size", "order"),
    [
        (4, 2, 1, [0, 0, 1, 1]),
        (5, 2, 1, [0, 0, 0, 1, 1]),
        (6, 3, 1, [0, 0, 1, 1, 2, 2]),
        (3, 3, 1, [0, 1, 2]),
        (3, None, 1, [0, 1, 2]),
        (4, None, 2, [0, 1, 2, 3]),
        (6, 2, 2, [0, 1, 0, 1, 0, 1]),
        (10, 4, 2, [0, 1, 0, 1, 0, 1, 2, 3, 2, 3]),
    ],
)
@torch.no_grad()
def test_groups_of_layers(depth: int, share: int | None, size: int, order: list[int]) -> None:
    spec = Stack(depth=depth, share=share, group_size=size, blocks=(block(),))
    stack, x = made(spec), rows(BATCH)
    assert [layer is stack[i] for layer, i in zip(stack, order, strict=True)] == [True] * depth
    own, expected = stack.build_contexts(BATCH, torch.float32, OutputFlags())[None, None], x
    for i in order:
        expected = stack[i](expected, own)[0]
    close(stack(x, BATCH).states, expected)
    assert sum(p.numel() for p in stack.parameters()) == spec.params(width=WIDTH)


@pytest.mark.parametrize(("depth", "share"), [(5, 2), (6, 3), (3, None)])
def test_groups_must_be_whole(depth: int, share: int | None) -> None:
    with pytest.raises(UsageError, match="multiples of group_size 2"):
        Stack(depth=depth, share=share, group_size=2, blocks=(block(),))


@torch.no_grad()
def test_patterns_are_cycled() -> None:
    """Wide and narrow in turn, and each layer looks through its own window."""
    near = Attention(heads=3, window=1)
    spec = Stack(depth=5, blocks=(block(hidden=10), block(hidden=7, attention=near)))
    stack, x = made(spec), rows(BATCH)
    assert [layer.feedforward.up.out_features for layer in stack] == [10, 7, 10, 7, 10]
    assert sum(p.numel() for p in stack.parameters()) == spec.params(width=WIDTH)
    scopes, expected = stack.build_contexts(BATCH, torch.float32, OutputFlags()), x
    assert set(scopes) == {(None, None), (1, None)}
    for layer, window in zip(stack, (None, 1, None, 1, None), strict=True):
        expected = layer(expected, scopes[window, None])[0]
    close(stack(x, BATCH).states, expected)
    weights = stack(x, BATCH, flags=OutputFlags(attention=True)).attention
    assert (weights[1][0, 0, :4, :4] == torch.eye(4)).all()
    assert (weights[2][0, 0, :4, :4] > 0).all()


@torch.no_grad()
def test_shared_halves() -> None:
    """A decoder over an encoder's weights: the same modules, but its own attention to the source and final norm."""
    spec = Stack(depth=2, blocks=(block(),), norm=LayerNorm(), position=RelativeBias())
    decoding = replace(spec, causal=True, blocks=(replace(spec.blocks[0], cross=Attention(heads=3)),))
    encoder = spec.build(width=WIDTH)
    decoder = decoding.build(width=WIDTH, shared_stack=encoder)
    for mine, other in zip(decoder, encoder, strict=True):
        for name in ("attention", "attention_norm", "feedforward", "feedforward_norm"):
            assert getattr(mine, name) is getattr(other, name)
        assert mine.cross is not None and mine.cross_norm is not other.attention_norm
    assert decoder.norm is not encoder.norm and decoder.position is not encoder.position


@pytest.mark.parametrize(
    "position", [LearnedEmbedding(rows=9, offset=2), Rotary(), RelativeBias(buckets=8), None], ids=repr
)
def test_params(position: Position | None) -> None:
    spec = Stack(
        depth=3,
        position=position,
        embed=Embed(segments=2, norm=LayerNorm()),
        blocks=(block(), block(hidden=5, cross=Attention(heads=2, kv_heads=1))),
        norm=RMSNorm(),
    )
    assert sum(p.numel() for p in spec.build(width=WIDTH).parameters()) == spec.params(width=WIDTH)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"depth": 0}, "depth"),
        ({"depth": 2, "blocks": ()}, "block"),
        ({"depth": 2, "share": 0}, "share"),
        ({"depth": 2, "share": 3}, "share"),
    ],
)
def test_refused(given: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word) as error:
        Stack(**{"blocks": (block(),), **given})
    assert "\n" not in str(error.value)


def test_recomputed_activations_give_the_same_gradients() -> None:
    spec = config.replace(tiny("bert"), {"encoder.blocks.0.dropout": 0.3})
    batch = pt.batch([[5, 6, 7, 8], [9, 10]], labels=[[1, 2, 3, 4], [5, 6]])
    actual = []
    for recompute in (False, True):
        model = pt.build(spec, seed=0).train()
        assert model.encoder is not None
        model.encoder.activation_checkpointing = recompute
        torch.manual_seed(0)
        model.loss(model.states(batch), batch).sum.backward()
        actual.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    assert all(a is b or torch.equal(a, b) for a, b in zip(*actual, strict=True))
