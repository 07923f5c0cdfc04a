"""Vector index: texts and their vectors in a directory, searched by inner product.

    index = build("runs/small", texts, out="library")
    index.search(["who built the bridge?"], k=3)          # a list of hits for each query
    build("runs/small", more, out="library", add=True)

`index_files` describes the files. Vectors of different models are not comparable, so an index stores a
fingerprint of its model.
"""

import hashlib
import io as memory
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Unpack, cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pretune.core import config
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.hub import resolve_path
from pretune.data.shards.files import open_npy
from pretune.inference.embed import Embedder, EmbeddingResult, ProgressCallback, WordEmbedder, build_embedder
from pretune.inference.index_files import (
    FORMAT_VERSION,
    IndexGeneration,
    IndexMetadata,
    IndexRow,
    list_files,
    lock_for_writing,
    open_generation,
    publish,
)
from pretune.inference.pooling import Embedding, TextEncoderOptions
from pretune.inference.search_methods import BM25, FAISS_METHODS, SearchResult, extend_faiss, search_exact, search_faiss

METHODS = ("exact", *FAISS_METHODS)


class Hit(NamedTuple):
    """Search result."""

    id: str
    text: str
    score: float


@dataclass(frozen=True)
class Index:
    """Index on disk, verified."""

    path: Path
    generation: IndexGeneration = field(repr=False)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Index":
        """Open a directory written by `build`; raises a CheckpointError if it is damaged or not an index."""
        directory = config.check_path(path, CheckpointError)
        return cls(directory, open_generation(directory))

    @property
    def metadata(self) -> IndexMetadata:
        """Contents of index.json."""
        return self.generation.metadata

    def __len__(self) -> int:
        return sum(self.metadata["parts"])

    @property
    def embedding_config(self) -> Embedding:
        """Settings of the embedder."""
        return config.from_dict(Embedding, self.metadata["embedding"], location=str(self.generation.metadata_file))

    @property
    def options(self) -> TextEncoderOptions:
        """Settings of the embedder, as options of `embed`."""
        embedding = self.embedding_config
        return {
            "pooling": "+".join(embedding.pooling),
            "layer": embedding.layer,
            "normalise": embedding.normalise,
            "length": embedding.length,
            "prompt": embedding.prompt,
        }

    @cached_property
    def parts(self) -> list[NDArray[np.float32]]:
        """Vectors, memory-mapped."""
        arrays: list[NDArray[np.float32]] = []
        for number, count in enumerate(self.metadata["parts"]):
            file = self.path / f"vectors-{number:05}.npy"
            try:
                arrays.append(open_npy(file, "<f4", count, width=self.metadata["width"]).view(np.float32))
            except DataError as error:
                raise CheckpointError(str(error)) from None
        return arrays

    @cached_property
    def rows(self) -> list[tuple[str, str]]:
        """(id, text) of every row."""
        rows_of_parts: list[tuple[str, str]] = []
        for number, count in enumerate(self.metadata["parts"]):
            file = self.path / f"texts-{number:05}.jsonl"
            rows = config.read_records(IndexRow, file, CheckpointError)
            if len(rows) != count:
                raise CheckpointError(
                    f"{file}: {len(rows)} texts, but the metadata have {count}; build the index again"
                )
            rows_of_parts += [(row["id"], row["text"]) for row in rows]
        return rows_of_parts

    @cached_property
    def bm25(self) -> BM25:
        """BM25 baseline over the same texts."""
        return BM25([text for _, text in self.rows])

    def find_nearest(self, vectors: NDArray[np.float32], k: int) -> SearchResult:
        """Return scores and indices `[Q, k]` of the nearest vectors."""
        if self.metadata["method"] == "exact":
            return search_exact(self.parts, vectors, k)
        return search_faiss(self.graph, self.parts, self.metadata["method"], vectors, k)

    @property
    def graph(self) -> Path:
        """File of the graph or the cells."""
        return self.path / list_files(self.metadata)[-1]

    def load_embedder(
        self,
        model: str | os.PathLike[str] | nn.Module | None = None,
        *,
        device: str | None = None,
        batch_tokens: int | None = None,
    ) -> Embedder:
        """Load the index's embedder from its original path or from `model`; another model raises an error."""
        source = self.metadata["model"] if model is None else model
        if model is None and not os.path.isdir(self.metadata["model"]):  # noqa: PTH112 (no error for any name)
            raise CheckpointError(f"{self.path}: its model {source} does not exist; pass its path with --model")
        embedder = build_embedder(source, device=device, batch_tokens=batch_tokens, **self.options)
        _refuse_word_vectors(embedder)
        self.check_embedder(embedder)
        return embedder

    def check_embedder(self, embedder: Embedder) -> None:
        """Raise a CheckpointError if a model is not the one of this index."""
        fingerprint = compute_fingerprint(embedder)
        if fingerprint != self.metadata["fingerprint"]:
            raise CheckpointError(
                f"{self.path}: built with another model or pooling ({self.metadata['model']}, fingerprint "
                f"{self.metadata['fingerprint'][:12]}, got {fingerprint[:12]}); use that model, or build it again"
            )
        if embedder.width != self.metadata["width"]:
            raise CheckpointError(
                f"{self.generation.metadata_file}: 'width' is {self.metadata['width']}, "
                f"but the model's is {embedder.width}"
            )

    def search(
        self, queries: Sequence[str], k: int = 10, *, model: Embedder | nn.Module | None = None, words: bool = False
    ) -> list[list[Hit]]:
        """Return the best hits of each query; with `words` by BM25."""
        if isinstance(queries, str):
            raise UsageError("queries must be a list of texts, got a single text; use [text]")
        if k < 1:
            raise UsageError(f"k must be >= 1, got {k}")
        if words:
            scores, numbers = self.bm25.search(queries, k)
        else:
            embedder = model if isinstance(model, Embedder) else self.load_embedder(model)
            self.check_embedder(embedder)
            embedder = embedder.with_prompt(self.metadata.get("query_prompt"))
            scores, numbers = self.find_nearest(embedder(queries).vectors, k)
        return [
            [Hit._make((*self.rows[number], float(score))) for score, number in zip(*row, strict=True) if number >= 0]
            for row in zip(scores, numbers, strict=True)
        ]


