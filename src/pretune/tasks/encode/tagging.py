"""Tags for words: the first token of a word carries its tag, the others none (Devlin et al., 2019, section 5.3).

    [CLS] John  lives in  Par  ##is  [SEP]
    -     B-PER O     O   B-LOC -    -

Words are read as one text with spaces between them, so that each has the tokens it has in running text. A word of which
no token is left (it was cut off, or the tokenizer makes nothing of it) is counted, and cannot be trained on.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pretune.core.errors import DataError
from pretune.core.types import IGNORE_INDEX
from pretune.data.ragged import Ints, compute_offsets, compute_starts
from pretune.tasks.encode.base import EncodingRules, format_example, missing_value_error
from pretune.tasks.encode.items import Counts, Items, build_items
from pretune.tasks.encode.token_pool import TokenPool
from pretune.tasks.example import Example


def encode(rules: EncodingRules, examples: Sequence[Example], *, training: bool) -> Items:
    """One sequence for each sentence; `marks` say which word a token is the first of."""
    count = len(examples)
    sizes = np.array([len(example.words) for example in examples], dtype=np.int64)
    pool = rules.tokenize([" ".join(example.words) for example in examples])
    firsts = find_first_tokens(pool, examples)
    laid, lost = rules.fit(pool, np.arange(count))
    marks = (
        np.where(laid.pool_index < 0, -1, firsts[laid.pool_index]) if len(firsts) else np.full(len(laid.pool_index), -1)
    )
    owners = laid.sequences.find_owners()
    found = marks >= 0
    counts = Counts(
        examples=count,
        cut=int((lost > 0).sum()),
        lost=int(lost.sum()),
        empty=int((pool.lengths == 0).sum()),
        words_lost=int(sizes.sum()) - int(found.sum()),
    )
    sequences = rules.set_segments(laid.sequences)
    if training:
        labels = _read_tags(rules, examples)
        targets = np.full(len(marks), IGNORE_INDEX)
        targets[found] = labels[compute_starts(sizes)[owners[found]] + marks[found]]
        sequences = replace(sequences, targets=targets)
    return build_items(sequences, counts=counts, marks=marks)


def find_first_tokens(pool: TokenPool, examples: Sequence[Example]) -> Ints:
    """[T] which word of its sentence each token of the pool is the first of; -1 for the others."""
    found = np.full(len(pool.ids), -1)
    for number, example in enumerate(examples):
        low, high = pool.offsets[number], pool.offsets[number + 1]
        begin = compute_offsets(np.array([len(word) + 1 for word in example.words], dtype=np.int64))  # characters
        word = np.searchsorted(begin, pool.starts[low:high], side="right") - 1  # that a token starts in
        if len(word):
            first = np.append(True, word[1:] != word[:-1]) & (word < len(example.words))
            found[low:high][first] = word[first]
    return found


def _read_tags(rules: EncodingRules, examples: Sequence[Example]) -> Ints:
    """The tags of all words as numbers."""
    known = {tag: number for number, tag in enumerate(rules.task.labels)}
    found: list[int] = []
    for number, example in enumerate(examples):
        if len(example.tags) != len(example.words):
            raise missing_value_error(
                rules.task, number, example, f"{len(example.tags)} tags for {len(example.words)} words"
            )
        for tag in example.tags:
            if tag not in known:
                raise DataError(
                    f"task '{rules.task.name}': example {number} ({format_example(example)}) has the tag {tag[:40]!r}, which "
                    f"is not one of {', '.join(known)[:200]}"
                )
            found.append(known[tag])
    return np.array(found, dtype=np.int64)
