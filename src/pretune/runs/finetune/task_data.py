"""Data of a task for a run: examples, splits, and notes about them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pretune.core.errors import DataError, UsageError
from pretune.core.log import format_count, join_names
from pretune.metrics import compute_suite_averages, get_headline
from pretune.runs.finetune.config import TaskConfig
from pretune.tasks import TASKS
from pretune.tasks.example import Example, Prediction
from pretune.tasks.table_reader import TableReader
from pretune.tasks.task import Task, TaskSplits, divide, load_task, sample_subset
from pretune.tasks.types import EVALUATION_ONLY, TYPE_ALIASES, get_type, has_answers, score
from pretune.tasks.user_table import build_user_task, describe_alternative
from pretune.text.corpora.builtin import Reviews

AVERAGE_METRIC = "average"
SPLITS = ("train", "dev", "test")
SPLIT_SHARES = (0.8, 0.1, 0.1)
"""Shares of train, dev and test for a task with a single split."""
MIN_TRAIN_EXAMPLES = 5
"""Minimum number of training examples; few-shot experiments start at 8 to 16 per class."""
MIN_EVAL_EXAMPLES = 30
"""With fewer examples, one of them changes a score by three points or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData:
    """A task with its examples; for several tasks, `members` are these, and the examples are all of theirs."""

    task: Task
    parts: TaskSplits
    members: tuple["TaskData", ...] = ()

    @property
    def headline_split(self) -> str:
        """Split of the headline score: test, or dev if test has no answers."""
        if self.members:
            return "test" if all(member.headline_split == "test" for member in self.members) else "dev"
        return "test" if self.parts.test and has_answers(self.task, self.parts.test) else "dev"

    @property
    def eval_examples(self) -> list[Example]:
        """Examples of the headline split."""
        return self.parts.test if self.headline_split == "test" else self.parts.dev

    def select_train(self, labels: int | None, seed: int) -> list[Example]:
        """Return a stratified sample of training examples; smaller samples are subsets of larger ones."""
        train = self.parts.train
        if labels is None or labels == len(train):
            return train
        if labels > len(train):
            raise DataError(
                f"task '{self.task.name}': {labels} training examples requested, but train has {len(train)}"
            )
        return sample_subset(train, labels, seed, self.find_groups(train))

    def find_groups(self, examples: Sequence[Example]) -> list[str | None] | None:
        """Return the group of each example, if a metric scores whole groups; groups of several tasks are distinct."""
        if not self.members:
            return self.task.get_groups(examples)
        groups: list[str | None] = [None] * len(examples)
        for member, mine in self.index_examples(examples):
            member_groups = member.task.get_groups([examples[place] for place in mine]) or [None] * len(mine)
            for place, group in zip(mine, member_groups, strict=True):
                groups[place] = None if group is None else f"{member.task.name}\0{group}"
        return groups if any(groups) else None

    def index_examples(self, examples: Sequence[Example]) -> list[tuple["TaskData", list[int]]]:
        """Return each task with the indices of its examples; a single task has all."""
        if not self.members:
            return [(self, list(range(len(examples))))]
        # NOTE: by identity: two tasks may have equal examples.
        owner = {
            id(example): number
            for number, member in enumerate(self.members)
            for split in (member.parts.train, member.parts.dev, member.parts.test)
            for example in split
        }
        indices: list[list[int]] = [[] for _ in self.members]
        for place, example in enumerate(examples):
            indices[owner[id(example)]].append(place)
        return list(zip(self.members, indices, strict=True))


_opened_tasks: dict[TaskConfig, TaskData] | None = None
"""Tasks opened inside `reuse_tasks`, by their config; None outside of it."""
MAX_OPENED_TASKS = 8


@contextmanager
def reuse_tasks() -> Iterator[None]:
    """Open each task once inside the block, for many runs on the same files; the oldest of several is dropped."""
    global _opened_tasks
    outer_tasks = _opened_tasks
    _opened_tasks = {} if outer_tasks is None else outer_tasks
    try:
        yield
    finally:
        _opened_tasks = outer_tasks


def open_task(task_config: TaskConfig) -> TaskData:
    """Open a task, or several comma-separated ones."""
    if _opened_tasks is None:
        return _open(task_config)
    key = replace(task_config, train_examples=None, force=False)  # neither changes the splits
    if key not in _opened_tasks:
        if len(_opened_tasks) >= MAX_OPENED_TASKS:
            del _opened_tasks[next(iter(_opened_tasks))]
        _opened_tasks[key] = _open(task_config)
    return _opened_tasks[key]


def _open(task_config: TaskConfig) -> TaskData:
    names = task_config.name.split(",") if task_config.name else [task_config.name]
    members = [_limit_train(_open_single(replace(task_config, name=name)), task_config) for name in names]
    return combine_task_data(members) if len(members) > 1 else members[0]


