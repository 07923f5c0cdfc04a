"""`hf:OWNER/NAME` wherever a model can be given: a cache laid out as the hub's library does it, and no network."""

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import pretune as pt
from pretune.cli import main
from pretune.core import hub
from pretune.core.errors import PretuneError, ResourceError, UsageError
from pretune.models.hf import checkpoint
from tests.conftest import Capture, run_command
from tests.contracts.tiny import model_of
from tests.runs import tasked

NAME = "hf:someone/small"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in the layout of the cache, with a branch and a tag that point to its commit."""
    home = tmp_path_factory.mktemp("home")
    model = home / "hub" / "models--someone--small"
    found = model / "snapshots" / COMMIT
    shutil.copytree(tasked.make_base(tmp_path_factory.mktemp("base")), found)
    (model / "refs").mkdir()
    for name in ("main", "v1"):
        (model / "refs" / name).write_text(COMMIT)
    return found


class Library(ModuleType):
    """The part of `huggingface_hub` that we call; what it is asked for is kept."""

    def __init__(self, home: Path, fault: Exception | None) -> None:
        super().__init__("huggingface_hub")
        self.home, self.fault, self.asked = home, fault, list[dict[str, Any]]()
        self.utils = SimpleNamespace(disable_progress_bars=lambda: None)

    def snapshot_download(self, *, repo_id: str, local_files_only: bool = False, **wishes: Any) -> str:
        self.asked.append({"repo_id": repo_id, "local_files_only": local_files_only, **wishes})
        if self.fault is not None and not local_files_only:
            raise self.fault
        folder = self.home / f"models--{repo_id.replace('/', '--')}"
        ref = folder / "refs" / (wishes["revision"] or "main")
        if not ref.is_file():
            raise FileNotFoundError("no snapshot here")
        return str(folder / "snapshots" / ref.read_text())

    def list_repo_files(self, repo_id: str, *, revision: str | None = None) -> list[str]:
        if self.fault is not None:
            raise self.fault
        return ["config.json", "pytorch_model.bin"]


def library(snapshot: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception | None = None) -> Library:
    made = Library(snapshot.parents[2], fault)
    monkeypatch.setitem(sys.modules, "huggingface_hub", made)
    return made


def kind(name: str) -> Exception:
    """An error of the library, known by its name alone."""
    return type(name, (Exception,), {})("https://huggingface.co said\nmore than one line")


@pytest.fixture
def hub_library(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    return library(snapshot, monkeypatch)


def test_a_model_is_loaded_by_its_name(hub_library: Library, snapshot: Path) -> None:
    model = pt.load(NAME)
    assert model.tokenizer is not None and model.spec == pt.load(snapshot).spec
    (asked,) = hub_library.asked
    assert asked["repo_id"] == "someone/small" and asked["revision"] is None
    pt.load(f"{NAME}@v1")
    assert hub_library.asked[-1]["revision"] == "v1"


def test_nothing_that_can_run_code_is_fetched(hub_library: Library) -> None:
    from fnmatch import fnmatch

    hub.resolve_path(NAME)
    patterns = hub_library.asked[0]["allow_patterns"]
    for name in ("config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json"):
        assert any(fnmatch(name, pattern) for pattern in patterns), name
    for name in (
        "pytorch_model.bin",
        "model.pt",
        "training_args.bin",
        "modeling_own.py",
        "a.pkl",
        "x.ckpt",
        "x.msgpack",
    ):
        assert not any(fnmatch(name, pattern) for pattern in patterns), name


def test_a_copy_is_used_where_the_hub_is_out_of_reach(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = library(snapshot, monkeypatch, kind("ConnectError")).asked
    assert hub.resolve_path(NAME) == snapshot
    assert [one["local_files_only"] for one in asked] == [False, True]


@pytest.mark.parametrize(
    ("fault", "error", "told"),
    [
        ("ConnectError", ResourceError, "ConnectError"),
        ("LocalEntryNotFoundError", ResourceError, "directory"),
        ("OfflineModeIsEnabled", ResourceError, "directory"),
        ("RepositoryNotFoundError", UsageError, "hub"),
        ("RevisionNotFoundError", UsageError, "revision"),
        ("GatedRepoError", UsageError, "hf auth login"),
    ],
)
def test_what_can_go_wrong(
    snapshot: Path, monkeypatch: pytest.MonkeyPatch, fault: str, error: type[PretuneError], told: str
) -> None:
    library(snapshot, monkeypatch, kind(fault))
    with pytest.raises(error) as found:
        hub.resolve_path("hf:someone/other")
    assert told in str(found.value) and "\n" not in str(found.value)
    assert str(found.value).startswith("hf:someone/other: ")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'pretune[hub]'" in run_command(capsys, ["fill", NAME, "a ___"], code=2).err


@pytest.mark.parametrize(
    "name",
    [
        "hf:",
        "hf:a/b/c",
        "hf:a b",
        "hf:../x/../y",
        "hf:../etc",
        "hf:a/..",
        "hf:.",
        "hf:a..b/c",
        "hf:-a/b",
        "hf:/etc",
        "hf:a/b@",
        "hf:a/b@../../x",
    ],
)
def test_what_is_no_name(hub_library: Library, name: str) -> None:
    with pytest.raises(UsageError, match="hf:OWNER/NAME"):
        hub.resolve_path(name)
    assert not hub_library.asked


def test_a_model_without_safetensors(snapshot: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = tmp_path / "models--someone--old" / "snapshots" / COMMIT
    found.mkdir(parents=True)
    (found / "pytorch_model.bin").write_bytes(b"pickle")
    (tmp_path / "models--someone--old" / "refs").mkdir()
    (tmp_path / "models--someone--old" / "refs" / "main").write_text(COMMIT)
    monkeypatch.setitem(sys.modules, "huggingface_hub", Library(tmp_path, None))
    with pytest.raises(UsageError, match="safetensors"):
        hub.resolve_path("hf:someone/old")


@pytest.mark.parametrize("removed", ["*.safetensors", "model-00001-*", "model*"])
def test_an_interrupted_download_without_a_network(
    removed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    """The library then returns the incomplete snapshot, without an error."""
    found = tmp_path / "models--someone--big" / "snapshots" / COMMIT
    checkpoint.save(model_of("bert-base"), found, shard=30_000)
    (tmp_path / "models--someone--big" / "refs").mkdir()
    (tmp_path / "models--someone--big" / "refs" / "main").write_text(COMMIT)
    offline = Library(tmp_path, None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", offline)
    offline.list_repo_files = Library(tmp_path, kind("OfflineModeIsEnabled")).list_repo_files  # type: ignore[method-assign]
    assert hub.resolve_path("hf:someone/big") == found
    for file in found.glob(removed):
        file.unlink()
    with pytest.raises(ResourceError, match="OfflineModeIsEnabled"):
        pt.load("hf:someone/big")
    assert "network" in run_command(capsys, ["show", "hf:someone/big"], code=6).err


def test_verbs_take_it(hub_library: Library, tmp_path: Path, capsys: Capture) -> None:
    lines, out = tmp_path / "lines.txt", tmp_path / "out"
    lines.write_text("a lovely sea.\nthe dreadful wind.\n")
    table = tasked.classes(tmp_path / "own.csv", 30)
    for words in (
        ["show", NAME],
        ["verify", NAME],
        ["fill", NAME, "a ___ sea."],
        ["export", NAME, "--to=hf", f"--out={out}"],
        ["embed", NAME, f"--input={lines}", f"--out={tmp_path / 'v.npy'}"],
        ["index", NAME, f"--input={lines}", f"--out={tmp_path / 'index'}"],
        ["search", str(tmp_path / "index"), "lovely sea"],
        ["evaluate", NAME, f"--text={lines}"],
        ["finetune", NAME, f"--train={table}", "--method=lora", "--steps=1", "--baselines=none",
         f"--out={tmp_path / 'run'}"],
        ["predict", str(tmp_path / "run"), f"--input={lines}"],
    ):  # fmt: skip
        assert main(["--quiet", *words]) == 0, capsys.readouterr().err
        assert capsys.readouterr().err == ""
    assert json.loads((tmp_path / "run" / "run.json").read_text())["base"]["path"] == NAME


def test_the_library_itself_finds_the_copy(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(snapshot.parents[2]))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert hub.resolve_path(NAME) == snapshot
    with pytest.raises(ResourceError, match="hf:someone/absent"):
        hub.resolve_path("hf:someone/absent")
