"""Fine-tuning of a model on a task by any method: `pretune finetune` and `pt.finetune`.

    run = pt.finetune("runs/bert", task="sst2", method="lora", out="runs/sst2")
    run.predict(["a gorgeous, witty, seductive movie"])

Invalid options are rejected before any computation starts. An interrupted run continues with `resume=True`: finished
trials are skipped, and the interrupted one resumes from its last checkpoint.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pretune.core import config as specs
from pretune.core import log
from pretune.core.api import require_out, take_options
from pretune.core.config.specs import get_fields
from pretune.core.errors import CheckpointError, DataError, ResourceError, UsageError, suggest
from pretune.core.run_dir import RunDir
from pretune.evaluation.baselines import ALL_BASELINES, BASELINE_SETS
from pretune.runs.config import find_rates, read_config
from pretune.runs.finetune.adapted_model import build_task_head
from pretune.runs.finetune.config import (
    AdaptationConfig,
    FinetuneConfig,
    FinetuneTrainConfig,
    SequenceConfig,
    SweepPlan,
)
from pretune.runs.finetune.defaults import build_finetune_config, read_base_spec
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.finetune.sweep import FinetuneSweep
from pretune.runs.finetune.task_data import check_sizes, find_trainable_task, open_task
from pretune.runs.task_options import FinetuneOptions
from pretune.runs.verify import check_model
from pretune.tasks.types import TASK_TYPES
from pretune.training.distributed import init_distributed, resolve_device
from pretune.training.loop import GracefulShutdown
from pretune.training.records import ScoresFile

MAX_SEEDS = 1000
"""Larger numbers of seeds are rejected as a typing error."""
SETTING_PATHS = [
    f"{section}.{name}"
    for section, spec in (("train", FinetuneTrainConfig), ("data", SequenceConfig), ("tune", AdaptationConfig))
    for name in get_fields(spec)
]
"""Settings that `overrides` takes and that an unknown argument may mean."""


@take_options(FinetuneOptions, required_names=["out"], paths=SETTING_PATHS)
def finetune(options: FinetuneOptions) -> FinetunedRun:
    """Fine-tune a model on a task, and save it to `out` with its scores, baselines and cost.

    Give a task by name, or a table as `train`. Learning rate and early stopping are chosen on the validation set; the
    headline score is that of the test set if there is one.

    Args:
        model: A pre-trained model: a run, a Hugging Face directory, hf:OWNER/NAME, or a short name (small-encoder).
        task: Name of a task (`pt.list_tasks`); several, comma-separated, are trained together.
        type: Type of the task of a table ("classification", "regression", "tagging" …); None: found from its labels.
        train: Table of training examples: CSV, TSV, JSONL or CoNLL.
        dev: Table of validation examples; None: a stratified split of `train`.
        test: Table of test examples.
        text: Column of the text.
        pair: Column of the second text.
        label: Column of the label.
        reward: Reward of sampled answers, which trains a decoder: "exact", "number", "regex", another metric of texts,
            or a function of an answer and its reference.
        out: Output directory of the run.
        method: "full" (default), "frozen", "gradual", "lora", "qlora", "adapter", …; see `pt.list_methods`.
        seeds: Number of seeds; reports mean and 95 % confidence interval.
        train_examples: Number of training examples, None for all; several give a learning curve.
        lr: Peak learning rate; several are compared on the validation set. None: the method's default.
        epochs: Passes over the training examples.
        steps: Optimizer steps, instead of epochs.
        baselines: "default", "all", "none", or names, comma-separated.
        forgetting: Directory of `pt.prepare`: measure the pre-training loss on it before and after.
        vectors: File of word vectors (`pt.train_vectors`) for the baseline of static vectors.
        teacher: Run fine-tuned on the same task, of the same vocabulary, whose outputs the model imitates.
        data: Directory of task data.
        force: Allow fewer than 5 training examples, or classes without any.
        strict: Refuse tables with a blank text or label; by default their rows are skipped and counted.
        resume: Continue the unfinished run in `out`; other arguments may be left out.
        config: Settings: a run.json, or a YAML file, or the same tree as a mapping.
        overrides: Settings by path, such as {"method.rank": 16, "train.batch": 64}; they go before `config`.
        device: "cpu" or "cuda"; None: a GPU if available.

    Returns:
        The run: its path, its headline score (`run.score`), `run.predict(inputs)`, `run.load()`.

    Raises:
        UsageError: invalid arguments, before anything is computed.
        DataError: a table that cannot be read as a task.
        CheckpointError: a damaged model, or a run in `out` that cannot be resumed.
    """
    return run_finetune(options)


def run_finetune(options: FinetuneOptions) -> FinetunedRun:
    """Fine-tune a model on a task and save it, with its scores, baselines and cost."""
    run_dir, resume = RunDir(Path(require_out(options.out))), options.resume
    stop = GracefulShutdown(f"resume with `{run_dir.build_resume_command('finetune')}`", has_checkpoint=resume)
    with stop.handle_signals():
        if resume:
            resume = run_dir.can_resume(can_start=options.model is not None or options.config is not None)
        if resume:
            tuning, plan = load_resumed_config(run_dir, options)
            if run_dir.is_finished:
                check_model(run_dir)
                log.info(f"{run_dir.path}: finished; nothing to resume")
                specs.read_record(ScoresFile, run_dir.scores, CheckpointError)
                return FinetunedRun.open(run_dir.path)
        else:
            run_dir.check_free()
            tuning = build_finetune_config(options)
            plan = build_plan(tuning, options)
        if tuning.task.name is not None:  # checked before its files are read
            build_task_head(find_trainable_task(tuning.task.name), read_base_spec(tuning.base.path), None, tuning.tune)
        task_data = open_task(tuning.task)
        check_sizes(task_data, tuning.task, plan.train_examples)
        with init_distributed(resolve_device(options.device)) as ranks:
            tuning.train.check_device(ranks.device)
            if tuning.train.batch < ranks.world:
                raise UsageError(
                    f"train.batch {tuning.train.batch} is smaller than the number of ranks, {ranks.world}; "
                    "increase it, or use fewer ranks"
                )
            with clean_up_on_error(run_dir) if ranks.is_first else contextlib.nullcontext():
                return FinetuneSweep(tuning, plan, task_data, run_dir, ranks, stop).run(resume=resume)


def build_plan(tuning: FinetuneConfig, options: FinetuneOptions, default_plan: SweepPlan | None = None) -> SweepPlan:
    """Return the plan of the options; defaults are those of `default_plan`, else of the run that is reproduced."""
    first, plan = tuning.train.seed, default_plan
    if plan is None and (stored_plan := read_config(options.config).get("plan")) is not None:
        plan = specs.from_dict(SweepPlan, stored_plan, location="plan")
    if plan is None:
        plan = SweepPlan(
            rates=(tuning.train.lr,),
            seeds=(first,),
            train_examples=(tuning.task.train_examples,),
            baselines=BASELINE_SETS["default"],
        )
    seeds, counts, limit = options.seeds, options.example_counts, tuning.task.train_examples
    if seeds is not None and not 1 <= seeds <= MAX_SEEDS:
        raise UsageError(f"--seeds {seeds} must be from 1 to {MAX_SEEDS:,}")
    if limit is not None and counts and counts != (limit,):
        names = ",".join("all" if count is None else str(count) for count in counts)
        raise UsageError(f"--train-examples {names} and task.train_examples={limit} conflict; remove one")
    new_plan = replace(
        plan,
        rates=options.rates or plan.rates,
        seeds=plan.seeds if seeds is None else tuple(range(first, first + seeds)),
        train_examples=counts or plan.train_examples,
        baselines=plan.baselines if options.baselines is None else parse_baselines(options.baselines),
        forgetting=plan.forgetting if options.forgetting is None else os.fspath(options.forgetting),
        vectors=plan.vectors if options.vectors is None else os.fspath(options.vectors),
    )
    if new_plan.vectors is not None:
        from pretune.inference.word_vectors import WordVectors  # NOTE: slow to import

        WordVectors.load(new_plan.vectors)  # an invalid file raises before training
    return new_plan


def parse_baselines(text: str) -> tuple[str, ...]:
    """Parse a list of baselines: default, all, none, or comma-separated names."""
    if text in BASELINE_SETS:
        return BASELINE_SETS[text]
    types = [TASK_TYPES.get(kind) for kind in TASK_TYPES]
    slots = {name: slot for task_type in types for slot, name in task_type.scoring.baselines.items() if name != slot}
    names = tuple(dict.fromkeys(slots.get(name, name) for name in text.split(",")))
    for name in names:
        if name not in ALL_BASELINES:
            allowed_names = [*BASELINE_SETS, *ALL_BASELINES, *slots]
            raise UsageError(
                f"unknown baseline '{name[:40]}'{suggest(name, allowed_names)} (allowed: {', '.join(allowed_names)})"
            )
    return names


@contextlib.contextmanager
def clean_up_on_error(run_dir: RunDir) -> Iterator[None]:
    """Restore the directory if an error occurs before training, so that the command can be repeated."""
    path, is_existing, had_run = run_dir.path, run_dir.path.exists(), run_dir.settings.exists()
    try:
        yield
    except (UsageError, DataError, CheckpointError):
        with contextlib.suppress(OSError, ResourceError):
            if not had_run and {*path.iterdir()} <= {run_dir.settings}:
                run_dir.remove_settings()
                if not is_existing:
                    path.rmdir()
        raise


def load_resumed_config(run_dir: RunDir, options: FinetuneOptions) -> tuple[FinetuneConfig, SweepPlan]:
    """Return the settings and plan of the run in a directory; only options without effect on the result may change."""
    located_settings = run_dir.locate_settings()
    tree = located_settings.tree
    stored_config = FinetuneConfig.from_dict(tree, source=str(run_dir.settings)).move_paths(located_settings)
    plan = specs.from_dict(SweepPlan, tree.get("plan"), location="plan")
    has_rate = options.rates or find_rates(options.overrides or {})
    same_rate = options if has_rate else replace(options, lr=stored_config.train.lr)
    new_config = build_finetune_config(same_rate, stored_config if options.config is None else None)
    new_config = new_config.move_paths(located_settings)
    changed_paths = {"forgetting": options.forgetting, "vectors": options.vectors}
    plan_paths = {name: os.fspath(path) for name, path in changed_paths.items() if path}
    if not run_dir.is_finished:
        located_settings.check({**new_config.to_dict(), "plan": {**tree["plan"], **plan_paths}})
    new_plan = build_plan(new_config, options, plan)
    plan_changes = {
        path: values
        for path, values in specs.diff(new_plan, plan).items()
        if f"plan.{path}" not in located_settings.missing
    }
    for path, (new, old) in {**new_config.diff(stored_config), **plan_changes}.items():
        raise CheckpointError(f"{run_dir.path}: cannot change {path} from {old} to {new} in a resumed run")
    return new_config, new_plan
