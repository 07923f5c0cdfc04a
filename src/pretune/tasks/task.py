"""A task: its files, their reader, its labels and metrics.

    task = TASKS.get("cola")
    task.labels, task.metrics                      # ('unacceptable', 'acceptable'), ('matthews',)
    for example in task.read("dev", "data/tasks"):
        example.text, example.label

A split has one or more files, best first: the published one, then alternatives (a subset, another format of the same
data). A file may be compressed.

Examples of a task for a run: train, dev and test; stratified splits and nested subsets.

    parts = load_task(TASKS.get("qnli"), "data/tasks", seed=0)
    parts.train, parts.dev, parts.test, parts.notes
    # notes: ("no train split: split 'dev' (5463 examples) 80/10/10, stratified, seed 0",)

    train, dev = divide(examples, (0.9, 0.1), seed=0)
    small, large = sample_subset(train, 50, seed=0), sample_subset(train, 200, seed=0)      # small is a subset of large

The order follows the quota method of Balinski and Young (1975), made for the apportionment of seats: among the first n
examples, for every n, a class with share p has n x p examples, rounded up or down. Within a class the order is random.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError, suggest
from pretune.core.log import format_count
from pretune.core.seed import mix
from pretune.metrics import GROUP_METRICS
from pretune.tasks.benchmarks.licences import COMPANION_FILES, TASKS_BY_LICENCE, UNKNOWN_LICENCE
from pretune.tasks.example import Example, Examples

Reader = Callable[[Path], Iterator[Example]]
"""Function that reads the examples of one file."""

_SUFFIXES = ("", ".gz", ".xz", ".bz2", ".zst")


@spec
class Template:
    """Text-to-text template in the wording of Raffel et al. (2020), "T5", appendix D.

    >>> cola = Template(source="cola sentence: {text}", targets=("unacceptable", "acceptable"))
    >>> cola.fill(Example(text="The sailors rode.", label=1))
    ('cola sentence: The sailors rode.', 'acceptable')

    The target is one of `targets` by label, else the filled `target`. A source may use {text}, {pair}, {choice1},
    {choice2}, … and the example's `facts` by name; a target {target}, {answer} (the first one, or "" without answers),
    {score} (rounded to 0.2, as for STS-B) and the facts.
    """

    source: str
    targets: tuple[str, ...] = ()
    target: str = ""

    def fill(self, example: Example) -> tuple[str, str | None]:
        """Return (source, target) of an example; the target is None if its label is unknown."""
        values = _collect_values(example)
        source = _fill(self.source, values)
        if self.targets:
            return source, None if example.label is None else self.targets[int(example.label)]
        return source, _fill(self.target, values)

    def parse_label(self, text: str, spellings: tuple[str, ...] = ()) -> int | None:
        """Return the label of a generated text; None if it is no label, which always counts as wrong.

        `spellings` are the targets as a tokenizer decodes them, if that changes them ("Good" as "good").
        """
        targets = spellings or self.targets
        return targets.index(text.strip()) if text.strip() in targets else None


@dataclass(frozen=True, slots=True)
class SplitFile:
    """One file (or format) of a split in a task's folder; `*` in a path matches several files."""

    path: str
    reader: Reader
    rows: int | None = None  # number of examples, if known
    is_partial: bool = False  # a part of the published split: scores are not comparable to leaderboards


