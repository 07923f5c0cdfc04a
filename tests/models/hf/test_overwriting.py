"""Saving over an earlier save: nothing of it is left, and nothing of it is lost before the new one is complete."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models

import pretune as pt
from pretune.adaptation.peft.io import HEAD_FILE, save_adapter
from pretune.core import io
from pretune.core.errors import ResourceError, UsageError
from pretune.models import catalog
from pretune.models.families import FAMILIES
from pretune.models.hf import checkpoint, files
from pretune.models.model import LanguageModel, build
from pretune.models.tensor_files import SENTENCE_FILES
from pretune.models.verify import verify
from tests.contracts.tiny import CASES

BERT, GPT2 = "bert-base", "gpt2-small"
POOLING = {
    "modules.json": b'[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},'
    b' {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]',
    "1_Pooling/config.json": b'{"word_embedding_dimension": 32, "pooling_mode_max_tokens": true}',
    "sentence_bert_config.json": b'{"max_seq_length": 8}',
    "config_sentence_transformers.json": b"{}",
}


def listing(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def model_with_tokenizer(seed: int) -> LanguageModel:
    model = build(CASES[BERT], seed=seed)
    raw = Tokenizer(models.WordLevel({f"w{i}": i for i in range(9)}, unk_token="w0"))
    model.assets.files = {"tokenizer.json": raw.to_str().encode(), "vocab.txt": b"w0"}
    model.assets.modules = dict(POOLING)
    return model


def pair() -> Any:
    spec = catalog.resolve("electra-small", {"width": 64, "depth": 1, "heads": 1, "vocab": 64, "positions": 16})
    build_pretraining_spec = FAMILIES.get("electra").build_pretraining_spec
    assert build_pretraining_spec is not None
    return catalog.build(build_pretraining_spec(spec))


def is_same(a: Any, b: Any) -> bool:
    one, two = a.state_dict(), b.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_a_model_replaces_an_adapter(tmp_path: Path) -> None:
    base, new = build(CASES[BERT], seed=1), build(CASES[BERT], seed=2)
    pt.save(base, tmp_path / "base")
    adapted, method = pt.load(tmp_path / "base"), pt.LoRA(rank=2)
    assert isinstance(adapted, LanguageModel)
    pt.add_adapter(adapted, method)
    save_adapter(adapted, method, tmp_path / "m", base=str(tmp_path / "base"))
    pt.save(new, tmp_path / "m", overwrite=True)
    assert is_same(pt.load(tmp_path / "m"), new)
    assert listing(tmp_path / "m") == {"MANIFEST.json", "config.json", "model.safetensors"}


def test_a_model_without_tokenizer_and_pooling_replaces_one_with_them(tmp_path: Path) -> None:
    pt.save(model_with_tokenizer(1), tmp_path / "m")
    (tmp_path / "m" / "run.json").write_text("{}")
    pt.save(build(CASES[BERT], seed=2), tmp_path / "m", overwrite=True)
    loaded = pt.load(tmp_path / "m")
    assert isinstance(loaded, LanguageModel)
    assert (loaded.tokenizer, loaded.assets.files, loaded.assets.modules) == (None, {}, {})
    assert listing(tmp_path / "m") >= {"run.json"}  # not a file of a model


def test_a_single_model_replaces_a_pair(tmp_path: Path) -> None:
    pt.save(pair(), tmp_path / "m")
    pt.save(build(CASES[BERT], seed=2), tmp_path / "m", overwrite=True)
    assert listing(tmp_path / "m") == {"MANIFEST.json", "config.json", "model.safetensors"}
    verify(tmp_path / "m")


def test_other_files_in_the_folder_of_a_partner_are_left(tmp_path: Path) -> None:
    pt.save(pair(), tmp_path / "m")
    (tmp_path / "m" / "generator" / "notes.txt").write_text("mine")
    pt.save(build(CASES[BERT], seed=2), tmp_path / "m", overwrite=True)
    assert listing(tmp_path / "m" / "generator") == {"notes.txt"}


def test_files_behind_a_link_are_left(tmp_path: Path) -> None:
    pt.save(build(CASES[BERT], seed=1), tmp_path / "m")
    pt.save(build(CASES[BERT], seed=2), tmp_path / "other")
    (tmp_path / "m" / "generator").symlink_to(tmp_path / "other")
    pt.save(build(CASES[BERT], seed=3), tmp_path / "m", overwrite=True)
    verify(tmp_path / "other")


def test_a_tokenizer_alone_is_no_earlier_save(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    for name, data in model_with_tokenizer(1).assets.files.items():
        (tmp_path / "m" / name).write_bytes(data)
    pt.save(build(CASES[BERT], seed=2), tmp_path / "m", overwrite=True)
    loaded = pt.load(tmp_path / "m")
    assert isinstance(loaded, LanguageModel) and loaded.tokenizer is not None


def test_a_failed_save_of_a_pair_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first model of the pair is written, in one file instead of shards; for the second the disk is full."""
    checkpoint.save(pair(), tmp_path / "m", shard=20_000)
    names, write = listing(tmp_path / "m"), checkpoint._write

    def write_first(part: Any, folder: Path, *rest: Any, **options: Any) -> None:
        if folder.name == "generator":
            raise OSError(28, "No space left on device")
        write(part, folder, *rest, **options)

    monkeypatch.setattr(checkpoint, "_write", write_first)
    with pytest.raises(ResourceError):
        checkpoint.save(pair(), tmp_path / "m", overwrite=True)
    assert listing(tmp_path / "m") == names
    verify(tmp_path / "m")


