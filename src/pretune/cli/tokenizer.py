"""`pretune tokenizer`: a vocabulary for text of one's own."""

import re
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pretune.cli._hints import find_free_path, hint
from pretune.cli._names import complete_styles, complete_tokenizer_kinds
from pretune.cli._output import check_new_folder
from pretune.cli._progress import show_progress
from pretune.core import log
from pretune.core.errors import UsageError
from pretune.text.styles import KINDS, STYLES, get_tokenizer_kind

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


class DocumentUnit(StrEnum):
    """What makes a document."""

    AUTO = "auto"
    FILE = "file"
    BLOCK = "block"
    LINE = "line"
    FIELD = "field"


def tokenizer(
    corpus: Annotated[
        list[str], typer.Argument(metavar="CORPUS", help="Files, folders, globs, pair:A,B, builtin:NAME, hf:NAME.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write it.")],
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            metavar="NAME",
            autocompletion=complete_tokenizer_kinds,
            help=f"How text becomes pieces: {', '.join(KINDS)}.",
        ),
    ] = "wordpiece",
    vocab: Annotated[int, typer.Option("--vocab", metavar="N", help="How many tokens, special ones included.")] = 30000,
    style: Annotated[
        str | None,
        typer.Option(
            "--style",
            metavar="NAME",
            autocompletion=complete_styles,
            help=f"Special tokens: {', '.join(STYLES)}; by the kind.",
        ),
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Lower case, and without accents.")] = False,
    accents: Annotated[
        bool | None, typer.Option("--strip-accents/--keep-accents", help="Whatever the case.", show_default=False)
    ] = None,
    min_frequency: Annotated[
        int, typer.Option("--min-frequency", metavar="N", help="Words and pairs count from so many on.")
    ] = 2,
    alphabet: Annotated[
        int | None,
        typer.Option("--alphabet", metavar="N", help="Characters with pieces of their own; 99.99% of the text."),
    ] = None,
    sample: Annotated[
        str, typer.Option("--sample", metavar="SIZE", help="Learn from so much text, drawn from all of it.")
    ] = "200MB",
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Which sample.")] = 0,
    by: Annotated[DocumentUnit, typer.Option("--by", help="What makes a document.")] = DocumentUnit.AUTO,
    field: Annotated[str | None, typer.Option("--field", metavar="NAME", help="Where a table has its text.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train a tokenizer on texts.

    It is written as transformers reads it; the same corpus gives the same files.

    Example: pretune tokenizer books/ --kind wordpiece --vocab 30000 --lowercase --out tok/
    """
    limit = _parse_bytes(sample)
    chosen = style or get_tokenizer_kind(kind).style
    check_new_folder(out, empty=True)
    from pretune.text.tokenizer import train_tokenizer

    begun = time.monotonic()
    read = 0
    with show_progress("reading") as tell:

        def told(share: float, size: int) -> None:
            nonlocal read
            read = size
            if share < 1:
                tell(share, f"{size / 1e6:,.0f} MB, {size / 1e6 / max(time.monotonic() - begun, 1e-9):.1f} MB/s")
                return
            words = f"{size / 1e6:,.1f} MB, now learning {vocab:,} tokens"
            tell(share, words)
            if not sys.stderr.isatty():
                log.info(f"read {words}")

        made = train_tokenizer(
            kind,
            corpus,
            vocab=vocab,
            style=style,
            lowercase=lowercase,
            strip_accents=accents,
            min_frequency=min_frequency,
            alphabet=alphabet,
            sample_bytes=limit,
            seed=seed,
            by=by.value,
            field=field,
            progress=told,
        )
    made.save(out)
    if made.vocab < vocab:
        log.warn(
            f"{made.vocab:,} tokens, not {vocab:,}: the corpus has no more; use a larger one, or --min-frequency 1"
        )
    if as_json:
        facts = {
            "directory": str(out),
            "kind": kind,
            "style": chosen,
            "vocab": made.vocab,
            "sha256": made.sha256,
            "special": {made.get_token(i): i for i in sorted({*made.special.values(), *made.sentinels})},
            "bytes_read": read,
            "sampled": read > limit,
            "seconds": round(time.monotonic() - begun, 1),
        }
        log.print_json(facts)
        return
    text = f"{read / 1e6:,.1f} MB of text" if read <= limit else f"a sample of {sample} out of {read / 1e6:,.1f} MB"
    log.print_result(f"{out}: {kind}, {made.vocab:,} tokens, style {chosen}, from {text}")
    documents = ("--by", by.value) if by is not DocumentUnit.AUTO else ()
    texts = ("--field", field) if field is not None else ()
    hint("prepare", *corpus, "--tokenizer", out, *documents, *texts, "--out", find_free_path("data"))


def _parse_bytes(text: str) -> int:
    """A size as people write it: 200MB, 1.5GiB, 4096."""
    found = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([kKmMgG]?i?)[bB]?\s*", text)
    factor = _UNITS.get(found[2].upper()) if found else None
    size = int(float(found[1]) * factor) if found and factor else 0
    if size < 1:
        raise UsageError(f"--sample: '{text[:40]}' is not a size; write it like 200MB or 1.5GB")
    return size
