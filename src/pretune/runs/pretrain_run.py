"""Pre-training run: opens and checks data and model, trains them, and writes the model with its card and cost."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pretune.adaptation.freeze import Decay
from pretune.adaptation.teacher import (
    DistillationFlops,
    attach_teacher,
    detach_teacher,
    hash_teacher,
    load_teacher,
)
from pretune.core import config, io, log
from pretune.core.api import PathResult
from pretune.core.errors import CheckpointError, UsageError
from pretune.core.hub import resolve_path
from pretune.core.log import format_count, join_names
from pretune.core.run_dir import RunDir
from pretune.models import catalog
from pretune.models.generator_discriminator import GeneratorDiscriminator
from pretune.models.hf import checkpoint
from pretune.models.hf.checkpoint import check_weights
from pretune.models.model import LanguageModel
from pretune.objectives.base import Objective
from pretune.objectives.distill import Distill, Distillation
from pretune.runs.config import PretrainConfig
from pretune.runs.data_phases import DataPhases, compute_eval_interval, count_workers
from pretune.runs.defaults import explain_rate
from pretune.runs.model_card import build_pretraining_card
from pretune.runs.samples import SampleHook, SampleObjective, build_trigger, check_prompts, estimate_sample_cost
from pretune.runs.training_data import open_training_data
from pretune.training.checkpoints.manager import collect_weights
from pretune.training.clock import IN_FLIGHT_STEPS, TrainingClock
from pretune.training.config import TrainConfig, configure_model
from pretune.training.cost import build_flops_counter
from pretune.training.data_worker import start_forkserver
from pretune.training.distributed import Ranks, fill, unshard_all
from pretune.training.loop import GracefulShutdown
from pretune.training.optim import build_parameter_groups
from pretune.training.records import CostFile, PretrainSummary, ResumeFile
from pretune.training.run_logger import read_metrics
from pretune.training.step import TrainState
from pretune.training.trainer import RunOutput, RunProcess, TrainedModel, Trainer, TrainingBatches, TrainingPhase
from pretune.training.validation import EarlyStopping, Evaluation, LearningCheck, build_evaluator

BODY_PREFIXES = ("tokens.", "encoder.", "decoder.")
MIN_USEFUL_STEPS = 20
"""A run with a budget warns below this number of steps: too few to train."""


@dataclass(frozen=True, slots=True, repr=False)
class PretrainedRun(PathResult):
    """Path and summary of a run; accepted wherever its path is."""

    path: Path
    summary: dict[str, Any]

    def __repr__(self) -> str:
        loss = "" if self.loss is None else f", loss={self.loss:.4f}"
        return f"PretrainedRun({str(self.path)!r}{loss})"

    @property
    def loss(self) -> float | None:
        """Final validation loss, or None."""
        loss = (self.summary.get("held_out") or {}).get("loss")
        return None if loss is None else float(loss)

    def to_dict(self) -> dict[str, Any]:
        """Return the path and the summary as plain data."""
        return {"path": str(self.path), **self.summary}

    def load(self) -> Any:
        """Load the model."""
        return checkpoint.load(self.path)


class PretrainRun:
    """One rank's part of a run: opens and checks everything, then trains."""

    def __init__(
        self,
        settings: PretrainConfig,
        run_dir: RunDir,
        ranks: Ranks,
        shutdown: GracefulShutdown,
        *,
        started_at: float,
        resume: bool = False,
        state: TrainState | None = None,
        plan: Mapping[str, Any] | None = None,
    ) -> None:
        self.settings, self.run_dir, self.ranks, self.shutdown = settings, run_dir, ranks, shutdown
        self.started_at, self.resume, self.state, self.plan = started_at, resume, state or TrainState(), plan
        settings.train.check_device(ranks.device)
        ranks.check_parallel(settings.train.parallel)
        self._start_workers(settings.train)
        self.spec = catalog.convert_to_shape(settings.model, settings.objective.shapes)
        distill = settings.objective if isinstance(settings.objective, Distill) else None
        self.source = open_training_data(settings)
        self.data_card = self.source.data.card  # read now, since the data may be deleted during the run
        self.data_phases = DataPhases.open(settings, self.source, ranks, read_steps(run_dir) if resume else None)
        self._check_early_stopping()
        check_prompts(settings.train.prompts, self.spec.shape, settings.model.max_length, self.source.tokenizer)
        self.model: Any = catalog.build_any(self.spec, seed=settings.train.seed, device=ranks.device)
        if isinstance(self.model, LanguageModel) and settings.model.characters is not None:
            self.model.assets.tokenizer = self.source.tokenizer  # it spells the words
        if settings.train.init_from is not None and not resume:
            load_initial_weights(self.model, resolve_path(settings.train.init_from))
        if settings.train.token_vectors == "counted" and not resume:
            from pretune.adaptation.cooccurrence import count_token_vectors  # NOTE: rarely needed

            is_new, seed = settings.train.init_from is None, settings.train.seed
            count_token_vectors(self.model, self.source.data.open_shards(), is_new=is_new, seed=seed)
        self.objective: Objective | Distillation = settings.objective
        self.fingerprints = {
            "config": settings.sha256(),
            "data": self.source.data.fingerprint,
            "tokenizer": self.source.tokenizer.sha256,
        }
        self.flops: DistillationFlops | None = None
        if distill is not None:
            self.objective = self._attach_teacher(distill)
        configure_model(self.model, settings.train, ranks.device)
        if (method := self.data_phases.streams[0].packing_method) is not None:  # the same in all phases
            self.fingerprints["plan"] = method

    def _attach_teacher(self, distill: Distill) -> Distillation:
        """Load the teacher, and initialize the student from its layers in a new run."""
        settings, device = self.settings, self.ranks.device
        path = distill.require_teacher()
        teacher = load_teacher(path, self.source.tokenizer).to(device)
        configure_model(teacher, settings.train, device)
        distillation = attach_teacher(
            distill,
            self.model,
            teacher,
            source=path,
            length=max(phase.length for phase in self.data_phases.phases),
            seed=settings.train.seed,
            copies_layers=settings.train.init_from is None and not self.resume,
        )
        self.fingerprints["teacher"] = hash_teacher(teacher)
        self.flops = DistillationFlops.from_objective(distill, self.model.spec, teacher.spec)
        if settings.train.compile is not False and device.type == "cuda":
            teacher.compile(dynamic=False)
        return distillation

    def run(self) -> PretrainedRun:
        """Train from the start or, if resumed, from the newest valid checkpoint."""
        train, data_phases = self.settings.train, self.data_phases
        if self.settings.data.samples == "streams":  # shapes vary
            train = replace(train, compile=False, cuda_graphs=False)
        groups = None  # those of the model
        if train.layer_decay is not None:
            groups = build_parameter_groups(self.model, lr_factor=Decay(factor=train.layer_decay))
        with Trainer(
            trained=TrainedModel(
                model=self.model,
                objective=self.objective,
                spec=self.settings.model,
                count_flops=self.flops or build_flops_counter(*catalog.list_models(self.spec)),
                groups=groups,
                parallel=train.parallel,
                memory=self.settings.memory,
            ),
            batches=TrainingBatches(
                phases=[
                    TrainingPhase(batches=stream, shape=stream.shape, length=phase.length)
                    for stream, phase in zip(data_phases.streams, data_phases.phases, strict=True)
                ],
                workers=count_workers(train, self.ranks),
                find_samples=data_phases.find_samples,
            ),
            clock=TrainingClock(
                schedule=train.schedule,
                steps=data_phases.steps,
                budget=train.budget,
                phase_ends=self.settings.data.schedule.ends,
            ),
            config=train,
            output=RunOutput(
                run_dir=self.run_dir,
                fingerprints=self.fingerprints,
                settings=self.settings.to_dict(),
                write_settings=self._write_settings,
            ),
            process=RunProcess(self.ranks, self.shutdown, self.started_at),
            evaluation=self._build_evaluation(),
            build_sample_hook=self._build_sample_hook,
            state=self.state,
        ) as trainer:
            state = trainer.fit(resume=self.resume)
            if train.budget is not None and state.step < MIN_USEFUL_STEPS and self.ranks.is_first:
                log.warn(
                    f"only {format_count(state.step, 'steps')} fit into the budget, too few to train a model; use a "
                    f"larger --budget, a smaller model, or a smaller train.batch_tokens (now {train.batch_tokens:,})"
                )
            epochs = data_phases.count_epochs(state)
            if self.ranks.is_first and len(epochs) > 1:
                log.info(f"epochs per source: {join_names([f'{name} {value:.3g}' for name, value in epochs.items()])}")
            return self._write(trainer, epochs)

    def _start_workers(self, train: TrainConfig) -> None:
        """Start data workers and compile workers, which import torch while everything else is opened."""
        if count_workers(train, self.ranks):
            start_forkserver(DataPhases.__module__)
        if train.compile is not False and self.ranks.device.type == "cuda":
            with contextlib.suppress(ImportError):  # a private torch API; compilation starts them too, but later
                from torch._inductor.async_compile import maybe_warm_pool

                maybe_warm_pool()

    def _write_settings(self) -> None:
        """Write run.json, and log the learning rate and the shares of the sources."""
        environment: dict[str, object] = {
            "steps": self.data_phases.steps,
            "data": self.source.data.fingerprint,
            "tokenizer": self.source.tokenizer.sha256,
            "device": str(self.ranks.device),
            "world": self.ranks.world,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "precision": self.settings.train.name_precision(self.ranks.device),
        }
        if "teacher" in self.fingerprints:
            environment["teacher"] = self.fingerprints["teacher"]
        if self.plan is not None:
            environment["plan"] = self.plan
        self.run_dir.write_settings({**self.settings.to_dict(), "environment": environment})
        log.info(explain_rate(self.settings))
        if shares := self.data_phases.compute_shares():
            log.info(f"sampling shares: {join_names([f'{name} {value:.1%}' for name, value in shares.items()])}")

    def _build_sample_hook(self, trainer: Trainer) -> SampleHook:
        validation, train, clock = self.data_phases.validation, self.settings.train, trainer.clock
        stream = validation[0] if validation else self.data_phases.streams[-1]
        split = "prompts" if train.prompts else "valid" if validation else "train"
        cost = estimate_sample_cost(stream.shape, self.spec.shape, train.batch_tokens, self.ranks)
        clock.tail_steps = IN_FLIGHT_STEPS + (0.0 if train.samples_every == 0 else cost)  # samples after the last step
        return SampleHook(
            stream,
            SampleObjective(self.source.tokenizer, train.prompts),
            build_trigger(train.samples_every, clock, trainer.state, cost),
            partial(trainer.logger.log_samples, split=split),
        )

    def _check_early_stopping(self) -> None:
        """Refuse early stopping without evaluations during the run."""
        if self.settings.train.patience is None:
            return
        if self.data_phases.validation is None:
            raise UsageError(
                f"{self.source.data}: early stopping needs validation text; use `pretune prepare --holdout SHARE`, or "
                "leave --stop-early out"
            )
        if not compute_eval_interval(self.settings.train, self.data_phases.steps):
            raise UsageError("early stopping in a run with a time budget needs --set train.eval_every=STEPS")

    def _build_learning_check(self) -> LearningCheck:
        train, schedule = self.settings.train, self.settings.train.schedule
        warmup = getattr(schedule, "warmup", None)
        is_post_norm = self.settings.model.is_post_norm
        remedies = [
            f"lower train.lr (now {train.lr:g})",
            *([] if warmup is None else [f"use a longer train.schedule.warmup (now {warmup:g})"]),
            *(["use a model with pre-norm"] if is_post_norm else []),
        ]
        return LearningCheck(
            compute_unigram_loss=self.data_phases.compute_unigram_loss,
            warmup=getattr(schedule, "cut", 0.0) if warmup is None else warmup,
            hint=", or ".join(remedies),
            plateau_hint=", or ".join(["train longer", *(["use a model with pre-norm"] if is_post_norm else [])]),
        )

    def _build_evaluation(self) -> Evaluation | None:
        if self.data_phases.validation is None:
            lack = self.data_card.get("lacking") or "the validation split is empty"
            log.warn(f"{self.source.data}: {lack}: no validation loss; use `pretune prepare --holdout SHARE`")
            return None
        (stream, count), patience = self.data_phases.validation, self.settings.train.patience
        return Evaluation(
            evaluate=build_evaluator(
                stream,
                count,
                self.objective.to_evaluation(),
                parts=1 if self.settings.data.samples == "streams" else None,  # too few streams to divide
            ),
            every=compute_eval_interval(self.settings.train, self.data_phases.steps),
            compute_loss=lambda metrics: metrics["loss"],
            early_stopping=None
            if patience is None
            else EarlyStopping(tensors=collect_weights(self.model), patience=patience),
            learning_check=self._build_learning_check(),
        )

    def _write(self, trainer: Trainer, epochs: Mapping[str, float]) -> PretrainedRun:
        """Write the model, its card and its cost. `epochs` are those of each source."""
        summary = {
            "parameters": self.model.spec.params().total,
            **trainer.summarize(),
            "epochs": dict(epochs),
        }
        if self.flops is not None:
            detach_teacher(self.model)
            summary["teacher_flops"] = self.flops.teacher_share * summary["cost"]["flops"]
            log.info(self.flops.describe(summary["cost"]["flops"]))
        model, run_dir = unshard_model(self.model), self.run_dir
        for part in getattr(model, "get_models_by_folder", lambda: {"": model})().values():
            part.assets.files = self.source.tokenizer.build_files()
        if self.ranks.is_first:
            checkpoint.save(model, run_dir.path, overwrite=True)
            data, lines = self.source.data, read_metrics(run_dir.path)
            text = build_pretraining_card(
                run_dir.name, self.settings, self.data_card, data.fingerprint, summary, lines, self.plan
            )
            io.atomic_write(run_dir.card, text.encode())
            run_dir.write_cost(summary)
            if not data.path.is_dir():
                log.warn(f"{data}: deleted during the run; without it the run cannot be repeated")
        return PretrainedRun(run_dir.path, summary)


