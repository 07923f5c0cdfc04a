"""Preparation of text as token shards: `prepare` on one machine, or in slices on several and then `merge`."""

import contextlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from pretune.core import log
from pretune.core.errors import DataError, UsageError
from pretune.core.format import format_count
from pretune.core.io import MANIFEST, remove_abandoned, write_manifest
from pretune.data.prepare.card import describe_sources, write_card
from pretune.data.prepare.dedup_split import write_splits
from pretune.data.prepare.encoding import EncoderSetup
from pretune.data.prepare.licences import state_licences
from pretune.data.prepare.pool import map_ordered
from pretune.data.prepare.prepared_data import PreparedData
from pretune.data.prepare.publish import publish_directory
from pretune.data.prepare.settings import PrepareConfig, Recipe, parse_share
from pretune.data.prepare.stage import StageReader, StageWriter
from pretune.data.prepare.work_units import SplitPart, iter_units, list_parts, select_slice
from pretune.data.shards import DataIndex, ShardSplit, choose_token_dtype, read_index, write_index
from pretune.data.shards.index import INDEX_FILE as INDEX
from pretune.text.corpora import Corpus, open_corpus
from pretune.text.corpora.decoding import Errors
from pretune.text.corpora.formats import DocumentBoundary
from pretune.text.corpora.items import CorpusItem
from pretune.text.corpora.snapshot import FileSnapshot
from pretune.text.tokenizer import Tokenizer

Names = Sequence[str | os.PathLike[str]]
Inputs = Sequence[str | os.PathLike[str] | CorpusItem]
Progress = Callable[[float, int, int], None]
"""Callback with the completed share (0 to 1), the characters read and the tokens written."""

MIN_TRAIN_TOKENS = 512
"""Tokens below which a corpus does not fill one sequence of a usual length."""

MAX_SOURCES = 2**16
"""The most sources that documents can be of."""

_STAGE_FOLDER = "stage"
_DEFAULT_HOLDOUT = "1%"
_SLOW_HASH_BYTES = 2 * 2**30  # bytes that take a while to hash
_MIN_PARALLEL_BYTES = 4 * 2**20  # bytes of text below which starting processes costs more than it gains


