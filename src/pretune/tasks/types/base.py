"""Base class of task types, with defaults for a type that has one label per example; types for evaluation only."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from pretune.adaptation.heads.base import TaskHead
from pretune.core.errors import DataError, UsageError, suggest
from pretune.core.log import format_count
from pretune.metrics import METRIC_INPUTS, METRICS
from pretune.metrics.classification import NO_LABEL, group_values
from pretune.models.spec import Model
from pretune.tasks.encoding import EncodingRules, Floats, Items, PredictedLogits, read_classes
from pretune.tasks.example import Example, Prediction, format_example
from pretune.tasks.table import (
    COLUMNS,
    PAIR_COLUMNS,
    BlankCellError,
    TableFile,
    find_pair_columns,
    is_blank,
    open_table,
    read_id,
)
from pretune.tasks.task import Task
from pretune.tasks.user_table import UserTables

if TYPE_CHECKING:
    from pretune.tasks.encoder import TaskEncoder


MAX_ROW_CHARACTERS = 600
"""Maximum number of characters of a text in predictions.jsonl."""

LabelsAndPredictions = tuple[list[Any], list[Any]]
"""Labels (or other references) and predictions, one each."""

_INPUT_NAMES = {
    "text": (*COLUMNS["text"], "text_a", "text1", "sentence_a"),
    "pair": ("pair", *(second for _, second in PAIR_COLUMNS if second != "sentence")),
}
"""Field names of new inputs by role; the first present one is used."""


class TaskType:
    """Type of a task: how its examples are encoded, decoded, scored and read from users' files."""

    default_length: ClassVar[int] = 128  # tokens of a sequence, if the model allows it
    per_token: ClassVar[bool] = False  # a row of logits per token, not per sequence
    allows_pair: ClassVar[bool] = True  # a user's table may have a second text
    needs_pair: ClassVar[bool] = False
    finds_pair: ClassVar[bool] = False  # new inputs may have a second text in columns with known names
    pair_field: ClassVar[str] = "pair"  # name of the second text in new inputs
    has_single_text: ClassVar[bool] = True  # a new input may be a line of text
    reads_conll: ClassVar[bool] = False
    evaluator: ClassVar[
        Literal["few_shot", "generation", "similarity", "retrieval", "minimal_pairs", "cloze"] | None
    ] = None  # evaluation without fine-tuning
    prompt: ClassVar[str] = ""  # of few-shot evaluation
    max_answer_tokens: ClassVar[int] = 0  # of few-shot evaluation by generation
    baselines: ClassVar[Mapping[str, str]] = {}  # names in `evaluation.baselines`, by the slot that they fill
    probe: ClassVar[Literal["classes", "values"] | None] = None  # targets of a linear probe
    pair_gold: ClassVar[Literal["class", "score"] | None] = None  # of pairs that embeddings train on
    has_free_text: ClassVar[bool] = False  # the answer is a text of its own, whose perplexity is reported
    no_answer: ClassVar[str] = ""  # answer in words to a question without an answer
    is_explainable: ClassVar[bool] = False  # logits stand for a prediction, so that gradients explain it
    answer_field: ClassVar[str] = "label"  # field of a prediction that is null for an input without text
    errors_view: ClassVar[Literal["classes", "options", "scores", "tags", "sets", "texts"]] = "texts"  # in reports

    def __init__(self, task: Task) -> None:
        self.task = task

    # Encoding and the head

    def build_head(self) -> TaskHead:
        """Return the head of the task."""
        raise UsageError(
            f"task '{self.task.name}' ({self.task.kind}) is for evaluation only; use `pretune evaluate`, or choose "
            "another task"
        )

    def encode(self, rules: EncodingRules, examples: Sequence[Example], *, training: bool) -> Items:
        """Encode examples; with `training` also their labels."""
        raise NotImplementedError

    def describe_limits(self, spec: Model) -> str:
        """Return a note on a model that suits the type badly; empty for others."""
        return ""

    def find_scale(self, train: Sequence[Example]) -> tuple[float, float] | None:
        """Return the range of the scores, if the task has scores and no published scale."""
        return None

    def count_options(self, example: Example) -> int:
        """Return the number of labels that an example may have."""
        return len(self.task.labels)

    # Text-to-text

    @property
    def has_template(self) -> bool:
        """True if examples can be written as text, and answers as text too."""
        return self.task.template is not None

    def fill_template(self, example: Example) -> tuple[str, str | None]:
        """Return the source and the target of an example as text."""
        template = self.task.template
        return (example.text, example.target) if template is None else template.fill(example)

    def check_targets(self, rules: EncodingRules, examples: Sequence[Example]) -> None:
        """Reject labels that the template cannot represent."""
        if self.task.template is not None and self.task.template.targets:
            read_classes(self.task, examples)

    def parse_answer(self, rules: EncodingRules, example: Example, text: str) -> Prediction:
        """Parse a generated answer; one that is no valid answer has no label, and counts as wrong."""
        template = self.task.template
        label = template.parse_label(text, rules.target_spellings) if template and template.targets else None
        return Prediction(text=text, label=label)

    # Decoding

    def decode(
        self, encoder: "TaskEncoder", examples: Sequence[Example], items: Items, logits: Floats
    ) -> list[Prediction]:
        """Return the prediction for each example, from the logits of its items."""
        raise NotImplementedError

    def select_logits(
        self, encoder: "TaskEncoder", example: Example, items: Items, logits: Floats, label: str | None = None
    ) -> PredictedLogits:
        """Return the logits that stand for the prediction of one example, or for one of its labels (`label`).

        Only for types with `is_explainable`.
        """
        raise NotImplementedError

    def find_label(self, label: str | None, default: int) -> int:
        """Return the index of a label, by default that of the prediction."""
        if label is None:
            return default
        if label not in self.task.labels:
            raise UsageError(f"unknown label '{label[:40]}'{suggest(label, self.task.labels)}")
        return self.task.labels.index(label)

    def find_threshold(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> float | None:
        """Return the decision threshold with the best score on held-out examples, if the type has one."""
        return None

    def apply_threshold(self, predictions: Sequence[Prediction], threshold: float) -> list[Prediction]:
        """Return the predictions with another threshold."""
        return [*predictions]

    def combine(self, predictions: Sequence[Prediction], threshold: float | None = None) -> Prediction:
        """Return the prediction of an ensemble for one example, from those of its models.

        Probabilities and values are averaged; of tags and answers the most frequent is taken, of equally frequent ones
        that of the earliest model. `threshold` is the mean of those of the models, if they have one.
        """
        first = predictions[0]
        if first.probabilities:
            shares = np.mean([prediction.probabilities for prediction in predictions], axis=0)
            means = tuple(shares.tolist())
            return replace(
                first, label=int(shares.argmax()), probabilities=means, scores=means if first.scores else first.scores
            )
        if first.value is not None:
            return replace(first, value=float(np.mean([prediction.value for prediction in predictions])))
        if first.tags:
            words = zip(*(prediction.tags for prediction in predictions), strict=True)
            return replace(first, tags=tuple(Counter(tags).most_common(1)[0][0] for tags in words))
        answers = [(prediction.label, prediction.text) for prediction in predictions]
        return predictions[answers.index(Counter(answers).most_common(1)[0][0])]

    # Scores

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Return the official scores by name, the headline first; 1 is perfect."""
        if len(examples) != len(predictions):
            counts = f"{format_count(len(predictions), 'predictions')} for {format_count(len(examples), 'examples')}"
            raise DataError(f"{counts}; pass one for each")
        scores: dict[str, float] = {}
        for name in self.task.metrics:
            result = METRICS.get(name)(*self._collect(METRIC_INPUTS.get(name, "labels"), examples, predictions))
            for part, value in (result if isinstance(result, Mapping) else {name: result}).items():
                scores[part if part not in scores else f"{name}_{part}"] = value
        return scores

    def _collect(self, values: str, examples: Sequence[Example], predictions: Sequence[Prediction]) -> Any:
        """Return the references and the predictions that a metric compares."""
        match values:
            case "tags":
                return self.collect_tags(examples, predictions)
            case "trees":
                return self.collect_trees(examples, predictions)
            case "answers":
                return self.collect_answers(examples, predictions)
            case "texts":
                targets = [self._require(example.target, index, example) for index, example in enumerate(examples)]
                gold = [list(example.answers) or target for example, target in zip(examples, targets, strict=True)]
                return gold, [prediction.text or "" for prediction in predictions]
        labels = [self._require(example.label, index, example) for index, example in enumerate(examples)]
        outputs = [NO_LABEL if prediction.label is None else prediction.label for prediction in predictions]
        match values:
            case "values":
                return [float(label) for label in labels], [prediction.value for prediction in predictions]
            case "scores":
                return labels, [prediction.scores for prediction in predictions]
            case "probabilities":
                return labels, [prediction.probabilities for prediction in predictions]
            case "groups":
                groups = [example.group or f"\0{number}" for number, example in enumerate(examples)]
                return group_values(labels, groups), group_values(outputs, groups)
        return labels, outputs

    def collect_tags(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> LabelsAndPredictions:
        """Return the tags of each example, and the predicted ones."""
        gold = [
            list(self._require(example.tags if len(example.tags) == len(example.words) else None, index, example))
            for index, example in enumerate(examples)
        ]
        return gold, [list(prediction.tags) for prediction in predictions]

    def collect_trees(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> LabelsAndPredictions:
        """Return the head and the relation of each word, and the predicted ones."""
        gold, outputs = self.collect_tags(examples, predictions)
        return (
            [[*zip(example.heads, tags, strict=True)] for example, tags in zip(examples, gold, strict=True)],
            [[*zip(tree.heads, tags, strict=True)] for tree, tags in zip(predictions, outputs, strict=True)],
        )

    def collect_answers(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> LabelsAndPredictions:
        """Return the reference answers of each example, and the predicted answer."""
        return [list(example.answers) for example in examples], [prediction.text or "" for prediction in predictions]

    def _require(self, value: Any, index: int, example: Example) -> Any:
        if value is None:
            raise DataError(
                f"task '{self.task.name}': example {index} ({format_example(example)}) has no label, so it cannot be "
                "scored; use a split with labels"
            )
        return value

    def check_metrics(self, examples: Sequence[Example]) -> None:
        """Raise an error now if a metric needs a package that is not installed."""

    # Labels of examples

    def has_answer(self, example: Example) -> bool:
        """Return whether the reference answer of an example is known."""
        return example.label is not None

    def has_answers(self, examples: Sequence[Example]) -> bool:
        """Return whether the reference answers of a split are known."""
        return bool(examples) and all(map(self.has_answer, examples))

    def get_shot_class(self, example: Example) -> int | float | None:
        """Return the class that few-shot examples are balanced by."""
        return example.label

    def count_labels(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Count each label, or return the range of scores; empty for text answers."""
        return {}

    def find_missing_labels(self, examples: Sequence[Example]) -> list[str]:
        """Return the labels that no example has."""
        return []

    def describe_alternative(self) -> str:
        """Return a note on another type that the labels of a user's table allow."""
        return ""

    # Rows of predictions

    def format_gold(self, example: Example) -> Any:
        """Return the reference answer in the format of predictions; None if unknown."""
        if example.label is None:
            return None
        place = int(example.label)
        return self.task.labels[place] if 0 <= place < len(self.task.labels) else place

    def format_prediction(self, prediction: Prediction) -> dict[str, Any]:
        """Return the fields of a prediction that are set, for JSON."""
        record: dict[str, Any] = {}
        if prediction.label is not None:
            labels = self.task.labels
            record["label"] = labels[prediction.label] if 0 <= prediction.label < len(labels) else prediction.label
        if prediction.probabilities:
            record["probabilities"] = self.format_probabilities(prediction.probabilities)
        if prediction.value is not None:
            record["score"] = round(prediction.value, 6)
        if prediction.tags:
            record["tags"] = list(prediction.tags)
        if prediction.text is not None:
            record["text"] = prediction.text
        if prediction.span is not None:
            record["span"] = list(prediction.span)
        if prediction.null_score_diff is not None:
            record["no_answer"] = round(prediction.null_score_diff, 6)
        return record

    def format_probabilities(self, probabilities: Sequence[float]) -> dict[str, float] | list[float]:
        """Return rounded probabilities, by label where the task has labels."""
        shares = [round(share, 6) for share in probabilities]
        return dict(zip(self.task.labels, shares, strict=True)) if len(self.task.labels) == len(shares) else shares

    def format_input(self, example: Example) -> dict[str, Any]:
        """Return the input of an example for a row of predictions; long texts are truncated."""
        pair = {} if example.pair is None else {"pair": _truncate(example.pair)}
        return {"input": _truncate(example.text), **pair}

    def build_row(self, split: str, name: str, example: Example, prediction: Prediction) -> dict[str, Any]:
        """Return a line of predictions.jsonl: prediction, reference answer and input.

        {"split": "test", "id": "7", "label": "bad", "probabilities": {…}, "gold": "good", "input": "a quiet joy"}
        """
        outputs = {**self.format_prediction(prediction), "gold": self.format_gold(example)}
        return {"split": split, "id": name, **outputs, **self.format_input(example)}

    # Users' tables and inputs

    @classmethod
    def open_file(cls, path: Path, column_names: Sequence[str]) -> TableFile:
        """Open a user's file; the names of requested columns help to recognize a header."""
        return open_table(path, column_names)

    @classmethod
    def build_user_task(cls, tables: UserTables) -> Task:
        """Build a task from users' files; every row is read once, so that errors are found now."""
        raise NotImplementedError

    def read_input(self, fields: Mapping[str, Any], text: str | None, pair: str | None, source: str) -> Example:
        """Return the example of a new input; `text` and `pair` are the columns of the training files.

        Raises BlankCellError if a text is blank.
        """
        columns, has_one_text = (text, pair), self.reads_one_text(text, pair)
        pair_columns = find_pair_columns(map(str, fields))
        if columns == (None, None) and self.finds_pair:
            columns = pair_columns or columns
        is_pair = has_one_text and text not in fields and pair_columns is not None  # of another task
        content = None if is_pair else read_field(fields, columns[0], _INPUT_NAMES["text"], source)
        extra = self.read_input_fields(fields, content, source)
        if is_blank(extra.get("text", "none" if content is None else content)):
            raise BlankCellError(source, text or "text")
        if content is None and "text" not in extra:
            field_names = ", ".join(map(str, fields))[:100]
            raise DataError(
                f"{source}: no field '{text or 'text'}' (has {field_names or 'none'}); pass the text column "
                "(`pretune predict --text COL`, --text 1 for files without a header)"
            )
        second = None if has_one_text else read_field(fields, columns[1], _INPUT_NAMES["pair"], source)
        if second is None and (pair is not None or self.needs_pair):
            raise DataError(
                f"{source}: this task needs two texts; pass the second as '{pair or self.pair_field}', or after a tab"
            )
        if second is not None and is_blank(second):
            raise BlankCellError(source, columns[1] or self.pair_field)
        facts = {str(name): str(value) for name, value in fields.items() if isinstance(value, str)}
        example = {"text": content, "pair": second, "id": read_id(fields, source), "facts": facts, **extra}
        return Example(**example)

    def reads_one_text(self, text: str | None, pair: str | None) -> bool:
        """Return True if the training files had a column of texts and none of second texts."""
        return text is not None and pair is None and not self.needs_pair

    def read_input_fields(self, fields: Mapping[str, Any], text: str | None, source: str) -> dict[str, Any]:
        """Return the fields of an example, other than its texts, that a new input has."""
        return {}


def read_field(fields: Mapping[str, Any], column: str | None, names: Iterable[str], source: str) -> str | None:
    """Return the text of a column, or of the first field with one of the names, "" for null; None if there is none."""
    alike = {str(name).strip().lower(): name for name in reversed([*fields])}
    candidates = [column, *(alike[name] for name in names if name in alike)]
    name = next((name for name in candidates if name in fields), None)
    if name is None:
        return None
    value = "" if fields[name] is None else fields[name]
    if not isinstance(value, str):
        raise DataError(f"{source}: '{name}' must be a string, got {type(value).__name__}")
    return value


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_ROW_CHARACTERS else f"{text[: MAX_ROW_CHARACTERS - 1]}…"


class MinimalPairs(TaskType):
    """A better and a worse sentence: the better one should be more likely."""

    evaluator = "minimal_pairs"
    has_single_text = False


class Cloze(TaskType):
    """The next word of a context."""

    evaluator = "cloze"
    has_single_text = False

    def has_answer(self, example: Example) -> bool:
        return example.target is not None


class Retrieval(TaskType):
    """The documents that are relevant to a query, found by embeddings."""

    evaluator = "retrieval"
    has_single_text = False
