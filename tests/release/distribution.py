"""Wheel and source distribution, built from a copy of the files that a release needs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

BUILD = "from setuptools import build_meta; build_meta.build_sdist({0!r}); build_meta.build_wheel({0!r})"
"""The two hooks that `python -m build --no-isolation` calls."""


def copy_sources(folder: Path) -> Path:
    """Copy the package and the files at the top of the repository, without caches; return the folder."""
    folder.mkdir(parents=True)
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignore)
    for path in sorted(ROOT.iterdir()):
        if path.is_file() and path.suffix in ("", ".md", ".toml", ".txt", ".in", ".cff", ".yml", ".yaml"):
            shutil.copy(path, folder)
    return folder


def build(folder: Path) -> tuple[Path, Path]:
    """Build in a folder of sources; return the wheel and the source distribution."""
    out = folder / "dist"
    out.mkdir()
    run([sys.executable, "-c", BUILD.format(str(out))], folder)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def run(command: list[str], folder: Path, **variables: str) -> str:
    """Return what a command prints outside the checkout; its errors are an AssertionError."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PRETUNE"))}
    result = subprocess.run(command, cwd=folder, env={**environment, **variables}, capture_output=True, text=True)
    assert result.returncode == 0, f"{command}: {result.stdout[-2000:]}{result.stderr[-4000:]}"
    return result.stdout
