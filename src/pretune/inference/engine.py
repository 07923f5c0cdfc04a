"""Decoding step with a static cache; on a GPU it is captured as a CUDA graph once and replayed.

engine = DecodingEngine(model, DecodingState(…), capacity=192)
engine.load(cache, index)             # rows of a prefilled cache
engine.advance()                      # forward, choice of tokens and bookkeeping; no synchronization
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from pretune.core import log
from pretune.inference.beam import BeamSearchState
from pretune.inference.decoding_state import DecodingState
from pretune.models.model import LanguageModel
from pretune.nn.cache import KVCache

SearchState = DecodingState | BeamSearchState

WARMUP_STEPS = 3
"""Steps before a capture, in which libraries choose their kernels."""


class DecodingEngine:
    """A model, its static cache, and the search state that chooses tokens."""

    def __init__(
        self, model: LanguageModel, search: SearchState, capacity: int, *, source: int = 0, torch_compile: bool = False
    ) -> None:
        self.model, self.search = ref(model), search
        self.cache = model.new_cache(search.tokens.shape[0], capacity, source=source)
        self.lengths = self.cache.lengths
        self.forward_step: Callable[[LanguageModel, Tensor, KVCache], Tensor] = _forward_step
        if torch_compile:
            self.forward_step = torch.compile(_forward_step, dynamic=False)
        self.graph: torch.cuda.CUDAGraph | None = None

    def load(self, cache: KVCache, index: Tensor) -> None:
        """Copy the rows `index` [B] of another cache."""
        targets, sources = (*self.cache.layers, *self.cache.cross), (*cache.layers, *cache.cross)
        for target, layer in zip(targets, sources, strict=True):
            for store, values in zip(target.store, layer.store, strict=True):
                store[:-1, :, : values.shape[2]] = values.index_select(0, index)
        self.lengths.copy_(cache.lengths.index_select(0, index))
        if self.cache.source_lengths is not None and cache.source_lengths is not None:
            self.cache.source_lengths.copy_(cache.source_lengths.index_select(0, index))

    def advance(self) -> None:
        """Run the model on the last tokens, and choose the next ones."""
        if self.graph is None:
            self._step()
        else:
            self.graph.replay()

    def capture(self) -> None:
        """Capture a step. The content of the buffers is lost: load afterwards."""
        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call, unused-ignore]
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(WARMUP_STEPS):
                self._reset()
                self._step()
            self._reset()
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._step()
        self.graph = graph

    def _reset(self) -> None:
        """Reset to valid positions, regardless of the previous state."""
        self.lengths.zero_()
        self.search.history_lengths.zero_()
        self.search.count.zero_()
        if self.cache.source_lengths is not None:
            self.cache.source_lengths.fill_(1)

    def _step(self) -> None:
        model = self.model()
        assert model is not None, "the model of an engine must outlive it"
        with _disable_autocast_cache():
            logits = self.forward_step(model, self.search.tokens, self.cache)
        self.lengths.copy_(self.cache.lengths)  # a step of the model creates a new tensor
        self.cache.lengths = self.lengths
        rows = self.search.choose(logits)
        if rows is not None:
            for layer in self.cache.layers:  # NOTE: cross-attention caches are the same for all beams of a prompt
                for store in layer.store:
                    store[:-1] = store[:-1].index_select(0, rows)


def _disable_autocast_cache() -> AbstractContextManager[Any]:
    """Disable autocast's weight cache if autocast is on: it is freed before a captured step is replayed."""
    if not torch.is_autocast_enabled("cuda"):
        return nullcontext()
    return torch.autocast("cuda", torch.get_autocast_dtype("cuda"), cache_enabled=False)


def _forward_step(model: LanguageModel, tokens: Tensor, cache: KVCache) -> Tensor:
    return model.step(tokens, cache)


_ENGINES: "WeakKeyDictionary[LanguageModel, tuple[Any, DecodingEngine]]" = WeakKeyDictionary()


def get_engine(
    model: LanguageModel,
    build_state: Callable[[], SearchState],
    key: Any,
    capacity: int,
    *,
    source: int,
    torch_compile: bool,
) -> DecodingEngine:
    """Return an engine; on a GPU it is captured and cached for the next call with the same key (one per model).

    `key` identifies the search. Weights that have moved since need another engine.
    """
    if model.tokens.weight.device.type != "cuda":
        return DecodingEngine(model, build_state(), capacity, source=source, torch_compile=torch_compile)
    weights = tuple(tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers()))
    autocast_dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    engine_key = (key, capacity, source, torch_compile, weights, autocast_dtype)
    if model in _ENGINES and _ENGINES[model][0] == engine_key:
        return _ENGINES[model][1]
    release_engine(model)
    engine = DecodingEngine(model, build_state(), capacity, source=source, torch_compile=torch_compile)
    try:
        engine.capture()
    except RuntimeError as error:
        log.warn(f"CUDA graph capture failed, steps run eagerly: {str(error).splitlines()[0]}")
        engine = DecodingEngine(model, build_state(), capacity, source=source, torch_compile=torch_compile)
    _ENGINES[model] = engine_key, engine
    return engine


def release_engine(model: LanguageModel) -> None:
    """Free the memory of a model's engine."""
    _ENGINES.pop(model, None)
