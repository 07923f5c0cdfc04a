"""A stack of LSTM layers, in the place of a stack of transformer blocks: it reads every sequence in one direction.

    Recurrent(blocks=(LSTM(hidden=1150), LSTM(hidden=1150), LSTM(hidden=400)))               # AWD-LSTM
    Recurrent(blocks=(LSTM(hidden=4096, projection=512),) * 2)                               # one direction of ELMo

Layers run on torch's LSTM (cuDNN on a GPU). The written-out recurrence, which also clips, runs with
`attention_backend="eager"`, or `exact` of the stack.

Legend: N tokens, B sequences of a cache, W width.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pretune.core.config import Fraction, NonEmpty, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.nn.attention_mask import Backend
from pretune.nn.block import LayerStack
from pretune.nn.cache import KVCache, LayerCache, RecurrentMemory, RecurrentState
from pretune.nn.layers import Embed
from pretune.nn.lstm import LSTM, LSTMLayer, States, StepLayout, reverse_index
from pretune.nn.stack import OutputFlags, StackOutput
from pretune.nn.two_stream import AttentionStack


@spec
class Recurrent:
    """LSTM layers of any sizes; the last has the width of the model. It can replace the `Stack` of a decoder."""

    blocks: Annotated[tuple[LSTM, ...], NonEmpty()]
    embed: Embed = Embed()
    token_dropout: Fraction = 0.0  # of token types: all their occurrences in a batch (Gal and Ghahramani, 2016)
    input_dropout: Fraction = 0.0  # of the embeddings: the same units in all steps of a sequence
    backward: bool = False  # read every sequence from its end
    # Tokens at the end of a sequence that have gradients; earlier ones are read without. None: all.
    gradient_window: Positive[int] | None = None

    # Attributes of `Stack` that it does not have.
    position: ClassVar[None] = None
    causal: ClassVar[bool] = True
    share: ClassVar[None] = None
    norm: ClassVar[None] = None

    directions: ClassVar[int] = 1  # stacks of these layers

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def layers(self) -> list[LSTM]:
        """The block of every layer."""
        return list(self.blocks)

    @property
    def layer_indices(self) -> list[int]:
        """Index into `layers` for each of the `depth` layers."""
        return list(range(self.depth))

    def list_widths(self, *, width: int) -> list[int]:
        """Return the widths of the embeddings and of the output of every layer."""
        return [width, *(block.width for block in self.blocks)]

    def check_width(self, *, width: int) -> None:
        """Raise `UsageError` if the layers do not fit together, or to a model of a width."""
        widths = self.list_widths(width=width)
        if widths[-1] != width:
            raise UsageError(f"the last recurrent layer must have the width of the model, {width}, got {widths[-1]}")
        for i, block in enumerate(self.blocks):
            if block.residual and widths[i] != block.width:
                raise UsageError(
                    f"a residual layer needs equal input and output widths, got {widths[i]} and {block.width}"
                )

    def build(self, *, width: int, vocab: int) -> "RecurrentStack":
        return RecurrentStack(self, width, vocab)

    def count_weights(self, *, width: int) -> list[int]:
        """Return the number of weights of each layer that a token is multiplied with."""
        widths = self.list_widths(width=width)
        return [block.count_weights(width=inputs) for block, inputs in zip(self.blocks, widths, strict=False)]

    def position_params(self, *, width: int) -> int:
        """Return 0: the order of the tokens is that of the steps."""
        return 0

    def params(self, *, width: int) -> int:
        """Return the number of parameters, without the token table."""
        widths = self.list_widths(width=width)
        layers = sum(block.params(width=inputs) for block, inputs in zip(self.blocks, widths, strict=False))
        return self.embed.params(width=width) + layers


AnyStack = AttentionStack | Recurrent


class RecurrentStack(LayerStack[LSTMLayer]):
    """Module of a recurrent stack; `residual_dtype` is that of the layer outputs (None: dtype of the LSTM)."""

    spec: Recurrent

    def __init__(self, spec: Recurrent, width: int, vocab: int) -> None:
        super().__init__()
        self.spec, self.vocab = spec, vocab
        self.embed = spec.embed.build(width=width)
        inputs = spec.list_widths(width=width)
        for i, block in enumerate(spec.blocks):
            self.add_module(str(i), block.build(width=inputs[i]))
        self.exact = False  # run the written-out recurrence, with clipping

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
        """Return the states of token embeddings `[N, W]`; the final states of the layers are written to the cache.

        With a memory every row continues that of the batch before, from the states in it, which it then replaces.
        """
        check_inputs(batch, source, flags)
        if memory is not None:
            memory.check(batch)
            if self.spec.backward or self.spec.gradient_window:
                raise UsageError("only a model that reads from left to right, with all gradients, continues a text")
        x = self._embed_inputs(x, batch)
        layouts, exact = self._lay_out(batch), self.exact or flags.backend == "eager"
        parts = [layout.to_steps(x) for layout in layouts]
        parts = raw_parts = self._drop_units(parts, layouts, self.spec.input_dropout)
        hidden = [x]
        for i, layer in enumerate(self):
            start = None if memory is None else memory.layers[i]
            raw_parts, states = self._run_layer(layer, parts, layouts, exact, start)
            if memory is not None and states is not None:
                memory.write(i, states)
            if cache is not None and states is not None:
                _get_state(cache, i).write_final(states, layouts[-1].index[: layouts[-1].sequences])
            parts = self._drop_units(raw_parts, layouts, layer.spec.dropout)
            if flags.hidden and i + 1 < self.spec.depth:
                hidden.append(_join(parts, layouts))
        out = _join(parts, layouts)
        return StackOutput(
            states=out,
            hidden=(*hidden, out) if flags.hidden else None,
            raw_states=out if raw_parts is parts else _join(raw_parts, layouts),
        )

    def _lay_out(self, batch: Batch) -> tuple[StepLayout, ...]:
        """Return the layout of a batch; in training with a gradient window, that before the window and that of it."""
        window = self.spec.gradient_window
        if window is None or batch.length <= window or not (self.training and torch.is_grad_enabled()):
            layouts: tuple[StepLayout, ...] = (StepLayout.from_batch(batch),)
        else:
            head, tail = StepLayout.split_batch(batch, window)
            layouts = (head, tail) if head.sequences else (tail,)
        if not self.spec.backward:
            return layouts
        index = reverse_index(batch)
        return tuple(replace(layout, index=index.index_select(0, layout.index)) for layout in layouts)

    def _run_layer(
        self,
        layer: LSTMLayer,
        parts: list[Tensor],
        layouts: tuple[StepLayout, ...],
        exact: bool,
        states: States | None = None,
    ) -> tuple[list[Tensor], States | None]:
        """Return the outputs of a layer, with gradients in the last part only, and the final states.

        `states` are those before the first part; None: zeros.
        """
        outputs: list[Tensor] = []
        for steps, layout in zip(parts, layouts, strict=True):
            if not layout.sequences:
                outputs.append(steps.new_zeros(0, layer.width))
                continue
            has_gradient = torch.is_grad_enabled() and layout is layouts[-1]
            with torch.set_grad_enabled(has_gradient):
                if self.activation_checkpointing and has_gradient:
                    output, states = checkpoint(layer, steps, layout, exact, states, use_reentrant=False)
                else:
                    output, states = layer(steps, layout, exact, states)
            outputs.append(output)
        return outputs, states

    def _drop_units(self, parts: list[Tensor], layouts: tuple[StepLayout, ...], p: float) -> list[Tensor]:
        """Drop units in training, the same ones in all parts of a sequence."""
        if not self.training or not p:
            return parts
        mask = layouts[-1].draw_mask(parts[-1], p)
        return [layout.drop_units(steps, p, mask) for steps, layout in zip(parts, layouts, strict=True)]

    def step(self, x: Tensor, cache: KVCache, *, backend: Backend | None = None) -> Tensor:
        """Return the states `[B, W]` of one new token per sequence, and update the states of the layers."""
        x, exact = self.embed(x, None, None), self.exact or backend == "eager"
        for i, layer in enumerate(self):
            state = _get_state(cache, i)
            x, states = layer.step(x, state.read(), exact)
            state.write(states)
        cache.lengths = cache.lengths + 1
        return x

    def new_caches(self, sequences: int, capacity: int, *, cross: bool, like: Tensor) -> list[LayerCache]:
        """Return zero states for every layer; they take the same memory for any capacity."""
        if self.spec.backward:
            raise UsageError("this model reads texts from their end: it cannot continue or generate them")
        shapes = [[(sequences + 1, 1, 1, size) for size in (layer.width, layer.hidden)] for layer in self]
        return [
            RecurrentState(store=(like.new_zeros(output), like.new_zeros(cell)), max_tokens=capacity)
            for output, cell in shapes
        ]

    def new_memory(self, length: int) -> RecurrentMemory:
        """Return an empty memory; the states after the last token depend on all tokens, whatever the length."""
        return RecurrentMemory(self.spec.depth)

    def list_compiled_parts(self) -> Iterable[nn.Module | None]:
        """Return no parts: the layers are calls of a library."""
        return ()

    def _embed_inputs(self, x: Tensor, batch: Batch) -> Tensor:
        if self.training and self.spec.token_dropout:
            mask = F.dropout(x.new_ones(self.vocab), self.spec.token_dropout)
            x = x * mask.index_select(0, batch.tokens)[:, None]
        out: Tensor = self.embed(x, None, batch.segments)
        return out if self.residual_dtype is None else out.to(self.residual_dtype)


def check_inputs(batch: Batch, source: Tensor | None, flags: OutputFlags) -> None:
    """Raise `UsageError` for what only attention can do."""
    if flags.attention:
        raise UsageError("a recurrent model has no attention weights; remove attention=True")
    if flags.backend not in (None, "eager"):
        raise UsageError(
            f"attention_backend '{flags.backend}' does not support recurrent layers; unset it, or use 'eager'"
        )
    if source is not None:
        raise UsageError("a recurrent stack has no cross-attention")
    if batch.prefix is not None or batch.view is not None:
        raise UsageError("a recurrent model reads from left to right: it has no bidirectional prefix or other mask")


def _join(parts: list[Tensor], layouts: tuple[StepLayout, ...]) -> Tensor:
    """Restore the order of the batch; parts have no token in common."""
    placed_parts = [layout.to_batch(steps) for steps, layout in zip(parts, layouts, strict=True)]
    return sum(placed_parts[1:], start=placed_parts[0])


def _get_state(cache: KVCache, layer: int) -> RecurrentState:
    state = cache.layers[layer]
    assert isinstance(state, RecurrentState)
    return state
