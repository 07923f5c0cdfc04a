"""`prepare`: token shards from text on one machine. `merge`: the same from slices prepared on several machines."""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from pretune.core import log
from pretune.core.config import check_path
from pretune.core.errors import DataError, UsageError
from pretune.core.io import MANIFEST, recover, remove, remove_abandoned, write_manifest
from pretune.core.log import format_count
from pretune.core.machine import count_cores
from pretune.data.prepare.card import describe_sources, write_card
from pretune.data.prepare.dedup_split import write_splits
from pretune.data.prepare.encoding import EncoderSetup, SplitPart, iter_units, list_parts, select_slice
from pretune.data.prepare.pool import map_ordered
from pretune.data.prepare.quality import fit_quality_filter
from pretune.data.prepare.settings import PrepareConfig, Recipe, state_licences
from pretune.data.prepare.stage import StageReader, StageWriter
from pretune.data.prepared_data import SLICE_FILE, PreparedData, QualityFit, publish_directory
from pretune.data.shards import DataIndex, ShardSplit, choose_token_dtype, read_index, write_index
from pretune.data.shards.files import INDEX_FILE as INDEX
from pretune.text.corpora import Corpus, open_corpus
from pretune.text.corpora.document import DocumentBoundary
from pretune.text.corpora.items import CorpusItem, FileSnapshot
from pretune.text.corpora.streams import Errors
from pretune.text.tokenizer import Tokenizer

Names = Sequence[str | os.PathLike[str]]
Inputs = Sequence[str | os.PathLike[str] | CorpusItem]
Progress = Callable[[float, int, int], None]
"""Callback with the completed share (0 to 1), the characters read and the tokens written."""

MIN_TRAIN_TOKENS = 512
"""Minimum number of training tokens without a warning: one sequence of common length."""

MAX_SOURCES = 2**16
"""Maximum number of sources; source numbers are stored as uint16."""

_STAGE_FOLDER = "stage"
_SLOW_HASH_BYTES = 2 * 2**30  # bytes of input above which hashing is slow enough to be announced
_MIN_PARALLEL_BYTES = 4 * 2**20  # bytes of text below which worker processes do not pay off


