"""A task opened for a run: its examples, what was done to get them, and what they are like."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pretune.core.errors import DataError, UsageError
from pretune.core.format import format_count, join_names
from pretune.runs.finetune.config import TaskConfig
from pretune.tasks import TASKS
from pretune.tasks.decode import Prediction, compute_suite_averages, score
from pretune.tasks.example import Example
from pretune.tasks.loading import TaskSplits, load_task
from pretune.tasks.splits import divide, sample_subset
from pretune.tasks.table_reader import open_table
from pretune.tasks.task import Task, get_task_type
from pretune.tasks.user_table import UserTableReader, build_user_task, is_finite
from pretune.tasks.user_types import SpanReader, SquadReader, TypeReader
from pretune.text.corpora.builtin import Reviews

AVERAGE_METRIC = "average"
SPLITS = ("train", "dev", "test")
SPLIT_SHARES = (0.8, 0.1, 0.1)
"""Train, dev and test of a task that comes in one piece."""
MIN_TRAIN_EXAMPLES = 5
"""Training examples below which a run is refused: a handful. Few-shot experiments begin at 8 to 16 of a class."""
MIN_EVAL_EXAMPLES = 30
"""Fewer examples make a score of which one of them moves three points and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData:
    """A task with its examples; of several tasks together, `find_member_tasks` are these, and the examples are all of theirs."""

    task: Task
    parts: TaskSplits
    members: tuple["TaskData", ...] = ()

    @property
    def headline_split(self) -> str:
        """The split that the result is measured on: test, or dev where test has no answers."""
        if self.members:
            return "test" if all(member.headline_split == "test" for member in self.members) else "dev"
        return "test" if self.parts.test and has_answers(self.task, self.parts.test) else "dev"

    @property
    def eval_examples(self) -> list[Example]:
        """The examples of that split."""
        return self.parts.test if self.headline_split == "test" else self.parts.dev

    def select_train(self, labels: int | None, seed: int) -> list[Example]:
        """So many training examples, stratified; those of a smaller number are among those of a larger."""
        train = self.parts.train
        if labels is None or labels == len(train):
            return train
        if labels > len(train):
            raise DataError(f"task '{self.task.name}': {labels} labels were asked for, train has {len(train)}")
        return sample_subset(train, labels, seed, self.find_groups(train))

    def find_groups(self, examples: Sequence[Example]) -> list[str | None] | None:
        """The group of each example, where a metric scores whole groups; of several tasks each has its own."""
        if not self.members:
            return self.task.get_groups(examples)
        found: list[str | None] = [None] * len(examples)
        for member, mine in zip(self.members, index_by_member(self, examples), strict=True):
            own = member.task.get_groups([examples[at] for at in mine]) or [None] * len(mine)
            for at, group in zip(mine, own, strict=True):
                found[at] = None if group is None else f"{member.task.name}\0{group}"
        return found if any(found) else None


def open_task(task_config: TaskConfig) -> TaskData:
    """The task that is asked for, or several of ours, whose names have commas between them."""
    names = (task_config.name or "").split(",")
    if len(names) > 1:
        return combine_task_data(
            [_limit_train(_open_single(replace(task_config, name=name)), task_config) for name in names]
        )
    return _limit_train(_open_single(task_config), task_config)


def _limit_train(member: TaskData, task_config: TaskConfig) -> TaskData:
    """A task with as many training examples as each may have."""
    size = len(member.parts.train)
    if task_config.max_examples_per_task is None or task_config.max_examples_per_task >= size:
        return member
    train = member.select_train(task_config.max_examples_per_task, task_config.split_seed)
    notes = (
        *member.parts.notes,
        f"{len(train)} of {size} training examples, stratified, seed {task_config.split_seed}",
    )
    return replace(member, parts=replace(member.parts, train=train, notes=notes))


