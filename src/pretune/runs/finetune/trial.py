"""Training on a task with one seed, learning rate and training set size; resumes bit-equal.

Under `torchrun` every rank holds the model and trains on its share of each step's examples. Each predicts its share of
dev, too, and gathers the others' predictions, so that all ranks make the same selection. Rank 0 alone writes files.
"""

import gc
import hashlib
import json
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from pretune.adaptation.adapted import FlopsCounter
from pretune.adaptation.distillation import LayerStageHook, TaskTeacher
from pretune.adaptation.methods import round_frozen_weights
from pretune.adaptation.peft.base import sample_weight
from pretune.adaptation.quantized import count_parameters
from pretune.adaptation.teacher import PROJECTIONS, DistillationFlops, detach_teacher
from pretune.core import config, io, log
from pretune.core.errors import CheckpointError, DivergedError, NonFiniteError
from pretune.core.run_dir import RunDir, RunLock
from pretune.inference.text_model import get_tokenizer
from pretune.runs.finetune.adapted_model import (
    TaskEncoders,
    add_teacher_logits,
    build_adapted_model,
    has_teacher_logits,
    load_base_model,
    sum_counts,
)
from pretune.runs.finetune.config import FinetuneConfig, compute_eval_interval, count_steps
from pretune.runs.finetune.defaults import FULL_METHODS
from pretune.runs.finetune.features import (
    EncodedData,
    EncodingKey,
    FeatureFlops,
    add_features,
    can_cache,
    has_features,
)
from pretune.runs.finetune.forgetting import ForgettingMeter
from pretune.runs.finetune.linear_probe import center_dropout, fit_head
from pretune.runs.finetune.task_data import TaskData, compute_scores, find_tasks
from pretune.tasks.example import Example, Prediction
from pretune.tasks.predict import answer_perplexity
from pretune.tasks.splits import sample_subset
from pretune.tasks.types import build_row, get_type
from pretune.text.tokenizer.open_vocabulary import OpenTokenizer
from pretune.training.checkpoints import collect_weights
from pretune.training.clock import TrainingClock
from pretune.training.distributed import Ranks, run_on_rank_zero
from pretune.training.loop import GracefulShutdown, Hook
from pretune.training.records import TrialFile
from pretune.training.step import TrainState
from pretune.training.trainer import RunOutput, RunProcess, TrainedModel, Trainer, TrainingBatches, TrainingPhase
from pretune.training.validation import EarlyStopping, Evaluation

