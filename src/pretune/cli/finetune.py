"""`pretune finetune`: fine-tune a pre-trained model on a task."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pretune.cli import shut_down_cleanly
from pretune.cli._options import (
    AsCsv,
    AsJson,
    ConfigFile,
    DeviceName,
    PairColumn,
    Resume,
    RunOut,
    TaskData,
    TextColumn,
    argument,
    check_format,
    complete_baselines,
    complete_methods,
    complete_settings,
    complete_task_types,
    complete_tasks,
    option,
)
from pretune.cli._output import find_free_path, format_costs, hint, hint_other, print_csv, print_settings, quote
from pretune.core import log
from pretune.core.errors import UsageError, suggest
from pretune.core.log import format_count
from pretune.tasks.types import TYPE_ALIASES, TYPE_OPTIONS, list_type_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pretune.runs.finetune.config import FinetuneConfig, SweepPlan
    from pretune.runs.finetune.finetuned_run import FinetunedRun


EMBEDDING = "embedding"


def finetune(
    model: Annotated[
        str | None, argument("MODEL", "Run, Hugging Face directory, hf:OWNER/NAME, or one of `pretune list models`.")
    ] = None,
    task: Annotated[
        str | None,
        option(
            "--task NAME", "Task of `pretune list tasks`; several, comma-separated, train together.", complete_tasks
        ),
    ] = None,
    task_type: Annotated[
        str | None,
        option(
            "--type TYPE",
            f"Type of --train FILE: {', '.join(TYPE_OPTIONS)} (default: inferred).",
            complete_task_types,
        ),
    ] = None,
    train: Annotated[
        Path | None, option("--train FILE", "Training table instead of --task: CSV, TSV, JSONL, CoNLL.")
    ] = None,
    dev: Annotated[Path | None, option("--dev FILE", "Validation table (default: split off --train).")] = None,
    test: Annotated[Path | None, option("--test FILE", "Test table.")] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: Annotated[str | None, option("--label COL", "Label or score column.")] = None,
    out: RunOut = None,
    method: Annotated[
        str | None,
        option(
            "--method NAME",
            "Fine-tuning method: full, frozen, freeze-first, last-only, extra-layers, gradual, ulmfit, "
            "scalar-mix, from-scratch, adapter, prefix, prompt, lora, qlora, ia3, bitfit. Combine with +: "
            "lora+gradual.",
            complete_methods,
        ),
    ] = None,
    seeds: Annotated[
        int | None, option("--seeds N", "Number of seeds; reports mean and 95% confidence interval.")
    ] = None,
    train_examples: Annotated[
        str, option("--train-examples N,...", "Training set sizes, for a learning curve: 50,200,all.")
    ] = "",
    lr: Annotated[
        str | None, option("--lr RATE,...", "Learning rates; selects the best on the validation set.")
    ] = None,
    epochs: Annotated[float | None, option("--epochs N", "Training epochs.")] = None,
    steps: Annotated[int | None, option("--steps N", "Training steps, instead of --epochs.")] = None,
    baselines: Annotated[
        str | None, option("--baselines NAME,...", "Baselines: default, all, none, or names.", complete_baselines)
    ] = None,
    forgetting: Annotated[
        Path | None, option("--forgetting DATA", "Report the pre-training loss on this prepared data before and after.")
    ] = None,
    vectors: Annotated[
        Path | None, option("--vectors FILE", "Word vectors of the baseline `vectors`; see `pretune vectors`.")
    ] = None,
    teacher: Annotated[
        Path | None, option("--teacher RUN", "Distil this run, fine-tuned on the same task, into the model.")
    ] = None,
    data: TaskData = None,
    force: Annotated[bool, option("--force", "Allow fewer than 5 training examples, or classes without any.")] = False,
    strict: Annotated[
        bool, option("--strict", "Refuse tables with a blank text or label, instead of skipping such rows.")
    ] = False,
    resume: Resume = False,
    config: ConfigFile = None,
    settings: Annotated[
        list[str] | None,
        option(
            "--set PATH=VALUE",
            "Change a setting: method.rank=16, tune.layer_decay=0.9, data.max_length=256. Repeatable.",
            complete_settings("finetune"),
        ),
    ] = None,
    device: DeviceName = None,
    dry_run: Annotated[
        bool, option("--dry-run", "Print settings, label counts, lengths and estimated cost; train nothing.")
    ] = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Fine-tune a model on a task and compare it with baselines.

    The validation set selects the learning rate and the stopping point; scores are those of the test set if there is
    one.

    Example: pretune finetune runs/books --task sst2 --method lora --seeds 3 --out runs/sst2
    """
    check_format(as_json, as_csv)
    if as_csv and dry_run:
        raise UsageError("--csv with --dry-run: settings are not a table; use --json")
    from pretune.core.config import parse_assignments

    with shut_down_cleanly():  # imports take seconds
        from pretune.runs.config import read_config
        from pretune.runs.finetune.defaults import build_finetune_config, parse_example_counts, parse_numbers
        from pretune.runs.finetune.entry import build_plan, run_finetune
        from pretune.tasks import TASKS
        from pretune.training.distributed import resolve_device
    if out is None and not dry_run:
        raise UsageError("missing option '--out': the output directory of the run")
    if task_type is not None and task_type not in TYPE_ALIASES and task_type not in list_type_options():
        types = list_type_options()
        raise UsageError(
            f"--type '{task_type[:40]}'{suggest(task_type, types)} is no type (allowed: {', '.join(types)})"
        )
    if task is not None and is_embedding(task) and task_type not in (None, "embedding"):
        raise UsageError(f"--type {task_type} with --task {task}: this task has the type embedding; remove one of them")
    if task_type == "embedding":
        task = resolve_task(task)
    reads_task_pairs = is_embedding(task) and str(dev) in TASKS  # as the dev set of pairs in a file
    if train is not None and data is not None and not reads_task_pairs:
        raise UsageError("--data is the directory of --task NAME, and the table is --train FILE; remove one of them")
    if task is not None and is_embedding(task):
        assert out is not None or dry_run
        _train_embeddings(
            model, task, out or Path(), as_json=as_json, train=train, dev=dev, data=data, strict=strict, resume=resume,
            device=device, epochs=epochs, steps=steps, lr=parse_numbers(lr, "--lr")[0] if lr else None,
            invalid_options={"--test": test, "--text": text, "--pair": pair, "--label": label, "--method": method,
                             "--seeds": seeds, "--train-examples": train_examples, "--config": config,
                             "--dry-run": dry_run, "--forgetting": forgetting, "--csv": as_csv, "--vectors": vectors,
                             "--force": force, "--teacher": teacher},
            overrides=parse_assignments(settings or []),
        )  # fmt: skip
        return
    options: dict[str, Any] = {
        "task": task, "type": task_type, "train": train,
        "dev": dev, "test": test, "text": text, "pair": pair, "label": label,
        "data": data, "method": method, "epochs": epochs, "steps": steps, "config": config,
        "force": force or None, "strict": strict or None, "teacher": teacher,
        "overrides": parse_assignments(settings or []),
    }  # fmt: skip
    rates = parse_numbers(lr, "--lr") if lr else ()
    counts = parse_example_counts(train_examples) if train_examples else ()
    plan: dict[str, Any] = {"seeds": seeds, "train_examples": counts, "baselines": baselines}
    plan |= {"forgetting": forgetting, "vectors": vectors}
    if dry_run:
        target = resolve_device(device)  # a run rejects an unknown device too
        tuning = build_finetune_config(model, lr=rates[0] if rates else None, **options)
        _show(tuning, build_plan(tuning, rates, **plan, stored_plan=read_config(config).get("plan")), as_json, target)
        return
    assert out is not None
    run = run_finetune(model, out=out, resume=resume, lr=rates, device=device, **plan, **options)
    if os.environ.get("RANK", "0") != "0":  # only rank 0 prints
        return
    if as_csv:
        print_csv(("name", "metric", "split", "score", "low", "high", "run_better_by", "p"), _list_records(run.scores))
        return
    if as_json:
        log.print_json(run.scores)
        return
    log.print_result("\n".join(_format_result(run)))
    _hint_next(run, test)


