"""`pretune predict`: predictions of a fine-tuned run, one JSON object per line."""

import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.cli import shut_down_cleanly
from pretune.cli._output import find_free_path, hint, quote
from pretune.core import log
from pretune.core.api import Options, option, option_set
from pretune.core.errors import DataError, UsageError, explain_missing, suggest
from pretune.core.log import format_count
from pretune.runs.options import BASE, DEVICE, PAIR, QUANTIZE, TEXT, Quantization

if TYPE_CHECKING:
    from pretune.runs.finetune.finetuned_run import FinetunedRun
    from pretune.runs.finetune.saved_task import BlankInput, SavedTask
    from pretune.tasks.example import Example


@option_set
class PredictOptions(Options):
    """Options of predictions."""

    runs: list[Path] = option(
        "RUN", "Run of `pretune finetune`; several of one task are an ensemble.", is_required=True
    )
    inputs: str = option(
        "--input FILE|-", "Table (CSV, TSV, JSONL, CoNLL) or lines of text; - is stdin.", is_required=True
    )
    text: str | None = TEXT.field()
    pair: str | None = PAIR.field()
    task: str | None = option("--task NAME", "Task of a multi-task run.")
    batch: int = option("--batch N", "Inputs per chunk.", default=512)
    base: Path | None = BASE.field()
    device: str | None = DEVICE.field()
    quantize: Quantization | None = QUANTIZE.field()
    as_json: bool = option("--json", "Print JSON lines (always on).", default=False)


def predict(options: PredictOptions) -> None:
    """Predict labels, scores, tags or answers for new inputs.

    Prints one JSON object per input, in order, while the input is read; a blank input has null and a reason.

    Several runs are combined: the mean of their probabilities, or the tags or the answer that most of them give.

    A line of text may be a JSON object with the training columns; a tab separates the two texts of a pair.

    Example: echo "a gorgeous, witty, seductive movie" | pretune predict runs/sst2 --input -
    """
    inputs, text, pair = options.inputs, options.text, options.pair
    if options.batch < 1:
        raise UsageError(f"--batch {options.batch} must be at least 1")
    if not inputs:
        raise UsageError("--input is empty; pass a file, or - for standard input")
    with shut_down_cleanly():
        from dataclasses import replace

        from pretune.runs.finetune.inference import open_runs
        from pretune.runs.finetune.saved_task import BlankInput

        tuned_run = open_runs(options.runs, device=options.device, base=options.base, quantize=options.quantize)
        tuned_run = tuned_run if options.task is None else tuned_run.select_task(options.task)
        saved_task = tuned_run.saved_task
        if pair is not None and saved_task.reads_one_text:
            raise UsageError(f"--pair '{pair[:40]}': this run was fine-tuned on single texts; remove it")
        saved_task = replace(saved_task, text=text or saved_task.text, pair=pair or saved_task.pair)
        examples = (
            saved_task.build_input(value, location)
            for location, value in _read(inputs, saved_task, [column for column in (text, pair) if column])
        )
        total = truncated_count = empty = blank = 0
        for chunk in iter(lambda: list(itertools.islice(examples, options.batch)), []):
            cut, unknown = _print_predictions(tuned_run, chunk, total)
            total, truncated_count, empty = total + len(chunk), truncated_count + cut, empty + unknown
            blank += sum(isinstance(value, BlankInput) for value in chunk)
    if not total:
        raise DataError(f"{inputs}: no inputs; expected at least one")
    for count, problem in (
        (truncated_count, f"truncated to {saved_task.max_length} tokens"),
        (blank, "are blank: their predictions are null, with a reason"),
        (empty, "have no text that the tokenizer knows"),
    ):
        if count:
            log.warn(f"{count:,} of {format_count(total, 'inputs')} {problem}")
    hint("report", *options.runs, "--out", find_free_path("report.html"), silent=options.as_json)


def _print_predictions(run: "FinetunedRun", inputs: list["Example | BlankInput"], first: int) -> tuple[int, int]:
    """Print the predictions of a chunk; return the numbers of inputs that are truncated or have no known token."""
    from pretune.tasks.example import Example

    ready = run.load_predictor()
    examples = [value for value in inputs if isinstance(value, Example)]
    counts = ready.count_truncated(examples) if examples else None
    for number, (value, fields) in enumerate(zip(inputs, ready.describe(inputs), strict=True), start=first):
        record = {"id": value.id or str(number), **fields}
        log.print_result(json.dumps(record, ensure_ascii=False, allow_nan=False))
    sys.stdout.flush()
    return (counts.cut, counts.empty) if counts is not None else (0, 0)


def _read(inputs: str, task: "SavedTask", columns: list[str]) -> Iterator[tuple[str, Any]]:
    """Return the location and value of each input; columns requested by option must exist."""
    path = Path(inputs)
    if inputs != "-" and not path.is_file():
        remedy = f"; to predict a text, pipe it: echo {quote(inputs)} | pretune predict RUN --input -"
        raise DataError(f"{inputs}: {explain_missing(inputs, remedy=remedy if ' ' in inputs else '')}")
    suffixes = {suffix.lower() for suffix in path.suffixes}
    if inputs == "-" or not suffixes & {".csv", ".tsv", ".jsonl", ".json", ".conll", ".conllu", ".ndjson"}:
        return _check_columns(_read_lines(inputs, has_pair=not task.reads_one_text), columns)
    from pretune.tasks.table import open_table

    task_columns = [column for column in (task.text, task.pair) if column]
    table = open_table(path, task_columns, allow_single_column=True)
    if table.form == "conll":
        return _check_columns(_read_sentences(path, ".conllu" in suffixes), columns)
    rows = ((row.location, row.values) for row in table.read_rows())
    if table.form == "jsonl":
        return _check_columns(rows, columns)
    for column in columns:
        table.check_column(column)
    return rows


def _check_columns(values: Iterable[tuple[str, Any]], columns: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the inputs; raise at one that lacks a column requested by option."""
    for location, value in values:
        names = value if isinstance(value, dict) else {}
        for column in columns:
            if column not in names:
                raise DataError(f"{location}: no column '{column[:40]}'{suggest(column, names)}; see --text and --pair")
        yield location, value


def _read_sentences(path: Path, universal: bool) -> Iterator[tuple[str, Any]]:
    from pretune.tasks.benchmarks.conll import ConllReader, ConlluReader

    form: Any = ConlluReader if universal else ConllReader
    for number, example in enumerate(form(tag=3 if universal else -1, labels=())(path)):
        yield f"{path}: sentence {number}", {"words": list(example.words), "text": example.text}


def _read_lines(inputs: str, *, has_pair: bool) -> Iterator[tuple[str, Any]]:
    """Yield lines of text or JSON with their line numbers; with `has_pair` a tab separates two texts."""
    if inputs != "-":
        from pretune.tasks.table import read_lines

        yield from ((f"{inputs}:{number}", _parse(line, has_pair)) for number, line in read_lines(Path(inputs)))
        return
    for number, raw in enumerate(sys.stdin.buffer, start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as fault:
            raise DataError(f"standard input:{number}: byte {fault.start} is not UTF-8; convert the input") from None
        yield f"standard input:{number}", _parse(line, has_pair)


def _parse(line: str, has_pair: bool) -> Any:
    if line[:1] in '{["':
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return line
        if isinstance(value, dict | str):
            return value
    first, tab, second = line.partition("\t")
    return (first, second) if tab and has_pair else line
