"""Fine-tuning of a model on a task by any method: `pretune finetune` and `pt.finetune`.

    run = pt.finetune("runs/bert", task="sst2", method="lora", out="runs/sst2")
    run.predict(["a gorgeous, witty, seductive movie"])

Invalid options are rejected before any computation starts. An interrupted run continues with `resume=True`: finished
trials are skipped, and the interrupted one resumes from its last checkpoint.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pretune.core import config as specs
from pretune.core import log
from pretune.core.api import check_arguments
from pretune.core.config.specs import get_fields
from pretune.core.errors import CheckpointError, DataError, ResourceError, UsageError
from pretune.core.run_dir import RunDir
from pretune.evaluation.baselines import parse_baselines
from pretune.inference.word_vectors import WordVectors
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
from pretune.runs.verify import check_model
from pretune.training.distributed import init_distributed, resolve_device
from pretune.training.loop import GracefulShutdown
from pretune.training.records import ScoresFile

Facts = dict[str, Any]
MAX_SEEDS = 1000
"""Larger numbers of seeds are rejected as a typing error."""
SETTING_PATHS = [
    f"{section}.{name}"
    for section, spec in (("train", FinetuneTrainConfig), ("data", SequenceConfig), ("tune", AdaptationConfig))
    for name in get_fields(spec)
]
"""Settings that `overrides` takes and that an unknown argument may mean."""


@check_arguments(SETTING_PATHS)
def finetune(
    model: str | os.PathLike[str] | None = None,
    *,
    out: str | os.PathLike[str],
    task: str | None = None,
    train: str | os.PathLike[str] | None = None,
    dev: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    type: str | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    data: str | os.PathLike[str] | None = None,
    method: str | None = None,
    lr: float | Sequence[float] | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    seeds: int | None = None,
    train_examples: int | Sequence[int | None] | None = (),
    baselines: str | None = None,
    vectors: str | os.PathLike[str] | None = None,
    forgetting: str | os.PathLike[str] | None = None,
    teacher: str | os.PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    strict: bool = False,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> FinetunedRun:
    """Fine-tune a model on a task, and save it to `out` with its scores, baselines and cost.

    Give a task by name, or a table as `train`. Learning rate and early stopping are chosen on the validation set; the
    headline score is that of the test set if there is one.

    Args:
        model: A pre-trained model: a run, a Hugging Face directory, hf:OWNER/NAME, or a short name (minilm).
        out: Output directory of the run.
        task: Name of a task (`pt.list_tasks`); several, comma-separated, are trained together.
        train: Table of training examples: CSV, TSV, JSONL or CoNLL.
        dev: Table of validation examples; None: a stratified split of `train`.
        test: Table of test examples.
        type: Type of the task of a table ("classification", "regression", "tagging" …); None: found from its labels.
        text: Column of the text.
        pair: Column of the second text.
        label: Column of the label.
        data: Directory of task data.
        method: "full" (default), "frozen", "gradual", "lora", "qlora", "adapter", …; see `pt.list_methods`.
        lr: Peak learning rate; several are compared on the validation set. None: the method's default.
        epochs: Passes over the training examples.
        steps: Optimizer steps, instead of epochs.
        seeds: Number of seeds; reports mean and 95 % confidence interval.
        train_examples: Number of training examples, None for all; several give a learning curve.
        baselines: "default", "all", "none", or names, comma-separated.
        vectors: File of word vectors (`pt.train_vectors`) for the baseline of static vectors.
        forgetting: Directory of `pt.prepare`: measure the pre-training loss on it before and after.
        teacher: Run fine-tuned on the same task, of the same vocabulary, whose outputs the model imitates.
        resume: Continue the unfinished run in `out`; other arguments may be left out.
        force: Allow fewer than 5 training examples, or classes without any.
        strict: Refuse tables with a blank text or label; by default their rows are skipped and counted.
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
    counts = (train_examples,) if isinstance(train_examples, int) else train_examples
    options: dict[str, Any] = {
        "task": task, "type": type, "train": train, "dev": dev, "test": test, "text": text, "pair": pair,
        "label": label, "data": data, "force": force or None, "strict": strict or None, "method": method,
        "epochs": epochs, "steps": steps, "config": config, "overrides": overrides, "teacher": teacher,
    }  # fmt: skip
    return run_finetune(
        model,
        out=out,
        resume=resume,
        lr=lr,
        seeds=seeds,
        train_examples=counts or (),
        baselines=baselines,
        forgetting=forgetting,
        vectors=vectors,
        device=device,
        **options,
    )


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
    **options: Any,
) -> FinetunedRun:
    """Fine-tune a model on a task and save it to `out`, with its scores, baselines and cost.

    Several rates in `lr` are compared on dev. `seeds` is the number of seeds, for a mean and a confidence interval.
    `train_examples` are training set sizes, None for all; several give a learning curve. `forgetting` is prepared data
    (`pretune prepare`); `vectors` a file of word vectors (`pretune vectors`) for the baseline of that name. Other
    arguments are those of `build_finetune_config`: a task by name, or train, dev and test files with their columns;
    method; epochs or steps; config and overrides.
    """
    run_dir = RunDir(Path(out))
    rates: Sequence[float] = () if lr is None else (lr,) if isinstance(lr, int | float) else lr
    stop = GracefulShutdown(f"resume with `{run_dir.build_resume_command('finetune')}`", has_checkpoint=resume)
    plan_options: Facts = {"seeds": seeds, "train_examples": train_examples, "baselines": baselines}
    plan_options |= {"forgetting": forgetting, "vectors": vectors}
    with stop.handle_signals():
        if resume:
            resume = run_dir.can_resume(can_start=model is not None or options.get("config") is not None)
        if resume:
            tuning, plan = load_resumed_config(run_dir, model, rates, plan_options, **options)
            if run_dir.is_finished:
                check_model(run_dir)
                log.info(f"{run_dir.path}: finished; nothing to resume")
                specs.read_record(ScoresFile, run_dir.scores, CheckpointError)
                return FinetunedRun.open(run_dir.path)
        else:
            run_dir.check_free()
            tuning = build_finetune_config(model, lr=rates[0] if rates else None, **options)
            plan = build_plan(tuning, rates, **plan_options, stored_plan=read_config(options.get("config")).get("plan"))
        if tuning.task.name is not None:  # checked before its files are read
            build_task_head(find_trainable_task(tuning.task.name), read_base_spec(tuning.base.path), None, tuning.tune)
        task_data = open_task(tuning.task)
        check_sizes(task_data, tuning.task, plan.train_examples)
        with init_distributed(resolve_device(device)) as ranks:
            tuning.train.check_device(ranks.device)
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
        plan = specs.from_dict(SweepPlan, stored_plan, location="plan")
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


