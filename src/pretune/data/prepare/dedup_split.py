"""Deduplication, validation split and the shards of each split.

All documents are assigned before the first one is written:

1. Exact duplicates are dropped: the text equals an earlier one except for white space and Unicode form. Training
   documents that are also in given validation text are dropped too.
2. With `near`, near duplicates of a kept document are dropped.
3. With a quality filter, documents of low quality are dropped (`quality`).
4. The validation split has at most `MAX_VALID_TOKENS` tokens: the documents with the smallest hashes, so every source
   keeps its share. If the hashes select less than a usable split, the documents with the next hashes are added, up to
   a tenth of all tokens (`MAX_VALID_SHARE`).
"""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import DataError
from pretune.core.log import format_count
from pretune.data.prepare.encoding import Ints
from pretune.data.prepare.quality import EXCERPT_TOKENS, QualitySelection, decode_excerpt
from pretune.data.prepare.settings import (
    MAX_VALID_SHARE,
    MAX_VALID_TOKENS,
    MIN_VALID_DOCUMENTS,
    MIN_VALID_TOKENS,
    Recipe,
)
from pretune.data.prepare.stage import Piece, StageReader
from pretune.data.prepared_data import CardQuality
from pretune.data.sequences import Bools, spread
from pretune.data.shards import ShardSplit, ShardWriter, choose_token_dtype
from pretune.text.neardup import NearDuplicates
from pretune.text.tokenizer import Tokenizer

SPLITS = ("train", "valid")
Excerpts = dict[int, tuple[list[int], int]]
"""First tokens and length of documents, by number."""
_DROP, _TRAIN, _VALID = -1, 0, 1  # assignment of a document; _TRAIN and _VALID are indices into SPLITS
_QUANTILES = (0, 5, 25, 50, 75, 95, 100)


@dataclass(slots=True)
class SplitFacts:
    """Statistics of a split for the card."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    sentences: int = 0
    words: int = 0
    unknown: int = 0
    pairs: int = 0  # documents with two sides
    lengths: dict[str, int] = field(default_factory=dict)  # quantiles of tokens per document
    sources: list[dict[str, int]] = field(default_factory=list)  # documents, tokens and bytes of each source


@dataclass(slots=True)
class SplitResult:
    """Shards and statistics of the written splits, and the number of dropped documents by reason."""

    splits: dict[str, ShardSplit]
    facts: dict[str, SplitFacts]
    drop_counts: dict[str, int]
    quality: CardQuality | None


def write_splits(
    stages: Sequence[StageReader], folder: Path, recipe: Recipe, tokenizer: Tokenizer, *, remove: bool
) -> SplitResult:
    """Assign all documents, and write the splits into `folder`.

    Args:
        stages: Stages with all documents, in order.
        folder: Output directory.
        recipe: Settings and sources.
        tokenizer: Tokenizer of the documents.
        remove: Delete the files of the stages after reading them.

    Raises:
        DataError: No training text remains, or none of the given validation text.
    """
    columns = {
        name: np.concatenate([stage.read_column(name) for stage in stages])
        for name in ("lengths", "sizes", "sides", "sources")
    }
    fate, drop_counts, quality = assign_splits(stages, recipe, columns["lengths"])
    _check_remaining_text(fate, drop_counts, stages, recipe)
    word_counts = {name: Counter[str]() for name in SPLITS}
    excerpts: Excerpts = dict.fromkeys(quality.list_examples() if quality else (), ([], 0))
    writers: dict[str, ShardWriter] = {}
    selections = {name: fate == number for number, name in enumerate(SPLITS) if (fate == number).any()}
    dtype, vocab = choose_token_dtype(tokenizer.vocab), tokenizer.vocab
    with contextlib.ExitStack() as stack:
        for name, selection in selections.items():
            writer = ShardWriter(folder / name, dtype, vocab=vocab, has_sides=bool(columns["sides"][selection].any()))
            writers[name] = stack.enter_context(writer)
        _write_documents(
            stages, writers, fate, columns, word_counts, tokenizer.special.get("unk"), excerpts, remove=remove
        )
    result = SplitResult({}, {}, drop_counts, None)
    if quality is not None:
        texts = {number: decode_excerpt(tokenizer, ids, length) for number, (ids, length) in excerpts.items()}
        settings, fit = recipe.settings, stages[0].facts["quality"]
        result.quality = quality.describe(fit, settings.keep, recipe.names, columns["sources"], texts)
    for name, selection in selections.items():
        split = ShardSplit(shards=tuple(writers[name].shards), bytes=int(columns["sizes"][selection].sum()))
        result.splits[name] = split
        result.facts[name] = _compute_facts(split, word_counts[name], selection, columns, len(recipe.names))
    return result


def assign_splits(
    stages: Sequence[StageReader], recipe: Recipe, lengths: Ints
) -> tuple[NDArray[np.int8], dict[str, int], QualitySelection | None]:
    """Assign every document to a split or drop it.

    Also returns the number of dropped documents by reason, and the outcome of the quality filter.
    """
    keys = np.concatenate([stage.read_column("keys") for stage in stages])
    is_held_out: Bools = np.concatenate([stage.read_column("held") for stage in stages])
    number = np.arange(len(keys))
    first = _find_first_equal(keys)
    is_duplicate = (first != number) & (lengths > 0)
    is_leak = is_duplicate & ~is_held_out & is_held_out[first] if recipe.valid else np.zeros_like(is_duplicate)
    is_near_duplicate = np.zeros_like(is_duplicate)
    if recipe.settings.near is not None:
        is_near_duplicate = _find_near_duplicates(stages, recipe.settings.near, ~is_duplicate & (lengths > 0))
    keep = ~is_duplicate & ~is_near_duplicate & (lengths > 0)
    quality: QualitySelection | None = None
    if recipe.reference:
        scores = np.concatenate([stage.read_column("scores") for stage in stages])
        is_candidate = keep & ~is_held_out if recipe.valid else keep
        quality = QualitySelection.select(scores, keys[:, 1], is_candidate, recipe.settings.keep)
        keep = keep & ~quality.is_dropped
    if not recipe.valid:
        is_held_out = _hold_out(keep, is_held_out, keys[:, 0], lengths, recipe.settings.holdout)
    fate = np.where(keep, np.where(is_held_out, _VALID, _TRAIN), _DROP).astype(np.int8)
    drop_counts = {
        "without_tokens": int((lengths == 0).sum()),
        "exact_duplicates": int((is_duplicate & ~is_leak).sum()),
        "also_in_validation": int(is_leak.sum()),
        "near_duplicates": int(is_near_duplicate.sum()),
    }
    if quality is not None:
        drop_counts["low_quality"] = int(quality.is_dropped.sum())
    return fate, drop_counts, quality


def _find_first_equal(keys: NDArray[np.uint64]) -> Ints:
    """Return, for every row, the index of the first equal row."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: equal rows keep their order
    rows = keys[order]
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    first = np.empty(len(rows), dtype=np.int64)
    first[order] = order[np.maximum.accumulate(np.where(new, np.arange(len(rows)), 0))]
    return first


