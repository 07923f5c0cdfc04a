"""Pre-training run: opens and checks everything, then trains phase by phase."""

import contextlib
import itertools
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pretune.core import io, log
from pretune.core.errors import CheckpointError, UsageError
from pretune.core.format import format_count, join_names
from pretune.core.migration import FORMAT_KEY, FORMAT_VERSION
from pretune.models import catalog
from pretune.runs.config import PretrainConfig, TrainConfig
from pretune.runs.data_phases import DataPhases, compute_eval_interval
from pretune.runs.defaults import RUN_FILE, explain_rate
from pretune.runs.initial_model import build_initial_model, resolve_precision
from pretune.runs.micro_batch import build_cuda_graph, count_micro_batches, count_workers
from pretune.runs.run_dir import PretrainedRun, write_run
from pretune.runs.sample_text import SampleObjective, check_prompts
from pretune.runs.samples import SampleHook, build_trigger, estimate_sample_cost
from pretune.runs.training_data import TrainingData
from pretune.training.checkpointing import CheckpointHook, restore_checkpoint
from pretune.training.checkpoints import CheckpointManager, RunLock, list_checkpoints
from pretune.training.clock import IN_FLIGHT_STEPS, TrainingClock
from pretune.training.data_worker import start_forkserver
from pretune.training.dataloader import DataLoader
from pretune.training.distributed import Ranks
from pretune.training.guards import DivergenceGuard, GracefulShutdown
from pretune.training.loop import Loop
from pretune.training.optim import build_parameter_groups, use_averages
from pretune.training.run_logger import RunLogger
from pretune.training.step import ModelWithLoss, TrainState
from pretune.training.validation import ValidationHook, build_evaluator, warn_of_few_evaluations

CHECKPOINTS_DIR = "checkpoints"
DISK_BYTES_PER_SECOND = 200e6
"""Assumed disk throughput, for the time reserved at the end of a budget."""
FINAL_SAVES = 3.0
"""Time of the end of a run in multiples of the first save: a checkpoint, checks of older ones, the model."""
EXIT_SECONDS, MAX_SLOWDOWN = 1.0, 3.0
"""Seconds for the last log lines and process exit, and the factor by which a busy machine may be slower."""
MIN_USEFUL_STEPS = 20
"""A run with a budget warns below this number of steps: too few to train."""