def build(
    model: str | os.PathLike[str] | nn.Module,
    texts: Sequence[str],
    *,
    out: str | os.PathLike[str],
    ids: Sequence[str] | None = None,
    method: str = "exact",
    add: bool = False,
    on_progress: ProgressCallback | None = None,
    device: str | None = None,
    batch_tokens: int | None = None,
    query_prompt: str | None = None,
    **options: Unpack[TextEncoderOptions],
) -> Index:
    """Embed texts and write an index of them, or `add` them to one; `options` as for `embed`, cosine by default.

    `prompt` is the prefix of every text and query, `query_prompt` of queries only; by default the prompts for documents
    and queries in the model's directory, if any. An addition takes the options of the index; others are refused.
    """
    directory, row_ids = config.check_path(out), [str(i) for i in (range(1, len(texts) + 1) if ids is None else ids)]
    if method not in METHODS:
        raise UsageError(f"unknown method '{method}' (known: {', '.join(METHODS)})")
    if not texts or len(row_ids) != len(texts):
        raise DataError(f"an index needs at least one text and one id per text, got {len(texts)} and {len(row_ids)}")
    check_unique_ids(row_ids)
    if not add and directory.is_dir() and any(directory.iterdir()):
        raise UsageError(f"{directory}: not empty; use --add to add to an index, or another --out")
    if not add:
        if options.get("normalise") is None:
            options["normalise"] = True
        embedder = build_embedder(model, device=device, batch_tokens=batch_tokens, **options)
        _refuse_word_vectors(embedder)
        if options.get("prompt") is None:
            embedder, query_prompt = _take_prompts(embedder, query_prompt)
        result = embedder(list(texts), on_progress)
        source = "(in memory)" if isinstance(model, nn.Module) else str(resolve_path(model).resolve())
        _publish_part(directory, _describe(embedder, source, method, query_prompt), result, row_ids, texts)
        return Index.open(directory)
    index = Index.open(directory)
    if method not in (METHODS[0], index.metadata["method"]):
        raise UsageError(f"{directory}: method is '{index.metadata['method']}'; cannot add to it with '{method}'")
    _check_same_options(index, options, query_prompt)
    embedder = index.load_embedder(model, device=device, batch_tokens=batch_tokens)
    _list_new_ids(index, ids, len(texts))  # invalid ones raise before the texts are embedded
    result = embedder(list(texts), on_progress)
    with lock_for_writing(directory):
        index = Index.open(directory)  # another writer may have added to it since
        index.check_embedder(embedder)
        row_ids = _list_new_ids(index, ids, len(texts))
        _publish_part(directory, index.metadata, result, row_ids, texts, index)
    return Index.open(directory)


def _describe(embedder: Embedder, source: str, method: str, query_prompt: str | None) -> IndexMetadata:
    """Return the metadata of an index without texts."""
    metadata = {
        "form": FORMAT_VERSION,
        "model": source,
        **({} if query_prompt is None else {"query_prompt": query_prompt}),
        "fingerprint": compute_fingerprint(embedder),
        "embedding": config.to_dict(embedder.encoder.config),
        "width": embedder.width,
        "method": method,
        "parts": [],
        "cut": 0,
    }
    return cast(IndexMetadata, metadata)


