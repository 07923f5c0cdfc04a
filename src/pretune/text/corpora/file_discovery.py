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

from pretune.core.errors import DataError, UsageError, kind_of, nearest_file
from pretune.text.corpora.decoding import Errors
from pretune.text.corpora.fields import UnfitError
from pretune.text.corpora.format_detection import recognise
from pretune.text.corpora.formats import By
from pretune.text.corpora.items import WHOLE, File

_KERNEL = ("/proc/", "/sys/")  # folders of files without a content of their own


class Finder:
    """Finds the files of every input; `seen` and `skipped` go on from one input to the next."""

    def __init__(self, by: By, field: str | None, errors: Errors) -> None:
        self.by, self.field, self.errors = by, field, errors
        self.seen: set[tuple[int, int]] = set()
        self.skipped: Counter[str] = Counter()

    def files(self, given: str) -> tuple[Literal["file", "folder", "glob"], list[File]]:
        """The kind of an input ("file", "folder" or "glob") and its files, at least one."""
        path = os.path.expanduser(given)  # noqa: PTH111  # which keeps 'a//b/' as it was typed
        if _is_folder(path):
            return "folder", self._all(given, _walk(path, self.skipped))
        if glob.has_magic(path) and not os.path.lexists(path):
            found = sorted(glob.glob(path, recursive=True))
            if not found:
                raise DataError(f"'{given}': no file matches")
            walked = (
                file for match in found for file in (_walk(match, self.skipped) if _is_folder(match) else [match])
            )
            return "glob", self._all(given, walked)
        return "file", [self._named(path)]

    def _named(self, path: str) -> File:
        name = shown(path)
        try:
            status = Path(path).stat()
        except (OSError, ValueError) as fault:  # ValueError: a null byte in the name
            raise DataError(f"{name}: {_why(path, fault)}") from None
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{name}: a {kind_of(path)}, not a file; save what it gives to a file first")
        if self._repeated(status):
            raise UsageError(f"{name}: the file is given twice, which would repeat its text; leave one away")
        return self._file(path, name, status)

    def _all(self, given: str, paths: Iterator[str]) -> list[File]:
        before = self.skipped.copy()
        files: list[File] = []
        for path in paths:
            try:
                status = Path(path).stat()
                if not stat.S_ISREG(status.st_mode):
                    self.skipped["special_files"] += 1
                elif self._repeated(status):
                    self.skipped["repeated_files"] += 1
                elif not os.access(path, os.R_OK):
                    self.skipped["unreadable_files"] += 1
                else:
                    files.append(self._file(path, shown(path), status))
            except OSError:  # a link to nowhere or to itself
                self.skipped["unreadable_files"] += 1
            except UnfitError as fault:
                self.skipped[fault.reason] += 1
        if not files:
            why = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in (self.skipped - before).items())
            raise DataError(
                f"'{given}': no text in it ({'skipped: ' + why if why else 'there are no files'}); give files of text, "
                "such as .txt, .jsonl or .csv"
            )
        return files

    def _file(self, path: str, name: str, status: os.stat_result) -> File:
        if os.path.realpath(path).startswith(_KERNEL):  # NOTE: looks regular, and may block or never end
            raise UnfitError("special_files", f"{name}: made by the kernel as it is read; save it to a file first")
        if not status.st_size:  # and is not read, for the same reason
            raise UnfitError("empty_files", f"{name}: the file is empty; leave it out")
        form = recognise(path, name, self.by, self.field, self.errors)
        file = File(path, name, status.st_size, status.st_mtime_ns, form)
        if file.format.kind != "text" and next(file.documents(0, WHOLE, self.errors, Counter()), None) is None:
            raise UnfitError("empty_files", f"{name}: no row has text in the field '{file.format.field}'")
        return file

    def _repeated(self, status: os.stat_result) -> bool:
        key = (status.st_dev, status.st_ino)
        again = key in self.seen and status.st_ino != 0  # some file systems have no numbers
        self.seen.add(key)
        return again


def shown(path: str) -> str:
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


def _why(path: str, fault: OSError | ValueError) -> str:
    if not isinstance(fault, FileNotFoundError):
        return f"cannot be read: {getattr(fault, 'strerror', None) or fault}"
    return f"no such file or folder{nearest_file(path)}"
