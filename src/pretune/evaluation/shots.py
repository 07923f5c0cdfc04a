"""Sampling of few-shot examples: drawn once by a seed, balanced over classes."""

from collections.abc import Sequence

from pretune.core.seed import mix
from pretune.tasks.example import Example


def draw_shots(examples: Sequence[Example], count: int, seed: int = 0) -> list[Example]:
    """Draw `count` labelled examples, classes in turn while they last, in random order; fewer if there are fewer.

    >>> shots = draw_shots([Example(text=str(i), label=i % 10 == 0) for i in range(100)], 4)
    >>> sorted(int(example.label) for example in shots)
    [0, 0, 1, 1]
    """
    positions_by_label: dict[int | float, list[int]] = {}
    for i in sorted(range(len(examples)), key=lambda i: mix(seed, 0, i)):
        example = examples[i]
        if example.label is not None:
            positions_by_label.setdefault(0 if example.choices else example.label, []).append(i)
    classes = sorted(positions_by_label, key=lambda label: mix(seed, 1, int(label)))
    positions: list[int] = []
    while len(positions) < count and any(positions_by_label.values()):
        for label in classes:
            if positions_by_label[label] and len(positions) < count:
                positions.append(positions_by_label[label].pop(0))
    return [examples[i] for i in sorted(positions, key=lambda i: mix(seed, 2, i))]


def count_fitting(lengths: Sequence[int], max_tokens: int) -> int:
    """Return how many of the last shots fit into `max_tokens` tokens; the first shots are dropped first.

    >>> count_fitting([5, 9, 3, 4], 8), count_fitting([5, 9, 3, 4], 100), count_fitting([5], 3)
    (2, 4, 0)
    """
    tokens, count = 0, 0
    for length in reversed(lengths):
        tokens += length
        if tokens > max_tokens:
            break
        count += 1
    return count
