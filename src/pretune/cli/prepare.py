"""`pretune prepare`: tokenize text into shards."""

import json
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.cli import shut_down_cleanly
from pretune.cli._options import OutputFormat
from pretune.cli._output import find_free_path, hint, hint_other, quote, show_progress
from pretune.core import log
from pretune.core.api import Options, option, option_set
from pretune.core.errors import UsageError
from pretune.core.log import format_count
from pretune.models.families import FAMILIES, find_style_family, list_sizes
from pretune.runs.options import PrepareOptions
from pretune.text.styles import STYLES

if TYPE_CHECKING:
    from pretune.data.prepared_data import PreparedData
    from pretune.data.shards.files import ShardSplit

MIN_VALID_TOKENS = 5_000
"""Below this, the validation loss is too noisy; a warning is logged."""
SMALL_DATA_TOKENS = 300_000
"""Below this, two minutes of training suffice."""
DEFAULT_STYLE = "cls-sep"
STYLE_RECIPES = {"cls-sep": "encoder", "endoftext": "decoder", "sentinels": "encoder-decoder"}
"""Recipes by the style of the special tokens that they read."""
_SMALL_MODEL = {"width": 256, "depth": 4, "heads": 4}


@option_set
class PrepareMode(Options):
    """Source of the data: text, or slices of it."""

    merge: bool = option("--merge", "Merge the slices of --shard.", default=False)


def prepare(options: PrepareOptions, mode: PrepareMode, output: OutputFormat) -> None:
    """Tokenize text into training data, with a data card.

    Writes the splits train and valid.

    Example: pretune prepare books/ news.jsonl.gz --tokenizer tok/ --out data/books

    Parallel text: pair:train.en,train.de (aligned files), pair:captions.tsv:en,de (columns), task:sst2.
    """
    from pretune.data.prepare.run import merge
    from pretune.runs.prepare import run_prepare

    start = time.monotonic()
    with shut_down_cleanly():
        if mode.merge:
            if options.tokenizer or options.valid or options.shard or options.quality:
                raise UsageError("--merge takes only slices and --out; tokenizer and settings come from the slices")
            data = merge(options.inputs, out=options.out, overwrite=options.overwrite)
        else:
            with show_progress("preparing") as report:

                def report_tokens(share: float, characters: int, tokens: int) -> None:
                    rate = characters / 1e6 / max(time.monotonic() - start, 1e-9)
                    report(share, f"{characters / 1e6:,.0f} MB, {rate:.1f} MB/s, {tokens:,} tokens")

                data = run_prepare(replace(options, progress=report_tokens))
    _show(data, output.as_json)


def _show(data: "PreparedData", as_json: bool) -> None:
    if as_json:
        log.print_json(data.to_dict())
        return
    if data.is_new and data.slice is None:
        card = data.card
        filters = {name: filter_card["dropped"] for name, filter_card in card["filters"].items()}
        dropped_counts = {**card["skipped"], **filters, **card["dropped"]}
        counts = [f"{name.replace('_', ' ')} {count:,}" for name, count in dropped_counts.items() if count]
        if counts:
            log.info(f"dropped: {', '.join(counts)} (see {data.path / 'card.md'})")
    log.print_result(f"{data}: {'' if data.is_new else 'up to date, '}{_summarize(data)}")
    validation = data.index.splits.get("valid")
    if data.is_new and validation is not None and validation.tokens < MIN_VALID_TOKENS and not data.card.get("lacking"):
        log.warn(f"{validation.tokens:,} validation tokens give a noisy loss; increase --holdout or pass --valid FILE")
    if data.slice is None:
        from pretune.data.prepare.run import MIN_TRAIN_TOKENS

        train = data.index.splits["train"]
        if train.tokens < MIN_TRAIN_TOKENS:
            tokenizer, out = quote(data.path / "tokenizer"), quote(find_free_path(data.path))
            hint_other(f"prepare TEXTS/ --tokenizer {tokenizer} --out {out}  (with more text in TEXTS/)")
        else:
            hint(*suggest_pretraining(data.path, train))


def suggest_pretraining(data: Path, split: "ShardSplit") -> list[object]:
    """Return a command that pre-trains a model on prepared data: a recipe, or a small model of a matching family."""
    tokenizer = json.loads((data / "tokenizer" / "tokenizer.json").read_text("utf-8"))
    has_words = tokenizer.get("model", {}).get("type") == "WordLevel"
    special = {str(token["content"]) for token in tokenizer.get("added_tokens", [])}
    is_small = split.tokens < SMALL_DATA_TOKENS
    options = ["--data", data, "--budget", "2m" if is_small else "10m"]
    style = find_style(special, has_words=has_words)
    if style in STYLE_RECIPES:
        return ["pretrain", STYLE_RECIPES[style], *options, "--out", find_free_path("runs/base")]
    family = find_style_family(style, has_words=has_words)
    assert family is not None
    sizes = list_sizes(family)
    small = [size for size in ("tiny", "mini") if size in sizes]
    name = f"{family}-{small[0 if is_small else -1]}" if small else family
    size = [] if small else _list_small_settings(family)
    return ["pretrain", name, *options, *size, "--out", find_free_path("runs/base")]


def find_style(special: Collection[str], *, has_words: bool = True) -> str:
    """Return the style with most of these special tokens, of those that a family has; else the default.

    Without `has_words` the tokens are pieces of words, which a model of words cannot read.
    """
    tokens = {name: {*style.special_tokens} for name, style in STYLES.items()}
    style = max(((len(texts), name) for name, texts in tokens.items() if texts <= {*special}), default=(0, ""))[1]
    return style if find_style_family(style, has_words=has_words) else DEFAULT_STYLE


def _list_small_settings(family: str) -> list[str]:
    """Return options that make a model of a family small."""
    from pretune.models.catalog import list_settings

    settings = list_settings(FAMILIES.get(family))
    options = [f"model.{name}={value}" for name, value in _SMALL_MODEL.items() if name in settings]
    return [part for option in options for part in ("--set", option)]


def _summarize(data: "PreparedData") -> str:
    if data.slice is not None:
        return f"slice {data.slice}; merge all slices with `pretune prepare --merge`"
    return "; ".join(
        f"{name} {format_count(split.tokens, 'tokens')} in {format_count(split.documents, 'documents')} "
        f"({split.bytes / 1e6:,.1f} MB"
        f"{f', {split.pairs:,} pairs' if split.pairs else ''})"
        for name, split in data.index.splits.items()
    )
