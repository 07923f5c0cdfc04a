"""Pre-training of any family with any objective on prepared data: `pretune pretrain` and `pt.pretrain`.

    run = pt.pretrain("bert-mini", data="data/books", objective="masked", budget="10m", out="runs/books")

Invalid options are rejected before any computation starts. A run is a function of its settings and its data: an
interrupted run continues with `resume=True` and gives the same result.
"""

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from pretune.core import config as specs
from pretune.core import log
from pretune.core.api import require_out, take_options
from pretune.core.config.specs import get_fields
from pretune.core.errors import CheckpointError
from pretune.core.run_dir import RunDir
from pretune.data.prepared_data import PreparedData
from pretune.runs.config import LENGTHS, DataConfig, PretrainConfig, PretrainTrainConfig, read_config
from pretune.runs.defaults import LENGTH_PATHS, build_pretrain_config, open_request
from pretune.runs.options import PretrainOptions
from pretune.runs.pretrain_run import PretrainedRun, PretrainRun, load_finished_run
from pretune.runs.recipes import is_recipe
from pretune.runs.short_runs import list_fitted, plan_named_run
from pretune.runs.verify import check_model
from pretune.text.tokenizer import Tokenizer
from pretune.training.checkpoints.manager import CheckpointManager, read_state
from pretune.training.distributed import Ranks, init_distributed, resolve_device, run_on_rank_zero
from pretune.training.loop import GracefulShutdown
from pretune.training.records import ResumeFile
from pretune.training.step import TrainState

SETTING_PATHS = [
    *(f"train.{name}" for name in get_fields(PretrainTrainConfig)),
    *(f"data.{name}" for name in get_fields(DataConfig)),
    *(f"model.{name}" for name in ("width", "depth", "heads")),
]
"""Settings that `overrides` takes and that an unknown argument may mean."""


@take_options(PretrainOptions, required_names=["out"], paths=SETTING_PATHS)
def pretrain(options: PretrainOptions) -> PretrainedRun:
    """Pre-train a model and save it to `out`, a directory that `pt.load` and transformers can load.

    Give one length: `steps`, `tokens`, `epochs` or `budget`. Defaults are those of the model's paper; in a run that
    reads less than a hundredth of its tokens, batch, optimizer, rate and schedule are fitted to the run.

    A recipe (`pt.pretrain("encoder", text="books/", budget="10m", out="runs/mine")`) chooses everything from the text,
    the device and the time; the settings and the reasons are in the log and in run.json. With `init_from` it trains
    that model further: its architecture stays, and its vocabulary, unless `overrides` set `model.vocab`.

    Args:
        model: Family and size, such as "bert-mini" (see `pt.list_models`), or "encoder", "decoder", "encoder-decoder":
            a recipe.
        data: Directory of `pt.prepare`.
        text: Files or folders of text, instead of `data`, for a recipe: it trains a tokenizer and prepares the text in
            `out`.
        out: Output directory of the run.
        objective: Training objective; see `pt.list_objectives`. None: that of the model's paper.
        steps: Number of optimizer steps.
        tokens: Number of tokens that the model reads; the last step is the first that reaches it.
        epochs: Number of passes over the data.
        budget: Wall-clock time: "10m", "1h30m", or seconds. The learning rate reaches the end of its schedule then.
        init_from: Run, Hugging Face directory or installed model ("minilm") whose weights training starts from.
        teacher: Run or Hugging Face directory of a model that the new one imitates; its vocabulary is that of the data.
        paper: Take batch, optimizer, rate and schedule of the paper in a short run too.
        resume: Continue the unfinished run in `out`; other arguments may be left out.
        stop_early: End when the validation loss has not fallen for 3 evaluations (`train.patience`), and save the
            weights with the lowest.
        config: Settings: a run.json, a YAML file, or the same tree as a mapping.
        overrides: Settings by path, such as {"train.lr": 1e-3, "model.depth": 6}; they go before `config`.
        device: "cpu" or "cuda"; None: a GPU if available.

    Returns:
        The run: its path (`run.path`), validation loss (`run.loss`) and summary; `run.load()` gives the model.

    Raises:
        UsageError: invalid arguments, before anything is computed.
        DataError, CheckpointError: damaged data, or a run in `out` that cannot be resumed.
        DivergedError: the loss is not finite for many steps in a row.
    """
    return run_pretrain(options)