def prepare(
    inputs: Inputs,
    *,
    tokenizer: Tokenizer | str | os.PathLike[str],
    out: str | os.PathLike[str],
    valid: Inputs | None = None,
    holdout: str | float = _DEFAULT_HOLDOUT,
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
) -> PreparedData:
    """Turn text into memory-mapped token shards with the splits `train` and `valid`, and a card that describes them.

    `inputs`, `by`, `field` and `errors` are those of `open_corpus`. Validation text is what `valid` names, else the
    share `holdout` of all documents, by a hash of their content. `clean` names cleaners; exact duplicates always go,
    and with `near` also texts that similar. `lang` is a code for the sentence splitter, guessed by default. `licence`
    is the text for the card, of all sources or as "PATTERN=TEXT" of some. `workers` is the number of processes, 0 for
    none; the result is the same. `shard` "i/n" makes one slice of n (`merge`).

    What is there already and was made of the same things stays as it is; other data is an error without `overwrite`.
    """
    target, valid = Path(out), valid or None
    settings = PrepareConfig(
        by=by,
        field=field,
        errors=errors,
        clean=tuple([clean] if isinstance(clean, str) else clean),
        near=near,
        holdout=_parse_holdout(holdout, valid),
        lang=lang,
        sentences=sentences,
        licence=tuple([licence] if isinstance(licence, str) else licence),
    )
    settings.check()
    number, count = _parse_slice(shard)
    processes = _count_workers(workers)
    reader = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(Path(tokenizer))
    corpus, valid_corpus = _open_inputs(inputs, settings), _open_inputs(valid, settings) if valid else None
    if len(corpus.sources) + (len(valid_corpus.sources) if valid_corpus else 0) > MAX_SOURCES:
        raise UsageError(
            f"more than {MAX_SOURCES:,} inputs cannot be told apart; name the folder they are in, or a glob"
        )
    sources = [*describe_sources(corpus.sources), *(describe_sources(valid_corpus.sources) if valid_corpus else [])]
    source_facts = state_licences(sources, settings.licence)
    if (corpus.bytes or 0) > _SLOW_HASH_BYTES:
        log.info(f"hashing {(corpus.bytes or 0) / 1e9:.1f} GB, to notice later whether they have changed")
    snapshot = FileSnapshot([*corpus.list_stamps(), *(valid_corpus.list_stamps() if valid_corpus else ())])
    with snapshot.guard():
        recipe = Recipe.from_corpus(settings, reader.sha256, corpus, valid_corpus)
    if _is_up_to_date(target, recipe, shard and f"{number}/{count}", overwrite):
        return PreparedData.open(target)
    with snapshot.guard():
        work = select_slice(list_parts(corpus, valid_corpus), number, count)
    if workers is None and sum(place.text_bytes for place in work) < _MIN_PARALLEL_BYTES:
        processes = 0
    with publish_directory(target, overwrite) as folder:
        reader.save(folder / "tokenizer")
        stage = folder if shard else folder / _STAGE_FOLDER
        stage.mkdir(exist_ok=True)
        setup = EncoderSetup(
            tokenizer=folder / "tokenizer",
            dtype=choose_token_dtype(reader.vocab),
            clean=settings.clean,
            near_threshold=near,
            lang=lang,
            sentences=sentences,
            holdout=0.0 if valid_corpus else settings.holdout,
        )
        with StageWriter(stage) as writer:
            with snapshot.guard():  # what is published is what was hashed
                _encode_parts(work, setup, processes, writer, progress)
            open_counts = Counter(corpus.counts) + Counter(valid_corpus.counts if valid_corpus else {})
            writer.close({"shard": [number, count], "sources": source_facts, "opened": dict(open_counts)})
        if shard:
            write_index(folder, _build_index(recipe, reader, {}))
            _write_manifests(folder)
        else:
            _write_data([StageReader(stage)], folder, recipe, reader, remove=True)
            shutil.rmtree(stage)
            _write_manifests(folder)
    return _check_size(PreparedData.open(target, is_new=True))


def merge(slices: Names, *, out: str | os.PathLike[str], overwrite: bool = False) -> PreparedData:
    """Join the slices that `prepare(…, shard="i/n")` made: the same bytes as had they been prepared in one go."""
    if isinstance(slices, str) or not slices:
        raise UsageError("slices must be a list of the directories that `prepare` made with --shard")
    target, folders = Path(out), [Path(name) for name in slices]
    stages = [StageReader.open(folder) for folder in folders]
    recipes = []
    for folder in folders:
        index = read_index(folder)
        recipes.append(Recipe.from_dict(index.settings, index.tokenizer_sha256, str(folder / INDEX)))
    for folder, stage, recipe in zip(folders, stages, recipes, strict=True):
        change = recipe.describe_change(recipes[0])
        if change is None and stage.count != stages[0].count:
            change = f"it is one of {stage.count} slices, not of {stages[0].count}"
        if change is not None:
            raise DataError(f"{folder}: does not belong to '{folders[0]}': {change}")
    numbers = [stage.number for stage in stages]
    duplicates = [number for number, times in Counter(numbers).items() if times > 1]
    missing = sorted({*range(1, stages[0].count + 1)} - {*numbers})
    if duplicates or missing:
        problem = f"slice {duplicates[0]} is given twice" if duplicates else f"slice {missing[0]} is missing"
        raise DataError(f"{folders[0]}: {problem}; all slices from 1 to {stages[0].count} are needed, each once")
    if _is_up_to_date(target, recipes[0], None, overwrite):
        return PreparedData.open(target)
    reader = Tokenizer.load(folders[0] / "tokenizer")
    if reader.sha256 != recipes[0].tokenizer:
        raise DataError(f"{folders[0] / 'tokenizer'}: not the tokenizer the slice was made with; copy the slice again")
    in_order = sorted(stages, key=lambda stage: stage.number)
    with publish_directory(target, overwrite) as folder:
        reader.save(folder / "tokenizer")
        _write_data(in_order, folder, recipes[0], reader, remove=False)
        _write_manifests(folder)
    return _check_size(PreparedData.open(target, is_new=True))


