"""From the stage to splits: what is a duplicate, what is held out, and the shards of each split.

All decisions are made over all documents before the first is written:

1. A text that was there before (but for white space and Unicode form) goes, and training text that validation text has.
2. On request, so does a text nearly equal to one that stayed.
3. What is held out has at most `VALID` tokens: the documents with the smallest hashes, so that every source keeps its
   share. Where chance holds out less than a usable split, the documents with the next hashes follow, as long as all of
   them have at most a tenth of all tokens.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.core.counted import counted
from pretune.core.errors import DataError
from pretune.data.prepare.encoding import Ints
from pretune.data.prepare.settings import MAX_VALID_SHARE, MIN_VALID_DOCUMENTS, MIN_VALID_TOKENS, VALID, Recipe
from pretune.data.prepare.stage import Piece, Stage
from pretune.data.ragged import Bools, spread
from pretune.data.shards import ShardWriter, Split
from pretune.text.neardup import NearDuplicates

SPLITS = ("train", "valid")
_GONE, _TRAIN, _VALID = -1, 0, 1  # what becomes of a document; the others are indices into SPLITS
_QUANTILES = (0, 5, 25, 50, 75, 95, 100)


@dataclass(slots=True)
class SplitFacts:
    """What the card tells about a split."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    sentences: int = 0
    words: int = 0
    unknown: int = 0
    pairs: int = 0  # documents of two sides
    lengths: dict[str, int] = field(default_factory=dict)  # quantiles of tokens per document
    sources: list[dict[str, int]] = field(default_factory=list)  # documents, tokens and bytes of each


@dataclass(slots=True)
class Settled:
    """The outcome."""

    splits: dict[str, Split]
    facts: dict[str, SplitFacts]
    dropped: dict[str, int]


def settle(
    stages: Sequence[Stage], folder: Path, recipe: Recipe, *, dtype: str, vocab: int, unknown: int | None, remove: bool
) -> Settled:
    """Decide, and write the splits into `folder`; with `remove` the stages go as they are read."""
    columns = {name: np.concatenate([stage.column(name) for stage in stages]) for name in ("lengths", "sizes", "sides")}
    columns["sources"] = np.concatenate([stage.column("sources") for stage in stages])
    fate, dropped = decide(stages, recipe, columns["lengths"])
    _demand_text(fate, dropped, stages, recipe)
    counted = {name: Counter[str]() for name in SPLITS}
    writers: dict[str, ShardWriter] = {}
    used = [name for number, name in enumerate(SPLITS) if (fate == number).any()]
    try:
        for name in used:
            sided = bool(columns["sides"][fate == SPLITS.index(name)].any())
            writers[name] = ShardWriter(folder / name, dtype, vocab=vocab, sided=sided)
        _write(stages, writers, fate, columns, counted, unknown, remove)
        splits = {name: Split(shards=writer.close()) for name, writer in writers.items()}
    except BaseException:
        for writer in writers.values():
            writer.__exit__(BaseException, None, None)
        raise
    facts: dict[str, SplitFacts] = {}
    for name, split in splits.items():
        facts[name] = _facts(fate == SPLITS.index(name), columns, len(recipe.names))
        facts[name].sentences, facts[name].pairs = split.sentences, split.pairs
        facts[name].words, facts[name].unknown = counted[name]["words"], counted[name]["unknown"]
        splits[name] = Split(shards=split.shards, bytes=facts[name].bytes)
    return Settled(splits, facts, dropped)


def decide(stages: Sequence[Stage], recipe: Recipe, lengths: Ints) -> tuple[NDArray[np.int8], dict[str, int]]:
    """What becomes of every document, and how many went for which reason."""
    keys = np.concatenate([stage.column("keys") for stage in stages])
    held: Bools = np.concatenate([stage.column("held") for stage in stages])
    number = np.arange(len(keys))
    first = _first(keys)
    again = (first != number) & (lengths > 0)
    leaked = again & ~held & held[first] if recipe.valid else np.zeros_like(again)
    near = np.zeros_like(again)
    if recipe.settings.near is not None:
        near = _near(stages, recipe.settings.near, ~again & (lengths > 0))
    keep = ~again & ~near & (lengths > 0)
    if not recipe.valid:
        held = _hold_out(keep, held, keys[:, 0], lengths, recipe.settings.holdout)
    fate = np.where(keep, np.where(held, _VALID, _TRAIN), _GONE).astype(np.int8)
    dropped = {
        "without_tokens": int((lengths == 0).sum()),
        "exact_duplicates": int((again & ~leaked).sum()),
        "also_in_validation": int(leaked.sum()),
        "near_duplicates": int(near.sum()),
    }
    return fate, dropped


