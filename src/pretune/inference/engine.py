"""Decoding step with a static cache; on a GPU it is captured as a CUDA graph once and replayed.

engine = DecodingEngine(model, DecodingState(…), capacity=192)
engine.load(cache, index)             # rows of a prefilled cache
engine.advance()                      # forward, choice of tokens and bookkeeping; no synchronization

Beam search has the same results as that of `transformers`.
Legend: P prompts, n beams, K candidates (2 n or more, so that n remain when some end), N new tokens at most, V words.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from pretune.core import log
from pretune.core.errors import UsageError
from pretune.inference.decoding_state import (
    DecodingState,
    GeneratedTokens,
    SearchShape,
    SearchState,
    find_eos,
    strip_eos,
)
from pretune.inference.generation_config import BeamSearch
from pretune.inference.prompts import count_prompt_slots
from pretune.inference.text_model import list_modules
from pretune.models.model import LanguageModel
from pretune.nn.block import raise_graph_limit
from pretune.nn.cache import KVCache

EXCLUDED_SCORE = -1.0e9
"""Score, or summand of a score, that excludes a beam."""


class BeamSearchState(SearchState):
    """Running texts of each prompt, best first, and the best finished ones."""

    def __init__(self, shape: SearchShape, device: torch.device) -> None:
        super().__init__(shape, device)
        assert isinstance(shape.decoding.search, BeamSearch)
        self.search, prompts, max_new_tokens = shape.decoding.search, shape.prompts, shape.decoding.max_new_tokens
        beams = self.search.beams

        def allocate(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.scores = allocate(prompts, beams, dtype=torch.float32)
        self.texts = allocate(prompts, beams, max_new_tokens)
        self.best_scores = allocate(prompts, beams, dtype=torch.float32)
        self.best_texts = allocate(prompts, beams, max_new_tokens)
        self.best_lengths = allocate(prompts, beams)
        self.is_complete = allocate(prompts, beams, dtype=torch.bool)
        self.is_open = allocate(prompts, 1, dtype=torch.bool)  # a running text may still become one of the best
        lengths = torch.arange(max_new_tokens + 1, dtype=torch.float64).clamp(min=1) ** self.search.length_penalty
        self.divisors = lengths.float().to(device)
        self.row_offsets = (torch.arange(prompts, device=device) * beams)[:, None]

    def load(self, prompts: Sequence[Sequence[int]], requests: Sequence[int], seed: int) -> None:
        """Start with prompts: of the equal beams only the first may continue. No randomness is used."""
        super().load(prompts, requests, seed)
        for part in (self.texts, self.best_texts, self.best_lengths, self.is_complete):
            part.zero_()
        self.scores.fill_(EXCLUDED_SCORE)
        self.scores[:, 0] = 0.0
        self.best_scores.fill_(EXCLUDED_SCORE)
        self.is_open.fill_(True)

    def choose(self, logits: Tensor) -> Tensor:
        prompts, size = self.scores.shape
        self.is_finite.logical_and_(torch.isfinite(logits).all())
        logprobs = self._adjust(logits.float().log_softmax(-1))
        vocab = logprobs.shape[-1]
        total = (logprobs.view(prompts, size, vocab) + self.scores[:, :, None]).flatten(1)
        candidates = max(2, 1 + len(self.generation_tokens.eos)) * size
        if candidates > total.shape[1]:
            raise UsageError(f"too many beams for a vocabulary of {vocab}: {size}")
        top, index = total.topk(candidates)
        parent, token = index // vocab, index % vocab  # [P, K]
        texts = _gather_rows(self.texts, parent).scatter(
            2, self.count.expand(prompts, candidates, 1), token[:, :, None]
        )
        is_last = self.count + 1 >= self.decoding.max_new_tokens
        is_final = find_eos(token, self.generation_tokens.eos) | is_last
        self._store_complete(top, texts, is_final)
        scores, indices = (top + is_final * EXCLUDED_SCORE).topk(size)
        self.scores.copy_(scores)
        self.texts.copy_(_gather_rows(texts, indices))
        rows = (parent.gather(1, indices) + self.row_offsets).flatten()
        self.history.copy_(self.history.index_select(0, rows))
        self._append(token.gather(1, indices).flatten())
        self._close_prompts()
        return rows

    def _store_complete(self, candidate_scores: Tensor, texts: Tensor, is_final: Tensor) -> None:
        """Store newly finished texts that are among the first n candidates and better than the stored ones."""
        size = self.scores.shape[1]
        is_new = is_final & (torch.arange(candidate_scores.shape[1], device=candidate_scores.device) < size)
        value = candidate_scores / self.divisors.gather(0, (self.count + 1)[None])
        if self.search.early_stopping is True:
            value = value + self.is_complete.all(-1, keepdim=True) * EXCLUDED_SCORE
        value = value + ~self.is_open * EXCLUDED_SCORE + ~is_new * EXCLUDED_SCORE
        scores, indices = torch.cat((self.best_scores, value), 1).topk(size)
        lengths = torch.cat((self.best_lengths, (self.count + 1).expand_as(candidate_scores)), 1)
        self.best_texts.copy_(_gather_rows(torch.cat((self.best_texts, texts), 1), indices))
        self.best_lengths.copy_(lengths.gather(1, indices))
        self.is_complete.copy_(torch.cat((self.is_complete, is_new), 1).gather(1, indices))
        self.best_scores.copy_(scores)

    def _close_prompts(self) -> None:
        """Close prompts whose best running text cannot beat the finished ones."""
        uses_max_length = self.search.early_stopping == "never" and self.search.length_penalty > 0
        length = torch.full_like(self.count, self.decoding.max_new_tokens) if uses_max_length else self.count
        best_possible = self.scores[:, :1] / self.divisors.gather(0, length[None])
        worst = torch.where(self.is_complete, self.best_scores.amin(1, keepdim=True), EXCLUDED_SCORE)
        self.is_open.logical_and_((best_possible > worst).any(1, keepdim=True))

    def is_finished(self) -> bool:
        is_closed = ~self.is_open
        if self.search.early_stopping is True:
            is_closed = is_closed | self.is_complete.all(-1, keepdim=True)
        return bool(is_closed.all())

    def collect_results(self) -> list[list[GeneratedTokens]]:
        results = []
        parts = (self.best_texts.tolist(), self.best_lengths.tolist(), self.best_scores.tolist())
        for texts, lengths, scores in zip(*parts, strict=True):
            texts_of_prompt = [
                strip_eos(text[:n], self.generation_tokens, score)
                for text, n, score in zip(texts, lengths, scores, strict=True)
            ]
            results.append(texts_of_prompt[: self.decoding.returns])
        return results


def _gather_rows(values: Tensor, index: Tensor) -> Tensor:
    """Gather the rows `[P, k]` of `[P, m, N]` for each prompt."""
    return values.gather(1, index[:, :, None].expand(-1, -1, values.shape[2]))


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
            raise_graph_limit()
            self.forward_step = torch.compile(_forward_step, dynamic=False)
        self.graph: torch.cuda.CUDAGraph | None = None

    def load(self, cache: KVCache, index: Tensor | None = None) -> None:
        """Copy the rows `index` [B] of another cache; None: all of its rows, in their order."""
        copy_rows(cache, self.cache, index)

    def advance(self) -> None:
        """Run the model on the last tokens, and choose the next ones."""
        if self.graph is None:
            self._step()
        else:
            self.graph.replay()

    def capture(self) -> None:
        """Capture a step. The content of the buffers is lost: load afterwards."""
        self.graph = capture_graph(self._step, reset=self._reset)

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
        with disable_autocast_cache():
            logits = self.forward_step(model, self.search.tokens, self.cache)
        self.lengths.copy_(self.cache.lengths)  # a step of the model creates a new tensor
        self.cache.lengths = self.lengths
        rows = self.search.choose(logits)
        if rows is not None:
            for layer in self.cache.layers:  # NOTE: cross-attention caches are the same for all beams of a prompt
                for store in layer.store:
                    store[:-1] = store[:-1].index_select(0, rows)


def copy_rows(source: KVCache, target: KVCache, index: Tensor | None = None, first: int = 0) -> None:
    """Copy the rows `index` [B] of a cache (None: all) to another one, from its row `first`; either may be longer."""

    def select(values: Tensor) -> Tensor:
        return values if index is None else values.index_select(0, index)

    rows = slice(first, first + (source.lengths if index is None else index).shape[0])
    layers = zip((*source.layers, *source.cross), (*target.layers, *target.cross), strict=True)
    for layer, target_layer in layers:
        for old, new in ((layer.keys, target_layer.keys), (layer.values, target_layer.values)):
            columns = min(old.shape[2], new.shape[2])
            new[rows, :, :columns] = select(old[:, :, :columns])
    target.lengths[rows] = select(source.lengths)
    if source.source_lengths is not None and target.source_lengths is not None:
        target.source_lengths[rows] = select(source.source_lengths)


def capture_graph(
    run: Callable[[], None], *, reset: Callable[[], None] = lambda: None, pool: Any = None
) -> torch.cuda.CUDAGraph:
    """Capture a function after warm-up calls, with `reset` before each call; graphs of one pool share its memory."""
    side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call, unused-ignore]
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(WARMUP_STEPS):
            reset()
            run()
        reset()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        run()
    return graph


def disable_autocast_cache() -> AbstractContextManager[Any]:
    """Disable autocast's weight cache if autocast is on: it is freed before a captured step is replayed."""
    if not torch.is_autocast_enabled("cuda"):
        return nullcontext()
    return torch.autocast("cuda", torch.get_autocast_dtype("cuda"), cache_enabled=False)


