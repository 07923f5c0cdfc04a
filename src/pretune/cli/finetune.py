"""`pretune finetune`: fine-tune a pre-trained model on a task."""

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli._csv import AsCsv, check_format, print_csv
from pretune.cli._embedding import is_embedding, resolve_task, train_embedding_run
from pretune.cli._hints import find_free_path, hint, hint_other, quote
from pretune.cli._names import DEVICES, complete_from, complete_methods, complete_tasks
from pretune.cli._names import complete_baselines as known_baselines
from pretune.cli._names import complete_settings as paths
from pretune.cli._signals import shut_down_cleanly
from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.format import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pretune.runs.finetune.config import FinetuneConfig
    from pretune.runs.finetune.finetuned_run import FinetunedRun
    from pretune.runs.finetune.sweep_plan import SweepPlan


class TaskType(StrEnum):
    """Type of a task."""

    CLASSIFICATION = "classification"
    REGRESSION = "regression"
    TAGGING = "tagging"
    SPAN = "span"
    CHOICE = "choice"
    TEXT = "text"
    EMBEDDING = "embedding"


def finetune(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Run, Hugging Face directory, or hf:OWNER/NAME.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="NAME",
            autocompletion=complete_tasks,
            help="Task of `pretune list tasks`; several, comma-separated, train together.",
        ),
    ] = None,
    task_type: Annotated[
        TaskType | None,
        typer.Option(
            "--type", metavar="TYPE", help=f"Type of --train FILE: {', '.join(TaskType)} (default: inferred)."
        ),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option("--train", metavar="FILE", help="Training table instead of --task: CSV, TSV, JSONL, CoNLL."),
    ] = None,
    dev: Annotated[
        Path | None, typer.Option("--dev", metavar="FILE", help="Validation table (default: split off --train).")
    ] = None,
    test: Annotated[Path | None, typer.Option("--test", metavar="FILE", help="Test table.")] = None,
    text: Annotated[str | None, typer.Option("--text", metavar="COL", help="Text column.")] = None,
    pair: Annotated[str | None, typer.Option("--pair", metavar="COL", help="Column of a second text.")] = None,
    label: Annotated[str | None, typer.Option("--label", metavar="COL", help="Label or score column.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="RUN", help="Output directory of the run.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            metavar="NAME",
            autocompletion=complete_methods,
            help="Fine-tuning method: full, frozen, freeze-first, last-only, extra-layers, gradual, ulmfit, "
            "scalar-mix, from-scratch, adapter, prefix, prompt, lora, qlora, ia3, bitfit. Combine with +: "
            "lora+gradual.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", metavar="N", help="Number of seeds; reports mean and 95% confidence interval."),
    ] = None,
    train_examples: Annotated[
        str,
        typer.Option("--train-examples", metavar="N,...", help="Training set sizes, for a learning curve: 50,200,all."),
    ] = "",
    lr: Annotated[
        str | None,
        typer.Option("--lr", metavar="RATE,...", help="Learning rates; selects the best on the validation set."),
    ] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", metavar="N", help="Training epochs.")] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", help="Training steps, instead of --epochs.")
    ] = None,
    baselines: Annotated[
        str | None,
        typer.Option(
            "--baselines",
            metavar="NAME,...",
            autocompletion=known_baselines,
            help="Baselines: default, all, none, or names.",
        ),
    ] = None,
    forgetting: Annotated[
        Path | None,
        typer.Option(
            "--forgetting", metavar="DATA", help="Report the pre-training loss on this prepared data before and after."
        ),
    ] = None,
    vectors: Annotated[
        Path | None,
        typer.Option(
            "--vectors", metavar="FILE", help="Word vectors of the baseline `vectors`; see `pretune vectors`."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Directory of task data (default: $PRETUNE_DATA).")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Allow fewer than 5 training examples, or classes without any.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the unfinished run in --out.")] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Settings file: YAML, or the run.json of a run."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            autocompletion=paths("finetune"),
            help="Change a setting: method.rank=16, tune.layer_decay=0.9, data.max_length=256. Repeatable.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="NAME",
            autocompletion=complete_from(*DEVICES),
            help="cpu or cuda (default: a GPU if available).",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print settings, label counts, lengths and estimated cost; train nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
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
        from pretune.runs.build_config import resolve_device
        from pretune.runs.finetune.build_config import (
            build_finetune_config,
            parse_example_counts,
            parse_numbers,
            read_tree,
        )
        from pretune.runs.finetune.sweep import build_plan, run_finetune
    if out is None and not dry_run:
        raise UsageError("missing option '--out': the output directory of the run")
    if task is not None and is_embedding(task) and task_type not in (None, TaskType.EMBEDDING):
        raise UsageError(f"--type {task_type} with --task {task}: this task has the type embedding; remove one of them")
    if task_type is TaskType.EMBEDDING:
        task = resolve_task(task)
    if task is not None and is_embedding(task):
        assert out is not None or dry_run
        train_embedding_run(
            model, task, out or Path(), as_json=as_json, train=train, dev=dev, data=data, resume=resume, device=device,
            epochs=epochs, steps=steps, lr=parse_numbers(lr, "--lr")[0] if lr else None,
            invalid_options={"--test": test, "--text": text, "--pair": pair, "--label": label, "--method": method,
                             "--seeds": seeds, "--train-examples": train_examples, "--config": config,
                             "--dry-run": dry_run, "--forgetting": forgetting, "--csv": as_csv, "--vectors": vectors,
                             "--force": force},
            changes=parse_assignments(settings or []),
        )  # fmt: skip
        return
    options: dict[str, Any] = {
        "task": task, "type": None if task_type is None else str(task_type), "train": train,
        "dev": dev, "test": test, "text": text, "pair": pair, "label": label,
        "data": data, "method": method, "epochs": epochs, "steps": steps, "settings": config,
        "force": force or None, "changes": parse_assignments(settings or []),
    }  # fmt: skip
    rates = parse_numbers(lr, "--lr") if lr else ()
    counts = parse_example_counts(train_examples) if train_examples else ()
    plan: dict[str, Any] = {"seeds": seeds, "train_examples": counts, "baselines": baselines}
    plan |= {"forgetting": forgetting, "vectors": vectors}
    if dry_run:
        target = resolve_device(device)  # a run rejects an unknown device too
        tuning = build_finetune_config(model, lr=rates[0] if rates else None, **options)
        _show(tuning, build_plan(tuning, rates, **plan, stored_plan=read_tree(config).get("plan")), as_json, target)
        return
    assert out is not None
    run = run_finetune(model, out=out, resume=resume, lr=rates, device=device, **plan, **options)
    if os.environ.get("RANK", "0") != "0":  # only rank 0 prints
        return
    if as_csv:
        print_csv(("name", "metric", "split", "score", "low", "high", "run_better_by", "p"), _list_records(run.scores))
        return
    log.print_result(
        json.dumps(run.scores, indent=2, ensure_ascii=False, allow_nan=False)
        if as_json
        else "\n".join(_format_result(run))
    )
    if not as_json:
        _hint_next(run, test)


