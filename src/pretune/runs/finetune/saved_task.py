"""What a run remembers of its task, so that new text is read as the old was: `build_task.json`."""

from dataclasses import replace
from pathlib import Path

from pretune.core import config, io
from pretune.core.config import spec
from pretune.core.errors import CheckpointError, UsageError
from pretune.tasks import TASKS
from pretune.tasks.task import Kind, Task, Type, get_task_type
from pretune.tasks.template import Template

TASK_FILE = "task.json"


@spec(tagged=False)
class TaskMember:
    """One of several tasks, each with a head of its own."""

    name: str
    scale: tuple[float, float] | None = None
    max_length: int
    new_tokens: int | None = None


@spec(tagged=False)
class SavedTask:
    """A task, the columns of its files, and how its examples become sequences."""

    name: str
    kind_of: Kind
    type: Type | None = None  # as `--type` names it; None in runs before it was stated, and of several tasks with heads
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    scale: tuple[float, float] | None = None
    template: Template | None = None
    text: str | None = None  # the columns of one's own files
    pair: str | None = None
    max_length: int
    stride: int
    new_tokens: int | None = None
    slots: int = 0
    threshold: float | None = None  # above which no answer is given
    members: tuple[TaskMember, ...] = ()  # tasks that were learnt together, in the order of their heads

    def write(self, run: Path) -> None:
        """Into a run's directory."""
        io.write_json(run / TASK_FILE, config.to_dict(self))

    @classmethod
    def read(cls, run: Path) -> "SavedTask":
        """From a run's directory."""
        if not (run / TASK_FILE).is_file():
            raise CheckpointError(f"{run}: has no {TASK_FILE}: not a fine-tuned run; make one with `pretune finetune`")
        return config.read_spec(cls, run / TASK_FILE, CheckpointError)

    def select(self, name: str | None) -> tuple[int, "SavedTask"]:
        """The number of a task among those learnt together, and what is known of it alone."""
        names = [member.name for member in self.members]
        if name not in names:
            found = "none was given" if name is None else f"found '{name[:40]}'"
            raise UsageError(f"this run learnt several tasks ({', '.join(names)}); say which with --task, {found}")
        number = names.index(name)
        member, task = self.members[number], TASKS.get(name)
        return number, replace(
            self,
            name=name,
            kind_of=task.kind,
            type=get_task_type(task.kind),
            labels=task.labels,
            metrics=task.metrics,
            template=task.template,
            scale=member.scale,
            max_length=member.max_length,
            new_tokens=member.new_tokens,
            members=(),
        )

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of the tasks that were learnt."""
        names = self.name.split(",") if "," in self.name else []
        return frozenset(TASKS.get(name).kind for name in names if name in TASKS) or frozenset({self.kind_of})

    def build_task(self) -> Task:
        """The task: ours by its name, or what is known of one's own."""
        if self.name in TASKS and TASKS.get(self.name).labels == self.labels:
            return TASKS.get(self.name)
        return Task(
            name=self.name,
            kind=self.kind_of,
            metrics=self.metrics,
            splits={},
            labels=self.labels,
            scale=self.scale,
            template=self.template,
        )
