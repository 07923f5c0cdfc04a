"""Fine-tuned run on disk: the model with its task, for predictions and scores.

run = FinetunedRun.open("runs/bert-sst2")
run.predict(["a gorgeous, witty, seductive movie"])      # [{'label': 'positive', 'probabilities': {…}}]
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from pretune.adaptation import methods
from pretune.adaptation.adapted import ModelWithHead, adapt, select_head
from pretune.adaptation.heads.token import Generation
from pretune.adaptation.quantized import Quantization
from pretune.core import config, io
from pretune.core.api import PathResult
from pretune.core.errors import CheckpointError, UsageError, explain_missing
from pretune.core.hub import resolve_path, resolve_short_name
from pretune.core.run_dir import RunDir
from pretune.inference.text_model import get_tokenizer
from pretune.runs.finetune.saved_task import BlankInput, SavedTask
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import Counts
from pretune.tasks.example import Example, Prediction
from pretune.tasks.predict import answer_perplexity, predict
from pretune.tasks.task import Task
from pretune.tasks.types import get_type
from pretune.tasks.types.base import ANSWER_FIELDS
from pretune.training.distributed import resolve_device
from pretune.training.records import HeadlineFile


@dataclass(slots=True, repr=False)
class FinetunedRun(PathResult):
    """Path, scores and task of a fine-tuned run; accepted wherever its path is."""

    path: Path
    scores: dict[str, Any]
    saved_task: SavedTask
    device: str | None = None
    head: int | None = None  # of one task of a multi-task run
    base: Path | None = None  # base model of an adapter
    quantize: Quantization | None = None
    _predictor: "Predictor | None" = field(default=None, repr=False)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        device: str | None = None,
        base: str | os.PathLike[str] | None = None,
        quantize: Quantization | None = None,
    ) -> "FinetunedRun":
        """Open a run that has a model."""
        run = resolve_short_name(path)
        if not run.is_dir():
            raise CheckpointError(f"{run}: {explain_missing(run, 'directory')}; pass a run of `pretune finetune`")
        io.check_links(run, CheckpointError)
        saved_task = SavedTask.read(run)
        file = RunDir(run).scores
        scores = {**config.read_record(HeadlineFile, file, CheckpointError)} if file.is_file() else {}
        base_path = None if base is None else resolve_path(base)
        return cls(run, scores, saved_task, device, base=base_path, quantize=quantize)

    @property
    def score(self) -> float | None:
        """Headline score: the official metric on test, or on dev if test has no answers."""
        score = self.scores.get("result", {}).get("score")
        return None if score is None else float(score)

    def to_dict(self) -> dict[str, Any]:
        """Return the path, the task and the scores as plain data."""
        return {"path": str(self.path), "task": self.saved_task.name, **self.scores}

    def __repr__(self) -> str:
        score = "" if self.score is None else f", score={self.score:.4f}"
        return f"FinetunedRun({str(self.path)!r}, task={self.saved_task.name!r}{score})"

    def load(self) -> ModelWithHead:
        """Load the model with its head."""
        return self.load_predictor().model

    def select_task(self, task: str) -> "FinetunedRun":
        """Return the run for one task of a multi-task run."""
        has_heads = bool(self.saved_task.members)
        if has_heads or "," in self.saved_task.name:
            number, saved_task = self.saved_task.select(task)
            return replace(self, saved_task=saved_task, head=number if has_heads else self.head, _predictor=None)
        if task != self.saved_task.name:
            raise UsageError(f"{self}: fine-tuned on '{self.saved_task.name}', not '{task[:40]}'; remove the task")
        return self

    def load_predictor(self) -> "Predictor":
        """Return the loaded model with its encoder."""
        if self._predictor is None:
            if self.saved_task.members:
                self.saved_task.select(None)  # raises: a task must be selected
            self._predictor = Predictor.load(self)
        return self._predictor

    def predict(self, inputs: Iterable[Any]) -> list[dict[str, Any]]:
        """Predict texts, pairs of texts, or mappings with the fields of examples; one prediction each, in order.

        A blank text has a null prediction, with a reason.
        """
        values = [self.saved_task.build_input(value, f"input {number}") for number, value in enumerate(inputs)]
        return self.load_predictor().describe(values)

    @property
    def is_finished(self) -> bool:
        """True if the run is finished."""
        return RunDir(self.path).is_finished


@dataclass(frozen=True, slots=True)
class Predictor:
    """Model with its task and encoder."""

    task: Task
    model: ModelWithHead
    encoder: TaskEncoder
    threshold: float | None
    precision: torch.dtype | None

    @classmethod
    def load(cls, run: FinetunedRun) -> "Predictor":
        """Load a run's model; for a multi-task run, with one head."""
        saved_task, device = run.saved_task, resolve_device(run.device)
        task = saved_task.build_task()
        loaded_model = methods.load(run.path, base=run.base, quantize=run.quantize)[0]
        model = loaded_model if isinstance(loaded_model, ModelWithHead) else adapt(loaded_model, Generation())
        model = (model if run.head is None else select_head(model, run.head)).eval().to(device)
        encoder = TaskEncoder.from_task(
            task,
            model,
            get_tokenizer(model),
            max_length=saved_task.max_length,
            stride=saved_task.stride,
            slots=saved_task.virtual_tokens,
            scale=saved_task.scale,
            max_new_tokens=saved_task.max_new_tokens,
        )
        half = torch.bfloat16 if device.startswith("cuda") and torch.cuda.is_bf16_supported() else None
        return cls(task, model, encoder, saved_task.threshold, half)

    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """Return one prediction for each example."""
        predictions = predict(self.model, self.encoder, examples, precision=self.precision)
        if self.threshold is None:
            return predictions
        return get_type(self.task).outputs.apply_threshold(self.task, predictions, self.threshold)

    def describe(self, inputs: Sequence[Example | BlankInput]) -> list[dict[str, Any]]:
        """Return the prediction for each input, for JSON; for a blank one null, with the reason."""
        examples = [value for value in inputs if isinstance(value, Example)]
        task_type = get_type(self.task)
        answer_field = ANSWER_FIELDS[task_type.scoring.gold]
        predictions = iter(self.predict(examples) if examples else ())
        return [
            {answer_field: None, "reason": value.reason}
            if isinstance(value, BlankInput)
            else task_type.outputs.format(self.task, next(predictions))
            for value in inputs
        ]

    def compute_perplexity(self, examples: Sequence[Example]) -> float:
        """Return the perplexity of the gold answers, for generation."""
        return answer_perplexity(self.model, self.encoder, examples, precision=self.precision)

    def select_task(self, task: Task) -> "Predictor":
        """Return the predictor for another text-to-text task."""
        rules = replace(self.encoder.rules, task=task, scale=task.scale)
        return replace(self, task=task, encoder=replace(self.encoder, rules=rules))

    def count_truncated(self, examples: Sequence[Example]) -> Counts:
        """Return counts of truncated and empty inputs."""
        return self.encoder.encode(examples, training=False).counts
