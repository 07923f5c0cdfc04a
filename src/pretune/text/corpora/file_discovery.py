"""File discovery: files, folders (walked in sorted order) and globs.

Named files must be readable text. Inside a folder or a glob, unreadable and binary files are skipped and counted.

Parallel text: two sides with the same number of rows, aligned row by row.

    pair:train.en,train.de          two files, aligned line by line; each may be compressed
    pair:captions.tsv:en,de         two columns of a table: JSONL, CSV, TSV or Parquet
    pair:ids.jsonl:en,train.de      a column and a file

A row that is blank on both sides is not a document; one that is blank on one side only is skipped and counted.
"""

import glob
import itertools
import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pretune.core.errors import DataError, UsageError, get_file_type, suggest_file
from pretune.text.corpora.document import MAX_CHARACTERS, Document, DocumentBoundary, UnfitError
from pretune.text.corpora.format_detection import detect_format
from pretune.text.corpora.items import FULL_SPAN, CorpusFile, Span, Stamp, WholeItem
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
        except FileNotFoundError:
            raise DataError(f"{name}: no such file or folder{suggest_file(path)}") from None
        except (OSError, ValueError) as fault:  # ValueError: a null byte in the name
            raise DataError(f"{name}: cannot be read: {getattr(fault, 'strerror', None) or fault}") from None
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


PAIR = "pair:"
"""Prefix of the names of parallel text."""
HALF_PAIRS = "half_pairs"
"""Name of the count of rows with one blank side."""


@dataclass(frozen=True, slots=True)
class ParallelFiles(WholeItem):
    """Two files with the same number of rows, or two columns of one."""

    name: str
    first: CorpusFile
    second: CorpusFile

    @property
    def bytes(self) -> int:
        return self.first.bytes + (self.second.bytes if self.second.path != self.first.path else 0)

    def read_documents(self, source: int, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[Document]:
        sides = (_read_rows(self.first, errors, counts), _read_rows(self.second, errors, Counter()))
        for number, (first_text, second_text) in enumerate(itertools.zip_longest(*sides), 1):
            location = f"{self.name}:{number}"
            if first_text is None or second_text is None:
                short = self.first if first_text is None else self.second
                if not (first_text or second_text or "").strip():
                    continue  # blank lines at the end
                raise DataError(f"{location}: {short.name} has fewer rows; both sides need the same number")
            yield from make_pair_document(first_text, second_text, source, location, counts)

    def compute_identity(self) -> list[object]:
        return [self.name, self.first.compute_identity(), self.second.compute_identity()]

    def list_stamps(self) -> list[Stamp]:
        return [*self.first.list_stamps(), *self.second.list_stamps()]


def make_pair_document(first: str, second: str, source: int, location: str, counts: Counter[str]) -> Iterator[Document]:
    """Yield the document of a row if both of its sides have text."""
    texts = [text.replace("\r\n", "\n").replace("\r", "\n").strip("\n") for text in (first, second)]
    blank = [not text or text.isspace() for text in texts]
    if all(blank):
        counts["empty_documents"] += 1
    elif any(blank):
        counts[HALF_PAIRS] += 1
    elif max(map(len, texts)) > MAX_CHARACTERS:
        raise DataError(f"{location}: a side of a pair exceeds {MAX_CHARACTERS:,} characters; shorten it")
    else:
        yield Document(texts[0], source, location, pair=texts[1])


def open_pairs(address: str, errors: Errors) -> ParallelFiles:
    """Find and validate both sides of `pair:SIDE,SIDE`."""
    sides = address.removeprefix(PAIR).split(",")
    if len(sides) != 2 or not all(sides):
        raise UsageError(f"'{address}': expected 'pair:FILE,FILE' or 'pair:TABLE:COLUMN,COLUMN'")
    path, column = _parse_side(sides[0])
    second_side = _parse_side(sides[1])
    if column is not None and second_side[1] is None and not os.path.lexists(second_side[0]):
        second_side = path, sides[1]  # a column of the same table
    if (path, column) == second_side:
        raise UsageError(f"'{address}': both sides are the same; name two")
    return ParallelFiles(address, _open_side(path, column, errors), _open_side(*second_side, errors))


def _parse_side(text: str) -> tuple[str, str | None]:
    """Return the path of a side, and its column if it is a table."""
    path, colon, column = text.rpartition(":")
    if not colon or os.path.lexists(os.path.expanduser(text)):  # noqa: PTH111
        return text, None
    return path, column


def _open_side(path: str, column: str | None, errors: Errors) -> CorpusFile:
    """Open one side with a separate finder: its settings differ, and one table may be both sides."""
    kind, files = FileFinder("line" if column is None else "field", column, errors).find_files(path)
    if kind != "file":
        raise UsageError(f"'{path}': it is a {kind}; a side of a pair must be one file, or a column of one")
    return files[0]


def _read_rows(file: CorpusFile, errors: Errors, counts: Counter[str]) -> Iterator[str]:
    """Yield the text of every row, including blank ones."""
    if file.format.kind != "text":
        yield from (text for text, _ in file.read_rows(FULL_SPAN, errors, counts))
        return
    rest, number = "", 0
    # NOTE: a carriage return inside a line must not shift all rows after it; `split_documents` would skip blank lines.
    for chunk in file.read_text(FULL_SPAN, errors, counts, lone_carriage=" "):
        *lines, rest = (rest + chunk).split("\n")
        yield from lines
        number += len(lines)
        if len(rest) > MAX_CHARACTERS:
            raise DataError(
                f"{file.name}:{number + 1}: the line exceeds {MAX_CHARACTERS:,} characters, too long for a pair"
            )
    if rest:
        yield rest
