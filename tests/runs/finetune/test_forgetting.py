"""Forgetting: what a model is asked, how far it has moved, and data that do not fit it."""

import json
import re
from pathlib import Path

import pytest
import torch

from pretune.adaptation.adapted import adapt
from pretune.adaptation.freeze import Frozen, Full, Gradual
from pretune.adaptation.heads.sequence import Classification
from pretune.adaptation.methods import METHODS
from pretune.adaptation.peft.vectors import BitFit
from pretune.cli import main
from pretune.core import config
from pretune.core.errors import DataError, UsageError
from pretune.models.families import FAMILIES
from pretune.models.model import LanguageModel, build
from pretune.runs.finetune.adapted_model import load_base_model
from pretune.runs.finetune.config import BaseConfig
from pretune.runs.finetune.forgetting import ForgettingMeter, analyze_forgetting, find_objective
from pretune.runs.prepare import prepare
from pretune.text.tokenizer.training import train
from pretune.training.distributed import Ranks
from tests.contracts.tiny import tiny
from tests.runs import tasked
from tests.selection import keep_quick

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
    found = find_objective(body)
    assert body.shape in found.shapes and found.pairs in (None, "kept")
    assert config.get_kind(found) == ASKED.get(family, config.get_kind(found))


def test_a_run_is_asked_what_it_was_pretrained_with(base: Path, data: Path, tmp_path: Path) -> None:
    """Also below a run that was fine-tuned from it; a model of unknown origin is asked what its paper asks."""
    run, tuned = tmp_path / "run", tmp_path / "tuned"
    options = ["--objective", "span_masked", "--steps", "1", "--set", "data.max_length=32", "--set", "train.lr=1e-3"]
    options += ["--set", "model.width=16", "--set", "model.depth=1", "--set", "model.heads=2"]
    assert main(["--quiet", "pretrain", "bert-tiny", "--data", str(data), *options, "--out", str(run)]) == 0
    tasked.classes(tmp_path / "table.csv", 20)
    command = ["finetune", str(run), "--train", str(tmp_path / "table.csv"), "--steps", "1", "--baselines", "none"]
    assert main(["--quiet", *command, "--forgetting", str(data), "--out", str(tuned)]) == 0
    assert json.loads((tuned / "scores.json").read_text())["forgetting"]["objective"] == "span_masked"
    assert analyze_forgetting(tuned).objective == "span_masked"
    assert config.get_kind(find_objective(body_of(run), tuned)) == "span_masked"
    assert config.get_kind(find_objective(body_of(base), base)) == "masked"


@pytest.fixture(scope="module")
def data(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text with the model's own tokenizer."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("\n\n".join(tasked.corpus()))
    return prepare([folder / "text.txt"], tokenizer=base, out=folder / "data", holdout=0.2, workers=0).path


def body_of(base: Path) -> LanguageModel:
    return load_base_model(BaseConfig(path=str(base)), seed=0).eval()


def test_the_distance_is_relative_to_the_weights(base: Path, data: Path) -> None:
    body = body_of(base)
    memory = ForgettingMeter(body, body_of(base), str(data), CPU, None, Full(), base)
    still = memory.compare()
    assert still["distance"] == still["difference"] == 0 and still["objective"] == "masked"
    assert still["before"] == still["after"] and still["before"]["loss"] > 1
    with torch.no_grad():
        for name, parameter in body.named_parameters():
            parameter.mul_(1.1 if name.startswith("encoder.") else 1.0)
    moved = memory.compare()
    assert moved["by_part"]["encoder.0"] == pytest.approx(0.1, rel=1e-4)
    assert moved["by_part"]["heads"] == 0 and 0 < moved["distance"] < 0.1
    assert moved["difference"] == moved["after"]["loss"] - moved["before"]["loss"] != 0


@pytest.mark.parametrize("name", keep_quick(["prefix", "prompt", "lora", "qlora", "ia3", "bitfit"], "prefix", "qlora"))
def test_before_is_the_model_as_it_was_pretrained(name: str, base: Path, data: Path) -> None:
    """What a method puts into a model, and what 4 bits round off, counts as forgotten; and what merges has moved."""
    body, method = body_of(base), METHODS.get(name)(**({"count": 4} if name in ("prefix", "prompt") else {}))
    assert not isinstance(method, Full | Frozen | Gradual)
    trained = method.apply(adapt(body, Classification(classes=2)).model)  # which shares the blocks
    memory = ForgettingMeter(body, body_of(base), str(data), CPU, None, method, base)
    new = memory.compare()
    assert new["before"] == memory._compute_loss(body_of(base))
    assert (new["difference"] == 0) == (name not in ("prefix", "qlora"))
    assert (new["distance"] == 0) == (name != "qlora")
    with torch.no_grad():
        for path, parameter in body.named_parameters():
            parameter.add_(0.1 if path in trained else 0.0)
    found = memory.compare()
    assert (found["distance"] == new["distance"]) == (not method.is_mergeable)
    if method.is_mergeable:
        method.merge(body)
        again = ForgettingMeter(body, body_of(base), str(data), CPU, None, Full(), base).compare()
        assert again["distance"] == pytest.approx(found["distance"])
        assert again["by_part"] == pytest.approx(found["by_part"])


def test_biases_that_were_not_there_have_moved_from_zero(tmp_path: Path) -> None:
    folder = tasked.make_base(tmp_path, "t5-small", kind="unigram", style="sentinels")
    (tmp_path / "text.txt").write_text("\n\n".join(tasked.corpus()))
    text = prepare([tmp_path / "text.txt"], tokenizer=folder, out=tmp_path / "data", holdout=0.2, workers=0).path
    body, method = body_of(folder), BitFit()
    trained = method.apply(adapt(body, Classification(classes=2)).model)
    memory = ForgettingMeter(body, body_of(folder), str(text), CPU, None, method, folder)
    assert memory.compare()["distance"] == 0
    with torch.no_grad():
        for path, parameter in body.named_parameters():
            parameter.add_(0.1 if path in trained else 0.0)
    found = memory.compare()
    assert found["distance"] > 0 and found["by_part"]["encoder.0"] > found["by_part"]["embeddings"] == 0


def test_what_does_not_fit_is_told(base: Path, data: Path, tmp_path: Path) -> None:
    body = body_of(base)
    other = tmp_path / "tokenizer"
    train("wordpiece", [text.upper() + " other words" for text in tasked.corpus()], vocab=200).save(other)
    (tmp_path / "text.txt").write_text("\n\n".join(tasked.corpus()))
    elsewhere = prepare([tmp_path / "text.txt"], tokenizer=other, out=tmp_path / "data", holdout=0.2, workers=0).path
    with pytest.raises(DataError, match=re.escape(str(elsewhere))):
        ForgettingMeter(body, body, str(elsewhere), CPU, None, Full(), base)
    bare = build(tiny("electra"))
    assert bare.spec.head is None
    with pytest.raises(UsageError, match="head"):
        ForgettingMeter(bare, bare, str(data), CPU, None, Full(), base)
