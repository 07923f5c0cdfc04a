"""Baselines side by side on one split: score and time of each, and those that were not run."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pretune.core.counted import counted
from pretune.core.errors import UsageError
from pretune.core.seed import generator
from pretune.evaluation.baselines import BASELINES, DEFAULT
from pretune.evaluation.baselines.base import Label, Text
from pretune.metrics.classification import accuracy

MOST = 20_000
"""Training rows that baselines see, unless told otherwise."""

Metric = Callable[[Sequence[Label], Sequence[Label]], float | Mapping[str, float]]
"""From gold and predicted labels to a score, or to several, the first of which is the one that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One baseline."""

    method: str
    score: float
    seconds: float  # by the clock, for learning and predicting
    predicted: tuple[Label, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What was run, in its order, and what was not."""

    rows: tuple[Row, ...]
    left_out: tuple[str, ...]
    trained_on: int  # rows
    of: int  # rows there were

    def __str__(self) -> str:
        lines = [f"{'method':<10} {'score':>7} {'seconds':>8}"]
        lines += [f"{row.method:<10} {row.score:>7.4f} {row.seconds:>8.1f}" for row in self.rows]
        seen = f"trained on {self.trained_on:,} of {counted(self.of, 'rows')}"
        return "\n".join([*lines, f"{seen}; not run: {', '.join(self.left_out) or 'none'}"])


def compare(
    texts: Sequence[Text],
    labels: Sequence[Label],
    test: Sequence[Text],
    gold: Sequence[Label],
    *,
    names: Sequence[str] = DEFAULT,
    metric: Metric = accuracy,
    most: int | None = MOST,
    seed: int = 0,
) -> Table:
    """Fit baselines on labelled texts (or pairs), `most` of them at most, and score them on others."""
    if len(texts) != len(labels) or len(test) != len(gold) or not texts or not test:
        raise UsageError(
            f"baselines need a label for every text: {len(labels)} for {len(texts)} to learn from, "
            f"{len(gold)} for {len(test)} to be judged by"
        )
    chosen = [BASELINES.get(name) for name in names]
    take: Sequence[int] = range(len(texts))
    if most is not None and len(texts) > most:
        take = sorted(generator(seed, 0).permutation(len(texts))[:most].tolist())
    some, theirs = [texts[i] for i in take], [labels[i] for i in take]
    rows = []
    for name, baseline in zip(names, chosen, strict=True):
        begun = time.perf_counter()
        predicted = tuple(baseline().fit(some, theirs, seed=seed)(test))
        seconds = time.perf_counter() - begun
        found = metric(gold, predicted)
        score = next(iter(found.values())) if isinstance(found, Mapping) else found
        rows.append(Row(method=name, score=score, seconds=seconds, predicted=predicted))
    left_out = tuple(name for name in BASELINES if name not in names)
    return Table(rows=tuple(rows), left_out=left_out, trained_on=len(some), of=len(texts))
