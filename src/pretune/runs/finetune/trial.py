"""Training on a task with one seed, learning rate and training set size; resumes bit-equal.

    trial = FinetuneTrial(tuning, TrialContext(task_data=open_task(tuning.task), ranks=ranks))
    result = trial.fit(run_dir, shutdown, resume=False)        # what trial.json holds; trial.model is trained

Under `torchrun` every rank holds the model and trains on its share of each step's examples. Each predicts its share of
dev, too, and gathers the others' predictions, so that all ranks make the same selection. Rank 0 alone writes files.
"""

import gc
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

import torch

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
from pretune.metrics import get_headline
from pretune.runs.finetune.adapted_model import (
    AdaptedModel,
    TaskEncoders,
    add_teacher_logits,
    build_adapted_model,
    has_teacher_logits,
    load_base_model,
    sum_counts,
)
from pretune.runs.finetune.config import FinetuneConfig, TrialOutlook, compute_eval_interval
from pretune.runs.finetune.features import (
    EncodedData,
    EncodingKey,
    FeatureFlops,
    center_dropout,
    encode_features,
    fit_head,
)
from pretune.runs.finetune.task_data import TaskData, compute_scores, find_tasks
from pretune.tasks.encoding import Items
from pretune.tasks.example import Example, Prediction
from pretune.tasks.predict import compute_answer_scores
from pretune.tasks.stream import TaskStream
from pretune.tasks.task import sample_subset
from pretune.tasks.types import build_row, get_type
from pretune.text.tokenizer.open_vocabulary import OpenTokenizer
from pretune.training.checkpoints.manager import collect_weights
from pretune.training.clock import TrainingClock
from pretune.training.distributed import Ranks, run_on_rank_zero
from pretune.training.loop import GracefulShutdown, Hook
from pretune.training.records import LengthCounts, RunSummaryRecord, TrialFile
from pretune.training.step import TrainState
from pretune.training.trainer import RunOutput, RunProcess, TrainedModel, Trainer, TrainingBatches, TrainingPhase
from pretune.training.validation import EarlyStopping, Evaluation

if TYPE_CHECKING:
    from pretune.runs.finetune.forgetting import ForgettingMeter
    from pretune.tasks.rollouts import Rollouts
    from pretune.tasks.stream import MultiTaskStream

