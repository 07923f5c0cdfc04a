"""`pretune evaluate`: score a model on texts and tasks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pretune.cli import shut_down_cleanly
from pretune.cli._options import TableFormat, list_flags, list_words
from pretune.cli._output import find_free_path, hint, print_data, show_progress
from pretune.core import log
from pretune.core.api import Options, option, option_set
from pretune.core.errors import UsageError
from pretune.core.log import format_count
from pretune.core.run_dir import RunDir
from pretune.runs.task_options import EvaluateOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretune.evaluation import EvaluationResult
    from pretune.tasks.task import Task


@option_set
class TableOptions(Options):
    """The user's own tables."""

    train: Path | None = option("--train FILE", "Your own table of in-context examples.")
    test: Path | None = option("--test FILE", "Your own table to evaluate on.")
    column: Sequence[str] = option(
        "--column ROLE=NAME", "Columns of your own table: text=, pair=, label=. Repeatable.", default=()
    )


def evaluate(options: EvaluateOptions, tables: TableOptions, output: TableFormat) -> None:
    """Evaluate a model: perplexity, zero-shot and few-shot tasks.

    Reports perplexity on text, minimal pairs, and tasks with any number of shots. A fine-tuned run is evaluated with
    its task head, by default on its own task, or on your own table (--test). Several runs are evaluated as an ensemble.

    Example: pretune evaluate runs/books --task blimp,lambada,boolq --shots 0,1,32
    """
    if options.limit is not None and options.limit < 1:
        raise UsageError(f"--limit must be at least 1, got {options.limit}")
    models = [str(name) for name in cast("Sequence[str]", options.model)]
    _refuse_unused(options, tables, models[0])
    with shut_down_cleanly():
        from pretune.runs.evaluate import run_evaluate

        user_task = _build_user_task(None if options.shots else models[0], tables)
        if user_task is not None:
            splits = [*user_task.splits]
            if options.split is not None and options.split not in splits:
                raise UsageError(f"--split '{options.split[:40]}': your table has the splits {' and '.join(splits)}")
            if len(splits) == 1:
                options = replace(options, split=splits[0])  # a single file: shots are drawn from it
            options = replace(options, task=[cast(str, options.task or ""), user_task])
        with show_progress("evaluating") as report:

            def report_task(name: str, count: int, total: int) -> None:
                report(count / max(total, 1), f"{name}, {count:,} of {total:,}")

            model = models if len(models) > 1 else models[0]
            results = run_evaluate(replace(options, model=model, on_progress=report_task))
    facts = {"model": model, "results": [result.to_dict() for result in results]}
    header = ("task", "split", "shots", "score", "part", "value")
    if not print_data(output, facts, header, _list_records(results)):
        log.print_result("\n".join(_format_lines(results)))
    if not output.as_json:
        for result in results:
            for note in result.notes:
                log.info(f"{result.task}: {note}")
    if not output.is_text:
        return
    task_name = next((result.task for result in results if result.shots is not None), None)
    if task_name is None:
        hint("show", models[0])
    elif user_task is not None and task_name == user_task.name:
        hint("finetune", models[0], *_format_table_options(tables), "--out", find_free_path("runs/tuned"))
    else:
        words = ("--task", task_name, *list_words(options, "data"))
        hint("finetune", models[0], *words, "--out", find_free_path(f"runs/{task_name}"))


PROMPT_OPTIONS = ("show", "prompt", "calibrate", "length", "text_to_text")
TASK_OPTIONS = ("shots", "split", "limit", "seed", "data", "order", "pooling", *PROMPT_OPTIONS)


def _refuse_unused(options: EvaluateOptions, tables: TableOptions, model: str) -> None:
    """Raise if an option is set that nothing would read."""
    if options.text and not options.task and tables.test is None:
        _refuse_options(options, *TASK_OPTIONS, reason="needs a task: add --task NAME or --test FILE")
    if not options.text:
        _refuse_options(options, "window", "stride", reason="needs a text: add --text FILE")
    if options.shots is None and RunDir(Path(model)).is_finetuned:
        reason = "needs a prompt, and a fine-tuned run reads none: add --shots 0"
        _refuse_options(options, *PROMPT_OPTIONS, reason=reason)


