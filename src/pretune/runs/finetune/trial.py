"""Training on a task with one seed, learning rate and training set size; resumes bit-equal.

    trial = prepare_trial(tuning, TrialContext(task_data=open_task(tuning.task), ranks=ranks))
    result = fit_trial(trial, run_dir, shutdown, resume=False)        # what trial.json holds; trial.model is trained

Under `torchrun` every rank holds the model and trains on its share of each step's examples. Each predicts its share of
dev, too, and gathers the others' predictions, so that all ranks make the same selection. Rank 0 alone writes files.
"""

import gc
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import torch

from pretune.adaptation.adapted import FlopsCounter, ModelWithHead
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
    AdaptedModel,
    TaskEncoders,
    add_teacher_logits,
    build_adapted_model,
    has_teacher_logits,
    load_base_model,
    sum_counts,
)
from pretune.runs.finetune.config import FinetuneConfig, RemainingWork, TrialOutlook, compute_eval_interval, count_steps
from pretune.runs.finetune.defaults import FULL_METHODS
from pretune.runs.finetune.features import (
    EncodedData,
    EncodingKey,
    FeatureFlops,
    can_cache,
    center_dropout,
    encode_features,
    fit_head,
    has_features,
)
from pretune.runs.finetune.forgetting import ForgettingMeter
from pretune.runs.finetune.task_data import TaskData, compute_scores, find_tasks
from pretune.tasks.example import Example, Prediction
from pretune.tasks.predict import answer_perplexity
from pretune.tasks.stream import MultiTaskStream, TaskStream
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTrial:
    """Adapted model and encoded examples of a trial, before its first step."""

    tuning: FinetuneConfig
    context: TrialContext
    adapted_model: AdaptedModel
    encoders: TaskEncoders
    train_examples: Sequence[Example]
    selection_examples: Sequence[Example]  # of dev, on which the best weights are selected
    data: EncodedData
    notes: Sequence[str]
    stream: TaskStream | MultiTaskStream
    steps_per_epoch: int
    outlook: TrialOutlook
    count_flops: FlopsCounter | DistillationFlops | FeatureFlops
    fingerprints: Mapping[str, str]
    forgetting_meter: ForgettingMeter | None

    @property
    def model(self) -> ModelWithHead:
        """The model with its head."""
        return self.adapted_model.model

    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """Predict examples: every rank its share, gathered on all ranks."""
        ranks, precision = self.context.ranks, self.tuning.train.resolve_precision(self.context.ranks.device)
        mine, start = examples[ranks.rank :: ranks.world], time.monotonic()
        try:
            items = self.data.selection if examples is self.selection_examples else None
            predictions = self.encoders.predict(self.model, mine, precision, items) if mine else []
        except NonFiniteError:  # the base was finite, so training diverged
            raise DivergedError("outputs of the fine-tuned model are not finite; decrease the learning rate") from None
        rank_predictions = ranks.gather_objects(predictions)
        self.outlook.add_predictions(len(examples), time.monotonic() - start)
        return [rank_predictions[place % ranks.world][place // ranks.world] for place in range(len(examples))]

    def compute_scores(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Return the official scores; for generation also the perplexity of the gold answers, on rank 0."""
        task_data, ranks = self.context.task_data, self.context.ranks
        scores = compute_scores(task_data, examples, predictions)
        if get_type(task_data.task).scoring.gold == "text" and not task_data.members and ranks.is_first:
            precision = self.tuning.train.resolve_precision(ranks.device)
            scores["perplexity"] = answer_perplexity(
                self.model, self.encoders.encoders[0], examples, precision=precision
            )
        return scores


def prepare_trial(tuning: FinetuneConfig, context: TrialContext) -> PreparedTrial:
    """Load and adapt the model and encode the examples; raises if something does not fit."""
    task_data, ranks, teacher = context.task_data, context.ranks, context.teacher
    if ranks.device.type == "cuda":
        gc.collect()  # NOTE: reference cycles may keep an earlier trial alive
        torch.cuda.init()  # type: ignore[no-untyped-call]  # NOTE: unused until here if the precision is set
        torch.cuda.reset_peak_memory_stats(ranks.device)
    train_examples = task_data.select_train(tuning.task.train_examples, tuning.task.split_seed)
    adapted_model = build_adapted_model(tuning, task_data.task, ranks, steps_per_epoch=1.0, teacher=teacher)
    encoders = TaskEncoders.from_model(tuning, task_data, adapted_model.model, train_examples)
    if adapted_model.distillation is not None and teacher is not None:
        encoders.check_teacher(adapted_model.model, adapted_model.distillation, teacher)
    base_hash, notes = hash_frozen_weights(adapted_model), encoders.find_notes(train_examples)
    selection_examples = _select_eval_examples(tuning, task_data, encoders)
    data, is_new = _encode(
        tuning, context, adapted_model, encoders, (train_examples, selection_examples), base_hash, notes
    )
    count_flops = _build_flops_counter(adapted_model, data, teacher, counts_body=is_new)
    _synchronize_weights(tuning, adapted_model, data, ranks)
    stream = encoders.build_stream(data.train, tuning, fixed_shape=ranks.device.type == "cuda")
    steps_per_epoch = len(stream.steps(0))
    outlook = _plan_steps(tuning, task_data, steps_per_epoch, len(selection_examples))
    for hook in adapted_model.unfreezing:
        hook.epoch, hook.steps = steps_per_epoch, outlook.steps  # NOTE: known only now, since encoding needs the model
    tuning.train.schedule.compute_factor(0, outlook.steps)  # raises if it does not fit
    return PreparedTrial(
        tuning=tuning,
        context=context,
        adapted_model=adapted_model,
        encoders=encoders,
        train_examples=train_examples,
        selection_examples=selection_examples,
        data=data,
        notes=notes,
        stream=stream,
        steps_per_epoch=steps_per_epoch,
        outlook=outlook,
        count_flops=count_flops,
        fingerprints=_compute_fingerprints(tuning, context, adapted_model, train_examples, base_hash),
        forgetting_meter=_finish_weights(tuning, context, adapted_model),
    )


def _encode(
    tuning: FinetuneConfig,
    context: TrialContext,
    adapted_model: AdaptedModel,
    encoders: TaskEncoders,
    examples: tuple[list[Example], list[Example]],  # for training and for model selection
    base_hash: str | None,
    notes: Sequence[str],
) -> tuple[EncodedData, bool]:
    """Return the encoded examples, and whether they are new.

    They are shared by trials with as many labels, and with features also of the same base. Notes are given once.
    """
    model, ranks, precision = adapted_model.model, context.ranks, tuning.train.resolve_precision(context.ranks.device)
    is_open = isinstance(get_tokenizer(model), OpenTokenizer)  # ids of new words are those of this model
    shared_data = {} if context.encoded_data is None or is_open else context.encoded_data
    caches_features = can_cache(adapted_model, tuning, context.task_data)
    key = (tuning.task.train_examples, base_hash if caches_features else None)
    is_new = key not in shared_data
    if is_new:
        items = encoders.encode(examples[0])
        if adapted_model.distillation is not None and context.teacher is not None:
            items = add_teacher_logits(items, context.teacher, adapted_model.distillation, precision)
        shared_data[key] = EncodedData(items)
        if caches_features:
            share = examples[1][ranks.rank :: ranks.world]
            shared_data[key] = encode_features(model, encoders.encoders[0], items[0], share, precision)
    for note in notes if len(shared_data) == 1 and context.encoded_data is not None and ranks.is_first else ():
        log.warn(note)
    return shared_data[key], is_new


def _synchronize_weights(tuning: FinetuneConfig, adapted_model: AdaptedModel, data: EncodedData, ranks: Ranks) -> None:
    """Fit the head by a linear probe if the run asks for it, and give all ranks the weights of rank 0."""
    if tuning.tune.head == "probe":
        seed, precision = tuning.train.seed, tuning.train.resolve_precision(ranks.device)
        mean = run_on_rank_zero(
            ranks, lambda: fit_head(adapted_model.model, data.train[0], seed=seed, precision=precision)
        )
        center_dropout(adapted_model.model, ranks.broadcast_object(mean))
    ranks.broadcast_tensors(adapted_model.trainable_parameters.values())


def _finish_weights(
    tuning: FinetuneConfig, context: TrialContext, adapted_model: AdaptedModel
) -> ForgettingMeter | None:
    """Round the frozen weights, or return the meter of forgetting, which compares the weights with the base's."""
    device = context.ranks.device
    precision = tuning.train.resolve_precision(device)
    if context.forgetting is None:
        round_frozen_weights(adapted_model.model.model, tuning.method, precision)
        return None
    base_model = load_base_model(replace(tuning.base, extra_layers=0), seed=tuning.train.seed)
    return ForgettingMeter(
        adapted_model.body, base_model, context.forgetting, Ranks(device), precision, tuning.method, tuning.base.path
    )


def _compute_fingerprints(
    tuning: FinetuneConfig,
    context: TrialContext,
    adapted_model: AdaptedModel,
    train_examples: list[Example],
    base_hash: str | None,
) -> dict[str, str]:
    """Return the hashes that a checkpoint must have to be resumed from."""
    examples = "".join(map(repr, [*train_examples, *context.task_data.parts.dev]))
    return {
        "config": tuning.sha256(),
        "data": hashlib.sha256(examples.encode("utf-8", "surrogatepass")).hexdigest(),
        "tokenizer": get_tokenizer(adapted_model.model).sha256,
        **({} if context.teacher is None else {"teacher": context.teacher.fingerprint}),
        **({} if base_hash is None else {"base": base_hash}),
    }


def _select_eval_examples(tuning: FinetuneConfig, task_data: TaskData, encoders: TaskEncoders) -> list[Example]:
    """Return the dev examples for model selection."""
    dev = task_data.parts.dev
    limit = tuning.train.eval_examples or (GENERATION_EVAL_EXAMPLES if encoders.is_generative else EVAL_EXAMPLES)
    if len(dev) <= limit:
        return dev
    return sample_subset(dev, limit, tuning.task.split_seed, task_data.find_groups(dev))


def _build_flops_counter(
    adapted_model: AdaptedModel, data: EncodedData, teacher: TaskTeacher | None, *, counts_body: bool
) -> FlopsCounter | DistillationFlops | FeatureFlops:
    if has_features(data.train[0]):
        return FeatureFlops(adapted_model.model, data.train[0], counts_body=counts_body)
    counter = FlopsCounter(adapted_model.model, lambda: sum(hook.num_unfrozen for hook in adapted_model.unfreezing))
    if adapted_model.distillation is None or teacher is None:
        return counter
    return teacher.count_flops(counter, is_cached=has_teacher_logits(data.train))


def _plan_steps(tuning: FinetuneConfig, task_data: TaskData, steps_per_epoch: int, eval_examples: int) -> TrialOutlook:
    """Return the length of a trial, and its evaluations."""
    is_parameter_efficient = config.get_kind(tuning.method) not in FULL_METHODS
    steps = count_steps(tuning.train, steps_per_epoch, is_parameter_efficient=is_parameter_efficient)
    parts = task_data.parts
    return TrialOutlook(
        steps=steps,
        eval_every=tuning.train.eval_every or compute_eval_interval(steps_per_epoch, steps),
        eval_examples=eval_examples,
        final_examples=len(parts.dev) + (len(parts.test) if task_data.headline_split == "test" else 0),
        batch=tuning.train.batch,
    )


def fit_trial(
    trial: PreparedTrial,
    run_dir: RunDir,
    shutdown: GracefulShutdown,
    *,
    resume: bool,
    lock: RunLock | None = None,
    remaining_work: RemainingWork = RemainingWork(),  # noqa: B008 (a frozen value)
) -> TrialFile:
    """Train from the start, or from the newest valid checkpoint if there is one; returns the same on all ranks.

    `lock` is the lock of the run, held by rank 0.
    """
    fit, adapted_model, flops, outlook = trial.tuning.train, trial.adapted_model, trial.count_flops, trial.outlook
    outlook.remaining_work = remaining_work
    task_data, ranks, distillation = trial.context.task_data, trial.context.ranks, adapted_model.distillation
    early_stopping = EarlyStopping(
        tensors=adapted_model.trained_tensors, patience=fit.patience, hooks=adapted_model.unfreezing
    )
    hooks: list[Hook] = [*adapted_model.unfreezing]
    if distillation is not None and distillation.weights.layer_share:
        hooks.append(LayerStageHook(distillation, outlook.steps))
    with Trainer(
        trained=TrainedModel(
            model=trial.model,
            objective=distillation or trial.model.spec,
            spec=trial.model.model.spec,
            count_flops=flops,
            groups=adapted_model.groups,
            tensor_names=frozenset(adapted_model.trained_tensors) if "base" in trial.fingerprints else None,
        ),
        batches=TrainingBatches(
            phases=[TrainingPhase(batches=trial.stream, shape=trial.stream.shape)],
            workers=fit.workers or 0,  # NOTE: worker startup takes longer than many runs
        ),
        clock=TrainingClock(schedule=fit.schedule, steps=outlook.steps),
        config=fit,
        output=RunOutput(run_dir=run_dir, fingerprints=trial.fingerprints, settings=trial.tuning.to_dict(), lock=lock),
        process=RunProcess(ranks, shutdown),
        evaluation=Evaluation(
            evaluate=lambda loop: compute_scores(
                task_data, trial.selection_examples, trial.predict(trial.selection_examples)
            ),
            every=outlook.eval_every,
            compute_loss=lambda metrics: -next(iter(metrics.values())),
            at_start=False,  # a random head gives no information
            early_stopping=early_stopping,
            overhead=outlook,
        ),
        hooks=hooks,
    ) as trainer:
        state = trainer.fit(resume=resume)
        detach_teacher(trial.model)
        summary = trainer.summarize()
        if isinstance(flops, DistillationFlops):
            summary["teacher_flops"] = flops.teacher_share * summary["cost"]["flops"]
            log.info(flops.describe(summary["cost"]["flops"]))
        result: TrialFile = ranks.broadcast_object(_evaluate_trial(trial, run_dir, state, summary, early_stopping))
        return result


def _evaluate_trial(
    trial: PreparedTrial, run_dir: RunDir, state: TrainState, summary: RunSummaryRecord, early_stopping: EarlyStopping
) -> TrialFile:
    """Evaluate the best weights on all of dev and test, and write the predictions."""
    task_data, adapted_model, device = trial.context.task_data, trial.adapted_model, trial.context.ranks.device
    task, parts, headline = task_data.task, task_data.parts, task_data.headline_split
    predictions = {"dev": trial.predict(parts.dev)}
    if headline == "test":
        predictions["test"] = trial.predict(parts.test)
    threshold, outputs = None, get_type(task).outputs
    if not trial.encoders.is_generative:  # generative models answer in words
        threshold = outputs.find_threshold(task, parts.dev, predictions["dev"])
    if threshold is not None:
        predictions = {
            split: outputs.apply_threshold(task, split_predictions, threshold)
            for split, split_predictions in predictions.items()
        }
    if trial.context.ranks.is_first:
        io.atomic_write(run_dir.predictions, format_predictions(task_data, predictions))
    summary.pop("best")  # scores of the selection
    summary.pop("held_out")
    return {
        "lr": trial.tuning.train.lr,
        "seed": trial.tuning.train.seed,
        "labels": len(trial.train_examples),
        "steps": state.step,
        "epoch": trial.steps_per_epoch,
        "best_step": early_stopping.best_step or 0,
        "course": [{"step": step, "dev": value} for step, value in early_stopping.scores],
        "scores": {
            split: trial.compute_scores(getattr(parts, split), split_predictions)
            for split, split_predictions in predictions.items()
        },
        "trained": sum(
            parameter.numel()
            for name, parameter in adapted_model.trainable_parameters.items()
            if not name.startswith(PROJECTIONS)
        ),
        "parameters": count_parameters(trial.model),
        "counts": cast(LengthCounts, config.to_dict(sum_counts(trial.data.train))),
        "balance": get_type(task).scoring.count_labels(task, trial.train_examples),
        "notes": [*trial.notes],
        "memory": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        "threshold": threshold,
        "forgetting": None if trial.forgetting_meter is None else trial.forgetting_meter.compare(),
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
