"""Tasks of layer probes: items with labels, and the type that decides the label of an item in the control task.

pos       part of speech of a word (ud_ewt)
entity    kind of entity of a word, or none (conll2003); words outside entities are sampled to half of the items
length    number of words of a sentence, in six classes of equal size
sense     is a word used in the same sense in two sentences? (wic)

In the control task (Hewitt and Liang, 2019) every word type has a random label, drawn from the distribution of the
task's labels; only a probe that memorizes types can solve it. For sentences the type is the sentence, so that it cannot
be solved on new ones.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pretune.analysis.words import WORD_PATTERN
from pretune.core.errors import DataError
from pretune.core.seed import make_generator, mix
from pretune.data.sequences import Ints
from pretune.tasks import TASKS
from pretune.tasks.example import Example

SOURCES = {"pos": "ud_ewt", "entity": "conll2003", "length": None, "sense": "wic"}
"""Published task whose data a probe needs; None: any text."""
PROBE_TASKS = tuple(SOURCES)
LENGTH_CLASSES = 6
"""Classes of sentence length, as in SentEval (Conneau et al., 2018)."""
OUTSIDE = "O"
_MARKED_WORD = re.compile(r"\*([^*]+)\*")

Span = tuple[int, int]


class ProbeItem(NamedTuple):
    """An item: its spans, as (text, span) of `ProbeData.texts`, its label, and its type for the control task."""

    spans: tuple[tuple[int, Span], ...]
    label: str
    type: str


@dataclass(frozen=True, slots=True)
class ProbeData:
    """Texts and items of a task, for training and for testing."""

    name: str
    texts: list[str]
    train: list[ProbeItem]
    test: list[ProbeItem]
    source: str

    @property
    def labels(self) -> list[str]:
        """The labels of the training items, sorted."""
        return sorted({item.label for item in self.train})


def build_probe_data(
    name: str,
    examples: int,
    *,
    seed: int,
    data: str | os.PathLike[str] | None = None,
    texts: Sequence[str] | None = None,
    source: str = "",
) -> ProbeData:
    """Return at most `examples` items for training and half as many for testing, a sample by seed.

    Published data is read below `data`, then $PRETUNE_DATA; the task "length" takes `texts`. Raises DataError if data
    is missing, with its name and place, or too small.
    """
    task = SOURCES[name]
    if task is None:
        return _build_lengths(examples, seed, texts or [], source)
    splits = [[*TASKS.get(task).read(split, data)] for split in ("train", "dev")]
    collected_texts: list[str] = []
    sides: list[list[ProbeItem]] = []
    for number, split in enumerate(splits):
        order = make_generator(seed, number).permutation(len(split))
        limit = examples if number == 0 else max(examples // 2, 1)
        build = _build_pairs if name == "sense" else _build_words
        sides.append(build(name, [split[i] for i in order], collected_texts, limit, seed))
    return _check(ProbeData(name, collected_texts, sides[0], sides[1], task))


def _build_words(name: str, split: Sequence[Example], texts: list[str], limit: int, seed: int) -> list[ProbeItem]:
    """Return one item per word, of as many sentences as are needed."""
    items: list[ProbeItem] = []
    outside_count = inside_count = 0
    for example in split:
        if len(items) >= limit:
            break
        spans = _locate_words(example.words)
        sentence_items = []
        for word, tag, span in zip(example.words, example.tags, spans, strict=True):
            label = tag.partition("-")[2] or tag if name == "entity" else tag
            if name == "entity" and label == OUTSIDE and outside_count > inside_count:
                continue
            outside_count, inside_count = outside_count + (label == OUTSIDE), inside_count + (label != OUTSIDE)
            sentence_items.append(ProbeItem(((len(texts), span),), label, word.lower()))
        texts.append(" ".join(example.words))
        items += sentence_items
    return items[:limit]


def _locate_words(words: Sequence[str]) -> list[Span]:
    """Return the spans of words joined by spaces.

    >>> _locate_words(["a", "cat"])
    [(0, 1), (2, 5)]
    """
    spans, position = list[Span](), 0
    for word in words:
        spans.append((position, position + len(word)))
        position += len(word) + 1
    return spans


def _build_pairs(name: str, split: Sequence[Example], texts: list[str], limit: int, seed: int) -> list[ProbeItem]:
    """Return one item per pair of sentences with a marked word."""
    items: list[ProbeItem] = []
    for example in split[:limit]:
        spans: list[tuple[int, Span]] = []
        for side in (example.text, example.pair or ""):
            match = _MARKED_WORD.search(side)
            if match is None:
                raise DataError(f"task 'wic': no marked word in example {example.id!r}")
            spans.append((len(texts), (match.start(), match.end() - 2)))
            texts.append(f"{side[: match.start()]}{match[1]}{side[match.end() :]}")
        if example.label is not None:
            items.append(ProbeItem(tuple(spans), str(int(example.label)), example.facts["word"].lower()))
    return items


def _build_lengths(examples: int, seed: int, texts: Sequence[str], source: str) -> ProbeData:
    """Return sentences with their number of words in classes of equal size."""
    unique_texts = [*dict.fromkeys(text for text in texts if text.strip())]
    order = make_generator(seed, 0).permutation(len(unique_texts))
    count = min(examples + max(examples // 2, 1), len(unique_texts))
    sample = [unique_texts[i] for i in order[:count]]
    sizes = np.array([len(WORD_PATTERN.findall(text)) for text in sample])
    train_count = count - count // 3
    quantiles = np.linspace(0, 1, LENGTH_CLASSES + 1)[1:-1]
    edges: NDArray[Any] = np.unique(np.quantile(sizes[:train_count], quantiles)) if count else np.zeros(0)
    classes = np.searchsorted(edges, sizes, "left")
    items = [
        ProbeItem(((place, (0, len(text))),), str(number), text)
        for place, (text, number) in enumerate(zip(sample, classes, strict=True))
    ]
    return _check(ProbeData("length", sample, items[:train_count], items[train_count:], source))


def _check(data: ProbeData) -> ProbeData:
    if len(data.labels) < 2 or not data.test:
        raise DataError(f"probe '{data.name}': {data.source or 'the texts'} has too few examples; pass more text")
    return data


def draw_control_labels(items: Sequence[ProbeItem], labels: Ints, seed: int) -> dict[str, int]:
    """Return a random label for the type of every item, from the distribution of `labels`; it depends on type and seed.

    The same type has the same label in training and testing.
    """
    distribution = np.sort(labels)
    hashes = {
        kind: int.from_bytes(hashlib.blake2b(kind.encode("utf-8", "surrogatepass"), digest_size=8).digest())
        for kind in {item.type for item in items}
    }
    return {kind: int(distribution[mix(seed, number) % len(distribution)]) for kind, number in hashes.items()}


def encode_labels(items: Sequence[ProbeItem], names: Sequence[str]) -> NDArray[Any]:
    """Return the labels as numbers; -1 for a label that training does not have."""
    index = {name: number for number, name in enumerate(names)}
    return np.array([index.get(item.label, -1) for item in items], dtype=np.int64)
