"""Exports to a single file, such as `--to gguf --out books.gguf`: written beside it first, then moved to its name."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pretune.core import io
from pretune.core.errors import UsageError, refuse_broken_link

SUFFIXES = {".onnx": "onnx", ".gguf": "gguf"}
"""Suffixes of files, and the formats that write them."""


def is_file_path(path: Path) -> bool:
    """Return whether an output path names a file instead of a directory."""
    return path.suffix.lower() in SUFFIXES


def check_suffix(path: Path, form: str) -> None:
    """Raise `UsageError` if an output path is named like a file of another format."""
    named_format = SUFFIXES.get(path.suffix.lower(), form)
    if named_format != form:
        raise UsageError(
            f"cannot write '{path}' in the format {form}: the name is that of a file in the format {named_format}; use "
            f"--to {named_format}, or another name"
        )


@contextmanager
def open_directory(
    path: Path, files: Mapping[str, Path], *, overwrite: bool, owner: str | None = None
) -> Iterator[Path]:
    """Yield a temporary directory to fill, which becomes `path`; of a file path, the `files` in it take their names.

    Raises `UsageError` if one of them exists and `overwrite` is False.
    """
    if not is_file_path(path):
        with io.atomic_directory(path, overwrite=overwrite, owner=owner) as folder:
            yield folder
        return
    for target in files.values():
        refuse_broken_link(target)
        if target.is_dir():
            raise UsageError(f"cannot write '{target}': it is a directory, not a file; choose another name")
        if target.exists() and not overwrite:
            raise UsageError(f"cannot write '{target}': it exists; use --overwrite, or choose another name")
    with io.translate_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with io.scratch_directory(path) as folder:
            yield folder
            for name, target in files.items():
                io.move_file(folder / name, target)
