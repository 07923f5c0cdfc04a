"""Semantic role labelling: the arguments of one predicate of a sentence, as tags of its words.

    [CLS] She * read * the book [SEP] read [SEP]
    -     B-A0 -  O  -  B-A1 I-A1  -    -    -

The predicate is marked by asterisks and is the second text (Shi and Lin, 2019). A left-to-right model reads the
predicate first, and a word is its last token. Users' files are CoNLL-2005 columns, or JSONL with lists of words and
tags and the index of the predicate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pretune.core.config import spec
from pretune.data.sequences import Ints
from pretune.tasks.benchmarks.conll import RoleReader
from pretune.tasks.encoding import EncodingRules, PooledSequences, TokenPool, missing_value_error
from pretune.tasks.example import Example, Examples
from pretune.tasks.table import TableFile, TableRow, data_error, open_table
from pretune.tasks.table_reader import UserTables
from pretune.tasks.task import Task
from pretune.tasks.types.base import TaskType
from pretune.tasks.types.tagging import (
    TAGGING,
    TagListReader,
    TokenInputs,
    check_entity_tags,
    find_word_tokens,
    pick_word_reader,
)

MARK = "*"
"""Word before and after the predicate."""


@dataclass(frozen=True, kw_only=True)
class RoleInputs(TokenInputs):
    """Words, one of which is the predicate; each has a tag."""

    needs_both_sides = True

    def tokenize(self, rules: EncodingRules, examples: Examples) -> TokenPool:
        for number, example in enumerate(examples):
            if example.predicate is None or not 0 <= example.predicate < len(example.words):
                raise missing_value_error(rules.task, number, example, "no predicate among its words")
        predicates = [example.words[example.predicate or 0] for example in examples]
        return rules.tokenize([*(" ".join(mark_predicate(example)) for example in examples), *predicates])

    def locate_words(self, rules: EncodingRules, pool: TokenPool, examples: Examples) -> Ints:
        marked_index = find_word_tokens(pool, [*map(mark_predicate, examples)], self.get_word_token(rules.spec))
        for number, example in enumerate(examples):
            place, index = example.predicate or 0, marked_index[pool.offsets[number] : pool.offsets[number + 1]]
            is_mark = (index == place) | (index == place + 2)
            index -= (index > place).astype(np.int64) + (index > place + 2)
            index[is_mark] = -1
        return marked_index

    def fit(self, rules: EncodingRules, pool: TokenPool, count: int) -> tuple[PooledSequences, Ints]:
        sentences, predicates = np.arange(count), count + np.arange(count)
        if rules.spec.shape == "decoder":
            return rules.fit(pool, predicates, sentences)
        return rules.fit(pool, sentences, predicates)

    def format(self, example: Example) -> dict[str, object]:
        return {**super().format(example), "predicate": example.predicate}

    def read_fields(self, fields: Mapping[str, object], text: str | None, source: str) -> dict[str, Any]:
        values = super().read_fields(fields, text, source)
        if not values["words"]:
            return values
        return {**values, "predicate": check_predicate(fields.get("predicate"), len(values["words"]), source)}

    def open_file(self, path: Path, column_names: Sequence[str]) -> TableFile:
        """Open JSONL, or columns, whose number differs from sentence to sentence."""
        if not path.is_file() or {".jsonl", ".ndjson", ".json"} & set(path.suffixes):
            return open_table(path, column_names)
        return TableFile(path=path, form="conll")

    def build_user_task(self, tables: UserTables) -> Task:
        needs = "CoNLL-2005 columns, or JSONL with lists of words and tags and the index of the predicate"
        reader = pick_word_reader(tables, RoleReader, RoleListReader, f"semantic roles need {needs}")
        check_entity_tags(reader.labels, tables.train.path)
        return tables.build_task("srl", reader, ("argument_f1",), reader.labels)


SEMANTIC_ROLES = TaskType(name="srl", inputs=RoleInputs(), outputs=TAGGING.outputs, scoring=TAGGING.scoring)
"""The arguments of a marked predicate."""


def mark_predicate(example: Example) -> tuple[str, ...]:
    """Return the words with a mark before and after the predicate.

    >>> mark_predicate(Example(text="", words=("She", "read", "it"), predicate=1))
    ('She', '*', 'read', '*', 'it')
    """
    place = example.predicate or 0
    return (*example.words[:place], MARK, example.words[place], MARK, *example.words[place + 1 :])


@spec
class RoleListReader(TagListReader):
    """Reader of sentences as lists of words and tags, with the index of the `predicate`."""

    def parse_row(self, row: TableRow) -> Example:
        example = TagListReader.parse_row(self, row)  # a class with slots has no `super()`
        return replace(example, predicate=check_predicate(row.require("predicate"), len(example.words), row.location))


def check_predicate(value: object, words: int, location: str) -> int:
    """Return the index of a predicate; raise DataError if it is none of a sentence of `words` words."""
    if type(value) is not int or not 0 <= value < words:
        raise data_error(
            f"{location}: 'predicate' must be the index of a word, from 0 to {words - 1}, got {str(value)[:40]!r}"
        )
    return value
