"""Sampling: exact probabilities, dependence on seed and position only, filters and penalties."""

import numpy as np
import pytest
import torch
from scipy import stats

from pretune.core.errors import UsageError
from pretune.inference import decoding_state as sampling
from pretune.inference.decode import generate_tokens
from pretune.inference.decoding_state import draw_uniforms
from pretune.inference.generation_config import (
    BeamSearch,
    GenerationConfig,
    GenerationTokens,
    GreedySearch,
    Sampling,
    build_generation_config,
)
from tests.contracts.tiny import DECODERS, PAIRS, lay, model_of, text

LOGITS = torch.tensor([[2.0, 1.0, 0.5, 0.0, -1.0, -3.0]])


def shares(logits: torch.Tensor) -> list[float]:
    return logits.softmax(-1)[0].tolist()


def left(logits: torch.Tensor) -> list[int]:
    return torch.isfinite(logits[0]).nonzero().flatten().tolist()


def agree(drawn: np.ndarray, expected: list[float]) -> None:
    """A chi-square test at one in ten thousand; what has no share is never drawn."""
    counts = np.bincount(drawn, minlength=len(expected))
    real = np.array(expected) > 0
    assert counts[~real].sum() == 0
    reference = np.array(expected)[real] * counts.sum()
    assert stats.chisquare(counts[real], reference * counts[real].sum() / reference.sum()).pvalue > 1e-4


def test_draws_follow_the_shares() -> None:
    chance = draw_uniforms(3, range(4000), 1, 5).flatten()
    drawn = sampling.draw(LOGITS.expand(len(chance), -1), chance)
    agree(drawn.numpy(), shares(LOGITS))


def test_a_share_of_zero_is_never_drawn() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]]).expand(3, -1)
    assert sampling.draw(logits, torch.tensor([0.0, 0.4999, 1 - 1e-16], dtype=torch.float64)).tolist() == [1, 1, 3]


def test_filters() -> None:
    shared = shares(LOGITS)
    assert left(sampling.filter_top_k(LOGITS, 2)) == [0, 1]
    assert left(sampling.filter_top_k(LOGITS, 99)) == [*range(6)]
    assert left(sampling.filter_top_p(LOGITS, shared[0] - 0.01)) == [0]
    assert left(sampling.filter_top_p(LOGITS, shared[0] + 0.01)) == [0, 1]
    assert left(sampling.filter_top_p(LOGITS, 1e-9)) == [0]
    assert left(sampling.filter_min_p(LOGITS, shared[2] / shared[0] - 1e-6)) == [0, 1, 2]
    assert left(sampling.filter_min_p(LOGITS, 1.0)) == [0]


def test_penalties() -> None:
    history, known = torch.tensor([[0, 4, 1, 0, 4]]), torch.tensor([4])
    result = sampling.apply_repetition_penalty(LOGITS, history, known, 2.0)
    assert result[0].tolist() == [1.0, 0.5, 0.5, 0.0, -2.0, -3.0]
    assert left(sampling.ban_repeated_ngrams(LOGITS, history, known, 2)) == [0, 1, 2, 3, 5]  # 0 was followed by 4
    assert left(sampling.ban_repeated_ngrams(LOGITS, history, known, 1)) == [2, 3, 5]
    assert left(sampling.ban_repeated_ngrams(LOGITS, history, torch.tensor([5]), 3)) == [0, 2, 3, 4, 5]  # 0 4 by 1
    assert left(sampling.ban_repeated_ngrams(LOGITS, history, torch.tensor([1]), 3)) == [*range(6)]


def test_the_lowest_temperatures_choose_the_most_probable_token() -> None:
    logits = torch.cat([1000 * LOGITS, 1000 * LOGITS.flip(1)])
    draws = torch.tensor([0.0, 1 - 1e-16], dtype=torch.float64)
    for temperature in (1e-3, 1e-8, 1e-40, 5e-324):
        search = Sampling(temperature=temperature, top_k=3)
        assert sampling.sample_next(logits, search, draws).tolist() == [0, 5], temperature


