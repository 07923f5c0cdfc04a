"""Data card: contents, sources and dropped documents of prepared data, as JSON and Markdown.

card.json holds all facts; card.md presents them as text. Neither contains the time, the machine or the number of
processes, so equal data has an equal card.
"""

import dataclasses
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pretune.core import __version__
from pretune.core.io import atomic_write, write_json
from pretune.core.log import format_count, format_markdown
from pretune.data.prepare.dedup_split import SplitFacts, SplitResult, describe_shortfall
from pretune.data.prepare.quality import EXCERPT_TOKENS, decode_excerpt
from pretune.data.prepare.settings import MAX_VALID_TOKENS, MIN_VALID_DOCUMENTS, MIN_VALID_TOKENS, Recipe, format_value
from pretune.data.prepare.stage import StageReader
from pretune.data.prepared_data import CARD_FILE, CardQuality, CardSample, SourceRecord
from pretune.data.shards import Shards
from pretune.text.cleaning import group_counts
from pretune.text.corpora import CorpusSource
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.sample import rank_by_count

CARD_MARKDOWN = "card.md"
_SAMPLE_COUNT = 3


def describe_sources(sources: Sequence[CorpusSource]) -> list[SourceRecord]:
    """Describe sources, JSON-ready."""
    return [
        SourceRecord(
            name=source.name,
            kind=source.kind,
            files=len(source.items),
            bytes=source.bytes,
            licence=source.licence,
        )
        for source in sources
    ]


def write_card(
    folder: Path, stages: Sequence[StageReader], result: SplitResult, recipe: Recipe, tokenizer: Tokenizer
) -> None:
    """Write card.json and card.md into `folder`, which must already contain data.json and the shards."""
    card = _build_card(folder, stages, result, recipe, tokenizer)
    write_json(folder / CARD_FILE, card)
    atomic_write(folder / CARD_MARKDOWN, render_markdown(card))


def format_command(recipe: Recipe) -> str:
    """Return the command that prepares the same data again, with the tokenizer saved in its directory."""
    settings = recipe.settings
    words = ["pretune", "prepare", *(name for name, _ in recipe.train)]
    words += ["--tokenizer", "DATA/tokenizer", "--out", "DATA"]
    words += [word for name, _ in recipe.valid for word in ("--valid", name)]
    words += [word for text in settings.licence for word in ("--licence", text)]
    words += [word for name, _ in recipe.reference for word in ("--quality", name)]
    defaults = type(settings)()
    for name in ("holdout", "by", "field", "errors", "clean", "near", "lang", "sentences", "keep"):
        value = getattr(settings, name)
        if value != getattr(defaults, name) and not (name == "holdout" and recipe.valid):
            words += [f"--{name}", ",".join(value) if isinstance(value, tuple) else f"{value}"]
    return shlex.join(words)


def _build_card(
    folder: Path, stages: Sequence[StageReader], result: SplitResult, recipe: Recipe, tokenizer: Tokenizer
) -> dict[str, Any]:
    counts = sum((stage.counts for stage in stages), Counter[str]())
    languages = sum((stage.languages for stage in stages), Counter[str]())
    total = sum(languages.values()) or 1
    filters = dict.fromkeys(name.rpartition(":")[0] for name in sorted(counts) if ":" in name)
    skip_counts = {name: count for name, count in counts.items() if ":" not in name and name != "documents"}
    open_counts = stages[0].facts["opened"]
    return {
        "pretune": __version__,
        "command": format_command(recipe),
        "fingerprint": recipe.fingerprint,
        "tokenizer": {"sha256": tokenizer.sha256, "vocab": tokenizer.vocab},
        "sources": _merge_source_facts(stages[0].facts["sources"], recipe, result.facts),
        "languages": {lang: round(languages[lang] / total, 4) for lang in rank_by_count(languages)},
        "documents_read": counts["documents"],
        "skipped": {name: count for name, count in sorted({**open_counts, **skip_counts}.items()) if count},
        "filters": group_counts(counts, filters),
        "dropped": result.drop_counts,
        "splits": {name: _describe_split(facts) for name, facts in result.facts.items()},
        **({"quality": result.quality} if result.quality else {}),
        "lacking": describe_shortfall(result.facts, recipe),  # shortfall of the validation split
        "samples": _sample_documents(folder, tokenizer),
        "settings": {name: value for name, value in recipe.to_dict().items() if name != "corpus"},
    }


