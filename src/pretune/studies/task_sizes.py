"""Sizes of tasks for estimates: numbers of examples and their lengths, without reading all of a published task."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice

from pretune.runs.finetune.config import TaskConfig
from pretune.runs.finetune.task_data import SPLIT_SHARES, find_trainable_task, open_task
from pretune.tasks.example import Example
from pretune.tasks.task import AvailableSplit
from pretune.text.corpora.builtin import Reviews

SAMPLE_EXAMPLES = 500
"""Examples whose length is measured."""
SPECIAL_TOKENS = 3
"""Special tokens of a sequence or pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSize:
    """Numbers of examples of the splits of a task, and the characters of a sample of them."""

    train: int
    dev: int
    test: int
    characters: tuple[int, ...]

    def compute_length(self, characters_per_token: float, limit: int | None) -> float:
        """Return the mean number of tokens of an example, with at most `limit` of each."""
        sizes = [count / characters_per_token + SPECIAL_TOKENS for count in self.characters]
        return sum(min(size, limit or size) for size in sizes) / max(len(sizes), 1) or 1.0

    def limit(self, max_train: int | None, max_eval: int | None) -> "TaskSize":
        """Return the size with at most these numbers of examples."""
        train = self.train if max_train is None else min(self.train, max_train)
        if max_eval is None:
            return replace(self, train=train)
        return replace(self, train=train, dev=min(self.dev, max_eval), test=min(self.test, max_eval))


class TaskSizes:
    """Measures each task once, whatever the seed of its splits; a published task by the sizes of its files."""

    def __init__(self) -> None:
        self._sizes: dict[TaskConfig, TaskSize] = {}

    def measure(self, task_config: TaskConfig) -> TaskSize:
        """Return the size of a task, or of several comma-separated ones; the table of a user is opened and checked."""
        key = replace(task_config, split_seed=0, train_examples=None, max_eval_examples=None, force=False)
        if key not in self._sizes:
            if key == TaskConfig(train=Reviews().name, data=key.data):
                self._sizes[key] = _measure_reviews()
            elif key.name is None:
                parts = open_task(key).parts
                counts = len(parts.train), len(parts.dev), len(parts.test)
                self._sizes[key] = _make_size(*counts, parts.train or parts.dev)
            else:
                self._sizes[key] = _measure_published(key)
        return self._sizes[key].limit(None, task_config.max_eval_examples)


def _measure_reviews() -> TaskSize:
    """Return the size of the built-in reviews, whose columns need no check."""
    texts = [text for text, _ in Reviews().read_examples()]
    train, dev, test = (round(len(texts) * share) for share in SPLIT_SHARES)
    return TaskSize(train=train, dev=dev, test=test, characters=tuple(map(len, texts[:SAMPLE_EXAMPLES])))


def _measure_published(task_config: TaskConfig) -> TaskSize:
    """Return the size of tasks by the number of examples that the catalog gives for their files."""
    sizes = []
    for name in (task_config.name or "").split(","):
        available = find_trainable_task(name).find_available(task_config.data)
        counts = {split: _count_examples(files) for split, files in available.items()}
        first = available.get("train") or next(iter(available.values()))
        train, dev, test = (counts.get(split, 0) for split in ("train", "dev", "test"))
        if not train:  # another split is divided
            total = dev or next(iter(counts.values()))
            train, dev, test = (round(total * share) for share in SPLIT_SHARES)
        elif not dev:
            train, dev = round(train * 0.9), round(train * 0.1)
        size = _make_size(train, dev, test, islice(first.read(), SAMPLE_EXAMPLES))
        sizes.append(size.limit(task_config.max_examples_per_task, None))
    characters = [count for size in sizes for count in size.characters]
    return TaskSize(
        train=sum(size.train for size in sizes),
        dev=sum(size.dev for size in sizes),
        test=sum(size.test for size in sizes),
        characters=tuple(characters),
    )


def _count_examples(files: AvailableSplit) -> int:
    return files.file.rows if files.file.rows is not None else sum(1 for _ in files.read())


def _make_size(train: int, dev: int, test: int, examples: Iterable[Example]) -> TaskSize:
    characters = (
        len(example.text) + len(example.pair or "") + sum(map(len, example.choices))
        for example in islice(examples, SAMPLE_EXAMPLES)
    )
    return TaskSize(train=train, dev=dev, test=test, characters=tuple(characters))
