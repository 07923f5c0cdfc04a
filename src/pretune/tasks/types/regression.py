"""Regression: a score for a text, or for a pair of texts, such as their similarity."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.sequence import Regression
from pretune.core.config import spec
from pretune.tasks.encoding import EncodingRules, Floats, Items, missing_value_error
from pretune.tasks.example import Example, Examples, Prediction
from pretune.tasks.table import TableFile, TableRow, data_error
from pretune.tasks.table_reader import UserTables, check_numbers, count_values, is_finite, read_label
from pretune.tasks.task import Task
from pretune.tasks.types.base import Scoring, TaskType
from pretune.tasks.types.classification import LabelledTextReader, SequenceInputs, SequenceOutputs


@spec
class ScoreReader(LabelledTextReader):
    """Reader of texts and their score."""

    @classmethod
    def collect_labels(cls, table: TableFile, column: str, texts: Sequence[str | None]) -> tuple[str, ...]:
        """Check that the training data has different scores; return no labels."""
        counts, locations = count_values(table, column, texts)
        check_numbers(locations, "--type regression needs numbers")
        if len(counts) == 1:
            score = next(iter(counts))
            raise data_error(f"{table.path}: every row has the score {score[:40]!r}; at least two scores are needed")
        return ()

    def add_gold(self, example: Example, row: TableRow) -> Example:
        value = read_label(row, self.label)
        score = float(value) if is_finite(value) else math.nan
        if not math.isfinite(score):
            raise data_error(f"{row.location}: score must be a number (this task is a regression), got {value[:40]!r}")
        return replace(example, label=score)


@dataclass(frozen=True, kw_only=True)
class ScoreInputs(SequenceInputs):
    """A text or a pair of texts, and its score; a model learns it normalized to [-1, 1]."""

    def build_head(self, task: Task) -> TaskHead:
        return Regression()

    def encode_labels(self, rules: EncodingRules, examples: Examples) -> NDArray[np.float32]:
        """Return the normalized score of each example."""
        scores = np.empty(len(examples), dtype=np.float32)
        for number, example in enumerate(examples):
            if example.label is None or not np.isfinite(example.label):
                problem = "no score" if example.label is None else "no finite score"
                raise missing_value_error(rules.task, number, example, problem)
            scores[number] = rules.normalize_score(float(example.label))
        return scores

    def write(self, rules: EncodingRules, examples: Examples, *, training: bool) -> list[tuple[str, str | None]]:
        if training:
            self.encode_labels(rules, examples)
        float_examples = [replace(example, label=float(example.label or 0)) for example in examples]
        pairs = zip(examples, super().write(rules, float_examples, training=training), strict=True)
        return [(source, None if example.label is None else target) for example, (source, target) in pairs]

    def build_user_task(self, tables: UserTables) -> Task:
        reader = ScoreReader.from_tables(tables)
        return tables.build_task("regression", reader, ("pearson_spearman",))


@dataclass(frozen=True, kw_only=True)
class ScoreOutputs(SequenceOutputs):
    """A number per example."""

    def decode(self, rules: EncodingRules, examples: Examples, items: Items, logits: Floats) -> list[Prediction]:
        """Return the score of each example."""
        return [Prediction(value=rules.denormalize_score(float(row[0]))) for row in logits]

    def parse_answer(self, rules: EncodingRules, example: Example, text: str) -> Prediction:
        """Parse a generated score; if it is no number, return the middle of the scale."""
        low, high = rules.scale or (-math.inf, math.inf)
        try:
            value = float(re.sub(r"\s*\.\s*", ".", text))  # WordPiece decodes "3.8" as "3. 8"
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            value = (low + high) / 2 if rules.scale else 0.0
        return Prediction(text=text, value=min(max(value, low), high))


@dataclass(frozen=True, kw_only=True)
class ScoreScoring(Scoring):
    """A score is near or far."""

    def count_labels(self, task: Task, examples: Examples) -> Mapping[str, float]:
        values = [float(example.label) for example in examples if example.label is not None]
        return {"lowest": min(values), "mean": sum(values) / len(values), "highest": max(values)}

    def format_gold(self, task: Task, example: Example) -> Any:
        return example.label


REGRESSION = TaskType(
    name="regression",
    inputs=ScoreInputs(),
    outputs=ScoreOutputs(),
    scoring=ScoreScoring(
        gold="score",
        evaluator="similarity",
        baselines={"majority": "mean", "svm": "ridge", "vectors": "ridge_vectors"},
    ),
)
"""A score for a text or a pair of texts; a model learns it normalized to [-1, 1]."""
