"""Tags of words: the first token of a word carries its tag, the others none (Devlin et al., 2019, section 5.3).

    [CLS] John  lives in  Par  ##is  [SEP]
    -     B-PER O     O   B-LOC -    -

Words are joined by spaces and tokenized as one text, so that they get the tokens of running text. A word without a
token (truncated, or removed by the tokenizer) is counted, and cannot be trained on.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pretune.core.errors import DataError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Ints, compute_offsets, compute_starts
from pretune.tasks.encode.base import EncodingRules, format_example, missing_value_error
from pretune.tasks.encode.items import Counts, Items, build_items
from pretune.tasks.encode.token_pool import TokenPool
from pretune.tasks.example import Example


def encode(rules: EncodingRules, examples: Sequence[Example], *, training: bool) -> Items:
    """Encode one sequence per sentence; `alignment` is the word of which a token is the first."""
    count = len(examples)
    sizes = np.array([len(example.words) for example in examples], dtype=np.int64)
    pool = rules.tokenize([" ".join(example.words) for example in examples])
    firsts = find_first_tokens(pool, examples)
    layout, lost = rules.fit(pool, np.arange(count))
    alignment = (
        np.where(layout.pool_index < 0, -1, firsts[layout.pool_index])
        if len(firsts)
        else np.full(len(layout.pool_index), -1)
    )
    owners = layout.sequences.find_owners()
    is_first = alignment >= 0
    counts = Counts(
        examples=count,
        cut=int((lost > 0).sum()),
        lost=int(lost.sum()),
        empty=int((pool.lengths == 0).sum()),
        words_lost=int(sizes.sum()) - int(is_first.sum()),
    )
    sequences = rules.set_segments(layout.sequences)
    if training:
        labels = _read_tags(rules, examples)
        targets = np.full(len(alignment), IGNORE_INDEX)
        targets[is_first] = labels[compute_starts(sizes)[owners[is_first]] + alignment[is_first]]
        sequences = replace(sequences, targets=targets)
    return build_items(sequences, counts=counts, alignment=alignment)


def find_first_tokens(pool: TokenPool, examples: Sequence[Example]) -> Ints:
    """Return for each token of the pool the word of which it is the first `[T]`; -1 for the others."""
    word_index = np.full(len(pool.ids), -1)
    for number, example in enumerate(examples):
        low, high = pool.offsets[number], pool.offsets[number + 1]
        begin = compute_offsets(np.array([len(word) + 1 for word in example.words], dtype=np.int64))  # characters
        word = np.searchsorted(begin, pool.starts[low:high], side="right") - 1  # that a token starts in
        if len(word):
            starts_word = np.append(True, word[1:] != word[:-1]) & (word < len(example.words))
            word_index[low:high][starts_word] = word[starts_word]
    return word_index


def _read_tags(rules: EncodingRules, examples: Sequence[Example]) -> Ints:
    """Return the tags of all words as ids."""
    tag_ids = {tag: number for number, tag in enumerate(rules.task.labels)}
    labels: list[int] = []
    for number, example in enumerate(examples):
        if len(example.tags) != len(example.words):
            raise missing_value_error(
                rules.task, number, example, f"{len(example.tags)} tags for {len(example.words)} words"
            )
        for tag in example.tags:
            if tag not in tag_ids:
                raise DataError(
                    f"task '{rules.task.name}': tag of example {number} ({format_example(example)}) must be one of "
                    f"{', '.join(tag_ids)[:200]}, got {tag[:40]!r}"
                )
            labels.append(tag_ids[tag])
    return np.array(labels, dtype=np.int64)
