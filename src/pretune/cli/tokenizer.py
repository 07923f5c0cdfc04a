"""`pretune tokenizer`: train a tokenizer."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pretune.cli._options import OutputFormat, list_words
from pretune.cli._output import check_new_folder, find_free_path, hint, print_facts, show_progress
from pretune.core import log
from pretune.runs.options import TokenizerOptions
from pretune.text.styles import get_tokenizer_kind

if TYPE_CHECKING:
    from pretune.text.tokenizer import Tokenizer


def tokenizer(options: TokenizerOptions, output: OutputFormat) -> None:
    """Train a tokenizer on text.

    Writes the files of transformers; the same corpus gives identical files.

    Example: pretune tokenizer books/ --kind wordpiece --vocab 30000 --lowercase --out tok/
    """
    assert options.out is not None
    kind, out, limit = options.kind, Path(options.out), options.sample_bytes
    style = options.style or get_tokenizer_kind(kind).style
    check_new_folder(out, empty=True)
    start = time.monotonic()
    trained_tokenizer, read = _train(options)
    trained_tokenizer.save(out)
    if (size := trained_tokenizer.vocab) < options.vocab:
        log.warn(f"{size:,} tokens, not {options.vocab:,}: small corpus; add text, or use --min-frequency 1")
    special_ids = sorted({*trained_tokenizer.special.values(), *trained_tokenizer.sentinels})
    facts = {
        "directory": str(out),
        "kind": kind,
        "style": style,
        "vocab": size,
        "sha256": trained_tokenizer.sha256,
        "special": {trained_tokenizer.get_token(i): i for i in special_ids},
        "bytes_read": read,
        "sampled": read > limit,
        "seconds": round(time.monotonic() - start, 1),
    }
    text = f"{read / 1e6:,.1f} MB"
    text = f"{text} of text" if read <= limit else f"a sample of {_format_bytes(limit)} out of {text}"
    print_facts(output, facts, f"{out}: {kind}, {size:,} tokens, style {style}, from {text}")
    inputs = [*cast("list[str]", options.inputs), "--tokenizer", out, *list_words(options, "by", "field")]
    hint("prepare", *inputs, "--out", find_free_path("data"), silent=output.as_json)


def _train(options: TokenizerOptions) -> "tuple[Tokenizer, int]":
    """Return the trained tokenizer and the bytes read, with progress on the terminal."""
    from pretune.text.tokenizer.training import train_tokenizer

    start, read = time.monotonic(), 0
    with show_progress("reading") as report:

        def report_bytes(share: float, size: int) -> None:
            nonlocal read
            read = size
            if share < 1:
                report(share, f"{size / 1e6:,.0f} MB, {size / 1e6 / max(time.monotonic() - start, 1e-9):.1f} MB/s")
                return
            words = f"{size / 1e6:,.1f} MB, training {options.vocab:,} tokens"
            report(share, words)
            if not sys.stderr.isatty():
                log.info(f"read {words}")

        settings = {**options.list_changes(), "vocab": options.vocab, "progress": report_bytes}
        del settings["out"], settings["inputs"]
        tokenizer = train_tokenizer(settings.pop("kind", options.kind), options.inputs, **settings)
    return tokenizer, read


def _format_bytes(size: int) -> str:
    """Format a size as it is typed.

    >>> _format_bytes(200_000_000), _format_bytes(1_500)
    ('200MB', '1.5kB')
    """
    units = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))
    return next(f"{size / factor:g}{unit}" for factor, unit in units if size >= factor)
