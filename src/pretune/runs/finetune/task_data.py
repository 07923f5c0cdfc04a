"""A task opened for a run: its examples, what was done to get them, and what they are like."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pretune.core.counted import counted, join_names
from pretune.core.errors import DataError, UsageError
from pretune.runs.finetune.config import Wanted
from pretune.tasks import TASKS
from pretune.tasks.decode import Prediction, group_average, score
from pretune.tasks.example import Example
from pretune.tasks.loading import Parts, load
from pretune.tasks.splits import divide, subset
from pretune.tasks.table_reader import open_table
from pretune.tasks.task import Task, type_of
from pretune.tasks.user_table import Own, is_finite, own_task
from pretune.tasks.user_types import Spans, SquadFile, TypeReader
from pretune.text.corpora.builtin import Reviews

AVERAGE = "average"
SPLITS = ("train", "dev", "test")
SHARES = (0.8, 0.1, 0.1)
"""Train, dev and test of a task that comes in one piece."""
LEAST = 5
"""Training examples below which a run is refused: a handful. Few-shot experiments begin at 8 to 16 of a class."""
FEW = 30
"""Fewer examples make a score of which one of them moves three points and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A task with its examples; of several tasks together, `members` are these, and the examples are all of theirs."""

    task: Task
    parts: Parts
    members: tuple["Opened", ...] = ()

    @property
    def headline(self) -> str:
        """The split that the result is measured on: test, or dev where test has no answers."""
        if self.members:
            return "test" if all(member.headline == "test" for member in self.members) else "dev"
        return "test" if self.parts.test and answered(self.task, self.parts.test) else "dev"

    @property
    def judged(self) -> list[Example]:
        """The examples of that split."""
        return self.parts.test if self.headline == "test" else self.parts.dev

    def limited(self, labels: int | None, seed: int) -> list[Example]:
        """So many training examples, stratified; those of a smaller number are among those of a larger."""
        train = self.parts.train
        if labels is None or labels == len(train):
            return train
        if labels > len(train):
            raise DataError(f"task '{self.task.name}': {labels} labels were asked for, train has {len(train)}")
        return subset(train, labels, seed, self.groups(train))

    def groups(self, examples: Sequence[Example]) -> list[str | None] | None:
        """The group of each example, where a metric scores whole groups; of several tasks each has its own."""
        if not self.members:
            return self.task.groups(examples)
        found: list[str | None] = [None] * len(examples)
        for member, mine in zip(self.members, owned(self, examples), strict=True):
            own = member.task.groups([examples[at] for at in mine]) or [None] * len(mine)
            for at, group in zip(mine, own, strict=True):
                found[at] = None if group is None else f"{member.task.name}\0{group}"
        return found if any(found) else None


def open_task(wanted: Wanted) -> Opened:
    """The task that is asked for, or several of ours, whose names have commas between them."""
    names = (wanted.name or "").split(",")
    if len(names) > 1:
        return together([_at_most(_open(replace(wanted, name=name)), wanted) for name in names])
    return _at_most(_open(wanted), wanted)


def _at_most(member: Opened, wanted: Wanted) -> Opened:
    """A task with as many training examples as each may have."""
    size = len(member.parts.train)
    if wanted.each is None or wanted.each >= size:
        return member
    train = member.limited(wanted.each, wanted.split)
    notes = (*member.parts.notes, f"{len(train)} of {size} training examples, stratified, seed {wanted.split}")
    return replace(member, parts=replace(member.parts, train=train, notes=notes))


def _open(wanted: Wanted) -> Opened:
    """The task that is asked for; notes tell what was found out about files of one's own, and what was divided."""
    notes: list[str] = []
    if wanted.name is not None:
        task = trained_on(wanted.name)
        if wanted.type not in (None, type_of(task.kind)):
            raise UsageError(
                f"--type {wanted.type}: task '{task.name}' is of the type {type_of(task.kind)}; leave it out"
            )
    else:
        given = {split: getattr(wanted, split) for split in SPLITS}
        files = {split: _file(path) for split, path in given.items() if path is not None}
        task = own_task(files, text=wanted.text, label=wanted.label, pair=wanted.pair, type=wanted.type)
        named = [column for column in (wanted.text, wanted.label, wanted.pair) if column]
        read = task.splits["train"].files[0].read
        if not isinstance(read, SquadFile):
            tables = {split: open_table(path, named) for split, path in files.items()}
            notes += [str(table) for table in tables.values()]
            if isinstance(read, Own):
                notes.append(read.told(tables["train"].columns))
            elif isinstance(read, TypeReader):
                second = f", the second text '{read.pair}'" if isinstance(read, Spans) else ""
                notes.append(f"the text is '{read.text}'{second}, the label '{read.label}'")
        notes.append(_typed(task, wanted))
    there = task.available(wanted.data)
    if set(there) == {"train"}:
        whole = list(there["train"].read())
        train, dev, test = divide(whole, SHARES, wanted.split, task.together)
        notes.append(
            f"one split only: {counted(len(whole), 'examples')} divided 80/10/10, stratified, seed {wanted.split}"
        )
        parts = Parts(train=train, dev=dev, test=test)
    else:
        parts = load(task, wanted.data, wanted.split)
    parts = replace(parts, pool={split: len(getattr(parts, split)) for split in SPLITS})
    if wanted.most is not None:
        parts = _fewer(task, parts, wanted.most, wanted.split)
    few = _few(task, parts) if wanted.name is None else ()
    opened = Opened(task=task, parts=replace(parts, notes=(*notes, *parts.notes, *_repeated(parts), *few)))
    if not answered(task, parts.train) or not answered(task, parts.dev):
        raise DataError(f"task '{task.name}': train or dev has no answers; choose a task that has them")
    if task.kind == "generation":
        score(task, parts.dev[:1], [Prediction(text="")])  # a metric that needs an extra says so now
    if opened.headline == "dev":
        why = "its test split has no answers" if parts.test else "it has no test split"
        more = f"{why}: the headline is that of dev, on which choices were made too"
        opened = replace(opened, parts=replace(opened.parts, notes=(*opened.parts.notes, more)))
    return opened


