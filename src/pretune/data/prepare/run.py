"""The whole way from text to shards: `prepare` on one machine, or in slices on several and then `merge`."""

import contextlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from pretune.core import log
from pretune.core.counted import counted
from pretune.core.errors import DataError, UsageError
from pretune.core.io import MANIFEST, remove_abandoned, write_manifest
from pretune.data.prepare.card import describe, write_card
from pretune.data.prepare.dedup_split import settle
from pretune.data.prepare.encoding import Setup
from pretune.data.prepare.licences import state_licences
from pretune.data.prepare.pool import ordered
from pretune.data.prepare.prepared_data import Data
from pretune.data.prepare.publish import publishing
from pretune.data.prepare.settings import Recipe, Settings, share
from pretune.data.prepare.stage import Stage, StageWriter
from pretune.data.prepare.work_units import Place, places, slice_of, units
from pretune.data.shards import Index, Split, read_index, token_dtype, write_index
from pretune.data.shards.index import FILE as INDEX
from pretune.text.corpora import Corpus, open_corpus
from pretune.text.corpora.decoding import Errors
from pretune.text.corpora.formats import By
from pretune.text.corpora.items import Item
from pretune.text.corpora.snapshot import Snapshot
from pretune.text.tokenizer import Tokenizer

Names = Sequence[str | os.PathLike[str]]
Inputs = Sequence[str | os.PathLike[str] | Item]
Progress = Callable[[float, int, int], None]
"""Told the share that is done (0 to 1), the characters read and the tokens made so far."""

SHORT = 512
"""Tokens below which a corpus does not fill one sequence of a usual length."""

SOURCES = 2**16
"""The most sources that documents can be of."""

_STAGE = "stage"
_HOLDOUT = "1%"
_LONG = 2 * 2**30  # bytes that take a while to hash
_SMALL = 4 * 2**20  # bytes of text below which starting processes costs more than it gains