def _forward_step(model: LanguageModel, tokens: Tensor, cache: KVCache) -> Tensor:
    return model.step(tokens, cache)


_ENGINES: "WeakKeyDictionary[LanguageModel, tuple[Any, DecodingEngine]]" = WeakKeyDictionary()
PREFILL_GRAPHS: "WeakKeyDictionary[LanguageModel, Any]" = WeakKeyDictionary()
"""Graphs of prompts, which `prefill_graph` captures."""


def build_engine(model: LanguageModel, shape: SearchShape) -> DecodingEngine:
    """Return an engine that is not captured."""
    kind = BeamSearchState if isinstance(shape.decoding.search, BeamSearch) else DecodingState
    slots = 0 if model.spec.is_encoder_decoder else count_prompt_slots(model)
    search, capacity = kind(shape, model.tokens.weight.device), shape.capacity + slots
    return DecodingEngine(model, search, capacity, source=shape.source, torch_compile=shape.torch_compile)


def get_engine(model: LanguageModel, shape: SearchShape) -> DecodingEngine:
    """Return an engine; on a GPU it is captured and cached for the next call with the same shape (one per model).

    Weights that have moved since need another engine. Nothing is captured for a single new token, which comes from the
    prefill.
    """
    if model.tokens.weight.device.type != "cuda":
        return build_engine(model, shape)
    key = shape, identify_weights(model)
    if model in _ENGINES and _ENGINES[model][0] == key:
        return _ENGINES[model][1]
    _ENGINES.pop(model, None)  # free its memory before the next one needs some
    engine = build_engine(model, shape)
    try:
        if shape.decoding.max_new_tokens > 1:
            engine.capture()
    except RuntimeError as error:
        log.warn(f"CUDA graph capture failed, steps run eagerly: {str(error).splitlines()[0]}")
        engine = build_engine(model, shape)
    _ENGINES[model] = key, engine
    return engine


def identify_weights(model: LanguageModel) -> tuple[Any, ...]:
    """Return what the graphs of a model depend on: the places of its weights, the dtype of autocast, inference mode.

    NOTE: buffers that were created in inference mode cannot be changed outside of it.
    """
    autocast_dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    places = tuple(
        tensor.data_ptr()
        for module in list_modules(model)
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None
    )
    return places, autocast_dtype, torch.is_inference_mode_enabled()


def release_engine(model: LanguageModel) -> None:
    """Free the memory of a model's captured step and prefills."""
    _ENGINES.pop(model, None)
    PREFILL_GRAPHS.pop(model, None)
