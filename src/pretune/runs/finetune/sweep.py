"""Fine-tuning run: trials, baselines, scores, and the model that is best on dev.

    run = pt.finetune("runs/bert", task="sst2", method="lora", out="runs/bert-sst2")
    run.predict(["a gorgeous, witty, seductive movie"])

Invalid options are rejected before any computation starts. An interrupted run continues with `resume=True`: finished
trials are skipped, and the interrupted one resumes from its last checkpoint.

Under `torchrun` all ranks take part in each trial; rank 0 alone writes files and fits the simple baselines.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pretune.adaptation import methods
from pretune.core import config, io, log
from pretune.core.errors import CheckpointError, DataError, PretuneError, UsageError
from pretune.core.format import join_names
from pretune.core.migration import FORMAT_KEY, FORMAT_VERSION, migrate_run
from pretune.evaluation.baselines.run import COSINE, PROBE, RANDOM, BaselineResult, parse_baselines
from pretune.evaluation.baselines.table import MAX_TRAIN_EXAMPLES
from pretune.evaluation.similarity import compute_cosines
from pretune.inference.word_vectors import WordVectors
from pretune.reports.facts import format_subset
from pretune.runs.build_config import resolve_device
from pretune.runs.config import find_rates
from pretune.runs.defaults import RUN_FILE
from pretune.runs.finetune.adapted_model import build_task_head, has_backward_model
from pretune.runs.finetune.build_config import build_finetune_config, explain_rate, read_base_spec, read_tree
from pretune.runs.finetune.config import FinetuneConfig
from pretune.runs.finetune.finetuned_run import SCORES_FILE, FinetunedRun
from pretune.runs.finetune.linear_probe import TASK_KINDS, predict_with_probe
from pretune.runs.finetune.results import BaselineFactory, get_dev_score, read_predictions, write_results
from pretune.runs.finetune.saved_task import TASK_FILE, SavedTask, TaskMember
from pretune.runs.finetune.sweep_plan import TRIALS_DIR, SweepPlan
from pretune.runs.finetune.task_data import TaskData, check_sizes, count_labels, find_trainable_task, open_task
from pretune.runs.finetune.time_estimate import RemainingWork, estimate_baseline_seconds
from pretune.runs.finetune.trial import PREDICTIONS_FILE, TRIAL_FILE, FinetuneTrial, read_finished_trial
from pretune.runs.output_dir import build_resume_command, check_output_dir
from pretune.runs.pretrain_run import CHECKPOINTS_DIR, check_no_run
from pretune.runs.restore import check_model
from pretune.runs.run_dir import COST_FILE
from pretune.tasks.decode import Prediction
from pretune.tasks.encode import Items
from pretune.tasks.example import Example
from pretune.tasks.task import get_task_type
from pretune.tasks.user_table import get_columns
from pretune.training.checkpoints import RunLock, list_checkpoints
from pretune.training.distributed import Ranks, init_distributed, run_on_rank_zero
from pretune.training.guards import GracefulShutdown
from pretune.training.records import ScoresFile

Facts = dict[str, Any]
MAX_SEEDS = 1000
"""Larger numbers of seeds are rejected as a typing error."""


def run_finetune(
    model: str | os.PathLike[str] | None = None,
    *,
    out: str | os.PathLike[str],
    resume: bool = False,
    lr: float | Sequence[float] | None = None,
    seeds: int | None = None,
    train_examples: Sequence[int | None] = (),
    baselines: str | None = None,
    forgetting: str | os.PathLike[str] | None = None,
    vectors: str | os.PathLike[str] | None = None,
    device: str | None = None,
    **overrides: Any,
) -> FinetunedRun:
    """Fine-tune a model on a task and save it to `out`, with its scores, baselines and cost.

    Several rates in `lr` are compared on dev. `seeds` is the number of seeds, for a mean and a confidence interval.
    `train_examples` are training set sizes, None for all; several give a learning curve. `forgetting` is prepared data
    (`pretune prepare`); `vectors` a file of word vectors (`pretune vectors`) for the baseline of that name. Other
    arguments are those of `build_finetune_config`: a task by name, or train, dev and test files with their columns;
    method; epochs or steps; settings and changes.
    """
    run_dir = Path(out)
    rates: Sequence[float] = () if lr is None else (lr,) if isinstance(lr, int | float) else lr
    stop = GracefulShutdown(f"resume with `{build_resume_command('finetune', run_dir)}`", has_checkpoint=resume)
    plan_options: Facts = {"seeds": seeds, "train_examples": train_examples, "baselines": baselines}
    plan_options |= {"forgetting": forgetting, "vectors": vectors}
    with stop.handle_signals():
        if resume:
            tuning, plan = load_resumed_config(run_dir, model, rates, plan_options, **overrides)
            if (run_dir / COST_FILE).is_file():
                check_model(run_dir)
                log.info(f"{run_dir}: finished; nothing to resume")
                config.read_record(ScoresFile, run_dir / SCORES_FILE, CheckpointError)
                return FinetunedRun.open(run_dir)
        else:
            check_no_finetune_run(run_dir)
            tuning = build_finetune_config(model, lr=rates[0] if rates else None, **overrides)
            plan = build_plan(
                tuning, rates, **plan_options, stored_plan=read_tree(overrides.get("settings")).get("plan")
            )
        if tuning.task.name is not None:  # checked before its files are read
            build_task_head(find_trainable_task(tuning.task.name), read_base_spec(tuning.base.path), None, tuning.tune)
        task_data = open_task(tuning.task)
        check_sizes(task_data, tuning.task, plan.train_examples)
        with init_distributed(resolve_device(device)) as ranks:
            if tuning.train.batch < ranks.world:
                raise UsageError(
                    f"train.batch {tuning.train.batch} is smaller than the number of ranks, {ranks.world}; "
                    "increase it, or use fewer ranks"
                )
            with clean_up_on_error(run_dir) if ranks.is_first else contextlib.nullcontext():
                return FinetuneSweep(tuning, plan, task_data, run_dir, ranks, stop).run(resume=resume)


def build_plan(
    tuning: FinetuneConfig,
    rates: Sequence[float] = (),
    *,
    seeds: int | None = None,
    train_examples: Sequence[int | None] = (),
    baselines: str | None = None,
    forgetting: str | os.PathLike[str] | None = None,
    vectors: str | os.PathLike[str] | None = None,
    stored_plan: Any = None,
) -> SweepPlan:
    """Return the plan: from the arguments, with defaults of `stored_plan` (the run that is reproduced)."""
    first = tuning.train.seed
    plan = SweepPlan(
        rates=(tuning.train.lr,),
        seeds=(first,),
        train_examples=(tuning.task.train_examples,),
        baselines=parse_baselines("default"),
    )
    if stored_plan is not None:
        plan = config.from_dict(SweepPlan, stored_plan, location="plan")
    if seeds is not None and not 1 <= seeds <= MAX_SEEDS:
        raise UsageError(f"--seeds {seeds} must be from 1 to {MAX_SEEDS:,}")
    limit = tuning.task.train_examples
    if limit is not None and train_examples and tuple(train_examples) != (limit,):
        counts = ",".join("all" if count is None else str(count) for count in train_examples)
        raise UsageError(f"--train-examples {counts} and task.train_examples={limit} conflict; remove one")
    new_plan = replace(
        plan,
        rates=tuple(rates) or plan.rates,
        seeds=plan.seeds if seeds is None else tuple(range(first, first + seeds)),
        train_examples=tuple(train_examples) or plan.train_examples,
        baselines=plan.baselines if baselines is None else parse_baselines(baselines),
        forgetting=plan.forgetting if forgetting is None else os.fspath(forgetting),
        vectors=plan.vectors if vectors is None else os.fspath(vectors),
    )
    if new_plan.vectors is not None:
        WordVectors.load(new_plan.vectors)  # an invalid file raises before training
    return new_plan


@contextlib.contextmanager
def clean_up_on_error(run_dir: Path) -> Iterator[None]:
    """Restore the directory if an error occurs before training, so that the command can be repeated."""
    is_existing, had_run = run_dir.exists(), (run_dir / RUN_FILE).exists()
    try:
        yield
    except (UsageError, DataError, CheckpointError):
        with contextlib.suppress(OSError):
            if not had_run and {path.name for path in run_dir.iterdir()} <= {RUN_FILE}:
                (run_dir / RUN_FILE).unlink(missing_ok=True)
                if not is_existing:
                    run_dir.rmdir()
        raise


def check_no_finetune_run(run_dir: Path) -> None:
    """Raise if the directory already holds a run or a model."""
    check_output_dir(run_dir)
    check_no_run(run_dir)
    if (run_dir / TASK_FILE).is_file() or any(
        list_checkpoints(folder / CHECKPOINTS_DIR) for folder in run_dir.glob(f"{TRIALS_DIR}/*")
    ):
        raise UsageError(f"{run_dir}: already holds a run; use --resume, or choose another --out")


def load_resumed_config(
    run_dir: Path,
    model: str | os.PathLike[str] | None,
    rates: Sequence[float],
    plan_options: Mapping[str, Any],
    **overrides: Any,
) -> tuple[FinetuneConfig, SweepPlan]:
    """Return the settings and plan of the run in a directory; only options without effect on the result may change."""
    if not (run_dir / RUN_FILE).is_file():
        raise CheckpointError(f"{run_dir}: no run to resume ({RUN_FILE} is missing); start without --resume")
    tree = migrate_run(io.read_json(run_dir / RUN_FILE, CheckpointError), CheckpointError, str(run_dir / RUN_FILE))
    stored_config, plan = (
        FinetuneConfig.from_dict(tree, source=str(run_dir / RUN_FILE)),
        config.from_dict(SweepPlan, tree.get("plan"), location="plan"),
    )
    options: Mapping[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    train_changes = {path.removeprefix("train."): value for path, value in (options.get("changes") or {}).items()}
    lr = rates[0] if rates else None if find_rates(train_changes) else stored_config.train.lr
    new_config = build_finetune_config(model, lr=lr, **{"settings": stored_config, **options})
    new_plan = build_plan(new_config, rates, **plan_options, stored_plan=tree["plan"])
    for path, (new, old) in {**new_config.diff(stored_config), **config.diff(new_plan, plan)}.items():
        raise CheckpointError(f"{run_dir}: cannot change {path} from {old} to {new} in a resumed run")
    return new_config, plan


class FinetuneSweep:
    """Fine-tuning run: trials, baselines and results."""

    def __init__(
        self,
        tuning: FinetuneConfig,
        plan: SweepPlan,
        task_data: TaskData,
        run_dir: Path,
        ranks: Ranks,
        shutdown: GracefulShutdown,
    ) -> None:
        self.tuning, self.plan, self.task_data, self.run_dir = tuning, plan, task_data, run_dir
        self.ranks, self.shutdown = ranks, shutdown
        self.trials: list[Facts] = []
        self.encoded_items: dict[
            int | None, tuple[Items, ...]
        ] = {}  # by training set size, shared by all seeds and rates

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
        counts = count_labels(self.task_data.task, train)
        label_counts = join_names([f"{name} {count:,.6g}" for name, count in counts.items()])
        size = format_subset(len(train), self.task_data.parts.split_sizes.get("train"))
        log.info(f"train: {size}{f': {label_counts}' if label_counts else ''}")
        with contextlib.ExitStack() as stack:
            lock = None
            if self.ranks.is_first:
                lock = stack.enter_context(RunLock(self.run_dir, on_warning=log.warn))
                io.sweep(self.run_dir)
                if not resume:
                    check_no_finetune_run(self.run_dir)
                    io.write_json(
                        self.run_dir / RUN_FILE,
                        {FORMAT_KEY: FORMAT_VERSION, **self.tuning.to_dict(), "plan": config.to_dict(self.plan)},
                    )
            for tuning in self.plan.list_rate_trials(self.tuning):
                self._run_trial(tuning, lock, resume)
            best = max(self.trials, key=get_dev_score)
            for tuning in self.plan.list_remaining_trials(self.tuning, best["lr"]):
                self._run_trial(tuning, lock, resume)
            random = self._run_random_weights(resume) if RANDOM in self.plan.baselines else None
            model_baselines: dict[str, BaselineFactory] = {
                PROBE: self._run_probe,
                RANDOM: lambda train: random,
                COSINE: self._run_cosine,
            }
            arguments = (self.run_dir, self.tuning, self.plan, self.task_data, self.trials, model_baselines)
            finetuned_run: FinetunedRun = self.ranks.broadcast_object(
                run_on_rank_zero(self.ranks, lambda: write_results(*arguments))
            )
            return finetuned_run

    def _run_trial(self, tuning: FinetuneConfig, lock: RunLock | None, resume: bool) -> None:
        """Run one trial unless it is finished; the run's directory holds the best model so far."""
        trial_dir = self.plan.get_trial_dir(self.run_dir, tuning)
        self.shutdown.disarm()
        facts = self._load_finished_trial(trial_dir, resume)
        if facts is None:
            if trial_dir != self.run_dir:
                log.info(f"{trial_dir.name}:")
            trial = FinetuneTrial(
                tuning, self.task_data, trial_dir, self.ranks, self.shutdown, encoded_items=self.encoded_items,
                forgetting=self.plan.forgetting, remaining_work=self._estimate_remaining_work(),
            )  # fmt: skip
            facts = trial.run(lock if trial_dir == self.run_dir else None, resume=resume)
            full = [trial_facts for trial_facts in self.trials if trial_facts["labels"] == facts["labels"]]
            if self.ranks.is_first:
                if tuning.task.train_examples == self.plan.max_train_examples and get_dev_score(facts) > max(
                    map(get_dev_score, full), default=-1e9
                ):
                    self._save_model(trial, facts)
                io.write_json(trial_dir / TRIAL_FILE, facts)
                if trial_dir != self.run_dir:
                    io.remove(trial_dir / CHECKPOINTS_DIR)
        self.trials.append(facts)

    def _estimate_remaining_work(self) -> RemainingWork:
        """Return the work after the next trial: other trials, including random weights, and baselines."""
        train = self.task_data.select_train(self.plan.max_train_examples, self.tuning.task.split_seed)
        names = [name for name in self.plan.baselines if name != RANDOM]
        trials = self.plan.trial_count - len(self.trials) - 1 + (RANDOM in self.plan.baselines)
        return RemainingWork(
            trials=max(trials, 0), baselines=estimate_baseline_seconds(names, train, self.task_data.eval_examples)
        )

    def _load_finished_trial(self, run_dir: Path, resume: bool) -> Facts | None:
        """Return the facts of a finished trial, read by rank 0."""
        facts: Facts | None = self.ranks.broadcast_object(
            read_finished_trial(run_dir) if resume and self.ranks.is_first else None
        )
        return facts

    def _run_probe(self, train: Sequence[Example]) -> BaselineResult | None:
        task, start = self.task_data.task, time.perf_counter()
        if task.kind not in TASK_KINDS:
            return None
        predictions = predict_with_probe(
            self.tuning, task, train[:MAX_TRAIN_EXAMPLES], self.task_data.eval_examples, self.ranks.device
        )
        about, seconds = "Linear probe on the frozen model's features", time.perf_counter() - start
        return BaselineResult(name=PROBE, description=about, predictions=predictions, seconds=seconds)

    def _run_cosine(self, train: Sequence[Example]) -> BaselineResult | None:
        """Run the baseline of scored pairs: cosine similarity of the two texts by the base model."""
        base, start = self.tuning.base, time.perf_counter()
        if base.weights == "random":
            return None
        try:
            pairs = [(example.text, example.pair or "") for example in self.task_data.eval_examples]
            cosines = compute_cosines(base.path, pairs, device=str(self.ranks.device))
        except PretuneError as fault:  # a baseline must not end a trained run
            log.warn(f"baseline '{COSINE}': {fault}")
            return None
        labels = [float(example.label or 0.0) for example in train]
        low, high = min(labels), max(labels)
        predictions = [Prediction(value=low + (high - low) * float(cosine)) for cosine in cosines]
        about = "Cosine similarity of the two texts, by the model before fine-tuning"
        return BaselineResult(
            name=COSINE, description=about, predictions=predictions, seconds=time.perf_counter() - start
        )

    def _run_random_weights(self, resume: bool) -> BaselineResult:
        """Train the same model from random weights on the same examples, as a baseline."""
        changes: dict[str, Any] = {
            "task.train_examples": self.plan.max_train_examples,
            "train.seed": self.plan.seeds[0],
        }
        changes |= {"tune.trainable_layers": {"kind": "full"}, "tune.layer_decay": None}
        tuning = build_finetune_config(settings=self.tuning, method="full+from-scratch", changes=changes)
        trial_dir = self.run_dir / TRIALS_DIR / RANDOM
        facts = self._load_finished_trial(trial_dir, resume)
        if facts is None:
            remaining_work = replace(self._estimate_remaining_work(), trials=0)
            facts = FinetuneTrial(
                tuning, self.task_data, trial_dir, self.ranks, self.shutdown, remaining_work=remaining_work
            ).run(None, resume=resume)
            if self.ranks.is_first:
                io.write_json(trial_dir / TRIAL_FILE, facts)
                io.remove(trial_dir / CHECKPOINTS_DIR)
        predictions, seconds = read_predictions(facts, self.task_data.headline_split), facts["summary"]["seconds"]
        return BaselineResult(
            name=RANDOM, description="Same model from random weights", predictions=predictions, seconds=seconds
        )

    def _save_model(self, trial: FinetuneTrial, trial_facts: Facts) -> None:
        """Save a trial's model, task and predictions as those of the run."""
        model, method = trial.model, self.tuning.method
        methods.save(model.eval(), method, self.run_dir, base=self.tuning.base.path, overwrite=True)
        build_saved_task(trial, trial_facts["threshold"]).write(self.run_dir)
        if trial.run_dir != self.run_dir:
            io.atomic_write(self.run_dir / PREDICTIONS_FILE, (trial.run_dir / PREDICTIONS_FILE).read_bytes())


def build_saved_task(trial: FinetuneTrial, threshold: float | None) -> SavedTask:
    """Return the task settings that inference needs."""
    task, encoder, task_config = trial.task, trial.encoders.encoders[0], trial.tuning.task
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
        type=None if members else get_task_type(task.kind),
        labels=task.labels,
        metrics=task.metrics,
        scale=None if trial.task_data.members else rules.scale,
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