def test_presence_and_frequency_count_new_tokens_only() -> None:
    history, known = torch.tensor([[0, 4, 1, 4, 4], [0, 4, 1, 0, 0]]), torch.tensor([5, 3])
    counts = sampling.count_new_tokens(LOGITS.expand(2, -1), history, known, torch.tensor([[3], [1]]))
    assert counts.tolist() == [[0, 1, 0, 0, 2, 0], [0, 1, 0, 0, 0, 0]]
    config = GenerationConfig(presence_penalty=0.5, frequency_penalty=1.0, logit_bias=((2, 3.0),))
    process = sampling.LogitsProcessor(config, GenerationTokens(), torch.device("cpu"))
    result = process(LOGITS, history[:1], known[:1], torch.tensor(3))
    assert result[0].tolist() == [2.0, -0.5, 3.5, 0.0, -3.5, -3.0]
    for options in ({"presence_penalty": float("nan")}, {"logit_bias": {-1: 1.0}}, {"logit_bias": {1: float("inf")}}):
        with pytest.raises(UsageError):
            build_generation_config(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "search",
    [
        Sampling(),
        Sampling(temperature=0.6),
        Sampling(top_k=5),
        Sampling(top_p=0.7),
        Sampling(min_p=0.3),
        Sampling(top_k=9, top_p=0.8),
    ],
    ids=str,
)
def test_a_model_draws_by_its_own_probabilities(search: Sampling) -> None:
    """The first new token of many returns, against the filtered softmax written out."""
    model, prompt, count = model_of(DECODERS[0]), text(5)[0], 3000
    result = generate_tokens(
        model, [prompt], GenerationConfig(max_new_tokens=1, search=search, returns=count), batch=count
    )
    drawn = np.array([item.tokens[0] if item.tokens else model.spec.special.eos[0] for item in result[0]])
    with torch.no_grad():
        logits = model(lay(model.spec, [prompt])).logits[-1:].double() / search.temperature
    order = logits[0].argsort(descending=True).tolist()
    remaining, total, chosen = logits.softmax(-1)[0], 0.0, []
    if search.top_k:
        order = order[: search.top_k]
    full = float(remaining[order].sum())
    for token in order:
        if search.top_p and total / full >= search.top_p:
            break
        if not search.min_p or remaining[token] >= search.min_p * remaining[order[0]]:
            chosen.append(token)
        total += float(remaining[token])
    reference = torch.zeros_like(remaining)
    reference[chosen] = remaining[chosen] / remaining[chosen].sum()
    agree(drawn, reference.tolist())


@pytest.mark.parametrize("name", [DECODERS[0], PAIRS[0]])
def test_a_request_does_not_depend_on_its_company(name: str) -> None:
    model = model_of(name)
    config = GenerationConfig(max_new_tokens=6, search=Sampling(seed=5, top_p=0.9), returns=2)
    prompts = text(4, 7, 2, 7)
    together = generate_tokens(model, prompts, config)
    assert generate_tokens(model, prompts, config, batch=1) == together
    others = [*text(9, 1, 2, seed=8), prompts[3]]
    assert generate_tokens(model, others, config)[3] == together[3]
    assert together[3][0] != together[3][1], "returns of a prompt differ"
    repeat = GenerationConfig(max_new_tokens=6, search=Sampling(seed=6, top_p=0.9), returns=2)
    assert generate_tokens(model, prompts, repeat) != together


def test_flat_options() -> None:
    assert build_generation_config() == GenerationConfig(search=Sampling())
    assert build_generation_config(temperature=0, max_new_tokens=3) == GenerationConfig(
        max_new_tokens=3, search=GreedySearch()
    )
    assert build_generation_config(beams=4, num=2, early_stopping=True).search == BeamSearch(
        beams=4, early_stopping=True
    )
    assert build_generation_config(top_k=3, seed=9, temperature=0.5).search == Sampling(
        top_k=3, seed=9, temperature=0.5
    )


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"max_new_tokens": 0}, r"max_new_tokens .*0"),
        ({"temperature": -1.0}, r"temperature .*\-1\.0"),
        ({"temperature": float("nan")}, r"temperature .*nan"),
        ({"top_p": 1.5}, r"top_p .*1\.5"),
        ({"top_k": 0}, r"top_k .*0"),
        ({"min_p": 0.0}, r"min_p .*0\.0"),
        ({"num": 2, "temperature": 0}, r"\b2\b"),
        ({"num": 5, "beams": 4}, r"\b4\b.*\b5\b"),
        ({"beams": 0}, r"beams .*0"),
        ({"beams": 2, "top_k": 3}, "beam.*top_k"),
        ({"beams": 2, "temperature": 0.3}, "beam.*temperature"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"temperature": 0, "top_k": 4}, "temperature 0.*top_k"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty .*0\.0"),
        ({"repetition_penalty": 1e9}, r"repetition_penalty .*1000000000"),
        ({"presence_penalty": 1e300}, "presence_penalty .*1e.300"),
        ({"frequency_penalty": float("-inf")}, "frequency_penalty .*-inf"),
        ({"logit_bias": {3: 1e39}}, r"logit_bias .*1e\+39"),
        ({"no_repeat_ngram": -1}, r"no_repeat_ngram .*\-1"),
        ({"seed": -1}, r"seed .*\-1"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, float], value: str) -> None:
    with pytest.raises(UsageError, match=value):
        build_generation_config(**options)
