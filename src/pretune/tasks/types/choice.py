"""Multiple choice among continuations, answers or endings.

    [CLS] he took the ball and [SEP] threw it [SEP]     [CLS] he took the ball and [SEP] ate it [SEP]

Each option is a sequence with its context; the options of a question form one item. If the text has a blank, the option
fills it: WinoGrande's "_", ReCoRD's "@placeholder". Users' tables have a text, its choices ("choices": a list, or
columns choice1, choice2, …, or A, B, …) and the correct one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.sequence import Choice, build_group_labels
from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError
from pretune.core.seed import mix
from pretune.metrics.question_answering import normalise
from pretune.tasks.encoding import (
    EncodingRules,
    Floats,
    Items,
    PredictedLogits,
    build_items,
    count_truncated,
    read_classes,
)
from pretune.tasks.example import Example, Examples, Prediction, format_example
from pretune.tasks.table import BlankCellError, TableRow, data_error, is_blank
from pretune.tasks.table_reader import TableReader, UserTables
from pretune.tasks.task import Task
from pretune.tasks.types.base import ChoicePrompt, Inputs, Outputs, Scoring, SecondText, TaskType
from pretune.tasks.types.classification import choose_best

MAX_OPTIONS = 8
"""Maximum options per question in training: the correct one, and sampled others. Predictions use all."""

PLACEHOLDER = "@placeholder"
BLANK_PATTERN = re.compile(r"(?<![\w_])_(?![\w_])")
_CHOICE_LISTS = ("choices", "options", "endings")
_NUMBERED_COLUMN = re.compile(r"(?:choice|option|ending|answer)_?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ChoiceInputs(Inputs):
    """A text and its options, one of which is correct."""

    second_text: SecondText = "none"

    default_length = 256

    def build_head(self, task: Task) -> TaskHead:
        return Choice()

    def encode(self, rules: EncodingRules, examples: Examples, *, training: bool) -> Items:
        """Encode the options of each example; in training those of a question form one item."""
        count = len(examples)
        for number, example in enumerate(examples):
            if not example.choices:
                raise DataError(
                    f"task '{rules.task.name}': example {number} ({format_example(example)}) has no choices"
                )
        correct = read_classes(rules.task, examples) if training else np.zeros(count, dtype=np.int64)
        options_by_example = [
            _sample_options(len(example.choices), int(label), number) if training else [*range(len(example.choices))]
            for number, (example, label) in enumerate(zip(examples, correct, strict=True))
        ]
        contexts = [split_context(example) for example in examples]
        sizes = np.array([len(options) for options in options_by_example], dtype=np.int64)
        owner = np.repeat(np.arange(count), sizes)
        continuations = [
            texts[option]
            for (_, texts), options in zip(contexts, options_by_example, strict=True)
            for option in options
        ]
        pool = rules.tokenize([*(first for first, _ in contexts), *continuations])
        layout, lost = rules.fit(pool, owner, count + np.arange(len(owner)))
        lost_by_example = np.bincount(owner, weights=lost, minlength=count).astype(np.int64)
        counts = replace(
            count_truncated(lost_by_example, pool.lengths[owner] + pool.lengths[count:]),
            options_left=sum(len(example.choices) for example in examples) - len(owner),
        )
        sequences = rules.set_segments(layout.sequences)
        if not training:
            return build_items(sequences, counts, examples=owner)
        places = [options.index(int(label)) for options, label in zip(options_by_example, correct, strict=True)]
        sequences = replace(sequences, labels=build_group_labels(sizes, np.array(places, dtype=np.int64)))
        return build_items(sequences, counts, examples=owner, sizes=sizes)

    def read_fields(self, fields: Mapping[str, object], text: str | None, source: str) -> dict[str, Any]:
        choices = read_choices(fields, source)
        if len(choices) < 2:
            raise DataError(f"{source}: this task needs at least two options in the list 'choices'")
        return {"choices": choices}

    def build_user_task(self, tables: UserTables) -> Task:
        reader = ChoiceReader(**tables.pick_columns({"text": "stem", "label": "correct choice"}))
        return tables.build_task("choice", reader, ("choice_accuracy",))


@dataclass(frozen=True, kw_only=True)
class ChoiceOutputs(Outputs):
    """A logit per option."""

    is_explainable = True

    def decode(self, rules: EncodingRules, examples: Examples, items: Items, logits: Floats) -> list[Prediction]:
        """Return the best option of each example."""
        ends = np.cumsum([len(example.choices) for example in examples])[:-1]
        return [choose_best(row) for row in np.split(logits[:, 0], ends)]

    def select_logits(
        self, rules: EncodingRules, example: Example, items: Items, logits: Floats, label: str | None = None
    ) -> PredictedLogits:
        """Return the logit of the best option, or of another one (`label`), in the sequence of this option."""
        if label is not None and label not in example.choices:
            raise UsageError(f"'{label[:40]}' is none of the options")
        option = int(logits[:, 0].argmax()) if label is None else example.choices.index(label)
        return PredictedLogits(sequence=option, rows=(0,), columns=(0,), name=example.choices[option])

    def parse_answer(self, rules: EncodingRules, example: Example, text: str) -> Prediction:
        """Parse a generated answer: a target of the template, or else one of the options."""
        template = rules.task.template
        if template is not None and template.targets:
            label = template.parse_label(text, rules.target_spellings)
        else:
            answer = normalise(text)
            matches = [
                index
                for index, option in enumerate(example.choices)
                if answer in (normalise(option), normalise(rules.spell(option)))
            ]
            label = matches[0] if matches else None
        scores = tuple(float(index == label) for index in range(len(example.choices)))
        return Prediction(text=text, label=label, scores=scores)


CHOICE = TaskType(
    name="choice",
    inputs=ChoiceInputs(),
    outputs=ChoiceOutputs(),
    scoring=Scoring(
        gold="option",
        evaluator=ChoicePrompt(text="{text} {answer}"),
        baselines={"majority": "frequent_place", "svm": "tfidf", "vectors": "choice_vectors"},
    ),
)
"""One of several options for a text."""


def split_context(example: Example) -> tuple[str, list[str]]:
    """Return the context shared by all options, and the continuation of each.

    >>> text = "The ball broke the table as _ was made of steel."
    >>> split_context(Example(text=text, choices=("the ball", "the table")))
    ('The ball broke the table as', ['the ball was made of steel.', 'the table was made of steel.'])
    """
    if example.pair and PLACEHOLDER in example.pair:
        return example.text, [example.pair.replace(PLACEHOLDER, option) for option in example.choices]
    if example.pair is None and len(BLANK_PATTERN.findall(example.text)) == 1:
        context, continuation = BLANK_PATTERN.split(example.text)
        return context.strip(), [option + continuation for option in example.choices]
    return f"{example.text} {example.pair}" if example.pair else example.text, [*example.choices]


def _sample_options(options: int, correct: int, number: int) -> list[int]:
    """Return the options to train on, in order; the sample depends on the example's number only."""
    wrong_options = [*range(correct), *range(correct + 1, options)]
    return sorted([correct, *sorted(wrong_options, key=partial(mix, number))[: MAX_OPTIONS - 1]])


