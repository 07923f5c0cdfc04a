"""A task type and its three parts, with defaults for a type that has one label per example; types for evaluation only.

    task_type = get_type(task)
    items = task_type.inputs.encode(rules, examples, training=True)              # rows become inputs
    predictions = task_type.outputs.decode(rules, examples, items, logits)       # outputs become predictions
    task_type.scoring.score(task, examples, predictions)                         # predictions are scored

A part is a value: what differs between two types is a field of it, or a method of a subclass.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pretune.adaptation.heads.base import TaskHead
from pretune.core.errors import DataError, UsageError
from pretune.core.log import format_count
from pretune.metrics import METRIC_INPUTS, METRICS
from pretune.metrics.classification import NO_LABEL, group_values
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.tasks.encoding import EncodingRules, Floats, Items, PredictedLogits, read_classes
from pretune.tasks.example import Example, Examples, Prediction, Predictions, format_example
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
from pretune.tasks.table_reader import UserTables
from pretune.tasks.task import Task

MAX_ROW_CHARACTERS = 600
"""Maximum number of characters of a text in predictions.jsonl."""

SecondText = Literal["none", "optional", "required"]
"""Second text of the inputs of a type."""
Gold = Literal["class", "option", "labels", "score", "tags", "tree", "clusters", "span", "text"]
"""Form of the answer of an example."""
ANSWER_FIELDS: Mapping[Gold, str] = {
    "class": "label",
    "option": "label",
    "labels": "labels",
    "score": "score",
    "tags": "tags",
    "tree": "heads",
    "clusters": "clusters",
    "span": "text",
    "text": "text",
}
"""Field of a formatted prediction that is null for an input without text."""

_INPUT_NAMES = {
    "text": (*COLUMNS["text"], "text_a", "text1", "sentence_a"),
    "pair": ("pair", *(second for _, second in PAIR_COLUMNS if second != "sentence")),
}
"""Field names of new inputs by role; the first present one is used."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Rows become inputs: the reading of users' tables and of new inputs, the encoding of examples, and the head."""

    second_text: SecondText = "optional"

    default_length = 128  # tokens of a sequence, if the model allows it
    default_new_tokens = 64  # tokens of a generated answer
    pair_field = "pair"  # name of the second text in an error
    has_own_encoding = False  # of generated answers, too
    compares_answers = False  # by their log-probabilities, where others generate one

    def build_head(self, task: Task) -> TaskHead:
        """Return the head of a task."""
        raise UsageError(
            f"task '{task.name}' ({task.kind}) is for evaluation only; use `pretune evaluate`, or choose another task"
        )

    def prepare_model(self, model: LanguageModel) -> LanguageModel:
        """Return a model with what the type needs besides a head, before it is adapted."""
        return model

    def encode(self, rules: EncodingRules, examples: Examples, *, training: bool) -> Items:
        """Encode examples; with `training` also their labels."""
        raise NotImplementedError

    def write(self, rules: EncodingRules, examples: Examples, *, training: bool) -> list[tuple[str, str | None]]:
        """Return the source and the target of each example as text, for a model that generates all answers.

        With `training`, labels that the template cannot represent are rejected.
        """
        template = rules.task.template
        if template is None:
            return [(example.text, example.target) for example in examples]
        if training and template.targets:
            read_classes(rules.task, examples)
        return [template.fill(example) for example in examples]

    def get_end_tokens(self, rules: EncodingRules) -> tuple[int, ...]:
        """Return the tokens that end a generated answer, for a type with its own encoding."""
        raise NotImplementedError

    def describe_limits(self, task: Task, spec: Model) -> str:
        """Return a note on a model that suits the type badly; empty for others."""
        return ""

    def open_file(self, path: Path, column_names: Sequence[str]) -> TableFile:
        """Open a user's file; the names of requested columns help to recognize a header."""
        return open_table(path, column_names)

    def build_user_task(self, tables: UserTables) -> Task:
        """Build a task from users' files; every row is read once, so that errors are found now."""
        raise NotImplementedError

    def reads_one_text(self, text: str | None, pair: str | None) -> bool:
        """Return True if the training files had a column of texts and none of second texts."""
        return text is not None and pair is None and self.second_text != "required"

    def read_input(self, fields: Mapping[str, object], text: str | None, pair: str | None, source: str) -> Example:
        """Return the example of a new input; `text` and `pair` are the columns of the training files.

        Raises BlankCellError if a text is blank.
        """
        columns, has_one_text = (text, pair), self.reads_one_text(text, pair)
        pair_columns = find_pair_columns(map(str, fields))
        if columns == (None, None) and self.second_text != "none":
            columns = pair_columns or columns
        is_pair = has_one_text and text not in fields and pair_columns is not None  # of another task
        content = None if is_pair else read_field(fields, columns[0], _INPUT_NAMES["text"], source)
        extra = self.read_fields(fields, content, source)
        if is_blank(extra.get("text", "none" if content is None else content)):
            raise BlankCellError(source, text or "text")
        if content is None and "text" not in extra:
            field_names = ", ".join(map(str, fields))[:100]
            raise DataError(
                f"{source}: no field '{text or 'text'}' (has {field_names or 'none'}); pass the text column "
                "(`pretune predict --text COL`, --text 1 for files without a header)"
            )
        second = None if has_one_text else read_field(fields, columns[1], _INPUT_NAMES["pair"], source)
        if second is None and (pair is not None or self.second_text == "required"):
            raise DataError(
                f"{source}: this task needs two texts; pass the second as '{pair or self.pair_field}', or after a tab"
            )
        if second is not None and is_blank(second):
            raise BlankCellError(source, columns[1] or self.pair_field)
        facts = {str(name): str(value) for name, value in fields.items() if isinstance(value, str)}
        example = {"text": content, "pair": second, "id": read_id(fields, source), "facts": facts, **extra}
        return Example(**example)

    def read_fields(self, fields: Mapping[str, object], text: str | None, source: str) -> dict[str, Any]:
        """Return the fields of an example, other than its texts, that a new input has."""
        return {}

    def format(self, example: Example) -> dict[str, object]:
        """Return the input of an example for a row of predictions; long texts are truncated."""
        pair = {} if example.pair is None else {"pair": _truncate(example.pair)}
        return {"input": _truncate(example.text), **pair}


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Outputs become predictions: of logits or of generated text, of several models; their thresholds and format."""

    is_explainable = False  # logits stand for a prediction, so that gradients explain it

    def decode(self, rules: EncodingRules, examples: Examples, items: Items, logits: Floats) -> list[Prediction]:
        """Return the prediction for each example, from the logits of its items."""
        raise NotImplementedError

    def select_logits(
        self, rules: EncodingRules, example: Example, items: Items, logits: Floats, label: str | None = None
    ) -> PredictedLogits:
        """Return the logits that stand for the prediction of one example, or for one of its labels (`label`).

        Only for types with `is_explainable`.
        """
        raise NotImplementedError

    def parse_answer(self, rules: EncodingRules, example: Example, text: str) -> Prediction:
        """Parse a generated answer; one that is no valid answer has no label, and counts as wrong."""
        template = rules.task.template
        label = template.parse_label(text, rules.target_spellings) if template and template.targets else None
        return Prediction(text=text, label=label)

    def find_threshold(self, task: Task, examples: Examples, predictions: Predictions) -> float | None:
        """Return the decision threshold with the best score on held-out examples, if the type has one."""
        return None

    def apply_threshold(self, task: Task, predictions: Predictions, threshold: float) -> list[Prediction]:
        """Return the predictions with another threshold."""
        return [*predictions]

    def combine(self, task: Task, predictions: Predictions, threshold: float | None = None) -> Prediction:
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

    def format(self, task: Task, prediction: Prediction) -> dict[str, object]:
        """Return the fields of a prediction that are set, for JSON."""
        label, value, span, difference = prediction.label, prediction.value, prediction.span, prediction.null_score_diff
        record: dict[str, object] = {
            "label": None if label is None else name_label(task, label),
            "probabilities": format_probabilities(task, prediction) or None,
            "score": None if value is None else round(value, 6),
            "tags": list(prediction.tags) or None,
            "text": prediction.text,
            "span": None if span is None else list(span),
            "no_answer": None if difference is None else round(difference, 6),
        }
        return {name: content for name, content in record.items() if content is not None}


@dataclass(frozen=True, kw_only=True)
class ChoicePrompt:
    """Few-shot evaluation by the likeliest answer to a prompt."""

    text: str


@dataclass(frozen=True, kw_only=True)
class AnswerPrompt:
    """Few-shot evaluation by the answer that is generated to a prompt."""

    text: str
    max_answer_tokens: int
    no_answer: str = ""  # answer in words to a question without an answer


Evaluator = ChoicePrompt | AnswerPrompt | Literal["similarity", "retrieval", "minimal_pairs", "cloze", "cloze_choice"]


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Predictions are scored: the gold answer, the metrics, the labels' counts, and what else may answer the task."""

    gold: Gold = "text"
    evaluator: Evaluator | None = None  # evaluation without fine-tuning
    baselines: Mapping[str, str] = field(default_factory=dict)  # names in `evaluation.baselines` by their slot

    is_reward = False  # the score is the mean reward of answers, which need not be like the reference

    def score(self, task: Task, examples: Examples, predictions: Predictions) -> dict[str, float]:
        """Return the official scores by name, the headline first; 1 is perfect."""
        if len(examples) != len(predictions):
            counts = f"{format_count(len(predictions), 'predictions')} for {format_count(len(examples), 'examples')}"
            raise DataError(f"{counts}; pass one for each")
        scores: dict[str, float] = {}
        for name in task.metrics:
            gold, outputs = _collect(METRIC_INPUTS.get(name, "labels"), task, examples, predictions)
            result = METRICS.get(name)(gold, outputs)
            for part, value in (result if isinstance(result, Mapping) else {name: result}).items():
                scores[part if part not in scores else f"{name}_{part}"] = value
        return scores

    def count_labels(self, task: Task, examples: Examples) -> Mapping[str, float]:
        """Count each label, or return the range of scores; empty for text answers."""
        return {}

    def format_gold(self, task: Task, example: Example) -> Any:
        """Return the reference answer in the format of predictions; None if unknown, empty if there may be none."""
        return None if example.label is None else name_label(task, int(example.label))