Facts = dict[str, Any]
EVAL_EXAMPLES, GENERATION_EVAL_EXAMPLES = 2000, 200
"""Number of dev examples for model selection; fewer where answers are generated, which is slow."""
UNSCORED_FIELDS = frozenset({"probabilities", "span", "null_score_diff", "candidates"})
"""Fields of a prediction that no metric of a finished run needs."""
LATER_FIELDS = frozenset({"predicate", "heads"})
"""Fields of an example that older runs do not have: hashed only where they are set, so that these runs resume."""
FORWARD_SHARE = 1 / 3
"""Cost of a prediction relative to a training step, until one has been timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingWork:
    """Work of a run after a trial: further trials like it, and seconds of baselines."""

    trials: int = 0
    baselines: float = 0.0


@dataclass(slots=True, kw_only=True)
class TrialOutlook:
    """Time of a trial besides its `steps`: `eval_examples` predictions every `eval_every` steps, `final_examples` at
    the end.

    >>> outlook = TrialOutlook(steps=100, eval_every=50, eval_examples=10, final_examples=30, batch=1,
    ...                        remaining_work=RemainingWork(baselines=5.0))
    >>> outlook.add_predictions(20, 10.0)  # seconds of predictions: 0.5 each
    >>> outlook.get_elapsed(), outlook.estimate_remaining(1.0, 60)  # (10 + 30) x 0.5 and 5
    (10.0, 25.0)
    """

    steps: int
    eval_every: int
    eval_examples: int
    final_examples: int
    batch: int
    remaining_work: RemainingWork = RemainingWork()
    predictions: int = 0
    seconds: float = 0.0

    def add_predictions(self, predictions: int, seconds: float) -> None:
        """Count predictions and their time."""
        self.predictions, self.seconds = self.predictions + predictions, self.seconds + seconds

    def get_elapsed(self) -> float:
        """Return the seconds of predictions so far."""
        return self.seconds

    def estimate_remaining(self, step_seconds: float, step: int) -> float:
        """Return the expected seconds besides the steps; `step_seconds` is the mean duration of a step."""
        prediction_seconds = (
            self.seconds / self.predictions if self.predictions else step_seconds / self.batch * FORWARD_SHARE
        )
        trial = self.steps * step_seconds + self._count_predictions(0) * prediction_seconds
        return (
            self._count_predictions(step) * prediction_seconds
            + self.remaining_work.trials * trial
            + self.remaining_work.baselines
        )

    def _count_predictions(self, step: int) -> int:
        """Return the number of predictions after a step."""
        return (
            max(math.ceil(self.steps / self.eval_every) - step // self.eval_every, 0) * self.eval_examples
            + self.final_examples
        )


class FinetuneTrial:
    """Trial: opens and checks everything, then trains."""

    def __init__(
        self,
        tuning: FinetuneConfig,
        task_data: TaskData,
        run_dir: RunDir,
        ranks: Ranks,
        shutdown: GracefulShutdown,
        *,
        encoded_data: dict[EncodingKey, EncodedData] | None = None,
        teacher: TaskTeacher | None = None,
        forgetting: str | None = None,
        remaining_work: RemainingWork = RemainingWork(),  # noqa: B008 (a frozen value)
    ) -> None:
        self.tuning, self.task_data, self.run_dir, self.ranks, self.shutdown = (
            tuning, task_data, run_dir, ranks, shutdown
        )  # fmt: skip
        self.task, fit = task_data.task, tuning.train
        self.train_examples = task_data.select_train(tuning.task.train_examples, tuning.task.split_seed)
        self.precision = fit.resolve_precision(ranks.device)
        if ranks.device.type == "cuda":
            gc.collect()  # NOTE: reference cycles may keep an earlier trial alive
            torch.cuda.init()  # type: ignore[no-untyped-call]  # NOTE: unused until here if the precision is set
            torch.cuda.reset_peak_memory_stats(ranks.device)
        self.teacher = teacher
        self.adapted_model = build_adapted_model(tuning, self.task, ranks, steps_per_epoch=1.0, teacher=teacher)
        self.model = self.adapted_model.model
        self.encoders = TaskEncoders.from_model(tuning, task_data, self.model, self.train_examples)
        self.distillation = self.adapted_model.distillation
        if self.distillation is not None and teacher is not None:
            self.encoders.check_teacher(self.model, self.distillation, teacher)
        is_open = isinstance(get_tokenizer(self.model), OpenTokenizer)  # ids of new words are those of this model
        trained_names = frozenset(self.adapted_model.trained_tensors)
        trains_everything = trained_names >= {name for name, _ in self.model.named_parameters()}
        self.trained_names = None if trains_everything else trained_names  # in checkpoints; the rest is the base's
        base = None if trains_everything else hash_frozen_weights(self.model, trained_names)
        dev, max_examples = task_data.parts.dev, self._limit_eval_examples()
        groups = task_data.find_groups(dev)
        self.selection_examples = (
            sample_subset(dev, max_examples, tuning.task.split_seed, groups) if len(dev) > max_examples else dev
        )
        # Shared by trials with as many labels, and with features also of the same base.
        shared_data = {} if encoded_data is None or is_open else encoded_data
        caches_features = can_cache(self.adapted_model, tuning, task_data)
        key = (tuning.task.train_examples, base if caches_features else None)
        is_new = key not in shared_data
        if is_new:
            shared_data[key] = self._encode(caches_features=caches_features)
        self.notes = self.encoders.find_notes(self.train_examples)
        for note in self.notes if len(shared_data) == 1 and encoded_data is not None and ranks.is_first else ():
            log.warn(note)
        self.items, self.selection_items = shared_data[key].train, shared_data[key].selection
        self.feature_flops = None
        if has_features(self.items[0]):
            self.feature_flops = FeatureFlops(self.model, self.items[0], counts_body=is_new)
        if tuning.tune.head == "probe":
            fit_probe = lambda: fit_head(self.model, self.items[0], seed=fit.seed, precision=self.precision)  # noqa: E731
            center_dropout(self.model, ranks.broadcast_object(run_on_rank_zero(ranks, fit_probe)))
        ranks.broadcast_tensors(self.adapted_model.trainable_parameters.values())
        self.stream = self.encoders.build_stream(self.items, tuning, fixed_shape=ranks.device.type == "cuda")
        self.steps_per_epoch = len(self.stream.steps(0))
        self.steps = count_steps(
            fit, self.steps_per_epoch, is_parameter_efficient=config.get_kind(tuning.method) not in FULL_METHODS
        )
        self.eval_every = fit.eval_every or compute_eval_interval(self.steps_per_epoch, self.steps)
        parts = task_data.parts
        self.outlook = TrialOutlook(
            steps=self.steps,
            eval_every=self.eval_every,
            eval_examples=min(len(parts.dev), self._limit_eval_examples()),
            final_examples=len(parts.dev) + (len(parts.test) if task_data.headline_split == "test" else 0),
            batch=fit.batch,
            remaining_work=remaining_work,
        )
        for hook in self.adapted_model.unfreezing:
            hook.epoch, hook.steps = (
                self.steps_per_epoch,
                self.steps,
            )  # NOTE: known only now, since encoding needs the model
        fit.schedule.compute_factor(0, self.steps)  # raises if it does not fit
        tokenizer, lone = get_tokenizer(self.model), Ranks(ranks.device)
        self.forgetting_meter = None
        if forgetting is not None:
            base_model = load_base_model(replace(tuning.base, extra_layers=0), seed=fit.seed)
            self.forgetting_meter = ForgettingMeter(
                self.adapted_model.body, base_model, forgetting, lone, self.precision, tuning.method, tuning.base.path
            )
        self.fingerprints = {
            "config": tuning.sha256(),
            "data": hash_examples([*self.train_examples, *task_data.parts.dev]),
            "tokenizer": tokenizer.sha256,
        }
        if teacher is not None:
            self.fingerprints["teacher"] = teacher.fingerprint
        if base is not None:
            self.fingerprints["base"] = base
        if forgetting is None:  # which compares the weights with the base's
            round_frozen_weights(self.model.model, tuning.method, self.precision)

    def run(self, lock: RunLock | None, *, resume: bool) -> Facts:
        """Train from the start, or from the newest valid checkpoint if there is one; returns the same facts on all
        ranks. `lock` is the lock of the run, held by rank 0.
        """
        fit, unfreezing = self.tuning.train, self.adapted_model.unfreezing
        early_stopping = EarlyStopping(
            tensors=self.adapted_model.trained_tensors, patience=fit.patience, hooks=unfreezing
        )
        count_student = FlopsCounter(self.model, lambda: sum(hook.num_unfrozen for hook in unfreezing))
        flops: FlopsCounter | DistillationFlops | FeatureFlops = self.feature_flops or count_student
        hooks: list[Hook] = [*unfreezing]
        if self.distillation is not None and self.teacher is not None:
            flops = self.teacher.count_flops(count_student, is_cached=has_teacher_logits(self.items))
            if self.distillation.weights.layer_share:
                hooks.append(LayerStageHook(self.distillation, self.steps))
        with Trainer(
            trained=TrainedModel(
                model=self.model,
                objective=self.distillation or self.model.spec,
                spec=self.model.model.spec,
                count_flops=flops,
                groups=self.adapted_model.groups,
                tensor_names=self.trained_names,
            ),
            batches=TrainingBatches(
                phases=[TrainingPhase(batches=self.stream, shape=self.stream.shape)],
                workers=fit.workers or 0,  # NOTE: worker startup takes longer than many runs
            ),
            clock=TrainingClock(schedule=fit.schedule, steps=self.steps),
            config=fit,
            output=RunOutput(
                run_dir=self.run_dir, fingerprints=self.fingerprints, settings=self.tuning.to_dict(), lock=lock
            ),
            process=RunProcess(self.ranks, self.shutdown),
            evaluation=Evaluation(
                evaluate=lambda loop: self._evaluate(),
                every=self.eval_every,
                compute_loss=lambda metrics: -next(iter(metrics.values())),
                at_start=False,  # a random head gives no information
                early_stopping=early_stopping,
                overhead=self.outlook,
            ),
            hooks=hooks,
        ) as trainer:
            state = trainer.fit(resume=resume)
            detach_teacher(self.model)
            summary = trainer.summarize()
            if isinstance(flops, DistillationFlops):
                summary["teacher_flops"] = flops.teacher_share * summary["cost"]["flops"]
                log.info(flops.describe(summary["cost"]["flops"]))
            facts: Facts = self.ranks.broadcast_object(self._finish(state, summary, early_stopping))
            return facts

    def _limit_eval_examples(self) -> int:
        """Return the maximum number of dev examples for model selection."""
        return self.tuning.train.eval_examples or (
            GENERATION_EVAL_EXAMPLES if self.encoders.is_generative else EVAL_EXAMPLES
        )

    def _evaluate(self) -> dict[str, float]:
        """Return the scores on dev, or on a subset of it."""
        return compute_scores(self.task_data, self.selection_examples, self._predict(self.selection_examples))

    def _encode(self, *, caches_features: bool) -> EncodedData:
        """Return the training examples as items, with the logits of a teacher or the features of a frozen model.

        With features also this rank's share of the examples for model selection.
        """
        items = self.encoders.encode(self.train_examples)
        if self.distillation is not None and self.teacher is not None:
            items = add_teacher_logits(items, self.teacher, self.distillation, self.precision)
        if not caches_features:
            return EncodedData(items)
        share, selection = self.selection_examples[self.ranks.rank :: self.ranks.world], None
        if share:
            selection_items = self.encoders.encoders[0].encode(share, training=False)
            selection = add_features(self.model, selection_items, self.precision)
        return EncodedData((add_features(self.model, items[0], self.precision),), selection)

    def _predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """Predict examples: every rank its share, gathered on all ranks."""
        rank, world = self.ranks.rank, self.ranks.world
        mine, start = examples[rank::world], time.monotonic()
        try:
            items = self.selection_items if examples is self.selection_examples else None
            predictions = self.encoders.predict(self.model, mine, self.precision, items) if mine else []
        except NonFiniteError:  # the base was finite, so training diverged
            raise DivergedError("outputs of the fine-tuned model are not finite; decrease the learning rate") from None
        rank_predictions = self.ranks.gather_objects(predictions)
        self.outlook.add_predictions(len(examples), time.monotonic() - start)
        return [rank_predictions[place % world][place // world] for place in range(len(examples))]

    def _finish(self, state: TrainState, summary: Facts, early_stopping: EarlyStopping) -> Facts:
        """Evaluate the best weights on all of dev and test, and write the predictions."""
        parts = self.task_data.parts
        predictions = {"dev": self._predict(parts.dev)}
        if self.task_data.headline_split == "test":
            predictions["test"] = self._predict(parts.test)
        threshold, outputs = None, get_type(self.task).outputs
        if not self.encoders.is_generative:  # generative models answer in words
            threshold = outputs.find_threshold(self.task, parts.dev, predictions["dev"])
        if threshold is not None:
            predictions = {
                split: outputs.apply_threshold(self.task, split_predictions, threshold)
                for split, split_predictions in predictions.items()
            }
        if self.ranks.is_first:
            self._write_predictions(predictions)
        headline = self.task_data.headline_split
        return {
            "lr": self.tuning.train.lr,
            "seed": self.tuning.train.seed,
            "labels": len(self.train_examples),
            "steps": state.step,
            "epoch": self.steps_per_epoch,
            "best_step": early_stopping.best_step,
            "course": [{"step": step, "dev": value} for step, value in early_stopping.scores],
            "scores": {
                split: self._compute_scores(getattr(parts, split), split_predictions)
                for split, split_predictions in predictions.items()
            },
            "trained": sum(
                parameter.numel()
                for name, parameter in self.adapted_model.trainable_parameters.items()
                if not name.startswith(PROJECTIONS)
            ),
            "parameters": count_parameters(self.model),
            "counts": config.to_dict(sum_counts(self.items)),
            "balance": get_type(self.task).scoring.count_labels(self.task, self.train_examples),
            "notes": self.notes,
            "memory": _measure_memory(self.ranks),
            "threshold": threshold,
            "forgetting": None if self.forgetting_meter is None else self.forgetting_meter.compare(),
            "summary": {name: value for name, value in summary.items() if name not in ("best", "held_out")},
            "predictions": {headline: [_compact_prediction(prediction) for prediction in predictions[headline]]},
        }

    def _compute_scores(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Return the official scores; for generation also the perplexity of the gold answers, on rank 0."""
        scores = compute_scores(self.task_data, examples, predictions)
        if get_type(self.task).scoring.gold == "text" and not self.task_data.members and self.ranks.is_first:
            encoder = self.encoders.encoders[0]
            scores["perplexity"] = answer_perplexity(self.model, encoder, examples, precision=self.precision)
        return scores

    def _write_predictions(self, predictions: Mapping[str, Sequence[Prediction]]) -> None:
        lines: list[Facts] = []
        for split, split_predictions in predictions.items():
            examples: list[Example] = getattr(self.task_data.parts, split)
            tasks = find_tasks(self.task_data, examples)
            for number, (task, example, prediction) in enumerate(zip(tasks, examples, split_predictions, strict=True)):
                name = {"task": task.name} if self.task_data.members else {}
                lines.append({**build_row(task, split, example.id or str(number), example, prediction), **name})
        text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
        io.atomic_write(self.run_dir.predictions, text)


