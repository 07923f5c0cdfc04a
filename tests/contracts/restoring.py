"""Restore a text from input and targets, in simple loops over tokens."""

from itertools import pairwise

import numpy as np

from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Ints, Sequences


def sides(after: Sequences) -> list[tuple[list[int], list[int]]]:
    """Return input and target of each sequence, of an encoder-decoder or concatenated for a decoder."""
    assert after.targets is not None
    found = []
    for number, (start, end) in enumerate(pairwise(after.offsets.tolist())):
        labels = [label for label in after.targets[start:end].tolist() if label != IGNORE_INDEX]
        if after.source is None:
            shown = after.tokens[start : end - len(labels)].tolist()
            assert after.tokens[end - len(labels) : end].tolist() == labels
        else:
            shown = after.source.tokens[slice(*after.source.offsets[number : number + 2])].tolist()
            assert after.tokens[start + 1 : end].tolist() == after.targets[start : end - 1].tolist()
        found.append((shown, labels))
    return found


def restore_concatenated(before: Sequences, after: Sequences) -> Ints:
    """Concatenate input and target."""
    return np.array([token for shown, labels in sides(after) for token in shown + labels], dtype=np.int64)


def restore_prefix(before: Sequences, after: Sequences) -> Ints:
    """Concatenate the prefix, without its closing token, and the rest."""
    if after.source is None:
        return after.tokens
    found: list[int] = []
    for number, (shown, labels) in enumerate(sides(after)):
        end = int(before.offsets[number + 1]) - 1
        closed = bool(labels) and before.special is not None and bool(before.special[end])
        found += shown[: len(shown) - closed] + labels
    return np.array(found, dtype=np.int64)


def restore_spans(before: Sequences, after: Sequences) -> Ints:
    """Replace each sentinel of the input by the tokens that follow it in the target."""
    found: list[int] = []
    for number, (shown, labels) in enumerate(sides(after)):
        text = before.tokens[slice(*before.offsets[number : number + 2])].tolist()
        sentinels = {*shown} - {*text}
        hidden: dict[int, list[int]] = {}
        last: list[int] = []
        for label in labels:
            if label in sentinels:
                assert label not in hidden, "a sentinel stands for one span only"
                last = hidden.setdefault(label, [])
            elif label in text and not _closing(before, number, label):
                last.append(label)
        for token in shown:
            found += hidden.get(token, [token])
    return np.array(found, dtype=np.int64)


def _closing(before: Sequences, number: int, label: int) -> bool:
    """Return whether a label is the special token at the end of the text."""
    end = int(before.offsets[number + 1]) - 1
    return before.special is not None and bool(before.special[end]) and label == int(before.tokens[end])


def restore_span(before: Sequences, after: Sequences) -> Ints:
    """Insert the target into the input, at a position that restores the text.

    Masked tokens may be kept unchanged, so several positions can qualify.
    """
    found: list[int] = []
    for number, (shown, labels) in enumerate(sides(after)):
        text = before.tokens[slice(*before.offsets[number : number + 2])].tolist()
        size = len(labels)
        tries = (shown[:i] + labels + shown[i + size :] for i in range(len(shown) - size + 1))
        found += next((made for made in tries if made == text), shown)
    return np.array(found, dtype=np.int64)
