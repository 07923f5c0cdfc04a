"""Files that others can use: the umask alone decides who reads them, whichever library wrote them."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import pretune as pt
from pretune.runs.finetune.entry import finetune
from pretune.runs.pretrain import pretrain
from tests.data.texts import blocks, stories
from tests.exporters.test_gguf import build_model
from tests.runs import tasked
from tests.runs.small import FAST, shrunk
from tests.selection import keep_quick

NOBODY = 65534
SOURCE = Path(pt.__file__).parent
PRIVATE_WRITERS = ("save_file", "mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryDirectory")
"""Functions whose files only their owner can read."""


def write_everything(folder: Path) -> None:
    """Write a tokenizer, data, runs with checkpoints, an adapter, exports of every format, and indexes."""
    texts = stories(60)
    corpus = blocks(folder / "stories.txt", texts)
    pt.train_tokenizer("wordpiece", [corpus], vocab=300).save(folder / "tokenizer")
    pt.prepare([corpus], tokenizer=folder / "tokenizer", out=folder / "data", holdout=0.1)
    settings = {**shrunk("bert-tiny"), **FAST, "data.length_schedule": None, "train.checkpoint_every": 1}
    base = folder / "pretrained"
    pretrain("bert-tiny", data=folder / "data", out=base, steps=2, overrides=settings)
    table = tasked.classes(folder / "own.csv", 24)
    for method in ("full", "lora"):
        finetune(base, train=table, out=folder / method, method=method, steps=2, baselines="none")
    pt.save(build_model(), folder / "decoder")
    for name, form in (("full", "hf"), ("lora", "hf"), ("full", "onnx"), ("decoder", "gguf")):
        if form == "onnx" and find_spec("onnxruntime") is None:
            continue
        quantize = None if form == "hf" else "int8"
        pt.export(folder / name, out=folder / f"{name}-{form}", to=form, quantize=quantize)  # type: ignore[arg-type]
    for method in ("exact", "ivf", "hnsw") if find_spec("faiss") else ("exact",):
        pt.index(base, texts[:20], out=folder / f"index-{method}", method=method)
    pt.train_vectors([corpus], out=folder / "vectors", max_words=20)


@pytest.fixture(params=keep_quick([0o022, 0o027], 0o027), ids=oct, scope="module")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    folder = tmp_path_factory.mktemp("shared")
    old = os.umask(request.param)
    try:
        (folder / "all").mkdir()
        write_everything(folder / "all")
        yield request.param, folder / "all"
    finally:
        os.umask(old)
        shutil.rmtree(folder)


def test_the_umask_decides(written: tuple[int, Path]) -> None:
    umask, folder = written
    modes = {path: path.stat().st_mode & 0o777 for path in folder.rglob("*")}
    wrong = {
        str(path.relative_to(folder)): oct(mode)
        for path, mode in modes.items()
        if mode != ((0o777 if path.is_dir() else 0o666) & ~umask)
    }
    assert not wrong
    suffixes = {path.suffix for path in modes}
    assert {".safetensors", ".gguf", ".json", ".jsonl", ".npy", ".md"} <= suffixes


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
def test_another_user_reads_what_the_umask_allows(written: tuple[int, Path]) -> None:
    umask, folder = written
    parents = [parent for parent in folder.parents if not parent.stat().st_mode & 0o001]
    modes = [parent.stat().st_mode & 0o777 for parent in parents]  # pytest's own folders are private
    files = [path for path in folder.rglob("*") if path.is_file()]
    try:
        for parent, mode in zip(parents, modes, strict=True):
            parent.chmod(mode | 0o001)
        command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "cat", *map(str, files)]
        result = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        for parent, mode in zip(parents, modes, strict=True):
            parent.chmod(mode)
    assert bool(result.stderr) == bool(umask & 0o004), result.stderr


def test_private_files_are_written_in_known_places() -> None:
    """Tensors get their mode back; a traceback and a corpus for an estimate are for their owner only."""
    users = {
        file.relative_to(SOURCE).as_posix()
        for file in SOURCE.rglob("*.py")
        if any(f"{name}(" in file.read_text() for name in PRIVATE_WRITERS)
    }
    assert users == {"models/tensor_files.py", "cli/_errors.py", "runs/finetune/language_model.py"}
