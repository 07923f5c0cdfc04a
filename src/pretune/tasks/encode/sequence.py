"""Classification, pairs and regression: one sequence per example, with one label.

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
    """Encode one sequence per example."""
    count = len(examples)
    has_pairs = any(example.pair is not None for example in examples)
    texts = [example.text for example in examples]
    unique_texts, text_ids = deduplicate(
        [*texts, *(example.pair or "" for example in examples)] if has_pairs else texts
    )
    pool = rules.tokenize(unique_texts)
    layout, lost = rules.fit(pool, text_ids[:count], text_ids[count:] if has_pairs else None)
    text = pool.lengths[text_ids].reshape(-1, count).sum(axis=0)
    counts = Counts(examples=count, cut=int((lost > 0).sum()), lost=int(lost.sum()), empty=int((text == 0).sum()))
    return build_items(_add_labels(rules, layout.sequences, examples, training), counts=counts)


def _add_labels(rules: EncodingRules, sequences: Sequences, examples: Sequence[Example], training: bool) -> Sequences:
    """Add the labels in training."""
    labels: Any = None
    if training:
        labels = read_scores(rules, examples) if rules.task.kind == "regression" else read_classes(rules.task, examples)
    targets = build_next_token_targets(sequences) if training and rules.has_lm_loss else None
    return replace(rules.set_segments(sequences), labels=labels, targets=targets)
