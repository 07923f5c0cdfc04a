"""Options of an index: kept by additions, ids of any type, prompts of documents and queries."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretune.core.errors import DataError, UsageError
from pretune.inference import sentence_modules
from pretune.inference.index import Index, build
from pretune.inference.pooling import Embedding, TextEncoder
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