def _find_near_duplicates(stages: Sequence[StageReader], threshold: float, candidates: Bools) -> Bools:
    index, number = NearDuplicates(threshold), 0
    is_near_duplicate = np.zeros_like(candidates)
    for stage in stages:
        for row in stage.read_column("signatures") if stage.documents else ():
            if candidates[number]:
                is_near_duplicate[number] = index.add(np.asarray(row))
            number += 1
    return is_near_duplicate


def _hold_out(is_kept: Bools, is_hashed_out: Bools, keys: NDArray[np.uint64], lengths: Ints, share: float) -> Bools:
    """Return the mask of validation documents, given those selected by hash."""
    options = np.flatnonzero(is_kept & is_hashed_out & (lengths <= MAX_VALID_TOKENS))
    options = options[np.argsort(keys[options], kind="stable")]
    selection = options[np.cumsum(lengths[options]) <= MAX_VALID_TOKENS]
    out = np.zeros_like(is_hashed_out)
    out[selection] = True
    if share > 0:
        _extend_held_out(out, is_kept, keys, lengths)
    return out


def _extend_held_out(is_held_out: Bools, is_kept: Bools, keys: NDArray[np.uint64], lengths: Ints) -> None:
    """Add documents to the mask in the order of their hashes until the validation split is usable; in place."""
    documents, tokens = int(is_held_out.sum()), int(lengths[is_held_out].sum())
    room = int(min(MAX_VALID_TOKENS, MAX_VALID_SHARE * lengths[is_kept].sum())) - tokens
    candidates = np.flatnonzero(is_kept & ~is_held_out & (lengths <= room))
    for number in candidates[np.argsort(keys[candidates], kind="stable")].tolist():
        if (documents >= MIN_VALID_DOCUMENTS and tokens >= MIN_VALID_TOKENS) or room <= 0:
            return
        size = int(lengths[number])
        if size <= room:
            is_held_out[number] = True
            documents, tokens, room = documents + 1, tokens + size, room - size


def describe_shortfall(facts: Mapping[str, SplitFacts], recipe: Recipe) -> str | None:
    """Describe why a validation split selected by hash is too small.

    Returns None if the split is usable, if the user gave validation text, or if `holdout` is 0.
    """
    train, valid = facts["train"], facts.get("valid", SplitFacts())
    enough = valid.documents >= MIN_VALID_DOCUMENTS and valid.tokens >= MIN_VALID_TOKENS
    if enough or recipe.valid or not recipe.settings.holdout:
        return None
    amount = f"{format_count(valid.documents, 'documents')} with {format_count(valid.tokens, 'tokens')}"
    usable = f"a usable validation split has at least {MIN_VALID_DOCUMENTS} documents with {MIN_VALID_TOKENS:,} tokens"
    documents = format_count(train.documents + valid.documents, "documents")
    total = f"{documents} with {format_count(train.tokens + valid.tokens, 'tokens')}"
    problem = f"the validation split has only {amount}" if valid.documents else "the validation split is empty"
    return f"{problem}: {usable}, but at most a tenth of the text ({total}) is used for validation"


