"""Recurrent layers of both directions (Peters et al., 2018): a forward and a backward stack that do not see each other.

                 the      cat      sat
    layer 1      -> h1 -> -> h2 -> -> h3        left to right
                 <- k1 <- <- k2 <- <- k3        right to left
    states       [h1 k1]  [h2 k2]  [h3 k3]      concatenated

A bidirectional LSTM of other libraries feeds both directions into the next layer; here layer 2 of a direction reads
layer 1 of the same direction, so that each is a language model. Layers are named by their index, as in other stacks:
`encoder.1.backwards.recurrent.weight`. Legend: N tokens, W width of both directions, W / 2 of one.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.nn.cache import KVCache, RecurrentMemory
from pretune.nn.lstm import LSTMLayer, StepLayout, reverse_index
from pretune.nn.recurrent_stack import Recurrent, RecurrentStack, check_inputs
from pretune.nn.stack import OutputFlags, StackOutput


@spec
class BidirectionalRecurrent(Recurrent):
    """The layers of a `Recurrent` once for each direction, over the same embeddings; states are concatenated."""

    causal: ClassVar[bool] = False
    directions: ClassVar[int] = 2

    def list_widths(self, *, width: int) -> list[int]:
        """Return the widths of the embeddings and of the output of every layer, both directions together."""
        return [width, *(2 * block.width for block in self.blocks)]

    def check_width(self, *, width: int) -> None:
        """Raise `UsageError` if the layers do not fit together, or to a model of a width."""
        if width % 2:
            raise UsageError(f"the width of two directions must be even, got {width}")
        self.get_one_direction().check_width(width=width // 2)

    def get_one_direction(self) -> Recurrent:
        """Return the stack of one direction, of half the width."""
        return Recurrent(
            blocks=self.blocks, embed=self.embed, token_dropout=self.token_dropout, input_dropout=self.input_dropout
        )

    def build(self, *, width: int, vocab: int) -> "BidirectionalRecurrentStack":
        return BidirectionalRecurrentStack(self, width, vocab)

    def count_weights(self, *, width: int) -> list[int]:
        """Return the number of weights of each layer that a token is multiplied with."""
        return [2 * weights for weights in self.get_one_direction().count_weights(width=width // 2)]

    def params(self, *, width: int) -> int:
        """Return the number of parameters, without the token table."""
        half = width // 2
        return 2 * self.get_one_direction().params(width=half) - self.embed.params(width=half)


class BidirectionalLayer(nn.Module):
    """One layer of both directions."""

    def __init__(self, forwards: LSTMLayer, backwards: LSTMLayer) -> None:
        super().__init__()
        self.forwards, self.backwards = forwards, backwards
        self.width, self.hidden = 2 * forwards.width, 2 * forwards.hidden

    def forward(
        self, left: Tensor, right: Tensor, layout: StepLayout, reversed_layout: StepLayout, exact: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the output `[n, W / 2]` of each direction, in the order of its steps."""
        return self.forwards(left, layout, exact)[0], self.backwards(right, reversed_layout, exact)[0]


class BidirectionalRecurrentStack(RecurrentStack):
    """Module of both directions; `get_direction` is one of them as a stack of its own."""

    def __init__(self, spec: BidirectionalRecurrent, width: int, vocab: int) -> None:
        super().__init__(spec.get_one_direction(), width // 2, vocab)
        backwards = RecurrentStack(spec.get_one_direction(), width // 2, vocab)
        for i in range(spec.depth):
            self.add_module(str(i), BidirectionalLayer(super().__getitem__(i), backwards[i]))
        self.spec = spec

    def __getitem__(self, i: int) -> BidirectionalLayer:  # type: ignore[override]
        return self._modules[str(i)]  # type: ignore[return-value]

    def __iter__(self) -> Iterator[BidirectionalLayer]:  # type: ignore[override]
        """Iterate over the layers in the order they are applied."""
        return (self[i] for i in self.spec.layer_indices)

    def get_direction(self, *, backward: bool) -> RecurrentStack:
        """Return the stack of one direction, with the same modules; the backward one takes reversed sequences."""
        assert isinstance(self.spec, BidirectionalRecurrent)
        with torch.device("meta"):
            stack = RecurrentStack(self.spec.get_one_direction(), self.spec.blocks[-1].width, self.vocab)
        stack.embed = self.embed
        for i, layer in enumerate(self):
            stack.add_module(str(i), layer.backwards if backward else layer.forwards)
        stack.residual_dtype, stack.exact = self.residual_dtype, self.exact
        return stack.train(self.training)

    def forward(
        self,
        x: Tensor,
        batch: Batch,
        source: Tensor | None = None,
        *,
        flags: OutputFlags = OutputFlags(),  # noqa: B008 (a frozen value)
        cache: KVCache | None = None,
        memory: RecurrentMemory | None = None,
    ) -> StackOutput:
        """Return the states `[N, W]` of token embeddings `[N, W / 2]`; layer 0 is the embedding twice."""
        check_inputs(batch, source, flags)
        if cache is not None or memory is not None:
            raise UsageError(
                "a model that reads in both directions has no cache or memory; take one of them (`get_direction`)"
            )
        x = self._embed_inputs(x, batch)
        layout = StepLayout.from_batch(batch)
        reversed_layout = replace(layout, index=reverse_index(batch).index_select(0, layout.index))
        layouts = (layout, reversed_layout)
        sides = [part.to_steps(x) for part in layouts]
        if self.training and self.spec.input_dropout:
            sides = [part.drop_units(side, self.spec.input_dropout) for part, side in zip(layouts, sides, strict=True)]
        hidden, exact = [torch.cat((x, x), dim=-1)], self.exact or flags.backend == "eager"
        for layer in self:
            if not len(layout.index):
                sides = [side.new_zeros(0, layer.width // 2) for side in sides]
            elif self.activation_checkpointing and torch.is_grad_enabled():
                sides = [*checkpoint(layer, *sides, *layouts, exact, use_reentrant=False)]
            else:
                sides = [*layer(*sides, *layouts, exact)]
            if self.training and layer.forwards.spec.dropout:
                rate = layer.forwards.spec.dropout
                sides = [part.drop_units(side, rate) for part, side in zip(layouts, sides, strict=True)]
            if flags.hidden:
                hidden.append(_join_directions(sides, layouts))
        states = hidden[-1] if flags.hidden else _join_directions(sides, layouts)
        return StackOutput(states=states, hidden=tuple(hidden) if flags.hidden else None)


def _join_directions(sides: list[Tensor], layouts: tuple[StepLayout, StepLayout]) -> Tensor:
    return torch.cat([layout.to_batch(side) for layout, side in zip(layouts, sides, strict=True)], dim=-1)