def _merge_source_facts(
    descriptions: Sequence[SourceRecord], recipe: Recipe, facts: Mapping[str, SplitFacts]
) -> list[dict[str, Any]]:
    """Return one record per source: its description, its content hash and its amounts in each split."""
    digests = [digest for _, digest in (*recipe.train, *recipe.valid)]
    return [
        {**description, "sha256": digest, **{name: split.sources[number] for name, split in facts.items()}}
        for number, (description, digest) in enumerate(zip(descriptions, digests, strict=True))
    ]


def _describe_split(facts: SplitFacts) -> dict[str, Any]:
    tokens = max(facts.tokens, 1)
    return {
        **{name: value for name, value in dataclasses.asdict(facts).items() if name != "sources"},
        "bytes_per_token": round(facts.bytes / tokens, 3),
        "tokens_per_word": round(facts.tokens / max(facts.words, 1), 3),
        "unknown_share": round(facts.unknown / tokens, 6),
    }


def _sample_documents(folder: Path, tokenizer: Tokenizer) -> list[CardSample]:
    """Return the decoded first tokens of a few documents, spread evenly over the training data."""
    shards = Shards.open(folder, "train", verify=False)
    count = len(shards.documents) - 1
    samples: list[CardSample] = []
    for number in sorted({count * part // _SAMPLE_COUNT for part in range(_SAMPLE_COUNT)}):
        start, stop = (int(value) for value in shards.documents[number : number + 2])
        ids = shards.read_tokens(start, min(stop, start + EXCERPT_TOKENS)).tolist()
        text = decode_excerpt(tokenizer, ids, stop - start)
        samples.append({"document": number, "source": shards.index.sources[shards.sources[number]], "text": text})
    return samples


def render_markdown(card: Mapping[str, Any]) -> str:
    """Return the text of card.md for the content of card.json; the file card.md of this package is its template."""
    splits, train = card["splits"], card["splits"]["train"]
    quantiles = [{"0%": "shortest", "50%": "median", "100%": "longest"}.get(name, name) for name in train["lengths"]]
    pairs = [f"{split['pairs']:,} in {name}" for name, split in splits.items() if split["pairs"]]
    template = resources.files("pretune.data.prepare").joinpath("card.md").read_text(encoding="utf-8")
    return template.format(
        tokens=format_count(train["tokens"], "training tokens"),
        documents=format_count(train["documents"], "documents"),
        bytes=_format_megabytes(train["bytes"]),
        vocab=card["tokenizer"]["vocab"],
        command=card["command"],
        splits=format_markdown(
            ["split", "documents", "tokens", "bytes", "sentences", "bytes/token", "tokens/word", "unknown tokens"],
            [[name, *_format_split(split)] for name, split in splits.items()],
            text_columns=1,
        ),
        pairs=f"Text pairs: {', '.join(pairs)}.\n\n" if pairs else "",
        held_out=_render_held_out(card),
        lengths=format_markdown(
            ["split", *quantiles],
            [[name, *(f"{value:,}" for value in split["lengths"].values())] for name, split in splits.items()],
            text_columns=1,
        ),
        sources=format_markdown(
            ["source", "kind", "licence", "files", "size", *(f"{name} tokens" for name in splits)],
            [_format_source(source, splits) for source in card["sources"]],
            text_columns=3,
        ),
        languages=", ".join(f"{name} {share:.1%}" for name, share in card["languages"].items()) or "unknown",
        documents_read=card["documents_read"],
        dropped=_render_dropped(card),
        quality=_render_quality(card["quality"]) if "quality" in card else "",
        samples="".join(map(_render_sample, card["samples"])),
        settings=format_markdown(
            ["setting", "value"],
            [[name, _escape_cell(format_value(value))] for name, value in card["settings"].items()],
        ),
        tokenizer=card["tokenizer"]["sha256"],
        fingerprint=card["fingerprint"],
        pretune=card["pretune"],
    )


def _format_split(split: Mapping[str, Any]) -> list[str]:
    counts = [f"{split[name]:,}" for name in ("documents", "tokens", "bytes", "sentences")]
    ratios = [f"{split[name]:.2f}" for name in ("bytes_per_token", "tokens_per_word")]
    return [*counts, *ratios, f"{split['unknown_share']:.3%}"]


def _format_source(source: Mapping[str, Any], splits: Iterable[str]) -> list[str]:
    size = "unknown" if source["bytes"] is None else _format_megabytes(source["bytes"])
    words = [_escape_cell(source["name"]), source["kind"], _escape_cell(source["licence"] or "not stated")]
    return [*words, f"{source['files']:,}", size, *(f"{source[name]['tokens']:,}" for name in splits)]


def _render_sample(sample: CardSample) -> str:
    text, source = _escape_cell(sample["text"]), _escape_cell(sample["source"])
    return f"> {text}\n>\n> (document {sample['document']}, {source})\n\n"


def _render_held_out(card: Mapping[str, Any]) -> str:
    share, lack = card["settings"]["holdout"], card["lacking"]
    if lack:
        return f"{lack[:1].upper()}{lack[1:]}."
    if "valid" not in card["splits"]:
        return "There is no validation split."
    if not share:
        return (
            "The validation split is the text passed as `--valid`. "
            "Documents that are also in it are removed from the training split."
        )
    return (
        f"Validation split: {share:.2%} of the documents, selected by a hash of their content, with at most "
        f"{MAX_VALID_TOKENS:,} tokens. It has at least {MIN_VALID_DOCUMENTS} documents with "
        f"{MIN_VALID_TOKENS:,} tokens if a tenth of the text suffices for them."
    )


def _render_dropped(card: Mapping[str, Any]) -> str:
    filters = [
        [f"filter {name}", *(f"{counts[key]:,}" for key in ("kept", "changed", "dropped"))]
        for name, counts in card["filters"].items()
    ]
    skip_rows, drop_rows = (
        [[name.replace("_", " "), "", "", f"{count:,}"] for name, count in card[key].items()]
        for key in ("skipped", "dropped")
    )
    return format_markdown(["reason", "kept", "changed", "dropped"], [*skip_rows, *filters, *drop_rows], text_columns=1)


def _render_quality(quality: CardQuality) -> str:
    accuracy, keep, shift = quality["accuracy"], quality["keep"], quality["shift"]
    sources = [
        [_escape_cell(row["source"]), f"{row['documents']:,}", f"{row['kept_documents']:,}", f"{row['score']:.2f}"]
        for row in quality["sources"]
    ]
    examples = [
        f"> {_escape_cell(example['text'])}\n>\n> ({'kept' if example['is_kept'] else 'dropped'}, "
        f"score {example['score']:.2f}, {_escape_cell(example['source'])})\n\n"
        for example in quality["examples"]
    ]
    return (
        f"## Quality filter\n\nA linear classifier of hashed n-grams, trained on {quality['reference_documents']:,} "
        f"documents of the reference and {quality['corpus_documents']:,} of the text"
        f"{'' if accuracy is None else f' (accuracy {accuracy:.1%} on held-out documents)'}. A document's score is its "
        f"log odds of being of the reference"
        f"{'' if keep is None else f', plus {shift:.2f} to keep {keep:.2%}'}. It stays if noise of "
        f"pareto(9) is above 1 - sigmoid(score): kept {quality['kept_documents']:,}, "
        f"dropped {quality['dropped_documents']:,}.\n\n"
        + format_markdown(["source", "documents", "kept", "mean score"], sources, text_columns=1)
        + "\n\n"
        + "".join(examples)
    )


def _escape_cell(text: str) -> str:
    """Escape text so that it stays in its cell and contains no Markdown or HTML."""
    for special in "\\`*_[]<>|#":
        text = text.replace(special, "\\" + special)
    return " ".join(text.split())


def _format_megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size:,} bytes"
