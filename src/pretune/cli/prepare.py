"""`pretune prepare`: text to token shards."""

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
from pretune.core.counted import format_count
from pretune.core.errors import UsageError

if TYPE_CHECKING:
    from pretune.data.prepare import PreparedData

_HOLDOUT = "1%"
MIN_VALID_TOKENS = 5_000
"""Held-out tokens of which fewer make a loss that says little."""


class DecodingErrors(StrEnum):
    """What to do about bytes that are no text."""

    STRICT = "strict"
    REPLACE = "replace"


def prepare(
    corpus: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS",
            help="Files, folders, globs, pair:A,B, task:NAME, builtin:NAME, hf:NAME; with --merge, the slices.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DATA", help="Where to write it.")],
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", metavar="DIR", help="A tokenizer: its directory or its .json file.")
    ] = None,
    valid: Annotated[
        list[str] | None, typer.Option("--valid", metavar="FILE", help="Validation text; may be given several times.")
    ] = None,
    holdout: Annotated[
        str, typer.Option("--holdout", metavar="SHARE", help="Else: the share of documents to hold out.")
    ] = _HOLDOUT,
    by: Annotated[DocumentUnit, typer.Option("--by", help="What makes a document.")] = DocumentUnit.AUTO,
    field: Annotated[str | None, typer.Option("--field", metavar="NAME", help="Where a table has its text.")] = None,
    errors: Annotated[
        DecodingErrors, typer.Option("--errors", help="Bytes that are no text: stop or U+FFFD.")
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
        float | None, typer.Option("--near", metavar="SHARE", help="Drop texts this similar to an earlier one: 0.8.")
    ] = None,
    tasks: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Where tasks are; by default $PRETUNE_DATA.")
    ] = None,
    lang: Annotated[str, typer.Option("--lang", metavar="CODE", help="The language, for sentences.")] = "auto",
    sentences: Annotated[
        str,
        typer.Option("--sentences", metavar="NAME", autocompletion=complete_splitters, help="The sentence splitter."),
    ] = "rules",
    licence: Annotated[
        list[str] | None,
        typer.Option("--licence", metavar="TEXT", help="Of the text, for the cards; PATTERN=TEXT for some inputs."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="Processes; one per core by default, 0 for none.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="I/N", help="Prepare only slice I of N (1 to N), to be merged.")
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Join slices made with --shard.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace data made of something else.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Turn texts into tokens to train on, with a card about them.

    The splits are train and valid.

    Example: pretune prepare books/ news.jsonl.gz --tokenizer tok/ --out data/books

    Documents of two sides: pair:train.en,train.de (aligned files), pair:captions.tsv:en,de (columns), task:sst2.
    """
    from pretune.data.prepare import merge as join
    from pretune.runs.prepare import prepare as work

    begun = time.monotonic()
    with shut_down_cleanly():
        if merge:
            if tokenizer or valid or shard:
                raise UsageError("--merge takes slices and --out; tokenizer and settings are those of the slices")
            data = join(corpus, out=out, overwrite=overwrite)
        else:
            if tokenizer is None:
                raise UsageError("missing option '--tokenizer'; train one with `pretune tokenizer`")
            with show_progress("preparing") as tell:

                def told(share: float, characters: int, tokens: int) -> None:
                    rate = characters / 1e6 / max(time.monotonic() - begun, 1e-9)
                    tell(share, f"{characters / 1e6:,.0f} MB, {rate:.1f} MB/s, {tokens:,} tokens")

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
                    progress=told,
                )
    _show(data, as_json)


def _show(data: "PreparedData", as_json: bool) -> None:
    if as_json:
        log.print_json(data.to_dict())
        return
    if data.is_new and data.slice is None:
        card = data.card
        left = {**card["skipped"], **{name: one["dropped"] for name, one in card["filters"].items()}, **card["dropped"]}
        told = [f"{name.replace('_', ' ')} {count:,}" for name, count in left.items() if count]
        if told:
            log.info(f"left out: {', '.join(told)} (see {data.path / 'card.md'})")
    log.print_result(f"{data}: {'' if data.is_new else 'up to date, '}{_summarise(data)}")
    held = data.index.splits.get("valid")
    if data.is_new and held is not None and held.tokens < MIN_VALID_TOKENS and not data.card["lacking"]:
        log.warn(
            f"{held.tokens:,} held-out tokens are few to judge a model by; take more by --holdout SHARE or --valid FILE"
        )
    if data.slice is None:
        from pretune.data.prepare.run import MIN_TRAIN_TOKENS

        train = data.index.splits["train"]
        if train.tokens < MIN_TRAIN_TOKENS:
            tokenizer = quote(data.path / "tokenizer")
            hint_other(
                f"prepare TEXTS/ --tokenizer {tokenizer} --out {quote(find_free_path(data.path))}  (with more text in TEXTS/)"
            )
        else:
            hint(*suggest_pretraining(data.path, train))


def _summarise(data: "PreparedData") -> str:
    if data.slice is not None:
        return f"slice {data.slice}; join all with `pretune prepare --merge`"
    return "; ".join(
        f"{name} {format_count(split.tokens, 'tokens')} in {format_count(split.documents, 'documents')} "
        f"({split.bytes / 1e6:,.1f} MB"
        f"{f', {split.pairs:,} of two sides' if split.pairs else ''})"
        for name, split in data.index.splits.items()
    )
