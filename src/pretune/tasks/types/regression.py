"""Regression: a score for a text, or for a pair of texts, such as their similarity."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.sequence import Regression
from pretune.tasks.encoding import EncodingRules, Floats, Items, missing_value_error
from pretune.tasks.example import Example, Prediction
from pretune.tasks.table import TableFile, TableRow, data_error
from pretune.tasks.types.classification import SequenceType
from pretune.tasks.user_table import check_numbers, count_values, read_label

if TYPE_CHECKING:
    from pretune.tasks.encoder import TaskEncoder


class SequenceRegression(SequenceType):
    """A score for a text or a pair of texts; a model learns it normalized to [-1, 1]."""

    finds_pair = True
    evaluator = "similarity"
    baselines: ClassVar = {"majority": "mean", "svm": "ridge", "vectors": "ridge_vectors"}
    probe = "values"
    pair_gold = "score"
    answer_field = "score"
    errors_view = "scores"

    def build_head(self) -> TaskHead:
        return Regression()

    def encode_labels(self, rules: EncodingRules, examples: Sequence[Example]) -> NDArray[np.float32]:
        """Return the normalized score of each example."""
        scores = np.empty(len(examples), dtype=np.float32)
        for number, example in enumerate(examples):
            if example.label is None or not np.isfinite(example.label):
                problem = "no score" if example.label is None else "no finite score"
                raise missing_value_error(self.task, number, example, problem)
            scores[number] = rules.normalize_score(float(example.label))
        return scores

    def find_scale(self, train: Sequence[Example]) -> tuple[float, float] | None:
        if self.task.scale is not None:
            return None
        values = [float(example.label) for example in train if example.label is not None]
        return min(values), max(values)

    def fill_template(self, example: Example) -> tuple[str, str | None]:
        template = self.task.template
        assert template is not None
        source, target = template.fill(replace(example, label=float(example.label or 0)))  # a target needs a float
        return source, None if example.label is None else target

    def check_targets(self, rules: EncodingRules, examples: Sequence[Example]) -> None:
        self.encode_labels(rules, examples)

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

    def decode(
        self, encoder: "TaskEncoder", examples: Sequence[Example], items: Items, logits: Floats
    ) -> list[Prediction]:
        """Return the score of each example."""
        return [Prediction(value=encoder.rules.denormalize_score(float(row[0]))) for row in logits]

    def count_labels(self, examples: Sequence[Example]) -> dict[str, Any]:
        values = [float(example.label) for example in examples if example.label is not None]
        return {"lowest": min(values), "mean": sum(values) / len(values), "highest": max(values)}

    def describe_alternative(self) -> str:
        return " (inferred; use --type classification for classes)"

    def format_gold(self, example: Example) -> Any:
        return example.label

    @classmethod
    def read_labels(cls, table: TableFile, column: str, texts: Sequence[str | None]) -> tuple[str, ...]:
        """Check that the training data has different scores; return no labels."""
        counts, locations = count_values(table, column, texts)
        check_numbers(locations, "--type regression needs numbers")
        if len(counts) == 1:
            score = next(iter(counts))
            raise data_error(f"{table.path}: every row has the score {score[:40]!r}; at least two scores are needed")
        return ()

    @classmethod
    def read_gold(cls, row: TableRow, column: str, labels: tuple[str, ...]) -> dict[str, Any]:
        value = read_label(row, column)
        try:
            score = float(value)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise data_error(f"{row.location}: score must be a number (this task is a regression), got {value[:40]!r}")
        return {"label": score}

    @classmethod
    def describe_user_task(cls, labels: tuple[str, ...], pair: str | None) -> dict[str, Any]:
        return {"kind": "regression", "metrics": ("pearson_spearman",)}
