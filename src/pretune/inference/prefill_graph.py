"""Prefill of short prompts as a CUDA graph: kernel by kernel, the host launches them more slowly than they run.

A graph has fixed shapes, so prompts and sources are padded at their end, to a multiple of 64 tokens. In a causal
decoder no token sees the padding, and its keys lie beyond the length of the prompt, where those of new tokens replace
them. The padding of a source is masked.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from pretune.core import log
from pretune.core.types import Batch, Targets
from pretune.inference.engine import PREFILL_GRAPHS, capture_graph, disable_autocast_cache, identify_weights
from pretune.inference.prompts import compile_layers, count_prompt_slots, get_length_limits, prefill
from pretune.models.model import LanguageModel
from pretune.nn.cache import KVCache
from pretune.nn.stack import TransformerStack

DEVICE = "cuda"  # where there are graphs
LENGTH_STEP = 64
MIN_FILL = 0.5
"""Least share of tokens that are not padding, in prompts longer than one step."""
MAX_WORK = 4e12
"""Tokens times parameters up to which the host is slower than the GPU: 20 ms at 400 TFLOP/s."""
MAX_TOKENS = 2048
"""Tokens of a graph, padding included: each keeps a cache of them."""
MIN_CALLS, MIN_COMPILED_CALLS = 8, 2
"""Prefills of a shape from which it is captured: a capture takes as long as several of them, compiling far longer."""
MAX_GRAPHS = 8
"""Graphs of a model; those of the first shapes that repeat stay, so that changing lengths capture nothing."""


class Shape(NamedTuple):
    """Shape of padded prompts: their number, and the tokens of each; of an encoder-decoder, also of each source."""

    rows: int
    length: int
    source_length: int = 0

    @property
    def tokens(self) -> int:
        """All tokens, padding included."""
        return self.rows * (self.length + self.source_length)


class PaddedPrefill:
    """Prefill of padded prompts of one shape; `capture` makes it a CUDA graph."""

    def __init__(self, model: LanguageModel, shape: Shape, *, torch_compile: bool = False) -> None:
        self.model, self.shape, self.torch_compile = ref(model), shape, torch_compile
        self.cache = model.new_cache(shape.rows, shape.length, source=shape.source_length)
        any_tokens = [[0]] * shape.rows
        batch = self._lay_out(any_tokens, any_tokens if shape.source_length else None)
        self.batch = batch.to(model.tokens.weight.device)
        self.lengths = torch.ones_like(self.cache.lengths)
        self._logits = torch.empty(0)
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(
        self, prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None = None
    ) -> tuple[KVCache, Tensor]:
        """Return the cache, and the logits of the next token; both are valid until the next call."""
        values = _list_tensors(self._lay_out(prompts, sources))
        for target, value in zip(_list_tensors(self.batch), values, strict=True):
            target.copy_(value)
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()
        if sources is None:  # those of the batch have the padding
            self.lengths.copy_(torch.tensor([len(prompt) for prompt in prompts]))
            self.cache.lengths = self.lengths
        return self.cache, self._logits

    def _lay_out(self, prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None) -> Batch:
        """Return the prompts as rows: padded for a decoder, followed by filler in an encoder-decoder."""
        length, ends = self.shape.length, torch.tensor([len(prompt) for prompt in prompts])
        targets = Targets(index=torch.arange(len(prompts)) * length + ends - 1, labels=torch.zeros_like(ends))
        if sources is None:
            padded_prompts = [[*prompt, *[0] * (length - len(prompt))] for prompt in prompts]
            return replace(Batch.from_sequences(padded_prompts), targets=targets)
        source = Batch.from_sequences(sources, length=self.shape.source_length)
        batch = Batch.from_sequences(prompts, length=length)
        return replace(batch, targets=targets, one_per_row=False, source=replace(source, one_per_row=False))

    def capture(self, pool: Any = None) -> Any:
        """Capture the prefill, in the memory of other graphs if given; returns the handle of its memory."""
        self._graph = graph = capture_graph(self._run, pool=pool)
        return graph.pool()

    def _run(self) -> None:
        model = self.model()
        assert model is not None, "the model of a graph must outlive it"
        with disable_autocast_cache(), compile_layers(model) if self.torch_compile else nullcontext():
            logits = model(self.batch, cache=self.cache).logits
        assert logits is not None
        self._logits = logits


def _list_tensors(batch: Batch) -> list[Tensor]:
    """Return the tensors of a batch that depend on its sequences."""
    assert batch.targets is not None or batch.source is None
    tensors = [batch.tokens, batch.offsets, batch.sequence, batch.positions]
    tensors += [] if batch.targets is None else [batch.targets.index]
    return tensors if batch.source is None else [*tensors, *_list_tensors(batch.source)]


class PrefillGraphs:
    """Graphs of one model, by the shape of the padded prompts."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self.graphs: dict[Shape, PaddedPrefill] = {}
        self.calls: Counter[Shape] = Counter()
        self._pool: Any = None

    def find(self, model: LanguageModel, shape: Shape, *, torch_compile: bool) -> PaddedPrefill | None:
        """Return the graph of a shape; None if it is too rare, or cannot be captured."""
        self.calls[shape] += 1
        if shape not in self.graphs:
            min_calls = MIN_COMPILED_CALLS if torch_compile else MIN_CALLS
            if self.calls[shape] < min_calls or len(self.graphs) >= MAX_GRAPHS:
                return None
            try:
                padded_prefill = PaddedPrefill(model, shape, torch_compile=torch_compile)
                self._pool = padded_prefill.capture(self._pool)
            except RuntimeError as error:
                log.warn(f"CUDA graph capture failed, prefills run eagerly: {str(error).splitlines()[0]}")
                self.calls[shape] = -(2**30)
                return None
            self.graphs[shape] = padded_prefill
        return self.graphs[shape]