def is_embedding(task: str | None) -> bool:
    """Return whether a task trains embeddings: `embedding` (from a file) or `embedding:snli` (from a task's pairs)."""
    return task is not None and task.partition(":")[0] == EMBEDDING


def resolve_task(task: str | None) -> str:
    """Return the task of `--type embedding`: pairs of a file, or those of a named task.

    >>> resolve_task(None), resolve_task("snli"), resolve_task("embedding:snli")
    ('embedding', 'embedding:snli', 'embedding:snli')
    """
    return task if task is not None and is_embedding(task) else EMBEDDING if task is None else f"{EMBEDDING}:{task}"


def _train_embeddings(
    model: str | None,
    task: str,
    out: Path,
    *,
    invalid_options: "Mapping[str, Any]",
    overrides: "Mapping[str, str]",
    as_json: bool,
    **options: Any,
) -> None:
    """Train embeddings and print their scores before and after; raise if an option in `invalid_options` is set."""
    for name, value in invalid_options.items():
        if value:
            raise UsageError(f"{name} is not supported with --type {EMBEDDING}; see docs/embeddings.md")
    from pretune.core.config import list_paths
    from pretune.runs.embedding import EmbeddingConfig, train_embeddings

    paths = list_paths(EmbeddingConfig())
    for name in overrides:
        if name not in paths:
            raise UsageError(f"unknown setting '{name}'{suggest(name, paths)} ({', '.join(paths)})")
    run = train_embeddings(model, out=out, task=task.partition(":")[2] or None, overrides=overrides, **options)
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        log.print_json(run.scores)
    else:
        initial, final = run.scores["before"], run.scores["after"]
        loss = run.scores["loss"]  # None if a resumed run had no step left
        loss_text = "" if loss is None else f", loss {loss:.4f}"
        changes_text = "".join(
            f", {name} {initial[name]:.4f} -> {value:.4f}" for name, value in final.items() if name in initial
        )
        log.print_result(f"{run}: {format_count(run.scores['steps'], 'steps')}{loss_text}{changes_text}")
    hint("verify", run, silent=as_json)
    hint_other(f"embed {quote(run)} --input FILE --out vectors.npy", silent=as_json)


