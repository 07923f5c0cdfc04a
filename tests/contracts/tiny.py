"""Tiny models for the laws: every family of the registry shrunk, and a few shapes that no family has yet.

A size whose settings are more than numbers (another head, grouped keys, a shared half) is a case of its own. Weights
are random everywhere: zero biases and unit norms hide mistakes.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import nn

import pretune as pt
from pretune.core import config
from pretune.models.catalog import list_settings, resolve
from pretune.models.families import FAMILIES
from pretune.models.families.shared import Family, Size
from pretune.models.hf.config import get_path
from pretune.models.model import LanguageModel, build
from pretune.models.spec import Model, Uniform
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.heads import Head, Transform
from pretune.nn.layers import Embed, Factor, FeedForward, LayerNorm, PerHead, RMSNorm
from pretune.nn.lstm import LSTM
from pretune.nn.positions import (
    Alibi,
    DistanceEmbedding,
    DistanceTerms,
    LinearScaling,
    RelativeBias,
    Rotary,
    Sinusoidal,
)
from pretune.nn.recurrent_stack import Recurrent
from pretune.nn.stack import Stack

VOCAB = 61
ROOM = 24
"""Positions of the tiny models that have a table of them."""

SMALL = {
    "width": 32,
    "depth": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_width": 10,
    "hidden": 44,
    "vocab": VOCAB,
    "positions": ROOM,
    "table": 12,
    "window": 3,
    "context": ROOM,
    "languages": 3,
    "filters": 64,
}
"""The recipes' settings, small. What a size leaves empty (no groups, no window) stays empty."""

DERIVED = ("hidden",)  # empty means "by rule", not "absent"
INSIDE = {"buckets": 8, "max_distance": 12, "original": 16, "head_width": 10}
"""Numbers that a recipe does not offer, by the last word of their path."""


def tiny(family: str, size: str | None = None) -> Model:
    """A family's size shrunk, with all that is particular about it."""
    entry = FAMILIES.get(family)
    size = size or entry.default
    now = {**_defaults(entry), **entry.sizes[size].settings}
    settings: dict[str, Any] = {
        knob: SMALL[knob]
        for knob in list_settings(entry)
        if knob in SMALL and (now[knob] is not None or knob in DERIVED)
    }
    spec = resolve(f"{family}-{size}")
    for path in config.list_paths(spec):
        last = path.rpartition(".")[2]
        if last in INSIDE and last not in settings and get_path(spec, path) is not None:
            settings[path] = INSIDE[last]
    return resolve(f"{family}-{size}", settings)


def particular(family: str) -> list[str]:
    """The usual size, and one of each kind that differs from it by more than numbers."""
    entry = FAMILIES.get(family)
    shapes = {_shape(entry, entry.sizes[entry.default]): entry.default}
    for name, size in entry.sizes.items():
        shapes.setdefault(_shape(entry, size), name)
    return list(shapes.values())


def _defaults(entry: Family) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(entry.build_spec).parameters.items()}


def _shape(entry: Family, size: Size) -> str:
    """What is left of a size when its numbers are taken out, but for whether they are there."""
    settings = {**_defaults(entry), **size.settings}
    return repr(
        {k: v is not None if k in SMALL and k not in DERIVED else k in DERIVED or v for k, v in settings.items()}
    )