def read_steps(run_dir: RunDir) -> int | None:
    """Return the number of steps that a run was started with; None if it has a budget.

    A resumed run has the same, also if another version of pretune would count other ones.
    """
    location = str(run_dir.settings)
    tree = config.check_record(ResumeFile, run_dir.read_settings(), CheckpointError, location)
    steps = tree.get("environment", {}).get("steps")
    return None if steps is None else config.check_record(int, steps, CheckpointError, f"{location}: 'steps'")


def load_finished_run(run_dir: RunDir) -> PretrainedRun | None:
    """Return the run in a directory, or None if it is unfinished."""
    if not run_dir.is_finished:
        return None
    cost = dict(config.read_record(CostFile, run_dir.cost, CheckpointError))
    about = cost.pop("run", None)
    if about is None:
        return None
    summary = config.check_record(PretrainSummary, about, CheckpointError, str(run_dir.cost))
    return PretrainedRun(run_dir.path, {**summary, "cost": cost})


def unshard_model(model: Any) -> Any:
    """Return the model with full weights; if they are sharded, a copy of it (a collective operation)."""
    tensors = collect_weights(model)
    if not any(isinstance(tensor, DTensor) for tensor in tensors.values()):
        return model
    copy, full_weights = catalog.build_any(model.spec), unshard_all(tensors)
    for name, tensor in collect_weights(copy).items():
        fill(tensor, full_weights[name])
    return copy