def _limit_train(member: TaskData, task_config: TaskConfig) -> TaskData:
    """Limit the training examples of a task to the maximum per task."""
    size = len(member.parts.train)
    if task_config.max_examples_per_task is None or task_config.max_examples_per_task >= size:
        return member
    train = member.select_train(task_config.max_examples_per_task, task_config.split_seed)
    note = f"{len(train)} of {size} training examples, stratified, seed {task_config.split_seed}"
    return replace(member, parts=replace(member.parts, train=train, notes=(*member.parts.notes, note)))


def _open_single(task_config: TaskConfig) -> TaskData:
    """Open one task; notes describe the user's files and the splits."""
    notes: list[str] = []
    if task_config.name is not None:
        task = find_trainable_task(task_config.name)
        if TYPE_ALIASES.get(task_config.type or "", task_config.type) not in (None, task.kind):
            raise UsageError(f"--type {task_config.type}: task '{task.name}' has the type {task.kind}; remove --type")
    else:
        paths = {split: getattr(task_config, split) for split in SPLITS}
        files = {split: _resolve_file(path) for split, path in paths.items() if path is not None}
        task = build_user_task(
            files, text=task_config.text, label=task_config.label, pair=task_config.pair, type=task_config.type,
            strict=task_config.strict, reward=task_config.reward,
        )  # fmt: skip
        column_names = [column for column in (task_config.text, task_config.label, task_config.pair) if column]
        reader = task.splits["train"][0].reader
        tables = {split: get_type(task).inputs.open_file(Path(path), column_names) for split, path in files.items()}
        notes += [str(table) for table in tables.values() if table.form != "squad"]
        if isinstance(reader, TableReader) and tables["train"].form != "squad":
            notes.append(reader.describe_columns(tables["train"].columns))
        alternative = "" if task_config.type else describe_alternative(task)
        labels = f": {join_names(task.labels)}" if task.labels else ""
        notes += [f"type {task.kind}{alternative}{labels}", *task.notes]
    available = task.find_available(task_config.data)
    if set(available) == {"train"}:
        examples = list(available["train"].read())
        train, dev, test = divide(examples, SPLIT_SHARES, task_config.split_seed, task.group_field)
        notes.append(
            f"single split: {format_count(len(examples), 'examples')} split 80/10/10, stratified, "
            f"seed {task_config.split_seed}"
        )
        parts = TaskSplits(train=train, dev=dev, test=test)
    else:
        parts = load_task(task, task_config.data, task_config.split_seed)
    parts = replace(parts, split_sizes={split: len(getattr(parts, split)) for split in SPLITS})
    if task_config.max_eval_examples is not None:
        parts = _limit_eval(task, parts, task_config.max_eval_examples, task_config.split_seed)
    size_notes = _find_size_problems(task, parts) if task_config.name is None else ()
    notes += [*parts.notes, *_find_repeats(parts), *size_notes]
    if not has_answers(task, parts.train) or not has_answers(task, parts.dev):
        raise DataError(f"task '{task.name}': train or dev has no answers; choose another task")
    if get_type(task).scoring.gold == "text":
        score(task, parts.dev[:1], [Prediction(text="")])  # a metric may need a package that is not installed
    if TaskData(task=task, parts=parts).headline_split == "dev":
        reason = "the test split has no answers" if parts.test else "no test split"
        notes.append(f"{reason}: scores are on dev, which also selects the model")
    return TaskData(task=task, parts=replace(parts, notes=tuple(notes)))


def check_sizes(task_data: TaskData, task_config: TaskConfig, counts: Sequence[int | None]) -> None:
    """Raise if a training set is too small, unless forced."""
    for count in () if task_config.force else counts:
        check_size(task_data, task_data.select_train(count, task_config.split_seed))


def check_size(task_data: TaskData, train: Sequence[Example]) -> None:
    """Raise if there are too few training examples, or classes without any."""
    for member, mine in task_data.index_examples(train):
        task, remedy = member.task, "add more, or use --force"
        if len(mine) < MIN_TRAIN_EXAMPLES:
            raise DataError(
                f"task '{task.name}': {format_count(len(mine), 'training examples')}, need at least "
                f"{MIN_TRAIN_EXAMPLES}; {remedy}"
            )
        if absent := [repr(name) for name in find_missing_labels(task, [train[place] for place in mine])]:
            raise DataError(
                f"task '{task.name}': {len(absent)} of {len(task.labels)} classes have no training example "
                f"({join_names(absent, 5)}); {remedy}"
            )


def find_missing_labels(task: Task, examples: Sequence[Example]) -> list[str]:
    """Return the labels that no example has, if each example has labels of its own."""
    counts = get_type(task).scoring.count_labels(task, examples)
    return [name for name in task.labels if counts.get(name) == 0]


def _resolve_file(name: str) -> str:
    """Return the user's file, or that of the built-in labelled corpus."""
    return str(Reviews().find_path()) if name == Reviews().name else name