def _check_remaining_text(
    fate: NDArray[np.int8], drop_counts: dict[str, int], stages: Sequence[StageReader], recipe: Recipe
) -> None:
    """Raise a DataError if no training text remains, or none of the given validation text."""
    if (fate == _TRAIN).any() and ((fate == _VALID).any() or not recipe.valid):
        return
    reasons = Counter({name: count for stage in stages for name, count in stage.counts.items() if ":dropped" in name})
    reason_texts = [f"{name.partition(':')[0]} {count}" for name, count in reasons.items()]
    reason_texts += [f"{name.replace('_', ' ')} {count}" for name, count in drop_counts.items() if count]
    if (fate == _TRAIN).any():
        raise DataError(f"no validation text remains (dropped: {', '.join(reason_texts)}); pass other text to --valid")
    if (fate == _VALID).any() and recipe.valid:
        raise DataError(
            f"no training text remains (dropped: {', '.join(reason_texts)}); pass training text that is not in --valid"
        )
    if (fate == _VALID).any():
        raise DataError(
            f"all {int((fate == _VALID).sum())} documents are in the validation split and none remains for training; "
            f"use a smaller --holdout than {recipe.settings.holdout:g}, or more text"
        )
    read = sum(stage.counts["documents"] for stage in stages)
    if not read:
        more = f" and {len(recipe.names) - 1} more" if len(recipe.names) > 1 else ""
        raise DataError(f"'{recipe.names[0]}'{more}: contains no text, only white space; pass files with text")
    remedy = "a larger --keep" if drop_counts.get("low_quality") else "fewer or milder cleaners"
    raise DataError(f"all {read} documents were dropped ({', '.join(reason_texts)}); use {remedy}")


def _write_documents(
    stages: Sequence[StageReader],
    writers: dict[str, ShardWriter],
    fate: NDArray[np.int8],
    columns: Mapping[str, NDArray[Any]],
    word_counts: dict[str, Counter[str]],
    unknown: int | None,
    excerpts: Excerpts,
    *,
    remove: bool,
) -> None:
    """Copy every kept document into its split, in order; fill in the documents of `excerpts`."""
    first = 0  # index of the document that the next piece starts or continues
    for piece in (piece for stage in stages for piece in stage.iter_pieces(remove=remove)):
        rows = slice(first, first + len(piece.ends))
        for number in excerpts:
            if rows.start <= number < rows.stop and not excerpts[number][1]:
                start, stop = np.concatenate(([0], piece.ends))[number - first :][:2].tolist()
                excerpts[number] = (piece.ids[start : min(stop, start + EXCERPT_TOKENS)].tolist(), stop - start)
        for name, writer in writers.items():
            mine = fate[rows] == SPLITS.index(name)
            if mine.any():
                ids, ends, words, sentences = _select_documents(piece, mine)
                writer.add(
                    ids,
                    np.concatenate(([0], ends)),
                    words=words,
                    sentences=sentences,
                    sources=columns["sources"][rows][mine],
                    sides=columns["sides"][rows][mine] if writer.has_sides else None,
                    is_unfinished=piece.is_unfinished,
                )
                word_counts[name]["words"] += int(words.sum())
                word_counts[name]["unknown"] += 0 if unknown is None else int((ids == unknown).sum())
        first = rows.stop - piece.is_unfinished


def _select_documents(piece: Piece, selection: Bools) -> tuple[Any, Ints, Bools, Ints]:
    """Return the selected documents of a piece: tokens, ends, word starts and sentence starts."""
    if selection.all():
        return piece.ids, piece.ends, piece.words, piece.sentences
    lengths = np.diff(piece.ends, prepend=0)
    starts = piece.ends - lengths
    index = spread(starts[selection], lengths[selection])
    ends = np.cumsum(lengths[selection])
    shifts = np.zeros_like(starts)  # offset by which each document moves
    shifts[selection] = ends - piece.ends[selection]
    owner = np.searchsorted(piece.ends, piece.sentences, side="right")
    is_selected = selection[owner]
    return piece.ids[index], ends, piece.words[index], (piece.sentences + shifts[owner])[is_selected]


def _compute_facts(
    split: ShardSplit, counts: Counter[str], selection: Bools, columns: Mapping[str, NDArray[Any]], sources: int
) -> SplitFacts:
    """Return the statistics of the selected documents; `sources` is the number of sources."""
    lengths, sizes, origin = columns["lengths"][selection], columns["sizes"][selection], columns["sources"][selection]
    quantiles = np.percentile(lengths, _QUANTILES, method="lower")
    totals = np.zeros((sources, 3), dtype=np.int64)
    np.add.at(totals, origin, np.stack((np.ones_like(lengths), lengths, sizes), axis=1))
    return SplitFacts(
        documents=split.documents,
        tokens=split.tokens,
        bytes=split.bytes,
        sentences=split.sentences,
        words=counts["words"],
        unknown=counts["unknown"],
        pairs=split.pairs,
        lengths={f"{mark}%": int(value) for mark, value in zip(_QUANTILES, quantiles, strict=True)},
        sources=[dict(zip(("documents", "tokens", "bytes"), row, strict=True)) for row in totals.tolist()],
    )
