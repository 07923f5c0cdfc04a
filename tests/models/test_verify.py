"""`verify` finds what is wrong and names the part; every byte of a saved directory is vouched for."""

import pickle
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import pretune as pt
from pretune.core.errors import CheckpointError
from pretune.core.io import MANIFEST, read_json, write_json, write_manifest
from pretune.models import catalog
from pretune.models import verify as module
from pretune.models.verify import verify

VOCAB = 30
FILES = [
    *("MANIFEST.json", "config.json", "generation_config.json", "model-00001-of-00002.safetensors"),
    *("model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json"),
]


def tokenizer(words: int) -> bytes:
    made = Tokenizer(WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0"))  # type: ignore[no-untyped-call]
    return made.to_str().encode()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model as `save` writes it, in two shards, with a tokenizer."""
    folder = tmp_path_factory.mktemp("verify") / "model"
    model = catalog.build("gpt2-small", width=16, depth=2, heads=2, vocab=VOCAB, positions=16)
    model.assets.files = {"tokenizer.json": tokenizer(20)}
    pt.save(model, folder, shard=20_000)
    assert sorted(file.name for file in folder.iterdir()) == FILES
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return shutil.copytree(original, tmp_path / "model")


@pytest.fixture
def bare(folder: Path) -> Path:
    """The same as a stranger's directory: without a manifest, in one file."""
    tensors = {
        name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()
    }
    for file in [*folder.glob("model*"), folder / MANIFEST]:
        file.unlink()
    save_file(tensors, folder / "model.safetensors")
    return folder


def flip(file: Path, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def grow(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b" ")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "truncated": truncate,
    "emptied": lambda file: file.write_bytes(b"") and None,
    "grown": grow,
    "deleted": Path.unlink,
    "first bit": lambda file: flip(file, 0),
    "middle bit": lambda file: flip(file, file.stat().st_size * 4),
    "last bit": lambda file: flip(file, file.stat().st_size * 8 - 1),
}


def test_a_whole_directory(original: Path) -> None:
    lines = verify(original)
    parts = [line.partition(": ")[0] for line in lines]
    assert parts == [MANIFEST, "config.json", "tensors", "values", "tokenizer.json", "generation_config.json"]
    numbers = [set(re.findall(r"\b\d[\d,]*\b", line.partition(": ")[2])) for line in lines]
    assert numbers[0] >= {"6"} and numbers[1:] == [{"7,328"}, {"28"}, {"7,328"}, {"20", "30"}, set()]
    assert "gpt2" in lines[1]


def test_a_stranger_s_directory_has_no_manifest(bare: Path) -> None:
    lines = verify(bare)
    assert lines[0].startswith(MANIFEST) and not re.search(r"\d", lines[0])
    assert len(lines) == 6


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [name for name in FILES if name != MANIFEST])
def test_every_damage_to_every_file_is_named(folder: Path, name: str, damage: str) -> None:
    DAMAGES[damage](folder / name)
    with pytest.raises(CheckpointError) as caught:
        verify(folder)
    assert str(caught.value).startswith(str(folder / name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", [damage for damage in DAMAGES if damage not in ("deleted", "grown")])
def test_damage_to_the_manifest_itself(folder: Path, damage: str) -> None:
    DAMAGES[damage](folder / MANIFEST)
    with pytest.raises(CheckpointError, match=MANIFEST):
        verify(folder)


def test_any_single_bit(folder: Path) -> None:
    draw = random.Random(0)
    for _ in range(120):
        file = folder / draw.choice(FILES)
        bit = draw.randrange(file.stat().st_size * 8)
        flip(file, bit)
        with pytest.raises(CheckpointError, match=r"json|safetensors"):
            verify(folder)
        flip(file, bit)
    verify(folder)


def test_a_manifest_must_list_the_weights(folder: Path) -> None:
    write_manifest(folder, ["config.json"])
    with pytest.raises(CheckpointError, match=rf"safetensors.*{MANIFEST}"):
        verify(folder)


class TestWithoutManifest:
    """Checks of files without a manifest."""

    def broken(self, folder: Path, part: str) -> str:
        with pytest.raises(CheckpointError) as caught:
            verify(folder)
        message = str(caught.value)
        assert part in message
        assert "\n" not in message
        return message

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_a_value_that_is_not_finite(self, bare: Path, monkeypatch: pytest.MonkeyPatch, value: float) -> None:
        monkeypatch.setattr(module.tensor_files, "CHUNK_VALUES", 7)
        file = bare / "model.safetensors"
        tensors = load_file(file)
        tensors["transformer.wte.weight"][29, 3] = value
        save_file(tensors, file)
        message = self.broken(bare, str(file))
        assert all(part in message for part in ("'transformer.wte.weight'", str(value), "[29, 3]"))

    def test_a_pickle_under_the_name_of_weights(self, bare: Path) -> None:
        (bare / "model.safetensors").write_bytes(pickle.dumps({"transformer.wte.weight": [1.0]}))
        assert "pickle" in self.broken(bare, str(bare / "model.safetensors"))

    @pytest.mark.parametrize("damage", ["truncated", "emptied", "deleted", "first bit"])
    def test_damaged_weights(self, bare: Path, damage: str) -> None:
        DAMAGES[damage](bare / "model.safetensors")
        self.broken(bare, "model.safetensors")

    @pytest.mark.parametrize("damage", ["truncated", "emptied", "deleted", "first bit"])
    @pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json"])
    def test_damaged_texts(self, bare: Path, name: str, damage: str) -> None:
        DAMAGES[damage](bare / name)
        if damage == "deleted" and name != "config.json":
            verify(bare)  # it may well never have been there
        else:
            self.broken(bare, name)

    def test_a_tensor_of_another_shape_a_missing_and_a_strange_one(self, bare: Path) -> None:
        file, name = bare / "model.safetensors", "transformer.h.1.ln_1.weight"
        right = load_file(file)
        save_file({**right, name: torch.zeros(17)}, file)
        assert "[17]" in self.broken(bare, name)
        save_file({key: tensor for key, tensor in right.items() if key != name}, file)
        self.broken(bare, name)
        save_file({**right, "strange": torch.zeros(1)}, file)
        self.broken(bare, "strange")

    def test_a_tokenizer_larger_than_the_vocabulary(self, bare: Path) -> None:
        (bare / "tokenizer.json").write_bytes(tokenizer(VOCAB))
        verify(bare)
        (bare / "tokenizer.json").write_bytes(tokenizer(VOCAB + 1))
        assert "30" in self.broken(bare, "tokenizer.json")

    def test_a_config_that_names_code(self, bare: Path) -> None:
        config = read_json(bare / "config.json", CheckpointError)
        write_json(bare / "config.json", {**config, "auto_map": {"AutoModel": "evil.Model"}})
        assert "auto_map" in self.broken(bare, "config.json")

    def test_no_directory(self, tmp_path: Path) -> None:
        self.broken(tmp_path / "absent", str(tmp_path / "absent"))
        (tmp_path / "file").touch()
        self.broken(tmp_path / "file", str(tmp_path / "file"))
        (tmp_path / "empty").mkdir()
        self.broken(tmp_path / "empty", "config.json")
