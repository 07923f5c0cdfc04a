"""Multiple choice: a sequence for every option, with the text it belongs to; those of a question are one item.

    [CLS] he took the ball and [SEP] threw it [SEP]     [CLS] he took the ball and [SEP] ate it [SEP]

Where a text has a gap, the option fills it: WinoGrande's "_", ReCoRD's "@placeholder".
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pretune.adaptation.heads.choice import build_group_labels
from pretune.core.errors import DataError
from pretune.core.seed import mix
from pretune.data.ragged import Ints, compute_offsets
from pretune.tasks.encode.base import EncodingRules, format_example, read_classes
from pretune.tasks.encode.items import Counts, Items, build_items
from pretune.tasks.example import Example

MAX_OPTIONS = 8
"""Options of a question that are trained on: the right one, and others that are drawn. All are read for an answer."""

PLACEHOLDER = "@placeholder"
BLANK_PATTERN = re.compile(r"(?<![\w_])_(?![\w_])")


def encode(rules: EncodingRules, examples: Sequence[Example], *, training: bool) -> Items:
    """The options of each example; while training those of one question are one item."""
    count = len(examples)
    for number, example in enumerate(examples):
        if not example.choices:
            raise DataError(f"task '{rules.task.name}': example {number} ({format_example(example)}) has no choices")
    right = read_classes(rules.task, examples) if training else np.zeros(count, dtype=np.int64)
    kept = [
        _sample_options(len(example.choices), int(label), number) if training else [*range(len(example.choices))]
        for number, (example, label) in enumerate(zip(examples, right, strict=True))
    ]
    parts = [split_context(example) for example in examples]
    sizes = np.array([len(one) for one in kept], dtype=np.int64)
    owner = np.repeat(np.arange(count), sizes)
    pool = rules.tokenize(
        [*(first for first, _ in parts), *(parts[at][1][option] for at, some in enumerate(kept) for option in some)]
    )
    laid, lost = rules.fit(pool, owner, count + np.arange(len(owner)))
    each = np.bincount(owner, weights=lost, minlength=count).astype(np.int64)
    text = pool.lengths[owner] + pool.lengths[count:]
    counts = Counts(
        examples=count,
        cut=int((each > 0).sum()),
        lost=int(each.sum()),
        empty=int((text == 0).sum()),
        options_left=sum(len(example.choices) for example in examples) - len(owner),
    )
    found = rules.set_segments(laid.sequences)
    if not training:
        return build_items(found, examples=owner, counts=counts)
    places = np.array([some.index(int(label)) for some, label in zip(kept, right, strict=True)], dtype=np.int64)
    return build_items(
        replace(found, labels=build_group_labels(sizes, places)), examples=owner, sizes=sizes, counts=counts
    )


def group_by_example(items: Items, values: Ints) -> list[Ints]:
    """Values of sequences gathered by example."""
    return np.split(values, compute_offsets(np.bincount(items.examples))[1:-1])


def split_context(example: Example) -> tuple[str, list[str]]:
    """The text that all options share, and what each of them has for itself.

    >>> split_context(Example(text="The ball broke the table as _ was build_items of steel.", choices=("the ball", "the table")))
    ('The ball broke the table as', ['the ball was made of steel.', 'the table was made of steel.'])
    """
    if example.pair and PLACEHOLDER in example.pair:
        return example.text, [example.pair.replace(PLACEHOLDER, option) for option in example.choices]
    if example.pair is None and len(BLANK_PATTERN.findall(example.text)) == 1:
        before, after = BLANK_PATTERN.split(example.text)
        return before.strip(), [option + after for option in example.choices]
    return f"{example.text} {example.pair}" if example.pair else example.text, [*example.choices]


def _sample_options(options: int, correct: int, number: int) -> list[int]:
    """Which options are trained on, in their order; those that are left out follow from the example's number."""
    if options <= MAX_OPTIONS:
        return [*range(options)]
    others = sorted((option for option in range(options) if option != correct), key=lambda at: mix(number, at))
    return sorted([correct, *others[: MAX_OPTIONS - 1]])
