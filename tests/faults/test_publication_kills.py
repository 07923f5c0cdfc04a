"""Writers killed before every open, write, fsync, rename, unlink, mkdir and rmdir: the old state or the new one.

Whoever opens the directory next reads one or the other in full, from some moment on the new one; the next writer
succeeds, and leaves nothing of the killed one. `make test` tries some of the moments, the slow tests every one.
"""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import pretune as pt
from pretune.core.io import check_manifest
from pretune.data.prepared_data import PreparedData
from pretune.exporters.export import export
from pretune.inference.index import Index, build
from pretune.runs.prepare import prepare
from pretune.text.tokenizer import Tokenizer
from tests.contracts.tiny import model_of
from tests.data.texts import MANY, blocks, byte_tokenizer, tree
from tests.faults.deaths import die, ended, forked, watched
from tests.inference.readers import encoder
from tests.models.hf.test_overwriting import model_with_tokenizer, pair
from tests.selection import is_thorough, keep_quick

QUICK_STRIDE = 47


class Writer(NamedTuple):
    """Content of a directory, a write into it, and what a reader sees afterwards."""

    old: Callable[[Path], Any]
    new: Callable[[Path], Any]
    read: Callable[[Path], Any]
    adds: bool = False  # a second write adds to the first


def weights(model: Any) -> list[tuple[str, bytes]]:
    return [(name, tensor.numpy().tobytes()) for name, tensor in model.state_dict().items()]


def read_model(folder: Path) -> Any:
    model = pt.load(folder)
    check_manifest(folder)
    assets = getattr(model, "assets", None)
    return weights(model), assets and (assets.files, assets.modules)


def read_index(folder: Path) -> Any:
    index = Index.open(folder)
    return index.rows, [array.tobytes() for array in index.parts], index.search(["the cat"], 9, words=True)


def read_data(folder: Path) -> Any:
    PreparedData.open(folder)
    check_manifest(folder)
    return {name: content for name, content in tree(folder).items() if ".tmp-" not in name}


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Writer]:
    root = tmp_path_factory.mktemp("writers")
    pt.save(encoder(), root / "encoder")
    model, tokenizer = pt.load(root / "encoder"), byte_tokenizer(root / "bytes")
    corpus = [blocks(root / "a.txt", MANY[:40]), blocks(root / "b.txt", MANY[40:80])]
    for name, family in (("bert", "bert-base"), ("gpt2", "gpt2-small")):
        pt.save(model_of(family), root / name)

    def prepared(inputs: list[str]) -> Callable[[Path], Any]:
        return lambda out: prepare(inputs, tokenizer=tokenizer, out=out, workers=0, holdout="10%", overwrite=True)

    def added(method: str) -> Writer:
        return Writer(
            lambda out: build(model, ["the cat", "a dog runs"], out=out, method=method),
            lambda out: build(model, ["the old house"], out=out, add=True),
            read_index,
            adds=True,
        )

    return {
        "index": added("exact"),
        "graph": added("hnsw"),
        "save": Writer(
            lambda out: pt.save(model_with_tokenizer(1), out),
            lambda out: pt.save(model_with_tokenizer(2), out, overwrite=True),
            read_model,
        ),
        "save over a pair": Writer(
            lambda out: pt.save(pair(), out),
            lambda out: pt.save(model_of("bert-base"), out, overwrite=True),
            read_model,
        ),
        "tokenizer": Writer(
            lambda out: Tokenizer.load(root / "encoder").save(out),
            lambda out: Tokenizer.load(tokenizer).save(out, overwrite=True),
            lambda out: Tokenizer.load(out).sha256,
        ),
        "prepare": Writer(prepared(corpus), prepared(corpus[:1]), read_data),
        "prepare anew": Writer(
            lambda out: None, prepared(corpus), lambda out: read_data(out) if out.exists() else None
        ),
        "export": Writer(
            lambda out: export(root / "bert", out=out, to="hf"),
            lambda out: export(root / "gpt2", out=out, to="hf", overwrite=True),
            read_model,
        ),
    }


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # others are not here after a fork
    yield
    torch.set_num_threads(threads)


NAMES = ["index", "graph", "save", "save over a pair", "tokenizer", "prepare", "prepare anew", "export"]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", keep_quick(NAMES, "save", "prepare", "export"))
def test_killed_at_every_call(
    name: str, writers: dict[str, Writer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "graph":
        pytest.importorskip("faiss", reason="the extra `index` is not installed")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    writer, origin = writers[name], tmp_path / "origin"
    writer.old(origin)
    old = writer.read(origin)
    calls = 0
    for whole in (tmp_path / "first", tmp_path / "second"):  # the first one also imports modules
        if origin.exists():
            shutil.copytree(origin, whole)
        with watched(lambda _: None) as count:
            writer.new(whole)
            calls = count()
    new, files = writer.read(whole), tree(whole)
    assert old != new and calls > 10
    seen: list[int] = []
    for moment in range(1, calls + 1, 1 if is_thorough() else min(QUICK_STRIDE, calls // 2)):
        place = tmp_path / f"at-{moment}"
        place.mkdir()
        if origin.exists():
            shutil.copytree(origin, place / "out")

        def work(place: Path = place, moment: int = moment) -> None:
            with watched(die(moment)):
                writer.new(place / "out")

        assert ended(forked(work)) == -signal.SIGKILL
        state = writer.read(place / "out")
        assert state in (old, new), moment
        seen.append(int(state == new))
        if state == old or not writer.adds:
            writer.new(place / "out")
        assert writer.read(place / "out") == new
        left = {file for file in tree(place) if ".tmp-" in file or ".commit-" in file}
        assert left == set() or (state == new and writer.adds), moment
        assert writer.adds or tree(place / "out").keys() == files.keys(), moment
        shutil.rmtree(place)
    assert seen == sorted(seen) and seen[0] == 0
