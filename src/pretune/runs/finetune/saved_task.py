"""Task settings stored with a fine-tuned run (task.json), so that inference encodes inputs as training did."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pretune.core import config, io
from pretune.core.config import spec
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.run_dir import RunDir
from pretune.tasks import TASKS
from pretune.tasks.example import Example
from pretune.tasks.table import BlankCellError, read_id
from pretune.tasks.task import Task, Template
from pretune.tasks.types import TASK_TYPES, get_type


class BlankInput(NamedTuple):
    """An input without text, which keeps its place among the predictions."""

    id: str
    reason: str


@spec(has_kind=False)
class TaskMember:
    """One task of a run with several tasks and a head for each."""

    name: str
    scale: tuple[float, float] | None = None
    max_length: int
    max_new_tokens: int | None = None


@spec(has_kind=False)
class SavedTask:
    """A task, the columns of its files, and the encoding of its examples."""

    name: str
    task_kind: str
    type: str | None = None  # as `--type` names it; None in old runs, and of several tasks with a head each
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    scale: tuple[float, float] | None = None
    template: Template | None = None
    text: str | None = None  # columns of the user's files
    pair: str | None = None
    max_length: int
    stride: int
    max_new_tokens: int | None = None
    virtual_tokens: int = 0
    threshold: float | None = None  # of the decision, found on dev
    members: tuple[TaskMember, ...] = ()  # tasks trained together, in the order of their heads

    def write(self, run: Path) -> None:
        """Write task.json into the directory of a run."""
        io.write_json(RunDir(run).task, {**io.FORMAT, **config.to_dict(self)})

    @classmethod
    def read(cls, run: Path) -> "SavedTask":
        """Read task.json from the directory of a run."""
        file = RunDir(run).task
        if not file.is_file():
            raise CheckpointError(f"{run}: no {file.name}: not a fine-tuned run; make one with `pretune finetune`")
        data = io.read_formatted_json(file, CheckpointError)
        tree = {name: value for name, value in data.items() if name not in io.FORMAT}
        try:
            saved_task = config.from_dict(cls, tree, location=str(file))
            TASK_TYPES.get(saved_task.task_kind)
        except UsageError as error:
            raise CheckpointError(str(error)) from None
        return saved_task

    def select(self, name: str | None) -> tuple[int, "SavedTask"]:
        """Return the index of a task among those trained together, and its own settings."""
        length, max_new_tokens = self.max_length, self.max_new_tokens
        members = self.members or [  # those of a text-to-text run share its head
            TaskMember(name=part, max_length=length, max_new_tokens=max_new_tokens) for part in self.name.split(",")
        ]
        names = [member.name for member in members]
        if name not in names:
            value = "got none" if name is None else f"got '{name[:40]}'"
            raise UsageError(
                f"this run was trained on several tasks: choose one with --task ({', '.join(names)}), {value}"
            )
        index = names.index(name)
        member, task = members[index], TASKS.get(name)
        return index, replace(
            self,
            name=name,
            task_kind=task.kind,
            type=task.kind,
            labels=task.labels,
            metrics=task.metrics,
            template=task.template,
            scale=member.scale,
            max_length=member.max_length,
            max_new_tokens=member.max_new_tokens,
            members=(),
        )

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of the tasks that the run was trained on."""
        names = self.name.split(",") if "," in self.name else []
        return frozenset(TASKS.get(name).kind for name in names if name in TASKS) or frozenset({self.task_kind})

    @property
    def reads_one_text(self) -> bool:
        """True if the training files had no second texts."""
        return get_type(self.build_task()).inputs.reads_one_text(self.text, self.pair)

    @property
    def reads_plain_text(self) -> bool:
        """True if a line of text is an input, which the run labels."""
        try:
            self.build_example("A new text.", self.name)
        except DataError:
            return False
        return get_type(self.build_task()).scoring.gold != "text"

    def build_input(self, raw_input: Any, source: str) -> Example | BlankInput:
        """Build the example of an input; a text that is blank gives a `BlankInput`."""
        try:
            return self.build_example(raw_input, source)
        except BlankCellError as error:
            name = read_id(raw_input, source) if isinstance(raw_input, Mapping) else ""
            return BlankInput(name, f"'{error.column}' is blank")

    def build_example(self, raw_input: Any, source: str) -> Example:
        """Build an example from a text, two texts, or a mapping with the training columns (or text and pair).

        Raises BlankCellError if a text is blank.
        """
        match raw_input:
            case Example():
                return raw_input
            case str():
                raw_input = {"text": raw_input}
            case [str(text), str(pair)]:
                if self.reads_one_text:
                    raise DataError(f"{source}: this run was fine-tuned on single texts, got two")
                raw_input = {"text": text, "pair": pair}
        if not isinstance(raw_input, Mapping):
            raise DataError(f"{source}: expected a text, two texts or a mapping, got {type(raw_input).__name__}")
        return get_type(self.build_task()).inputs.read_input(raw_input, self.text, self.pair, source)

    def build_task(self) -> Task:
        """Return the task: the built-in one of this name, or one with the stored settings."""
        if self.name in TASKS and TASKS.get(self.name).labels == self.labels:
            return TASKS.get(self.name)
        return Task(
            name=self.name,
            kind=self.task_kind,
            metrics=self.metrics,
            splits={},
            labels=self.labels,
            scale=self.scale,
            template=self.template,
        )