def prepare(
    inputs: Inputs,
    *,
    tokenizer: Tokenizer | str | os.PathLike[str],
    out: str | os.PathLike[str],
    valid: Inputs | None = None,
    holdout: str | float = _HOLDOUT,
    by: str = "auto",
    field: str | None = None,
    errors: str = "strict",
    clean: Sequence[str] = (),
    near: float | None = None,
    lang: str = "auto",
    sentences: str = "rules",
    licence: Sequence[str] = (),
    workers: int | None = None,
    shard: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Data:
    """Turn text into memory-mapped token shards with the splits `train` and `valid`, and a card that describes them.

    `inputs`, `by`, `field` and `errors` are those of `open_corpus`. Validation text is what `valid` names, else the
    share `holdout` of all documents, by a hash of their content. `clean` names cleaners; exact duplicates always go,
    and with `near` also texts that similar. `lang` is a code for the sentence splitter, guessed by default. `licence`
    is the text for the card, of all sources or as "PATTERN=TEXT" of some. `workers` is the number of processes, 0 for
    none; the result is the same. `shard` "i/n" makes one slice of n (`merge`).

    What is there already and was made of the same things stays as it is; other data is an error without `overwrite`.
    """
    target, valid = Path(out), valid or None
    settings = Settings(
        by=by,
        field=field,
        errors=errors,
        clean=tuple([clean] if isinstance(clean, str) else clean),
        near=near,
        holdout=_share(holdout, valid),
        lang=lang,
        sentences=sentences,
        licence=tuple([licence] if isinstance(licence, str) else licence),
    )
    settings.check()
    number, count = _slice(shard)
    processes = _workers(workers)
    reader = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(Path(tokenizer))
    corpus, held = _open(inputs, settings), _open(valid, settings) if valid else None
    if len(corpus.sources) + (len(held.sources) if held else 0) > SOURCES:
        raise UsageError(f"more than {SOURCES:,} inputs cannot be told apart; name the folder they are in, or a glob")
    sources = [*describe(corpus.sources), *(describe(held.sources) if held else [])]
    known = state_licences(sources, settings.licence)
    if (corpus.bytes or 0) > _LONG:
        log.say(f"hashing {(corpus.bytes or 0) / 1e9:.1f} GB, to notice later whether they have changed")
    snapshot = Snapshot([*corpus.stamps(), *(held.stamps() if held else ())])
    with snapshot.guard():
        recipe = Recipe.of(settings, reader.sha256, corpus, held)
    if _up_to_date(target, recipe, shard and f"{number}/{count}", overwrite):
        return Data.open(target)
    with snapshot.guard():
        work = slice_of(places(corpus, held), number, count)
    if workers is None and sum(place.text for place in work) < _SMALL:
        processes = 0
    with publishing(target, overwrite) as folder:
        reader.save(folder / "tokenizer")
        stage = folder if shard else folder / _STAGE
        stage.mkdir(exist_ok=True)
        setup = Setup(
            tokenizer=folder / "tokenizer",
            dtype=token_dtype(reader.vocab),
            clean=settings.clean,
            near=near,
            lang=lang,
            sentences=sentences,
            holdout=0.0 if held else settings.holdout,
        )
        with StageWriter(stage) as writer:
            with snapshot.guard():  # what is published is what was hashed
                _encode(work, setup, processes, writer, progress)
            opened = Counter(corpus.counts) + Counter(held.counts if held else {})
            writer.close({"shard": [number, count], "sources": known, "opened": dict(opened)})
        if shard:
            write_index(folder, _index(recipe, reader, {}))
            _seal(folder)
        else:
            _settle([Stage(stage)], folder, recipe, reader, remove=True)
            shutil.rmtree(stage)
            _seal(folder)
    return _checked(Data.open(target, made=True))


def merge(slices: Names, *, out: str | os.PathLike[str], overwrite: bool = False) -> Data:
    """Join the slices that `prepare(…, shard="i/n")` made: the same bytes as had they been prepared in one go."""
    if isinstance(slices, str) or not slices:
        raise UsageError("slices must be a list of the directories that `prepare` made with --shard")
    target, folders = Path(out), [Path(one) for one in slices]
    stages = [Stage.open(folder) for folder in folders]
    recipes = []
    for folder in folders:
        index = read_index(folder)
        recipes.append(Recipe.read(index.settings, index.tokenizer_sha256, str(folder / INDEX)))
    for folder, stage, recipe in zip(folders, stages, recipes, strict=True):
        change = recipe.change(recipes[0])
        if change is None and stage.count != stages[0].count:
            change = f"it is one of {stage.count} slices, not of {stages[0].count}"
        if change is not None:
            raise DataError(f"{folder}: does not belong to '{folders[0]}': {change}")
    numbers = [stage.number for stage in stages]
    twice = [number for number, times in Counter(numbers).items() if times > 1]
    missing = sorted({*range(1, stages[0].count + 1)} - {*numbers})
    if twice or missing:
        found = f"slice {twice[0]} is given twice" if twice else f"slice {missing[0]} is missing"
        raise DataError(f"{folders[0]}: {found}; all slices from 1 to {stages[0].count} are needed, each once")
    if _up_to_date(target, recipes[0], None, overwrite):
        return Data.open(target)
    reader = Tokenizer.load(folders[0] / "tokenizer")
    if reader.sha256 != recipes[0].tokenizer:
        raise DataError(f"{folders[0] / 'tokenizer'}: not the tokenizer the slice was made with; copy the slice again")
    in_order = sorted(stages, key=lambda stage: stage.number)
    with publishing(target, overwrite) as folder:
        reader.save(folder / "tokenizer")
        _settle(in_order, folder, recipes[0], reader, remove=False)
        _seal(folder)
    return _checked(Data.open(target, made=True))


def _encode(work: Sequence[Place], setup: Setup, workers: int, writer: StageWriter, progress: Progress | None) -> None:
    """Send all units through the workers and onto the stage."""
    total, done = sum(place.size for place in work), 0
    with contextlib.closing(
        ordered(units(work, writer.counts), setup, workers, label=lambda unit: unit.where)
    ) as chunks:
        for chunk in chunks:
            writer.add(chunk)
            done += chunk.size
            if progress is not None:
                progress(done / max(total, 1), writer.read, writer.tokens)


def _settle(stages: Sequence[Stage], folder: Path, recipe: Recipe, tokenizer: Tokenizer, *, remove: bool) -> None:
    """Write splits, index and card."""
    settled = settle(
        stages,
        folder,
        recipe,
        dtype=token_dtype(tokenizer.vocab),
        vocab=tokenizer.vocab,
        unknown=tokenizer.special.get("unk"),
        remove=remove,
    )
    write_index(folder, _index(recipe, tokenizer, settled.splits))
    write_card(folder, stages, settled, recipe, tokenizer)


def _index(recipe: Recipe, tokenizer: Tokenizer, splits: dict[str, Split]) -> Index:
    return Index(
        tokenizer_sha256=tokenizer.sha256,
        vocab=tokenizer.vocab,
        dtype=token_dtype(tokenizer.vocab),
        fingerprint=recipe.fingerprint,
        sources=recipe.names,
        splits=splits,
        settings=recipe.plain(),
    )


def _seal(folder: Path) -> None:
    """A manifest in every directory, the outermost last."""
    for place in (*(one for one in sorted(folder.iterdir()) if one.is_dir() and one.name != "tokenizer"), folder):
        write_manifest(place, [one.name for one in place.iterdir() if one.is_file() and one.name != MANIFEST])


def _up_to_date(target: Path, recipe: Recipe, part: str | None, overwrite: bool) -> bool:
    """Whether what is asked for is there; an error where something else is."""
    if not (target / INDEX).is_file() or not (target / MANIFEST).is_file():  # one that was killed may leave either
        return False
    try:
        data = Data.open(target)
        change = recipe.change(Recipe.read(data.index.settings, data.index.tokenizer_sha256, str(target / INDEX)))
        if change is None and data.slice != part:
            change = f"it holds {f'slice {data.slice}' if data.slice else 'all of it'}"
        if change is None and Tokenizer.load(data.tokenizer).sha256 != recipe.tokenizer:
            change = "its tokenizer was replaced"
    except DataError:
        if overwrite:
            return False
        raise
    if change is not None and not overwrite:
        raise DataError(f"{target}: was prepared from something else: {change}; use --overwrite or another --out")
    if change is None:
        remove_abandoned(target)
    return change is None


def _checked(data: Data) -> Data:
    """Warn of what is allowed and yet hardly meant."""
    if data.slice is None and data.tokens < SHORT:
        log.warn(
            f"{data}: only {counted(data.tokens, 'tokens')} to train "
            f"on, less than one sequence of usual length; give more text"
        )
    if data.slice is None and data.card["lacking"]:
        log.warn(f"{data}: {data.card['lacking']}; name text with --valid, or hold out more with --holdout SHARE")
    return data


def _open(inputs: Inputs, settings: Settings) -> Corpus:
    names = inputs if isinstance(inputs, str) else [_name(one) for one in inputs]
    by, errors = cast(By, settings.by), cast(Errors, settings.errors)
    return open_corpus(names, by=by, field=settings.field, errors=errors)


def _name(given: str | os.PathLike[str] | Item) -> str | Item:
    return os.fspath(given) if isinstance(given, str | os.PathLike) else given


def _share(holdout: str | float, valid: Inputs | None) -> float:
    if valid is None:
        return share(holdout)
    if holdout != _HOLDOUT:
        raise UsageError("holdout and valid exclude each other: the validation text is held out already")
    return 0.0


def _slice(shard: str | None) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", "1/1" if shard is None else shard)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageError(f"the shard is i/n with i from 1 to n, such as '1/4', found '{str(shard)[:40]}'")
    return int(found[1]), int(found[2])


def _workers(given: int | None) -> int:
    if given is not None:
        if given < 0:
            raise UsageError(f"workers is a number of processes, 0 for none, found {given}")
        return given
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
