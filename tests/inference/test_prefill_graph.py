"""Padded prefills: what they compute in every family, and which of them become a graph."""

from copy import deepcopy
from itertools import product
from typing import Any

import pytest
import torch

from pretune.adaptation.peft.prefix import PrefixTuning, PromptTuning
from pretune.inference import prefill_graph
from pretune.inference.decode import generate_tokens
from pretune.inference.engine import PREFILL_GRAPHS, release_engine
from pretune.inference.generation_config import BeamSearch, GenerationConfig, GenerationTokens, GreedySearch, Sampling
from pretune.inference.prefill_graph import PaddedPrefill, Shape, choose_shape, find_prefill_graph, run_prefill
from pretune.inference.prompts import prefill
from pretune.inference.text_model import eval_mode
from pretune.models.model import build
from pretune.nn.stack import TransformerStack
from tests.contracts.tiny import DECODERS, PAIRS, RECURRENT, model_of, text
from tests.selection import keep_quick

CAUSAL = [name for name in DECODERS if isinstance(model_of(name).decoder, TransformerStack)]
SEARCHES = [GreedySearch(), Sampling(top_k=20, seed=4), BeamSearch(beams=3)]


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of four tokens, which prompts of the small models fill."""
    monkeypatch.setattr(prefill_graph, "LENGTH_STEP", 4)
    monkeypatch.setattr(prefill_graph, "MIN_CALLS", 2)
    PREFILL_GRAPHS.clear()


@pytest.fixture
def captured_shapes(monkeypatch: pytest.MonkeyPatch) -> list[Shape]:
    """A device whose graphs are the same calls on a CPU; returns the captured shapes."""
    shapes = []

    def capture(self: PaddedPrefill, pool: Any = None) -> Any:
        shapes.append(self.shape)
        return pool

    monkeypatch.setattr(prefill_graph, "DEVICE", "cpu")
    monkeypatch.setattr(PaddedPrefill, "capture", capture)
    return shapes


@pytest.mark.parametrize("name", [*CAUSAL, *PAIRS])
def test_padding_changes_nothing(name: str) -> None:
    """Logits, lengths and the keys of the prompts are those of a prefill without padding, call after call."""
    model = model_of(name)
    padded_prefill = PaddedPrefill(model, Shape(3, 2, 8) if name in PAIRS else Shape(3, 8))
    with eval_mode(model):
        for lengths in ((5, 8, 6), (8, 8, 8), (1, 5, 7)):
            sources = text(*lengths) if name in PAIRS else None
            prompts = text(*lengths) if sources is None else [[3], [3, 5], [4]]
            expected_cache, expected = prefill(model, prompts, sources)
            cache, logits = padded_prefill(prompts, sources)
            torch.testing.assert_close(logits, expected)
            sides = [(cache.layers, expected_cache.layers, prompts)]
            assert cache.lengths.tolist() == [len(prompt) for prompt in prompts]
            if sources is not None:
                assert cache.source_lengths is not None and cache.source_lengths.tolist() == [*lengths]
                sides.append((cache.cross, expected_cache.cross, sources))
            for layers, expected_layers, sequences in sides:
                for layer, expected_layer in zip(layers, expected_layers, strict=True):
                    for store, other in zip(layer.store, expected_layer.store, strict=True):
                        for row, sequence in enumerate(sequences):
                            torch.testing.assert_close(store[row, :, : len(sequence)], other[row, :, : len(sequence)])


@pytest.mark.parametrize(
    ("name", "search"),
    keep_quick(
        product([*CAUSAL, *PAIRS], SEARCHES),
        *product([*CAUSAL, *PAIRS], SEARCHES[:1]),
        *product([CAUSAL[0], PAIRS[0]], SEARCHES[1:]),
    ),
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_texts_are_the_same(name: str, search: Any, captured_shapes: list[Shape]) -> None:
    model = model_of(name)
    config = GenerationConfig(max_new_tokens=6, search=search)
    marks = GenerationTokens(start=3)

    def generate(*lengths: int) -> list[list[list[int]]]:
        results = generate_tokens(model, text(*lengths), config, generation_tokens=marks)
        return [[answer.tokens for answer in answers] for answers in results]

    first = generate(5, 7, 6)  # no graph yet
    assert not captured_shapes
    assert generate(5, 7, 6) == first and len(captured_shapes) == 1
    short = generate(3, 2, 4)
    assert generate(5, 7, 6) == first and generate(3, 2, 4) == short
    assert captured_shapes == ([(3, 1, 8), (3, 1, 4)] if name in PAIRS else [(3, 8, 0), (3, 4, 0)])


def test_a_shape_is_captured_when_it_repeats(captured_shapes: list[Shape]) -> None:
    model, limit = model_of(CAUSAL[0]), prefill_graph.MAX_GRAPHS

    def find(count: int, compiled: bool = False) -> Any:
        return find_prefill_graph(model, text(*[3] * count), torch_compile=compiled)

    assert find(1) is None
    graph = find(1)
    assert graph is not None and find(1) is graph
    for count in range(2, limit + 3):
        assert find(count) is None
        assert (find(count) is not None) == (count <= limit)  # those of the first shapes stay
    assert len(captured_shapes) == limit
    assert find(1, compiled=True) is None, "another kind of graph"


def test_a_compiled_prefill_is_captured_earlier(captured_shapes: list[Shape], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a compilation has many texts to generate."""
    monkeypatch.setattr(prefill_graph, "MIN_CALLS", 5)
    for is_compiled, calls in ((True, 2), (False, 5)):
        model = build(model_of(CAUSAL[0]).spec)
        found = [find_prefill_graph(model, text(3), torch_compile=is_compiled) is not None for _ in range(6)]
        assert found == [number >= calls for number in range(1, 7)]


