"""`pretune predict`: what a fine-tuned run says of new inputs, one JSON object a line."""

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli._hints import find_free_path, hint, quote
from pretune.cli._models import BaseOption
from pretune.cli._names import DEVICES, complete_from
from pretune.cli._signals import shut_down_cleanly
from pretune.core import log
from pretune.core.counted import format_count
from pretune.core.errors import DataError, UsageError, explain_missing

if TYPE_CHECKING:
    from pretune.runs.finetune.finetuned_run import FinetunedRun
    from pretune.runs.finetune.saved_task import SavedTask
    from pretune.tasks.example import Example

CHUNK = 512
"""Inputs that are read before their answers are written."""


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run of `pretune finetune`.")],
    inputs: Annotated[
        str,
        typer.Option(
            "--input", metavar="FILE|-", help="A table (CSV, TSV, JSONL, CoNLL), or lines of text; - is stdin."
        ),
    ],
    text: Annotated[str | None, typer.Option("--text", metavar="COL", help="The column of the text.")] = None,
    pair: Annotated[str | None, typer.Option("--pair", metavar="COL", help="That of a second text.")] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="Which task, of a run that learnt several together.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Inputs that are read at a time.")] = CHUNK,
    base: BaseOption = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME", autocompletion=complete_from(*DEVICES), help="cpu or cuda; found by default."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, which is what it does anyway.")] = False,
) -> None:
    """Label, score, tag or answer new inputs; JSON lines out.

    They come in the order of the inputs, while these are read.

    A line of text may be JSON with the fields that training had; two texts stand with a tab between them.

    Example: echo "a gorgeous, witty, seductive movie" | pretune predict runs/sst2 --input -
    """
    if batch < 1:
        raise UsageError(f"--batch {batch} must be at least 1")
    if not inputs:
        raise UsageError("--input is empty; give a file, or - for standard input")
    with shut_down_cleanly():
        from dataclasses import replace

        from pretune.runs.finetune.finetuned_run import FinetunedRun
        from pretune.runs.finetune.inputs import build_example

        fine = FinetunedRun.open(run, device=device, base=base)
        fine = fine if task is None else fine.select_task(task)
        kept = replace(fine.saved_task, text=text or fine.saved_task.text, pair=pair or fine.saved_task.pair)
        given = (
            build_example(one, kept, where)
            for where, one in _read(inputs, kept, [column for column in (text, pair) if column])
        )
        total = cut = empty = 0
        for some in iter(lambda: list(itertools.islice(given, batch)), []):
            counts = _print_predictions(fine, some, total)
            total, cut, empty = total + len(some), cut + counts[0], empty + counts[1]
    if not total:
        raise DataError(f"{inputs}: no inputs; give at least one")
    if cut:
        log.warn(f"{cut:,} of {format_count(total, 'inputs')} cut: longer than {kept.max_length} tokens")
    if empty:
        log.warn(f"{empty:,} of {format_count(total, 'inputs')} without text that the tokenizer knows")
    hint("report", run, "--out", find_free_path("report.html"), silent=as_json)


def _print_predictions(run: "FinetunedRun", examples: list["Example"], first: int) -> tuple[int, int]:
    """Print what is said of some examples; how many were cut, and how many empty."""
    ready = run.load_predictor()
    counts = ready.count_truncated(examples)
    for number, (example, said) in enumerate(zip(examples, ready.predict(examples), strict=True), start=first):
        log.print_result(
            json.dumps(
                {"id": example.id or str(number), **said.to_dict(ready.task)}, ensure_ascii=False, allow_nan=False
            )
        )
    sys.stdout.flush()
    return counts.cut, counts.empty


def _read(inputs: str, task: "SavedTask", columns: list[str]) -> Iterator[tuple[str, Any]]:
    """Where each input stands, and itself; columns that were asked for have to be there."""
    path = Path(inputs)
    if inputs != "-" and not path.is_file():
        one = f"; a text itself is piped in: echo {quote(inputs)} | pretune predict RUN --input -"
        raise DataError(f"{inputs}: {explain_missing(inputs, remedy=one if ' ' in inputs else '')}")
    suffixes = {suffix.lower() for suffix in path.suffixes}
    if inputs == "-" or not suffixes & {".csv", ".tsv", ".jsonl", ".json", ".conll", ".conllu", ".ndjson"}:
        yield from _read_lines(inputs)
        return
    from pretune.tasks.table_reader import open_table

    named = [column for column in (task.text, task.pair) if column]
    table = open_table(path, named, allow_single_column=True)
    if table.form == "conll":
        yield from _read_sentences(path, ".conllu" in suffixes)
        return
    for column in columns if table.form != "jsonl" else ():
        table.check_column(column)
    for row in table.read_rows():
        yield row.location, {name: value for name, value in row.values.items() if value is not None}


def _read_sentences(path: Path, universal: bool) -> Iterator[tuple[str, Any]]:
    from pretune.tasks.conll import ConllReader
    from pretune.tasks.conllu import ConlluReader

    form: Any = ConlluReader if universal else ConllReader
    for number, example in enumerate(form(tag=3 if universal else -1, labels=())(path)):
        yield f"{path}: sentence {number}", {"words": list(example.words), "text": example.text}


def _read_lines(inputs: str) -> Iterator[tuple[str, Any]]:
    """Lines of text or JSON; a mistake is told with the number of its line."""
    if inputs != "-":
        from pretune.tasks.table_rows import read_lines

        yield from ((f"{inputs}:{number}", _parse(line)) for number, line in read_lines(Path(inputs)))
        return
    for number, raw in enumerate(sys.stdin.buffer, start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as fault:
            raise DataError(f"standard input:{number}: byte {fault.start} is not UTF-8; convert it first") from None
        yield f"standard input:{number}", _parse(line)


def _parse(line: str) -> Any:
    if line[:1] in '{["':
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return line
        if isinstance(found, dict | str):
            return found
    first, tab, second = line.partition("\t")
    return (first, second) if tab else line
