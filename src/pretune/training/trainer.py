"""Trainer of every kind of run: pre-training, fine-tuning and embedding training build its parts and write its results.

    with Trainer(
        trained=TrainedModel(model=model, objective=objective, …), batches=TrainingBatches(phases=[…]),
        clock=TrainingClock(schedule=schedule, steps=1000), config=config, output=RunOutput(run_dir=run_dir, …),
        process=RunProcess(ranks, shutdown), evaluation=Evaluation(evaluate=…, every=100, …),
    ) as trainer:
        state = trainer.fit(resume=resume)
        summary = trainer.summarize()
        …                                        # results, written while the run is still locked

The trainer locks the directory, restores the newest valid checkpoint, trains phase by phase, evaluates, saves, logs,
and stops on signals.
"""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from torch import nn
from torch.optim import Optimizer

from pretune.core import io, log
from pretune.core.errors import DataError
from pretune.core.log import format_count
from pretune.core.run_dir import RunDir, RunLock
from pretune.data.plan import BatchShape
from pretune.models.spec import Model
from pretune.training.batch_transfer import BatchSource, BatchStats
from pretune.training.checkpoints import Checkpoint
from pretune.training.checkpoints.manager import (
    CheckpointHook,
    CheckpointManager,
    collect_weights,
    restore_checkpoint,
    restore_stream_state,
)
from pretune.training.clock import TrainingClock, estimate_reserve
from pretune.training.config import TrainConfig
from pretune.training.cost import find_peak_flops
from pretune.training.cuda_graph import build_cuda_graph
from pretune.training.dataloader import DataLoader
from pretune.training.distributed import Parallel, Ranks, run_on_rank_zero
from pretune.training.loop import DivergenceGuard, GracefulShutdown, Hook, Loop
from pretune.training.optim import ParameterGroup, build_parameter_groups, use_averages
from pretune.training.progress import Progress
from pretune.training.records import RunSummaryRecord
from pretune.training.run_logger import RunLogger, read_metrics
from pretune.training.step import ModelWithLoss, TrainingObjective, TrainState, count_micro_batches
from pretune.training.validation import (
    EarlyStopping,
    Evaluation,
    LearningCheck,
    ValidationHook,
    warn_of_few_evaluations,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """Model of a run, and how it is trained."""

    model: nn.Module
    objective: TrainingObjective
    spec: Model  # of the model, for the memory of micro-batches
    count_flops: Callable[[BatchStats], float]
    groups: Sequence[ParameterGroup] | None = None  # None: those of the model
    parallel: Parallel | None = None  # wrapper of several ranks; None: gradients are averaged after the backward pass
    tensor_names: frozenset[str] | None = None  # weights in checkpoints; None: all
    memory: int = 0  # tokens of attention's memory, if the batches are windows of contiguous streams


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPhase:
    """Part of a run with its own batches."""

    batches: BatchSource  # by step of the phase
    shape: BatchShape | None = None  # of every batch; None: batches are not split into micro-batches
    length: int = 0  # of sequences, for the log
    is_sampled: bool = False  # by the model itself: no batch is made ahead of its step


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatches:
    """Batches of a run, phase by phase."""

    phases: Sequence[TrainingPhase]
    workers: int = 0
    find_samples: Callable[[TrainState, int], Sequence[int]] | None = None  # sample ids of a step, for warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutput:
    """Directory of a run, and the identity of its settings and data."""

    run_dir: RunDir
    fingerprints: Mapping[str, str]  # of settings and data; a checkpoint with others is not restored
    settings: Mapping[str, object]  # plain form of all settings, for trackers
    write_settings: Callable[[], None] = lambda: None  # called on rank 0 before the first step of a new run
    lock: RunLock | None = None  # of the caller, if rank 0 holds one already


@dataclass(frozen=True, slots=True)
class RunProcess:
    """The process that trains: its rank and device, its end on a signal, and its start."""

    ranks: Ranks
    shutdown: GracefulShutdown
    start_time: float = field(default_factory=time.monotonic)


@dataclass(kw_only=True)
class Trainer:
    """One rank's part of a training run."""

    trained: TrainedModel
    batches: TrainingBatches
    clock: TrainingClock  # length of the run and of its phases, and the learning rate
    config: TrainConfig
    output: RunOutput
    process: RunProcess
    evaluation: Evaluation | None = None
    hooks: Sequence[Hook] = ()  # called after evaluation
    build_sample_hook: Callable[["Trainer"], Hook] | None = None
    state: TrainState = field(default_factory=TrainState)  # at the start of a new run
    loop: Loop = field(init=False)
    logger: RunLogger = field(init=False)
    _store: CheckpointManager | None = field(init=False, default=None)  # on rank 0
    _exit_stack: contextlib.ExitStack = field(init=False, default_factory=contextlib.ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._exit_stack.close()

    def fit(self, *, resume: bool) -> TrainState:
        """Train from the start, or from the newest valid checkpoint, and save the last one.

        The model then has its best weights if the run stops early, the averaged ones if the optimizer averages, else
        those of the last step. The directory stays locked until the trainer is closed.
        """
        if self.process.ranks.is_first:
            self._open_directory(resume)
        checkpoint = self._find_checkpoint() if resume else None
        saver, validation = self._build(checkpoint)
        loop, state, phases, shutdown = self.loop, self.state, self.batches.phases, self.process.shutdown
        shutdown.arm(loop, lambda loop: saver.save(loop, wait=True))
        self._start(saver, validation, is_new=checkpoint is None)
        for number in range(len(state.phases) - 1, len(phases)):
            try:
                self._run_phase(number)
            except DataError:  # of the next batch, or of an evaluation
                if loop.ranks.world == 1 and self._store is not None:  # other ranks may be in the middle of a step
                    loop.hooks = [hook for hook in loop.hooks if hook is not validation]
                    saver.save(loop, wait=True)
                    self.logger.log(f"step {state.step:,}: stopped by an error; its checkpoint can be resumed")
                raise
            if self._stops_early:
                break
            if number + 1 < len(phases):
                state.phases.append(state.step)
                previous, length = phases[number].length, phases[number + 1].length
                text = f"sequence length {length:,} from here on, {previous:,} until now"
                self.logger.log_event(state.step, "length", text, length=length)
        if validation is not None:
            validation.run(loop)
        saver.save(loop, wait=True)
        loop.stop_signal = loop.ranks.max(loop.stop_signal)
        shutdown.disarm()
        state.elapsed_seconds = time.monotonic() - loop.start_time
        if self.early_stopping is not None:
            self.early_stopping.restore_best_weights()
        else:
            self._exit_stack.enter_context(use_averages(loop.optimizer))
        loop.hooks, loop.graph_runner = (), None  # reference cycles that keep device memory
        return state

    def summarize(self) -> RunSummaryRecord:
        """Show and return the summary of the run."""
        check, step = self.learning_check, self._select_evaluation()
        if check is None or not self.process.ranks.is_first:
            return self.logger.summarize(self.loop)
        warnings = check.find_warnings(step, self.state.step, trained_steps=self.state.step)
        return self.logger.summarize(self.loop, [*warnings.values()], unigram_loss=check.find_unigram_loss(step))

    @property
    def early_stopping(self) -> EarlyStopping | None:
        """The best weights, and the end of a run that no longer improves."""
        return None if self.evaluation is None else self.evaluation.early_stopping

    @property
    def _stops_early(self) -> bool:
        return self.early_stopping is not None and self.early_stopping.should_stop()

    @property
    def learning_check(self) -> LearningCheck | None:
        """Warnings if the validation loss shows that the model does not learn."""
        return None if self.evaluation is None else self.evaluation.learning_check

    @property
    def _total_steps(self) -> int | None:
        """Length of the run; None if the clock decides."""
        return self.state.planned_ends[-1] if self.state.planned_ends else self.clock.steps

    def _select_evaluation(self) -> int:
        """Return the step of the evaluation of the final weights.

        With early stopping these are the best weights: the metrics of the run become those of their evaluation, which
        rank 0 has.
        """
        check, state = self.learning_check, self.state
        best_step = None if self.early_stopping is None else self.early_stopping.best_step
        if best_step is None or check is None or not self.process.ranks.is_first:
            return state.last_eval_step
        metrics = check.history.get(best_step, state.eval_metrics)
        state.eval_metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return best_step

    def _open_directory(self, resume: bool) -> None:
        """Lock the directory, and remove what a killed process left there."""
        lock, run_dir = self.output.lock, self.output.run_dir
        if lock is None:
            lock = self._exit_stack.enter_context(RunLock(run_dir.path, on_warning=log.warn))
            io.sweep(run_dir.path)
            if not resume:
                run_dir.check_free()
        with io.translate_write_errors(run_dir.path):
            run_dir.path.mkdir(parents=True, exist_ok=True)
        if self.config.max_checkpoints:
            self._store = CheckpointManager(
                run_dir.checkpoints, max_checkpoints=self.config.max_checkpoints, on_warning=log.warn
            )
            self._store.remove_unfinished(lock)

    def _find_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint to resume from, the same on all ranks."""
        store, ranks, run_dir = self._store, self.process.ranks, self.output.run_dir
        checkpoint: Checkpoint | None = ranks.broadcast_object(
            run_on_rank_zero(ranks, lambda: store.find_latest(self.output.fingerprints) if store else None)
        )
        if checkpoint is None and ranks.is_first and (run_dir.settings.exists() or run_dir.metrics.exists()):
            log.info(f"{run_dir.path}: no checkpoint yet; starting from the beginning")
        return checkpoint

    def _build(self, checkpoint: Checkpoint | None) -> tuple[CheckpointHook, ValidationHook | None]:
        """Build optimizer, loop, logger and hooks, in the state of a checkpoint if there is one."""
        loop, early_stopping, check = self._build_loop(checkpoint), self.early_stopping, self.learning_check
        logger = self._build_logger(loop, is_resumed=checkpoint is not None)
        self.loop, self.logger = loop, self._exit_stack.enter_context(logger)
        saver = CheckpointHook(
            self._store,
            self.output.fingerprints,
            every=self.config.checkpoint_every,
            on_save=logger.flush,
            extra_groups=dict if early_stopping is None else early_stopping.state_dict,
            tensor_names=self.trained.tensor_names,
        )
        if checkpoint is not None and check is not None and loop.ranks.is_first:
            check.restore(read_metrics(self.output.run_dir.path), self._total_steps)
        validation = None if self.evaluation is None else self._build_validation(self.evaluation, saver)
        state, find_samples = self.state, self.batches.find_samples
        loop.hooks = [
            self.clock,
            DivergenceGuard(logger.warn, None if find_samples is None else lambda step: find_samples(state, step)),
            logger,
            *([] if self.build_sample_hook is None else [self.build_sample_hook(self)]),
            *([] if validation is None else [validation]),
            *self.hooks,
            saver,
            self.process.shutdown,
        ]
        return saver, validation

    def _build_loop(self, checkpoint: Checkpoint | None) -> Loop:
        """Build the optimizer and the loop; restore weights, optimizer and train state."""
        target, config, ranks, early_stopping = self.trained, self.config, self.process.ranks, self.early_stopping
        module = ModelWithLoss(target.model, target.objective, target.memory).train()
        parallel_module = None if target.parallel is None else ranks.wrap(module, target.parallel)
        if early_stopping is not None and target.parallel == "fsdp":  # the wrapper has replaced the weights
            weights = collect_weights(target.model)
            early_stopping.tensors = {name: weights[name] for name in early_stopping.tensors}
        optimizer: Optimizer = config.optimizer.build(target.groups or build_parameter_groups(target.model))
        if checkpoint is not None:
            self.state = restore_checkpoint(checkpoint, target.model, optimizer, target.tensor_names)
            restore_stream_state(checkpoint, module.stream_state, ranks)
            if early_stopping is not None:
                early_stopping.restore(checkpoint)
        if ranks.device.type == "cuda" if config.compile is None else config.compile:
            target.model.compile(dynamic=False)
        return Loop(
            module=module,
            parallel_module=parallel_module,
            optimizer=optimizer,
            state=self.state,
            ranks=ranks,
            lr_factor=self.clock.compute_lr_factor,
            seed=config.seed,
            clip=config.clip,
            precision=config.resolve_precision(ranks.device),
            start_time=self.process.start_time - self.state.elapsed_seconds,
        )

    def _build_logger(self, loop: Loop, *, is_resumed: bool) -> RunLogger:
        output, progress = self.output, None
        if loop.ranks.is_first:
            progress = Progress(
                output.run_dir.name,
                total=self._total_steps,
                budget=None if self.state.planned_ends else self.clock.budget,
                peak=find_peak_flops(loop.ranks.device, loop.precision),
                overhead=None if self.evaluation is None else self.evaluation.overhead,
            )
        return RunLogger(
            output.run_dir,
            loop,
            self.config,
            count_flops=self.trained.count_flops,
            progress=progress,
            settings=output.settings,
            is_resumed=is_resumed,
        )

    def _build_validation(self, evaluation: Evaluation, saver: CheckpointHook) -> ValidationHook:
        logger, early_stopping, check = self.logger, evaluation.early_stopping, evaluation.learning_check
        if self.clock.steps is not None or not evaluation.every:  # otherwise the budget decides
            times = math.ceil((self.clock.steps or 0) / evaluation.every) if evaluation.every else 1
            warn_of_few_evaluations(self.config.optimizer, times + evaluation.at_start, logger.warn)

        def record_evaluation(loop: Loop, metrics: dict[str, float]) -> None:
            loss = evaluation.compute_loss(metrics)
            if loss < (math.inf if loop.state.best is None else loop.state.best):
                loop.state.best, loop.state.best_step = loss, loop.state.step
            if early_stopping is None:
                saver.set_score(loop.state.step, loss)
            else:
                early_stopping.record(loop.state.step, -loss)
            logger.log_evaluation(loop, metrics)
            logger.observe(loop, loss)
            if check is not None and loop.ranks.is_first:
                for warning in check.record(loop.state.step, metrics, self._total_steps):
                    logger.warn(f"step {loop.state.step:,}: {warning}")
            if early_stopping is not None and self._stops_early:
                evaluations = format_count(early_stopping.evaluations_since_best, "evaluations")
                logger.log(f"step {loop.state.step:,}: no improvement in {evaluations}; stopping early")

        return ValidationHook(evaluation, record_evaluation, on_abort=self.process.shutdown.stop)

    def _start(self, saver: CheckpointHook, validation: ValidationHook | None, *, is_new: bool) -> None:
        """Do what is due before the first step, or was not done when the run was stopped: evaluate and save."""
        loop, state, clock = self.loop, self.state, self.clock
        state.micro = self._count_micro_batches(self.batches.phases[len(state.phases) - 1])
        if is_new and loop.ranks.is_first:
            self.output.write_settings()
        if not is_new:
            saver.last_step, saver.last_time = state.step, state.elapsed_seconds
        for hook in (*([] if validation is None else [validation]), *self.hooks):
            hook(loop, [])
        save_start, has_budget = time.monotonic(), clock.budget is not None and not state.planned_ends
        saver.save(loop, wait=has_budget)
        if has_budget:
            reserve = estimate_reserve(
                parameters=sum(parameter.numel() for parameter in self.trained.model.parameters()),
                startup_seconds=time.monotonic() - self.process.start_time,
                save_seconds=time.monotonic() - save_start,
                eval_seconds=0.0 if validation is None else validation.estimate_seconds(state),
            )
            clock.reserve = loop.ranks.broadcast_object(reserve)  # all ranks end at the same step

    def _run_phase(self, number: int) -> None:
        """Train until the end of a phase, or until the run stops early."""
        loop, state, phase, clock = self.loop, self.state, self.batches.phases[number], self.clock
        state.micro = self._count_micro_batches(phase)
        loop.graph_runner, loop.window, ranks, spec = None, phase.length, loop.ranks, self.trained.spec
        is_alone = state.micro == ranks.world == 1 and self.trained.parallel != "fsdp"
        if phase.shape is not None and ranks.device.type == "cuda" and is_alone and not phase.is_sampled:
            loop.graph_runner = build_cuda_graph(phase.shape, spec, self.config, ranks.device, loop.module)
        loader = DataLoader(
            phase.batches,
            offset=state.phases[number],
            start=state.step,
            stop=None if clock.steps is None else clock.find_end_step(number),
            micro=state.micro,
            rank=ranks.rank,
            world=ranks.world,
            workers=0 if phase.is_sampled else self.batches.workers,
            device=ranks.device,
            looks_ahead=not phase.is_sampled,
        )
        with loader:
            clock.start_phase(state)
            loop.run(loader, lambda state: clock.is_phase_over(state, number) or self._stops_early)
            state.data_wait += loader.wait_seconds

    def _count_micro_batches(self, phase: TrainingPhase) -> int:
        if phase.shape is None:
            return 1
        spec, ranks = self.trained.spec, self.process.ranks
        return count_micro_batches(phase.shape, spec, ranks, self.config, self.state.min_micro)
