"""What a run remembers of its task, so that new text is read as the old was: `task.json`."""

from pathlib import Path

from pretune.core import config, io
from pretune.core.config import spec
from pretune.core.errors import CheckpointError
from pretune.tasks import TASKS
from pretune.tasks.task import Kind, Task
from pretune.tasks.template import Template

TASK = "task.json"


@spec
class Kept:
    """A task, the columns of its files, and how its examples become sequences."""

    name: str
    kind_of: Kind
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

    def write(self, run: Path) -> None:
        """Into a run's directory."""
        io.write_json(run / TASK, config.to_dict(self))

    @classmethod
    def read(cls, run: Path) -> "Kept":
        """From a run's directory."""
        if not (run / TASK).is_file():
            raise CheckpointError(f"{run}: has no {TASK}: not a fine-tuned run; make one with `pretune finetune`")
        return config.from_dict(cls, io.read_json(run / TASK, CheckpointError), where=TASK)

    def task(self) -> Task:
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