@dataclass(frozen=True, kw_only=True)
class TaskType:
    """A type of task, composed of three parts; `name` is its name in `TASK_TYPES` and on the command line."""

    name: str
    inputs: Inputs = Inputs()
    outputs: Outputs = Outputs()
    scoring: Scoring = Scoring()


def name_label(task: Task, label: int) -> str | int:
    """Return the name of a label; its number if it has none."""
    return task.labels[label] if 0 <= label < len(task.labels) else label


def format_probabilities(task: Task, prediction: Prediction) -> dict[str, float] | list[float]:
    """Return rounded probabilities, by label where the task has labels."""
    shares = [round(share, 6) for share in prediction.probabilities]
    return dict(zip(task.labels, shares, strict=True)) if len(task.labels) == len(shares) else shares


def read_field(fields: Mapping[str, object], column: str | None, names: Iterable[str], source: str) -> str | None:
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


def _collect(values: str, task: Task, examples: Examples, predictions: Predictions) -> tuple[list[Any], list[Any]]:
    """Return the references and the predictions that a metric compares, one each per example."""

    def require(values: list[Any]) -> list[Any]:
        if None in values:
            index = values.index(None)
            raise DataError(
                f"task '{task.name}': example {index} ({format_example(examples[index])}) has no label, so it cannot "
                "be scored; use a split with labels"
            )
        return values

    pairs = [*zip(examples, predictions, strict=True)]
    match values:
        case "tags" | "trees":
            gold = require([_read_tags(example) for example in examples])
            if values == "tags":
                return gold, [list(prediction.tags) for prediction in predictions]
            trees = [[*zip(example.heads, tags, strict=True)] for example, tags in zip(examples, gold, strict=True)]
            return trees, [[*zip(tree.heads, tree.tags, strict=True)] for tree in predictions]
        case "clusters":
            gold = require([example.clusters for example in examples])
            return gold, [prediction.clusters for prediction in predictions]
        case "answers":
            return [list(example.answers) for example in examples], [_read_answer(*pair) for pair in pairs]
        case "texts":
            targets = require([example.target for example in examples])
            gold = [list(example.answers) or target for example, target in zip(examples, targets, strict=True)]
            return gold, [prediction.text or "" for prediction in predictions]
    labels = require([example.label for example in examples])
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


def _read_tags(example: Example) -> list[str] | None:
    """Return the tags of the words, or of the whole text; None for words without tags."""
    return list(example.tags) if not example.words or len(example.tags) == len(example.words) else None


def _read_answer(example: Example, prediction: Prediction) -> str:
    """Return the predicted answer in words: a text, or the chosen option."""
    if example.choices and prediction.label is not None:
        return example.choices[prediction.label]
    return prediction.text or ""


MINIMAL_PAIRS = TaskType(name="pairs", scoring=Scoring(evaluator="minimal_pairs"))
"""A better and a worse sentence: the better one should be more likely."""

CLOZE = TaskType(name="cloze", scoring=Scoring(evaluator="cloze"))
"""The next word of a context."""

CLOZE_CHOICE = TaskType(name="cloze-choice", scoring=Scoring(gold="option", evaluator="cloze_choice"))
"""The right one of several words for the gap of a sentence."""

RETRIEVAL = TaskType(name="retrieval", scoring=Scoring(evaluator="retrieval"))
"""The documents that are relevant to a query, found by embeddings."""