EVAL_EXAMPLES, GENERATION_EVAL_EXAMPLES = 2000, 200
"""Number of dev examples for model selection; fewer where answers are generated, which is slow."""
UNSCORED_FIELDS = frozenset({"probabilities", "span", "null_score_diff", "candidates"})
"""Fields of a prediction that no metric of a finished run needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContext:
    """Values that the trials of a run share."""

    task_data: TaskData
    ranks: Ranks
    teacher: TaskTeacher | None = None
    forgetting: str | None = None  # prepared data for the pre-training loss before and after
    encoded_data: dict[EncodingKey, EncodedData] | None = None  # by earlier trials; None: of this trial alone


class FinetuneTrial:
    """A trial: its adapted model and encoded examples before the first step; raises if something does not fit."""

    def __init__(self, tuning: FinetuneConfig, context: TrialContext) -> None:
        task_data, ranks, teacher = context.task_data, context.ranks, context.teacher
        if ranks.device.type == "cuda":
            gc.collect()  # NOTE: reference cycles may keep an earlier trial alive
            torch.cuda.init()  # type: ignore[no-untyped-call]  # NOTE: unused until here if the precision is set
            torch.cuda.reset_peak_memory_stats(ranks.device)
        self.tuning, self.context = tuning, context
        self.precision = tuning.train.resolve_precision(ranks.device)
        self.train_examples = task_data.select_train(tuning.task.train_examples, tuning.task.split_seed)
        self.adapted_model = build_adapted_model(tuning, task_data.task, ranks, teacher=teacher)
        self.model = self.adapted_model.model
        self.encoders = TaskEncoders.from_model(tuning, task_data, self.model, self.train_examples)
        if self.adapted_model.distillation is not None and teacher is not None:
            self.encoders.check_teacher(self.model, self.adapted_model.distillation, teacher)
        self.base_hash = hash_frozen_weights(self.adapted_model)
        self.notes = self.encoders.find_notes(self.train_examples)
        self.selection_examples = self._select_eval_examples()
        self.data, is_new = self._encode()
        self._add_references()
        self.count_flops = self._build_flops_counter(counts_body=is_new)
        self._synchronize_weights()
        self.stream = self._build_stream()
        self.steps_per_epoch = len(self.stream.steps(0))
        self.outlook = self._plan_steps()
        for hook in self.adapted_model.unfreezing:
            hook.epoch, hook.steps = self.steps_per_epoch, self.outlook.steps  # NOTE: encoding needs the model first
        tuning.train.schedule.compute_factor(0, self.outlook.steps)  # raises if it does not fit
        self.fingerprints = self._compute_fingerprints()
        self.forgetting_meter = self._finish_weights()

    def _select_eval_examples(self) -> list[Example]:
        """Return the dev examples on which the best weights are selected."""
        task_data, tuning = self.context.task_data, self.tuning
        dev, is_slow = task_data.parts.dev, self.encoders.is_generative
        limit = tuning.train.eval_examples or (GENERATION_EVAL_EXAMPLES if is_slow else EVAL_EXAMPLES)
        if len(dev) <= limit:
            return dev
        return sample_subset(dev, limit, tuning.task.split_seed, task_data.find_groups(dev))

    def _encode(self) -> tuple[EncodedData, bool]:
        """Return the encoded examples, and whether they are new.

        They are shared by trials with as many labels, and with features also of the same base. Notes are given once.
        """
        context, ranks, distillation = self.context, self.context.ranks, self.adapted_model.distillation
        is_open = isinstance(get_tokenizer(self.model), OpenTokenizer)  # ids of new words are those of this model
        shared_data = {} if context.encoded_data is None or is_open else context.encoded_data
        caches_features = self.adapted_model.can_cache(self.tuning, context.task_data)
        key = (self.tuning.task.train_examples, self.base_hash if caches_features else None)
        is_new = key not in shared_data
        if is_new:
            items = self.encoders.encode(self.train_examples)
            self.notes += self.encoders.describe_counts(items)
            if distillation is not None and context.teacher is not None:
                items = add_teacher_logits(items, context.teacher, distillation, self.precision)
            shared_data[key] = EncodedData(items)
            if caches_features:
                share = self.selection_examples[ranks.rank :: ranks.world]
                shared_data[key] = encode_features(
                    self.model, self.encoders.encoders[0], items[0], share, self.precision
                )
        if len(shared_data) == 1 and context.encoded_data is not None and ranks.is_first:
            for note in self.notes:
                log.warn(note)
        return shared_data[key], is_new

    def _add_references(self) -> None:
        """Compute the reference of training and held-out pairs, before training changes the model."""
        preferences, parts = self.adapted_model.preferences, self.context.task_data.parts
        if preferences is None:
            return
        held_out = [*parts.dev, *(parts.test if self.context.task_data.headline_split == "test" else ())]
        if missing := preferences.find_missing([*self.train_examples, *held_out]):
            preferences.add_references(self.encoders.encoders[0], missing, self._gather_predictions(missing))
        self.data = self.data._replace(train=(preferences.attach_references(self.data.train[0], self.train_examples),))

    def _build_flops_counter(self, *, counts_body: bool) -> FlopsCounter | DistillationFlops | FeatureFlops:
        if self.data.train[0].has_features:
            return FeatureFlops(self.model, self.data.train[0], counts_body=counts_body)
        unfreezing, teacher = self.adapted_model.unfreezing, self.context.teacher
        extra_share = self.adapted_model.extra_share
        counter = FlopsCounter(
            self.model, lambda: sum(hook.num_unfrozen for hook in unfreezing), extra_share=extra_share
        )
        if self.adapted_model.distillation is None or teacher is None:
            return counter
        return teacher.count_flops(counter, is_cached=has_teacher_logits(self.data.train))

    def _build_stream(self) -> "TaskStream | MultiTaskStream | Rollouts":
        """Return the batches: of the encoded examples, or of answers that the model samples."""
        tuning, precision = self.tuning, self.precision
        if tuning.tune.grpo is None:
            is_cuda = self.context.ranks.device.type == "cuda"
            return self.encoders.build_stream(self.data.train, tuning, fixed_shape=is_cuda)
        from pretune.tasks.rollouts import Rollouts  # NOTE: rarely needed

        return Rollouts(
            stream=TaskStream(self.data.train[0], batch=tuning.train.batch, seed=tuning.train.seed),
            examples=self.train_examples,
            encoder=self.encoders.encoders[0],
            model=self.model,
            settings=tuning.tune.grpo,
            seed=tuning.train.seed,
            precision=precision,
        )

    def _synchronize_weights(self) -> None:
        """Fit the head by a linear probe if the run asks for it, and give all ranks the weights of rank 0."""
        ranks, model, items = self.context.ranks, self.model, self.data.train[0]
        if self.tuning.tune.head == "probe":
            seed = self.tuning.train.seed
            mean = run_on_rank_zero(ranks, lambda: fit_head(model, items, seed=seed, precision=self.precision))
            center_dropout(model, ranks.broadcast_object(mean))
        ranks.broadcast_tensors(self.adapted_model.trainable_parameters.values())

    def _plan_steps(self) -> TrialOutlook:
        """Return the length of the trial, and its evaluations."""
        train, task_data = self.tuning.train, self.context.task_data
        steps = self.tuning.count_steps(self.steps_per_epoch)
        return TrialOutlook(
            steps=steps,
            eval_every=train.eval_every or compute_eval_interval(self.steps_per_epoch, steps),
            eval_examples=len(self.selection_examples),
            final_examples=len(task_data.parts.dev)
            + (len(task_data.parts.test) if task_data.headline_split == "test" else 0),
            batch=train.batch,
        )

    def _compute_fingerprints(self) -> dict[str, str]:
        """Return the hashes that a checkpoint must have to be resumed from."""
        examples = "".join(map(repr, [*self.train_examples, *self.context.task_data.parts.dev]))
        teacher, base_hash = self.context.teacher, self.base_hash
        return {
            "config": self.tuning.sha256(),
            "data": hashlib.sha256(examples.encode("utf-8", "surrogatepass")).hexdigest(),
            "tokenizer": get_tokenizer(self.model).sha256,
            **({} if teacher is None else {"teacher": teacher.fingerprint}),
            **({} if base_hash is None else {"base": base_hash}),
        }

    def _finish_weights(self) -> "ForgettingMeter | None":
        """Round the frozen weights, or return the meter of forgetting, which compares the weights with the base's."""
        tuning, data = self.tuning, self.context.forgetting
        if data is None:
            round_frozen_weights(self.model.model, tuning.method, self.precision)
            return None
        from pretune.runs.finetune.forgetting import ForgettingMeter  # NOTE: slow to import, and rarely needed

        base_model = load_base_model(replace(tuning.base, extra_layers=0), seed=tuning.train.seed)
        ranks, body = Ranks(self.context.ranks.device), self.adapted_model.body
        return ForgettingMeter(body, base_model, data, ranks, self.precision, tuning.method, tuning.base.path)

    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """Predict examples: every rank its share, gathered on all ranks."""
        start = time.monotonic()
        items = self.data.selection if examples is self.selection_examples else None
        predictions = self._gather_predictions(examples, items)
        self.outlook.add_predictions(len(examples), time.monotonic() - start)
        return predictions

    def _gather_predictions(self, examples: Sequence[Example], items: Items | None = None) -> list[Prediction]:
        ranks = self.context.ranks
        mine = examples[ranks.rank :: ranks.world]
        try:
            predictions = self.encoders.predict(self.model, mine, self.precision, items) if mine else []
        except NonFiniteError:  # the base was finite, so training diverged
            raise DivergedError("outputs of the fine-tuned model are not finite; decrease the learning rate") from None
        rank_predictions = ranks.gather_objects(predictions)
        return [rank_predictions[place % ranks.world][place // ranks.world] for place in range(len(examples))]

    @property
    def selects_by_loss(self) -> bool:
        """True if the best weights have the lowest loss of the answers, which are long to generate."""
        task_type = get_type(self.context.task_data.task)
        is_answer = self.encoders.is_generative and task_type.inputs.has_own_encoding
        return is_answer and not task_type.scoring.is_reward

    def _score_selection(self) -> dict[str, float]:
        """Return the scores on the examples of selection."""
        examples = self.selection_examples
        if (preferences := self.adapted_model.preferences) is not None:
            return preferences.score(self.encoders.encoders[0], examples, self.predict(examples))
        if self.selects_by_loss:
            return compute_answer_scores(self.model, self.encoders.encoders[0], examples, self.precision)
        return compute_scores(self.context.task_data, examples, self.predict(examples))

    def compute_scores(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Return the official scores; for generation also the perplexity of the gold answers, on rank 0."""
        task_data = self.context.task_data
        scores = compute_scores(task_data, examples, predictions)
        preferences, scoring = self.adapted_model.preferences, get_type(task_data.task).scoring
        if preferences is not None:
            scores |= preferences.score(self.encoders.encoders[0], examples, predictions)
        is_text = scoring.gold == "text" and not scoring.is_reward and not task_data.members
        if is_text and self.context.ranks.is_first:
            encoder = self.encoders.encoders[0]
            scores |= compute_answer_scores(self.model, encoder, examples, self.precision)
        return scores

    def fit(
        self, run_dir: RunDir, shutdown: GracefulShutdown, *, resume: bool, lock: RunLock | None = None
    ) -> TrialFile:
        """Train from the start, or from the newest valid checkpoint if there is one; returns the same on all ranks.

        `lock` is the lock of the run, held by rank 0.
        """
        train, adapted_model, flops, outlook = self.tuning.train, self.adapted_model, self.count_flops, self.outlook
        ranks, distillation, grpo = self.context.ranks, adapted_model.distillation, self.tuning.tune.grpo
        early_stopping = EarlyStopping(
            tensors=adapted_model.trained_tensors, patience=train.patience, hooks=adapted_model.unfreezing
        )
        hooks: list[Hook] = [*adapted_model.unfreezing]
        if distillation is not None and distillation.weights.layer_share:
            hooks.append(LayerStageHook(distillation, outlook.steps))
        with Trainer(
            trained=TrainedModel(
                model=self.model,
                objective=adapted_model.objective,
                spec=self.model.model.spec,
                count_flops=flops,
                groups=adapted_model.groups,
                tensor_names=frozenset(adapted_model.trained_tensors) if "base" in self.fingerprints else None,
            ),
            batches=TrainingBatches(
                phases=[TrainingPhase(batches=self.stream, shape=self.stream.shape, is_sampled=grpo is not None)],
                workers=train.workers or 0,  # NOTE: worker startup takes longer than many runs
            ),
            clock=TrainingClock(schedule=train.schedule, steps=outlook.steps),
            config=train,
            output=RunOutput(
                run_dir=run_dir, fingerprints=self.fingerprints, settings=self.tuning.to_dict(), lock=lock
            ),
            process=RunProcess(ranks, shutdown),
            evaluation=Evaluation(
                evaluate=lambda loop: self._score_selection(),
                every=outlook.eval_every,
                compute_loss=lambda metrics: get_headline(metrics) * (1 if self.selects_by_loss else -1),
                at_start=False,  # a random head gives no information
                early_stopping=early_stopping,
                overhead=outlook,
            ),
            hooks=hooks,
        ) as trainer:
            state = trainer.fit(resume=resume)
            detach_teacher(self.model)
            summary = trainer.summarize()
            if isinstance(flops, DistillationFlops):
                summary["teacher_flops"] = flops.teacher_share * summary["cost"]["flops"]
                log.info(flops.describe(summary["cost"]["flops"]))
            result: TrialFile = ranks.broadcast_object(self._evaluate(run_dir, state, summary, early_stopping))
            return result

    def _evaluate(
        self, run_dir: RunDir, state: TrainState, summary: RunSummaryRecord, early_stopping: EarlyStopping
    ) -> TrialFile:
        """Evaluate the best weights on all of dev and test, and write the predictions."""
        task_data, device = self.context.task_data, self.context.ranks.device
        task, parts, headline = task_data.task, task_data.parts, task_data.headline_split
        predictions = {"dev": self.predict(parts.dev)}
        if headline == "test":
            predictions["test"] = self.predict(parts.test)
        threshold, outputs = None, get_type(task).outputs
        if not self.encoders.is_generative:  # generative models answer in words
            threshold = outputs.find_threshold(task, parts.dev, predictions["dev"])
        if threshold is not None:
            predictions = {
                split: outputs.apply_threshold(task, split_predictions, threshold)
                for split, split_predictions in predictions.items()
            }
        if self.context.ranks.is_first:
            io.atomic_write(run_dir.predictions, format_predictions(task_data, predictions))
        summary.pop("best")  # scores of the selection
        summary.pop("held_out")
        return {
            "lr": self.tuning.train.lr,
            "seed": self.tuning.train.seed,
            "labels": len(self.train_examples),
            "steps": state.step,
            "epoch": self.steps_per_epoch,
            "best_step": early_stopping.best_step or 0,
            "course": [{"step": step, "dev": value} for step, value in early_stopping.scores],
            "scores": {
                split: self.compute_scores(getattr(parts, split), split_predictions)
                for split, split_predictions in predictions.items()
            },
            "trained": sum(
                parameter.numel()
                for name, parameter in self.adapted_model.trainable_parameters.items()
                if not name.startswith(PROJECTIONS)
            ),
            "parameters": count_parameters(self.model),
            "counts": cast(LengthCounts, config.to_dict(sum_counts(self.data.train))),
            "balance": get_type(task).scoring.count_labels(task, self.train_examples),
            "notes": [*self.notes],
            "memory": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
            "threshold": threshold,
            "forgetting": None if self.forgetting_meter is None else self.forgetting_meter.compare(),
            "summary": summary,
            "predictions": {headline: [_compact_prediction(prediction) for prediction in predictions[headline]]},
        }


def format_predictions(task_data: TaskData, predictions: Mapping[str, Sequence[Prediction]]) -> str:
    """Return the lines of predictions.jsonl."""
    lines: list[str] = []
    for split, split_predictions in predictions.items():
        examples: list[Example] = getattr(task_data.parts, split)
        tasks = find_tasks(task_data, examples)
        for number, (task, example, prediction) in enumerate(zip(tasks, examples, split_predictions, strict=True)):
            row = build_row(task, split, example.id or str(number), example, prediction)
            row |= {"task": task.name} if task_data.members else {}
            lines.append(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
    return "".join(lines)


def read_finished_trial(run_dir: RunDir) -> TrialFile | None:
    """Return the result of a finished trial, or None."""
    return config.read_record(TrialFile, run_dir.trial, CheckpointError) if run_dir.trial.is_file() else None


def hash_frozen_weights(adapted_model: AdaptedModel) -> str | None:
    """Return a hash of the frozen weights: names, shapes, and sampled values of each tensor; None without any."""
    trained_names, digest = adapted_model.trained_tensors.keys(), hashlib.sha256()
    if trained_names >= {name for name, _ in adapted_model.model.named_parameters()}:
        return None
    for name, tensor in sorted(collect_weights(adapted_model.model).items()):
        if name not in trained_names:
            digest.update(f"{name}{list(tensor.shape)}".encode() + sample_weight(tensor))
    return digest.hexdigest()


def _compact_prediction(prediction: Prediction) -> dict[str, Any]:
    """Return the fields of a prediction that metrics need."""
    values = {field.name: getattr(prediction, field.name) for field in fields(prediction)}
    return {name: value for name, value in values.items() if name not in UNSCORED_FIELDS and value not in (None, ())}
