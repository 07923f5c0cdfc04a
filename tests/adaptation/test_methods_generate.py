"""Generation with a method gives the same tokens as a full forward pass per token."""

import copy
from typing import Any

import pytest
import torch

from pretune.adaptation.peft import PEFT_METHODS
from pretune.core.errors import UsageError
from pretune.inference.decode import generate_tokens
from pretune.inference.generation_config import BeamSearch, GenerationConfig, GenerationTokens
from pretune.models.model import LanguageModel
from tests.contracts.laws import read
from tests.contracts.tiny import model_of, text

SMALL: dict[str, dict[str, Any]] = {"prefix": {"count": 3}, "prompt": {"count": 3}, "qlora": {"rank": 2, "block": 16}}
NEW = 4


def build_random_model(case: str, name: str) -> LanguageModel:
    model = copy.deepcopy(model_of(case))
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for path in PEFT_METHODS.get(name)(**SMALL.get(name, {})).apply(model):
            parameter = model.get_parameter(path)
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("case", ["gpt2-small", "llama3-8b", "t5-base"])
@pytest.mark.parametrize("name", ["prefix", "prompt", "qlora", "lora"])
def test_written_is_read(case: str, name: str) -> None:
    model, prompts = build_random_model(case, name), text(5, 2)
    generation_tokens = GenerationTokens(eos=(), start=1 if model.spec.is_encoder_decoder else None)
    for search in (
        GenerationConfig(max_new_tokens=NEW),
        GenerationConfig(max_new_tokens=NEW, search=BeamSearch(beams=2)),
    ):
        for prompt, (best, *_) in zip(
            prompts, generate_tokens(model, prompts, search, generation_tokens=generation_tokens), strict=True
        ):
            assert len(best.tokens) == NEW
            slots = [0] * 3 if name == "prompt" else []
            if model.spec.is_encoder_decoder:
                (logits,) = read(model, [[1, *best.tokens[:-1]]], [[*slots, *prompt]])
            else:
                (logits,) = read(model, [[*slots, *prompt, *best.tokens[:-1]]])
            if isinstance(search.search, BeamSearch):  # its score is the mean of what its tokens are worth
                worth = logits[-NEW:].log_softmax(-1).gather(1, torch.tensor(best.tokens)[:, None])
                assert best.score == pytest.approx(worth.mean().item(), abs=1e-4)
            else:
                assert logits[-NEW:].argmax(-1).tolist() == best.tokens


def test_a_prefix_leaves_less_room() -> None:
    model = build_random_model("gpt2-small", "prefix")  # of 24 positions
    generate_tokens(
        model, text(17), GenerationConfig(max_new_tokens=5), generation_tokens=GenerationTokens(eos=(), start=None)
    )
    with pytest.raises(UsageError, match=r"\b21\b"):
        generate_tokens(
            model, text(18), GenerationConfig(max_new_tokens=5), generation_tokens=GenerationTokens(eos=(), start=None)
        )
