"""Prefill of short prompts as a CUDA graph: kernel by kernel, the host launches them more slowly than they run.

A graph has fixed shapes, so prompts are padded at their end, to a multiple of 64 tokens. In a causal decoder no token
sees the padding, and its keys lie beyond the length of the prompt, where those of new tokens replace them.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
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
"""Tokens times parameters up to which the host is slower than the GPU: 20 ms of arithmetic."""
MIN_CALLS = 2
"""Prefills of a shape from which it is captured: a capture takes as long as four of them."""
MAX_GRAPHS = 8
"""Graphs of a model; those of the first shapes that repeat stay, so that changing lengths capture nothing."""


class PaddedPrefill:
    """Prefill of a fixed number of prompts, padded to a fixed length; `capture` makes it a CUDA graph."""

    def __init__(self, model: LanguageModel, rows: int, length: int, *, torch_compile: bool = False) -> None:
        device = model.tokens.weight.device
        self.model, self.rows, self.length, self.torch_compile = ref(model), rows, length, torch_compile
        self.cache = model.new_cache(rows, length)
        self.lengths = torch.full((rows,), length, device=device)
        starts = torch.arange(rows, device=device) * length
        self.batch = Batch(
            tokens=torch.zeros(rows * length, dtype=torch.long, device=device),
            offsets=(torch.arange(rows + 1, device=device) * length).to(torch.int32),
            sequence=torch.arange(rows, device=device).repeat_interleave(length),
            positions=torch.arange(length, device=device).repeat(rows),
            rows=rows,
            one_per_row=True,
            targets=Targets(index=starts.clone(), labels=torch.zeros_like(starts)),
        )
        self._starts, self._logits = starts, torch.empty(0)
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, prompts: Sequence[Sequence[int]]) -> tuple[KVCache, Tensor]:
        """Return the cache, and the logits of the next token; both are valid until the next call."""
        assert self.batch.targets is not None
        rows = torch.zeros(self.rows, self.length, dtype=torch.long)
        for row, prompt in zip(rows, prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt)
        self.batch.tokens.copy_(rows.flatten())
        self.lengths.copy_(torch.tensor([len(prompt) for prompt in prompts]))
        torch.add(self._starts, self.lengths - 1, out=self.batch.targets.index)
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()
        self.cache.lengths = self.lengths
        return self.cache, self._logits

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


class PrefillGraphs:
    """Graphs of one model, by the number and the padded length of the prompts."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self.graphs: dict[tuple[int, int], PaddedPrefill] = {}
        self.calls: Counter[tuple[int, int]] = Counter()
        self._pool: Any = None

    def find(self, model: LanguageModel, rows: int, length: int, *, torch_compile: bool) -> PaddedPrefill | None:
        """Return the graph of a shape; None if it is too rare, or cannot be captured."""
        shape = rows, length
        self.calls[shape] += 1
        if shape not in self.graphs:
            if self.calls[shape] < MIN_CALLS or len(self.graphs) >= MAX_GRAPHS:
                return None
            padded_prefill = PaddedPrefill(model, rows, length, torch_compile=torch_compile)
            try:
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
    graph = None
    if sources is None and not prefix:
        graph = find_prefill_graph(model, prompts, torch_compile=torch_compile)
    if graph is not None:
        return graph(prompts)
    return prefill(model, prompts, sources, prefix=prefix, torch_compile=torch_compile)


def find_prefill_graph(
    model: LanguageModel, prompts: Sequence[Sequence[int]], *, torch_compile: bool
) -> PaddedPrefill | None:
    """Return the graph for prompts of a decoder, captured if their shape was seen before; None if there is none."""
    if model.tokens.weight.device.type != DEVICE:
        return None
    length = choose_length(model, [len(prompt) for prompt in prompts])
    if length is None:
        return None
    key = torch_compile, identify_weights(model)
    graphs: PrefillGraphs | None = PREFILL_GRAPHS.get(model)
    if graphs is None or graphs.key != key:
        graphs = PREFILL_GRAPHS[model] = PrefillGraphs(key)
    return graphs.find(model, len(prompts), length, torch_compile=torch_compile)


def choose_length(model: LanguageModel, lengths: Sequence[int]) -> int | None:
    """Return the padded length of prompts; None if they should not be padded, or the model needs another layout."""
    stack = model.decoder
    if model.spec.is_encoder_decoder or not isinstance(stack, TransformerStack) or not stack.spec.causal:
        return None
    if stack.prefix_length or count_prompt_slots(model) or model.language is not None:
        return None
    limit = get_length_limits(model)[1]
    length = -(-max(lengths) // LENGTH_STEP) * LENGTH_STEP
    if limit is not None and length > limit:
        return None
    tokens = len(lengths) * length
    if length > LENGTH_STEP and sum(lengths) < MIN_FILL * tokens:
        return None
    return length if tokens * model.spec.params().total <= MAX_WORK else None