def run_pretrain(
    options: PretrainOptions, *, started_at: float | None = None, ranks: Ranks | None = None
) -> PretrainedRun:
    """Run `pretrain` with a budget that counts from `started_at`, a time of `time.monotonic`, by default now.

    `ranks` are those of a run that this one is a part of.
    """
    started_at = time.monotonic() if started_at is None else started_at
    run_dir, resume = RunDir(Path(require_out(options.out))), options.resume
    stop = GracefulShutdown(f"resume with `{run_dir.build_resume_command('pretrain')}`", has_checkpoint=resume)
    with stop.handle_signals():
        settings, state, plan, planner, planned_run = None, None, None, None, None
        if resume:
            resume = run_dir.can_resume(can_start=options.model is not None or options.config is not None)
        if resume:
            settings = load_resumed_config(run_dir, options)
            plan = run_dir.read_settings().get("environment", {}).get("plan")
            finished_run = load_finished_run(run_dir)
            if finished_run is not None:
                check_model(run_dir)
                log.info(f"{run_dir.path}: finished; nothing to resume")
                return finished_run
        elif is_recipe(options):
            from pretune.runs.recipes.build import find_recipe, plan_run

            find_recipe(options)  # rejects options before anything is computed
            run_dir.check_free()
            planner = partial(plan_run, options, run_dir, started_at)
        else:
            request = open_request(options)
            settings = request if isinstance(request, PretrainConfig) else request.build()
            run_dir.check_free()  # checked again under the lock; here nothing is computed yet
            state = load_clock_history(settings, options)
            if not isinstance(request, PretrainConfig):
                planner = partial(plan_named_run, request, options.paper)
        processes = contextlib.nullcontext(ranks) if ranks else init_distributed(resolve_device(options.device))
        with processes as group:
            if planner is not None:  # on one rank, since speeds are measured
                make_plan = partial(planner, group.device, group.world)
                planned_run = group.broadcast_object(run_on_rank_zero(group, make_plan))
                settings, plan = planned_run.config, planned_run.plan
            assert settings is not None
            if resume and not group.broadcast_object(run_on_rank_zero(group, run_dir.has_progress)):
                settings, resume = replace(settings, moved_paths={}), False  # run.json is written again
                state = load_clock_history(settings, options)
            if ranks is not None:
                ranks.wait()  # until all have found the directory free
            run = PretrainRun(
                settings, run_dir, group, stop, started_at=started_at, resume=resume, state=state, plan=plan
            )
            if planned_run is not None and group.is_first:
                for message, write in ((planned_run.reason, log.info), (planned_run.warning, log.warn)):
                    if message:
                        write(message)
            return run.run()


def load_resumed_config(run_dir: RunDir, options: PretrainOptions) -> PretrainConfig:
    """Return the config of the run in a directory, with overrides that do not change the weights.

    `options` are some, or all that the run was started with. Without a length the run keeps its own. The first setting
    that differs is a CheckpointError, as are other data or another tokenizer.
    """
    located_settings, source = run_dir.locate_settings(), str(run_dir.settings)
    stored_config = PretrainConfig.from_dict(located_settings.tree, source=source).move_paths(located_settings)
    environment = specs.check_record(ResumeFile, located_settings.tree, CheckpointError, source).get("environment", {})
    if is_recipe(options):
        from pretune.runs.recipes.build import drop_choices

        options = drop_choices(options, environment.get("plan"), run_dir)
    is_whole = options.model is not None or options.config is not None
    has_length = not {*LENGTH_PATHS}.isdisjoint([*options.list_settings(), *(options.overrides or {})])
    if is_whole and options.config is None and not has_length:
        options = replace(options, **{name: getattr(stored_config.train, name) for name in LENGTHS})
    fitted_settings = list_fitted(environment.get("plan")) if is_whole else {}
    resumed_config = build_pretrain_config(options, None if is_whole else stored_config, fitted_settings)
    resumed_config = resumed_config.move_paths(located_settings)
    for path, (new, old) in resumed_config.diff(stored_config).items():
        raise CheckpointError(f"{run_dir.path}: {path} was {old} and cannot become {new} in a resumed run")
    located_settings.check(resumed_config.to_dict(), optional=("train.init_from",) if run_dir.has_checkpoints else ())
    _check_data(resumed_config.data.path, environment)
    return resumed_config


def _check_data(path: str, fingerprints: Mapping[str, object]) -> None:
    data = PreparedData.open(path)
    for name, value in (("tokenizer", Tokenizer.load(data.tokenizer).sha256), ("data", data.fingerprint)):
        if fingerprints.get(name, value) != value:
            raise CheckpointError(
                f"{path}: the {name} changed since the run started; prepare it again as it was, or start a new run"
            )


def load_clock_history(settings: PretrainConfig, options: PretrainOptions) -> TrainState:
    """Return the initial state; with the recorded progress if `options.config` is the run.json of a finished run.

    The progress of a run with a budget is recorded, so that it can be reproduced step by step. The state is empty where
    nothing is to be reproduced: no budget, a different one, or one passed explicitly.
    """
    source = options.config
    if settings.train.budget is None or options.budget is not None or not isinstance(source, str | os.PathLike):
        return TrainState()
    if read_config(source).get("train", {}).get("budget") != settings.train.budget:
        return TrainState()
    run_dir = RunDir(Path(source) if Path(source).is_dir() else Path(source).parent)
    if load_finished_run(run_dir) is None:
        return _warn_no_history(f"{run_dir.path}: no finished run next to its settings")
    try:
        latest = CheckpointManager(run_dir.checkpoints, on_warning=log.warn).find_latest({})
    except CheckpointError as fault:
        return _warn_no_history(str(fault))
    if latest is None or "history" not in latest.groups:
        return _warn_no_history(f"{run_dir.checkpoints}: no checkpoint with recorded progress")
    state = read_state(latest)
    log.info(f"{run_dir.path}: reproducing its {state.step:,} steps, regardless of their time")
    return TrainState(progress=state.progress, planned_ends=[*state.phases[1:], state.step])


def _warn_no_history(reason: str) -> TrainState:
    log.warn(f"{reason}; this run follows its own clock")
    return TrainState()