def _take_prompts(embedder: Embedder, query_prompt: str | None) -> tuple[Embedder, str | None]:
    """Return the embedder of texts and the prompt of queries, by default with the prompts of the model's directory."""
    document_prompt, default_query_prompt = embedder.prompts
    if document_prompt is not None and default_query_prompt is None:
        default_query_prompt = embedder.encoder.config.prompt
    return embedder.with_prompt(document_prompt), default_query_prompt if query_prompt is None else query_prompt


def _list_new_ids(index: Index, ids: Sequence[str] | None, count: int) -> list[str]:
    """Return the ids of texts to add: by default the next numbers; raises a DataError if one is in the index."""
    first = len(index) + 1
    row_ids = [*map(str, range(first, first + count) if ids is None else ids)]
    check_unique_ids([name for name, _ in index.rows] + row_ids)
    return row_ids


def _publish_part(
    directory: Path,
    old: IndexMetadata,
    result: EmbeddingResult,
    ids: Sequence[str],
    texts: Sequence[str],
    index: Index | None = None,
) -> None:
    """Write a new index, or the next generation of one."""
    number, cut = len(old["parts"]), old["cut"] + result.truncated_texts
    metadata: IndexMetadata = {**old, "parts": [*old["parts"], len(result.vectors)], "cut": cut}
    metadata.pop("file", None)
    rows = ({"id": name, "text": text} for name, text in zip(ids, texts, strict=True))
    lines = [json.dumps(row, ensure_ascii=True, allow_nan=False) for row in rows]
    array = memory.BytesIO()
    np.save(array, result.vectors, allow_pickle=False)
    vectors_file, texts_file, *graph_files = list_files(metadata)[2 * number :]
    files = {vectors_file: array.getvalue(), texts_file: "".join(f"{line}\n" for line in lines).encode()}
    for file in graph_files:
        graph, parts = (None, []) if index is None else (index.graph, index.parts)
        files[file] = extend_faiss(graph, parts, result.vectors, old["method"])
    publish(directory, metadata, files, None if index is None else index.generation)


def search(
    index: str | os.PathLike[str],
    queries: Sequence[str],
    k: int = 10,
    *,
    model: str | os.PathLike[str] | nn.Module | None = None,
    words: bool = False,
) -> list[list[Hit]]:
    """Return the best hits `(id, text, score)` of each query in an index on disk; with `words` by BM25.

    `model` is the index's model or its path; by default the path at which the index was built.
    """
    opened_index = Index.open(index)
    embedder = None if words or model is None else opened_index.load_embedder(model)
    return opened_index.search(queries, k, model=embedder, words=words)


def _refuse_word_vectors(embedder: Embedder) -> None:
    """Raise a UsageError for word vectors, which have no settings and weights to fingerprint."""
    if isinstance(embedder, WordEmbedder):
        raise UsageError("an index needs the directory of a model, got a file of word vectors")


def compute_fingerprint(embedder: Embedder) -> str:
    """Hash the settings, the tokenizer, and a thousand values of every weight."""
    digest = hashlib.sha256(embedder.tokenizer.sha256.encode())
    settings = [config.to_dict(embedder.encoder.config, for_hash=True), embedder.length]
    digest.update(json.dumps(settings, sort_keys=True, allow_nan=False).encode())
    for name, weight in sorted(embedder.encoder.named_parameters()):
        values = weight.detach().flatten()
        sample = values[:: max(1, values.numel() // 1024)].float().cpu().numpy()
        digest.update(f"{name} {tuple(weight.shape)}".encode() + sample.tobytes())
    return digest.hexdigest()


def check_unique_ids(ids: Sequence[str]) -> None:
    """Raise a DataError for duplicate ids."""
    duplicate = next((name for name, count in Counter(ids).items() if count > 1), None)
    if duplicate is not None:
        raise DataError(f"duplicate id '{duplicate[:60]}'; ids must be unique")


def _check_same_options(index: Index, options: TextEncoderOptions, query_prompt: str | None) -> None:
    """Raise a UsageError for an option that differs from that of an index; one that is None is the same."""
    stored_query_prompt = index.metadata.get("query_prompt", index.embedding_config.prompt)
    stored_options = {**index.options, "query_prompt": stored_query_prompt}
    for name, value in {**options, "query_prompt": query_prompt}.items():
        if name not in stored_options:
            raise TypeError(f"build() got an unexpected keyword argument '{name}'")
        if isinstance(value, tuple | list):
            value = "+".join(value)
        if value not in (None, stored_options[name]):
            raise UsageError(f"{index.path}: {name} is {stored_options[name]!r}; cannot add to it with {value!r}")
