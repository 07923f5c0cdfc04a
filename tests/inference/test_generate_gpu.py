"""On a GPU: a captured step writes what single steps do, for every search; weights that move are noticed."""

from copy import deepcopy
from typing import Any

import pytest
import torch

from pretune.inference import engine as engines
from pretune.inference.decode import complete
from pretune.inference.generation_config import Beam, Decoding, Greedy, Sample
from pretune.inference.generation_tokens import Marks
from pretune.models.model import LanguageModel
from tests.contracts.tiny import DECODERS, PAIRS, model_of, text

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

HOW = [
    Decoding(max_new_tokens=9, search=Greedy()),
    Decoding(max_new_tokens=9, search=Greedy(), repetition_penalty=1.5, no_repeat_ngram=2),
    Decoding(max_new_tokens=9, search=Sample(top_k=20, top_p=0.9, min_p=0.01, seed=4), returns=2),
    Decoding(max_new_tokens=9, search=Beam(beams=3), returns=2),
]


def on_gpu(name: str) -> LanguageModel:
    return deepcopy(model_of(name)).cuda()


def graphs(model: LanguageModel) -> Any:
    return engines._KEPT[model][1].graph


@pytest.mark.parametrize("how", HOW, ids=lambda how: type(how.search).__name__)
@pytest.mark.parametrize("name", [*DECODERS, *PAIRS])
def test_captured_as_single_steps(name: str, how: Decoding, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = on_gpu(name), text(5, 1, 9, 3, 5)
    marks = Marks(start=3, ends=(7,))
    found = complete(model, prompts, how, marks=marks)
    assert graphs(model) is not None, "the step was captured"
    assert complete(model, prompts, how, marks=marks) == found, "and serves again"
    engines.forget(model)
    monkeypatch.setattr(engines.Engine, "capture", lambda self: None)
    single = complete(model, prompts, how, marks=marks)
    assert [[one.tokens for one in answer] for answer in single] == [[one.tokens for one in answer] for answer in found]


def test_a_step_is_captured_once_for_requests_of_a_kind() -> None:
    model = on_gpu(DECODERS[0])
    how = Decoding(max_new_tokens=5, search=Sample(seed=1))
    complete(model, text(5, 4), how)
    first = graphs(model)
    complete(model, text(3, 6), Decoding(max_new_tokens=5, search=Sample(seed=2)))
    assert graphs(model) is first
    complete(model, text(3, 6, 2), how)
    assert graphs(model) is not first


def test_weights_that_changed_or_moved_are_seen() -> None:
    model, prompts, how = on_gpu(DECODERS[0]), text(5, 4), Decoding(max_new_tokens=8)
    before = complete(model, prompts, how)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.7)
    changed = complete(model, prompts, how)
    assert changed != before
    engines.forget(model)
    assert complete(model, prompts, how) == changed
    model.load_state_dict(
        {name: tensor.clone() for name, tensor in on_gpu(DECODERS[0]).state_dict().items()}, assign=True
    )
    assert complete(model, prompts, how) == before


def test_under_autocast() -> None:
    """Weights in fp32, computed with in half precision: another capture than without, and the same words again."""
    model, prompts, how = on_gpu(DECODERS[0]), text(5, 4), Decoding(max_new_tokens=8)
    complete(model, prompts, how)
    plain = graphs(model)
    with torch.autocast("cuda", torch.bfloat16):
        found = complete(model, prompts, how)
        assert graphs(model) is not plain
    with torch.autocast("cuda", torch.bfloat16):
        assert complete(model, prompts, how) == found


@pytest.mark.slow
def test_compiled() -> None:
    model, prompts, how = on_gpu(DECODERS[0]), text(5, 4), Decoding(max_new_tokens=8)
    assert complete(model, prompts, how, compiled=True) == complete(model, prompts, how)
