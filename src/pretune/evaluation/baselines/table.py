"""Baselines side by side on one split: score and time of each, and those that were not run."""

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
"""Training rows that baselines see, unless told otherwise."""

Metric = Callable[[Sequence[Label], Sequence[Label]], float | Mapping[str, float]]
"""From gold and predicted labels to a score, or to several, the first of which is the one that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineScore:
    """One baseline."""

    method: str
    score: float
    seconds: float  # by the clock, for learning and predicting
    predictions: tuple[Label, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineTable:
    """What was run, in its order, and what was not."""

    rows: tuple[BaselineScore, ...]
    skipped: tuple[str, ...]
    train_rows: int  # rows
    total_rows: int  # rows there were

    def __str__(self) -> str:
        lines = [f"{'method':<10} {'score':>7} {'seconds':>8}"]
        lines += [f"{row.method:<10} {row.score:>7.4f} {row.seconds:>8.1f}" for row in self.rows]
        seen = f"trained on {self.train_rows:,} of {format_count(self.total_rows, 'rows')}"
        return "\n".join([*lines, f"{seen}; not run: {', '.join(self.skipped) or 'none'}"])


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
    """Fit baselines on labelled texts (or pairs), `most` of them at most, and score them on others."""
    if len(texts) != len(labels) or len(test) != len(gold) or not texts or not test:
        raise UsageError(
            f"baselines need a label for every text: {len(labels)} for {len(texts)} to learn from, "
            f"{len(gold)} for {len(test)} to be judged by"
        )
    chosen = [BASELINES.get(name) for name in names]
    take: Sequence[int] = range(len(texts))
    if max_train_examples is not None and len(texts) > max_train_examples:
        take = sorted(make_generator(seed, 0).permutation(len(texts))[:max_train_examples].tolist())
    some, theirs = [texts[i] for i in take], [labels[i] for i in take]
    rows = []
    for name, baseline in zip(names, chosen, strict=True):
        begun = time.perf_counter()
        predicted = tuple(baseline().fit(some, theirs, seed=seed)(test))
        seconds = time.perf_counter() - begun
        found = metric(gold, predicted)
        score = next(iter(found.values())) if isinstance(found, Mapping) else found
        rows.append(BaselineScore(method=name, score=score, seconds=seconds, predictions=predicted))
    left_out = tuple(name for name in BASELINES if name not in names)
    return BaselineTable(rows=tuple(rows), skipped=left_out, train_rows=len(some), total_rows=len(texts))
