"""`pretune evaluate`: how good a model is, with or without training for a task."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli._csv import AsCsv, check_format, print_csv
from pretune.cli._hints import find_free_path, hint
from pretune.cli._models import BaseOption
from pretune.cli._names import DEVICES, complete_eval_tasks, complete_from
from pretune.cli._progress import show_progress
from pretune.cli._prompts import unescape
from pretune.cli._signals import shut_down_cleanly
from pretune.core import log
from pretune.core.counted import format_count
from pretune.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pretune.evaluation.result import EvaluationResult
    from pretune.tasks.task import Task


class Precision(StrEnum):
    """In what the model computes."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class PairOrder(StrEnum):
    """Which sentence of a pair comes first in a file of lines."""

    GOOD = "good-first"
    BAD = "bad-first"


class LengthNormalisation(StrEnum):
    """How answers of unequal lengths are compared."""

    SUM = "sum"
    TOKEN = "token"
    BYTE = "byte"


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run, a Hugging Face directory, or hf:OWNER/NAME.")],
    task: Annotated[
        str,
        typer.Option(
            "--task",
            metavar="NAME,...",
            autocompletion=complete_eval_tasks,
            help="Tasks of `pretune list tasks`, or minimal_pairs, bias_pairs, cloze, scored_pairs, triplets.",
        ),
    ] = "",
    text: Annotated[
        list[str] | None, typer.Option("--text", metavar="FILE", help="Perplexity of text. Repeatable.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Where tasks are ($PRETUNE_DATA), or a file or folder of your own."),
    ] = None,
    shots: Annotated[
        str | None, typer.Option("--shots", metavar="K,...", help="Solved examples before each question: 0,1,32.")
    ] = None,
    split: Annotated[str | None, typer.Option("--split", metavar="NAME", help="test by default, or dev.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="At most so many examples of a task.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the shots, and of a limit.")] = 0,
    show_prompt: Annotated[bool, typer.Option("--show-prompt", help="Print what the model reads first.")] = False,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="Another wording, with {text}, {pair} and {answer}.")
    ] = None,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Take out what it would answer to nothing.")] = False,
    length: Annotated[
        LengthNormalisation | None,
        typer.Option("--length", help="Compare answers by their sum, or the mean of tokens or bytes."),
    ] = None,
    text_to_text: Annotated[
        bool, typer.Option("--text-to-text", help="Ask an encoder-decoder by the task's template.")
    ] = False,
    train: Annotated[Path | None, typer.Option("--train", metavar="FILE", help="Your own table: for shots.")] = None,
    test: Annotated[Path | None, typer.Option("--test", metavar="FILE", help="Your own table: to evaluate on.")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="ROLE=NAME", help="Columns of your table: text=, pair=, label=. Repeatable."),
    ] = None,
    order: Annotated[PairOrder, typer.Option("--order", help="Of the lines of minimal_pairs.")] = PairOrder.GOOD,
    words: Annotated[
        bool, typer.Option("--words/--pieces", help="Encoders: mask the rest of a word with a piece of it.")
    ] = True,
    window: Annotated[int | None, typer.Option("--window", metavar="N", help="Tokens of a window, of --text.")] = None,
    stride: Annotated[int | None, typer.Option("--stride", metavar="N", help="How many of them are judged.")] = None,
    base: BaseOption = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME", autocompletion=complete_from(*DEVICES), help="cpu or cuda; found by default."
        ),
    ] = None,
    precision: Annotated[
        Precision | None, typer.Option("--precision", help="bfloat16 on a GPU by default, else float32.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: AsCsv = False,
) -> None:
    """Score a model on texts or tasks, with or without examples.

    Perplexity, minimal pairs, tasks with any number of shots. A fine-tuned run answers by its head: what it was
    fine-tuned for, by default, or a table of your own (--test).

    Example: pretune evaluate runs/books --task blimp,lambada,boolq --shots 0,1,32
    """
    check_format(as_json, as_csv)
    counts = None if shots is None else _parse_shots(shots)
    how: dict[str, Any] = {
        "split": split,
        "limit": limit,
        "seed": seed,
        "prompt": None if prompt is None else unescape(prompt),
        "calibrate": calibrate,
        "length": None if length is None else str(length),
        "text_to_text": text_to_text,
        "show": show_prompt,
        "order": str(order),
        "base": base,
        "words": words,
        "window": window,
        "stride": stride,
        "precision": None if precision is None else str(precision),
    }
    with shut_down_cleanly():
        from pretune.runs.evaluate import evaluate as work

        own = _build_user_task(None if shots else model, train, test, column or [])
        if own is not None and split is not None and split not in own.splits:
            raise UsageError(f"--split '{split[:40]}': a table of your own has {' and '.join(own.splits)}")
        if own is not None and len(own.splits) == 1:
            how["split"] = next(iter(own.splits))  # the one file there is: shots are taken out of it
        with show_progress("evaluating") as tell:

            def told(name: str, done: int, of: int) -> None:
                tell(done / max(of, 1), f"{name}, {done:,} of {of:,}")

            found = work(
                model,
                [task, *list_user_tasks(own)],
                text=text or (),
                data=data,
                shots=counts,
                device=device,
                on_progress=told,
                **how,
            )
    if as_json:
        log.print_json({"model": model, "results": [each.to_dict() for each in found]})
        return
    if as_csv:
        print_csv(("task", "split", "shots", "score", "part", "value"), _list_records(found))
    else:
        log.print_result("\n".join(_format_lines(found)))
    for each in found:
        for note in each.notes:
            log.info(f"{each.task}: {note}")
    if as_csv:
        return
    named = next((each.task for each in found if each.shots is not None), None)
    if named is None:
        hint("show", model)
    elif own is not None and named == own.name:
        hint(
            "finetune", model, *_format_table_options(train, test, column or []), "--out", find_free_path("runs/tuned")
        )
    else:
        where = () if data is None else ("--data", data)
        hint("finetune", model, "--task", named, *where, "--out", find_free_path(f"runs/{named}"))


def list_user_tasks(task: "Task | None") -> "list[Task]":
    """A table of one's own among the tasks, where there is one."""
    return [] if task is None else [task]


def _parse_shots(text: str) -> list[int]:
    """The numbers of shots."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--shots '{text[:40]}' must be whole numbers with commas between them, such as 0,1,32"
        ) from None


def _build_user_task(model: str | None, train: Path | None, test: Path | None, columns: list[str]) -> "Task | None":
    """The task that files of one's own make; that of a model that was fine-tuned, where it is to answer by its head."""
    if test is None:
        if train is not None or columns:
            raise UsageError("--train and --column go with --test, the table that is evaluated")
        return None
    from pretune.tasks.user_table import build_user_task

    roles = dict(part.partition("=")[::2] for part in columns)
    wrong = next((role for role in roles if role not in ("text", "pair", "label") or not roles[role]), None)
    if wrong is not None:
        raise UsageError(f"--column '{wrong[:40]}' must be text=NAME, pair=NAME or label=NAME")
    if model is not None and (Path(model) / "task.json").is_file():
        from pretune.runs.finetune.finetuned_run import build_table_task

        if train is not None:
            raise UsageError("--train gives shots, and a fine-tuned run answers without; add --shots, or leave it out")
        return build_table_task(model, test, **roles)
    files = {"train": test} if train is None else {"train": train, "test": test}
    return build_user_task(files, text=roles.get("text"), label=roles.get("label"), pair=roles.get("pair"))


def _format_table_options(train: Path | None, test: Path | None, columns: list[str]) -> list[str]:
    """Tables of one's own as `pretune finetune` is given them.

    >>> _format_table_options(None, Path("mine.csv"), ["text=review"])
    ['--train', 'mine.csv', '--text', 'review']
    """
    files = ["--train", str(test)] if train is None else ["--train", str(train), "--test", str(test)]
    roles = (part.partition("=") for part in columns)
    return [*files, *(word for role, _, name in roles for word in (f"--{role}", name))]


def _format_lines(results: "Sequence[EvaluationResult]") -> "Iterator[str]":
    """One line a score, the headline of each task first; below it its parts."""
    for each in results:
        if each.prompt is not None:
            yield from (each.prompt, "")
    rows = [("task", "split", "shots", "score", "", "over")]
    for each in results:
        first = (each.task, each.split or "-", "-" if each.shots is None else str(each.shots))
        for place, (name, value) in enumerate(each.scores.items()):
            rows.append(
                (
                    *(("", "", "") if place else first),
                    name,
                    format_score(name, value),
                    "" if place else _format_counts(each),
                )
            )
        rows += [("", "", "", f"· {name}", format_score("", value), "") for name, value in each.groups.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:{'>' if at in (2, 4) else '<'}{widths[at]}}" for at, cell in enumerate(row)]
        yield "  ".join(cells).rstrip()


def _list_records(results: "Sequence[EvaluationResult]") -> "Iterator[tuple[object, ...]]":
    """One record a score; those of parts of a task are of its headline."""
    for each in results:
        for name, value in each.scores.items():
            yield each.task, each.split, each.shots, name, None, value
        for part, value in each.groups.items():
            yield each.task, each.split, each.shots, each.headline[0], part, value


def format_score(name: str, value: float) -> str:
    """A score for people: fractions in percent, perplexities, bits, squared errors and thresholds as they are.

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
