"""Generations of an index: one writer at a time, nothing lost, and readers that see one generation or another."""

import json
import shutil
import threading
from pathlib import Path

import pytest

import pretune as pt
from pretune.core.errors import DataError, ResourceError
from pretune.core.io import MANIFEST, write_manifest
from pretune.core.run_dir import RunLock
from pretune.inference import index_files
from pretune.inference.index import Index, build, search
from tests.faults.deaths import ended, forked
from tests.inference.readers import encoder
from tests.selection import keep_quick


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("faiss", reason="the extra `index` is not installed")
    folder = tmp_path_factory.mktemp("model") / "model"
    pt.save(encoder(), folder)
    return folder


@pytest.fixture(scope="module", params=keep_quick(["exact", "hnsw", "ivf"], "exact", "hnsw"))
def first(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp(request.param) / "index"
    build(model, ["the cat", "a dog runs", "the old house"], out=out, method=request.param)
    return out


@pytest.fixture
def place(first: Path, tmp_path: Path) -> Path:
    return shutil.copytree(first, tmp_path / "index")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_two_writers_at_once_lose_nothing(place: Path, model: Path) -> None:
    writers = 4
    children = [
        forked(lambda number=number: build(model, [f"text {number}"], ids=[f"new-{number}"], out=place, add=True))  # type: ignore[misc]
        for number in range(writers)
    ]
    assert [ended(child) for child in children] == [0] * writers
    index = Index.open(place)
    assert sorted(name for name, _ in index.rows)[3:] == [f"new-{number}" for number in range(writers)]
    assert len(index.search(["text"], 20)[0]) == len(index) == 3 + writers


def test_default_ids_of_writers_at_once_differ(place: Path, model: Path) -> None:
    children = [forked(lambda: build(model, ["a bird", "a river"], out=place, add=True) and None) for _ in range(3)]
    assert [ended(child) for child in children] == [0, 0, 0]
    assert [name for name, _ in Index.open(place).rows] == [str(number) for number in range(1, 10)]


def test_the_same_ids_are_refused_whoever_is_first(place: Path, model: Path) -> None:
    def work() -> None:
        try:
            build(model, ["a bird"], ids=["bird"], out=place, add=True)
        except DataError:
            raise SystemExit(3) from None

    assert sorted(ended(child) for child in [forked(work), forked(work)]) == [0, 1]
    assert len(Index.open(place)) == 4


def test_a_writer_waits_a_stated_time(place: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_files, "WRITER_SECONDS", 0.1)
    with RunLock(place, on_warning=print):
        before = Index.open(place).rows
        with pytest.raises(ResourceError, match="in use"):
            build(model, ["a bird"], out=place, add=True)
        assert Index.open(place).rows == before
    build(model, ["a bird"], out=place, add=True)


def test_a_reader_keeps_its_generation(place: Path, model: Path) -> None:
    reader = Index.open(place)
    before = reader.search(["the cat"], 3)
    for number in range(3):
        build(model, [f"text {number}"], out=place, add=True)
        assert reader.search(["the cat"], 3) == before
    graphs = [name for name in names(place) if name.startswith("graph")]
    assert len(graphs) in (0, 4)
    del reader
    build(model, ["text"], out=place, add=True)
    listed = json.loads((place / MANIFEST).read_text())["files"]
    assert names(place) == sorted([MANIFEST, *listed])


def test_readers_during_additions(place: Path, model: Path) -> None:
    sizes: list[int] = []
    done = threading.Event()
    faults: list[BaseException] = []

    def read() -> None:
        while not done.is_set():
            try:
                index = Index.open(place)
                assert len(index.rows) == len(index) and len(index.search(["the cat"], 99)[0]) == len(index)
                sizes.append(len(index))
            except BaseException as error:
                faults.append(error)
                return

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(8):
        build(model, [f"text {number}"], out=place, add=True)
    done.set()
    thread.join()
    assert faults == [] and sizes == sorted(sizes)


def test_leftovers_of_a_killed_writer(place: Path, model: Path) -> None:
    for name in (
        "vectors-00001.npy",
        "texts-00001.jsonl",
        "graph-00001.safetensors",
        "index-00001.json",
        "vectors-00007.npy",
    ):
        (place / name).write_bytes(b"unfinished")
    (place / "notes.txt").write_text("mine")
    (place / "vectors-1.npy").write_text("mine")
    assert len(Index.open(place)) == 3
    build(model, ["a bird"], out=place, add=True)
    listed = json.loads((place / MANIFEST).read_text())["files"]
    assert names(place) == sorted([MANIFEST, "notes.txt", "vectors-1.npy", *listed])
    assert len(search(place, ["a bird"], 9)[0]) == 4


def test_indexes_of_earlier_versions(place: Path, model: Path) -> None:
    """All additions had the same index.json, which named the graph."""
    build(model, ["a bird"], out=place, add=True)
    (place / "index-00001.json").rename(place / "index.json")
    facts = json.loads((place / "index.json").read_text())
    if facts["method"] != "exact":
        facts["file"] = "graph-00001.safetensors"
    (place / "index.json").write_text(json.dumps(facts))
    write_manifest(place, [name for name in names(place) if name != MANIFEST])
    build(model, ["a river"], out=place, add=True)
    assert len(search(place, ["a bird"], 9)[0]) == 5
    assert "index.json" not in names(place)
