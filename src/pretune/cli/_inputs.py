"""Reading of input texts: one per line, or one per row of JSONL, CSV or TSV."""

import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from pretune.core.errors import DataError, explain_missing, suggest


class InputTexts(NamedTuple):
    """Texts, their ids (by default numbers from 1), and the name of the source."""

    texts: list[str]
    ids: list[str]
    name: str


def read_texts(source: str, field: str = "text") -> InputTexts:
    """Read the texts of a file, which may be compressed, or of standard input (`-`).

    In a text file every line is a text, empty ones included. In JSONL, CSV and TSV the text is the column `field`; a
    column `id` is kept.
    """
    from pretune.tasks.table_rows import read_text

    name, path = "standard input" if source == "-" else source, Path(source)
    if source != "-" and not path.exists():
        raise DataError(f"{name}: {explain_missing(source)}")
    if source != "-" and path.is_dir():
        example = f"`cat {shlex.quote(str(path))}/*.txt > texts.txt` makes one of text files"
        raise DataError(f"{name}: a folder; pass a file with one text per line ({example})")
    if formats := {".jsonl", ".csv", ".tsv"} & {*path.suffixes[-2:]}:
        texts, ids = _read_rows(path, field, table=".jsonl" not in formats)
    else:
        texts = (_read_stdin() if source == "-" else "".join(read_text(path))).split("\n")
        if texts[-1] == "":  # no line follows the last newline
            texts.pop()
        ids = [str(number) for number in range(1, len(texts) + 1)]
    if not texts:
        raise DataError(f"{name}: no texts; expected one per line")
    return InputTexts(texts, ids, name)


def _read_rows(path: Path, field: str, *, table: bool) -> tuple[list[str], list[str]]:
    """Return texts and ids of JSON lines or of a table; the only column of a table may have any name."""
    from pretune.tasks.table_reader import open_table
    from pretune.tasks.table_rows import Jsonl

    reader = open_table(path, [field], allow_single_column=True) if table else None
    if reader is not None and reader.form == "delimited" and field not in reader.columns:
        raise DataError(
            f"{path}: no column '{field}'{suggest(field, reader.columns)} (has {', '.join(reader.columns)[:200]}); "
            "pass the text column with --field, or a file with one text per line"
        )
    texts: list[str] = []
    ids: list[str] = []
    for row in Jsonl().read_rows(path) if reader is None else reader.read_rows():
        value = row.get(field)
        if not isinstance(value, str):
            raise DataError(f"{row.location}: field '{field}' must be a string, got {str(value)[:40]!r}")
        texts.append(value)
        ids.append(str(row.values.get("id", len(texts))))
    return texts, ids


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as fault:
        raise DataError(f"standard input: not UTF-8 at byte {fault.start}") from None
