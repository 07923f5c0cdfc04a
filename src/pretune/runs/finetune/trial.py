"""Training on a task with one seed, learning rate and training set size; resumes bit-equal.

Under `torchrun` every rank holds the model and trains on its share of each step's examples. Each predicts its share of
dev, too, and gathers the others' predictions, so that all ranks make the same selection. Rank 0 alone writes files.
"""

import contextlib
import gc
import hashlib
import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pretune.adaptation.finetune_flops import FlopsCounter
from pretune.adaptation.peft.base import sample_weight
from pretune.core import config, io, log
from pretune.core.errors import CheckpointError, DivergedError, NonFiniteError
from pretune.core.migration import migrate_trial
from pretune.inference.text_model import get_tokenizer
from pretune.runs.finetune.adapted_model import build_adapted_model, load_base_model
from pretune.runs.finetune.build_config import FULL_METHODS
from pretune.runs.finetune.config import FinetuneConfig
from pretune.runs.finetune.default_steps import compute_eval_interval, count_steps
from pretune.runs.finetune.early_stopping import EarlyStopping, skip_when_stopping
from pretune.runs.finetune.forgetting import ForgettingMeter
from pretune.runs.finetune.prediction_rows import build_row
from pretune.runs.finetune.probe_init import center_dropout, fit_head
from pretune.runs.finetune.task_data import TaskData, compute_scores, count_labels, find_tasks
from pretune.runs.finetune.task_encoders import TaskEncoders, sum_counts
from pretune.runs.finetune.time_estimate import RemainingWork, TrialOutlook
from pretune.runs.initial_model import resolve_precision
from pretune.runs.micro_batch import build_cuda_graph, count_micro_batches
from pretune.runs.pretrain_run import CHECKPOINTS_DIR
from pretune.tasks.decode import Prediction, answer_perplexity, apply_threshold, find_no_answer_threshold
from pretune.tasks.encode import Items
from pretune.tasks.example import Example
from pretune.tasks.splits import sample_subset
from pretune.training.checkpointing import CheckpointHook, collect_weights, restore_checkpoint
from pretune.training.checkpoints import Checkpoint, CheckpointManager, RunLock
from pretune.training.dataloader import DataLoader
from pretune.training.distributed import Ranks, run_on_rank_zero
from pretune.training.guards import DivergenceGuard, GracefulShutdown
from pretune.training.loop import Hook, Loop
from pretune.training.records import TrialFile
from pretune.training.run_logger import RunLogger
from pretune.training.step import ModelWithLoss, TrainState
from pretune.training.validation import ValidationHook, warn_of_few_evaluations

Facts = dict[str, Any]
TRIAL_FILE = "trial.json"
PREDICTIONS_FILE = "predictions.jsonl"
EVAL_EXAMPLES, GENERATION_EVAL_EXAMPLES = 2000, 200
"""Number of dev examples for model selection; fewer where answers are generated, which is slow."""