def prepare(
    inputs: Inputs,
    settings: PrepareConfig,
    *,
    tokenizer: Tokenizer | str | os.PathLike[str],
    out: str | os.PathLike[str],
    valid: Inputs | None = None,
    quality: Inputs | None = None,
    workers: int | None = None,
    shard: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> PreparedData:
    """Convert text to token shards and write a data card, as `pretune.runs.prepare.prepare` documents."""
    target = check_path(out)
    settings.check()
    number, count = _parse_slice(shard)
    processes = _count_workers(workers)
    loaded_tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(Path(tokenizer))
    corpus, valid_corpus = _open_inputs(inputs, settings), _open_inputs(valid, settings) if valid else None
    corpora = [corpus] if valid_corpus is None else [corpus, valid_corpus]
    reference = _open_inputs(quality, settings) if quality else None
    sources = [source for part in corpora for source in part.sources]
    if len(sources) > MAX_SOURCES:
        raise UsageError(
            f"more than {MAX_SOURCES:,} inputs are not supported; pass the folder that contains them, or a glob"
        )
    source_facts = state_licences(describe_sources(sources), settings.licence)
    snapshot = _take_snapshot(corpora if reference is None else [*corpora, reference])
    with snapshot.guard():
        recipe = Recipe.from_corpus(settings, loaded_tokenizer.sha256, corpus, valid_corpus, reference)
    if _is_up_to_date(target, recipe, shard and f"{number}/{count}", overwrite):
        return PreparedData.open(target)
    with snapshot.guard():
        parts = select_slice(list_parts(corpus, valid_corpus), number, count)
    if workers is None and sum(part.text_bytes for part in parts) < _MIN_PARALLEL_BYTES:
        processes = 0
    with publish_directory(target, overwrite) as folder:
        loaded_tokenizer.save(folder / "tokenizer")
        stage = folder if shard else folder / _STAGE_FOLDER
        stage.mkdir(exist_ok=True)
        setup = EncoderSetup(
            tokenizer=folder / "tokenizer",
            dtype=choose_token_dtype(loaded_tokenizer.vocab),
            settings=replace(settings, holdout=0.0) if valid_corpus else settings,
        )
        facts = {"shard": [number, count], "sources": source_facts, "opened": _sum_counts(corpora)}
        with snapshot.guard():  # the published text is the hashed text
            if reference is not None:
                setup, facts["quality"] = _fit_filter(setup, reference, corpus, processes)
            with StageWriter(stage, facts) as writer:
                _encode_parts(parts, setup, processes, writer, progress)
        if shard:
            write_index(folder, _build_index(recipe, loaded_tokenizer, {}))
        else:
            _write_data([StageReader(stage)], folder, recipe, loaded_tokenizer, remove=True)
            remove(folder, _STAGE_FOLDER, _STAGE_FOLDER)
        _write_manifests(folder)
    return _check_size(PreparedData.open(target, is_new=True))


def merge(slices: Names, *, out: str | os.PathLike[str], overwrite: bool = False) -> PreparedData:
    """Merge slices made by `prepare(…, shard="i/n")`. The output has the same bytes as without slices.

    Args:
        slices: Directories of all n slices, in any order.
        out: Output directory.
        overwrite: Replace other prepared data in `out`.

    Raises:
        UsageError: `slices` is not a list of directories, or `out` contains files that are not prepared data.
        DataError: A slice is missing, repeated, damaged or made from other inputs or settings.
    """
    if isinstance(slices, str) or not slices:
        raise UsageError("slices must be a list of directories made by `prepare` with --shard")
    target, folders = check_path(out), [check_path(name, DataError) for name in slices]
    stages = [StageReader.open(folder) for folder in folders]
    recipes = [Recipe.from_index(read_index(folder), folder / INDEX) for folder in folders]
    for folder, stage, recipe in zip(folders, stages, recipes, strict=True):
        change = recipe.describe_change(recipes[0])
        if change is None and stage.count != stages[0].count:
            change = f"it is a slice of {stage.count}, not of {stages[0].count}"
        if change is None and [source["name"] for source in stage.facts["sources"]] != [*recipe.names]:
            change = f"the sources in {SLICE_FILE} are not those in {INDEX}"
        if change is not None:
            raise DataError(f"{folder}: cannot be merged with '{folders[0]}': {change}")
    numbers = [stage.number for stage in stages]
    duplicates = [number for number, times in Counter(numbers).items() if times > 1]
    missing = sorted({*range(1, stages[0].count + 1)} - {*numbers})
    if duplicates or missing:
        problem = f"slice {duplicates[0]} is listed twice" if duplicates else f"slice {missing[0]} is missing"
        raise DataError(f"{folders[0]}: {problem}; pass every slice from 1 to {stages[0].count} once")
    if _is_up_to_date(target, recipes[0], None, overwrite):
        return PreparedData.open(target)
    tokenizer = Tokenizer.load(folders[0] / "tokenizer")
    if tokenizer.sha256 != recipes[0].tokenizer:
        raise DataError(f"{folders[0] / 'tokenizer'}: not the tokenizer of the slice; copy the slice again")
    in_order = sorted(stages, key=lambda stage: stage.number)
    with publish_directory(target, overwrite) as folder:
        tokenizer.save(folder / "tokenizer")
        _write_data(in_order, folder, recipes[0], tokenizer, remove=False)
        _write_manifests(folder)
    return _check_size(PreparedData.open(target, is_new=True))


def _take_snapshot(corpora: Sequence[Corpus]) -> FileSnapshot:
    """Return a snapshot of all files; announce that hashing them takes long."""
    size = sum(corpus.bytes or 0 for corpus in corpora)
    if size > _SLOW_HASH_BYTES:
        log.info(f"hashing {size / 1e9:.1f} GB of input, to detect later changes")
    return FileSnapshot(stamp for corpus in corpora for stamp in corpus.list_stamps())


def _sum_counts(corpora: Sequence[Corpus]) -> dict[str, int]:
    """Return the numbers of skipped files and documents, by reason."""
    return dict(sum((Counter(corpus.counts) for corpus in corpora), Counter[str]()))


def _fit_filter(
    setup: EncoderSetup, reference: Corpus, corpus: Corpus, workers: int
) -> tuple[EncoderSetup, QualityFit]:
    """Return the setup with a quality filter, and the facts of the filter."""
    classifier, fit = fit_quality_filter(reference, corpus, setup.settings, workers)
    return replace(setup, quality=classifier), fit


def _encode_parts(
    parts: Sequence[SplitPart], setup: EncoderSetup, workers: int, writer: StageWriter, progress: Progress | None
) -> None:
    """Encode all units of `parts` in the workers, and write them to the stage in order."""
    total, done_bytes = sum(part.size for part in parts), 0
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
    """Write splits, index and card into `folder`; with `remove`, delete the files of the stages."""
    result = write_splits(stages, folder, recipe, tokenizer, remove=remove)
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
    """Write a manifest into every directory except the tokenizer's, into `folder` itself last."""
    subfolders = [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name != "tokenizer"]
    for directory in (*subfolders, folder):
        names = [path.name for path in directory.iterdir() if path.is_file() and path.name != MANIFEST]
        write_manifest(directory, names)


def _is_up_to_date(target: Path, recipe: Recipe, part: str | None, overwrite: bool) -> bool:
    """Return True if `target` already contains the data of `recipe`.

    Args:
        target: Output directory.
        recipe: Settings and sources of this call.
        part: Slice of this call as "i/n"; None for complete data.
        overwrite: Return False instead of raising an error.

    Raises:
        DataError: `target` contains other data or damaged data, and `overwrite` is False.
    """
    recover(target)
    if not (target / INDEX).is_file() or not (target / MANIFEST).is_file():
        return False
    try:
        data = PreparedData.open(target)
        change = recipe.describe_change(Recipe.from_index(data.index, target / INDEX))
        if change is None and data.slice != part:
            change = f"it contains {f'slice {data.slice}' if data.slice else 'the complete data'}"
        if change is None and Tokenizer.load(data.tokenizer).sha256 != recipe.tokenizer:
            change = "its tokenizer was replaced"
    except DataError:
        if overwrite:
            return False
        raise
    if change is not None and not overwrite:
        raise DataError(f"{target}: contains other prepared data: {change}; use --overwrite or another --out")
    if change is None:
        remove_abandoned(target)
    return change is None


def _check_size(data: PreparedData) -> PreparedData:
    """Return `data`; warn if it has little training text or no usable validation split."""
    if data.slice is None and data.tokens < MIN_TRAIN_TOKENS:
        log.warn(
            f"{data}: the training split has only {format_count(data.tokens, 'tokens')}, "
            f"less than one sequence of common length; add more text"
        )
    if data.slice is None and (lacking := data.card.get("lacking")):
        log.warn(f"{data}: {lacking}; pass validation text with --valid, or a larger --holdout SHARE")
    return data


def _open_inputs(inputs: Inputs, settings: PrepareConfig) -> Corpus:
    if not isinstance(inputs, str):
        inputs = [os.fspath(source) if isinstance(source, str | os.PathLike) else source for source in inputs]
    by, errors = cast(DocumentBoundary, settings.by), cast(Errors, settings.errors)
    return open_corpus(cast(Sequence[str | CorpusItem], inputs), by=by, field=settings.field, errors=errors)


def _parse_slice(shard: str | None) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", "1/1" if shard is None else shard)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"shard must be i/n with i from 1 to n, such as '1/4', got '{str(shard)[:40]}'")
    return int(match[1]), int(match[2])


def _count_workers(workers: int | None) -> int:
    if workers is not None and workers < 0:
        raise UsageError(f"workers must be >= 0, got {workers}")
    return count_cores() if workers is None else workers
