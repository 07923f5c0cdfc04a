"""`pretune prepare`: tokenize text into shards."""

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pretune.cli._hints import find_free_path, hint, hint_other, quote, suggest_pretraining
from pretune.cli._names import complete_cleaners, complete_splitters
from pretune.cli._progress import show_progress
from pretune.cli._signals import shut_down_cleanly
from pretune.cli.tokenizer import DocumentUnit
from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.format import format_count

if TYPE_CHECKING:
    from pretune.data.prepare import PreparedData

_HOLDOUT = "1%"
MIN_VALID_TOKENS = 5_000
"""Below this, the validation loss is too noisy; a warning is logged."""


class DecodingErrors(StrEnum):
    """Handling of invalid UTF-8."""

    STRICT = "strict"
    REPLACE = "replace"


def prepare(
    corpus: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS",
            help="Files, folders, globs, pair:A,B, task:NAME, builtin:NAME, hf:NAME; slices with --merge.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DATA", help="Output directory.")],
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", metavar="DIR", help="Tokenizer directory or .json file.")
    ] = None,
    valid: Annotated[
        list[str] | None, typer.Option("--valid", metavar="FILE", help="Validation text. Repeatable.")
    ] = None,
    holdout: Annotated[
        str, typer.Option("--holdout", metavar="SHARE", help="Share of documents for validation, without --valid.")
    ] = _HOLDOUT,
    by: Annotated[DocumentUnit, typer.Option("--by", help="Unit of a document.")] = DocumentUnit.AUTO,
    field: Annotated[str | None, typer.Option("--field", metavar="NAME", help="Text column or JSON field.")] = None,
    errors: Annotated[
        DecodingErrors, typer.Option("--errors", help="Invalid UTF-8: stop, or replace by U+FFFD.")
    ] = DecodingErrors.STRICT,
    clean: Annotated[
        str,
        typer.Option(
            "--clean",
            metavar="NAME,...",
            autocompletion=complete_cleaners,
            help="Cleaners or presets: plain, web, short_pages=50, …",
        ),
    ] = "",
    max_similarity: Annotated[
        float | None,
        typer.Option("--near", metavar="SHARE", help="Drop near-duplicates of at least this Jaccard similarity: 0.8."),
    ] = None,
    tasks: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Directory of task data (default: $PRETUNE_DATA).")
    ] = None,
    lang: Annotated[str, typer.Option("--lang", metavar="CODE", help="Language, for sentence splitting.")] = "auto",
    sentences: Annotated[
        str,
        typer.Option("--sentences", metavar="NAME", autocompletion=complete_splitters, help="Sentence splitter."),
    ] = "rules",
    licence: Annotated[
        list[str] | None,
        typer.Option(
            "--licence",
            metavar="TEXT",
            help="Licence of the text, for data and model cards; PATTERN=TEXT for some inputs.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", help="Worker processes (default: one per core; 0: in the main process)."
        ),
    ] = None,
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="I/N", help="Prepare only slice I of N (from 1), for --merge.")
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Merge the slices of --shard.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace data prepared from other inputs or settings.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tokenize text into training data, with a data card.

    Writes the splits train and valid.

    Example: pretune prepare books/ news.jsonl.gz --tokenizer tok/ --out data/books

    Parallel text: pair:train.en,train.de (aligned files), pair:captions.tsv:en,de (columns), task:sst2.
    """
    from pretune.data.prepare import merge as join
    from pretune.runs.prepare import prepare as work

    start = time.monotonic()
    with shut_down_cleanly():
        if merge:
            if tokenizer or valid or shard:
                raise UsageError("--merge takes only slices and --out; tokenizer and settings come from the slices")
            data = join(corpus, out=out, overwrite=overwrite)
        else:
            if tokenizer is None:
                raise UsageError("missing option '--tokenizer'; train one with `pretune tokenizer`")
            with show_progress("preparing") as report:

                def report_tokens(share: float, characters: int, tokens: int) -> None:
                    rate = characters / 1e6 / max(time.monotonic() - start, 1e-9)
                    report(share, f"{characters / 1e6:,.0f} MB, {rate:.1f} MB/s, {tokens:,} tokens")

                data = work(
                    corpus,
                    tokenizer=tokenizer,
                    out=out,
                    data=tasks,
                    valid=valid or None,
                    holdout=holdout,
                    by=by,
                    field=field,
                    errors=errors,
                    clean=[name for name in clean.split(",") if name],
                    near=max_similarity,
                    lang=lang,
                    sentences=sentences,
                    licence=licence or (),
                    workers=workers,
                    shard=shard,
                    overwrite=overwrite,
                    progress=report_tokens,
                )
    _show(data, as_json)


def _show(data: "PreparedData", as_json: bool) -> None:
    if as_json:
        log.print_json(data.to_dict())
        return
    if data.is_new and data.slice is None:
        card = data.card
        dropped_counts = {
            **card["skipped"],
            **{name: filter_card["dropped"] for name, filter_card in card["filters"].items()},
            **card["dropped"],
        }
        counts = [f"{name.replace('_', ' ')} {count:,}" for name, count in dropped_counts.items() if count]
        if counts:
            log.info(f"dropped: {', '.join(counts)} (see {data.path / 'card.md'})")
    log.print_result(f"{data}: {'' if data.is_new else 'up to date, '}{_summarize(data)}")
    validation = data.index.splits.get("valid")
    if data.is_new and validation is not None and validation.tokens < MIN_VALID_TOKENS and not data.card["lacking"]:
        log.warn(f"{validation.tokens:,} validation tokens give a noisy loss; increase --holdout or pass --valid FILE")
    if data.slice is None:
        from pretune.data.prepare.run import MIN_TRAIN_TOKENS

        train = data.index.splits["train"]
        if train.tokens < MIN_TRAIN_TOKENS:
            tokenizer, out = quote(data.path / "tokenizer"), quote(find_free_path(data.path))
            hint_other(f"prepare TEXTS/ --tokenizer {tokenizer} --out {out}  (with more text in TEXTS/)")
        else:
            hint(*suggest_pretraining(data.path, train))


def _summarize(data: "PreparedData") -> str:
    if data.slice is not None:
        return f"slice {data.slice}; merge all slices with `pretune prepare --merge`"
    return "; ".join(
        f"{name} {format_count(split.tokens, 'tokens')} in {format_count(split.documents, 'documents')} "
        f"({split.bytes / 1e6:,.1f} MB"
        f"{f', {split.pairs:,} pairs' if split.pairs else ''})"
        for name, split in data.index.splits.items()
    )