def read_finished_trial(run_dir: RunDir) -> dict[str, Any] | None:
    """Return the facts of a finished trial, or None."""
    file = run_dir.trial
    if not file.is_file():
        return None
    facts = io.read_json(file, CheckpointError)
    return {**config.check_record(TrialFile, facts, CheckpointError, str(file))}


def hash_examples(examples: Sequence[Example]) -> str:
    """Return a hash of the examples."""
    digest = hashlib.sha256()
    for example in examples:
        parts = [
            f"{field.name}={getattr(example, field.name)!r}"
            for field in fields(example)
            if field.name not in LATER_FIELDS or getattr(example, field.name) != field.default
        ]
        digest.update(f"Example({', '.join(parts)})".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def hash_frozen_weights(model: nn.Module, trained_names: Collection[str]) -> str:
    """Return a hash of the frozen weights: names, shapes, and sampled values of each tensor."""
    digest = hashlib.sha256()
    for name, tensor in sorted(collect_weights(model).items()):
        if name not in trained_names:
            digest.update(f"{name}{list(tensor.shape)}".encode() + sample_weight(tensor))
    return digest.hexdigest()


def _compact_prediction(prediction: Prediction) -> Facts:
    """Return the fields of a prediction that metrics need."""
    values = {field.name: getattr(prediction, field.name) for field in fields(prediction)}
    return {name: value for name, value in values.items() if name not in UNSCORED_FIELDS and value not in (None, ())}


def _measure_memory(ranks: Ranks) -> int | None:
    """Return the peak memory of the GPU in bytes."""
    return torch.cuda.max_memory_allocated(ranks.device) if ranks.device.type == "cuda" else None
