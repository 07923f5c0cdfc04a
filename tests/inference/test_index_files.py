"""Index directories of strangers: their names lead nowhere, and what is wrong with them is one of our errors."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import pretune as pt
from pretune.core.errors import CheckpointError
from pretune.core.io import write_manifest
from pretune.inference.index import Index, build
from tests.inference.readers import encoder

HNSW = "hnsw"
TEXTS = [f"the {word} house {number}" for number in range(30) for word in ("old", "new", "bird", "river")]


def change(folder: Path, **changes: Any) -> None:
    """Set fields of index.json, and vouch for the result."""
    facts = json.loads((folder / "index.json").read_text()) | changes
    (folder / "index.json").write_text(json.dumps(facts))
    write_manifest(folder, [file.name for file in folder.iterdir() if file.name != "MANIFEST.json"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model and an index."""
    pytest.importorskip("faiss", reason="the extra `index` is not installed")
    folder = tmp_path_factory.mktemp("made")
    pt.save(encoder(), folder / "model")
    build(folder / "model", ["the cat", "a dog runs", "the old house"], out=folder / "i", method=HNSW)
    build(folder / "model", ["the cat", "a dog runs", "the old house"], out=folder / "exact")
    for method in ("hnsw", "ivf"):
        build(folder / "model", TEXTS, out=folder / method, method=method)
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of the index, with a file and a folder beside it that are somebody else's."""
    shutil.copytree(made / "i", tmp_path / "i")
    (tmp_path / "x").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "y").write_text("mine")
    return tmp_path


@pytest.mark.parametrize("method", ["i", "exact"])
@pytest.mark.parametrize("name", ["../x", "../folder", "..", ".", "", "{place}/x", "../i/../x", "link", "index.json"])
def test_adding_to_a_hostile_index_removes_nothing(name: str, method: str, made: Path, place: Path) -> None:
    shutil.rmtree(place / "i")
    shutil.copytree(made / method, place / "i")
    if name == "link":
        (place / "i" / "link").symlink_to("../x")
    change(place / "i", file=name.format(place=place))
    previous = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    with pytest.raises(CheckpointError, match=r"index\.json|MANIFEST\.json"):
        build(made / "model", ["a new text"], out=place / "i", add=True)
    assert {file: file.read_bytes() for file in place.rglob("*") if file.is_file()} == previous


@pytest.mark.parametrize("name", ["vectors-00000.npy", "texts-00000.jsonl"])
def test_links_out_of_the_index_are_not_followed(name: str, place: Path) -> None:
    (place / "i" / name).rename(place / name)
    (place / "i" / name).symlink_to(place / name)
    for listed in (True, False):
        names = [file.name for file in (place / "i").iterdir() if listed or file.name != name]
        write_manifest(place / "i", [item for item in names if item != "MANIFEST.json"])
        with pytest.raises(CheckpointError, match=name):
            Index.open(place / "i")


BAD: list[tuple[str, Any]] = [
    ("form", 2), ("form", True), ("form", None), ("model", 7), ("model", None), ("fingerprint", []),
    ("method", "magic"),    ("method", ["hnsw"]), ("parts", []),
    ("parts", None), ("parts", [3.0]), ("parts", [True]), ("parts", [0]),
    ("parts", [-1]), ("parts", [2]), ("parts", [4]), ("parts", [3, 1]), ("parts", [2**70]), ("parts", "3"),
    ("width", 0),     ("width", 31), ("width", 10**12), ("width", "32"),
    ("cut", -1), ("cut", None), ("query_prompt", 3), ("file", None),
    ("file", "graph-00000.faiss"), ("file", "vectors-00000.npy"), ("embedding", None), ("embedding", {"pooling": "x"}),
    ("embedding", {"length": -1}), ("embedding", {"unheard_of": 1}), ("embedding", {"layer": 2**70}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), BAD, ids=repr)