def _first(keys: NDArray[np.uint64]) -> Ints:
    """Of every row, the number of the first row that equals it."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: among equal rows the first stays first
    rows = keys[order]
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    first = np.empty(len(rows), dtype=np.int64)
    first[order] = order[np.maximum.accumulate(np.where(new, np.arange(len(rows)), 0))]
    return first


def _near(stages: Sequence[Stage], threshold: float, looked_at: Bools) -> Bools:
    index, at = NearDuplicates(threshold), 0
    near = np.zeros_like(looked_at)
    for stage in stages:
        for row in stage.column("signatures") if stage.documents else ():
            if looked_at[at]:
                near[at] = index.add(np.asarray(row))
            at += 1
    return near


def _hold_out(keep: Bools, held: Bools, keys: NDArray[np.uint64], lengths: Ints, share: float) -> Bools:
    """Which documents are held out in the end, given those whose hash says so."""
    options = np.flatnonzero(keep & held & (lengths <= VALID))
    options = options[np.argsort(keys[options], kind="stable")]
    chosen = options[np.cumsum(lengths[options]) <= VALID]
    out = np.zeros_like(held)
    out[chosen] = True
    if share > 0:
        _extend(out, keep, keys, lengths)
    return out


def _extend(out: Bools, keep: Bools, keys: NDArray[np.uint64], lengths: Ints) -> None:
    """Hold out more documents, in the order of their hashes, until the validation split is usable."""
    documents, tokens = int(out.sum()), int(lengths[out].sum())
    room = int(min(VALID, MAX_VALID_SHARE * lengths[keep].sum())) - tokens
    others = np.flatnonzero(keep & ~out & (lengths <= room))
    for number in others[np.argsort(keys[others], kind="stable")].tolist():
        if (documents >= MIN_VALID_DOCUMENTS and tokens >= MIN_VALID_TOKENS) or room <= 0:
            return
        size = int(lengths[number])
        if size <= room:
            out[number] = True
            documents, tokens, room = documents + 1, tokens + size, room - size


def lacking(facts: Mapping[str, SplitFacts], recipe: Recipe) -> str | None:
    """Say what a split that is held out by hash lacks to be usable, and why; None where nothing is asked for."""
    train, valid = facts["train"], facts.get("valid", SplitFacts())
    enough = valid.documents >= MIN_VALID_DOCUMENTS and valid.tokens >= MIN_VALID_TOKENS
    if enough or recipe.valid or not recipe.settings.holdout:
        return None
    found = f"{counted(valid.documents, 'documents')} with {counted(valid.tokens, 'tokens')}"
    usable = f"a usable validation split has {MIN_VALID_DOCUMENTS} documents with {MIN_VALID_TOKENS:,} tokens or more"
    documents = counted(train.documents + valid.documents, "documents")
    total = f"{documents} with {counted(train.tokens + valid.tokens, 'tokens')}"
    held = f"only {found} are held out" if valid.documents else "nothing is held out"
    return f"{held}: {usable}, and at most a tenth of the text is held out, which has {total}"


def _demand_text(fate: NDArray[np.int8], dropped: dict[str, int], stages: Sequence[Stage], recipe: Recipe) -> None:
    """Refuse what leaves nothing to train on, or nothing of validation text that was given."""
    if (fate == _TRAIN).any() and ((fate == _VALID).any() or not recipe.valid):
        return
    read = sum(stage.counts["documents"] for stage in stages)
    reasons = Counter({name: count for stage in stages for name, count in stage.counts.items() if ":dropped" in name})
    told = [f"{name.partition(':')[0]} {count}" for name, count in reasons.items()]
    told += [f"{name.replace('_', ' ')} {count}" for name, count in dropped.items() if count]
    if (fate == _TRAIN).any():
        raise DataError(f"nothing is left of the validation text (left out: {', '.join(told)}); give other text")
    if (fate == _VALID).any() and recipe.valid:
        raise DataError(f"no text is left to train on (left out: {', '.join(told)}); give text that is not in --valid")
    if (fate == _VALID).any():
        raise DataError(
            f"all {int((fate == _VALID).sum())} documents fell into the validation split and none is left to train on; "
            f"use a smaller --holdout than {recipe.settings.holdout:g}, or more text"
        )
    if not read:
        raise DataError(f"{_listed(recipe.names)}: no text in it, only white space; give files with text")
    raise DataError(f"all {read} documents were left out ({', '.join(told)}); use fewer or milder cleaners")


def _listed(names: Sequence[str]) -> str:
    return f"'{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _write(
    stages: Sequence[Stage],
    writers: dict[str, ShardWriter],
    fate: NDArray[np.int8],
    columns: Mapping[str, NDArray[Any]],
    counted: dict[str, Counter[str]],
    unknown: int | None,
    remove: bool,
) -> None:
    """Copy every document that stays into its split, in order."""
    at = 0  # the document that the next piece begins or goes on with
    for piece in (piece for stage in stages for piece in stage.pieces(remove=remove)):
        here = slice(at, at + len(piece.ends))
        for name, writer in writers.items():
            mine = fate[here] == SPLITS.index(name)
            if mine.any():
                ids, ends, words, sentences = _select(piece, mine)
                offsets = np.concatenate(([0], ends))
                sources, sides = (columns[column][here][mine] for column in ("sources", "sides"))
                writer.add(
                    ids,
                    offsets,
                    words=words,
                    sentences=sentences,
                    sources=sources,
                    sides=sides if writer.sided else None,
                    more=piece.more,
                )
                counted[name]["words"] += int(words.sum())
                counted[name]["unknown"] += 0 if unknown is None else int((ids == unknown).sum())
        at = here.stop - piece.more


def _select(piece: Piece, mine: Bools) -> tuple[Any, Ints, Bools, Ints]:
    """Some documents of a piece: tokens, ends, word starts and sentence starts."""
    if mine.all():
        return piece.ids, piece.ends, piece.words, piece.sentences
    lengths = np.diff(piece.ends, prepend=0)
    starts = piece.ends - lengths
    where = spread(starts[mine], lengths[mine])
    ends = np.cumsum(lengths[mine])
    moved = np.zeros_like(starts)  # how far each document moves
    moved[mine] = ends - piece.ends[mine]
    owner = np.searchsorted(piece.ends, piece.sentences, side="right")
    kept = mine[owner]
    return piece.ids[where], ends, piece.words[where], (piece.sentences + moved[owner])[kept]


def _facts(mine: Bools, columns: dict[str, Any], sources: int) -> SplitFacts:
    lengths, sizes, origin = columns["lengths"][mine], columns["sizes"][mine], columns["sources"][mine]
    marks = np.percentile(lengths, _QUANTILES, method="lower")
    rows = zip(
        *(_by_source(origin, values, sources) for values in (np.ones_like(lengths), lengths, sizes)), strict=True
    )
    return SplitFacts(
        documents=len(lengths),
        tokens=int(lengths.sum()),
        bytes=int(sizes.sum()),
        lengths={f"{mark}%": int(value) for mark, value in zip(_QUANTILES, marks, strict=True)},
        sources=[dict(zip(("documents", "tokens", "bytes"), row, strict=True)) for row in rows],
    )


def _by_source(origin: NDArray[np.uint16], values: Ints, sources: int) -> Iterator[int]:
    """The sum of values per source."""
    total = np.zeros(sources, dtype=np.int64)
    np.add.at(total, origin, values)  # NOTE: not bincount with weights, which adds as floats
    return iter(total.tolist())
