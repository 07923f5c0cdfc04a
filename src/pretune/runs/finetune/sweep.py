"""Trials, baselines and results of a fine-tuning run, and the model that is best on dev.

Under `torchrun` all ranks take part in each trial; rank 0 alone writes files and fits the simple baselines.
"""

import contextlib
import time
from collections.abc import Sequence
from typing import NoReturn

from pretune.adaptation import methods
from pretune.core import config, io, log
from pretune.core.errors import CheckpointError, DivergedError
from pretune.core.hub import resolve_path
from pretune.core.log import format_subset, join_names
from pretune.core.run_dir import RunDir, RunLock
from pretune.evaluation.baselines import COSINE, FEW_SHOT, MAX_TRAIN_EXAMPLES, PROBE, RANDOM, ZERO_SHOT, BaselineResult
from pretune.runs.finetune.adapted_model import has_backward_model, load_task_teacher
from pretune.runs.finetune.config import FinetuneConfig, SweepPlan, TrialOutlook, estimate_baseline_seconds
from pretune.runs.finetune.defaults import build_finetune_config, explain_rate
from pretune.runs.finetune.features import predict_with_probe
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.finetune.results import BaselineFactory, get_dev_score, read_predictions, write_results
from pretune.runs.finetune.saved_task import SavedTask, TaskMember
from pretune.runs.finetune.task_data import TaskData
from pretune.runs.finetune.trial import FinetuneTrial, TrialContext
from pretune.runs.finetune.untuned import UntunedModel
from pretune.runs.task_options import FinetuneOptions
from pretune.tasks.example import Example, Prediction
from pretune.tasks.table_reader import get_columns
from pretune.tasks.types import get_type
from pretune.training.distributed import Ranks, run_on_rank_zero
from pretune.training.loop import GracefulShutdown
from pretune.training.records import TrialFile


