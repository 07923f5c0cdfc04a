"""A generator and a discriminator that are pre-trained together (Clark et al., 2020), as a spec and as a module.

    pair = with_generator(resolve("electra-small"))      # any encoder will do
    model = build_pair(pair, seed=0)
    model.discriminator                                  # what is kept and fine-tuned: a model like any other

They share what turns tokens into vectors: the token table, positions, segments and the norm after them, but not the
projection to their widths.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.seed import mix
from pretune.core.types import Batch, Loss
from pretune.models.init import initialise
from pretune.models.memory import check_memory
from pretune.models.model import LanguageModel, build_empty
from pretune.models.spec import Model, ModelShape, Params
from pretune.models.tying import tie
from pretune.nn.attention_mask import Backend
from pretune.nn.embeddings import Factor
from pretune.nn.heads import Detector, Head, Transform
from pretune.nn.stack import Stack, TransformerStack

HEAD_WIDTH = 64
"""Of the generator, whatever the discriminator's."""

GENERATOR_FOLDER = "generator"
"""Where the generator lies in a directory that is the discriminator's."""


@spec
class Pair:
    """A generator with a vocabulary head and a discriminator with a detector, over one embedding."""

    generator: Model
    discriminator: Model

    def __post_init__(self) -> None:
        for name, model in (("generator", self.generator), ("discriminator", self.discriminator)):
            if model.shape != "encoder":
                raise UsageError(f"the {name} of a pair must be an encoder, found a model of the shape '{model.shape}'")
        if self.generator.head is None or self.discriminator.detector is None:
            raise UsageError("a pair needs a generator with a vocabulary head and a discriminator with a detector")
        if _get_shared_embedding(self.generator) != _get_shared_embedding(self.discriminator):
            raise UsageError("generator and discriminator must have the same vocabulary, token table and embedding")

    @property
    def shape(self) -> ModelShape:
        """The word that objectives have for it."""
        return "generator-discriminator"

    def params(self) -> Params:
        """Exact parameter counts, what they share counted once; the body is both bodies."""
        vocab, inner, segments, norm, position = _get_shared_embedding(self.generator)
        twice = vocab * self.generator.table + (segments or 0) * inner
        twice += (norm.params(width=inner) if norm else 0) + (position.params(width=inner, heads=1) if position else 0)
        one, other = self.generator.params(), self.discriminator.params()
        return Params(
            body=one.body + other.body - twice,
            body_with_pooler=one.body_with_pooler + other.body_with_pooler - twice,
            total=one.total + other.total - twice,
        )


def add_generator(discriminator: Model, *, multiplier: float = 1 / 4) -> Pair:
    """An encoder as a discriminator, and a generator as deep and `multiplier` times as wide in every layer.

    Where the encoder has no detector it gets one in place of its other heads. The paper finds 1/4 to 1/2 to work best.
    """
    stack = discriminator.encoder
    if not isinstance(stack, Stack) or discriminator.decoder is not None:
        raise UsageError(f"a generator goes with an encoder, found a model of the shape '{discriminator.shape}'")
    if stack.embed.factor is not None and stack.embed.factor.after != "norm":
        raise UsageError("a generator needs an embedding that is projected after its norm, or not at all")
    if not 0 < multiplier <= 1:
        raise UsageError(f"multiplier {multiplier} must be above 0 and at most 1: how wide the generator is")
    block = stack.blocks[0]
    if discriminator.detector is None:
        detector = Detector(activation=block.feedforward.activation)
        discriminator = replace(discriminator, detector=detector, head=None, pooler=None, pair=None, span=None)
    width, table = max(1, round(discriminator.width * multiplier)), discriminator.table
    head = Head(bias="learned", transform=Transform(activation="gelu", norm=stack.embed.norm or block.norms.post))
    return Pair(
        generator=replace(
            discriminator,
            width=width,
            encoder=_narrow_stack(stack, width, multiplier, table),
            head=head,
            pooler=None,
            detector=None,
        ),
        discriminator=discriminator,
    )


