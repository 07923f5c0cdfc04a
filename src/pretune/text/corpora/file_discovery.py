"""From what was typed to the files it means: files, folders (walked in sorted order) and globs.

What is named must be readable text. Inside a folder or a glob, what cannot be read as text is skipped and counted.
"""

import glob
import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pretune.core.errors import DataError, UsageError, get_file_type, suggest_file
from pretune.text.corpora.decoding import Errors
from pretune.text.corpora.fields import UnfitError
from pretune.text.corpora.format_detection import detect_format
from pretune.text.corpora.formats import DocumentBoundary
from pretune.text.corpora.items import FULL_SPAN, CorpusFile

_KERNEL_FOLDERS = ("/proc/", "/sys/")  # folders of files without a content of their own


class FileFinder:
    """Finds the files of every input; `inodes` and `skip_counts` go on from one input to the next."""

    def __init__(self, by: DocumentBoundary, field: str | None, errors: Errors) -> None:
        self.by, self.field, self.errors = by, field, errors
        self.inodes: set[tuple[int, int]] = set()
        self.skip_counts: Counter[str] = Counter()

    def find_files(self, pattern: str) -> tuple[Literal["file", "folder", "glob"], list[CorpusFile]]:
        """The kind of an input ("file", "folder" or "glob") and its files, at least one."""
        path = os.path.expanduser(pattern)  # noqa: PTH111  # which keeps 'a//b/' as it was typed
        if _is_folder(path):
            return "folder", self._find_all(pattern, _walk(path, self.skip_counts))
        if glob.has_magic(path) and not os.path.lexists(path):
            found = sorted(glob.glob(path, recursive=True))
            if not found:
                raise DataError(f"'{pattern}': no file matches")
            walked = (
                file for match in found for file in (_walk(match, self.skip_counts) if _is_folder(match) else [match])
            )
            return "glob", self._find_all(pattern, walked)
        return "file", [self._find_named(path)]

    def _find_named(self, path: str) -> CorpusFile:
        name = format_path(path)
        try:
            status = Path(path).stat()
        except (OSError, ValueError) as fault:  # ValueError: a null byte in the name
            raise DataError(f"{name}: {_explain_fault(path, fault)}") from None
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{name}: a {get_file_type(path)}, not a file; save what it gives to a file first")
        if self._is_repeated(status):
            raise UsageError(f"{name}: the file is given twice, which would repeat its text; leave one away")
        return self._make_file(path, name, status)

    def _find_all(self, pattern: str, paths: Iterator[str]) -> list[CorpusFile]:
        before = self.skip_counts.copy()
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
            why = ", ".join(
                f"{count} {reason.replace('_', ' ')}" for reason, count in (self.skip_counts - before).items()
            )
            raise DataError(
                f"'{pattern}': no text in it ({'skipped: ' + why if why else 'there are no files'}); give files of text, "
                "such as .txt, .jsonl or .csv"
            )
        return files

    def _make_file(self, path: str, name: str, status: os.stat_result) -> CorpusFile:
        if os.path.realpath(path).startswith(_KERNEL_FOLDERS):  # NOTE: looks regular, and may block or never end
            raise UnfitError("special_files", f"{name}: made by the kernel as it is read; save it to a file first")
        if not status.st_size:  # and is not read, for the same reason
            raise UnfitError("empty_files", f"{name}: the file is empty; leave it out")
        form = detect_format(path, name, self.by, self.field, self.errors)
        file = CorpusFile(path, name, status.st_size, status.st_mtime_ns, form)
        if file.format.kind != "text" and next(file.read_documents(0, FULL_SPAN, self.errors, Counter()), None) is None:
            raise UnfitError("empty_files", f"{name}: no row has text in the field '{file.format.field}'")
        return file

    def _is_repeated(self, status: os.stat_result) -> bool:
        key = (status.st_dev, status.st_ino)
        again = key in self.inodes and status.st_ino != 0  # some file systems have no numbers
        self.inodes.add(key)
        return again


def format_path(path: str) -> str:
    """A path as it can be printed and hashed: names on Unix are bytes, and need not be UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def _walk(folder: str, skipped: Counter[str]) -> Iterator[str]:
    """The files below a folder, depth first, entries in the order of their names; links are followed, but no loops."""
    stack, seen = [folder], set[tuple[int, int]]()
    while stack:
        path = stack.pop()
        if not _is_folder(path):
            yield path
            continue
        try:
            status = Path(path).stat()
            names = sorted(os.listdir(path))  # noqa: PTH208  # names, not paths
        except OSError:
            skipped["unreadable_folders"] += 1
            continue
        if (status.st_dev, status.st_ino) in seen:
            skipped["repeated_folders"] += 1
            continue
        seen.add((status.st_dev, status.st_ino))
        visible = [name for name in names if not name.startswith(".")]
        skipped["hidden_files"] += len(names) - len(visible)
        stack += [os.path.join(path, name) for name in reversed(visible)]  # noqa: PTH118


def _is_folder(path: str) -> bool:
    return os.path.isdir(path)  # noqa: PTH112  # Path.is_dir raises where a name is too long or a link points to itself


def _explain_fault(path: str, fault: OSError | ValueError) -> str:
    if not isinstance(fault, FileNotFoundError):
        return f"cannot be read: {getattr(fault, 'strerror', None) or fault}"
    return f"no such file or folder{suggest_file(path)}"
