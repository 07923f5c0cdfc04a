"""Safetensors files: headers, shards and their index, and everything that may be wrong with them."""

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretune.core.errors import CheckpointError, ResourceError
from pretune.models import tensor_files
from tests.faults.strangers import raw

A = torch.arange(6.0).reshape(2, 3)
B = torch.arange(4.0)


def entry(dtype: str = "F32", shape: tuple[int, ...] = (2,), at: tuple[int, int] = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(at)}


def test_what_is_written_is_found(tmp_path: Path) -> None:
    assert tensor_files.write_shards(tmp_path, {"a": A, "b": B.half()}, limit=10**9) == ["model.safetensors"]
    actual = tensor_files.read_headers(tmp_path)
    file = tmp_path / "model.safetensors"
    assert actual == {
        "a": tensor_files.TensorInfo(file, "a", (2, 3), "F32"),
        "b": tensor_files.TensorInfo(file, "b", (4,), "F16"),
    }
    values = list(tensor_files.read_tensors([actual["b"], actual["a"], actual["b"]]))
    assert torch.equal(values[1], A) and torch.equal(values[2], B.half())


def test_shards(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.full((8,), float(i)) for i in range(5)}
    names = tensor_files.write_shards(tmp_path, tensors, limit=70)
    assert names[:3] == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)] and names[3:] == [
        tensor_files.INDEX_FILE
    ]
    assert all(len(load_file(tmp_path / name)) <= 2 for name in names[:3])
    actual = tensor_files.read_headers(tmp_path)
    assert set(actual) == set(tensors) and len({stored.file for stored in actual.values()}) == 3
    for name, value in zip(actual, tensor_files.read_tensors(actual.values()), strict=True):
        assert torch.equal(value, tensors[name])


def test_a_tensor_beyond_the_limit_has_a_shard_of_its_own(tmp_path: Path) -> None:
    assert len(tensor_files.write_shards(tmp_path, {"a": A, "b": B, "c": B.clone()}, limit=1)) == 4


def test_every_length_of_header_is_read(tmp_path: Path) -> None:
    """Also those whose first byte is that of a pickle."""
    first = set()
    for n in range(1, 300, 2):
        save_file({"x" * n: B}, tmp_path / "model.safetensors")
        first.add((tmp_path / "model.safetensors").read_bytes()[0])
        assert set(tensor_files.read_headers(tmp_path)) == {"x" * n}
    assert 0x80 in first


