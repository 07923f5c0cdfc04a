"""File discovery: files, folders (walked in sorted order) and globs.

Named files must be readable text. Inside a folder or a glob, unreadable and binary files are skipped and counted.
"""

import glob
import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pretune.core.errors import DataError, UsageError, get_file_type, suggest_file
from pretune.text.corpora.document import DocumentBoundary, UnfitError
from pretune.text.corpora.format_detection import detect_format
from pretune.text.corpora.items import FULL_SPAN, CorpusFile
from pretune.text.corpora.streams import Errors

_KERNEL_FOLDERS = ("/proc/", "/sys/")  # virtual file systems


class FileFinder:
    """Finder of the files of all inputs; `inodes` and `skip_counts` persist between inputs."""

    def __init__(self, by: DocumentBoundary, field: str | None, errors: Errors) -> None:
        self.by, self.field, self.errors = by, field, errors
        self.inodes: set[tuple[int, int]] = set()
        self.skip_counts: Counter[str] = Counter()

    def find_files(self, pattern: str) -> tuple[Literal["file", "folder", "glob"], list[CorpusFile]]:
        """Return the kind of an input ("file", "folder" or "glob") and its files, at least one."""
        path = os.path.expanduser(pattern)  # noqa: PTH111  # keeps 'a//b/' as typed
        if _is_folder(path):
            return "folder", self._find_all(pattern, _walk(path, self.skip_counts))
        if glob.has_magic(path) and not os.path.lexists(path):
            matches = sorted(glob.glob(path, recursive=True))
            if not matches:
                raise DataError(f"'{pattern}': no file matches")
            paths = (
                file for match in matches for file in (_walk(match, self.skip_counts) if _is_folder(match) else [match])
            )
            return "glob", self._find_all(pattern, paths)
        return "file", [self._find_named(path)]

    def _find_named(self, path: str) -> CorpusFile:
        name = format_path(path)
        try:
            status = Path(path).stat()
        except (OSError, ValueError) as fault:  # ValueError: a null byte in the name
            raise DataError(f"{name}: {_explain_fault(path, fault)}") from None
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{name}: a {get_file_type(path)}, not a file; save its output to a file first")
        if self._is_repeated(status):
            raise UsageError(f"{name}: the file is listed twice, which would repeat its text; remove one")
        return self._make_file(path, name, status)

    def _find_all(self, pattern: str, paths: Iterator[str]) -> list[CorpusFile]:
        previous_counts = self.skip_counts.copy()
        files: list[CorpusFile] = []
        for path in paths:
            try:
                status = Path(path).stat()
                if not stat.S_ISREG(status.st_mode):
                    self.skip_counts["special_files"] += 1
                elif self._is_repeated(status):
                    self.skip_counts["repeated_files"] += 1
                elif not os.access(path, os.R_OK):
                    self.skip_counts["unreadable_files"] += 1
                else:
                    files.append(self._make_file(path, format_path(path), status))
            except OSError:  # a link to nowhere or to itself
                self.skip_counts["unreadable_files"] += 1
            except UnfitError as fault:
                self.skip_counts[fault.reason] += 1
        if not files:
            reasons = ", ".join(
                f"{count} {reason.replace('_', ' ')}" for reason, count in (self.skip_counts - previous_counts).items()
            )
            raise DataError(
                f"'{pattern}': no text files ({'skipped: ' + reasons if reasons else 'no files'}); pass text files "
                "such as .txt, .jsonl or .csv"
            )
        return files

    def _make_file(self, path: str, name: str, status: os.stat_result) -> CorpusFile:
        if os.path.realpath(path).startswith(
            _KERNEL_FOLDERS
        ):  # NOTE: such files look regular, but may block or never end
            raise UnfitError("special_files", f"{name}: a virtual file of the kernel; save it to a file first")
        if not status.st_size:  # not read, for the same reason
            raise UnfitError("empty_files", f"{name}: the file is empty; remove it")
        form = detect_format(path, name, self.by, self.field, self.errors)
        file = CorpusFile(path, name, status.st_size, status.st_mtime_ns, form)
        if file.format.kind != "text" and next(file.read_documents(0, FULL_SPAN, self.errors, Counter()), None) is None:
            raise UnfitError("empty_files", f"{name}: no text in any row of the field '{file.format.field}'")
        return file

    def _is_repeated(self, status: os.stat_result) -> bool:
        key = (status.st_dev, status.st_ino)
        is_known = key in self.inodes and status.st_ino != 0  # some file systems have no numbers
        self.inodes.add(key)
        return is_known


def format_path(path: str) -> str:
    """Return a path that can be printed and hashed: names on Unix are bytes and need not be UTF-8."""
    try:
        return os.fsencode(path).decode("utf-8", "replace")
    except UnicodeEncodeError:  # a lone surrogate
        raise DataError(f"{path[:60]!r} is not the name of a file") from None


def _walk(folder: str, skip_counts: Counter[str]) -> Iterator[str]:
    """Yield the files below a folder, depth first, sorted by name; links are followed, except loops."""
    stack, visited_inodes = [folder], set[tuple[int, int]]()
    while stack:
        path = stack.pop()
        if not _is_folder(path):
            yield path
            continue
        try:
            status = Path(path).stat()
            names = sorted(os.listdir(path))  # noqa: PTH208  # names, not paths
        except OSError:
            skip_counts["unreadable_folders"] += 1
            continue
        if (status.st_dev, status.st_ino) in visited_inodes:
            skip_counts["repeated_folders"] += 1
            continue
        visited_inodes.add((status.st_dev, status.st_ino))
        visible = [name for name in names if not name.startswith(".")]
        skip_counts["hidden_files"] += len(names) - len(visible)
        stack += [os.path.join(path, name) for name in reversed(visible)]  # noqa: PTH118


def _is_folder(path: str) -> bool:
    return os.path.isdir(path)  # noqa: PTH112  # Path.is_dir raises for long names and link loops


def _explain_fault(path: str, fault: OSError | ValueError) -> str:
    if not isinstance(fault, FileNotFoundError):
        return f"cannot be read: {getattr(fault, 'strerror', None) or fault}"
    return f"no such file or folder{suggest_file(path)}"
