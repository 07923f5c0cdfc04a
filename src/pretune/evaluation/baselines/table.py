"""Comparison of baselines on one split: score and time of each, and the baselines not run."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pretune.core.errors import UsageError
from pretune.core.format import format_count
from pretune.core.seed import make_generator
from pretune.evaluation.baselines import BASELINES, DEFAULT_BASELINES
from pretune.evaluation.baselines.base import Label, Text
from pretune.metrics.classification import accuracy

MAX_TRAIN_EXAMPLES = 20_000
"""Default maximum number of training examples of baselines."""

Metric = Callable[[Sequence[Label], Sequence[Label]], float | Mapping[str, float]]
"""Function from gold and predicted labels to a score, or to several with the main one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineScore:
    """Score of one baseline."""

    method: str
    score: float
    seconds: float  # wall-clock time of training and prediction
    predictions: tuple[Label, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineTable:
    """Baselines that were run, in order, and those that were not."""

    rows: tuple[BaselineScore, ...]
    skipped_methods: tuple[str, ...]
    train_rows: int  # training rows used
    total_rows: int  # training rows available

    def __str__(self) -> str:
        lines = [f"{'method':<10} {'score':>7} {'seconds':>8}"]
        lines += [f"{row.method:<10} {row.score:>7.4f} {row.seconds:>8.1f}" for row in self.rows]
        train_text = f"trained on {self.train_rows:,} of {format_count(self.total_rows, 'rows')}"
        return "\n".join([*lines, f"{train_text}; not run: {', '.join(self.skipped_methods) or 'none'}"])


def compare(
    texts: Sequence[Text],
    labels: Sequence[Label],
    test: Sequence[Text],
    gold: Sequence[Label],
    *,
    names: Sequence[str] = DEFAULT_BASELINES,
    metric: Metric = accuracy,
    max_train_examples: int | None = MAX_TRAIN_EXAMPLES,
    seed: int = 0,
) -> BaselineTable:
    """Fit baselines on at most `max_train_examples` labelled texts (or pairs), and score them on a test split."""
    if len(texts) != len(labels) or len(test) != len(gold) or not texts or not test:
        raise UsageError(
            f"baselines need one label per text, got {len(labels)} labels for {len(texts)} training texts and "
            f"{len(gold)} labels for {len(test)} test texts"
        )
    methods = [BASELINES.get(name) for name in names]
    rows_used: Sequence[int] = range(len(texts))
    if max_train_examples is not None and len(texts) > max_train_examples:
        rows_used = sorted(make_generator(seed, 0).permutation(len(texts))[:max_train_examples].tolist())
    train_texts, train_labels = [texts[i] for i in rows_used], [labels[i] for i in rows_used]
    rows = []
    for name, baseline in zip(names, methods, strict=True):
        start = time.perf_counter()
        predictions = tuple(baseline().fit(train_texts, train_labels, seed=seed)(test))
        seconds = time.perf_counter() - start
        scores = metric(gold, predictions)
        score = next(iter(scores.values())) if isinstance(scores, Mapping) else scores
        rows.append(BaselineScore(method=name, score=score, seconds=seconds, predictions=predictions))
    remaining = tuple(name for name in BASELINES if name not in names)
    return BaselineTable(
        rows=tuple(rows), skipped_methods=remaining, train_rows=len(train_texts), total_rows=len(texts)
    )