class FinetuneSweep:
    """Fine-tuning run: trials, baselines and results."""

    def __init__(
        self,
        tuning: FinetuneConfig,
        plan: SweepPlan,
        task_data: TaskData,
        run_dir: RunDir,
        ranks: Ranks,
        shutdown: GracefulShutdown,
    ) -> None:
        self.tuning, self.plan, self.task_data, self.run_dir = tuning, plan, task_data, run_dir
        self.ranks, self.shutdown = ranks, shutdown
        self.resume = False
        self.lock: RunLock | None = None  # held by rank 0
        self.trials: list[TrialFile] = []
        self.context = TrialContext(
            task_data=task_data,
            ranks=ranks,
            teacher=load_task_teacher(tuning, ranks.device),
            forgetting=plan.forgetting,
            encoded_data={},
        )

    def run(self, *, resume: bool) -> FinetunedRun:
        """Run all trials, from the start or resumed, and write the results."""
        for note in self.task_data.parts.notes:
            log.info(note)
        if self.tuning.tune.scalar_mix is None and has_backward_model(self.tuning.base):
            log.info(
                f"{self.tuning.base.path}: only the forward model is fine-tuned; use the method `scalar-mix` for both"
            )
        if len(self.plan.rates) == 1:
            log.info(explain_rate(self.tuning))
        train = self.task_data.select_train(self.plan.max_train_examples, self.tuning.task.split_seed)
        counts = get_type(self.task_data.task).scoring.count_labels(self.task_data.task, train)
        label_counts = join_names([f"{name} {count:,.6g}" for name, count in counts.items()])
        size = format_subset(len(train), self.task_data.parts.split_sizes.get("train"))
        log.info(f"train: {size}{f': {label_counts}' if label_counts else ''}")
        self.resume = resume
        with contextlib.ExitStack() as stack:
            if self.ranks.is_first:
                self.lock = stack.enter_context(RunLock(self.run_dir.path, on_warning=log.warn))
                io.sweep(self.run_dir.path)
                if not resume:
                    self.run_dir.check_free()
                    teacher = self.context.teacher
                    environment = {} if teacher is None else {"teacher": teacher.fingerprint}
                    tree = {**self.tuning.to_dict(), "plan": config.to_dict(self.plan)}
                    self.run_dir.write_settings({**tree, "environment": environment} if environment else tree)
            trial_config = self._adapt_language_model()
            self._try_rates(trial_config)
            best = max(self.trials, key=get_dev_score)
            for tuning in self.plan.list_remaining_trials(trial_config, best["lr"]):
                self._run_trial(tuning)
            untuned_model = UntunedModel(self.tuning, self.task_data, self.ranks.device)
            random = self._run_random_weights() if RANDOM in self.plan.baselines else None
            model_baselines: dict[str, BaselineFactory] = {
                PROBE: self._run_probe,
                RANDOM: lambda train: random or self._raise_missing_base(),
                COSINE: self._run_cosine,
                ZERO_SHOT: untuned_model.answer,
                FEW_SHOT: untuned_model.answer_after_shots,
            }
            arguments = (self.run_dir, self.tuning, self.plan, self.task_data, self.trials, model_baselines)
            finetuned_run: FinetunedRun = self.ranks.broadcast_object(
                run_on_rank_zero(self.ranks, lambda: write_results(*arguments))
            )
            return finetuned_run

    def _adapt_language_model(self) -> FinetuneConfig:
        """Return the config of the trials: their base is first pre-trained on the task's texts, if requested."""
        if not self.tuning.tune.lm_epochs:
            return self.tuning
        from pretune.runs.finetune.language_model import continue_pretraining

        return continue_pretraining(self.tuning, self.task_data, self.run_dir, self.ranks)

    def _try_rates(self, trial_config: FinetuneConfig) -> None:
        """Run the trials that select a learning rate; one that diverges is left out, unless all do."""
        errors: list[DivergedError] = []
        for tuning in self.plan.list_rate_trials(trial_config):
            try:
                self._run_trial(tuning)
            except DivergedError as error:
                if len(self.plan.rates) == 1:
                    raise
                errors.append(error)
                log.warn(f"learning rate {tuning.train.lr:g} is left out: {error}")
                if self.ranks.is_first:
                    self.run_dir.remove_trial(self.plan.format_name(tuning))
        if not self.trials:
            raise errors[0]

    def _run_trial(self, tuning: FinetuneConfig) -> None:
        """Run one trial unless it is finished; the run's directory holds the best model so far."""
        trial_dir = self.run_dir if self.plan.is_single else self.run_dir.get_trial(self.plan.format_name(tuning))
        self.shutdown.disarm()
        self.trials.append(self._fit_trial(tuning, trial_dir, self.context))

    def _fit_trial(
        self, tuning: FinetuneConfig, trial_dir: RunDir, context: TrialContext, *, is_baseline: bool = False
    ) -> TrialFile:
        """Return the result of a trial, of a finished one as it was written; a baseline does not become the model."""
        is_finished = self.resume and self.ranks.is_first and trial_dir.trial.is_file()
        result: TrialFile | None = self.ranks.broadcast_object(
            config.read_record(TrialFile, trial_dir.trial, CheckpointError) if is_finished else None
        )
        if result is not None:
            return result
        if not (self.plan.is_single or is_baseline):
            log.info(f"{trial_dir.name}:")
        trial = FinetuneTrial(tuning, context)
        self._plan_remaining_work(trial.outlook, is_last=is_baseline)
        result = trial.fit(trial_dir, self.shutdown, resume=self.resume, lock=self.lock)
        if self.ranks.is_first:
            if not is_baseline and self._is_best(tuning, result):
                self._save_model(trial, trial_dir, result["threshold"])
            io.write_json(trial_dir.trial, result)
            if trial_dir is not self.run_dir:
                trial_dir.remove_checkpoints()
        return result

    def _is_best(self, tuning: FinetuneConfig, result: TrialFile) -> bool:
        """Return whether a trial with the most training examples is better on dev than those before it."""
        scores = [get_dev_score(trial) for trial in self.trials if trial["labels"] == result["labels"]]
        is_largest = tuning.task.train_examples == self.plan.max_train_examples
        return is_largest and get_dev_score(result) > max(scores, default=-1e9)

    def _plan_remaining_work(self, outlook: TrialOutlook, *, is_last: bool) -> None:
        """Add the work after the next trial: other trials, including random weights, and baselines."""
        train = self.task_data.select_train(self.plan.max_train_examples, self.tuning.task.split_seed)
        names = [name for name in self.plan.baselines if name != RANDOM]
        trials = 0 if is_last else self.plan.trial_count - len(self.trials) - 1 + (RANDOM in self.plan.baselines)
        outlook.remaining_trials = max(trials, 0)
        outlook.baseline_seconds = estimate_baseline_seconds(names, train, self.task_data.eval_examples)

    def _run_probe(self, train: Sequence[Example]) -> BaselineResult | None:
        task, start = self.task_data.task, time.perf_counter()
        if get_type(task).scoring.gold not in ("class", "score"):
            return None
        examples, device = self.task_data.eval_examples, self.ranks.device
        predictions = predict_with_probe(self.tuning, task, train[:MAX_TRAIN_EXAMPLES], examples, device)
        about, seconds = "Linear probe on the frozen model's features", time.perf_counter() - start
        return BaselineResult(name=PROBE, description=about, predictions=predictions, seconds=seconds)

    def _run_cosine(self, train: Sequence[Example]) -> BaselineResult | None:
        """Run the baseline of scored pairs: cosine similarity of the two texts by the base model."""
        base, start = self.tuning.base, time.perf_counter()
        if base.weights == "random":
            return None
        from pretune.evaluation.embedding import compute_cosines
        from pretune.inference.embed import build_embedder

        pairs = [(example.text, example.pair or "") for example in self.task_data.eval_examples]
        cosines = compute_cosines(build_embedder(base.path, device=str(self.ranks.device)), pairs)
        labels = [float(example.label or 0.0) for example in train]
        low, high = min(labels), max(labels)
        predictions = [Prediction(value=low + (high - low) * float(cosine)) for cosine in cosines]
        about = "Cosine similarity of the two texts, by the model before fine-tuning"
        seconds = time.perf_counter() - start
        return BaselineResult(name=COSINE, description=about, predictions=predictions, seconds=seconds)

    def _raise_missing_base(self) -> NoReturn:
        raise CheckpointError(f"{self.tuning.base.path}: the base model was deleted during the run")

    def _run_random_weights(self) -> BaselineResult | None:
        """Train the same model from random weights on the same examples, as a baseline; None without its directory."""
        if self.tuning.tune.grpo is not None or not self.ranks.broadcast_object(
            resolve_path(self.tuning.base.path).exists()
        ):
            return None
        overrides = {
            "task.train_examples": self.plan.max_train_examples,
            "train.seed": self.plan.seeds[0],
            "tune.trainable_layers": {"kind": "full"},
            "tune.layer_decay": None,
            "tune.distill": None,
        }
        tuning = build_finetune_config(FinetuneOptions(method="full+from-scratch", overrides=overrides), self.tuning)
        context = TrialContext(task_data=self.task_data, ranks=self.ranks)
        result = self._fit_trial(tuning, self.run_dir.get_trial(RANDOM), context, is_baseline=True)
        return BaselineResult(
            name=RANDOM,
            description="Same model from random weights",
            predictions=read_predictions(result, self.task_data.headline_split),
            seconds=result["summary"]["seconds"],
        )

    def _save_model(self, trial: FinetuneTrial, trial_dir: RunDir, threshold: float | None) -> None:
        """Save a trial's model, task and predictions as those of the run."""
        model, method = trial.model, self.tuning.method
        methods.save(model.eval(), method, self.run_dir.path, base=self.tuning.base.path, overwrite=True)
        build_saved_task(trial, threshold).write(self.run_dir.path)
        if not self.plan.is_single:
            io.atomic_write(self.run_dir.predictions, trial_dir.predictions.read_bytes())


def build_saved_task(trial: FinetuneTrial, threshold: float | None) -> SavedTask:
    """Return the task settings that inference needs."""
    task_data, encoder, task_config = trial.context.task_data, trial.encoders.encoders[0], trial.tuning.task
    task = task_data.task
    rules, columns = encoder.rules, get_columns(task)
    members = [
        TaskMember(
            name=member.task.name,
            scale=member.rules.scale,
            max_length=member.rules.max_length,
            max_new_tokens=member.rules.max_new_tokens or None,
        )
        for member in (trial.encoders.encoders if trial.encoders.has_separate_heads else ())
    ]
    return SavedTask(
        name=task.name,
        task_kind=task.kind,
        type=None if members else task.kind,
        labels=task.labels,
        metrics=task.metrics,
        scale=None if task_data.members else rules.scale,
        template=task.template,
        text=task_config.text or columns[0],
        pair=task_config.pair or columns[1],
        max_length=rules.max_length,
        stride=rules.stride,
        max_new_tokens=rules.max_new_tokens or None,
        virtual_tokens=encoder.slots,
        threshold=threshold,
        members=tuple(members),
    )