def _open_single(task_config: TaskConfig) -> TaskData:
    """The task that is asked for; notes tell what was found out about files of one's own, and what was divided."""
    notes: list[str] = []
    if task_config.name is not None:
        task = find_trainable_task(task_config.name)
        if task_config.type not in (None, get_task_type(task.kind)):
            raise UsageError(
                f"--type {task_config.type}: task '{task.name}' is of the type {get_task_type(task.kind)}; leave it out"
            )
    else:
        given = {split: getattr(task_config, split) for split in SPLITS}
        files = {split: _resolve_file(path) for split, path in given.items() if path is not None}
        task = build_user_task(
            files, text=task_config.text, label=task_config.label, pair=task_config.pair, type=task_config.type
        )
        named = [column for column in (task_config.text, task_config.label, task_config.pair) if column]
        read = task.splits["train"].files[0].reader
        if not isinstance(read, SquadReader):
            tables = {split: open_table(path, named) for split, path in files.items()}
            notes += [str(table) for table in tables.values()]
            if isinstance(read, UserTableReader):
                notes.append(read.describe_columns(tables["train"].columns))
            elif isinstance(read, TypeReader):
                second = f", the second text '{read.pair}'" if isinstance(read, SpanReader) else ""
                notes.append(f"the text is '{read.text}'{second}, the label '{read.label}'")
        notes.append(_describe_type(task, task_config))
    there = task.find_available(task_config.data)
    if set(there) == {"train"}:
        whole = list(there["train"].read())
        train, dev, test = divide(whole, SPLIT_SHARES, task_config.split_seed, task.group_field)
        notes.append(
            f"one split only: {format_count(len(whole), 'examples')} divided 80/10/10, stratified, seed {task_config.split_seed}"
        )
        parts = TaskSplits(train=train, dev=dev, test=test)
    else:
        parts = load_task(task, task_config.data, task_config.split_seed)
    parts = replace(parts, split_sizes={split: len(getattr(parts, split)) for split in SPLITS})
    if task_config.max_eval_examples is not None:
        parts = _limit_eval(task, parts, task_config.max_eval_examples, task_config.split_seed)
    few = _find_size_problems(task, parts) if task_config.name is None else ()
    opened = TaskData(task=task, parts=replace(parts, notes=(*notes, *parts.notes, *_find_repeats(parts), *few)))
    if not has_answers(task, parts.train) or not has_answers(task, parts.dev):
        raise DataError(f"task '{task.name}': train or dev has no answers; choose a task that has them")
    if task.kind == "generation":
        score(task, parts.dev[:1], [Prediction(text="")])  # a metric that needs an extra says so now
    if opened.headline_split == "dev":
        why = "its test split has no answers" if parts.test else "it has no test split"
        more = f"{why}: the headline is that of dev, on which choices were made too"
        opened = replace(opened, parts=replace(opened.parts, notes=(*opened.parts.notes, more)))
    return opened


def _describe_type(task: Task, task_config: TaskConfig) -> str:
    """The type of a user's task, and the option that changes it where the labels allow another."""
    other = ""
    if task_config.type is None and task.kind == "regression":
        other = " (by default; --type classification makes them classes)"
    elif task_config.type is None and task.kind in ("classification", "pair") and all(map(is_finite, task.labels)):
        other = " (by default; --type regression makes them scores)"
    return f"type {get_task_type(task.kind)}{other}{f': {join_names(task.labels)}' if task.labels else ''}"


def check_sizes(task_data: TaskData, task_config: TaskConfig, counts: Sequence[int | None]) -> None:
    """Refuse numbers of training examples that are too small to learn from, unless the run is forced."""
    for count in () if task_config.force else counts:
        check_size(task_data, task_data.select_train(count, task_config.split_seed))


def check_size(task_data: TaskData, train: Sequence[Example]) -> None:
    """Refuse training examples that are too few to learn from, and classes that have none."""
    if task_data.members:
        for member, mine in zip(task_data.members, index_by_member(task_data, train), strict=True):
            check_size(member, [train[at] for at in mine])
        return
    task, remedy = task_data.task, "give more, or train all the same with --force"
    if len(train) < MIN_TRAIN_EXAMPLES:
        raise DataError(
            f"task '{task.name}': {format_count(len(train), 'training examples')}, at least {MIN_TRAIN_EXAMPLES} are needed; {remedy}"
        )
    if task.kind in ("classification", "pair"):
        seen = {example.label for example in train}
        absent = [repr(name) for number, name in enumerate(task.labels) if number not in seen]
        if absent:
            raise DataError(
                f"task '{task.name}': of {len(task.labels)} classes {len(absent)} have no training example "
                f"({join_names(absent, 5)}); {remedy}"
            )


def _resolve_file(name: str) -> str:
    """A file of one's own, or the one behind the name of the labelled corpus that is built in."""
    return str(Reviews().get_table_path()) if name == Reviews().name else name


def _find_size_problems(task: Task, parts: TaskSplits) -> Iterator[str]:
    """What is too little to learn from, or to judge by: a class without examples, a score that one example moves."""
    seen = {example.label for example in parts.train}
    none = [name for number, name in enumerate(task.labels) if number not in seen] if task.kind != "tagging" else []
    if none:
        names = join_names([repr(name) for name in none], 5)
        yield f"train has no example of {names}, so nothing is learnt about it; give more"
    split, judged = ("test", parts.test) if parts.test else ("dev", parts.dev)
    if 0 < len(judged) < MIN_EVAL_EXAMPLES:
        yield (
            f"'{split}' has {format_count(len(judged), 'examples')}, too few "
            f"to tell much; give more, or a file of them with --{split}"
        )


def _find_repeats(parts: TaskSplits) -> Iterator[str]:
    """How much of dev and test was trained on already: the same words, whatever the case and the space between."""
    known = {_hash_input(example) for example in parts.train}
    for split in ("dev", "test"):
        examples: list[Example] = getattr(parts, split)
        if found := sum(_hash_input(example) in known for example in examples):
            yield f"'{split}': {found:,} of {format_count(len(examples), 'examples')} in train too, and nothing new"


def _hash_input(example: Example) -> int:
    """What is read of an example, as one number."""
    texts = (example.text, example.pair or "", *example.choices)
    return hash(tuple(" ".join(text.split()).casefold() for text in texts))