def _typed(task: Task, wanted: Wanted) -> str:
    """The type of a user's task, and the option that changes it where the labels allow another."""
    other = ""
    if wanted.type is None and task.kind == "regression":
        other = " (by default; --type classification makes them classes)"
    elif wanted.type is None and task.kind in ("classification", "pair") and all(map(is_finite, task.labels)):
        other = " (by default; --type regression makes them scores)"
    return f"type {type_of(task.kind)}{other}{f': {join_names(task.labels)}' if task.labels else ''}"


def check_sizes(opened: Opened, wanted: Wanted, counts: Sequence[int | None]) -> None:
    """Refuse numbers of training examples that are too small to learn from, unless the run is forced."""
    for count in () if wanted.force else counts:
        check_size(opened, opened.limited(count, wanted.split))


def check_size(opened: Opened, train: Sequence[Example]) -> None:
    """Refuse training examples that are too few to learn from, and classes that have none."""
    if opened.members:
        for member, mine in zip(opened.members, owned(opened, train), strict=True):
            check_size(member, [train[at] for at in mine])
        return
    task, remedy = opened.task, "give more, or train all the same with --force"
    if len(train) < LEAST:
        raise DataError(
            f"task '{task.name}': {counted(len(train), 'training examples')}, at least {LEAST} are needed; {remedy}"
        )
    if task.kind in ("classification", "pair"):
        seen = {example.label for example in train}
        absent = [repr(name) for number, name in enumerate(task.labels) if number not in seen]
        if absent:
            raise DataError(
                f"task '{task.name}': of {len(task.labels)} classes {len(absent)} have no training example "
                f"({join_names(absent, 5)}); {remedy}"
            )


def _file(name: str) -> str:
    """A file of one's own, or the one behind the name of the labelled corpus that is built in."""
    return str(Reviews().table()) if name == Reviews().name else name


def _few(task: Task, parts: Parts) -> Iterator[str]:
    """What is too little to learn from, or to judge by: a class without examples, a score that one example moves."""
    seen = {example.label for example in parts.train}
    none = [name for number, name in enumerate(task.labels) if number not in seen] if task.kind != "tagging" else []
    if none:
        names = join_names([repr(name) for name in none], 5)
        yield f"train has no example of {names}, so nothing is learnt about it; give more"
    split, judged = ("test", parts.test) if parts.test else ("dev", parts.dev)
    if 0 < len(judged) < FEW:
        yield (
            f"'{split}' has {counted(len(judged), 'examples')}, too few "
            f"to tell much; give more, or a file of them with --{split}"
        )