def load_initial_weights(model: Any, directory: Path) -> None:
    """Copy a directory's weights into a new model: the body, and the heads that both have.

    A generator-discriminator pair loads both if the directory has both, otherwise the one that is kept.
    """
    parts = model.get_models_by_folder() if hasattr(model, "get_models_by_folder") else {"": model}
    for folder, part in parts.items():
        if not folder or RunDir(directory / folder).model_config.is_file():
            _copy_weights(part, directory / folder)
        else:
            log.info(f"{directory}: no {folder}; its weights are newly initialized")
    if isinstance(model, GeneratorDiscriminator):
        model.load_discriminator_table(parts[""])


def _copy_weights(part: Any, directory: Path) -> None:
    source = checkpoint.load(directory)
    check_weights(source, directory)
    source_weights, weights = collect_weights(source), collect_weights(part)
    new: set[str] = set()
    for name, tensor in weights.items():
        source_tensor = source_weights.get(name)
        if source_tensor is None and name.startswith(BODY_PREFIXES):
            raise CheckpointError(f"{directory}: missing '{name}', which the model of the run needs")
        if source_tensor is not None and source_tensor.shape != tensor.shape:
            raise CheckpointError(
                f"{directory}: '{name}' has shape {list(source_tensor.shape)}, expected {list(tensor.shape)}"
            )
        if source_tensor is None:
            new.add(name.split(".")[0])
        else:
            with torch.no_grad():
                tensor.copy_(source_tensor)
    if new:
        log.info(f"{directory}: newly initialized: {', '.join(sorted(new))}")
