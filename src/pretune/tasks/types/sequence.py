"""Types with one sequence per example and a label for it: the encoding, and users' tables of labelled texts.

[CLS] a fine film [SEP]                    1
[CLS] a dog runs [SEP] it sleeps [SEP]     0
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pretune.core.config import spec
from pretune.tasks.encoding import Counts, EncodingRules, Items, build_items, build_next_token_targets, deduplicate
from pretune.tasks.example import Example
from pretune.tasks.table import PAIR_COLUMNS, TableFile, TableRow
from pretune.tasks.task import Task
from pretune.tasks.types import TASK_TYPES
from pretune.tasks.types.base import TaskType
from pretune.tasks.user_table import TableReader, UserTables, pick_text_columns


class SequenceType(TaskType):
    """Type with one sequence per example; subclasses read the labels."""

    def encode(self, rules: EncodingRules, examples: Sequence[Example], *, training: bool) -> Items:
        """Encode one sequence per example."""
        count = len(examples)
        has_pairs = any(example.pair is not None for example in examples)
        texts = [example.text for example in examples]
        unique_texts, text_ids = deduplicate(
            [*texts, *(example.pair or "" for example in examples)] if has_pairs else texts
        )
        pool = rules.tokenize(unique_texts)
        layout, lost = rules.fit(pool, text_ids[:count], text_ids[count:] if has_pairs else None)
        text = pool.lengths[text_ids].reshape(-1, count).sum(axis=0)
        counts = Counts(examples=count, cut=int((lost > 0).sum()), lost=int(lost.sum()), empty=int((text == 0).sum()))
        sequences = rules.set_segments(layout.sequences)
        if training:
            targets = build_next_token_targets(sequences) if rules.has_lm_loss else None
            sequences = replace(sequences, labels=self.encode_labels(rules, examples), targets=targets)
        return build_items(sequences, counts=counts)

    def encode_labels(self, rules: EncodingRules, examples: Sequence[Example]) -> Any:
        """Return the label of each example, or a row of labels."""
        raise NotImplementedError

    @classmethod
    def read_labels(cls, table: TableFile, column: str) -> tuple[str, ...]:
        """Return the labels of the training data; empty if they are scores."""
        raise NotImplementedError

    @classmethod
    def read_gold(cls, row: TableRow, column: str, labels: tuple[str, ...]) -> dict[str, Any]:
        """Return the fields of an example that hold the label of a row."""
        raise NotImplementedError

    @classmethod
    def describe_user_task(cls, labels: tuple[str, ...], pair: str | None) -> dict[str, Any]:
        """Return the kind, the metrics and the template of a user's task."""
        raise NotImplementedError

    @classmethod
    def build_user_task(cls, tables: UserTables) -> Task:
        text, label, pair = pick_text_columns(tables)
        labels = cls.read_labels(tables.train, label) if tables.labels is None else tables.labels
        fields = cls.describe_user_task(labels, pair)
        reader = LabelledTextReader(text=text, label=label, pair=pair, labels=labels, task_kind=fields["kind"])
        return tables.build_task(reader=reader, labels=labels, **fields)


@spec
class LabelledTextReader(TableReader):
    """Reader of texts and labels in named columns."""

    task_kind: str
    labels: tuple[str, ...] = ()

    def parse_row(self, row: TableRow) -> Example:
        task_type = TASK_TYPES.get(self.task_kind)
        assert issubclass(task_type, SequenceType)
        return Example(
            text=row.get_text(self.text),
            pair=row.get_text(self.pair) if self.pair else None,
            id=row.location.rpartition(":")[2],
            **task_type.read_gold(row, self.label, self.labels),
        )

    def describe_columns(self, columns: Iterable[str]) -> str:
        """Describe the role of each column, and the ignored ones.

        >>> reader = LabelledTextReader(text="review", label="stars", task_kind="classification")
        >>> reader.describe_columns(["id", "review", "stars"])
        "text column 'review', label column 'stars'; ignored: id"
        >>> reader = LabelledTextReader(text="premise", label="label", task_kind="classification")
        >>> reader.describe_columns(["premise", "hypothesis", "label"])
        "text column 'premise', label column 'label'; ignored: hypothesis (--pair hypothesis uses it as second text)"
        """
        pair = f", second text column '{self.pair}'" if self.pair else ""
        ignored_columns = [column for column in columns if column not in (self.text, self.pair, self.label)]
        note = f"; ignored: {', '.join(ignored_columns[:20])}" if ignored_columns else ""
        first = self.text.strip().lower()
        pair_column = next((second for name, second in PAIR_COLUMNS if name == first and second in ignored_columns), "")
        if not self.pair and pair_column:
            note += f" (--pair {pair_column} uses it as second text)"
        return f"text column '{self.text}'{pair}, label column '{self.label}'{note}"
