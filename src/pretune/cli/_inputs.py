"""Texts in a file, one in each line or one in each row of JSONL or of a table: every one keeps its place."""

import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from pretune.core.errors import DataError, explain_missing, suggest


class InputTexts(NamedTuple):
    """Texts with the ids they have, or their numbers from 1 on."""

    texts: list[str]
    ids: list[str]
    name: str


def read_texts(source: str, field: str = "text") -> InputTexts:
    """The texts of a file, which may be compressed, or of standard input (`-`).

    In plain text a line is a text, also an empty one. In JSONL, CSV and TSV it is what stands under `field`; an `id` is
    kept.
    """
    from pretune.tasks.table_rows import read_text

    name, path = "standard input" if source == "-" else source, Path(source)
    if source != "-" and not path.exists():
        raise DataError(f"{name}: {explain_missing(source)}")
    if source != "-" and path.is_dir():
        one = f"`cat {shlex.quote(str(path))}/*.txt > texts.txt` makes one of text files"
        raise DataError(f"{name}: a folder; give one file with a text in each line ({one})")
    if found := {".jsonl", ".csv", ".tsv"} & {*path.suffixes[-2:]}:
        texts, ids = _read_rows(path, field, table=".jsonl" not in found)
    else:
        texts = (_read_stdin() if source == "-" else "".join(read_text(path))).split("\n")
        if texts[-1] == "":  # what follows the last newline is no line
            texts.pop()
        ids = [str(number) for number in range(1, len(texts) + 1)]
    if not texts:
        raise DataError(f"{name}: no texts in it; there should be one in each line")
    return InputTexts(texts, ids, name)


def _read_rows(path: Path, field: str, *, table: bool) -> tuple[list[str], list[str]]:
    """The texts and ids of JSON lines, or of a table, whose column may be the only one."""
    from pretune.tasks.table_reader import open_table
    from pretune.tasks.table_rows import Jsonl

    opened = open_table(path, [field], allow_single_column=True) if table else None
    if opened is not None and opened.form == "delimited" and field not in opened.columns:
        raise DataError(
            f"{path}: no column '{field}'{suggest(field, opened.columns)} (it has {', '.join(opened.columns)[:200]}); "
            "name the column of the text where there is --field, or give lines of text"
        )
    texts: list[str] = []
    ids: list[str] = []
    for row in Jsonl().read_rows(path) if opened is None else opened.read_rows():
        value = row.get(field)
        if not isinstance(value, str):
            raise DataError(f"{row.location}: field '{field}' holds {str(value)[:40]!r}; text was expected")
        texts.append(value)
        ids.append(str(row.values.get("id", len(texts))))
    return texts, ids


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as fault:
        raise DataError(f"standard input: not UTF-8 at byte {fault.start}") from None
