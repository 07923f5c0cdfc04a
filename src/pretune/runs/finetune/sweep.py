"""A whole fine-tuning run: trial after trial, then the baselines, the scores and the model that was best on dev.

    fine = pt.finetune("runs/bert", task="sst2", method="lora", out="runs/bert-sst2")
    fine.predict(["a gorgeous, witty, seductive movie"])

What is wrong with a wish is told before anything is computed. What was killed goes on with `resume=True`: trials that
are done are not done again, and the one at work goes on from its last checkpoint.

Under `torchrun` all ranks take part in each trial, and agree on what comes next; the first one alone writes, and fits
the baselines that are not trained.
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
"""More runs of the same thing than this are a slip of the finger."""


def finetune(
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
    """Adapt a model to a task and leave it in `out`, with its scores, those of baselines, and what it cost.

    Several rates in `lr` are compared on dev. `seeds` runs give a mean and an interval. `train_examples` are numbers of
    training examples, None for all: with several, a learning curve. `forgetting` is prepared data (`pretune prepare`);
    `vectors` a file of word vectors (`pretune vectors`) for the baseline of that name.
    Other wishes are those of `build_finetune_config`: a task by name, or train, dev and test files with their columns; method; epochs
    or steps; settings and changes.
    """
    where = Path(out)
    rates: Sequence[float] = () if lr is None else (lr,) if isinstance(lr, int | float) else lr
    stop = GracefulShutdown(f"go on with `{build_resume_command('finetune', where)}`", has_checkpoint=resume)
    tries: Facts = {"seeds": seeds, "train_examples": train_examples, "baselines": baselines}
    tries |= {"forgetting": forgetting, "vectors": vectors}
    with stop.handle_signals():
        if resume:
            tuning, plan = load_resumed_config(where, model, rates, tries, **overrides)
            if (where / COST_FILE).is_file():
                check_model(where)
                log.info(f"{where}: is finished; there is nothing to resume")
                config.read_record(ScoresFile, where / SCORES_FILE, CheckpointError)
                return FinetunedRun.open(where)
        else:
            check_no_finetune_run(where)
            tuning = build_finetune_config(model, lr=rates[0] if rates else None, **overrides)
            plan = build_plan(tuning, rates, **tries, stored_plan=read_tree(overrides.get("settings")).get("plan"))
        if tuning.task.name is not None:  # before its files are read
            build_task_head(find_trainable_task(tuning.task.name), read_base_spec(tuning.base.path), None, tuning.tune)
        opened = open_task(tuning.task)
        check_sizes(opened, tuning.task, plan.train_examples)
        with init_distributed(resolve_device(device)) as many:
            if tuning.train.batch < many.world:
                raise UsageError(
                    f"train.batch {tuning.train.batch}: fewer examples a step than the {many.world} ranks; raise it, "
                    "or start fewer"
                )
            with clean_up_on_error(where) if many.is_first else contextlib.nullcontext():
                return FinetuneSweep(tuning, plan, opened, where, many, stop).run(resume=resume)


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
    """What a run tries: what is wished for, or what the run that is repeated had tried (`before`)."""
    first = tuning.train.seed
    found = SweepPlan(
        rates=(tuning.train.lr,),
        seeds=(first,),
        train_examples=(tuning.task.train_examples,),
        baselines=parse_baselines("default"),
    )
    if stored_plan is not None:
        found = config.from_dict(SweepPlan, stored_plan, location="plan")
    if seeds is not None and not 1 <= seeds <= MAX_SEEDS:
        raise UsageError(f"--seeds {seeds} must be at least 1, and at most {MAX_SEEDS:,}")
    limit = tuning.task.train_examples
    if limit is not None and train_examples and tuple(train_examples) != (limit,):
        shown = ",".join("all" if count is None else str(count) for count in train_examples)
        raise UsageError(
            f"--train-examples {shown} and task.train_examples={limit} both state the training examples; keep one of them"
        )
    made = replace(
        found,
        rates=tuple(rates) or found.rates,
        seeds=found.seeds if seeds is None else tuple(range(first, first + seeds)),
        train_examples=tuple(train_examples) or found.train_examples,
        baselines=found.baselines if baselines is None else parse_baselines(baselines),
        forgetting=found.forgetting if forgetting is None else os.fspath(forgetting),
        vectors=found.vectors if vectors is None else os.fspath(vectors),
    )
    if made.vectors is not None:
        WordVectors.load(made.vectors)  # a bad file is refused before the training, and not after it
    return made


@contextlib.contextmanager
def clean_up_on_error(run_dir: Path) -> Iterator[None]:
    """Where a mistake is found before anything was learnt, the directory is as it was, so that one can try again."""
    there, begun = run_dir.exists(), (run_dir / RUN_FILE).exists()
    try:
        yield
    except (UsageError, DataError, CheckpointError):
        with contextlib.suppress(OSError):
            if not begun and {one.name for one in run_dir.iterdir()} <= {RUN_FILE}:
                (run_dir / RUN_FILE).unlink(missing_ok=True)
                if not there:
                    run_dir.rmdir()
        raise


def check_no_finetune_run(run_dir: Path) -> None:
    """Refuse a directory that has a run or a model already."""
    check_output_dir(run_dir)
    check_no_run(run_dir)
    if (run_dir / TASK_FILE).is_file() or any(
        list_checkpoints(folder / CHECKPOINTS_DIR) for folder in run_dir.glob(f"{TRIALS_DIR}/*")
    ):
        raise UsageError(f"{run_dir}: there is a run already; go on with --resume, or choose another --out")


def load_resumed_config(
    run_dir: Path,
    model: str | os.PathLike[str] | None,
    rates: Sequence[float],
    plan_options: Mapping[str, Any],
    **overrides: Any,
) -> tuple[FinetuneConfig, SweepPlan]:
    """The settings and the plan of the run that is there; only what does not change what is learnt may be changed."""
    if not (run_dir / RUN_FILE).is_file():
        raise CheckpointError(
            f"{run_dir}: there is no run to resume ({RUN_FILE} is missing); start it without --resume"
        )
    tree = migrate_run(io.read_json(run_dir / RUN_FILE, CheckpointError), CheckpointError, str(run_dir / RUN_FILE))
    stored, plan = (
        FinetuneConfig.from_dict(tree, source=str(run_dir / RUN_FILE)),
        config.from_dict(SweepPlan, tree.get("plan"), location="plan"),
    )
    given: Mapping[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    changed = {path.removeprefix("train."): value for path, value in (given.get("changes") or {}).items()}
    lr = rates[0] if rates else None if find_rates(changed) else stored.train.lr
    wished = build_finetune_config(model, lr=lr, **{"settings": stored, **given})
    again = build_plan(wished, rates, **plan_options, stored_plan=tree["plan"])
    for path, (new, old) in {**wished.diff(stored), **config.diff(again, plan)}.items():
        raise CheckpointError(f"{run_dir}: {path} was {old} and cannot become {new} in a run that goes on")
    return wished, plan


class FinetuneSweep:
    """A run at work: its trials one by one, and what is made of them."""

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
        ] = {}  # by the number of labels: the same for all seeds and rates

    def run(self, *, resume: bool) -> FinetunedRun:
        """From the beginning, or from where it was."""
        for note in self.task_data.parts.notes:
            log.info(note)
        if self.tuning.tune.scalar_mix is None and has_backward_model(self.tuning.base):
            log.info(f"{self.tuning.base.path}: of its two models the one from the left is adapted; `mix` reads both")
        if len(self.plan.rates) == 1:
            log.info(explain_rate(self.tuning))
        train = self.task_data.select_train(self.plan.max_train_examples, self.tuning.task.split_seed)
        counts = count_labels(self.task_data.task, train)
        shown = join_names([f"{name} {count:,.6g}" for name, count in counts.items()])
        log.info(
            f"train: {format_subset(len(train), self.task_data.parts.split_sizes.get('train'))}{f': {shown}' if shown else ''}"
        )
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
            more: dict[str, BaselineFactory] = {
                PROBE: self._run_probe,
                RANDOM: lambda train: random,
                COSINE: self._run_cosine,
            }
            given = (self.run_dir, self.tuning, self.plan, self.task_data, self.trials, more)
            found: FinetunedRun = self.ranks.broadcast_object(
                run_on_rank_zero(self.ranks, lambda: write_results(*given))
            )
            return found

    def _run_trial(self, tuning: FinetuneConfig, lock: RunLock | None, resume: bool) -> None:
        """One trial, unless it is done; the model of the best so far lies in the run's directory."""
        where = self.plan.get_trial_dir(self.run_dir, tuning)
        self.shutdown.disarm()
        found = self._load_finished_trial(where, resume)
        if found is None:
            if where != self.run_dir:
                log.info(f"{where.name}:")
            trial = FinetuneTrial(
                tuning, self.task_data, where, self.ranks, self.shutdown, encoded_items=self.encoded_items,
                forgetting=self.plan.forgetting, remaining_work=self._estimate_remaining_work(),
            )  # fmt: skip
            found = trial.run(lock if where == self.run_dir else None, resume=resume)
            full = [one for one in self.trials if one["labels"] == found["labels"]]
            if self.ranks.is_first:
                if tuning.task.train_examples == self.plan.max_train_examples and get_dev_score(found) > max(
                    map(get_dev_score, full), default=-1e9
                ):
                    self._save_model(trial, found)
                io.write_json(where / TRIAL_FILE, found)
                if where != self.run_dir:
                    io.remove(where / CHECKPOINTS_DIR)
        self.trials.append(found)

    def _estimate_remaining_work(self) -> RemainingWork:
        """What follows the trial that is next: other trials, among them that of random weights, and baselines."""
        train = self.task_data.select_train(self.plan.max_train_examples, self.tuning.task.split_seed)
        names = [name for name in self.plan.baselines if name != RANDOM]
        trials = self.plan.trial_count - len(self.trials) - 1 + (RANDOM in self.plan.baselines)
        return RemainingWork(
            trials=max(trials, 0), baselines=estimate_baseline_seconds(names, train, self.task_data.eval_examples)
        )

    def _load_finished_trial(self, run_dir: Path, resume: bool) -> Facts | None:
        """What the first rank finds of a trial that has come to its end."""
        found: Facts | None = self.ranks.broadcast_object(
            read_finished_trial(run_dir) if resume and self.ranks.is_first else None
        )
        return found

    def _run_probe(self, train: Sequence[Example]) -> BaselineResult | None:
        task, begun = self.task_data.task, time.perf_counter()
        if task.kind not in TASK_KINDS:
            return None
        said = predict_with_probe(
            self.tuning, task, train[:MAX_TRAIN_EXAMPLES], self.task_data.eval_examples, self.ranks.device
        )
        about, seconds = "A linear model on the frozen model's features", time.perf_counter() - begun
        return BaselineResult(name=PROBE, description=about, predictions=said, seconds=seconds)

    def _run_cosine(self, train: Sequence[Example]) -> BaselineResult | None:
        """The cosine of the two texts' vectors, by the base as it is: a baseline of scored pairs."""
        base, begun = self.tuning.base, time.perf_counter()
        if base.weights == "random":
            return None
        try:
            pairs = [(one.text, one.pair or "") for one in self.task_data.eval_examples]
            found = compute_cosines(base.path, pairs, device=str(self.ranks.device))
        except PretuneError as fault:  # a baseline does not end a run that is trained
            log.warn(f"baseline '{COSINE}': {fault}")
            return None
        labels = [float(one.label or 0.0) for one in train]
        low, high = min(labels), max(labels)
        said = [Prediction(value=low + (high - low) * float(one)) for one in found]
        about = "The cosine of the two texts' vectors, by the model before fine-tuning"
        return BaselineResult(name=COSINE, description=about, predictions=said, seconds=time.perf_counter() - begun)

    def _run_random_weights(self, resume: bool) -> BaselineResult:
        """The same model from random weights, trained whole on the same examples: a baseline."""
        wish: dict[str, Any] = {"task.train_examples": self.plan.max_train_examples, "train.seed": self.plan.seeds[0]}
        wish |= {"tune.trainable_layers": {"kind": "full"}, "tune.layer_decay": None}
        tuning = build_finetune_config(settings=self.tuning, method="full+random", changes=wish)
        where = self.run_dir / TRIALS_DIR / RANDOM
        found = self._load_finished_trial(where, resume)
        if found is None:
            rest = replace(self._estimate_remaining_work(), trials=0)
            found = FinetuneTrial(tuning, self.task_data, where, self.ranks, self.shutdown, remaining_work=rest).run(
                None, resume=resume
            )
            if self.ranks.is_first:
                io.write_json(where / TRIAL_FILE, found)
                io.remove(where / CHECKPOINTS_DIR)
        said, seconds = read_predictions(found, self.task_data.headline_split), found["summary"]["seconds"]
        return BaselineResult(
            name=RANDOM, description="The same model from random weights", predictions=said, seconds=seconds
        )

    def _save_model(self, trial: FinetuneTrial, trial_facts: Facts) -> None:
        """Write a model, its task and its predictions as those of the run."""
        model, method = trial.model, self.tuning.method
        methods.save(model.eval(), method, self.run_dir, base=self.tuning.base.path, overwrite=True)
        build_saved_task(trial, trial_facts["threshold"]).write(self.run_dir)
        if trial.run_dir != self.run_dir:
            io.atomic_write(self.run_dir / PREDICTIONS_FILE, (trial.run_dir / PREDICTIONS_FILE).read_bytes())


def build_saved_task(trial: FinetuneTrial, threshold: float | None) -> SavedTask:
    """What has to be known of a trial's task when its model reads new text."""
    task, encoder, wanted = trial.task, trial.encoders.encoders[0], trial.tuning.task
    rules, columns = encoder.rules, get_columns(task)
    members = [
        TaskMember(name=one.task.name, scale=one.rules.scale, max_length=one.rules.max_length,
               max_new_tokens=one.rules.new_tokens or None)
        for one in (trial.encoders.encoders if trial.encoders.has_separate_heads else ())
    ]  # fmt: skip
    return SavedTask(
        name=task.name,
        task_kind=task.kind,
        type=None if members else get_task_type(task.kind),
        labels=task.labels,
        metrics=task.metrics,
        scale=None if trial.task_data.members else rules.scale,
        template=task.template,
        text=wanted.text or columns[0],
        pair=wanted.pair or columns[1],
        max_length=rules.max_length,
        stride=rules.stride,
        max_new_tokens=rules.new_tokens or None,
        virtual_tokens=encoder.slots,
        threshold=threshold,
        members=tuple(members),
    )
