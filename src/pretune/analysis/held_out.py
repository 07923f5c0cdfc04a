"""Held-out text for analyses: validation documents of a run, or else of a built-in corpus; and models to analyze."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import nn

from pretune.adaptation.io import load
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.hub import INSTALLED_MODELS, is_hub, is_short_name
from pretune.core.run_dir import RunDir, get_path
from pretune.data.prepared_data import PreparedData
from pretune.inference.text_model import get_language_model, get_tokenizer
from pretune.models.model import LanguageModel
from pretune.text.corpora.builtin import Docs, Reviews
from pretune.text.corpora.items import FULL_SPAN
from pretune.text.sentences import split_sentences
from pretune.text.tokenizer import Tokenizer
from pretune.training.distributed import resolve_device

ModelSource = str | os.PathLike[str] | nn.Module
"""A model, its directory, or hf:OWNER/NAME."""


PIECE_CHARACTERS = 400
"""Maximum characters of a piece of a built-in document; a longer sentence is a piece of its own."""


class HeldOutTexts(NamedTuple):
    """Texts that the model was not trained on, and their source."""

    texts: list[str]
    source: str


def open_model(model: ModelSource, device: str | None = None) -> LanguageModel:
    """Return the language model of a model or of its directory, on a device (default: a GPU if available).

    Adapters are part of it, task heads are not. Raises UsageError for a tuned prompt, whose slots no text has.
    """
    if isinstance(model, nn.Module):
        language_model = get_language_model(model)
        language_model = language_model if device is None else language_model.to(resolve_device(device))
    else:
        language_model = get_language_model(load(Path(model), device=resolve_device(device)))
    if language_model.prompt is not None:
        raise UsageError("a model with a tuned prompt cannot be analyzed; use its base model")
    return language_model


def read_held_out(
    model: ModelSource, language_model: LanguageModel, count: int, *, sentences: bool = False
) -> HeldOutTexts:
    """Return at most `count` texts: validation documents of the model's run, or else pieces of a built-in corpus.

    With `sentences` every text is one sentence.
    """
    directory = None if isinstance(model, nn.Module) or is_hub(model) else Path(model)
    data = None if directory is None else find_data(directory)
    if data is not None and "valid" in data.index.splits:
        decoded_texts = _decode_documents(data, get_tokenizer(language_model))
        pieces = (piece for text in decoded_texts for piece in _join_sentences(text, 0)) if sentences else decoded_texts
        texts = [*islice(pieces, count)]
        if texts:
            return HeldOutTexts(texts, f"{data.path} (valid)")
    try:
        corpus: Reviews | Docs = Reviews()
        corpus.check()
    except UsageError:
        corpus = Docs()
    documents = corpus.read_documents(0, FULL_SPAN, "strict", Counter())
    characters = 0 if sentences else PIECE_CHARACTERS
    texts_of_corpus = (text for document in documents for text in _join_sentences(document.text, characters))
    return HeldOutTexts([*islice(texts_of_corpus, count)], corpus.name)


def check_texts(texts: Sequence[str]) -> list[str]:
    """Return the texts that are not empty; raise for a single string, or if none is left."""
    if isinstance(texts, str):
        raise UsageError("texts must be a list, got a single text; use [text]")
    filled_texts = [text for text in texts if text.strip()]
    if not filled_texts:
        raise DataError("no texts to analyze; pass at least one that is not empty")
    return filled_texts


def find_base(directory: Path) -> Path:
    """Return the model that a run started from: the base of fine-tuning, or the initial weights of pre-training.

    Raises UsageError if the directory is no such run, or the model is not there.
    """
    path = None if is_hub(directory) else _get_base_path(directory)
    if path is None:
        raise UsageError(f"{directory}: not a run that started from a model (no base in run.json); pass two models")
    places = [directory_path for directory_path in _list_places(directory, path) if directory_path.is_dir()]
    if not places and not is_hub(path) and not is_short_name(path):
        raise UsageError(f"{directory}: it started from '{path}', which is not there; pass that model as well")
    return places[0] if places else Path(path)


def iterate_runs(directory: Path) -> Iterator[Path]:
    """Yield a run and those that it started from, each once: settings may name a run as its own base."""
    visited_runs: set[Path] = set()
    while not is_hub(directory):
        if is_short_name(directory):
            directory = INSTALLED_MODELS[str(directory)].find() or directory
        if not RunDir(directory).settings.is_file() or directory.resolve() in visited_runs:
            return
        yield directory
        visited_runs.add(directory.resolve())
        base = _get_base_path(directory)
        if not base:
            return
        directory = next((place for place in _list_places(directory, base) if place.is_dir()), Path(base))


def find_data(directory: Path) -> PreparedData | None:
    """Return the prepared data of a run, or of the model it started from; None if there is none here."""
    start = next((run for run in iterate_runs(directory) if not _get_base_path(run)), None)
    if start is None:
        return None
    try:
        path = get_path(RunDir(start).locate_settings().tree, "data.path")
    except CheckpointError:
        return None
    for place in _list_places(start, path) if path else ():
        with contextlib.suppress(DataError):
            return PreparedData.open(place)
    return None


def _list_places(directory: Path, path: str) -> list[Path]:
    """Return the places of a relative path of run.json: it starts at the working directory of the run, perhaps above
    its own.
    """
    return [folder / path for folder in (Path(), directory, *directory.resolve().parents[:3])]


def _get_base_path(directory: Path) -> str | None:
    run = RunDir(directory)
    if not run.settings.is_file():
        return None
    tree = run.locate_settings().tree
    return get_path(tree, "base.path") or get_path(tree, "train.init_from")


def _decode_documents(data: PreparedData, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the validation documents as text, if they have the model's tokenizer."""
    if Tokenizer.load(data.tokenizer).sha256 != tokenizer.sha256:
        return
    shards = data.open_shards("valid")
    for start, end in zip(shards.documents[:-1].tolist(), shards.documents[1:].tolist(), strict=True):
        text = tokenizer.decode(np.asarray(shards.read_tokens(start, end)), special=False)
        if text.strip():
            yield text


def _join_sentences(text: str, characters: int) -> Iterator[str]:
    """Yield consecutive sentences of a text, joined to pieces of at most so many characters; 0: every sentence."""
    starts = split_sentences(text)
    begin = 0
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        if end - begin > characters and start > begin:
            yield text[begin:start].strip()
            begin = start
    if text[begin:].strip():
        yield text[begin:].strip()