def _narrow_stack(stack: Stack, width: int, multiplier: float, table: int) -> Stack:
    """The stack of a generator: hidden layers scaled, heads of the usual width."""
    heads = max(1, width // HEAD_WIDTH)
    blocks = tuple(
        replace(
            block,
            attention=replace(block.attention, heads=heads, kv_heads=None, head_width=None),
            feedforward=replace(block.feedforward, hidden=max(1, round(block.feedforward.hidden * multiplier))),
        )
        for block in stack.blocks
    )
    factor = None if table == width else Factor(width=table)
    return replace(stack, blocks=blocks, embed=replace(stack.embed, factor=factor))


def _get_shared_embedding(model: Model) -> tuple[Any, ...]:
    """What two models must have alike to share their embeddings; positions only where they belong to them."""
    stack = model.encoder
    assert isinstance(stack, Stack)
    position = stack.position if stack.position and stack.position.mechanism == "input" else None
    return model.vocab, stack.embed.get_inner_width(width=model.width), stack.embed.segments, stack.embed.norm, position


class GeneratorDiscriminator(nn.Module):
    """Its children `discriminator` and `generator` are models like any other; the shared modules are in both."""

    def __init__(self, discriminator: LanguageModel, generator: LanguageModel) -> None:
        super().__init__()
        self.spec = Pair(generator=generator.spec, discriminator=discriminator.spec)
        self.discriminator, self.generator = discriminator, generator
        generator.assets = discriminator.assets
        for owner, name, module in self.list_tied_modules():
            tie(owner, name, module)

    def list_tied_modules(self) -> Iterator[tuple[nn.Module, str, nn.Module]]:
        """What is shared: an owner in the generator, the name there, and the discriminator's module."""
        mine, its = self.generator.encoder, self.discriminator.encoder
        assert isinstance(mine, TransformerStack) and isinstance(its, TransformerStack)
        yield self.generator, "tokens", self.discriminator.tokens
        if its.position is not None and its.spec.position is not None and its.spec.position.mechanism == "input":
            yield mine, "position", its.position
        if its.embed.segments is not None:
            yield mine.embed, "segments", its.embed.segments
        if its.embed.norm is not None:
            yield mine.embed, "norm", its.embed.norm

    @property
    def shape(self) -> ModelShape:
        """The word that objectives have for it."""
        return self.spec.shape

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that came with the weights, or None."""
        return self.discriminator.tokenizer

    @property
    def attention_backend(self) -> Backend | None:
        """The backend that is forced in both, if any."""
        return self.discriminator.attention_backend

    @attention_backend.setter
    def attention_backend(self, backend: Backend | None) -> None:
        self.discriminator.attention_backend = self.generator.attention_backend = backend

    def get_models_by_folder(self) -> dict[str, LanguageModel]:
        """What is saved, by the folder it lies in: the discriminator's is the directory itself."""
        return {"": self.discriminator, GENERATOR_FOLDER: self.generator}

    def propose(self, batch: Batch, chance: Tensor) -> tuple[Loss, Tensor]:
        """The generator's loss at the targets, and a token it draws for each `[M]` by numbers from 0 to 1 `[M]`."""
        states = self.generator.states(batch)
        return self.generator.loss(states, batch), self.generator.sample(states, batch, chance)

    def detect(self, batch: Batch) -> Tensor:
        """For every token `[N]` the logit that it was replaced."""
        assert self.discriminator.detector is not None
        out: Tensor = self.discriminator.detector(self.discriminator.states(batch))
        return out

    def forward(self, batch: Batch) -> Tensor:
        """What the discriminator says of a batch as it is: `detect`."""
        return self.detect(batch)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile both, block by block."""
        self.discriminator.compile(*args, **options)
        self.generator.compile(*args, **options)


def build_pair(spec: Pair, *, seed: int = 0, device: torch.device | str = "cpu") -> GeneratorDiscriminator:
    """A new pair; its discriminator has the weights it would have alone."""
    check_memory(spec, device=device)
    pair = GeneratorDiscriminator(build_empty(spec.discriminator), build_empty(spec.generator)).to_empty(device=device)
    initialise(pair.generator, spec.generator.init, spec.generator.depth, mix(seed, 1))
    initialise(pair.discriminator, spec.discriminator.init, spec.discriminator.depth, seed)  # NOTE: shared ones as well
    return pair