def _hint_next(run: "FinetunedRun", test: Path | None) -> None:
    """Suggest predictions on new texts where their format is known, otherwise a report."""
    task, page = run.saved_task, find_free_path("report.html")
    new = f"a table with a column '{task.text or 'text'}'"
    if test is not None:
        hint("predict", run, "--input", test)
        hint_other(f"report {quote(run)} --out {quote(page)}")
    elif task.reads_plain_text and not task.members:
        hint("predict", run, "--input", "-", stdin="A new text.")
        hint_other(f"predict {quote(run)} --input NEW.csv  ({new}, or lines of text)")
    else:
        hint("report", run, "--out", page)
        hint_other(f"predict {quote(run)} --input NEW.csv")


def _list_records(scores: "Mapping[str, Any]") -> "Iterator[tuple[object, ...]]":
    """Yield the scores of the run, then of its baselines."""
    metric, result = scores["metric"], scores["result"]
    split = result["split"]
    yield "run", metric, split, result["score"], result["low"], result["high"], None, None
    for baseline in scores["baselines"]:
        gap = baseline["against"]
        yield baseline["name"], metric, split, baseline["score"], None, None, gap["difference"], gap["p"]


def _format_result(run: "FinetunedRun") -> "Iterator[str]":
    from pretune.core.table import align_columns
    from pretune.reports.facts import build_score_table
    from pretune.runs.model_card import format_notes

    yield f"{run}"
    yield from align_columns(build_score_table(run.scores), right=True)
    yield from format_notes(run.scores)


def _show(tuning: "FinetuneConfig", plan: "SweepPlan", as_json: bool, device: str) -> None:
    """Print the settings, and the forecast above them or as a key of JSON."""
    from pretune.core.config import to_dict
    from pretune.runs.finetune.estimate import estimate_finetune

    tree, forecast = {**tuning.to_dict(), "plan": to_dict(plan)}, estimate_finetune(tuning, plan, device)
    if as_json:
        log.print_json({**tree, "forecast": forecast})
    else:
        print_settings(tree, _format_forecast(forecast))


def _format_forecast(forecast: dict[str, Any]) -> "Iterator[str]":
    from pretune.core.log import format_duration, format_examples, format_number, join_names

    yield from forecast["notes"]
    kind = (
        forecast["kind"] if forecast["type"] in (None, forecast["kind"]) else f"{forecast['type']}, {forecast['kind']}"
    )
    yield f"{forecast['task']} ({kind}), scored by {', '.join(forecast['metrics'])} on {forecast['headline']}"
    yield f"examples: {format_examples(forecast['examples'], forecast['pool'])}"
    for name, labels in forecast["balance"].items():
        shares = join_names([f"{label} {_format_number(count)}" for label, count in labels.items()])
        if shares:
            yield f"labels{f' of {name}' if len(forecast['balance']) > 1 else ''}: {shares}"
    counts, limit = forecast["counts"], " or ".join(map(str, forecast["max_length"]))
    yield (
        f"lengths: mean {forecast['length']:.1f}, longest {counts['longest']} tokens; {forecast['cut']:.1%} of the "
        f"examples are truncated to {limit} ({counts['lost']:,} tokens lost), {counts['empty']:,} are empty"
    )
    if forecast["rate"] is not None:
        yield forecast["rate"]
    share = forecast["trained"] / forecast["parameters"]
    yield f"{forecast['trained']:,} of {forecast['parameters']:,} parameters are trainable ({share:.2%})"
    if (stage := forecast["language_model"]) is not None:
        stage_text = ", ".join(format_count(stage[unit], unit) for unit in ("steps", "tokens"))
        stage_flops = f"{format_number(stage['flops'], billion='G')}FLOP"
        yield f"language model on the task's texts first: {stage_text}, {stage_flops}, in the estimate below"
    counts_text = ", ".join(format_count(forecast[unit], unit) for unit in ("trials", "steps", "tokens"))
    flops = f"{format_number(forecast['flops'], billion='G')}FLOP"
    yield f"{counts_text}, {flops}; estimate for one device, without evaluation and baselines:"
    yield from format_costs(forecast["devices"], "time", lambda cost: format_duration(cost["seconds"]))


def _format_number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