def test_a_refused_save_keeps_the_old_one(tmp_path: Path) -> None:
    old = build(CASES[GPT2], seed=1)
    checkpoint.save(old, tmp_path / "m", shard=10_000)
    (tmp_path / "m" / "generation_config.json").unlink()
    (tmp_path / "m" / "generation_config.json").mkdir()
    with pytest.raises(UsageError, match="generation_config"):
        pt.save(build(CASES[GPT2], seed=2), tmp_path / "m", overwrite=True)
    assert is_same(pt.load(tmp_path / "m"), old)
    assert (tmp_path / "m" / io.MANIFEST).is_file()


class KilledError(BaseException):
    """Death of the process."""


@pytest.mark.parametrize(
    "limits",
    [(30_000, 60_000), *(pytest.param(way, marks=pytest.mark.slow) for way in ((10**9, 30_000), (30_000, 10**9)))],
)
def test_a_kill_leaves_one_whole_model_or_the_other(
    limits: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before every removal and every move into the directory: the old model with all its files, then the new one."""
    versions = [model_with_tokenizer(1), model_with_tokenizer(2)]
    versions[1].assets.files["vocab.txt"], versions[1].assets.modules = b"w1", {}
    replace, rename, unlink = os.replace, os.rename, Path.unlink
    seen: list[int] = []
    for steps in range(100):
        folder = tmp_path / str(steps)
        checkpoint.save(versions[0], folder, shard=limits[0])
        calls = iter(range(steps))

        def die(path: Any, calls: Any = calls, folder: Path = folder) -> None:
            if Path(path).parent == folder and next(calls, None) is None:
                raise KilledError

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", lambda old, new: (die(new), replace(old, new))[1])
            patch.setattr(os, "rename", lambda old, new: (die(new), rename(old, new))[1])
            patch.setattr(Path, "unlink", lambda path, missing_ok=False: (die(path), unlink(path, missing_ok))[1])
            try:
                checkpoint.save(versions[1], folder, overwrite=True, shard=limits[1])
                break
            except KilledError:
                pass
        loaded = pt.load(folder)
        assert isinstance(loaded, LanguageModel)
        seen.append(0 if is_same(loaded, versions[0]) else 1)
        version = versions[seen[-1]]
        assert is_same(loaded, version)
        assert loaded.assets.files == version.assets.files and loaded.assets.modules == version.assets.modules
        verify(folder)
    assert steps > 10 and seen == sorted(seen) and set(seen) == {0, 1} and is_same(pt.load(folder), versions[1])
    verify(folder)


def test_the_next_save_replaces_all_files_of_a_save() -> None:
    names = [*files.ASSET_FILES, *SENTENCE_FILES, *checkpoint.SAVED_FILES, io.MANIFEST, HEAD_FILE]
    names = [name.replace("?", "0").replace("*", "bert") for name in names]
    for name in [*names, *(f"{folder}/{name}" for folder in checkpoint.PARTNER_FOLDERS for name in names)]:
        assert io.OWNERS["model"].pattern.fullmatch(name), name
    for name in (
        "run.json",
        "README.md",
        "checkpoints/config.json",
        "notes/config.json",
        "metrics.jsonl",
        "a/b/config.json",
    ):
        assert not io.OWNERS["model"].pattern.fullmatch(name), name