def run_prefill(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None,
    *,
    prefix: bool = False,
    torch_compile: bool = False,
) -> tuple[KVCache, Tensor]:
    """Return what `prefill` returns, from a graph if there is one: then valid until the next call for this model."""
    graph = None if prefix else find_prefill_graph(model, prompts, sources, torch_compile=torch_compile)
    if graph is not None:
        return graph(prompts, sources)
    return prefill(model, prompts, sources, prefix=prefix, torch_compile=torch_compile)


def find_prefill_graph(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None = None,
    *,
    torch_compile: bool = False,
) -> PaddedPrefill | None:
    """Return the graph for prompts, captured if their shape was seen before; None if there is none."""
    if model.tokens.weight.device.type != DEVICE:
        return None
    shape = choose_shape(model, [*map(len, prompts)], None if sources is None else [*map(len, sources)])
    if shape is None:
        return None
    key = torch_compile, identify_weights(model)
    graphs: PrefillGraphs | None = PREFILL_GRAPHS.get(model)
    if graphs is None or graphs.key != key:
        graphs = PREFILL_GRAPHS[model] = PrefillGraphs(key)
    return graphs.find(model, shape, torch_compile=torch_compile)


def choose_shape(
    model: LanguageModel, lengths: Sequence[int], source_lengths: Sequence[int] | None = None
) -> Shape | None:
    """Return the shape of padded prompts; None if they should not be padded, or the model needs another layout."""
    stacks = [stack for stack in (model.encoder, model.decoder) if stack is not None]
    if not all(isinstance(stack, TransformerStack) and not stack.prefix_length for stack in stacks):
        return None
    if count_prompt_slots(model) or model.language is not None:
        return None
    source_limit, limit = get_length_limits(model)
    if source_lengths is None:
        if not stacks[-1].spec.causal:
            return None
        length = _round_up(lengths, limit)
        shape = None if length is None else Shape(len(lengths), length)
    else:  # the prompt of its decoder is short: a token that starts it
        source_length = _round_up(source_lengths, source_limit)
        shape = None if source_length is None else Shape(len(lengths), max(lengths), source_length)
    if shape is None or shape.tokens > MAX_TOKENS or shape.tokens * model.spec.params().total > MAX_WORK:
        return None
    return shape


def _round_up(lengths: Sequence[int], limit: int | None) -> int | None:
    """Return the padded length; None if it is beyond the limit, or most of it would be padding."""
    length = -(-max(lengths) // LENGTH_STEP) * LENGTH_STEP
    if limit is not None and length > limit:
        return None
    return length if length == LENGTH_STEP or sum(lengths) >= MIN_FILL * len(lengths) * length else None