def _encode_parts(
    parts: Sequence[SplitPart], setup: EncoderSetup, workers: int, writer: StageWriter, progress: Progress | None
) -> None:
    """Send all units through the workers and onto the stage."""
    total, done_bytes = sum(place.size for place in parts), 0
    with contextlib.closing(
        map_ordered(iter_units(parts, writer.counts), setup, workers, label=lambda unit: unit.location)
    ) as chunks:
        for chunk in chunks:
            writer.add(chunk)
            done_bytes += chunk.size
            if progress is not None:
                progress(done_bytes / max(total, 1), writer.characters, writer.tokens)


def _write_data(
    stages: Sequence[StageReader], folder: Path, recipe: Recipe, tokenizer: Tokenizer, *, remove: bool
) -> None:
    """Write splits, index and card."""
    result = write_splits(
        stages,
        folder,
        recipe,
        dtype=choose_token_dtype(tokenizer.vocab),
        vocab=tokenizer.vocab,
        unknown=tokenizer.special.get("unk"),
        remove=remove,
    )
    write_index(folder, _build_index(recipe, tokenizer, result.splits))
    write_card(folder, stages, result, recipe, tokenizer)


def _build_index(recipe: Recipe, tokenizer: Tokenizer, splits: dict[str, ShardSplit]) -> DataIndex:
    return DataIndex(
        tokenizer_sha256=tokenizer.sha256,
        vocab=tokenizer.vocab,
        dtype=choose_token_dtype(tokenizer.vocab),
        fingerprint=recipe.fingerprint,
        sources=recipe.names,
        splits=splits,
        settings=recipe.to_dict(),
    )


def _write_manifests(folder: Path) -> None:
    """A manifest in every directory, the outermost last."""
    for place in (*(path for path in sorted(folder.iterdir()) if path.is_dir() and path.name != "tokenizer"), folder):
        write_manifest(place, [path.name for path in place.iterdir() if path.is_file() and path.name != MANIFEST])


def _is_up_to_date(target: Path, recipe: Recipe, part: str | None, overwrite: bool) -> bool:
    """Return True if the data exist and are current; DataError if other data exist."""
    if not (target / INDEX).is_file() or not (target / MANIFEST).is_file():  # one that was killed may leave either
        return False
    try:
        data = PreparedData.open(target)
        change = recipe.describe_change(
            Recipe.from_dict(data.index.settings, data.index.tokenizer_sha256, str(target / INDEX))
        )
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


def _check_size(data: PreparedData) -> PreparedData:
    """Warn of what is allowed and yet hardly meant."""
    if data.slice is None and data.tokens < MIN_TRAIN_TOKENS:
        log.warn(
            f"{data}: only {format_count(data.tokens, 'tokens')} to train "
            f"on, less than one sequence of usual length; give more text"
        )
    if data.slice is None and data.card["lacking"]:
        log.warn(f"{data}: {data.card['lacking']}; name text with --valid, or hold out more with --holdout SHARE")
    return data


def _open_inputs(inputs: Inputs, settings: PrepareConfig) -> Corpus:
    names = inputs if isinstance(inputs, str) else [_to_name(source) for source in inputs]
    by, errors = cast(DocumentBoundary, settings.by), cast(Errors, settings.errors)
    return open_corpus(names, by=by, field=settings.field, errors=errors)


def _to_name(source: str | os.PathLike[str] | CorpusItem) -> str | CorpusItem:
    return os.fspath(source) if isinstance(source, str | os.PathLike) else source


def _parse_holdout(holdout: str | float, valid: Inputs | None) -> float:
    if valid is None:
        return parse_share(holdout)
    if holdout != _DEFAULT_HOLDOUT:
        raise UsageError("holdout and valid exclude each other: the validation text is held out already")
    return 0.0


def _parse_slice(shard: str | None) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", "1/1" if shard is None else shard)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"shard must be i/n with i from 1 to n, such as '1/4', got '{str(shard)[:40]}'")
    return int(match[1]), int(match[2])


def _count_workers(workers: int | None) -> int:
    if workers is not None:
        if workers < 0:
            raise UsageError(f"workers must be >= 0, got {workers}")
        return workers
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
