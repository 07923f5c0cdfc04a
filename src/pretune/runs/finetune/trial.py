"""One training on a task: a seed, a learning rate, so many labels. It goes on where it was killed, bit for bit.

Under `torchrun` every rank has the whole model and learns from its share of each step's examples. Each answers its
share of dev, too, and hears what the others said, so that all of them choose alike. The first one alone writes.
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
from pretune.training.loss_module import ModelWithLoss
from pretune.training.records import TrialFile
from pretune.training.run_logger import RunLogger
from pretune.training.train_state import TrainState
from pretune.training.validation import ValidationHook, warn_of_few_evaluations

Facts = dict[str, Any]
TRIAL_FILE = "trial.json"
PREDICTIONS_FILE = "predictions.jsonl"
EVAL_EXAMPLES, GENERATION_EVAL_EXAMPLES = 2000, 200
"""Examples of dev that choices are made on; fewer where the answer is text, which takes long to write."""


class FinetuneTrial:
    """Everything is opened and checked, then it is trained."""

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
            gc.collect()  # NOTE: a trial before may be held by cycles, which Python has no reason to look for
            torch.cuda.init()  # type: ignore[no-untyped-call]  # NOTE: nothing has used it where the precision is given
            torch.cuda.reset_peak_memory_stats(ranks.device)
        self.adapted_model = build_adapted_model(tuning, self.task, ranks, steps_per_epoch=1.0)
        self.model = self.adapted_model.model
        self.encoders = TaskEncoders.from_model(tuning, task_data, self.model, self.train_examples)
        known = {} if encoded_items is None else encoded_items  # of trials before, by the number of labels
        if tuning.task.train_examples not in known:
            known[tuning.task.train_examples] = self.encoders.encode(self.train_examples)
        self.notes = self.encoders.find_unknown_tokens(self.train_examples)
        for note in self.notes if len(known) == 1 and encoded_items is not None and ranks.is_first else ():
            log.warn(note)
        self.items = known[tuning.task.train_examples]
        if tuning.tune.head == "probe":
            fitted = lambda: fit_head(self.model, self.items[0], seed=fit.seed, precision=self.precision)  # noqa: E731
            center_dropout(self.model, ranks.broadcast_object(run_on_rank_zero(ranks, fitted)))
        ranks.broadcast_tensors(self.adapted_model.trainable_parameters.values())
        self.stream = self.encoders.build_stream(self.items, tuning, fixed=ranks.device.type == "cuda")
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
            )  # NOTE: known only now: examples are encoded for a model
        fit.schedule.compute_factor(0, self.steps)  # whether it fits
        tokenizer, lone = get_tokenizer(self.model), Ranks(ranks.device)
        self.forgetting_meter = None
        if forgetting is not None:
            plain = load_base_model(replace(tuning.base, extra_layers=0), seed=fit.seed)
            self.forgetting_meter = ForgettingMeter(
                self.adapted_model.body, plain, forgetting, lone, self.precision, tuning.method
            )
        self.fingerprints = {
            "config": tuning.sha256(),
            "data": hash_examples([*self.train_examples, *task_data.parts.dev]),
            "tokenizer": tokenizer.sha256,
        }
        trained = frozenset(self.adapted_model.trainable_parameters)
        every = trained >= {name for name, _ in self.model.named_parameters()}
        self.trained_names = None if every else trained  # what checkpoints hold of the model: the rest is the base's
        if not every:
            self.fingerprints["base"] = hash_frozen_weights(self.model, trained)

    def run(self, lock: RunLock | None, *, resume: bool) -> Facts:
        """Train from the beginning, or from the newest checkpoint that is whole; the same facts on all ranks.

        `lock` is that of the directory, where the first rank has it already.
        """
        with contextlib.ExitStack() as stack:
            store = None
            if self.ranks.is_first:
                held = lock or stack.enter_context(RunLock(self.run_dir, on_warning=log.warn))
                if self.tuning.train.max_checkpoints:
                    store = CheckpointManager(
                        self.run_dir / CHECKPOINTS_DIR,
                        max_checkpoints=self.tuning.train.max_checkpoints,
                        on_warning=log.warn,
                    )
                    store.remove_unfinished(held)
            facts: Facts = self.ranks.broadcast_object(self._train(stack, store, resume))
            return facts

    def _train(self, stack: contextlib.ExitStack, store: CheckpointManager | None, resume: bool) -> Facts:
        fit = self.tuning.train
        trainee = ModelWithLoss(self.model, self.model.spec).train()
        optimizer = fit.optimizer.build(self.adapted_model.groups)
        judging = EarlyStopping(
            parameters=self.adapted_model.trainable_parameters,
            unfreezing=self.adapted_model.unfreezing,
            patience=fit.patience,
        )
        found: Checkpoint | None = self.ranks.broadcast_object(
            store.find_latest(self.fingerprints) if resume and store else None
        )
        state = TrainState() if found is None else restore_checkpoint(found, self.model, optimizer, self.trained_names)
        if found is not None:
            judging.restore(found)
        if fit.compile:
            self.model.compile(dynamic=False)
        loop = Loop(
            module=trainee,
            optimizer=optimizer,
            batches=DataLoader(self.stream, stop=0),
            state=state,
            ranks=self.ranks,
            lr_factor=lambda state: fit.schedule.compute_factor(state.step, self.steps),
            should_stop=lambda state: state.step >= self.steps or judging.should_stop(),
            seed=fit.seed,
            clip=fit.clip,
            precision=self.precision,
            start_time=time.monotonic() - state.elapsed,
        )
        journal = stack.enter_context(self._build_logger(loop, is_resumed=found is not None))
        saver = CheckpointHook(
            store,
            self.fingerprints,
            every=fit.checkpoint_every,
            on_save=journal.flush,
            extra_groups=judging.state_dict,
            tensor_names=self.trained_names,
        )

        def told(loop: Loop, found: dict[str, float]) -> None:
            judging.record(loop, found)
            journal.log_evaluation(loop, found)
            journal.observe(loop, -judging.scores[-1][1])

        every = self.eval_every
        evaluate = ValidationHook(skip_when_stopping(self._evaluate), every, told, on_abort=self.shutdown.stop)
        warn_of_few_evaluations(fit.optimizer, -(-self.steps // every), journal.warn)
        watch = DivergenceGuard(journal.warn)
        loop.hooks = [
            watch,
            journal,
            _DelayedEvaluation(evaluate),
            *self.adapted_model.unfreezing,
            saver,
            self.shutdown,
        ]
        self.shutdown.arm(loop, lambda loop: saver.save(loop, wait=True))
        if found is not None:
            saver.last_step, saver.last_time = state.step, state.elapsed
            undone: list[Hook] = [
                _DelayedEvaluation(evaluate),
                *self.adapted_model.unfreezing,
            ]  # when it was asked to stop
            for hook in undone:
                hook(loop, [])
        saver.save(loop)
        self._run_steps(loop)
        evaluate.run(loop)
        saver.save(loop, wait=True)
        loop.stop_signal = self.ranks.max(loop.stop_signal)
        self.shutdown.disarm()
        state.elapsed = time.monotonic() - loop.start_time
        judging.restore_best_weights()
        loop.hooks, loop.graph_runner = (
            (),
            None,
        )  # which hold one another, and memory of the device, until they are found
        return self._finish(loop, journal, judging)

    def _run_steps(self, loop: Loop) -> None:
        fit = self.tuning.train
        running, state, shape, spec = fit.to_train_config(), loop.state, self.stream.shape, self.model.model.spec
        state.micro = count_micro_batches(
            shape, spec, running, self.ranks, self.precision, min_micro_batches=state.least
        )
        loop.graph_runner = build_cuda_graph(shape, spec, running, self.ranks, loop.module, micro=state.micro)
        feed = DataLoader(
            self.stream,
            start=state.step,
            stop=self.steps,
            micro=state.micro,
            rank=self.ranks.rank,
            world=self.ranks.world,
            workers=fit.workers or 0,  # NOTE: processes take longer to start than many a run lasts
            device=self.ranks.device,
        )
        with feed:
            loop.batches = feed
            loop.run()
            state.waited += feed.wait_seconds

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
        """Examples of dev that choices are made on, at most."""
        return self.tuning.train.eval_examples or (
            GENERATION_EVAL_EXAMPLES if self.encoders.is_generative else EVAL_EXAMPLES
        )

    def _evaluate(self) -> dict[str, float]:
        """The score on dev, or on as much of it as choices are made on."""
        dev = self.task_data.parts.dev
        most = self._limit_eval_examples()
        groups = self.task_data.find_groups(dev)
        some = sample_subset(dev, most, self.tuning.task.split_seed, groups) if len(dev) > most else dev
        return compute_scores(self.task_data, some, self._predict(some))

    def _predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """What the model says of examples: every rank is asked about its share, and all know every answer."""
        rank, world = self.ranks.rank, self.ranks.world
        mine, begun = examples[rank::world], time.monotonic()
        try:
            predictions = self.encoders.predict(self.model, mine, self.precision) if mine else []
        except NonFiniteError:  # the base was finite: training made it so
            raise DivergedError("the fine-tuned model's outputs are not finite; lower the learning rate") from None
        said = self.ranks.gather_objects(predictions)
        self.outlook.add_predictions(len(examples), time.monotonic() - begun)
        return [said[at % world][at // world] for at in range(len(examples))]

    def _finish(self, loop: Loop, logger: RunLogger, early_stopping: EarlyStopping) -> Facts:
        """Judge the best weights on all of dev and test, and write what they said."""
        parts, summary = self.task_data.parts, logger.summarize(loop)
        said = {"dev": self._predict(parts.dev)}
        if self.task_data.headline_split == "test":
            said["test"] = self._predict(parts.test)
        threshold = None
        if self.task.metrics[0] == "squad2" and not self.encoders.is_generative:  # who writes says it in words
            threshold = find_no_answer_threshold(parts.dev, said["dev"])
            said = {split: apply_threshold(some, threshold) for split, some in said.items()}
        if self.ranks.is_first:
            self._write_predictions(said)
        headline = self.task_data.headline_split
        return {
            "lr": self.tuning.train.lr,
            "seed": self.tuning.train.seed,
            "labels": len(self.train_examples),
            "steps": loop.state.step,
            "epoch": self.steps_per_epoch,
            "best_step": early_stopping.best_step,
            "course": [{"step": step, "dev": value} for step, value in early_stopping.scores],
            "scores": {split: self._compute_scores(getattr(parts, split), some) for split, some in said.items()},
            "trained": sum(parameter.numel() for parameter in self.adapted_model.trainable_parameters.values()),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "counts": config.to_dict(sum_counts(self.items)),
            "balance": count_labels(self.task, self.train_examples),
            "notes": self.notes,
            "memory": _measure_memory(self.ranks),
            "threshold": threshold,
            "forgetting": None if self.forgetting_meter is None else self.forgetting_meter.compare(),
            "summary": {name: value for name, value in summary.items() if name not in ("best", "held_out")},
            "said": {headline: [_compact_prediction(one) for one in said[headline]]},
        }

    def _compute_scores(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """The official score; of written answers also how likely the right ones are, which the first rank finds out."""
        found = compute_scores(self.task_data, examples, predictions)
        if self.task.kind == "generation" and not self.task_data.members and self.ranks.is_first:
            encoder = self.encoders.encoders[0]
            found["perplexity"] = answer_perplexity(self.model, encoder, examples, precision=self.precision)
        return found

    def _write_predictions(self, predictions: Mapping[str, Sequence[Prediction]]) -> None:
        lines: list[Facts] = []
        for split, some in predictions.items():
            examples: list[Example] = getattr(self.task_data.parts, split)
            tasks = find_tasks(self.task_data, examples)
            for number, (task, example, one) in enumerate(zip(tasks, examples, some, strict=True)):
                name = {"task": task.name} if self.task_data.members else {}
                lines.append({**build_row(split, example.id or str(number), task, example, one), **name})
        text = "".join(json.dumps(one, ensure_ascii=False, allow_nan=False) + "\n" for one in lines)
        io.atomic_write(self.run_dir / PREDICTIONS_FILE, text)


class _DelayedEvaluation:
    """Evaluates after steps, and not before the first: a head that was just drawn has nothing to say."""

    def __init__(self, evaluate: ValidationHook) -> None:
        self.evaluate = evaluate

    def __call__(self, loop: Loop, metrics: Sequence[Any]) -> None:
        if loop.state.step:
            self.evaluate(loop, metrics)


def read_finished_trial(run_dir: Path) -> dict[str, Any] | None:
    """What is known of a trial that has come to its end."""
    if not (run_dir / TRIAL_FILE).is_file():
        return None
    return {**config.read_record(TrialFile, run_dir / TRIAL_FILE, CheckpointError)}


def hash_examples(examples: Sequence[Example]) -> str:
    """A hash of what examples say."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(example).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def hash_frozen_weights(model: nn.Module, trained_names: Collection[str]) -> str:
    """A hash of what is not trained: names, shapes, and some numbers of each tensor."""
    digest = hashlib.sha256()
    for name, tensor in sorted(collect_weights(model).items()):
        if name not in trained_names:
            digest.update(f"{name}{list(tensor.shape)}".encode() + sample_weight(tensor))
    return digest.hexdigest()


def _compact_prediction(prediction: Prediction) -> Facts:
    """As much of a prediction as metrics ask for."""
    found = {
        "label": prediction.label,
        "value": prediction.value,
        "tags": prediction.tags,
        "text": prediction.text,
        "scores": prediction.scores,
    }
    return {name: value for name, value in found.items() if value is not None and value != ()}


def _measure_memory(ranks: Ranks) -> int | None:
    """The most bytes that a GPU held."""
    return torch.cuda.max_memory_allocated(ranks.device) if ranks.device.type == "cuda" else None
