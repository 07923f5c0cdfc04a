"""`pretune evaluate`: score a model on texts and tasks."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pretune.cli import shut_down_cleanly
from pretune.cli._inputs import unescape
from pretune.cli._options import (
    AsCsv,
    AsJson,
    Base,
    DeviceName,
    ModelNames,
    Quantize,
    check_format,
    complete_eval_tasks,
    option,
)
from pretune.cli._output import find_free_path, hint, print_csv, show_progress
from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.log import format_count
from pretune.core.run_dir import RunDir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pretune.evaluation import EvaluationResult
    from pretune.tasks.task import Task


class Precision(StrEnum):
    """Data type of the computation."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class PairOrder(StrEnum):
    """Order of the sentences of a pair in a text file."""

    GOOD = "good-first"
    BAD = "bad-first"


class LengthNormalization(StrEnum):
    """Length normalisation of answer log-probabilities."""

    SUM = "sum"
    TOKEN = "token"
    BYTE = "byte"


def evaluate(
    models: ModelNames,
    task: Annotated[
        str,
        option(
            "--task NAME,...",
            "Tasks of `pretune list tasks`, or minimal_pairs, bias_pairs, cloze, scored_pairs, triplets.",
            complete_eval_tasks,
        ),
    ] = "",
    text: Annotated[list[str] | None, option("--text FILE", "Report the perplexity of this text. Repeatable.")] = None,
    data: Annotated[
        Path | None, option("--data DIR", "Directory of task data (default: $PRETUNE_DATA), or your own data file.")
    ] = None,
    shots: Annotated[str | None, option("--shots K,...", "Numbers of in-context examples: 0,1,32.")] = None,
    split: Annotated[str | None, option("--split NAME", "Split: test or dev (default: test).")] = None,
    limit: Annotated[int | None, option("--limit N", "Maximum number of examples per task.")] = None,
    seed: Annotated[int, option("--seed N", "Random seed of the shots and of --limit.")] = 0,
    show_prompt: Annotated[bool, option("--show-prompt", "Print the first prompt.")] = False,
    prompt: Annotated[str | None, option("--prompt TEXT", "Prompt template with {text}, {pair} and {answer}.")] = None,
    calibrate: Annotated[
        bool,
        option("--calibrate", "Contextual calibration (Zhao et al., 2021): correct for the answer to an empty input."),
    ] = False,
    length: Annotated[
        LengthNormalization | None,
        option("--length", "Length normalization of answers: log-probability summed, or per token or byte."),
    ] = None,
    text_to_text: Annotated[
        bool, option("--text-to-text", "Use the task's text-to-text template (encoder-decoders).")
    ] = False,
    train: Annotated[Path | None, option("--train FILE", "Your own table of in-context examples.")] = None,
    test: Annotated[Path | None, option("--test FILE", "Your own table to evaluate on.")] = None,
    column: Annotated[
        list[str] | None, option("--column ROLE=NAME", "Columns of your own table: text=, pair=, label=. Repeatable.")
    ] = None,
    order: Annotated[PairOrder, option("--order", "Line order of minimal_pairs.")] = PairOrder.GOOD,
    words: Annotated[
        bool, option("--words/--pieces", "Encoders: mask whole words, or single pieces, when scoring.")
    ] = True,
    bidirectional: Annotated[
        bool, option("--bidirectional", "Decoders of the objective masked_next: score each token from both sides.")
    ] = False,
    window: Annotated[int | None, option("--window N", "Window length of --text in tokens.")] = None,
    stride: Annotated[int | None, option("--stride N", "Stride of the windows in tokens.")] = None,
    pooling: Annotated[
        str | None, option("--pooling", "Vectors of similarity and retrieval: mean, cls, max, last, static …")
    ] = None,
    base: Base = None,
    device: DeviceName = None,
    precision: Annotated[
        Precision | None, option("--precision", "Data type (default: bfloat16 on a GPU, else float32).")
    ] = None,
    quantize: Quantize = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Evaluate a model: perplexity, zero-shot and few-shot tasks.

    Reports perplexity on text, minimal pairs, and tasks with any number of shots. A fine-tuned run is evaluated with
    its task head, by default on its own task, or on your own table (--test). Several runs are evaluated as an ensemble.

    Example: pretune evaluate runs/books --task blimp,lambada,boolq --shots 0,1,32
    """
    check_format(as_json, as_csv)
    if limit is not None and limit < 1:
        raise UsageError(f"--limit must be at least 1, got {limit}")
    model = models[0]
    prompt_options = {
        "--show-prompt": show_prompt, "--prompt": prompt is not None, "--calibrate": calibrate,
        "--length": length is not None, "--text-to-text": text_to_text,
    }  # fmt: skip
    task_options = {
        "--shots": shots is not None, "--split": split is not None, "--limit": limit is not None, "--seed": seed != 0,
        "--data": data is not None, "--order": order is not PairOrder.GOOD, "--pooling": pooling is not None,
        **prompt_options,
    }  # fmt: skip
    if text and not task and test is None:
        _refuse_options(task_options, "needs a task: add --task NAME or --test FILE")
    if not text:
        _refuse_options(
            {"--window": window is not None, "--stride": stride is not None}, "needs a text: add --text FILE"
        )
    if shots is None and RunDir(Path(model)).is_finetuned:
        _refuse_options(prompt_options, "needs a prompt, and a fine-tuned run reads none: add --shots 0")
    counts = None if shots is None else _parse_shots(shots)
    options: dict[str, Any] = {
        "split": split, "limit": limit, "seed": seed, "prompt": None if prompt is None else unescape(prompt),
        "calibrate": calibrate, "length": length and str(length), "text_to_text": text_to_text, "show": show_prompt,
        "order": str(order), "base": base, "words": words, "window": window, "stride": stride,
        "bidirectional": bidirectional, "pooling": pooling,
        "precision": precision and str(precision), "quantize": quantize and str(quantize),
    }  # fmt: skip
    with shut_down_cleanly():
        from pretune.runs.evaluate import evaluate as work

        user_task = _build_user_task(None if shots else model, train, test, column or [])
        if user_task is not None and split is not None and split not in user_task.splits:
            raise UsageError(f"--split '{split[:40]}': your table has the splits {' and '.join(user_task.splits)}")
        if user_task is not None and len(user_task.splits) == 1:
            options["split"] = next(iter(user_task.splits))  # a single file: shots are drawn from it
        with show_progress("evaluating") as report:

            def report_task(name: str, count: int, total: int) -> None:
                report(count / max(total, 1), f"{name}, {count:,} of {total:,}")

            tasks: list[str | Task] = [task] if user_task is None else [task, user_task]
            options |= {"text": text or (), "data": data, "shots": counts, "device": device}
            results = work(models if len(models) > 1 else model, tasks, on_progress=report_task, **options)
    if as_json:
        log.print_json(
            {"model": model if len(models) == 1 else models, "results": [result.to_dict() for result in results]}
        )
        return
    if as_csv:
        print_csv(("task", "split", "shots", "score", "part", "value"), _list_records(results))
    else:
        log.print_result("\n".join(_format_lines(results)))
    for result in results:
        for note in result.notes:
            log.info(f"{result.task}: {note}")
    if as_csv:
        return
    task_name = next((result.task for result in results if result.shots is not None), None)
    if task_name is None:
        hint("show", model)
    elif user_task is not None and task_name == user_task.name:
        tables = _format_table_options(train, test, column or [])
        hint("finetune", model, *tables, "--out", find_free_path("runs/tuned"))
    else:
        source = () if data is None else ("--data", data)
        hint("finetune", model, "--task", task_name, *source, "--out", find_free_path(f"runs/{task_name}"))


def _refuse_options(options: "Mapping[str, bool]", reason: str) -> None:
    """Raise if one of the options is set."""
    for name, is_set in options.items():
        if is_set:
            raise UsageError(f"{name} {reason}, or remove {name}")


def _parse_shots(text: str) -> list[int]:
    """Parse comma-separated numbers of shots."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--shots '{text[:40]}' must be comma-separated integers, such as 0,1,32") from None


