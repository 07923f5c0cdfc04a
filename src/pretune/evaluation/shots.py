"""Which examples a prompt shows before its question: drawn once by a seed, as many of each class as of another."""

from collections.abc import Sequence

from pretune.core.seed import mix
from pretune.tasks.example import Example


def draw_shots(examples: Sequence[Example], count: int, seed: int = 0) -> list[Example]:
    """`count` examples with an answer, classes in turn while they last, in a random order; fewer where there are fewer.

    >>> found = draw_shots([Example(text=str(at), label=at % 10 == 0) for at in range(100)], 4)
    >>> sorted(int(example.label) for example in found)
    [0, 0, 1, 1]
    """
    waiting: dict[int | float, list[int]] = {}
    for at in sorted(range(len(examples)), key=lambda at: mix(seed, 0, at)):
        example = examples[at]
        if example.label is not None:
            waiting.setdefault(0 if example.choices else example.label, []).append(at)
    classes = sorted(waiting, key=lambda label: mix(seed, 1, int(label)))
    chosen: list[int] = []
    while len(chosen) < count and any(waiting.values()):
        for label in classes:
            if waiting[label] and len(chosen) < count:
                chosen.append(waiting[label].pop(0))
    return [examples[at] for at in sorted(chosen, key=lambda at: mix(seed, 2, at))]


def count_fitting(lengths: Sequence[int], max_tokens: int) -> int:
    """How many of the last shots fit into so many tokens; the first are dropped first.

    >>> count_fitting([5, 9, 3, 4], 8), count_fitting([5, 9, 3, 4], 100), count_fitting([5], 3)
    (2, 4, 0)
    """
    used, kept = 0, 0
    for length in reversed(lengths):
        used += length
        if used > max_tokens:
            break
        kept += 1
    return kept
