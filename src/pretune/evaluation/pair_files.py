"""Files of sentence pairs: user files, and those of CrowS-Pairs.

    The cat is asleep.            {"sentence_good": "The cat is asleep.", "sentence_bad": "The cat are asleep."}
    The cat are asleep.           …
    …

Lines come in pairs, the better sentence first; blank lines are skipped. Files may be compressed. In a folder each file
is a set, named after the file.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pretune.core.errors import DataError, UsageError, explain_missing
from pretune.tasks.example import Example
from pretune.tasks.table import Jsonl, TableRow, open_table, read_lines

ORDERS = ("good-first", "bad-first")
GOOD, BAD = "sentence_good", "sentence_bad"
COMPRESSED_SUFFIXES = frozenset({".gz", ".xz", ".zst", ".bz2"})
TEXT_SUFFIXES = frozenset({"", ".txt", ".jsonl", ".json", ".ndjson"})
"""File extensions of pairs."""
IGNORED_STEMS = frozenset(
    {"readme", "license", "licence", "copying", "notice", "citation", "authors", "changelog", "manifest"}
)
"""Names of files that describe a folder."""


def read_pairs(path: Path, order: str = "good-first") -> list[Example]:
    """Read the pairs of a file, each with the better sentence as its text; `order` is the order of the lines."""
    if order not in ORDERS:
        raise UsageError(f"unknown order '{order[:40]}' (allowed: {', '.join(ORDERS)})")
    if not path.is_file():
        raise DataError(f"{path}: {explain_missing(path)}; pass a file of sentence pairs with --data")
    rows = [(number, line.strip()) for number, line in read_lines(path) if line.strip()]
    if not rows:
        raise DataError(f"{path}: no sentences; expected two lines per pair, the better sentence first, or JSON lines")
    if rows[0][1].startswith("{"):
        return [_parse_object(row) for row in Jsonl().read_rows(path)]
    if len(rows) % 2:
        raise DataError(f"{path}:{rows[-1][0]}: odd number of lines ({len(rows)}); expected two lines per pair")
    examples = []
    for (number, first), (_, second) in zip(rows[::2], rows[1::2], strict=True):
        good, bad = (first, second) if order == "good-first" else (second, first)
        examples.append(Example(text=good, pair=bad, id=str(number)))
    return examples


def read_pair_folder(path: Path, order: str = "good-first") -> tuple[list[Example], list[str]]:
    """Read the pairs of each file of a folder, with the file's name as their set; also return the skipped files.

    Hidden files are ignored. Files that describe the folder (README, LICENSE, …), of other extensions, empty ones, and
    JSON lines without both sentences are skipped; any other file that is not readable as pairs is an error.
    """
    examples: list[Example] = []
    skipped_files: list[str] = []
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    names = Counter(_get_set_name(file) for file in files)
    for file in files:
        if not _holds_pairs(file):
            skipped_files.append(file.name)
            continue
        name = _get_set_name(file)
        examples += [replace(pair, group=name if names[name] == 1 else file.name) for pair in read_pairs(file, order)]
    if not examples:
        hint = f" (skipped: {', '.join(skipped_files[:5])})" if skipped_files else ""
        raise DataError(f"{path}: no file of sentence pairs in this folder{hint}; pass .txt or .jsonl files")
    return examples, skipped_files


def _get_set_name(file: Path) -> str:
    """Return the name of a file without its format extensions."""
    name = file
    while name.suffix.lower() in COMPRESSED_SUFFIXES | TEXT_SUFFIXES - {""}:
        name = name.with_suffix("")
    return name.name


def _holds_pairs(file: Path) -> bool:
    inner = file.with_suffix("") if file.suffix.lower() in COMPRESSED_SUFFIXES else file
    if inner.suffix.lower() not in TEXT_SUFFIXES or inner.stem.lower() in IGNORED_STEMS:
        return False
    first = next((line.strip() for _, line in read_lines(file) if line.strip()), "")
    if not first.startswith("{"):
        return bool(first)
    return {GOOD, BAD} <= next(iter(Jsonl().read_rows(file))).values.keys()


def _parse_object(row: TableRow) -> Example:
    group = next((str(row.values[name]) for name in ("UID", "group") if name in row.values), None)
    return Example(text=row.get_text(GOOD), pair=row.get_text(BAD), group=group, id=row.location.rpartition(":")[2])


def read_bias_pairs(path: Path) -> Iterator[Example]:
    """Read a table with `sent_more` (the more stereotyped sentence), `sent_less`, and optionally `bias_type`."""
    if not path.is_file():
        problem = explain_missing(path)
        raise DataError(f"{path}: {problem}; pass a table with sent_more and sent_less with --data")
    table = open_table(path, ["sent_more", "sent_less"])
    for row in table.read_rows():
        group = str(row.values["bias_type"]) if row.values.get("bias_type") else None
        yield Example(text=row.get_text("sent_more"), pair=row.get_text("sent_less"), group=group)
