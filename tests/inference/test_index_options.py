"""Options of an index: kept by additions, ids of any type, prompts of documents and queries, any number of hits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretune.core.errors import DataError, UsageError
from pretune.inference import sentence_modules
from pretune.inference.index import Index, build
from pretune.inference.pooling import Embedding, TextEncoder
from pretune.inference.search_methods import BM25, FAISS_METHODS, extend_faiss, search_exact, search_faiss
from pretune.inference.word_vectors import split_words
from tests.inference.readers import TEXTS, encoder

DOCUMENTS = [text for text in dict.fromkeys(TEXTS) if text]
OPTIONS: dict[str, Any] = {
    "pooling": "cls+mean", "layer": 1, "normalise": False, "length": 12, "prompt": "the ", "query_prompt": "a ",
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"pooling": "mean"}, {"layer": 2}, {"normalise": True}, {"length": 9}, {"prompt": ""}, {"query_prompt": "the "}],
    ids=str,
)
def test_an_addition_keeps_the_options(change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = encoder()
    build(model, DOCUMENTS[:2], out=tmp_path / "i", **OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr("pretune.inference.index.build_embedder", lambda *_, **__: pytest.fail("work was done"))
        with pytest.raises(UsageError, match=f"{next(iter(change))} is"):
            build(model, DOCUMENTS[2:], out=tmp_path / "i", add=True, **change)
        with pytest.raises(TypeError, match="'poolin'"):
            build(model, DOCUMENTS[2:], out=tmp_path / "i", add=True, poolin="cls")  # type: ignore[call-arg]
    grown = build(model, DOCUMENTS[2:4], out=tmp_path / "i", add=True, **OPTIONS, batch_tokens=50)
    grown = build(model, DOCUMENTS[4:], out=tmp_path / "i", add=True, pooling=("cls", "mean"), length=None)
    full = build(model, DOCUMENTS, out=tmp_path / "full", **OPTIONS)
    np.testing.assert_allclose(np.concatenate(grown.parts), np.concatenate(full.parts), atol=1e-6)


def test_ids_are_strings(tmp_path: Path) -> None:
    model = encoder()
    build(model, DOCUMENTS[:2], ids=[7, 8], out=tmp_path / "i")  # type: ignore[list-item]
    build(model, DOCUMENTS[2:3], ids=[np.int64(9)], out=tmp_path / "i", add=True)  # type: ignore[list-item]
    index = Index.open(tmp_path / "i")
    assert [name for name, _ in index.rows] == ["7", "8", "9"]
    assert index.search(DOCUMENTS[1:2], 1, model=model)[0][0].id == "8"
    with pytest.raises(DataError, match="'8'"):
        build(model, DOCUMENTS[3:4], ids=[8], out=tmp_path / "i", add=True)  # type: ignore[list-item]


@pytest.mark.parametrize("default", ["", "a bird "])
@pytest.mark.parametrize("name", ["document", "passage", "corpus"])
def test_queries_do_not_get_the_prompt_of_documents(name: str, default: str, tmp_path: Path) -> None:
    model = encoder()
    prompts = {"prompts": {name: "money in ", "own": default}, "default_prompt_name": "own"}
    model.assets.modules = {
        **sentence_modules.write_modules(TextEncoder(model, Embedding(normalise=True))),
        "config_sentence_transformers.json": json.dumps(prompts).encode(),
    }
    index = build(model, DOCUMENTS, out=tmp_path / "i")
    separate = build(model, DOCUMENTS, out=tmp_path / "j", prompt="money in ", query_prompt=default)
    assert index.embedding_config.prompt == "money in "
    assert index.search(["the cat plays"], 3, model=model) == separate.search(["the cat plays"], 3, model=model)


def test_bm25_reads_words_as_word_vectors_do() -> None:
    for text in ("the cat sat: 5 birds", "Café, cafe\u0301 and the किताब", "我喜欢猫"):
        assert list(BM25([text], stemming=False).term_ids) == list(dict.fromkeys(split_words(text)))
    assert BM25(["the dog’s house", "a cat"]).search(["dog"], 1)[1].tolist() == [[0]]


@pytest.mark.parametrize("k", [10**12, 10**30])
def test_more_hits_than_texts(k: int, tmp_path: Path) -> None:
    assert BM25(["a b", "b c", "d"]).search(["b"], k)[1].tolist() == [[0, 1, -1]]
    vectors = np.eye(4, dtype=np.float32)
    assert search_exact([vectors], vectors[:1], k)[1].shape == (1, 4)
    pytest.importorskip("faiss", reason="the extra `index` is not installed")
    for method in FAISS_METHODS:
        (tmp_path / method).write_bytes(extend_faiss(None, [], vectors, method))
        assert sorted(search_faiss(tmp_path / method, [vectors], method, vectors[:1], k)[1][0]) == [0, 1, 2, 3]


def test_enough_cells_for_all_hits(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="the extra `index` is not installed")
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((400, 16)).astype(np.float32)
    (tmp_path / "ivf").write_bytes(extend_faiss(None, [], vectors, "ivf"))
    for k in (10, 100, 399, 400):
        numbers = search_faiss(tmp_path / "ivf", [vectors], "ivf", vectors[:50], k)[1]
        assert numbers.shape == (50, k) and (numbers >= 0).all()
