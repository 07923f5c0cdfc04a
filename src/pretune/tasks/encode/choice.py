"""Multiple choice: a sequence per option, with its context; the options of a question form one item.

    [CLS] he took the ball and [SEP] threw it [SEP]     [CLS] he took the ball and [SEP] ate it [SEP]

If the text has a blank, the option fills it: WinoGrande's "_", ReCoRD's "@placeholder".
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pretune.adaptation.heads.choice import build_group_labels
from pretune.core.errors import DataError
from pretune.core.seed import mix
from pretune.data.sequences import Ints, compute_offsets
from pretune.tasks.encode.base import EncodingRules, format_example, read_classes
from pretune.tasks.encode.items import Counts, Items, build_items
from pretune.tasks.example import Example

MAX_OPTIONS = 8
"""Maximum options per question in training: the correct one, and sampled others. Predictions use all."""

PLACEHOLDER = "@placeholder"
BLANK_PATTERN = re.compile(r"(?<![\w_])_(?![\w_])")


def encode(rules: EncodingRules, examples: Sequence[Example], *, training: bool) -> Items:
    """Encode the options of each example; in training those of a question form one item."""
    count = len(examples)
    for number, example in enumerate(examples):
        if not example.choices:
            raise DataError(f"task '{rules.task.name}': example {number} ({format_example(example)}) has no choices")
    correct = read_classes(rules.task, examples) if training else np.zeros(count, dtype=np.int64)
    options_by_example = [
        _sample_options(len(example.choices), int(label), number) if training else [*range(len(example.choices))]
        for number, (example, label) in enumerate(zip(examples, correct, strict=True))
    ]
    contexts = [split_context(example) for example in examples]
    sizes = np.array([len(options) for options in options_by_example], dtype=np.int64)
    owner = np.repeat(np.arange(count), sizes)
    pool = rules.tokenize(
        [
            *(first for first, _ in contexts),
            *(contexts[index][1][option] for index, options in enumerate(options_by_example) for option in options),
        ]
    )
    layout, lost = rules.fit(pool, owner, count + np.arange(len(owner)))
    lost_by_example = np.bincount(owner, weights=lost, minlength=count).astype(np.int64)
    text = pool.lengths[owner] + pool.lengths[count:]
    counts = Counts(
        examples=count,
        cut=int((lost_by_example > 0).sum()),
        lost=int(lost_by_example.sum()),
        empty=int((text == 0).sum()),
        options_left=sum(len(example.choices) for example in examples) - len(owner),
    )
    sequences = rules.set_segments(layout.sequences)
    if not training:
        return build_items(sequences, examples=owner, counts=counts)
    places = np.array(
        [options.index(int(label)) for options, label in zip(options_by_example, correct, strict=True)], dtype=np.int64
    )
    return build_items(
        replace(sequences, labels=build_group_labels(sizes, places)), examples=owner, sizes=sizes, counts=counts
    )


def group_by_example(items: Items, values: Ints) -> list[Ints]:
    """Group the values of sequences by example."""
    return np.split(values, compute_offsets(np.bincount(items.examples))[1:-1])


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
    if options <= MAX_OPTIONS:
        return [*range(options)]
    wrong_options = sorted(
        (option for option in range(options) if option != correct), key=lambda option: mix(number, option)
    )
    return sorted([correct, *wrong_options[: MAX_OPTIONS - 1]])
