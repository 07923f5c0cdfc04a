"""Tagging of words: named entities, parts of speech.

    [CLS] John  lives in  Par  ##is  [SEP]
    -     B-PER O     O   B-LOC -    -

The first token of a word carries its tag, the others none (Devlin et al., 2019, section 5.3). Words are joined by
spaces and tokenized as one text, so that they get the tokens of running text. A word without a token (truncated, or
removed by the tokenizer) is counted, and cannot be trained on. Users' files are CoNLL, or JSONL with a list of words
and a list of tags.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.token import Tagging
from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Ints, compute_offsets, compute_starts
from pretune.metrics.entities import extract_entities
from pretune.models.spec import Model
from pretune.tasks.benchmarks.conll import ConllReader, ConlluReader, DependencyReader, RoleReader, normalize_tags
from pretune.tasks.encoding import (
    EncodingRules,
    Floats,
    Items,
    PooledSequences,
    PredictedLogits,
    TokenPool,
    build_items,
    count_truncated,
    missing_value_error,
    number_tags,
)
from pretune.tasks.example import Example, Examples, Prediction
from pretune.tasks.table import COLUMNS, TableRow, data_error
from pretune.tasks.table_reader import TableReader, UserTables
from pretune.tasks.task import Task
from pretune.tasks.types.base import Inputs, Outputs, Scoring, SecondText, TaskType
from pretune.tasks.types.classification import find_label

OUTSIDE_TAG = "O"
"""Tag of a word outside any entity."""


@dataclass(frozen=True, kw_only=True)
class TokenInputs(Inputs):
    """Words, each of which has a tag."""

    second_text: SecondText = "none"

    needs_both_sides = False  # a left-to-right model stands for a word by its last token, with a note

    def build_head(self, task: Task) -> TaskHead:
        return Tagging(classes=len(task.labels), labels=task.labels)

    def encode(self, rules: EncodingRules, examples: Examples, *, training: bool) -> Items:
        """Encode one sequence per sentence; `alignment` is the word that a token stands for."""
        count = len(examples)
        sizes = np.array([len(example.words) for example in examples], dtype=np.int64)
        pool = self.tokenize(rules, examples)
        word_index = self.locate_words(rules, pool, examples)
        layout, lost = self.fit(rules, pool, count)
        alignment = np.append(word_index, -1)[layout.pool_index]  # the index of a special token is -1: the last
        owners = layout.sequences.find_owners()
        is_word = alignment >= 0
        words_lost = int(sizes.sum()) - int(is_word.sum())
        counts = replace(count_truncated(lost, pool.lengths[:count]), words_lost=words_lost)
        sequences = rules.set_segments(layout.sequences)
        if training:
            words = compute_starts(sizes)[owners[is_word]] + alignment[is_word]
            targets = np.full(len(alignment), IGNORE_INDEX)
            targets[is_word] = self.build_targets(rules.task, examples, words, np.flatnonzero(is_word))
            sequences = replace(sequences, targets=targets)
        return build_items(sequences, counts, alignment=alignment)

    def describe_limits(self, task: Task, spec: Model) -> str:
        if not self.needs_both_sides or spec.shape != "decoder":
            return ""
        return (
            f"'{task.name}': the model reads from left to right, so a word's state knows only the words before "
            "it; an encoder is better here"
        )

    def get_word_token(self, spec: Model) -> Literal["first", "last"]:
        """Return the token that stands for a word."""
        return "last" if self.needs_both_sides and spec.shape == "decoder" else "first"

    def tokenize(self, rules: EncodingRules, examples: Examples) -> TokenPool:
        """Tokenize the sentences; further texts may follow them."""
        return rules.tokenize([" ".join(example.words) for example in examples])

    def locate_words(self, rules: EncodingRules, pool: TokenPool, examples: Examples) -> Ints:
        """Return the word that each token of the pool stands for `[T]`; -1 for the others."""
        return find_word_tokens(pool, [example.words for example in examples], self.get_word_token(rules.spec))

    def fit(self, rules: EncodingRules, pool: TokenPool, count: int) -> tuple[PooledSequences, Ints]:
        """Truncate the sentences and lay them out; return also the number of tokens each lost."""
        return rules.fit(pool, np.arange(count))

    def build_targets(self, task: Task, examples: Examples, words: Ints, positions: Ints) -> Ints:
        """Return the targets of the words that have a token, given their numbers among all words and their tokens."""
        return read_tag_ids(task, examples)[words]

    def format(self, example: Example) -> dict[str, object]:
        return {"words": list(example.words)}

    def read_fields(self, fields: Mapping[str, object], text: str | None, source: str) -> dict[str, Any]:
        """Return the words of an input, split at blanks if it has only a text."""
        word_lists = [_read_words(fields, name, source) for name in COLUMNS["words"]]
        words = next(filter(None, word_lists), tuple((text or "").split()))
        return {"words": words, "text": text if text is not None else " ".join(words)}

    def build_user_task(self, tables: UserTables) -> Task:
        needs = "tagging needs a CoNLL file, or JSONL with a list of words and a list of tags"
        reader = pick_word_reader(tables, partial(_build_conll_reader, tables), TagListReader, needs)
        has_entities = any(tag.startswith(("B-", "S-")) for tag in reader.labels)
        if has_entities:
            check_entity_tags(reader.labels, tables.train.path)
        metrics = ("entity_f1", "tag_accuracy") if has_entities else ("tag_accuracy",)
        return tables.build_task("tagging", reader, metrics, reader.labels)


@dataclass(frozen=True, kw_only=True)
class TagOutputs(Outputs):
    """A row of logits per token."""

    is_explainable = True

    def decode(self, rules: EncodingRules, examples: Examples, items: Items, logits: Floats) -> list[Prediction]:
        """Return the tag of every word, from its first token; a word without tokens gets "O", or the frequent tag."""
        assert items.alignment is not None
        names, offsets = rules.task.labels, items.sequences.offsets
        best = logits.argmax(axis=1)
        is_first = items.alignment >= 0
        default_tag = OUTSIDE_TAG
        if OUTSIDE_TAG not in names:
            tag_counts = Counter(best[is_first].tolist())
            default_tag = names[tag_counts.most_common(1)[0][0]] if tag_counts else names[0]
        predictions: list[Prediction] = []
        for example, low, high in zip(examples, offsets[:-1], offsets[1:], strict=True):
            tags = [default_tag] * len(example.words)
            for index in low + np.flatnonzero(is_first[low:high]):
                tags[items.alignment[index]] = names[best[index]]
            predictions.append(Prediction(tags=tuple(tags)))
        return predictions

    def select_logits(
        self, rules: EncodingRules, example: Example, items: Items, logits: Floats, label: str | None = None
    ) -> PredictedLogits:
        """Return the best logits of all words with a tag (other than "O"), or with one tag (`label`)."""
        assert items.alignment is not None
        best, rows = logits.argmax(axis=1), np.flatnonzero(items.alignment >= 0)
        names = np.array(rules.task.labels)[best[rows]]
        number = find_label(rules.task, label, -1)
        tagged_rows = rows[names != OUTSIDE_TAG] if label is None else rows[best[rows] == number]
        tagged_rows = tagged_rows if len(tagged_rows) else rows
        columns = best[tagged_rows] if label is None else np.full(len(tagged_rows), number)
        name = "all tags" if label is None else label
        return PredictedLogits(sequence=0, rows=tuple(tagged_rows.tolist()), columns=tuple(columns.tolist()), name=name)

    def format(self, task: Task, prediction: Prediction) -> dict[str, object]:
        return {**super().format(task, prediction), "tags": list(prediction.tags)}  # of an empty text, too


@dataclass(frozen=True, kw_only=True)
class TagScoring(Scoring):
    """Tags are right or wrong, or the entities that they mark."""

    def count_labels(self, task: Task, examples: Examples) -> Mapping[str, float]:
        return dict(Counter(tag for example in examples for tag in example.tags).most_common())

    def format_gold(self, task: Task, example: Example) -> Any:
        return list(example.tags) or None


TAGGING = TaskType(
    name="tagging",
    inputs=TokenInputs(),
    outputs=TagOutputs(),
    scoring=TagScoring(gold="tags", baselines={"majority": "frequent_tag", "svm": "window_tags"}),
)
"""One of several tags for every word."""


def read_tag_ids(task: Task, examples: Examples) -> Ints:
    """Return the tags of all words as ids."""
    tag_ids = {tag: number for number, tag in enumerate(task.labels)}
    labels: list[int] = []
    for number, example in enumerate(examples):
        if len(example.tags) != len(example.words):
            problem = f"{len(example.tags)} tags for {len(example.words)} words"
            raise missing_value_error(task, number, example, problem)
        labels += number_tags(task, tag_ids, number, example)
    return np.array(labels, dtype=np.int64)


def find_word_tokens(pool: TokenPool, sentences: Sequence[Sequence[str]], token: Literal["first", "last"]) -> Ints:
    """Return for each token of the pool the word of which it is the first (or last) one `[T]`; -1 for the others.

    The sentences are the first texts of the pool.
    """
    word_index = np.full(len(pool.ids), -1)
    for number, words in enumerate(sentences):
        low, high = pool.offsets[number], pool.offsets[number + 1]
        begin = compute_offsets(np.array([len(word) + 1 for word in words], dtype=np.int64))  # characters
        word = np.searchsorted(begin, pool.starts[low:high], side="right") - 1  # that a token starts in
        if len(word):
            is_edge = word[1:] != word[:-1]
            stands = np.append(True, is_edge) if token == "first" else np.append(is_edge, True)
            stands &= word < len(words)
            word_index[low:high][stands] = word[stands]
    return word_index


@spec
class TagListReader(TableReader):
    """Reader of sentences as lists of words and tags."""

    labels: tuple[str, ...] = ()  # allowed tags; empty: any

    def parse_row(self, row: TableRow) -> Example:
        words, tags = (_read_strings(row, column) for column in (self.text, self.label))
        if not words or len(words) != len(tags):
            raise data_error(f"{row.location}: {len(words)} words and {len(tags)} tags; every word needs one tag")
        tags = tuple(normalize_tags(tags))
        for tag in tags:
            if self.labels and tag not in self.labels:
                raise data_error(f"{row.location}: tag {tag[:40]!r} is not in the training data")
        return Example(text=" ".join(words), words=words, tags=tags, id=row.number)

    @property
    def input_columns(self) -> tuple[str | None, str | None]:
        return None, None


WordReader = ConllReader | ConlluReader | DependencyReader | RoleReader | TagListReader


def pick_word_reader(
    tables: UserTables,
    build_column_reader: Callable[[], WordReader],
    list_reader: type[TagListReader],
    needs: str,
    tags: str = "tags",
) -> WordReader:
    """Return the reader of columns, or of JSONL with lists of words and `tags`; its labels are those of training.

    Raises DataError with `needs` for another format.
    """
    train = tables.train
    if train.form == "conll":
        reader = build_column_reader()
    elif train.form == "jsonl":
        columns = tables.pick_columns({"text": "words", "label": tags})
        reader = list_reader(text=columns["text"], label=columns["label"])
    else:
        raise DataError(f"{train.path}: {needs}")
    return replace(reader, labels=tables.labels or _collect_tags(reader(train.path), train.path))


def _build_conll_reader(tables: UserTables) -> ConllReader | ConlluReader:
    path, label = tables.train.path, tables.label
    if label is not None and not label.lstrip("-").isdecimal():
        raise data_error(f"{path}: CoNLL columns have no names; pass --label as a number, -1 is the last")
    is_conllu = ".conllu" in path.suffixes
    column = (3 if is_conllu else -1) if label is None else int(label) - (int(label) > 0)
    return ConlluReader(tag=column, labels=()) if is_conllu else ConllReader(tag=column, labels=())


def _collect_tags(examples: Iterable[Example], path: Path) -> tuple[str, ...]:
    """Return the tags of the training data, "O" first."""
    tags = Counter(tag for example in examples for tag in example.tags)
    if len(tags) < 2:
        raise data_error(f"{path}: at least two different tags are needed, got {len(tags)}")
    return tuple(sorted(tags, key=lambda tag: (tag != OUTSIDE_TAG, tag[2:] if tag[1:2] == "-" else tag, tag)))


def check_entity_tags(tags: Iterable[str], path: Path) -> None:
    """Raise DataError for a tag of no scheme, which entity F1 could not score."""
    try:
        extract_entities([*tags])
    except DataError as error:
        raise data_error(f"{path}: {error}") from None


def _read_strings(row: TableRow, column: str) -> tuple[str, ...]:
    values = row.require(column)
    if not isinstance(values, list):
        raise data_error(
            f"{row.location}: '{column}' must be a list, got {str(values)[:40]!r}; use JSONL with lists, or CoNLL"
        )
    return tuple(str(value) for value in values)


def _read_words(fields: Mapping[str, object], name: str, source: str) -> tuple[str, ...]:
    values = fields.get(name) or ()
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(word, str) for word in values):
        raise DataError(f"{source}: '{name}' must be a list of strings")
    return tuple(values)
