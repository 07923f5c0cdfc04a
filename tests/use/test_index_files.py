"""Index directories of strangers: their names lead nowhere, and what is wrong with them is one of our errors."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.core.errors import CheckpointError
from pretune.core.io import write_manifest
from pretune.use.index import Index, build
from tests.use.readers import encoder

HNSW = "hnsw"


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
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of the index, with a file and a folder beside it that are somebody else's."""
    shutil.copytree(made / "i", tmp_path / "i")
    (tmp_path / "x").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "y").write_text("mine")
    return tmp_path


@pytest.mark.parametrize("name", ["../x", "../folder", "..", ".", "", "{place}/x", "../i/../x", "link", "index.json"])
def test_adding_to_a_hostile_index_removes_nothing(name: str, made: Path, place: Path) -> None:
    if name == "link":
        (place / "i" / "link").symlink_to("../x")
    change(place / "i", file=name.format(place=place))
    before = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    with pytest.raises(CheckpointError, match=r"index\.json|MANIFEST\.json"):
        build(made / "model", ["a new text"], out=place / "i", add=True)
    assert {file: file.read_bytes() for file in place.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("name", ["vectors-00000.npy", "texts-00000.jsonl"])
def test_links_out_of_the_index_are_not_followed(name: str, place: Path) -> None:
    (place / "i" / name).rename(place / name)
    (place / "i" / name).symlink_to(place / name)
    for listed in (True, False):
        names = [file.name for file in (place / "i").iterdir() if listed or file.name != name]
        write_manifest(place / "i", [one for one in names if one != "MANIFEST.json"])
        with pytest.raises(CheckpointError, match=name):
            Index.open(place / "i")
