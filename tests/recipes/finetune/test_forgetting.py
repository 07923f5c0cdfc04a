"""Forgetting: what a model is asked, how far it has moved, and data that do not fit it."""

from pathlib import Path

import pytest
import torch

from pretune.core import config
from pretune.core.errors import DataError, UsageError
from pretune.data.prepare import prepare
from pretune.models.families import FAMILIES
from pretune.models.model import LanguageModel, build
from pretune.recipes.finetune.forgetting import Memory, objective_of
from pretune.recipes.finetune.model import base_model
from pretune.recipes.finetune.settings import Base
from pretune.text.tokenizer import train
from pretune.train.ranks import Ranks
from tests.contracts.tiny import tiny
from tests.recipes import tasked

CPU = Ranks(torch.device("cpu"))
ASKED = {
    "bert": "masked",  # the pairs of its paper are left out
    "roberta": "masked",
    "xlnet": "permuted",
    "gpt2": "causal",
    "llama": "causal",
    "t5": "span_corruption",
    "bart": "denoising",
    "mass": "masked_seq2seq",
    "electra": "masked",  # without the partner that replaces tokens
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_is_asked_what_it_was_taught(family: str) -> None:
    body = build(tiny(family))
    found = objective_of(body)
    assert body.shape in found.shapes and found.pairs in (None, "kept")
    assert config.kind(found) == ASKED.get(family, config.kind(found))


@pytest.fixture(scope="module")
def data(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text with the model's own tokenizer."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("\n\n".join(tasked.corpus()))
    return prepare([folder / "text.txt"], tokenizer=base, out=folder / "data", holdout=0.2, workers=0).path


def body_of(base: Path) -> LanguageModel:
    return base_model(Base(path=str(base)), seed=0).eval()


def test_the_distance_is_relative_to_the_weights(base: Path, data: Path) -> None:
    body = body_of(base)
    memory = Memory(body, str(data), CPU, None)
    still = memory.compare()
    assert still["distance"] == still["difference"] == 0 and still["objective"] == "Masked"
    assert still["before"] == still["after"] and still["before"]["loss"] > 1
    with torch.no_grad():
        for name, parameter in body.named_parameters():
            parameter.mul_(1.1 if name.startswith("encoder.") else 1.0)
    moved = memory.compare()
    assert moved["by_part"]["encoder.0"] == pytest.approx(0.1, rel=1e-4)
    assert moved["by_part"]["heads"] == 0 and 0 < moved["distance"] < 0.1
    assert moved["difference"] == moved["after"]["loss"] - moved["before"]["loss"] != 0


def test_what_does_not_fit_is_told(base: Path, data: Path, tmp_path: Path) -> None:
    body = body_of(base)
    other = tmp_path / "tokenizer"
    train("wordpiece", [text.upper() + " other words" for text in tasked.corpus()], vocab=200).save(other)
    (tmp_path / "text.txt").write_text("\n\n".join(tasked.corpus()))
    elsewhere = prepare([tmp_path / "text.txt"], tokenizer=other, out=tmp_path / "data", holdout=0.2, workers=0).path
    with pytest.raises(DataError, match="not prepared with this model's tokenizer"):
        Memory(body, str(elsewhere), CPU, None)
    bare = build(tiny("electra"))
    assert bare.spec.head is None
    with pytest.raises(UsageError, match="no vocabulary head, so it has no pre-training loss"):
        Memory(bare, str(data), CPU, None)