def test_moved_weights_need_another_graph(captured_shapes: list[Shape]) -> None:
    model = build(model_of(CAUSAL[0]).spec)
    prompts = text(3)
    assert find_prefill_graph(model, prompts, torch_compile=False) is None
    assert find_prefill_graph(model, prompts, torch_compile=False) is not None
    model.tokens.weight.data = model.tokens.weight.data.clone()
    assert find_prefill_graph(model, prompts, torch_compile=False) is None
    release_engine(model)
    assert model not in PREFILL_GRAPHS


def test_graphs_of_inference_mode_are_not_used_outside(captured_shapes: list[Shape]) -> None:
    """Their buffers cannot be changed there."""
    model = model_of(CAUSAL[0])

    def choose_next() -> list[int]:
        with eval_mode(model):
            choices: list[int] = run_prefill(model, text(3), None)[1].argmax(-1).tolist()
        return choices

    with torch.inference_mode():
        expected = [choose_next() for _ in range(2)]
    assert [choose_next() for _ in range(2)] == expected
    assert len(captured_shapes) == 2


def test_a_failed_capture_is_not_tried_again(captured_shapes: list[Shape], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fail(self: PaddedPrefill, pool: Any = None) -> Any:
        calls.append(self.shape)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(PaddedPrefill, "capture", fail)
    model = model_of(CAUSAL[0])
    assert [find_prefill_graph(model, text(3), torch_compile=False) for _ in range(4)] == [None] * 4
    assert calls == [(1, 4, 0)]


def test_no_memory_for_a_graph_is_no_error(captured_shapes: list[Shape], monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(model_of(CAUSAL[0]).spec)

    def fail(*args: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(model, "new_cache", fail)
    assert [find_prefill_graph(model, text(3), torch_compile=False) for _ in range(4)] == [None] * 4


def test_only_where_padding_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pair = model_of(CAUSAL[0]), model_of(PAIRS[0])
    assert choose_shape(model, [5]) == (1, 8, 0) and choose_shape(model, [4]) == (1, 4, 0)
    assert choose_shape(model, [1, 1, 1]) == (3, 4, 0)
    assert choose_shape(model, [12, 1, 1]) is None  # most would be padding
    assert choose_shape(pair, [1, 2], [5, 6]) == (2, 2, 8) and choose_shape(pair, [1, 1, 1], [12, 1, 1]) is None
    assert all(choose_shape(model_of(name), [5]) is None for name in {*DECODERS} & {*RECURRENT})
    limited = next(model_of(name) for name in CAUSAL if model_of(name).spec.max_length is not None)
    longest = limited.spec.max_length
    assert longest is not None
    monkeypatch.setattr(prefill_graph, "LENGTH_STEP", longest - 1)
    assert choose_shape(limited, [longest]) is None  # padded it would be too long
    monkeypatch.setattr(prefill_graph, "LENGTH_STEP", 4)
    monkeypatch.setattr(prefill_graph, "MAX_TOKENS", 16)
    assert choose_shape(model, [5, 5]) == (2, 8, 0) and choose_shape(model, [5, 5, 5]) is None
    monkeypatch.setattr(prefill_graph, "MAX_WORK", 8 * model.spec.params().total)
    assert choose_shape(model, [5]) == (1, 8, 0) and choose_shape(model, [5, 5]) is None  # the GPU is busy long enough


@pytest.mark.parametrize("method", [PromptTuning(count=3), PrefixTuning(count=3)], ids=["prompt", "prefix"])
def test_learned_prefixes_are_left_alone(method: Any) -> None:
    model = deepcopy(model_of(CAUSAL[0]))
    method.apply(model)
    assert choose_shape(model, [5]) is None
