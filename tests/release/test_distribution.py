"""The wheel and the source distribution: what they hold, and that they run in an empty environment."""

import email
import re
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import pretune
from tests.conftest import ROOT
from tests.release.distribution import build, copy_sources

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {"bleu", "docs", "hub", "index", "onnx", "parquet", "quickstart", "serve", "trackers", "zstd"}
OTHERS = ("tests/test_doctests.py", "runs/model/model.safetensors", "shared/data.txt", "data/card.md", "build/old.py")
"""Files of a checkout that no release holds."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str], set[str]]:
    """The wheel, its files, and those of the source distribution."""
    folder = copy_sources(tmp_path_factory.mktemp("release") / "sources")
    for name in OTHERS:
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("")
    wheel, sdist = build(folder)
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {*archive.namelist()}
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    return wheel, in_wheel, in_sdist


@pytest.mark.slow
def test_everything_of_the_package_is_there(files: tuple[Path, set[str], set[str]]) -> None:
    _, in_wheel, in_sdist = files
    needed = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src/pretune").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"pretune/py.typed", "pretune/reports/report.html"} <= needed
    assert sorted(needed - in_wheel) == []
    assert sorted(needed - {name.removeprefix("src/") for name in in_sdist}) == []


def test_nothing_else_is_there(files: tuple[Path, set[str], set[str]]) -> None:
    wheel, in_wheel, in_sdist = files
    information = f"pretune-{pretune.__version__}.dist-info"
    assert {name.partition("/")[0] for name in in_wheel} == {"pretune", information}
    assert f"{information}/licenses/LICENSE" in in_wheel
    tops = {name.partition("/")[0] for name in in_sdist if name}
    own = {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "constraints.txt", "pyproject.toml"}
    assert tops == own | {"src", "MANIFEST.in", "PKG-INFO", "setup.cfg"}
    assert wheel.stat().st_size < (30 + 3) * 2**20  # at most 30 MiB of two small pre-trained models, 3 of the package


def test_metadata(files: tuple[Path, set[str], set[str]]) -> None:
    with zipfile.ZipFile(files[0]) as archive:
        text = archive.read(f"pretune-{pretune.__version__}.dist-info/METADATA").decode()
    metadata = email.message_from_string(text)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Version"] == pretune.__version__
    assert {*metadata.get_all("Provides-Extra", [])} >= EXTRAS
    assert re.search(rf"^## \[(Unreleased|{re.escape(pretune.__version__)})\]", _read("CHANGELOG.md"), re.MULTILINE)


def test_extras_of_the_documentation_exist() -> None:
    """`pip install 'pretune[NAME]'` in pages and messages names extras that there are."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = {
        extra
        for page in pages
        for group in re.findall(r"pretune\[([a-z,]+)\]", page.read_text(encoding="utf-8"))
        for extra in group.split(",")
    }
    assert named and sorted(named - {*PROJECT["optional-dependencies"]}) == []


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
