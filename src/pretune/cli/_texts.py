"""Texts in a file, one in each line or one in each row of JSONL: every one keeps its place."""

import sys
from pathlib import Path
from typing import NamedTuple

from pretune.core.errors import DataError, nearest_file


class Texts(NamedTuple):
    """Texts with the ids they have, or their numbers from 1 on."""

    texts: list[str]
    ids: list[str]
    name: str


def read(source: str, field: str = "text") -> Texts:
    """The texts of a file, which may be compressed, or of standard input (`-`).

    In plain text a line is a text, also an empty one. In JSONL it is what stands under `field`; an `id` is kept.
    """
    from pretune.tasks.rows import Jsonl, text_of

    name = "standard input" if source == "-" else source
    if source != "-" and not Path(source).exists():
        raise DataError(f"{name}: no such file{nearest_file(source)}")
    if ".jsonl" in Path(source).suffixes[-2:]:
        texts, ids = [], []
        for row in Jsonl().rows(Path(source)):
            value = row.get(field)
            if not isinstance(value, str):
                raise DataError(f"{row.where}: field '{field}' holds {str(value)[:40]!r}; text was expected")
            texts.append(value)
            ids.append(str(row.values.get("id", len(texts))))
    else:
        texts = (_standard() if source == "-" else "".join(text_of(Path(source)))).split("\n")
        if texts[-1] == "":  # what follows the last newline is no line
            texts.pop()
        ids = [str(number) for number in range(1, len(texts) + 1)]
    if not texts:
        raise DataError(f"{name}: no texts in it; there should be one in each line")
    return Texts(texts, ids, name)


def _standard() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as fault:
        raise DataError(f"standard input: not UTF-8 at byte {fault.start}") from None