def test_fields_of_the_wrong_type_or_size(key: str, value: Any, made: Path, place: Path) -> None:
    change(place / "i", **{key: value})
    with pytest.raises(CheckpointError, match=r"index\.json|vectors-|texts-") as caught:
        index = Index.open(place / "i")
        index.rows, index.parts, index.load_embedder(made / "model")  # read when they are asked for
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("line", [b"", b"7", b"{}", b'{"id": 1, "text": "x"}', b'{"id": "1"}', b"\xff", b"[" * 10**5])
def test_texts_that_are_none(line: bytes, place: Path) -> None:
    (place / "i" / "texts-00000.jsonl").write_bytes(b'{"id": "1", "text": "x"}\n' * 2 + line + b"\n")
    change(place / "i")
    with pytest.raises(CheckpointError, match=r"texts-00000\.jsonl:3"):
        Index.open(place / "i").rows  # noqa: B018


LEVELS, NEIGHBOURS, CELLS = "levels", "neighbors", "cells"
GRAPHS: dict[str, tuple[str, str, Any]] = {
    "a level of 0": ("hnsw", LEVELS, lambda x: x * 0),
    "a level of a million": ("hnsw", LEVELS, lambda x: x * 10**6),
    "another level": ("hnsw", LEVELS, lambda x: np.where(np.arange(len(x)) == 0, x + 1, x)),
    "a level less": ("hnsw", LEVELS, lambda x: x[:-1]),
    "levels of 64 bits": ("hnsw", LEVELS, lambda x: x.astype(np.int64)),
    "neighbours that do not exist": ("hnsw", NEIGHBOURS, lambda x: x + len(TEXTS)),
    "negative neighbours": ("hnsw", NEIGHBOURS, lambda x: x - 2),
    "a neighbour less": ("hnsw", NEIGHBOURS, lambda x: x[:-1]),
    "no neighbours": ("hnsw", NEIGHBOURS, lambda x: x[:0]),
    "neighbours without their level": ("hnsw", NEIGHBOURS, None),
    "a cell that does not exist": ("ivf", CELLS, lambda x: x + 10**6),
    "a negative cell": ("ivf", CELLS, lambda x: x - 10**6),
    "a cell less": ("ivf", CELLS, lambda x: x[1:]),
    "other centroids": ("ivf", "centroids", lambda x: x[:, 1:]),
    "no centroids": ("ivf", "centroids", lambda x: x[:0]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_that_lead_elsewhere_are_refused(name: str, made: Path, tmp_path: Path) -> None:
    """Before faiss sees them: it would read beyond its memory."""
    method, tensor, make = GRAPHS[name]
    shutil.copytree(made / method, tmp_path / "i")
    (file,) = (tmp_path / "i").glob("graph-*")
    arrays = {key: value.copy() for key, value in load_file(file).items()}
    if make is None:
        (high,) = np.flatnonzero(arrays[LEVELS] == arrays[LEVELS].max())[:1]
        low = int(np.flatnonzero(arrays[LEVELS] == 1)[0])
        start = int((64 + 32 * (arrays[LEVELS][:high] - 1)).sum())
        arrays[NEIGHBOURS][start + 64] = low
    else:
        arrays[tensor] = np.ascontiguousarray(make(arrays[tensor]))
    save_file(arrays, file)
    change(tmp_path / "i")
    with pytest.raises(CheckpointError, match="graph-"):
        Index.open(tmp_path / "i").search(["the bird"], 3, model=None)


def test_a_graph_that_grows_is_one_made_at_once(made: Path, tmp_path: Path) -> None:
    build(made / "model", TEXTS[:100], out=tmp_path / "i", method=HNSW)
    grown = build(made / "model", TEXTS[100:], out=tmp_path / "i", add=True)
    full = Index.open(made / "hnsw")
    queries = ["the bird", "a river", "new house 7"]
    result = [[round(hit.score, 4) for hit in hits] for hits in grown.search(queries, 3)]
    assert result == [[round(hit.score, 4) for hit in hits] for hits in full.search(queries, 3)]