def _limit_eval(task: Task, parts: TaskSplits, max_examples: int, seed: int) -> TaskSplits:
    """With at most so many examples of dev and of test; a note says what was left out."""
    notes, kept = [*parts.notes], {}
    for split in ("dev", "test"):
        examples: list[Example] = getattr(parts, split)
        kept[split] = examples
        if len(examples) > max_examples:
            kept[split] = sample_subset(examples, max_examples, seed, task.get_groups(examples))
            count = len(kept[split])
            notes.append(
                f"'{split}': {count} of {format_count(len(examples), 'examples')}, "
                f"so scores are not those of the whole split"
            )
    return replace(parts, dev=kept["dev"], test=kept["test"], notes=tuple(notes))


def find_trainable_task(name: str) -> Task:
    """One of our tasks by its name, unless it is for evaluation alone; several with commas are one of written text."""
    if "," in name:
        return combine_tasks([find_trainable_task(part) for part in name.split(",")])
    task = TASKS.get(name)
    if task.kind in ("pairs", "cloze", "retrieval"):
        raise UsageError(f"task '{name}' is not trained on; score a model with `pretune evaluate MODEL --task {name}`")
    return task


def has_answers(task: Task, examples: Sequence[Example]) -> bool:
    """Whether the right answers are there."""
    if not examples:
        return False
    if task.kind == "tagging":
        return all(example.tags for example in examples[:100])
    if task.kind == "generation":
        return all(example.target is not None for example in examples[:100])
    if task.kind == "span":
        return any(example.answers for example in examples[:1000])
    return all(example.label is not None for example in examples)


def count_labels(task: Task, examples: Sequence[Example]) -> dict[str, Any]:
    """How often each label occurs; of scores, their range; nothing where answers are text."""
    if task.kind == "tagging":
        return dict(Counter(tag for example in examples for tag in example.tags).most_common())
    if task.kind == "regression":
        values = [float(example.label) for example in examples if example.label is not None]
        return {"lowest": min(values), "mean": sum(values) / len(values), "highest": max(values)}
    if task.kind in ("classification", "pair") and task.labels:
        counts = Counter(example.label for example in examples)
        return {name: counts.get(number, 0) for number, name in enumerate(task.labels)}
    if task.kind == "span":
        none = sum(not example.answers for example in examples)
        return {"with an answer": len(examples) - none, "without": none}
    return {}


def combine_tasks(tasks: Sequence[Task]) -> Task:
    """Several tasks as one: answers are all written (Raffel et al., 2020), or each has a head (Liu et al., 2019)."""
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        raise UsageError(f"tasks {', '.join(names)}: each once")
    return Task(name=",".join(names), kind="generation", metrics=(AVERAGE_METRIC,), splits={})


def combine_task_data(members: Sequence[TaskData]) -> TaskData:
    """Opened tasks as one; each is scored by its own metric, and the result is the average."""
    task = combine_tasks([member.task for member in members])
    notes = tuple(f"{member.task.name}: {note}" for member in members for note in member.parts.notes)
    splits = {name: [example for member in members for example in getattr(member.parts, name)] for name in SPLITS}
    pool = {
        name: sum(member.parts.split_sizes.get(name, len(getattr(member.parts, name))) for member in members)
        for name in SPLITS
    }
    return TaskData(task=task, parts=TaskSplits(notes=notes, split_sizes=pool, **splits), members=tuple(members))


def find_member_tasks(task: Task) -> list[Task]:
    """The tasks of one that is several, by its name; none of another."""
    return [TASKS.get(name) for name in task.name.split(",")] if "," in task.name else []


def index_by_member(task_data: TaskData, examples: Sequence[Example]) -> list[list[int]]:
    """Which of some examples are of each member, by their numbers."""
    # NOTE: by identity: two tasks may have equal examples.
    owner = {
        id(example): number
        for number, member in enumerate(task_data.members)
        for split in (member.parts.train, member.parts.dev, member.parts.test)
        for example in split
    }
    found: list[list[int]] = [[] for _ in task_data.members]
    for at, example in enumerate(examples):
        found[owner[id(example)]].append(at)
    return found


def find_tasks(task_data: TaskData, examples: Sequence[Example]) -> list[Task]:
    """The task of each of some examples."""
    found = [task_data.task] * len(examples)
    for member, mine in zip(
        task_data.members, index_by_member(task_data, examples) if task_data.members else (), strict=True
    ):
        for at in mine:
            found[at] = member.task
    return found


def compute_scores(
    task_data: TaskData, examples: Sequence[Example], predictions: Sequence[Prediction]
) -> dict[str, float]:
    """The official score; of several tasks the average, the headline of each, and GLUE's where all of it is there."""
    if not task_data.members:
        return score(task_data.task, examples, predictions)
    each: dict[str, dict[str, float]] = {}
    for member, mine in zip(task_data.members, index_by_member(task_data, examples), strict=True):
        if mine:
            each[member.task.name] = score(member.task, [examples[at] for at in mine], [predictions[at] for at in mine])
    found = {name: float(next(iter(scores.values()))) for name, scores in each.items()}
    return {AVERAGE_METRIC: sum(found.values()) / len(found), **found, **compute_suite_averages(each)}
