"""`pretune tokenizer`: train a tokenizer."""

import re
import sys
import time
from pathlib import Path
from typing import Annotated

from pretune.cli._options import (
    AsJson,
    Corpus,
    DocumentUnit,
    TextField,
    Unit,
    complete_styles,
    complete_tokenizer_kinds,
    option,
)
from pretune.cli._output import check_new_folder, find_free_path, hint, show_progress
from pretune.core import log
from pretune.core.errors import UsageError
from pretune.text.styles import KINDS, STYLES, get_tokenizer_kind

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def tokenizer(
    corpus: Corpus,
    out: Annotated[Path, option("--out DIR", "Output directory.")],
    kind: Annotated[
        str, option("--kind NAME", f"Algorithm: {', '.join(KINDS)}.", complete_tokenizer_kinds)
    ] = "wordpiece",
    vocab: Annotated[int, option("--vocab N", "Vocabulary size, including special tokens.")] = 30000,
    style: Annotated[
        str | None,
        option("--style NAME", f"Style of special tokens: {', '.join(STYLES)} (default: by kind).", complete_styles),
    ] = None,
    lowercase: Annotated[bool, option("--lowercase", "Lowercase and strip accents.")] = False,
    accents: Annotated[
        bool | None,
        option(
            "--strip-accents/--keep-accents", "Strip or keep accents (default: as --lowercase).", show_default=False
        ),
    ] = None,
    min_frequency: Annotated[int, option("--min-frequency N", "Minimum frequency of words and pairs.")] = 2,
    alphabet: Annotated[
        int | None, option("--alphabet N", "Alphabet size (default: covers 99.99% of the text).")
    ] = None,
    sample: Annotated[str, option("--sample SIZE", "Train on a random sample of this size.")] = "200MB",
    seed: Annotated[int, option("--seed N", "Random seed of the sample.")] = 0,
    by: Unit = DocumentUnit.AUTO,
    field: TextField = None,
    as_json: AsJson = False,
) -> None:
    """Train a tokenizer on text.

    Writes the files of transformers; the same corpus gives identical files.

    Example: pretune tokenizer books/ --kind wordpiece --vocab 30000 --lowercase --out tok/
    """
    limit = _parse_bytes(sample)
    style_name = style or get_tokenizer_kind(kind).style
    check_new_folder(out, empty=True)
    from pretune.text.tokenizer.training import train_tokenizer

    start = time.monotonic()
    read = 0
    with show_progress("reading") as report:

        def report_bytes(share: float, size: int) -> None:
            nonlocal read
            read = size
            if share < 1:
                report(share, f"{size / 1e6:,.0f} MB, {size / 1e6 / max(time.monotonic() - start, 1e-9):.1f} MB/s")
                return
            words = f"{size / 1e6:,.1f} MB, training {vocab:,} tokens"
            report(share, words)
            if not sys.stderr.isatty():
                log.info(f"read {words}")

        trained_tokenizer = train_tokenizer(
            kind, corpus, vocab=vocab, style=style, lowercase=lowercase, strip_accents=accents, alphabet=alphabet,
            min_frequency=min_frequency, sample_bytes=limit, seed=seed, by=by.value, field=field, progress=report_bytes,
        )  # fmt: skip
    trained_tokenizer.save(out)
    if trained_tokenizer.vocab < vocab:
        log.warn(f"{trained_tokenizer.vocab:,} tokens, not {vocab:,}: small corpus; add text, or use --min-frequency 1")
    if as_json:
        facts = {
            "directory": str(out),
            "kind": kind,
            "style": style_name,
            "vocab": trained_tokenizer.vocab,
            "sha256": trained_tokenizer.sha256,
            "special": {
                trained_tokenizer.get_token(i): i
                for i in sorted({*trained_tokenizer.special.values(), *trained_tokenizer.sentinels})
            },
            "bytes_read": read,
            "sampled": read > limit,
            "seconds": round(time.monotonic() - start, 1),
        }
        log.print_json(facts)
        return
    text = f"{read / 1e6:,.1f} MB of text" if read <= limit else f"a sample of {sample} out of {read / 1e6:,.1f} MB"
    log.print_result(f"{out}: {kind}, {trained_tokenizer.vocab:,} tokens, style {style_name}, from {text}")
    documents = ("--by", by.value) if by is not DocumentUnit.AUTO else ()
    texts = ("--field", field) if field is not None else ()
    hint("prepare", *corpus, "--tokenizer", out, *documents, *texts, "--out", find_free_path("data"))


def _parse_bytes(text: str) -> int:
    """Parse a size: 200MB, 1.5GiB, 4096."""
    match = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([kKmMgG]?i?)[bB]?\s*", text)
    factor = _UNITS.get(match[2].upper()) if match else None
    size = int(float(match[1]) * factor) if match and factor else 0
    if size < 1:
        raise UsageError(f"--sample: '{text[:40]}' is not a size; examples: 200MB, 1.5GB")
    return size