class PretrainRun:
    """One rank's part of a run: opens and checks everything, then trains."""

    def __init__(
        self,
        settings: PretrainConfig,
        run_dir: Path,
        ranks: Ranks,
        shutdown: GracefulShutdown,
        *,
        started_at: float,
        resume: bool = False,
        state: TrainState | None = None,
    ) -> None:
        self.run_dir, self.ranks, self.shutdown, self.started_at, self.state = (
            run_dir,
            ranks,
            shutdown,
            started_at,
            state or TrainState(),
        )
        ranks.check_parallel(settings.train.parallel)
        self._start_workers(settings.train)
        self.spec = catalog.convert_to_shape(settings.model, settings.objective.shapes)
        self.source = TrainingData.open(
            settings.data,
            settings.objective,
            self.spec.shape,
            start=settings.model.special.start,
            max_positions=settings.model.max_length,
        )
        self.settings, self.data_phases = settings, DataPhases.open(settings, self.source, ranks)
        check_prompts(settings.train.prompts, self.spec.shape, settings.model.max_length, self.source.tokenizer)
        self.precision = resolve_precision(settings.train, ranks)
        self.model = build_initial_model(self.spec, settings, ranks, resume=resume)
        self.fingerprints = {
            "config": self.settings.sha256(),
            "data": self.source.data.fingerprint,
            "tokenizer": self.source.tokenizer.sha256,
        }
        if (plan := self.data_phases.streams[0].packing_method) is not None:  # the same in all phases
            self.fingerprints["plan"] = plan

    def run(self, *, resume: bool = False) -> PretrainedRun:
        """Train from the start, or from the newest valid checkpoint."""
        with contextlib.ExitStack() as stack:
            store = None
            if self.ranks.is_first:
                lock = stack.enter_context(RunLock(self.run_dir, on_warning=log.warn))
                io.sweep(self.run_dir)
                if not resume:
                    check_no_run(self.run_dir)
                store = CheckpointManager(
                    self.run_dir / CHECKPOINTS_DIR,
                    max_checkpoints=self.settings.train.max_checkpoints,
                    on_warning=log.warn,
                )
                store.remove_unfinished(lock)
            return self._train(stack, store, resume)

    def _start_workers(self, train: TrainConfig) -> None:
        """Start data workers and compile workers, which import torch while everything else is opened."""
        if count_workers(train, self.ranks):
            start_forkserver(DataPhases.__module__)
        if self._should_compile(train) and self.ranks.device.type == "cuda":
            with contextlib.suppress(ImportError):  # a private torch API; compilation starts them too, but later
                from torch._inductor.async_compile import maybe_warm_pool

                maybe_warm_pool()

    def _should_compile(self, train: TrainConfig) -> bool:
        return train.compile if train.compile is not None else self.ranks.device.type == "cuda"

    def _train(self, stack: contextlib.ExitStack, store: CheckpointManager | None, resume: bool) -> PretrainedRun:
        train = self.settings.train
        loss_module = ModelWithLoss(self.model, self.settings.objective).train()
        parallel_module = self.ranks.wrap(loss_module, train.parallel)
        optimizer = train.optimizer.build(build_parameter_groups(self.model))
        state = self.state
        if resume:
            latest = CheckpointManager(
                self.run_dir / CHECKPOINTS_DIR, on_warning=log.warn if self.ranks.is_first else _ignore_warning
            ).find_latest(self.fingerprints)
            if latest is None:
                raise CheckpointError(
                    f"{self.run_dir / CHECKPOINTS_DIR}: no checkpoint yet; start again without --resume"
                )
            state = restore_checkpoint(latest, self.model, optimizer)
        if self._should_compile(train):
            self.model.compile(dynamic=False)
        pace = TrainingClock(
            schedule=train.schedule,
            steps=self.data_phases.steps,
            budget=train.budget,
            phase_ends=tuple(itertools.accumulate(phase.share for phase in self.data_phases.phases)),
        )
        loop = Loop(
            module=loss_module,
            parallel_module=parallel_module,
            optimizer=optimizer,
            batches=DataLoader(self.data_phases.get_batches(0, state), stop=0),
            state=state,
            ranks=self.ranks,
            lr_factor=pace.compute_lr_factor,
            should_stop=lambda state: True,
            seed=train.seed,
            clip=train.clip,
            precision=self.precision,
            start_time=self.started_at - state.elapsed_seconds,
        )
        journal = stack.enter_context(
            RunLogger(
                self.run_dir,
                title=self.run_dir.name,
                models=catalog.list_models(self.spec),
                loop=loop,
                is_resumed=resume,
                total=state.planned_ends[-1] if state.planned_ends else self.data_phases.steps,
                budget=None if state.planned_ends else train.budget,
                every=train.log_every,
                trackers=train.trackers,
                cost_rates=train.cost_rates,
                settings=self.settings.to_dict(),
            )
        )
        saver = CheckpointHook(store, self.fingerprints, every=train.checkpoint_every, on_save=journal.flush)
        evaluate = self._build_evaluation(journal, saver)
        watch = DivergenceGuard(journal.warn, lambda step: self.data_phases.find_samples(state, step))
        samples = self._build_sample_hook(journal, pace, state)
        loop.hooks = [pace, watch, journal, samples, *([evaluate] if evaluate else []), saver, self.shutdown]
        self.shutdown.arm(loop, lambda loop: saver.save(loop, wait=True))
        self._save_initial_state(loop, saver, evaluate, pace, resume)
        for phase in range(len(state.phases) - 1, len(self.data_phases.phases)):
            self._run_phase(loop, phase, pace)
            if phase + 1 < len(self.data_phases.phases):
                state.phases.append(state.step)
                previous_length, next_length = (self.data_phases.phases[number].length for number in (phase, phase + 1))
                text = f"sequence length {next_length:,} from here on, {previous_length:,} until now"
                journal.log_event(state.step, "length", text, length=next_length)
        if evaluate:
            evaluate.run(loop)
        saver.save(loop, wait=True)
        state.elapsed_seconds = time.monotonic() - loop.start_time
        if train.budget is not None and state.step < MIN_USEFUL_STEPS and self.ranks.is_first:
            log.warn(
                f"only {format_count(state.step, 'steps')} fit into the budget, "
                f"too few to train a model; use a larger "
                f"--budget, a smaller model, or a smaller train.batch_tokens (now {train.batch_tokens:,})"
            )
        epochs = self.data_phases.count_epochs(state)
        if self.ranks.is_first and len(epochs) > 1:
            log.info(f"epochs per source: {join_names([f'{name} {value:.3g}' for name, value in epochs.items()])}")
        with use_averages(optimizer):  # the weights that are evaluated
            return write_run(self.run_dir, self.model, self.source, self.settings, journal, loop, epochs)

    def _save_initial_state(
        self, loop: Loop, saver: CheckpointHook, evaluate: ValidationHook | None, pace: TrainingClock, resume: bool
    ) -> None:
        """Write the settings, then evaluate and save the initial model, before the first step."""
        state = loop.state
        state.micro = self._count_micro_batches(len(state.phases) - 1, state)
        if not resume and self.ranks.is_first:
            io.write_json(
                self.run_dir / RUN_FILE,
                {FORMAT_KEY: FORMAT_VERSION, **self.settings.to_dict(), "environment": self._describe_environment()},
            )
            log.info(explain_rate(self.settings))
            if shares := self.data_phases.compute_shares():
                log.info(f"sampling shares: {join_names([f'{name} {value:.1%}' for name, value in shares.items()])}")
        if resume:
            saver.last_step, saver.last_time = state.step, state.elapsed_seconds
        if evaluate:
            evaluate(loop, [])  # unless the checkpoint includes it
        start, has_budget = time.monotonic(), pace.budget is not None and not state.planned_ends
        saver.save(loop, wait=has_budget)
        if has_budget:
            reserve = self._estimate_reserve(state, evaluate, time.monotonic() - start)
            pace.reserve = self.ranks.broadcast_object(reserve)  # all ranks end at the same step

    def _estimate_reserve(self, state: TrainState, evaluate: ValidationHook | None, save_seconds: float) -> float:
        """Estimate the seconds from the last step to process exit: evaluation, checkpoint, model, exit.

        A resumed process has no timing of its own evaluation; it takes that of earlier ones from the state.
        """
        size: int = sum(parameter.numel() for parameter in self.model.parameters()) * 4
        busy = (time.monotonic() - self.started_at) / max(
            time.process_time(), 1e-3
        )  # wall-clock over CPU time of the startup
        ending = EXIT_SECONDS * min(max(busy, 1.0), MAX_SLOWDOWN) + max(
            FINAL_SAVES * save_seconds, 5 * size / DISK_BYTES_PER_SECOND
        )
        if evaluate is None:
            return ending
        earlier = 1 + (state.step // evaluate.every if evaluate.every else 0)
        return ending + 1.25 * (evaluate.seconds or state.evaluating / earlier)

    def _run_phase(self, loop: Loop, phase: int, pace: TrainingClock) -> None:
        loop.state.micro = micro = self._count_micro_batches(phase, loop.state)
        shape, train = self.data_phases.streams[phase].shape, self.settings.train
        loop.graph_runner = build_cuda_graph(shape, self.settings.model, train, self.ranks, loop.module, micro=micro)
        feed = DataLoader(
            self.data_phases.get_batches(phase, loop.state),
            start=loop.state.step,
            stop=None if pace.steps is None else pace.find_end_step(phase),
            micro=loop.state.micro,
            rank=self.ranks.rank,
            world=self.ranks.world,
            workers=count_workers(self.settings.train, self.ranks),
            device=self.ranks.device,
        )
        with feed:
            pace.start_phase(loop.state)
            loop.batches = feed
            loop.should_stop = lambda state: pace.is_phase_over(state, phase)
            loop.run()
            loop.state.data_wait += feed.wait_seconds

    def _count_micro_batches(self, phase: int, state: TrainState) -> int:
        shape, settings = self.data_phases.streams[phase].shape, self.settings
        return count_micro_batches(
            shape, settings.model, settings.train, self.ranks, self.precision, min_micro_batches=state.min_micro
        )

    def _build_sample_hook(self, logger: RunLogger, pace: TrainingClock, state: TrainState) -> SampleHook:
        validation, train = self.data_phases.validation, self.settings.train
        stream = validation[0] if validation else self.data_phases.streams[-1]
        split = "prompts" if train.prompts else "valid" if validation else "train"
        cost = estimate_sample_cost(stream.shape, self.spec.shape, train.batch_tokens, self.ranks)
        when = build_trigger(train.samples_every, pace, state, cost)
        pace.tail_steps = IN_FLIGHT_STEPS + (
            0.0 if train.samples_every == 0 else cost
        )  # the last samples may follow the last step
        return SampleHook(
            stream,
            SampleObjective(self.source.tokenizer, train.prompts),
            when,
            partial(logger.log_samples, split=split),
        )

    def _build_evaluation(self, logger: RunLogger, saver: CheckpointHook) -> ValidationHook | None:
        if self.data_phases.validation is None:
            lack = self.source.data.card.get("lacking") or "the validation split is empty"
            log.warn(f"{self.source.data}: {lack}: no validation loss; use `pretune prepare --holdout SHARE`")
            return None
        stream, count = self.data_phases.validation
        every, steps = compute_eval_interval(self.settings.train, self.data_phases.steps), self.data_phases.steps
        if steps is not None or not every:  # otherwise the budget decides
            evaluations = 1 + math.ceil(steps / every) if steps and every else 2
            warn_of_few_evaluations(self.settings.train.optimizer, evaluations, logger.warn)

        def record_evaluation(loop: Loop, metrics: dict[str, float]) -> None:
            saver.score = metrics["loss"]
            if saver.last_step == loop.state.step:  # saved before its loss was known: save again with it
                saver.last_step = -1
            if metrics["loss"] < (math.inf if loop.state.best is None else loop.state.best):
                loop.state.best, loop.state.best_step = metrics["loss"], loop.state.step
            logger.log_evaluation(loop, metrics)
            logger.observe(loop, metrics["loss"])

        work = build_evaluator(stream, count, self.settings.objective.to_evaluation())
        return ValidationHook(work, every, record_evaluation, on_abort=self.shutdown.stop)

    def _describe_environment(self) -> dict[str, Any]:
        return {
            "steps": self.data_phases.steps,
            "data": self.source.data.fingerprint,
            "tokenizer": self.source.tokenizer.sha256,
            "device": str(self.ranks.device),
            "world": self.ranks.world,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "precision": "fp32" if self.precision is None else "bf16",
        }


def check_no_run(run_dir: Path) -> None:
    """Raise if the directory already holds a run or a model."""
    if run_dir.is_dir() and list_checkpoints(
        run_dir / CHECKPOINTS_DIR
    ):  # a path that is no directory fails when it is written
        raise UsageError(f"{run_dir}: already holds a run; use --resume, or choose another --out")
    if (run_dir / "config.json").exists():
        raise UsageError(f"{run_dir}: already holds a model; choose another --out")


def _ignore_warning(text: str) -> None:
    pass
