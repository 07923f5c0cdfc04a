"""One token more for every row, over buffers that never move: on a GPU the whole step is captured once and replayed.

engine = Engine(model, Rows(…), capacity=192)
engine.load(cache, index)             # what the prompts have left in a cache, row by row
engine.advance()                      # model, choice and bookkeeping; nothing waits for the device
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
    """A model, the static cache it decodes with, and the search that chooses its tokens."""

    def __init__(
        self, model: LanguageModel, search: SearchState, capacity: int, *, source: int = 0, compiled: bool = False
    ) -> None:
        self.model, self.search = ref(model), search
        self.cache = model.new_cache(search.tokens.shape[0], capacity, source=source)
        self.lengths = self.cache.lengths
        self.forward_step: Callable[[LanguageModel, Tensor, KVCache], Tensor] = _forward_step
        if compiled:
            self.forward_step = torch.compile(_forward_step, dynamic=False)
        self.graph: torch.cuda.CUDAGraph | None = None

    def load(self, cache: KVCache, index: Tensor) -> None:
        """Take the rows `index` [B] of another cache."""
        mine, other = (*self.cache.layers, *self.cache.cross), (*cache.layers, *cache.cross)
        for to, layer in zip(mine, other, strict=True):
            for store, given in zip(to.store, layer.store, strict=True):
                store[:-1, :, : given.shape[2]] = given.index_select(0, index)
        self.lengths.copy_(cache.lengths.index_select(0, index))
        if self.cache.source_lengths is not None and cache.source_lengths is not None:
            self.cache.source_lengths.copy_(cache.source_lengths.index_select(0, index))

    def advance(self) -> None:
        """Read the tokens chosen last, and choose the next."""
        if self.graph is None:
            self._step()
        else:
            self.graph.replay()

    def capture(self) -> None:
        """Record a step, to be replayed. What the buffers hold is lost: load afterwards."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call, unused-ignore]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP_STEPS):
                self._reset()
                self._step()
            self._reset()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._step()
        self.graph = graph

    def _reset(self) -> None:
        """Positions that exist, whatever was done before."""
        self.lengths.zero_()
        self.search.history_lengths.zero_()
        self.search.count.zero_()
        if self.cache.source_lengths is not None:
            self.cache.source_lengths.fill_(1)

    def _step(self) -> None:
        model = self.model()
        assert model is not None, "an engine lives as long as its model"
        with _disable_autocast_cache():
            logits = self.forward_step(model, self.search.tokens, self.cache)
        self.lengths.copy_(self.cache.lengths)  # which a model's step makes anew
        self.cache.lengths = self.lengths
        rows = self.search.choose(logits)
        if rows is not None:
            for layer in self.cache.layers:  # NOTE: what is read of a source is the same for all beams of a prompt
                for store in layer.store:
                    store[:-1] = store[:-1].index_select(0, rows)


def _disable_autocast_cache() -> AbstractContextManager[Any]:
    """Autocast on a GPU, if it is on, without its cache of cast weights: that is gone before a captured step is."""
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
    compiled: bool,
) -> DecodingEngine:
    """An engine for rows of a kind; on a GPU captured, and kept for the next rows of that kind (one for each model).

    `key` says what the search is. Weights that have moved since make another engine.
    """
    if model.tokens.weight.device.type != "cuda":
        return DecodingEngine(model, build_state(), capacity, source=source, compiled=compiled)
    weights = tuple(tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers()))
    half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    full = (key, capacity, source, compiled, weights, half)
    if model in _ENGINES and _ENGINES[model][0] == full:
        return _ENGINES[model][1]
    release_engine(model)
    engine = DecodingEngine(model, build_state(), capacity, source=source, compiled=compiled)
    try:
        engine.capture()
    except RuntimeError as fault:
        log.warn(f"a step could not be captured, so each is launched anew: {str(fault).splitlines()[0]}")
        engine = DecodingEngine(model, build_state(), capacity, source=source, compiled=compiled)
    _ENGINES[model] = full, engine
    return engine


def release_engine(model: LanguageModel) -> None:
    """Give the memory of a model's engine back."""
    _ENGINES.pop(model, None)