@spec
class ChoiceReader(TableReader):
    """Reader of questions with choices; the label is a number from 0, a letter from A, or the correct choice itself."""

    def parse_row(self, row: TableRow) -> Example:
        choices = read_choices(row.values, row.location)
        if len(choices) < 2:
            raise data_error(
                f"{row.location}: at least two choices are needed, as a list 'choices' or as columns choice1, "
                f"choice2, …, got {len(choices)}"
            )
        text, label = row.get_text(self.text), self._read_label(row, choices)
        return Example(text=text, choices=choices, label=label, id=row.number)

    def _read_label(self, row: TableRow, choices: Sequence[str]) -> int:
        value = str(row.require(self.label)).strip()
        names = row.values.get("choices")
        letters = [str(name) for name in names["label"]] if isinstance(names, dict) and "label" in names else []
        if value in letters:
            return letters.index(value)
        places = {choices.index(value)} if value in choices else set()
        if value.isdecimal():
            places.add(int(value))
        elif len(value) == 1 and value.isascii() and value.isalpha():
            places.add(ord(value.upper()) - ord("A"))
        places = {place for place in places if place < len(choices)}
        if len(places) > 1:
            raise data_error(
                f"{row.location}: '{self.label}' {value[:40]!r} is a choice and the number or letter of another one; "
                "pass numbers from 0 for choices that are not numbers"
            )
        if not places:
            raise data_error(
                f"{row.location}: '{self.label}' must be the correct one of {len(choices)} choices: a number from 0 to "
                f"{len(choices) - 1}, a letter from A, or the choice itself, got {value[:40]!r}"
            )
        return places.pop()


def read_choices(values: Mapping[str, object], location: str) -> tuple[str, ...]:
    """Return the choices of a row: a list, or its numbered or lettered columns in order."""
    names = {str(name).strip().lower(): name for name in values}
    for name in _CHOICE_LISTS:
        if name in names:
            options = values[names[name]]
            options = options.get("text") if isinstance(options, dict) else options
            if is_blank(options) or (isinstance(options, list | tuple) and any(map(is_blank, options))):
                raise BlankCellError(location, name)
            if not isinstance(options, list | tuple) or not all(isinstance(option, str) for option in options):
                raise data_error(f"{location}: '{name}' must be a list of texts, got {str(options)[:40]}")
            return tuple(options)
    numbered_columns = sorted(
        (int(match[1]), name) for name in values if (match := _NUMBERED_COLUMN.fullmatch(str(name).strip()))
    )
    columns = [name for _, name in numbered_columns]
    if not columns:
        columns = [letter for letter in "ABCDEFGH" if letter in values]
    cells: list[Any] = [values[column] for column in columns]
    while cells and is_blank(cells[-1]):
        cells.pop()  # a question may have fewer choices than the table has columns
    cells += [None] * (min(len(columns), 2) - len(cells))  # two are needed
    for column, cell in zip(columns, cells, strict=False):
        if is_blank(cell):
            raise BlankCellError(location, column)
        if not isinstance(cell, str):
            raise data_error(f"{location}: '{column}' must be text, got {str(cell)[:40]!r}; fix the row")
    return tuple(cells)