def load_resumed_config(
    run_dir: RunDir,
    model: str | os.PathLike[str] | None,
    rates: Sequence[float],
    plan_options: Mapping[str, Any],
    **options: Any,
) -> tuple[FinetuneConfig, SweepPlan]:
    """Return the settings and plan of the run in a directory; only options without effect on the result may change."""
    located_settings = run_dir.locate_settings()
    tree = located_settings.tree
    stored_config = FinetuneConfig.from_dict(tree, source=str(run_dir.settings)).move_paths(located_settings)
    plan = specs.from_dict(SweepPlan, tree.get("plan"), location="plan")
    options = {name: value for name, value in options.items() if value is not None}
    lr = rates[0] if rates else None if find_rates(options.get("overrides", {})) else stored_config.train.lr
    new_config = build_finetune_config(model, lr=lr, **{"config": stored_config, **options}).move_paths(
        located_settings
    )
    plan_paths = {name: os.fspath(value) for name in ("forgetting", "vectors") if (value := plan_options.get(name))}
    if not run_dir.is_finished:
        located_settings.check({**new_config.to_dict(), "plan": {**tree["plan"], **plan_paths}})
    new_plan = build_plan(new_config, rates, **plan_options, stored_plan=tree["plan"])
    plan_changes = {
        path: values
        for path, values in specs.diff(new_plan, plan).items()
        if f"plan.{path}" not in located_settings.missing
    }
    for path, (new, old) in {**new_config.diff(stored_config), **plan_changes}.items():
        raise CheckpointError(f"{run_dir.path}: cannot change {path} from {old} to {new} in a resumed run")
    return new_config, new_plan
