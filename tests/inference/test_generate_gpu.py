"""On a GPU: a captured step writes what single steps do, for every search; weights that move are noticed."""

from copy import deepcopy
from typing import Any

import pytest
import torch

from pretune.inference import engine as engines
from pretune.inference import prefill_graph
from pretune.inference.decode import generate_tokens
from pretune.inference.engine import PREFILL_GRAPHS
from pretune.inference.generation_config import BeamSearch, GenerationConfig, GenerationTokens, GreedySearch, Sampling
from pretune.models.model import LanguageModel
from tests.contracts.tiny import DECODERS, PAIRS, model_of, text

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

HOW = [
    GenerationConfig(max_new_tokens=9, search=GreedySearch()),
    GenerationConfig(max_new_tokens=9, search=GreedySearch(), repetition_penalty=1.5, no_repeat_ngram=2),
    GenerationConfig(max_new_tokens=9, search=Sampling(top_k=20, top_p=0.9, min_p=0.01, seed=4), returns=2),
    GenerationConfig(max_new_tokens=9, search=BeamSearch(beams=3), returns=2),
]


def on_gpu(name: str) -> LanguageModel:
    return deepcopy(model_of(name)).cuda()


def graphs(model: LanguageModel) -> Any:
    return engines._ENGINES[model][1].graph


@pytest.mark.parametrize("how", HOW, ids=lambda how: type(how.search).__name__)
@pytest.mark.parametrize("name", [*DECODERS, *PAIRS])
def test_captured_as_single_steps(name: str, how: GenerationConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = on_gpu(name), text(5, 1, 9, 3, 5)
    marks = GenerationTokens(start=3, eos=(7,))
    result = generate_tokens(model, prompts, how, generation_tokens=marks)
    assert graphs(model) is not None, "the step was captured"
    assert generate_tokens(model, prompts, how, generation_tokens=marks) == result, "and serves again"
    engines.release_engine(model)
    monkeypatch.setattr(engines.DecodingEngine, "capture", lambda self: None)
    single = generate_tokens(model, prompts, how, generation_tokens=marks)
    assert [[item.tokens for item in answer] for answer in single] == [
        [item.tokens for item in answer] for answer in result
    ]


def test_a_step_is_captured_once_for_requests_of_a_kind() -> None:
    model = on_gpu(DECODERS[0])
    config = GenerationConfig(max_new_tokens=5, search=Sampling(seed=1))
    generate_tokens(model, text(5, 4), config)
    first = graphs(model)
    generate_tokens(model, text(3, 6), GenerationConfig(max_new_tokens=5, search=Sampling(seed=2)))
    assert graphs(model) is first
    generate_tokens(model, text(3, 6, 2), config)
    assert graphs(model) is not first


def test_a_single_token_needs_no_step() -> None:
    model = on_gpu(DECODERS[0])
    first = generate_tokens(model, text(5, 4), GenerationConfig(max_new_tokens=1))
    assert graphs(model) is None
    more = generate_tokens(model, text(5, 4), GenerationConfig(max_new_tokens=3))
    assert graphs(model) is not None
    assert [answer[0].tokens for answer in first] == [answer[0].tokens[:1] for answer in more]


def test_weights_that_changed_or_moved_are_seen() -> None:
    model, prompts, config = on_gpu(DECODERS[0]), text(5, 4), GenerationConfig(max_new_tokens=8)
    previous = generate_tokens(model, prompts, config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.7)
    changed = generate_tokens(model, prompts, config)
    assert changed != previous
    engines.release_engine(model)
    assert generate_tokens(model, prompts, config) == changed
    model.load_state_dict(
        {name: tensor.clone() for name, tensor in on_gpu(DECODERS[0]).state_dict().items()}, assign=True
    )
    assert generate_tokens(model, prompts, config) == previous


def test_under_autocast() -> None:
    """Weights in fp32, computed with in half precision: another capture than without, and the same words again."""
    model, prompts, config = on_gpu(DECODERS[0]), text(5, 4), GenerationConfig(max_new_tokens=8)
    generate_tokens(model, prompts, config)
    baseline = graphs(model)
    with torch.autocast("cuda", torch.bfloat16):
        result = generate_tokens(model, prompts, config)
        assert graphs(model) is not baseline
    with torch.autocast("cuda", torch.bfloat16):
        assert generate_tokens(model, prompts, config) == result


@pytest.mark.slow
def test_compiled() -> None:
    model, prompts, config = on_gpu(DECODERS[0]), text(5, 4), GenerationConfig(max_new_tokens=8)
    assert generate_tokens(model, prompts, config, torch_compile=True) == generate_tokens(model, prompts, config)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", [*DECODERS, *PAIRS])
def test_a_captured_prefill_writes_the_same(name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of a shape runs as it is, the second captures, the third replays."""
    monkeypatch.setattr(prefill_graph, "MIN_CALLS", 2)
    model, prompts = on_gpu(name), text(5, 3)
    config, marks = GenerationConfig(max_new_tokens=9, search=GreedySearch()), GenerationTokens(start=3)
    results = [
        generate_tokens(model, prompts, config, generation_tokens=marks, torch_compile=compiled) for _ in range(3)
    ]
    assert [[answer[0].tokens for answer in result] for result in results[1:]] == [
        [answer[0].tokens for answer in results[0]]
    ] * 2
    lengths = ([1, 1], [5, 3]) if name in PAIRS else ([5, 3], None)
    has_graph = model in PREFILL_GRAPHS and bool(PREFILL_GRAPHS[model].graphs)
    assert has_graph == (prefill_graph.choose_shape(model, *lengths) is not None)