def _hint_next(run: "FinetunedRun", test: Path | None) -> None:
    """Suggest predictions on new texts where their format is known, otherwise a report."""
    task, page = run.saved_task, find_free_path("report.html")
    new = f"a table with a column '{task.text or 'text'}'"
    if test is not None:
        hint("predict", run, "--input", test)
        hint_other(f"report {quote(run)} --out {quote(page)}")
    elif task.pair is None and task.task_kind in ("classification", "regression", "tagging") and not task.members:
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
        yield (
            baseline["name"],
            metric,
            split,
            baseline["score"],
            None,
            None,
            baseline["against"]["difference"],
            baseline["against"]["p"],
        )


def _format_result(run: "FinetunedRun") -> "Iterator[str]":
    from pretune.core.format import align_columns
    from pretune.runs.finetune.model_card import HEADER, format_notes, rows

    yield f"{run}"
    yield from align_columns([("", *HEADER), *rows(run.scores)])
    yield from format_notes(run.scores)


def _show(tuning: "FinetuneConfig", plan: "SweepPlan", as_json: bool, device: str) -> None:
    """Print the settings in the format of `--config`, and the forecast below them as YAML comments."""
    from pretune.core.config import to_dict
    from pretune.runs.finetune.estimate import estimate_finetune

    tree, forecast = {**tuning.to_dict(), "plan": to_dict(plan)}, estimate_finetune(tuning, plan, device)
    if as_json:
        log.print_json({**tree, "forecast": forecast})
        return
    import yaml

    log.print_result(
        yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True), end=""
    )
    log.print_result("\n".join(f"# {line}".rstrip() for line in _format_forecast(forecast)))


def _format_forecast(forecast: dict[str, Any]) -> "Iterator[str]":
    from pretune.core.format import (
        align_columns,
        format_dollars,
        format_duration,
        format_energy,
        format_kilograms,
        format_number,
        join_names,
    )
    from pretune.reports.facts import format_examples

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
    flops = f"{format_number(forecast['flops'], billion='G')}FLOP"
    trials = format_count(forecast["trials"], "trials")
    yield (
        f"{trials}, {format_count(forecast['steps'], 'steps')}, "
        f"{format_count(forecast['tokens'], 'tokens')}, {flops}; estimate for one device, without "
        "evaluation and baselines:"
    )
    rows = [
        (
            name,
            format_duration(cost["seconds"]),
            format_energy(cost["kwh"]),
            format_kilograms(cost["co2e_kg"]),
            format_dollars(cost["dollars"]),
        )
        for name, cost in forecast["devices"].items()
    ]
    yield from align_columns([("device", "time", "energy", "CO2e", "price"), *rows])


def _format_number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