def _build_user_task(model: str | None, train: Path | None, test: Path | None, columns: list[str]) -> "Task | None":
    """Return the task of the user's files; for a fine-tuned run, a task with its head."""
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


def _format_table_options(train: Path | None, test: Path | None, columns: list[str]) -> list[str]:
    """Return the options of `pretune finetune` for the user's tables.

    >>> _format_table_options(None, Path("mine.csv"), ["text=review"])
    ['--train', 'mine.csv', '--text', 'review']
    """
    files = ["--train", str(test)] if train is None else ["--train", str(train), "--test", str(test)]
    roles = (part.partition("=") for part in columns)
    return [*files, *(word for role, _, name in roles for word in (f"--{role}", name))]


def _format_lines(results: "Sequence[EvaluationResult]") -> "Iterator[str]":
    """Yield a table with one line per score, the headline of each task first, then its groups."""
    for result in results:
        if result.prompt is not None:
            yield from (result.prompt, "")
    rows = [("task", "split", "shots", "score", "", "over")]
    for result in results:
        first = (result.task, result.split or "-", "-" if result.shots is None else str(result.shots))
        for place, (name, value) in enumerate(result.scores.items()):
            start, counts = (("", "", ""), "") if place else (first, _format_counts(result))
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


def _format_counts(result: "EvaluationResult") -> str:
    return ", ".join(format_count(count, name.replace("_", " ")) for name, count in result.counts.items())
