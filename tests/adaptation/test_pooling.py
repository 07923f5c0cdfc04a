"""Heads on sentence encoders: the pooling of the directory, kept by saved runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.heads.base import resolve_pooling
from pretune.adaptation.heads.sequence import Choice, Classification, Regression
from pretune.adaptation.heads.token import Span, Tagging
from pretune.cli.app import main
from pretune.core.errors import UsageError
from pretune.inference.sentence_modules import build_encoder, write_modules
from pretune.inference.text_model import get_tokenizer
from pretune.models.hf import checkpoint
from pretune.models.model import LanguageModel
from pretune.nn.heads import PoolingConfig, Transform
from tests.runs import tasked

POOLINGS = ("mean", "cls", "max", "last", "mean_sqrt", "weighted", "cls+max+mean")
TEXTS = ["the old sea.", "a quiet house, long winter light.", "stone"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.make_base(tmp_path_factory.mktemp("base"))


def sentence_encoder(base: Path, pooling: str = "mean") -> LanguageModel:
    """A model with the files of sentence-transformers."""
    model = checkpoint.load(base)
    model.assets.modules = write_modules(build_encoder(model, pooling=pooling, normalise=True))
    return model


def logits(model: ModelWithHead) -> np.ndarray[Any, Any]:
    """The logits of the texts, one row each."""
    tokenizer = get_tokenizer(model)
    ids = [tokenizer.template.apply(tokenizer.encode(text, add_special_tokens=False)).ids for text in TEXTS]
    with torch.no_grad():
        return np.concatenate([model(pt.batch([sentence]))[:1].numpy() for sentence in ids])


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_head_reads_the_vectors_of_the_directory(pooling: str, base: Path) -> None:
    model = sentence_encoder(base, pooling)
    head_model = adapt(model, Classification(classes=3)).eval()
    vectors = pt.embed(model, TEXTS, normalise=False)
    assert head_model.head is not None
    weight, bias = (head_model.head.get_parameter(f"out.{name}").detach().numpy() for name in ("weight", "bias"))
    np.testing.assert_allclose(logits(head_model), vectors @ weight.T + bias, atol=1e-5)


def test_every_head_for_sequences_does(base: Path) -> None:
    model = sentence_encoder(base, "max")
    for head in (Classification(classes=2), Regression(), Choice()):
        assert adapt(model, head).spec.pooling == PoolingConfig(mode="max")  # type: ignore[attr-defined]


def test_what_is_said_of_the_head_comes_first(base: Path) -> None:
    model = sentence_encoder(base)
    head_pooling = PoolingConfig(mode="last", layer="own")
    assert adapt(model, Classification(classes=2, pooling=head_pooling)).spec.pooling == head_pooling  # type: ignore[attr-defined]


def test_without_such_files_it_is_the_family_s(base: Path) -> None:
    model = checkpoint.load(base)
    assert adapt(model, Classification(classes=2)).spec.pooling == resolve_pooling(model.spec)  # type: ignore[attr-defined]


def test_gradients_of_the_maximum_are_finite_beside_empty_cells(base: Path) -> None:
    model = sentence_encoder(base, "max")
    head_model = adapt(model, Classification(classes=2))
    batch = pt.batch([[1, 2, 3]])
    labels = torch.full((batch.cells,), -100)
    labels[0] = 1
    batch = type(batch)(**{name: getattr(batch, name) for name in batch.__slots__} | {"labels": labels})
    assert int(batch.offsets[-1] - batch.offsets[-2]) == 0  # a spare cell
    head_model.spec.loss(head_model, batch).mean().backward()
    assert all(bool(p.grad.isfinite().all()) for p in head_model.parameters() if p.grad is not None)


def test_a_pooler_has_one_place() -> None:
    with pytest.raises(UsageError):
        PoolingConfig(mode="first", layer="pooler", concat=("max",))
    with pytest.raises(UsageError):
        PoolingConfig(mode="first", layer=Transform(), concat=("max",))


def test_heads_start_from_the_vocabulary_head(tmp_path: Path) -> None:
    """Its transform is the first layer of every head of a family that does so; the saved class is the family's."""
    model = pt.build("modernbert-base", width=32, depth=2, heads=4, hidden=44, vocab=61)
    assert model.head is not None and model.head.transform is not None
    expected = {name: value.clone() for name, value in model.head.transform.state_dict().items()}
    heads = {
        "ModernBertForSequenceClassification": Classification(classes=3),
        "ModernBertForMultipleChoice": Choice(),
        "ModernBertForTokenClassification": Tagging(classes=3),
        "ModernBertForQuestionAnswering": Span(),
    }
    for name, head in heads.items():
        headed = adapt(model, head)
        assert headed.head is not None
        actual = headed.head.get_submodule("transform").state_dict()
        assert actual.keys() == expected.keys() and all(torch.equal(actual[key], expected[key]) for key in actual)
        pt.save(headed, tmp_path / name)
        assert json.loads((tmp_path / name / "config.json").read_text())["architectures"] == [name]
        assert pt.load(tmp_path / name).spec == headed.spec
    other = adapt(model, Classification(classes=2, pooling=PoolingConfig(mode="max")))  # in no class of the family
    pt.save(other, tmp_path / "other")
    assert pt.load(tmp_path / "other").spec == other.spec


@pytest.mark.parametrize("method", ["frozen", "lora"])
def test_a_run_predicts_and_exports_with_it(
    method: str, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder, run = tmp_path / "encoder", tmp_path / "run"
    pt.save(sentence_encoder(base), encoder)
    pt.finetune(encoder, train=tasked.classes(tmp_path / "t.csv", 60), method=method, steps=3, out=run)
    run_model = pt.load(run)
    assert isinstance(run_model, ModelWithHead) and run_model.spec.pooling == PoolingConfig(mode="mean")  # type: ignore[attr-defined]
    assert main(["export", str(run), "--to", "hf", "--out", str(tmp_path / "share")]) == 0
    export_model = pt.load(tmp_path / "share")
    np.testing.assert_allclose(logits(export_model), logits(run_model), atol=1e-4)  # type: ignore[arg-type]
