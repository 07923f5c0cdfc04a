"""Files of sentence pairs: any of one's own, and those of CrowS-Pairs.

    The cat is asleep.            {"sentence_good": "The cat is asleep.", "sentence_bad": "The cat are asleep."}
    The cat are asleep.           …
    …

Lines come in twos, the better sentence first; blank lines are skipped. Files may be compressed.
"""

from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import DataError, UsageError, nearest_file
from pretune.tasks.example import Example
from pretune.tasks.rows import Jsonl, Row, lines
from pretune.tasks.tables import open_table

ORDERS = ("good-first", "bad-first")
GOOD, BAD = "sentence_good", "sentence_bad"


def read_pairs(path: Path, order: str = "good-first") -> list[Example]:
    """The pairs of a file, each with the better sentence as its text; `order` is that of lines."""
    if order not in ORDERS:
        raise UsageError(f"unknown order '{order[:40]}' ({' or '.join(ORDERS)})")
    if not path.is_file():
        raise DataError(f"{path}: no such file{nearest_file(path)}; give a file of sentence pairs with --data")
    rows = [(number, line.strip()) for number, line in lines(path) if line.strip()]
    if not rows:
        raise DataError(
            f"{path}: no sentences; two lines a pair are expected, the better sentence first, or JSON lines"
        )
    if rows[0][1].startswith("{"):
        return [_object(row) for row in Jsonl().rows(path)]
    if len(rows) % 2:
        raise DataError(f"{path}:{rows[-1][0]}: the last of {len(rows)} lines has no partner; lines come in pairs")
    found = []
    for (number, first), (_, second) in zip(rows[::2], rows[1::2], strict=True):
        good, bad = (first, second) if order == "good-first" else (second, first)
        found.append(Example(text=good, pair=bad, id=str(number)))
    return found


def _object(row: Row) -> Example:
    group = next((str(row.values[name]) for name in ("UID", "group") if name in row.values), None)
    return Example(text=row.text(GOOD), pair=row.text(BAD), group=group, id=row.where.rpartition(":")[2])


def read_bias_pairs(path: Path) -> Iterator[Example]:
    """Rows of a table with `sent_more` (the more stereotyped sentence), `sent_less`, and perhaps `bias_type`."""
    if not path.is_file():
        hint = nearest_file(path)
        raise DataError(f"{path}: no such file{hint}; give a table with sent_more and sent_less with --data")
    table = open_table(path, ["sent_more", "sent_less"])
    for row in table.rows():
        group = str(row.values["bias_type"]) if row.values.get("bias_type") else None
        yield Example(text=row.text("sent_more"), pair=row.text("sent_less"), group=group)
