"""Evaluation of language models without training: minimal pairs (BLiMP) and last words (LAMBADA)."""

from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import DataError
from pretune.tasks.benchmarks.readers import Fields, RowReader
from pretune.tasks.example import Example
from pretune.tasks.table import Jsonl, TableRow, read_lines
from pretune.tasks.task import SplitFile, Task

_blimp = RowReader(
    table=Jsonl(),
    make=Fields(text="sentence_good", pair="sentence_bad", group="UID", id="pairID", facts=("linguistics_term",)),
)
BLIMP = Task(
    name="blimp",
    kind="pairs",
    metrics=("choice_accuracy",),
    splits={"test": (SplitFile("*.jsonl", _blimp, rows=67000),)},
)
"""BLiMP: minimal pairs; the grammatical sentence should be more likely (Warstadt et al., 2020)"""


def _split_last_word(text: str, location: str) -> Example:
    context, space, last_word = text.rpartition(" ")
    if not space:
        raise DataError(f"{location}: expected a passage and its last word, got one word")
    return Example(text=context, target=last_word)


def _parse_lambada(row: TableRow) -> Example:
    return _split_last_word(row.get_text("text"), row.location)


def _read_plain_text(path: Path) -> Iterator[Example]:
    return (_split_last_word(text.strip(), f"{path}:{number}") for number, text in read_lines(path) if text.strip())


LAMBADA = Task(
    name="lambada",
    kind="cloze",
    metrics=("accuracy",),
    splits={
        "dev": (SplitFile("lambada_development_plain_text.txt", _read_plain_text, rows=4869),),
        "test": (SplitFile("lambada_test.jsonl", RowReader(table=Jsonl(), make=_parse_lambada), rows=5153),),
        "test_tokenized": (SplitFile("lambada_test_plain_text.txt", _read_plain_text, rows=5153),),
    },
)
"""LAMBADA: the last word of a passage, which needs more context than the last sentence (Paperno et al., 2016)"""