def _find_size_problems(task: Task, parts: TaskSplits) -> Iterator[str]:
    """Yield warnings about classes without training examples and small test sets."""
    if missing_labels := find_missing_labels(task, parts.train):
        names = join_names([repr(name) for name in missing_labels], 5)
        yield f"no training example of {names}; add some"
    split, eval_examples = ("test", parts.test) if parts.test else ("dev", parts.dev)
    if 0 < len(eval_examples) < MIN_EVAL_EXAMPLES:
        yield (
            f"'{split}' has {format_count(len(eval_examples), 'examples')}, too few "
            f"for a reliable score; add more, or pass --{split} FILE"
        )


def _find_repeats(parts: TaskSplits) -> Iterator[str]:
    """Yield notes on dev and test examples that are in train, ignoring case and whitespace."""
    train_hashes = {_hash_input(example) for example in parts.train}
    for split in ("dev", "test"):
        examples: list[Example] = getattr(parts, split)
        if repeat_count := sum(_hash_input(example) in train_hashes for example in examples):
            yield f"'{split}': {repeat_count:,} of {format_count(len(examples), 'examples')} are also in train"


def _hash_input(example: Example) -> int:
    """Return a hash of the input of an example."""
    texts = (example.text, example.pair or "", *example.choices)
    return hash(tuple(" ".join(text.split()).casefold() for text in texts))


def _limit_eval(task: Task, parts: TaskSplits, max_examples: int, seed: int) -> TaskSplits:
    """Limit the examples of dev and test; a note records it."""
    notes, subsets = [*parts.notes], {}
    for split in ("dev", "test"):
        examples: list[Example] = getattr(parts, split)
        subsets[split] = examples
        if len(examples) > max_examples:
            subsets[split] = sample_subset(examples, max_examples, seed, task.get_groups(examples))
            count = len(subsets[split])
            notes.append(
                f"'{split}': {count} of {format_count(len(examples), 'examples')}, "
                f"so scores differ from those of the full split"
            )
    return replace(parts, dev=subsets["dev"], test=subsets["test"], notes=tuple(notes))


def find_trainable_task(name: str) -> Task:
    """Return a task by name, unless it is only for evaluation; comma-separated names give a combined task."""
    if "," in name:
        return combine_tasks([find_trainable_task(part) for part in name.split(",")])
    task = TASKS.get(name)
    if task.kind in EVALUATION_ONLY:
        raise UsageError(f"task '{name}' is for evaluation only; use `pretune evaluate MODEL --task {name}`")
    return task


def combine_tasks(tasks: Sequence[Task]) -> Task:
    """Combine tasks into one: text-to-text (Raffel et al., 2020), or a head each (Liu et al., 2019)."""
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        raise UsageError(f"duplicate tasks in {', '.join(names)}; list each once")
    return Task(name=",".join(names), kind="generation", metrics=(AVERAGE_METRIC,), splits={})


def combine_task_data(members: Sequence[TaskData]) -> TaskData:
    """Combine the data of tasks; each is scored by its own metric, and the headline is the average."""
    task = combine_tasks([member.task for member in members])
    notes = tuple(f"{member.task.name}: {note}" for member in members for note in member.parts.notes)
    splits = {name: [example for member in members for example in getattr(member.parts, name)] for name in SPLITS}
    pool = {
        name: sum(member.parts.split_sizes.get(name, len(getattr(member.parts, name))) for member in members)
        for name in SPLITS
    }
    return TaskData(task=task, parts=TaskSplits(notes=notes, split_sizes=pool, **splits), members=tuple(members))


def find_member_tasks(task: Task) -> list[Task]:
    """Return the tasks of a combined task; empty for a single one."""
    return [TASKS.get(name) for name in task.name.split(",")] if "," in task.name else []


def find_tasks(task_data: TaskData, examples: Sequence[Example]) -> list[Task]:
    """Return the task of each example."""
    tasks = [task_data.task] * len(examples)
    for member, mine in task_data.index_examples(examples):
        for place in mine:
            tasks[place] = member.task
    return tasks


def compute_scores(
    task_data: TaskData, examples: Sequence[Example], predictions: Sequence[Prediction]
) -> dict[str, float]:
    """Return the official scores; for several tasks the average, each headline, and complete suite averages."""
    if not task_data.members:
        return score(task_data.task, examples, predictions)
    member_scores: dict[str, dict[str, float]] = {}
    for member, mine in task_data.index_examples(examples):
        if mine:
            member_scores[member.task.name] = score(
                member.task, [examples[place] for place in mine], [predictions[place] for place in mine]
            )
    headlines = {name: get_headline(scores) for name, scores in member_scores.items()}
    return {
        AVERAGE_METRIC: sum(headlines.values()) / len(headlines),
        **headlines,
        **compute_suite_averages(member_scores),
    }