def _made() -> dict[str, Model]:
    """Shapes that no family has yet: patterns of windows, shared layers, one key head, unequal halves."""
    rms, layer = RMSNorm(), LayerNorm()
    thin = FeedForward(hidden=20, activation="quick_gelu")

    def block(**attention: Any) -> Block:
        return Block(attention=Attention(heads=4, **attention), feedforward=thin, norms=Norms(pre=layer))

    return {
        "made-windows": Model(  # far and near layers in turn, one key head for all, ALiBi, clipped and normed
            family="made",
            vocab=VOCAB,
            width=24,
            decoder=Stack(
                depth=4,
                causal=True,
                position=Alibi(steepest=6.0),
                blocks=(
                    block(kv_heads=1, clip=0.6),
                    block(kv_heads=2, window=4, norm=rms),
                    block(kv_heads=1, window=2),
                ),
                norm=rms,
            ),
            head=Head(bias="learned"),
        ),
        "made-distances": Model(  # disentangled, with all that attention has besides
            family="made",
            vocab=VOCAB,
            width=24,
            encoder=Stack(
                depth=2,
                position=DistanceEmbedding(buckets=8, max_distance=12),
                blocks=(
                    block(
                        kv_heads=2,
                        head_width=5,
                        bias=("q", "v"),
                        window=4,
                        norm=PerHead(norm=rms),
                        distances=DistanceTerms(shared=False),
                    ),
                    block(kv_heads=1, bias=False, norm=rms, distances=DistanceTerms()),
                ),
            ),
            head=Head(),
        ),
        "made-shared-layers": Model(  # one layer three times, a narrow table projected after its norm
            family="made",
            vocab=VOCAB,
            width=24,
            encoder=Stack(
                depth=3,
                share=1,
                position=Sinusoidal(),
                embed=Embed(segments=3, scale=True, norm=layer, factor=Factor(width=10)),
                blocks=(block(window=4),),
            ),
            head=Head(bias="learned", transform=Transform(activation="gelu", norm=layer)),
        ),
        "made-shared-decoder": Model(  # two layers in turn, all three norm slots, stretched rotary in one of them
            family="made",
            vocab=VOCAB,
            width=32,
            decoder=Stack(
                depth=4,
                share=2,
                group_size=2,
                causal=True,
                position=Rotary(scaling=LinearScaling(factor=2.0), fraction=0.5),
                blocks=(
                    Block(
                        attention=Attention(heads=4, kv_heads=2),
                        feedforward=FeedForward(hidden=20, gated=True, activation="silu"),
                        norms=Norms(pre=rms, out=layer, post=rms),
                    ),
                    Block(
                        attention=Attention(heads=4, kv_heads=2, rotary=Rotary(theta=30.0)),
                        feedforward=FeedForward(hidden=20, gated=True, activation="silu"),
                        norms=Norms(pre=rms, out=layer, post=rms),
                        attention_norms=Norms(out=rms),
                    ),
                ),
            ),
            head=Head(tied=False, bias="fixed", scale=0.5),
        ),
        "made-recurrent": Model(  # layers of unequal widths, projected, residual, with one and two biases, clipped
            family="made",
            vocab=VOCAB,
            width=20,
            decoder=Recurrent(
                embed=Embed(scale=True, norm=rms, dropout=0.1),
                blocks=(
                    LSTM(hidden=26, dropout=0.1, weight_dropout=0.2),
                    LSTM(hidden=30, projection=26, residual=True, biases=1, cell_clip=3.0, output_clip=3.0),
                    LSTM(hidden=20),
                ),
                token_dropout=0.1,
                input_dropout=0.2,
            ),
            head=Head(bias="learned"),
            init=Uniform(bound=0.2),
        ),
        "made-unequal": Model(  # an encoder and a decoder that have nothing in common but the table
            family="made",
            vocab=VOCAB,
            width=24,
            encoder=Stack(depth=1, position=Rotary(), blocks=(block(window=3),)),
            decoder=Stack(
                depth=3,
                causal=True,
                position=RelativeBias(buckets=8, max_distance=12, both_ways=False),
                blocks=(
                    Block(
                        attention=Attention(heads=6, kv_heads=3, window=5),
                        cross=Attention(heads=4, kv_heads=2, head_width=5, norm=layer),
                        feedforward=thin,
                        norms=Norms(post=layer),
                    ),
                ),
            ),
            head=Head(),
        ),
    }


def spoken(spec: Model) -> Model:
    """A model without a vocabulary head gets one beside what it has, for most laws are about what is said by it."""
    return spec if spec.head is not None else replace(spec, head=Head(transform=Transform(norm=LayerNorm())))


CASES: dict[str, Model] = {
    **{f"{family}-{size}": spoken(tiny(family, size)) for family in FAMILIES for size in particular(family)},
    **_made(),
}
ENCODERS = [name for name, spec in CASES.items() if spec.decoder is None]
DECODERS = [name for name, spec in CASES.items() if spec.encoder is None]
RECURRENT = [name for name, spec in CASES.items() if spec.is_recurrent]
"""Models without attention: laws about masks and attention weights do not apply, they are refused."""
PAIRS = [name for name, spec in CASES.items() if spec.is_encoder_decoder]


@cache
def model_of(name: str) -> LanguageModel:
    """A case's model, in evaluation mode; shared by all tests, so never to be changed."""
    return rough(build(CASES[name])).eval()


def rough(model: LanguageModel, seed: int = 3) -> LanguageModel:
    """Random values everywhere, of a size that makes attention choose and keeps logits near one."""
    generator = torch.Generator().manual_seed(seed)
    norms = {id(p) for m in model.modules() if isinstance(m, nn.LayerNorm | nn.RMSNorm) for p in [m.weight]}
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if id(parameter) in norms:
                parameter.copy_(1 + 0.2 * drawn)
            elif parameter.dim() < 2:
                parameter.copy_(0.1 * drawn)
            else:
                parameter.copy_(drawn / parameter.shape[1] ** 0.5)
        for buffer in model.buffers():
            buffer.copy_(torch.randn(buffer.shape, generator=generator))
    return model


def text(*lengths: int, seed: int = 0) -> list[list[int]]:
    """Random sequences of these lengths."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in lengths]


def take_steps(
    optimizer: torch.optim.Optimizer, compute_loss: Callable[[int], torch.Tensor], count: int
) -> list[float]:
    """Take some steps on the loss of each; return the losses."""
    losses = []
    for step in range(count):
        loss = compute_loss(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def lay(
    spec: Model, sequences: Sequence[list[int]], sources: Sequence[list[int]] | None = None, **more: Any
) -> pt.Batch:
    """A batch for a model: with a source of its own for each sequence where it needs one."""
    if not spec.is_encoder_decoder:
        return pt.batch(sequences, **more)
    return pt.batch(source=sources or sources_of(len(sequences)), target=sequences, **more)


def sources_of(count: int) -> list[list[int]]:
    """Sources of unequal lengths."""
    return text(*((5, 9, 2, 7, 1)[i % 5] for i in range(count)), seed=7)