class FinetuneTrial:
    """Trial: opens and checks everything, then trains."""

    def __init__(
        self,
        tuning: FinetuneConfig,
        task_data: TaskData,
        run_dir: Path,
        ranks: Ranks,
        shutdown: GracefulShutdown,
        *,
        encoded_items: dict[int | None, tuple[Items, ...]] | None = None,
        forgetting: str | None = None,
        remaining_work: RemainingWork = RemainingWork(),  # noqa: B008 (a frozen value)
    ) -> None:
        self.tuning, self.task_data, self.run_dir, self.ranks, self.shutdown = (
            tuning,
            task_data,
            run_dir,
            ranks,
            shutdown,
        )
        self.task, fit = task_data.task, tuning.train
        self.train_examples = task_data.select_train(tuning.task.train_examples, tuning.task.split_seed)
        self.precision = resolve_precision(fit.to_train_config(), ranks)
        if ranks.device.type == "cuda":
            gc.collect()  # NOTE: reference cycles may keep an earlier trial alive
            torch.cuda.init()  # type: ignore[no-untyped-call]  # NOTE: unused until here if the precision is set
            torch.cuda.reset_peak_memory_stats(ranks.device)
        self.adapted_model = build_adapted_model(tuning, self.task, ranks, steps_per_epoch=1.0)
        self.model = self.adapted_model.model
        self.encoders = TaskEncoders.from_model(tuning, task_data, self.model, self.train_examples)
        items_by_labels = {} if encoded_items is None else encoded_items  # shared by trials with as many labels
        if tuning.task.train_examples not in items_by_labels:
            items_by_labels[tuning.task.train_examples] = self.encoders.encode(self.train_examples)
        self.notes = self.encoders.find_unknown_tokens(self.train_examples)
        for note in self.notes if len(items_by_labels) == 1 and encoded_items is not None and ranks.is_first else ():
            log.warn(note)
        self.items = items_by_labels[tuning.task.train_examples]
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
                self.adapted_model.body, base_model, forgetting, lone, self.precision, tuning.method
            )
        self.fingerprints = {
            "config": tuning.sha256(),
            "data": hash_examples([*self.train_examples, *task_data.parts.dev]),
            "tokenizer": tokenizer.sha256,
        }
        trainable_names = frozenset(self.adapted_model.trainable_parameters)
        trains_everything = trainable_names >= {name for name, _ in self.model.named_parameters()}
        self.trained_names = (
            None if trains_everything else trainable_names
        )  # stored in checkpoints; the rest is the base's
        if not trains_everything:
            self.fingerprints["base"] = hash_frozen_weights(self.model, trainable_names)

    def run(self, lock: RunLock | None, *, resume: bool) -> Facts:
        """Train from the start, or from the newest valid checkpoint; returns the same facts on all ranks.

        `lock` is the lock of the directory, if rank 0 holds it already.
        """
        with contextlib.ExitStack() as stack:
            store = None
            if self.ranks.is_first:
                run_lock = lock or stack.enter_context(RunLock(self.run_dir, on_warning=log.warn))
                if self.tuning.train.max_checkpoints:
                    store = CheckpointManager(
                        self.run_dir / CHECKPOINTS_DIR,
                        max_checkpoints=self.tuning.train.max_checkpoints,
                        on_warning=log.warn,
                    )
                    store.remove_unfinished(run_lock)
            facts: Facts = self.ranks.broadcast_object(self._train(stack, store, resume))
            return facts

    def _train(self, stack: contextlib.ExitStack, store: CheckpointManager | None, resume: bool) -> Facts:
        fit = self.tuning.train
        loss_module = ModelWithLoss(self.model, self.model.spec).train()
        optimizer = fit.optimizer.build(self.adapted_model.groups)
        early_stopping = EarlyStopping(
            parameters=self.adapted_model.trainable_parameters,
            unfreezing=self.adapted_model.unfreezing,
            patience=fit.patience,
        )
        latest: Checkpoint | None = self.ranks.broadcast_object(
            store.find_latest(self.fingerprints) if resume and store else None
        )
        state = (
            TrainState() if latest is None else restore_checkpoint(latest, self.model, optimizer, self.trained_names)
        )
        if latest is not None:
            early_stopping.restore(latest)
        if fit.compile:
            self.model.compile(dynamic=False)
        loop = Loop(
            module=loss_module,
            optimizer=optimizer,
            batches=DataLoader(self.stream, stop=0),
            state=state,
            ranks=self.ranks,
            lr_factor=lambda state: fit.schedule.compute_factor(state.step, self.steps),
            should_stop=lambda state: state.step >= self.steps or early_stopping.should_stop(),
            seed=fit.seed,
            clip=fit.clip,
            precision=self.precision,
            start_time=time.monotonic() - state.elapsed_seconds,
        )
        logger = stack.enter_context(self._build_logger(loop, is_resumed=latest is not None))
        saver = CheckpointHook(
            store,
            self.fingerprints,
            every=fit.checkpoint_every,
            on_save=logger.flush,
            extra_groups=early_stopping.state_dict,
            tensor_names=self.trained_names,
        )

        def record_evaluation(loop: Loop, metrics: dict[str, float]) -> None:
            early_stopping.record(loop, metrics)
            logger.log_evaluation(loop, metrics)
            logger.observe(loop, -early_stopping.scores[-1][1])

        every = self.eval_every
        evaluate = ValidationHook(
            skip_when_stopping(self._evaluate), every, record_evaluation, on_abort=self.shutdown.stop
        )
        warn_of_few_evaluations(fit.optimizer, -(-self.steps // every), logger.warn)
        watch = DivergenceGuard(logger.warn)
        loop.hooks = [
            watch,
            logger,
            _DelayedEvaluation(evaluate),
            *self.adapted_model.unfreezing,
            saver,
            self.shutdown,
        ]
        self.shutdown.arm(loop, lambda loop: saver.save(loop, wait=True))
        if latest is not None:
            saver.last_step, saver.last_time = state.step, state.elapsed_seconds
            undone: list[Hook] = [
                _DelayedEvaluation(evaluate),
                *self.adapted_model.unfreezing,
            ]  # skipped when the run was stopped
            for hook in undone:
                hook(loop, [])
        saver.save(loop)
        self._run_steps(loop)
        evaluate.run(loop)
        saver.save(loop, wait=True)
        loop.stop_signal = self.ranks.max(loop.stop_signal)
        self.shutdown.disarm()
        state.elapsed_seconds = time.monotonic() - loop.start_time
        early_stopping.restore_best_weights()
        loop.hooks, loop.graph_runner = (
            (),
            None,
        )  # reference cycles that keep device memory
        return self._finish(loop, logger, early_stopping)

    def _run_steps(self, loop: Loop) -> None:
        fit = self.tuning.train
        running, state, shape, spec = fit.to_train_config(), loop.state, self.stream.shape, self.model.model.spec
        state.micro = count_micro_batches(
            shape, spec, running, self.ranks, self.precision, min_micro_batches=state.min_micro
        )
        loop.graph_runner = build_cuda_graph(shape, spec, running, self.ranks, loop.module, micro=state.micro)
        feed = DataLoader(
            self.stream,
            start=state.step,
            stop=self.steps,
            micro=state.micro,
            rank=self.ranks.rank,
            world=self.ranks.world,
            workers=fit.workers or 0,  # NOTE: worker startup takes longer than many runs
            device=self.ranks.device,
        )
        with feed:
            loop.batches = feed
            loop.run()
            state.data_wait += feed.wait_seconds

    def _build_logger(self, loop: Loop, *, is_resumed: bool) -> RunLogger:
        fit = self.tuning.train
        return RunLogger(
            self.run_dir,
            title=self.run_dir.name,
            models=FlopsCounter(self.model, lambda: sum(hook.num_unfrozen for hook in self.adapted_model.unfreezing)),
            loop=loop,
            is_resumed=is_resumed,
            total=self.steps,
            budget=None,
            every=fit.log_every,
            trackers=fit.trackers,
            cost_rates=fit.cost_rates,
            settings=self.tuning.to_dict(),
            overhead=self.outlook,
        )

    def _limit_eval_examples(self) -> int:
        """Return the maximum number of dev examples for model selection."""
        return self.tuning.train.eval_examples or (
            GENERATION_EVAL_EXAMPLES if self.encoders.is_generative else EVAL_EXAMPLES
        )

    def _evaluate(self) -> dict[str, float]:
        """Return the scores on dev, or on a subset of it."""
        dev = self.task_data.parts.dev
        max_examples = self._limit_eval_examples()
        groups = self.task_data.find_groups(dev)
        subset = (
            sample_subset(dev, max_examples, self.tuning.task.split_seed, groups) if len(dev) > max_examples else dev
        )
        return compute_scores(self.task_data, subset, self._predict(subset))

    def _predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """Predict examples: every rank its share, gathered on all ranks."""
        rank, world = self.ranks.rank, self.ranks.world
        mine, start = examples[rank::world], time.monotonic()
        try:
            predictions = self.encoders.predict(self.model, mine, self.precision) if mine else []
        except NonFiniteError:  # the base was finite, so training diverged
            raise DivergedError("outputs of the fine-tuned model are not finite; decrease the learning rate") from None
        rank_predictions = self.ranks.gather_objects(predictions)
        self.outlook.add_predictions(len(examples), time.monotonic() - start)
        return [rank_predictions[place % world][place // world] for place in range(len(examples))]

    def _finish(self, loop: Loop, logger: RunLogger, early_stopping: EarlyStopping) -> Facts:
        """Evaluate the best weights on all of dev and test, and write the predictions."""
        parts, summary = self.task_data.parts, logger.summarize(loop)
        predictions = {"dev": self._predict(parts.dev)}
        if self.task_data.headline_split == "test":
            predictions["test"] = self._predict(parts.test)
        threshold = None
        if self.task.metrics[0] == "squad2" and not self.encoders.is_generative:  # generative models answer in words
            threshold = find_no_answer_threshold(parts.dev, predictions["dev"])
            predictions = {
                split: apply_threshold(split_predictions, threshold) for split, split_predictions in predictions.items()
            }
        if self.ranks.is_first:
            self._write_predictions(predictions)
        headline = self.task_data.headline_split
        return {
            "lr": self.tuning.train.lr,
            "seed": self.tuning.train.seed,
            "labels": len(self.train_examples),
            "steps": loop.state.step,
            "epoch": self.steps_per_epoch,
            "best_step": early_stopping.best_step,
            "course": [{"step": step, "dev": value} for step, value in early_stopping.scores],
            "scores": {
                split: self._compute_scores(getattr(parts, split), split_predictions)
                for split, split_predictions in predictions.items()
            },
            "trained": sum(parameter.numel() for parameter in self.adapted_model.trainable_parameters.values()),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "counts": config.to_dict(sum_counts(self.items)),
            "balance": count_labels(self.task, self.train_examples),
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
        if self.task.kind == "generation" and not self.task_data.members and self.ranks.is_first:
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
                lines.append({**build_row(split, example.id or str(number), task, example, prediction), **name})
        text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
        io.atomic_write(self.run_dir / PREDICTIONS_FILE, text)


class _DelayedEvaluation:
    """Evaluation after steps but not before the first, when a random head gives no information."""

    def __init__(self, evaluate: ValidationHook) -> None:
        self.evaluate = evaluate

    def __call__(self, loop: Loop, metrics: Sequence[Any]) -> None:
        if loop.state.step:
            self.evaluate(loop, metrics)


def read_finished_trial(run_dir: Path) -> dict[str, Any] | None:
    """Return the facts of a finished trial, or None."""
    file = run_dir / TRIAL_FILE
    if not file.is_file():
        return None
    facts = migrate_trial(io.read_json(file, CheckpointError))
    return {**config.check_record(TrialFile, facts, CheckpointError, str(file))}


def hash_examples(examples: Sequence[Example]) -> str:
    """Return a hash of the examples."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(example).encode("utf-8", "surrogatepass"))
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
    fields = {
        "label": prediction.label,
        "value": prediction.value,
        "tags": prediction.tags,
        "text": prediction.text,
        "scores": prediction.scores,
    }
    return {name: value for name, value in fields.items() if value is not None and value != ()}


def _measure_memory(ranks: Ranks) -> int | None:
    """Return the peak memory of the GPU in bytes."""
    return torch.cuda.max_memory_allocated(ranks.device) if ranks.device.type == "cuda" else None
