"""`pretune finetune`: fine-tune a pre-trained model on a task."""

import os
from typing import TYPE_CHECKING, Any

from pretune.cli import shut_down_cleanly
from pretune.cli._options import TableFormat
from pretune.cli._output import (
    find_free_path,
    format_costs,
    hint,
    hint_other,
    print_data,
    print_facts,
    print_plan,
    quote,
)
from pretune.core import log
from pretune.core.api import Options, StrPath, option, option_set
from pretune.core.errors import UsageError, suggest
from pretune.core.log import align_columns, format_count, format_duration, format_examples, format_number, join_names
from pretune.runs.task_options import EmbeddingOptions, FinetuneOptions
from pretune.tasks.types import TYPE_ALIASES, list_type_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pretune.runs.finetune.config import FinetuneConfig, SweepPlan
    from pretune.runs.finetune.finetuned_run import FinetunedRun


EMBEDDING = "embedding"


@option_set
class FinetuneMode(Options):
    """Extent of a run."""

    dry_run: bool = option(
        "--dry-run", "Print settings, label counts, lengths and estimated cost; train nothing.", default=False
    )


def finetune(options: FinetuneOptions, mode: FinetuneMode, output: TableFormat) -> None:
    """Fine-tune a model on a task and compare it with baselines.

    The validation set selects the learning rate and the stopping point; scores are those of the test set if there is
    one.

    Example: pretune finetune runs/books --task sst2 --method lora --seeds 3 --out runs/sst2
    """
    if output.as_csv and mode.dry_run:
        raise UsageError("--csv with --dry-run: settings are not a table; use --json")
    if options.type is not None and options.type not in TYPE_ALIASES and options.type not in list_type_options():
        types = list_type_options()
        raise UsageError(
            f"--type '{options.type[:40]}'{suggest(options.type, types)} is no type (allowed: {', '.join(types)})"
        )
    if options.type == EMBEDDING or is_embedding(options.task):
        _train_embeddings(options, mode.dry_run, output)
        return
    _refuse_task_data(options)
    with shut_down_cleanly():  # imports take seconds
        from pretune.runs.finetune.defaults import build_finetune_config
        from pretune.runs.finetune.entry import build_plan, run_finetune
        from pretune.training.distributed import resolve_device
    if mode.dry_run:
        target = resolve_device(options.device)  # a run rejects an unknown device too
        tuning = build_finetune_config(options)
        _show(tuning, build_plan(tuning, options), output, target)
        return
    run = run_finetune(options)
    if os.environ.get("RANK", "0") != "0":  # only rank 0 prints
        return
    header = ("name", "metric", "split", "score", "low", "high", "run_better_by", "p")
    if print_data(output, run.scores, header, _list_records(run.scores)):
        return
    log.print_result("\n".join(_format_result(run)))
    _hint_next(run, options.test)


def _refuse_task_data(options: FinetuneOptions) -> None:
    if options.train is not None and options.data is not None:
        raise UsageError("--data is the directory of --task NAME, and the table is --train FILE; remove one of them")


def is_embedding(task: str | None) -> bool:
    """Return whether a task trains embeddings: `embedding` (from a file) or `embedding:snli` (from a task's pairs)."""
    return task is not None and task.partition(":")[0] == EMBEDDING


def _train_embeddings(options: FinetuneOptions, dry_run: bool, output: TableFormat) -> None:
    """Train embeddings and print their scores before and after; options that they lack are refused."""
    if options.type not in (None, EMBEDDING):
        raise UsageError(
            f"--type {options.type} with --task {options.task}: this task has the type embedding; remove one of them"
        )
    reason = f"is not supported with --type {EMBEDDING}; see docs/embeddings.md"
    for name, is_set in {"--dry-run": dry_run, "--csv": output.as_csv}.items():
        if is_set:
            raise UsageError(f"{name} {reason}")
    with shut_down_cleanly():  # imports take seconds
        from pretune.runs.embedding import run_embedding
        from pretune.tasks import TASKS
    if str(options.dev) not in TASKS:  # which is read there
        _refuse_task_data(options)
    name, _, pairs = (options.task or "").partition(":")
    task = pairs if name == EMBEDDING else options.task
    changes = {"task": task or None, "lr": options.rates[0] if options.rates else None}
    embedding_options = options.convert(EmbeddingOptions, reason, type=None, **changes)
    run = run_embedding(embedding_options)
    if os.environ.get("RANK", "0") != "0":
        return
    initial, final = run.scores["before"], run.scores["after"]
    loss = run.scores["loss"]  # None if a resumed run had no step left
    loss_text = "" if loss is None else f", loss {loss:.4f}"
    changes_text = "".join(
        f", {name} {initial[name]:.4f} -> {value:.4f}" for name, value in final.items() if name in initial
    )
    print_facts(output, run.scores, f"{run}: {format_count(run.scores['steps'], 'steps')}{loss_text}{changes_text}")
    hint("verify", run, silent=output.as_json)
    hint_other(f"embed {quote(run)} --input FILE --out vectors.npy", silent=output.as_json)


def _hint_next(run: "FinetunedRun", test: StrPath | None) -> None:
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
    from pretune.reports.facts import build_score_table
    from pretune.runs.model_card import format_notes

    yield f"{run}"
    yield from align_columns(build_score_table(run.scores), right=True)
    yield from format_notes(run.scores)


def _show(tuning: "FinetuneConfig", plan: "SweepPlan", output: TableFormat, device: str) -> None:
    """Print the settings, and the forecast above them or as a key of JSON."""
    from pretune.core.config import to_dict
    from pretune.runs.finetune.estimate import estimate_finetune

    forecast = estimate_finetune(tuning, plan, device)
    settings = {**tuning.to_dict(), "plan": to_dict(plan)}
    print_plan(output, settings, {"forecast": forecast}, _format_forecast(forecast))


def _format_forecast(forecast: dict[str, Any]) -> "Iterator[str]":
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