HEADERS = {
    "empty": b"",
    "short": b"\x08\x00\x00",
    "no header": raw({}, length=0)[:8],
    "header longer than the file": raw({"a": entry()}, bytes(8), length=500),
    "huge header": raw({"a": entry()}, bytes(8), length=2**63),
    "not UTF-8": raw(b'{"\xff\xfe": 1}'),
    "not JSON": raw(b"hello, world"),
    "a list": raw(b"[]"),
    "nested": raw(b'{"a":' * 5000 + b"1" + b"}" * 5000),
    "no dtype": raw({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
    "unknown dtype": raw({"a": entry("F33")}, bytes(8)),
    "negative shape": raw({"a": entry(shape=(-2,))}, bytes(8)),
    "shape and offsets disagree": raw({"a": entry(shape=(3,))}, bytes(8)),
    "shape overflows": raw({"a": entry(shape=(2**40, 2**40))}, bytes(8)),
    "offsets beyond the file": raw({"a": entry(at=(0, 8))}, bytes(4)),
    "offsets reversed": raw({"a": entry(at=(8, 0))}, bytes(8)),
    "overlap": raw({"a": entry(), "b": entry(at=(4, 12))}, bytes(12)),
    "hole": raw({"a": entry(), "b": entry(at=(12, 20))}, bytes(20)),
    "bytes left over": raw({"a": entry()}, bytes(16)),
    "given twice": raw(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "a": 7}', bytes(8)),
    "name of two lines": raw({"a\nb\x1b[31m": entry(at=(0, 4))}, bytes(8)),
}


@pytest.mark.parametrize("name", HEADERS)
def test_malformed(name: str, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(HEADERS[name])
    with pytest.raises(CheckpointError, match=rf"^{file}: ") as caught:
        tensor_files.read_headers(tmp_path)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


@pytest.mark.parametrize("header", [{}, {"__metadata__": {"format": "pt"}}, {"a": entry(shape=(0,), at=(0, 0))}])
def test_nothing_inside(header: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(raw(header))
    assert all(stored.shape == (0,) for stored in tensor_files.read_headers(tmp_path).values())


def test_other_types_are_told_not_read(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(
        raw({"a": entry("I8", (8,)), "b": entry("F8_E4M3", (4,), (8, 12))}, bytes(12))
    )
    assert {stored.dtype for stored in tensor_files.read_headers(tmp_path).values()} == {"I8", "F8_E4M3"}


def pickled(file: Path, protocol: int) -> None:
    file.write_bytes(pickle.dumps({"a": [1.0] * 100}, protocol=protocol))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", ["model.safetensors", "model-00001-of-00001.safetensors"])
def test_a_pickle_under_another_name(name: str, protocol: int, tmp_path: Path) -> None:
    pickled(tmp_path / name, protocol)
    if name != tensor_files.SINGLE_FILE:
        (tmp_path / tensor_files.INDEX_FILE).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match=rf"{name}: .*pickle"):
        tensor_files.read_headers(tmp_path)


def test_an_archive_of_pickles_under_another_name(tmp_path: Path) -> None:
    torch.save({"a": A}, tmp_path / "model.safetensors")
    assert zipfile.is_zipfile(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model.safetensors: .*pickle"):
        tensor_files.read_headers(tmp_path)


@pytest.mark.parametrize("suffix", tensor_files.PICKLE_SUFFIXES)
def test_a_pickle_under_its_own_name(suffix: str, tmp_path: Path) -> None:
    for name in ("training_args", "optimizer", "pytorch_model"):
        pickled(tmp_path / f"{name}{suffix}", 4)
    with pytest.raises(CheckpointError, match=f"pytorch_model{suffix}: .*pickle"):
        tensor_files.read_headers(tmp_path)


def test_a_pickle_beside_good_weights_is_left_alone(tmp_path: Path) -> None:
    save_file({"b": B}, tmp_path / "model.safetensors")
    pickled(tmp_path / "pytorch_model.bin", 4)
    assert set(tensor_files.read_headers(tmp_path)) == {"b"}


def test_no_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()  # a folder is no file
    with pytest.raises(CheckpointError, match=r"model.safetensors .*model.safetensors.index.json"):
        tensor_files.read_headers(tmp_path)


def test_a_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(CheckpointError, match=rf"{tmp_path}: .*Permission denied"):
        tensor_files.read_headers(tmp_path)


NAMES = [
    "../model.safetensors", "/etc/passwd", "/tmp/model.safetensors", "a/b.safetensors", "..", ".safetensors", "",
    "model.bin", "model.safetensors\x00", "a\\b.safetensors", "C:model.safetensors", "\ud800.safetensors",
    "x" * 5000 + ".safetensors", "a\nb.safetensors", "~/m.safetensors", 7, None, ["a.safetensors"], {"a": 1},
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_in_an_index(name: Any, tmp_path: Path) -> None:
    (tmp_path / tensor_files.INDEX_FILE).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match=r"\.safetensors") as caught:
        tensor_files.read_headers(tmp_path)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


@pytest.mark.parametrize("table", [None, [], {}, 7, "model.safetensors", [["a", "b"]]])
def test_an_index_without_a_map(table: Any, tmp_path: Path) -> None:
    (tmp_path / tensor_files.INDEX_FILE).write_text(json.dumps({"weight_map": table}))
    with pytest.raises(CheckpointError, match=r"index.json: .*'weight_map'"):
        tensor_files.read_headers(tmp_path)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    tensor_files.write_shards(tmp_path, {"a": A, "b": B}, limit=1)
    return tmp_path


def test_a_shard_is_missing(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002.safetensors: .*index.json"):
        tensor_files.read_headers(sharded)


@pytest.mark.parametrize(
    ("tensor", "name", "message"),
    [
        ("c", "model-00003-of-00003.safetensors", "index.json"),
        ("c", "model-00001-of-00002.safetensors", f"'c'.*{tensor_files.INDEX_FILE}"),
        ("c", "model-00002-of-00002.safetensors", f"'c'.*{tensor_files.INDEX_FILE}"),
        ("a", "model-00002-of-00002.safetensors", "'a'"),
    ],
)
def test_an_index_that_lists_what_is_not_there(tensor: str, name: str, message: str, sharded: Path) -> None:
    """A file, a tensor of a file, and a tensor of another file."""
    index = json.loads((sharded / tensor_files.INDEX_FILE).read_text())
    index["weight_map"][tensor] = name
    (sharded / tensor_files.INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=f"{name}: .*{message}"):
        tensor_files.read_headers(sharded)


def test_a_tensor_in_two_shards(sharded: Path) -> None:
    save_file({"a": A, "b": B}, sharded / "model-00002-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"00002.safetensors: .*'a'.*model-00001-of-00002.safe"):
        tensor_files.read_headers(sharded)


def test_a_file_that_breaks_after_its_header_was_read(tmp_path: Path) -> None:
    tensor_files.write_shards(tmp_path, {"a": A, "b": B}, limit=10**9)
    actual = tensor_files.read_headers(tmp_path)
    (tmp_path / tensor_files.SINGLE_FILE).write_bytes(b"gone")
    with pytest.raises(CheckpointError, match=r"model.safetensors: "):
        list(tensor_files.read_tensors(actual.values()))
    (tmp_path / tensor_files.SINGLE_FILE).unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors: .*No such file"):
        list(tensor_files.read_tensors(actual.values()))


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_files, "save_file", full)
    with pytest.raises(ResourceError, match=str(tmp_path)):
        tensor_files.write_shards(tmp_path, {"a": A}, limit=10)