def _repeated(parts: Parts) -> Iterator[str]:
    """How much of dev and test was trained on already: the same words, whatever the case and the space between."""
    known = {_asked(example) for example in parts.train}
    for split in ("dev", "test"):
        examples: list[Example] = getattr(parts, split)
        if found := sum(_asked(example) in known for example in examples):
            yield f"'{split}': {found:,} of {counted(len(examples), 'examples')} in train too, and nothing new"


def _asked(example: Example) -> int:
    """What is read of an example, as one number."""
    texts = (example.text, example.pair or "", *example.choices)
    return hash(tuple(" ".join(text.split()).casefold() for text in texts))


def _fewer(task: Task, parts: Parts, most: int, seed: int) -> Parts:
    """With at most so many examples of dev and of test; a note says what was left out."""
    notes, kept = [*parts.notes], {}
    for split in ("dev", "test"):
        examples: list[Example] = getattr(parts, split)
        kept[split] = examples
        if len(examples) > most:
            kept[split] = subset(examples, most, seed, task.groups(examples))
            count = len(kept[split])
            notes.append(
                f"'{split}': {count} of {counted(len(examples), 'examples')}, "
                f"so scores are not those of the whole split"
            )
    return replace(parts, dev=kept["dev"], test=kept["test"], notes=tuple(notes))


def trained_on(name: str) -> Task:
    """One of our tasks by its name, unless it is for evaluation alone; several with commas are one of written text."""
    if "," in name:
        return several([trained_on(part) for part in name.split(",")])
    task = TASKS.get(name)
    if task.kind in ("pairs", "cloze", "retrieval"):
        raise UsageError(f"task '{name}' is not trained on; score a model with `pretune evaluate MODEL --task {name}`")
    return task


def answered(task: Task, examples: Sequence[Example]) -> bool:
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


def balance(task: Task, examples: Sequence[Example]) -> dict[str, Any]:
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


def several(tasks: Sequence[Task]) -> Task:
    """Several tasks as one: answers are all written (Raffel et al., 2020), or each has a head (Liu et al., 2019)."""
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        raise UsageError(f"tasks {', '.join(names)}: each once")
    return Task(name=",".join(names), kind="generation", metrics=(AVERAGE,), splits={})


def together(members: Sequence[Opened]) -> Opened:
    """Opened tasks as one; each is scored by its own metric, and the result is the average."""
    task = several([member.task for member in members])
    notes = tuple(f"{member.task.name}: {note}" for member in members for note in member.parts.notes)
    splits = {name: [example for member in members for example in getattr(member.parts, name)] for name in SPLITS}
    pool = {
        name: sum(member.parts.pool.get(name, len(getattr(member.parts, name))) for member in members)
        for name in SPLITS
    }
    return Opened(task=task, parts=Parts(notes=notes, pool=pool, **splits), members=tuple(members))


def members(task: Task) -> list[Task]:
    """The tasks of one that is several, by its name; none of another."""
    return [TASKS.get(name) for name in task.name.split(",")] if "," in task.name else []


def owned(opened: Opened, examples: Sequence[Example]) -> list[list[int]]:
    """Which of some examples are of each member, by their numbers."""
    # NOTE: by identity: two tasks may have equal examples.
    owner = {
        id(example): number
        for number, member in enumerate(opened.members)
        for split in (member.parts.train, member.parts.dev, member.parts.test)
        for example in split
    }
    found: list[list[int]] = [[] for _ in opened.members]
    for at, example in enumerate(examples):
        found[owner[id(example)]].append(at)
    return found


def tasks_of(opened: Opened, examples: Sequence[Example]) -> list[Task]:
    """The task of each of some examples."""
    found = [opened.task] * len(examples)
    for member, mine in zip(opened.members, owned(opened, examples) if opened.members else (), strict=True):
        for at in mine:
            found[at] = member.task
    return found


def scored(opened: Opened, examples: Sequence[Example], said: Sequence[Prediction]) -> dict[str, float]:
    """The official score; of several tasks the average, the headline of each, and GLUE's where all of it is there."""
    if not opened.members:
        return score(opened.task, examples, said)
    each: dict[str, dict[str, float]] = {}
    for member, mine in zip(opened.members, owned(opened, examples), strict=True):
        if mine:
            each[member.task.name] = score(member.task, [examples[at] for at in mine], [said[at] for at in mine])
    found = {name: float(next(iter(scores.values()))) for name, scores in each.items()}
    return {AVERAGE: sum(found.values()) / len(found), **found, **group_average(each)}
