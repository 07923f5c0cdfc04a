"""`pretune predict`: what a fine-tuned run says of new inputs, one JSON object a line."""

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli._hints import free, hint, quoted
from pretune.cli._models import BaseOption
from pretune.cli._names import DEVICES, among
from pretune.cli._signals import ending_well
from pretune.core import log
from pretune.core.counted import counted
from pretune.core.errors import DataError, UsageError, explain_missing

if TYPE_CHECKING:
    from pretune.runs.finetune.finetuned_run import FineTuned
    from pretune.runs.finetune.saved_task import Kept
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
        typer.Option("--device", metavar="NAME", autocompletion=among(*DEVICES), help="cpu or cuda; found by default."),
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
    with ending_well():
        from dataclasses import replace

        from pretune.runs.finetune.finetuned_run import FineTuned
        from pretune.runs.finetune.inputs import example_of

        fine = FineTuned.open(run, device=device, base=base)
        fine = fine if task is None else fine.on(task)
        kept = replace(fine.kept, text=text or fine.kept.text, pair=pair or fine.kept.pair)
        given = (
            example_of(one, kept, where)
            for where, one in _read(inputs, kept, [column for column in (text, pair) if column])
        )
        total = cut = empty = 0
        for some in iter(lambda: list(itertools.islice(given, batch)), []):
            counts = _say(fine, some, total)
            total, cut, empty = total + len(some), cut + counts[0], empty + counts[1]
    if not total:
        raise DataError(f"{inputs}: no inputs; give at least one")
    if cut:
        log.warn(f"{cut:,} of {counted(total, 'inputs')} cut: longer than {kept.max_length} tokens")
    if empty:
        log.warn(f"{empty:,} of {counted(total, 'inputs')} without text that the tokenizer knows")
    hint("report", run, "--out", free("report.html"), silent=as_json)


def _say(fine: "FineTuned", examples: list["Example"], first: int) -> tuple[int, int]:
    """Print what is said of some examples; how many were cut, and how many empty."""
    ready = fine.ready()
    counts = ready.counts(examples)
    for number, (example, said) in enumerate(zip(examples, ready.predict(examples), strict=True), start=first):
        log.print_result(
            json.dumps({"id": example.id or str(number), **said.shown(ready.task)}, ensure_ascii=False, allow_nan=False)
        )
    sys.stdout.flush()
    return counts.cut, counts.empty


def _read(inputs: str, kept: "Kept", asked: list[str]) -> Iterator[tuple[str, Any]]:
    """Where each input stands, and itself; columns that were asked for have to be there."""
    path = Path(inputs)
    if inputs != "-" and not path.is_file():
        one = f"; a text itself is piped in: echo {quoted(inputs)} | pretune predict RUN --input -"
        raise DataError(f"{inputs}: {explain_missing(inputs, remedy=one if ' ' in inputs else '')}")
    suffixes = {suffix.lower() for suffix in path.suffixes}
    if inputs == "-" or not suffixes & {".csv", ".tsv", ".jsonl", ".json", ".conll", ".conllu", ".ndjson"}:
        yield from _lines(inputs)
        return
    from pretune.tasks.table_reader import open_table

    named = [column for column in (kept.text, kept.pair) if column]
    table = open_table(path, named, alone=True)
    if table.form == "conll":
        yield from _sentences(path, ".conllu" in suffixes)
        return
    for column in asked if table.form != "jsonl" else ():
        table.check(column)
    for row in table.rows():
        yield row.where, {name: value for name, value in row.values.items() if value is not None}


def _sentences(path: Path, universal: bool) -> Iterator[tuple[str, Any]]:
    from pretune.tasks.conll import Columns
    from pretune.tasks.conllu import Conllu

    form: Any = Conllu if universal else Columns
    for number, example in enumerate(form(tag=3 if universal else -1, labels=())(path)):
        yield f"{path}: sentence {number}", {"words": list(example.words), "text": example.text}


def _lines(inputs: str) -> Iterator[tuple[str, Any]]:
    """Lines of text or JSON; a mistake is told with the number of its line."""
    if inputs != "-":
        from pretune.tasks.table_rows import lines

        yield from ((f"{inputs}:{number}", _parsed(line)) for number, line in lines(Path(inputs)))
        return
    for number, raw in enumerate(sys.stdin.buffer, start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as fault:
            raise DataError(f"standard input:{number}: byte {fault.start} is not UTF-8; convert it first") from None
        yield f"standard input:{number}", _parsed(line)


def _parsed(line: str) -> Any:
    if line[:1] in '{["':
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return line
        if isinstance(found, dict | str):
            return found
    first, tab, second = line.partition("\t")
    return (first, second) if tab else line
