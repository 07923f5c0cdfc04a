"""Held-out text for analyses: validation documents of a run, or else of a built-in corpus; and models to analyse."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from pretune.adaptation.io import load
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.hub import is_hub
from pretune.core.run_dir import RunDir
from pretune.data.prepared_data import PreparedData
from pretune.inference.text_model import get_language_model, get_tokenizer
from pretune.models.model import LanguageModel
from pretune.text.corpora.builtin import Docs, Reviews
from pretune.text.corpora.items import FULL_SPAN
from pretune.text.sentences import split_sentences
from pretune.text.tokenizer import Tokenizer

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
        language_model = language_model if device is None else language_model.to(device)
    else:
        target_device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        language_model = get_language_model(load(Path(model), device=target_device))
    if language_model.prompt is not None:
        raise UsageError("a model with a tuned prompt cannot be analysed; use its base model")
    return language_model


def read_held_out(model: ModelSource, language_model: LanguageModel, count: int) -> HeldOutTexts:
    """Return at most `count` texts: validation documents of the model's run, or else sentences of a built-in corpus."""
    directory = None if isinstance(model, nn.Module) or is_hub(model) else Path(model)
    data = None if directory is None else _find_data(directory)
    if data is not None:
        texts = [*islice(_decode_documents(data, get_tokenizer(language_model)), count)]
        if texts:
            return HeldOutTexts(texts, f"{data.path} (valid)")
    try:
        corpus: Reviews | Docs = Reviews()
        corpus.check()
    except UsageError:
        corpus = Docs()
    documents = corpus.read_documents(0, FULL_SPAN, "strict", Counter())
    sentences = (text for document in documents for text in _join_sentences(document.text))
    return HeldOutTexts([*islice(sentences, count)], corpus.name)


def check_texts(texts: Sequence[str]) -> list[str]:
    """Return the texts that are not empty; raise for a single string, or if none is left."""
    if isinstance(texts, str):
        raise UsageError("texts must be a list, got a single text; use [text]")
    filled_texts = [text for text in texts if text.strip()]
    if not filled_texts:
        raise DataError("no texts to analyse; pass at least one that is not empty")
    return filled_texts


def _find_data(directory: Path) -> PreparedData | None:
    """Return the prepared data of a run, or of the base of a fine-tuned one, with validation text; None without.

    A relative path starts at the working directory of the run, perhaps above its own.
    """
    run = RunDir(directory)
    if not run.settings.is_file():
        return None
    try:
        tree = run.read_settings()
    except CheckpointError:
        return None
    for folder in (Path(), directory, *directory.resolve().parents[:3]):
        if base := _get_path(tree, "base"):
            if (folder / base).is_dir() and (data := _find_data(folder / base)) is not None:
                return data
        elif path := _get_path(tree, "data"):
            try:
                data = PreparedData.open(folder / path)
            except DataError:
                continue
            return data if "valid" in data.index.splits else None
    return None


def _get_path(tree: Mapping[str, Any], section: str) -> str | None:
    """Return the path in a section of run.json."""
    values = tree.get(section)
    path = values.get("path") if isinstance(values, Mapping) else None
    return path if isinstance(path, str) and path else None


def _decode_documents(data: PreparedData, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the validation documents as text, if they have the model's tokenizer."""
    if Tokenizer.load(data.tokenizer).sha256 != tokenizer.sha256:
        return
    shards = data.open_shards("valid")
    for start, end in zip(shards.documents[:-1].tolist(), shards.documents[1:].tolist(), strict=True):
        text = tokenizer.decode(np.asarray(shards.read_tokens(start, end)), special=False)
        if text.strip():
            yield text


def _join_sentences(text: str) -> Iterator[str]:
    """Yield consecutive sentences of a text, joined to pieces of at most `PIECE_CHARACTERS`."""
    starts = split_sentences(text)
    begin = 0
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        if end - begin > PIECE_CHARACTERS and start > begin:
            yield text[begin:start].strip()
            begin = start
    if text[begin:].strip():
        yield text[begin:].strip()
