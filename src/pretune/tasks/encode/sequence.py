"""Classification, pairs and regression: one sequence for each example, with one label.

[CLS] a fine film [SEP]                    1
[CLS] a dog runs [SEP] it sleeps [SEP]     0
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pretune.data.sequences import Sequences
from pretune.tasks.encode.base import EncodingRules, build_next_token_targets, read_classes, read_scores
from pretune.tasks.encode.items import Counts, Items, build_items
from pretune.tasks.encode.token_pool import deduplicate
from pretune.tasks.example import Example


def encode(rules: EncodingRules, examples: Sequence[Example], *, training: bool) -> Items:
    """One sequence for each example."""
    count = len(examples)
    paired = any(example.pair is not None for example in examples)
    texts = [example.text for example in examples]
    once, which = deduplicate([*texts, *(example.pair or "" for example in examples)] if paired else texts)
    pool = rules.tokenize(once)
    laid, lost = rules.fit(pool, which[:count], which[count:] if paired else None)
    text = pool.lengths[which].reshape(-1, count).sum(axis=0)
    counts = Counts(examples=count, cut=int((lost > 0).sum()), lost=int(lost.sum()), empty=int((text == 0).sum()))
    return build_items(_add_labels(rules, laid.sequences, examples, training), counts=counts)


def _add_labels(rules: EncodingRules, sequences: Sequences, examples: Sequence[Example], training: bool) -> Sequences:
    """With labels, where they are to be learnt from."""
    labels: Any = None
    if training:
        labels = read_scores(rules, examples) if rules.task.kind == "regression" else read_classes(rules.task, examples)
    targets = build_next_token_targets(sequences) if training and rules.has_lm_loss else None
    return replace(rules.set_segments(sequences), labels=labels, targets=targets)
