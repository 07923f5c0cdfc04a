"""A generator and a discriminator, pre-trained together (Clark et al., 2020): spec and module.

    pair = add_generator(resolve("electra-small"))  # works for any encoder
    model = build_pair(pair, seed=0)
    model.discriminator  # a `LanguageModel`, to be fine-tuned

Tied, they share the embeddings (token table, positions, segments and embedding norm), but not the projection to their
widths. With disentangled gradients (He et al., 2023) they share the token table only: the discriminator's is the
generator's, without its gradient, plus offsets of its own, so that the two losses do not pull at one table.
"""

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.seed import mix
from pretune.core.types import Batch, Loss
from pretune.models.model import LanguageModel, build_empty
from pretune.models.spec import Model, ModelShape, Params, check_memory, initialise, tie
from pretune.nn.attention_mask import Backend
from pretune.nn.block import RegionalCompile
from pretune.nn.heads import Detector, Head, Transform
from pretune.nn.layers import Factor, OffsetEmbedding
from pretune.nn.stack import Stack, TransformerStack
from pretune.text.tokenizer import Tokenizer

HEAD_WIDTH = 64
"""Head width of the generator, whatever that of the discriminator."""

GENERATOR_FOLDER = "generator"
"""Folder of the generator inside the directory of the discriminator."""


Sharing = Literal["tied", "disentangled", "none"]
"""Embeddings of both models: the same, the generator's plus offsets without its gradient, or separate ones."""


@spec
class Pair:
    """A generator with a vocabulary head and a discriminator with a detector, which share their embeddings."""

    generator: Model
    discriminator: Model
    sharing: Sharing = "tied"

    def __post_init__(self) -> None:
        for name, model in (("generator", self.generator), ("discriminator", self.discriminator)):
            if model.shape != "encoder":
                raise UsageError(f"the {name} must be an encoder, got a model of shape '{model.shape}'")
        if self.generator.head is None or self.discriminator.detector is None:
            raise UsageError("the generator needs a vocabulary head and the discriminator a detector")
        if _get_shared_embedding(self.generator) != _get_shared_embedding(self.discriminator):
            raise UsageError("generator and discriminator must have the same vocabulary, token table and embedding")

    @property
    def shape(self) -> ModelShape:
        """Shape name, as objectives list it."""
        return "generator-discriminator"

    def params(self) -> Params:
        """Return exact parameter counts, shared parameters counted once; the body is both bodies."""
        shared_params = self._count_shared() if self.sharing == "tied" else 0
        generator, discriminator = self.generator.params(), self.discriminator.params()
        return Params(
            body=generator.body + discriminator.body - shared_params,
            body_with_pooler=generator.body_with_pooler + discriminator.body_with_pooler - shared_params,
            total=generator.total + discriminator.total - shared_params,
        )

    def _count_shared(self) -> int:
        vocab, inner, segments, languages, norm, position = _get_shared_embedding(self.generator)
        count: int = vocab * self.generator.table + ((segments or 0) + (languages or 0)) * inner
        count += (norm.params(width=inner) if norm else 0) + (position.params(width=inner, heads=1) if position else 0)
        return count


def add_generator(discriminator: Model, *, multiplier: float = 1 / 4) -> Pair:
    """Return an encoder as the discriminator, with a generator as deep and `multiplier` times as wide.

    An encoder without a detector gets one in place of its other heads. The paper finds 1/4 to 1/2 to work best.
    """
    stack = discriminator.encoder
    if not isinstance(stack, Stack) or discriminator.decoder is not None:
        raise UsageError(f"the discriminator must be an encoder, got a model of shape '{discriminator.shape}'")
    if stack.embed.factor is not None and stack.embed.factor.input != "norm":
        raise UsageError("a generator needs embeddings that are projected after their norm, or not at all")
    if not 0 < multiplier <= 1:
        raise UsageError(f"multiplier must be above 0 and at most 1, got {multiplier}")
    block = stack.blocks[0]
    if discriminator.detector is None:
        detector = Detector(activation=block.feedforward.activation)
        discriminator = replace(
            discriminator, detector=detector, head=None, pooler=None, pair=None, span=None, mask_decoder=None
        )
    width, table = max(1, round(discriminator.width * multiplier)), discriminator.table
    head = Head(bias="learned", transform=Transform(activation="gelu", norm=stack.embed.norm or block.norms.post))
    encoder = _narrow_stack(stack, width, multiplier, table)
    generator = replace(discriminator, width=width, encoder=encoder, head=head, pooler=None, detector=None)
    return Pair(generator=generator, discriminator=discriminator)


def _narrow_stack(stack: Stack, width: int, multiplier: float, table: int) -> Stack:
    """Return the generator's stack: hidden widths scaled, heads of width `HEAD_WIDTH`."""
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
    """Return the parts that must be equal in both models to be shared; positions only if they are embeddings."""
    stack = model.encoder
    assert isinstance(stack, Stack)
    position = stack.position if stack.position and stack.position.mechanism == "input" else None
    embed, inner = stack.embed, stack.embed.get_inner_width(width=model.width)
    return model.vocab, inner, embed.segments, embed.languages, embed.norm, position


