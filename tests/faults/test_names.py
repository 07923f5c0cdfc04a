"""Names that files of strangers give, everywhere one is read: none leads out of its directory."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

import pretune as pt
from pretune.analysis.held_out import find_data, iterate_runs
from pretune.core.errors import CheckpointError, DataError, PretuneError
from pretune.core.io import write_manifest
from pretune.data.prepare.stage import StageReader
from pretune.data.prepared_data import SLICE_FILE as SLICE
from pretune.data.prepared_data import PreparedData
from pretune.data.shards import Shards
from pretune.models import tensor_files
from pretune.models.verify import verify
from pretune.reports.load import load_directory
from tests.data.corpora import random_documents
from tests.data.corpora import write as write_shards
from tests.faults.strangers import WEIGHTS, directory
from tests.inference.readers import encoder

ELSEWHERE = ["../x", "..", "{place}/x", "a/../../x", "link"]


@pytest.fixture(params=ELSEWHERE)
def name(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Path], str]:
    """Gives a name that leads out of a folder, where `x` lies."""

    def make(folder: Path) -> str:
        (tmp_path / "x").mkdir(exist_ok=True)
        (tmp_path / "x" / "file").touch()
        if request.param == "link":
            (folder / "link").symlink_to(tmp_path / "x")
        return str(request.param).format(place=tmp_path)

    return make


def sharded(folder: Path) -> Path:
    """A model in two files of weights."""
    directory(folder)
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    half = len(tensors) // 2
    table = {}
    for number, part in enumerate((list(tensors)[:half], list(tensors)[half:])):
        tensor_files.save_tensors({key: tensors[key] for key in part}, folder / f"part-{number}.safetensors")
        table |= dict.fromkeys(part, f"part-{number}.safetensors")
    (folder / tensor_files.INDEX_FILE).write_text(json.dumps({"weight_map": table}))
    return folder


def test_weights_behind_a_link_out_of_the_directory(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m")
    pt.load(folder)
    (folder / "part-0.safetensors").rename(tmp_path / "part-0.safetensors")
    (folder / "part-0.safetensors").symlink_to("../part-0.safetensors")
    with pytest.raises(CheckpointError, match=r"part-0\.safetensors"):
        pt.load(folder)


@pytest.mark.parametrize("make", [directory, sharded])
def test_a_hugging_face_cache_is_read(make: Callable[[Path], Path], tmp_path: Path) -> None:
    cache = tmp_path / "models--a--b"
    (cache / "blobs").mkdir(parents=True)
    snapshot = make(cache / "snapshots" / "abc")
    for number, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(cache / "blobs" / str(number))
        file.symlink_to(f"../../blobs/{number}")
    assert pt.load(snapshot).spec == pt.load(directory(tmp_path / "plain")).spec


def test_modules_of_sentence_transformers(name: Callable[[Path], str], tmp_path: Path) -> None:
    folder = directory(tmp_path / "m")
    modules = [{"idx": 0, "type": "models.Transformer", "path": ""}]
    modules += [{"idx": 1, "type": "sentence_transformers.models.Pooling", "path": name(folder)}]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        pt.load(folder)


def test_runs_of_results(name: Callable[[Path], str], tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "run.json").write_text("{}")
    rows = [{"method": "a", "labels": 1, "mean": 0.5, "seeds": 1}]
    (folder / "results.json").write_text(json.dumps({"rows": rows, "runs": [name(folder)]}))
    with pytest.raises(DataError, match=r"results\.json"):
        load_directory(folder)


def test_units_of_a_slice(name: Callable[[Path], str], tmp_path: Path) -> None:
    """Temporary files, removed after reading."""
    folder = tmp_path / "m"
    folder.mkdir()
    facts = {"documents": 0, "counts": {}, "languages": {}, "shard": [1, 2], "units": [name(folder)]}
    (folder / SLICE).write_text(json.dumps(facts))
    with pytest.raises(DataError, match=SLICE):
        [*StageReader(folder).iter_pieces(remove=True)]
    assert (tmp_path / "x" / "file").is_file()


@pytest.mark.parametrize("linked", ["train", "train/00000.tokens.npy"])
def test_shards_behind_a_link(linked: str, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    write_shards(folder, random_documents(0, 3))
    Shards.open(folder)
    shutil.move(folder / linked, tmp_path / "x")
    (folder / linked).symlink_to(tmp_path / "x")
    with pytest.raises(DataError, match=linked.rpartition("/")[2]):
        Shards.open(folder)


def test_a_manifest_of_links(tmp_path: Path) -> None:
    folder = directory(tmp_path / "m")
    (folder / WEIGHTS).rename(tmp_path / WEIGHTS)
    (folder / WEIGHTS).symlink_to(tmp_path / WEIGHTS)
    pt.load(folder)  # a file of a standard name may be a link
    write_manifest(folder, [WEIGHTS])
    with pytest.raises(CheckpointError, match=WEIGHTS):
        verify(folder)


IMPOSSIBLE = {
    "long": "x" * 5000,
    "many parts": "x/" * 3000,
    "null": "a\0b",
    "surrogate": "\ud800",
    "a long part": "x" * 300,
}
PATH_READERS: dict[str, Callable[[str], object]] = {
    "load": pt.load,
    "verify": pt.verify,
    "tokenizer": pt.Tokenizer.load,
    "tokenizer text": lambda path: pt.train_tokenizer("wordpiece", [path], vocab=100),
    "prepare": lambda path: pt.prepare([path], tokenizer="t", out="o"),
    "prepare --out": lambda path: pt.prepare(["t.txt"], tokenizer="t", out=path),
    "prepare --tokenizer": lambda path: pt.prepare(["t.txt"], tokenizer=path, out="o"),
    "prepared data": PreparedData.open,
    "pretrain --data": lambda path: pt.pretrain("bert-tiny", data=path, out="o"),
    "pretrain --out": lambda path: pt.pretrain("bert-tiny", data="d", out=path),
    "pretrain --config": lambda path: pt.pretrain(config=path, out="o"),
    "pretrain --from": lambda path: pt.pretrain("bert-tiny", data="d", init_from=path, out="o"),
    "pretrain --resume": lambda path: pt.pretrain(out=path, resume=True),
    "finetune": lambda path: pt.finetune(path, task="sst2", out="o"),
    "finetune --train": lambda path: pt.finetune("m", train=path, out="o"),
    "finetune --data": lambda path: pt.finetune("m", task="sst2", data=path, out="o"),
    "predict": lambda path: pt.predict(path, ["a"]),
    "evaluate": lambda path: pt.evaluate(path, "sst2"),
    "evaluate --data": lambda path: pt.evaluate("m", "minimal_pairs", data=path),
    "report": lambda path: pt.report([path], "o.html"),
    "embed": lambda path: pt.embed(path, ["a"]),
    "save": lambda path: pt.save(encoder(), path),
    "index": pt.Index.open,
    "index --out": lambda path: pt.index(encoder(), ["a"], out=path),
    "index --add": lambda path: pt.index(encoder(), ["a"], out=path, add=True),
    "search": lambda path: pt.search(path, ["a"]),
    "vectors": lambda path: pt.train_vectors([path], kind="ppmi"),
    "vectors --out": lambda path: pt.train_vectors(["t.txt"], kind="ppmi", out=path),
    "compare": lambda path: pt.compare(path, out="o"),
    "diff": lambda path: pt.analyze_diff(path, path),
    "embeddings": lambda path: pt.train_embeddings("m", train=path, out="o"),
}


@pytest.mark.parametrize("path", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
@pytest.mark.parametrize("reader", PATH_READERS)
def test_impossible_paths(reader: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No system has such a file: looking it up is an error of ours, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text("a b")
    with pytest.raises(PretuneError):
        PATH_READERS[reader](path)
    assert [file.name for file in tmp_path.iterdir()] == ["t.txt"]


def test_a_run_that_is_its_own_base(tmp_path: Path) -> None:
    """Settings may name any run as a base."""
    bases = {"a": "b", "b": "a", "c": "c"}
    for name, base in bases.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"format": 2, "base": {"path": str(tmp_path / base)}}))
    for name, base in bases.items():
        assert [path.name for path in iterate_runs(tmp_path / name)] == [*dict.fromkeys((name, base))]
        assert find_data(tmp_path / name) is None