@dataclass(frozen=True, slots=True)
class AvailableSplit:
    """A split whose files exist."""

    file: SplitFile
    paths: tuple[Path, ...]

    def read(self) -> Iterator[Example]:
        """Yield the examples in the order of the files."""
        for path in self.paths:
            yield from self.file.reader(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task for fine-tuning and evaluation; `kind` names its type in `TASK_TYPES`.

    A split has one or more files, best first. The first of `metrics` is the official one. Labels are in the published
    order: label 1 is `labels[1]`. Examples with the same value of `group_field` stay together when a split is divided.
    """

    name: str
    kind: str
    metrics: tuple[str, ...]
    splits: Mapping[str, tuple[SplitFile, ...]]
    folders: tuple[str, ...] = ()  # its folders below the data directory; default: its name
    labels: tuple[str, ...] = ()
    scale: tuple[float, float] | None = None  # lowest and highest score of a regression
    template: Template | None = None
    group_field: Literal["text", "pair", "group"] | None = None
    notes: tuple[str, ...] = ()  # on a user's files

    def read(self, split: str, data: str | os.PathLike[str] | None = None) -> Iterator[Example]:
        """Return the examples of a split; the file is located at once and read lazily."""
        return self.find(split, data).read()

    def find(self, split: str, data: str | os.PathLike[str] | None = None) -> AvailableSplit:
        """Locate a split below `data`, or $PRETUNE_DATA if `data` has no split of the task; DataError if missing."""
        if split not in self.splits:
            raise UsageError(
                f"task '{self.name}' has no split '{split}'{suggest(split, self.splits)} "
                f"(available: {', '.join(self.splits)})"
            )
        homes = [Path()] if self.has_own_paths else self._find_homes(data)
        for home in homes:
            for file in self.splits[split]:
                if paths := _find_files(home, file.path):
                    return AvailableSplit(file, paths)
        if self.has_own_paths:
            raise DataError(f"task '{self.name}': no file {' or '.join(file.path for file in self.splits[split])}")
        places = f"no file for split '{split}' in {', '.join(map(str, homes))}" if homes else "no data directory"
        remedy = "pass the data directory with --data, or set PRETUNE_DATA"
        raise DataError(f"task '{self.name}': {places}; {remedy}; expected: {self.describe_files()}")

    @property
    def has_own_paths(self) -> bool:
        """True for files that no data directory holds: the user's, and those of the package."""
        return all(Path(file.path).is_absolute() for files in self.splits.values() for file in files)

    @property
    def licence(self) -> str:
        """Licence of the published data, in a few words."""
        licences = (licence for licence, names in TASKS_BY_LICENCE.items() if self.name in names.split())
        return next(licences, UNKNOWN_LICENCE)

    def describe_files(self) -> str:
        """Return the layout that is expected below the data directory, and the licence, in one line.

        >>> Task(name="cola", kind="pair", metrics=(), splits={"dev": (SplitFile("dev.tsv", print),)}).describe_files()
        'cola/ with dev.tsv (dev), plain or compressed; licence: not stated, texts under fair use'
        """
        folders = " or ".join(f"{folder}/" for folder in self.folders or (self.name,))
        files = [f"{' or '.join(file.path for file in files)} ({name})" for name, files in self.splits.items()]
        companions = f", {COMPANION_FILES[self.name]}" if self.name in COMPANION_FILES else ""
        return f"{folders} with {', '.join(files)}{companions}, plain or compressed; licence: {self.licence}"

    def _find_homes(self, data: str | os.PathLike[str] | None) -> list[Path]:
        """Return the folders of the first data directory that has any split, so that splits of two are never mixed."""
        homes: list[Path] = []
        files = [file for split_files in self.splits.values() for file in split_files]
        for root in [Path(root) for root in (data, os.environ.get("PRETUNE_DATA")) if root]:
            places = [place / folder for place in (root, root / "tasks") for folder in self.folders or (self.name,)]
            if any(_find_files(place, file.path) for place in places for file in files):
                return places
            homes += places
        return homes

    def get_groups(self, examples: Examples) -> list[str | None] | None:
        """Return the group of each example if a metric scores groups (a question with all its answers), else None."""
        return [example.group for example in examples] if GROUP_METRICS.intersection(self.metrics) else None

    def find_available(self, data: str | os.PathLike[str] | None = None) -> dict[str, AvailableSplit]:
        """Return the splits whose files exist."""
        available: dict[str, AvailableSplit] = {}
        for split in self.splits:
            try:
                available[split] = self.find(split, data)
            except DataError:
                continue
        return available


def _find_files(home: Path, path: str) -> tuple[Path, ...]:
    """Return the files that match a path, sorted by name."""
    if "*" not in path or Path(path).is_absolute():
        fits = (home / (path + ending) for ending in _SUFFIXES)
        return tuple([place for place in fits if place.exists()][:1])
    stems: dict[str, Path] = {}
    for ending in _SUFFIXES:
        for place in home.glob(path + ending):
            stems.setdefault(str(place).removesuffix(ending), place)
    return tuple(place for _, place in sorted(stems.items()))


def _fill(text: str, values: Mapping[str, str]) -> str:
    try:
        return text.format_map(values)
    except KeyError as missing:
        available = ", ".join(name for name, value in values.items() if value) or "none"
        raise DataError(f"template '{text[:80]}': unknown field {missing}; this example has {available}") from None


def collect_texts(example: Example) -> dict[str, str]:
    """Return the texts of an example by the names of the fields of templates: text, pair, choice1, choice2, …"""
    choices = {f"choice{number}": choice for number, choice in enumerate(example.choices, start=1)}
    return {"text": example.text, "pair": example.pair or "", **choices}


def _collect_values(example: Example) -> Mapping[str, str]:
    values = {**collect_texts(example), "target": example.target or ""}
    values["answer"] = example.answers[0] if example.answers else ""
    if isinstance(example.label, float):
        values["score"] = f"{round(example.label * 5) / 5:.1f}"
    return values | dict(example.facts)


_NUM_BINS = 5  # strata of a regression: quantiles of the scores


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSplits:
    """Examples for training, for model selection, and for the reported score (dev if `test` is empty)."""

    train: list[Example]
    dev: list[Example]
    test: list[Example]
    notes: tuple[str, ...] = field(default=())
    split_sizes: Mapping[str, int] = field(default_factory=dict)  # examples of each split before limits were applied


def load_task(
    task: Task, data: str | os.PathLike[str] | None = None, seed: int = 0, train_examples: int | None = None
) -> TaskSplits:
    """Load the examples of a task; without a dev or train split another one is split, with a note.

    `train_examples` limits the training examples, stratified and nested: the 50 are a subset of the 200.
    """
    available = task.find_available(data)
    if not available:
        task.find(next(iter(task.splits)), data)  # raises an error that lists the searched directories
    notes = [f"'{name}' is a part of the published split" for name, split in available.items() if split.file.is_partial]
    train, dev, test = (list(available[name].read()) if name in available else [] for name in ("train", "dev", "test"))
    if not train:
        name = next((name for name in ("dev", "all", "test") if name in available), next(iter(available)))
        examples = dev or test or list(available[name].read())
        shares: tuple[float, ...] = (0.9, 0.1) if name == "dev" and test else (0.8, 0.1, 0.1)
        train, dev, *rest = divide(examples, shares, seed, task.group_field)
        test = rest[0] if rest else test
        notes.append(_format_split_note("train", name, len(examples), shares, seed))
    elif not dev:
        size = len(train)
        train, dev = divide(train, (0.9, 0.1), seed, task.group_field)
        notes.append(_format_split_note("dev", "train", size, (0.9, 0.1), seed))
    if train_examples is not None:
        if train_examples > len(train):
            raise DataError(f"task '{task.name}': train_examples must be <= {len(train)}, got {train_examples}")
        subset = sample_subset(train, train_examples, seed, task.get_groups(train))
        notes.append(f"{len(subset)} of {len(train)} training examples, stratified, seed {seed}")
        train = subset
    return TaskSplits(train=train, dev=dev, test=test, notes=tuple(notes))


def _format_split_note(missing_split: str, name: str, size: int, shares: Sequence[float], seed: int) -> str:
    percent = "/".join(f"{share:.0%}".removesuffix("%") for share in shares)
    source = f"'{name}' ({format_count(size, 'examples')})"
    return f"no {missing_split} split: split {source} {percent}, stratified, seed {seed}"


def order_stratified(strata: Sequence[int | str], seed: int = 0) -> list[int]:
    """Return indices in an order of which every prefix is stratified, to within one example per stratum.

    >>> ["aaabaaab"[index] for index in order_stratified("aaabaaab")]
    ['a', 'a', 'a', 'b', 'a', 'a', 'a', 'b']
    """
    members: dict[int | str, list[int]] = {}
    for index in sorted(range(len(strata)), key=lambda index: mix(seed, index)):
        members.setdefault(strata[index], []).append(index)
    names = sorted(members, key=str)
    total, counts = len(strata), dict.fromkeys(names, 0)
    sizes = {name: len(members[name]) for name in names}
    order: list[int] = []
    for seats in range(1, total + 1):
        eligible = [name for name in names if counts[name] * total < seats * sizes[name]]
        stratum = max(eligible, key=lambda name: sizes[name] / (counts[name] + 1))
        order.append(members[stratum][counts[stratum]])
        counts[stratum] += 1
    return order


def compute_strata(examples: Examples) -> list[int | str]:
    """Return the stratum of each example: its class, a fifth of the scores, or a single stratum."""
    labels = [example.label for example in examples]
    if any(isinstance(label, float) for label in labels):
        order = sorted(range(len(labels)), key=lambda index: float(labels[index] or 0))
        bins = [0] * len(labels)
        for rank, index in enumerate(order):
            bins[index] = rank * _NUM_BINS // len(labels)
        return [*bins]
    if any(example.choices for example in examples):
        return [0] * len(labels)  # the position of the correct choice is arbitrary
    return ["" if label is None else int(label) for label in labels]


def sample_subset(
    examples: Examples, count: int, seed: int = 0, groups: Sequence[str | None] | None = None
) -> list[Example]:
    """Return `count` examples, stratified, in their original order; smaller subsets are contained in larger ones.

    With `groups`, one per example (None: a group of its own), whole groups are sampled: as many as fit into `count`,
    and at least one.
    """
    if count < 1:
        raise UsageError(f"the number of examples must be >= 1, got {count}")
    if groups is None:
        return [examples[index] for index in sorted(order_stratified(compute_strata(examples), seed)[:count])]
    sample: list[int] = []
    members = _group_indices([index if group is None else group for index, group in enumerate(groups)])
    for place in order_stratified([0] * len(members), seed):
        if sample and len(sample) + len(members[place]) > count:
            break
        sample += members[place]
    return [examples[index] for index in sorted(sample)]


def divide(
    examples: Examples, shares: Sequence[float], seed: int = 0, group_field: str | None = None
) -> list[list[Example]]:
    """Split examples into parts of these shares, each in the original order; every example is in exactly one part.

    Each part is stratified to within one example per class, relative to the examples that earlier parts left. With
    `group_field`, the name of a field, examples with the same value stay in one part; then groups are divided.
    """
    if not shares or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
        raise UsageError(f"shares must be > 0 and sum to 1, got {', '.join(map(str, shares))}")
    units = _group_indices([getattr(e, group_field) for e in examples] if group_field else range(len(examples)))
    if len(units) < len(shares):
        unit_name = "examples" if group_field is None else f"different values of '{group_field}'"
        raise DataError(f"{len(units)} {unit_name} cannot be split into {len(shares)} parts; add data")
    kinds: list[int | str] = [0] * len(units) if group_field else compute_strata(examples)
    remaining = list(range(len(units)))
    parts: list[list[Example]] = []
    for place, share in enumerate(shares):
        last = place == len(shares) - 1
        room = len(remaining) - (len(shares) - place - 1)  # every later part gets at least one
        count = len(remaining) if last else max(1, min(room, round(share * len(units))))
        order = order_stratified([kinds[unit] for unit in remaining], mix(seed, place))
        members = [remaining[index] for index in order[:count]]
        parts.append([examples[index] for index in sorted(index for unit in members for index in units[unit])])
        assigned_units = set(members)
        remaining = [unit for unit in remaining if unit not in assigned_units]
    return parts


def _group_indices(keys: Iterable[object]) -> list[list[int]]:
    """Return the indices of equal keys, which stay together."""
    groups: dict[object, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return [*groups.values()]