class ModelPair(RegionalCompile):
    """Base class of two language models that are trained together; the first child's assets are those of both."""

    spec: Any

    @property
    def models(self) -> list[LanguageModel]:
        """Both models."""
        return [*self.children()]  # type: ignore[list-item]

    @property
    def shape(self) -> ModelShape:
        """Shape name, as objectives list it."""
        shape: ModelShape = self.spec.shape
        return shape

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Tokenizer loaded with the weights, or None."""
        return self.models[0].tokenizer

    @property
    def attention_backend(self) -> Backend | None:
        """Attention backend forced in both models; None: chosen per batch."""
        return self.models[0].attention_backend

    @attention_backend.setter
    def attention_backend(self, backend: Backend | None) -> None:
        for model in self.models:
            model.attention_backend = backend

    def list_compiled_parts(self) -> Iterable[nn.Module]:
        return self.models


class GeneratorDiscriminator(ModelPair):
    """Two language models, `discriminator` and `generator`; the shared modules are children of both."""

    def __init__(self, discriminator: LanguageModel, generator: LanguageModel, sharing: Sharing = "tied") -> None:
        super().__init__()
        self.spec = Pair(generator=generator.spec, discriminator=discriminator.spec, sharing=sharing)
        self.discriminator, self.generator = discriminator, generator
        generator.assets = discriminator.assets
        for owner, name, module in self.list_tied_modules():
            tie(owner, name, module)
        if sharing == "disentangled":
            assert isinstance(generator.tokens, nn.Embedding)
            offset = discriminator.tokens.weight.detach() - generator.tokens.weight.detach()
            discriminator.set_submodule("tokens", OffsetEmbedding(generator.tokens, offset))

    def list_tied_modules(self) -> Iterator[tuple[nn.Module, str, nn.Module]]:
        """Yield the tied modules: owner and attribute in the generator, and the discriminator's module."""
        if self.spec.sharing != "tied":
            return
        target, source = self.generator.encoder, self.discriminator.encoder
        assert isinstance(target, TransformerStack) and isinstance(source, TransformerStack)
        yield self.generator, "tokens", self.discriminator.tokens
        if (
            source.position is not None
            and source.spec.position is not None
            and source.spec.position.mechanism == "input"
        ):
            yield target, "position", source.position
        if source.embed.segments is not None:
            yield target.embed, "segments", source.embed.segments
        if source.embed.languages is not None:
            yield target.embed, "languages", source.embed.languages
        if source.embed.norm is not None:
            yield target.embed, "norm", source.embed.norm

    def get_models_by_folder(self) -> dict[str, LanguageModel]:
        """Return the models by folder; the discriminator is saved in the directory itself.

        With disentangled gradients it is a copy with a token table of its own (`load_discriminator_table` takes it).
        """
        discriminator = self.discriminator
        if isinstance(discriminator.tokens, OffsetEmbedding):
            weight = discriminator.tokens.weight.detach()
            table = nn.Embedding(weight.shape[0], weight.shape[1], _weight=weight)
            discriminator = copy(discriminator)
            discriminator._modules = {**discriminator._modules, "tokens": table}
        return {"": discriminator, GENERATOR_FOLDER: self.generator}

    def load_discriminator_table(self, discriminator: LanguageModel) -> None:
        """Take over the token table of a discriminator of `get_models_by_folder`, after its weights were loaded."""
        if isinstance(self.discriminator.tokens, OffsetEmbedding):
            self.discriminator.tokens.assign(discriminator.tokens.weight.detach())

    def propose(self, batch: Batch, chance: Tensor) -> tuple[Loss, Tensor]:
        """Return the generator's loss at the targets and a sampled token for each; `chance` `[M]` is in [0, 1)."""
        states = self.generator.states(batch)
        return self.generator.loss(states, batch), self.generator.sample(states, batch, chance)

    def detect(self, batch: Batch) -> Tensor:
        """Return the logit that a token was replaced, for every token `[N]`."""
        assert self.discriminator.detector is not None
        out: Tensor = self.discriminator.detector(self.discriminator.states(batch), batch)
        return out

    def forward(self, batch: Batch) -> Tensor:
        """Return the discriminator's logits: `detect`."""
        return self.detect(batch)


def build_pair(spec: Pair, *, seed: int = 0, device: torch.device | str = "cpu") -> GeneratorDiscriminator:
    """Build a randomly initialized pair; the discriminator's weights equal those of `build` with the same seed.

    With disentangled gradients, its token table is the generator's.
    """
    check_memory(spec, device=device)
    pair = GeneratorDiscriminator(build_empty(spec.discriminator), build_empty(spec.generator), spec.sharing)
    pair = pair.to_empty(device=device)
    initialise(pair.generator, spec.generator.init, spec.generator.depth, mix(seed, 1))
    initialise(pair.discriminator, spec.discriminator.init, spec.discriminator.depth, seed)  # NOTE: last: tied weights
    return pair