def _refuse_options(options: EvaluateOptions, *names: str, reason: str) -> None:
    """Raise if one of the options is set."""
    for flag in list_flags(options, *names):
        raise UsageError(f"{flag} {reason}, or remove {flag}")


def _build_user_task(model: str | None, tables: TableOptions) -> "Task | None":
    """Return the task of the user's files; for a fine-tuned run, a task with its head."""
    train, test, columns = tables.train, tables.test, tables.column
    if test is None:
        if train is not None or columns:
            raise UsageError("--train and --column need --test, the table to evaluate on")
        return None
    from pretune.tasks.user_table import build_user_task

    roles = dict(part.partition("=")[::2] for part in columns)
    wrong = next((role for role in roles if role not in ("text", "pair", "label") or not roles[role]), None)
    if wrong is not None:
        raise UsageError(f"--column '{wrong[:40]}' must be text=NAME, pair=NAME or label=NAME")
    if model is not None and RunDir(Path(model)).is_finetuned:
        from pretune.runs.finetune.inference import build_table_task

        if train is not None:
            raise UsageError(
                "--train holds in-context examples, which a fine-tuned run does not use; add --shots or remove --train"
            )
        return build_table_task(model, test, **roles)
    files = {"train": test} if train is None else {"train": train, "test": test}
    return build_user_task(files, text=roles.get("text"), label=roles.get("label"), pair=roles.get("pair"))


def _format_table_options(tables: TableOptions) -> list[str]:
    """Return the options of `pretune finetune` for the user's tables.

    >>> _format_table_options(TableOptions(test=Path("mine.csv"), column=["text=review"]))
    ['--train', 'mine.csv', '--text', 'review']
    """
    train, test = tables.train, tables.test
    files = ["--train", str(test)] if train is None else ["--train", str(train), "--test", str(test)]
    roles = (part.partition("=") for part in tables.column)
    return [*files, *(word for role, _, name in roles for word in (f"--{role}", name))]


def _format_lines(results: "Sequence[EvaluationResult]") -> "Iterator[str]":
    """Yield a table with one line per score, the headline of each task first, then its groups."""
    for result in results:
        if result.prompt is not None:
            yield from (result.prompt, "")
    rows = [("task", "split", "shots", "score", "", "over")]
    for result in results:
        first = (result.task, result.split or "-", "-" if result.shots is None else str(result.shots))
        over = ", ".join(format_count(count, name.replace("_", " ")) for name, count in result.counts.items())
        for place, (name, value) in enumerate(result.scores.items()):
            start, counts = (("", "", ""), "") if place else (first, over)
            rows.append((*start, name, format_score(name, value), counts))
        rows += [("", "", "", f"· {name}", format_score("", value), "") for name, value in result.groups.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:{'>' if place in (2, 4) else '<'}{widths[place]}}" for place, cell in enumerate(row)]
        yield "  ".join(cells).rstrip()


def _list_records(results: "Sequence[EvaluationResult]") -> "Iterator[tuple[object, ...]]":
    """Yield one record per score; group scores are those of the headline metric."""
    for result in results:
        for name, value in result.scores.items():
            yield result.task, result.split, result.shots, name, None, value
        for part, value in result.groups.items():
            yield result.task, result.split, result.shots, result.headline[0], part, value


def format_score(name: str, value: float) -> str:
    """Format a score: fractions in percent; perplexities, bits, squared errors and thresholds unchanged.

    >>> format_score("accuracy", 0.7123), format_score("word_perplexity", 1234.5678), format_score("perplexity", 2e9)
    ('71.23 %', '1,234.57', '2.00e+09')
    >>> format_score("best_f1", 0.5), format_score("best_f1_threshold", -0.25)
    ('50.00 %', '-0.25')
    """
    if any(part in name for part in ("perplexity", "bits", "squared_error", "threshold")):
        return f"{value:,.2f}" if value < 1e6 else f"{value:.2e}"
    return f"{100 * value:.2f} %"
