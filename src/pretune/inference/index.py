"""An index: texts with their vectors in a directory, searched by inner product.

    index = build("runs/small", texts, out="library")
    index.search(["who built the bridge?"], k=3)          # a list of hits for each query
    build("runs/small", more, out="library", add=True)

`index.json` says what it is; each addition is a part of its own (`vectors-00000.npy`, memory-mapped, and
`texts-00000.jsonl`), and a manifest vouches for all of them. Vectors of one model mean nothing to another, so an index
knows its model by a fingerprint.
"""

import hashlib
import io as memory
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pretune.core import config, io
from pretune.core.errors import CheckpointError, DataError, UsageError, explain_missing
from pretune.core.hub import resolve_path
from pretune.data.shards.npy import open_npy
from pretune.inference import faiss_index
from pretune.inference.bm25 import BM25
from pretune.inference.embed import Embedder, EmbeddingResult, ProgressCallback, WordEmbedder, build_embedder
from pretune.inference.exact_search import SearchResult, search_exact
from pretune.inference.pooling import Embedding

METADATA_FILE = "index.json"
FORMAT_VERSION = 1
MAX_HASHED_BYTES = 2**28
"""Bytes up to which an index is hashed when it is opened; of larger ones only sizes are looked at."""

METHODS = ("exact", *faiss_index.METHODS)
_GRAPH_NAME = re.compile(r"graph-\d{5,9}\.safetensors")


class Hit(NamedTuple):
    """A text that was found."""

    id: str
    text: str
    score: float


class IndexMetadata(TypedDict):
    """The content of index.json."""

    form: Literal[1]
    model: str
    fingerprint: str
    embedding: Embedding
    width: Annotated[int, config.Bounds(1, 2**24)]
    method: Literal["exact", "hnsw", "ivf"]
    parts: list[Annotated[int, config.Bounds(1, 2**40)]]
    cut: config.Count
    query_prompt: NotRequired[str]
    file: NotRequired[str]


class IndexRow(TypedDict):
    """A line of a file of texts."""

    id: str
    text: str


@dataclass(frozen=True)
class Index:
    """An index on disk, opened and checked."""

    path: Path
    metadata: IndexMetadata

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Index":
        """Open a directory that `build` wrote; one that is damaged or no index is refused."""
        where = Path(path)
        if not (where / METADATA_FILE).is_file():
            hint = "" if where.is_dir() else f"; {explain_missing(where, 'directory')}"
            raise CheckpointError(f"{where}: no index is there{hint}; make one with `pretune index`")
        size = sum(file.stat().st_size for file in where.iterdir() if file.is_file())
        listed = io.check_manifest(where, hashes=size <= MAX_HASHED_BYTES)["files"]
        found = cls(where, config.read_record(IndexMetadata, where / METADATA_FILE, CheckpointError))
        for name in found.list_files():
            if name not in listed:
                raise CheckpointError(f"{where / METADATA_FILE}: needs {name!r:.60}, which {io.MANIFEST} does not list")
            io.resolve_inside(where, name, CheckpointError, where / METADATA_FILE)
        return found

    def list_files(self) -> list[str]:
        """The names of its files, but for index.json and the manifest."""
        if not self.metadata["parts"]:
            raise CheckpointError(f"{self.path / METADATA_FILE}: 'parts' is empty, and an index has a text at least")
        numbers = range(len(self.metadata["parts"]))
        names = [
            f"{kind}.{end}" for i in numbers for kind, end in ((f"vectors-{i:05}", "npy"), (f"texts-{i:05}", "jsonl"))
        ]
        if self.metadata["method"] == "exact":
            return names
        graph = self.metadata.get("file")
        if not isinstance(graph, str) or not _GRAPH_NAME.fullmatch(graph):
            raise CheckpointError(
                f"{self.path / METADATA_FILE}: 'file' is {graph!r:.60}, not the name of a graph; build it again"
            )
        return [*names, graph]

    def __len__(self) -> int:
        return sum(self.metadata["parts"])

    @property
    def embedding_config(self) -> Embedding:
        """How its vectors were made."""
        return config.from_dict(Embedding, self.metadata["embedding"], location=str(self.path / METADATA_FILE))

    @cached_property
    def parts(self) -> list[NDArray[np.float32]]:
        """Its vectors, mapped from the disk."""
        found: list[NDArray[np.float32]] = []
        for number, count in enumerate(self.metadata["parts"]):
            file = self.path / f"vectors-{number:05}.npy"
            try:
                found.append(open_npy(file, "<f4", count, width=self.metadata["width"]).view(np.float32))
            except DataError as fault:
                raise CheckpointError(str(fault)) from None
        return found

    @cached_property
    def rows(self) -> list[tuple[str, str]]:
        """(id, text) of everything in it."""
        found: list[tuple[str, str]] = []
        for number, count in enumerate(self.metadata["parts"]):
            file = self.path / f"texts-{number:05}.jsonl"
            rows = config.read_records(IndexRow, file, CheckpointError)
            if len(rows) != count:
                raise CheckpointError(
                    f"{file}: has {len(rows)} texts, but {METADATA_FILE} says {count}; build it again"
                )
            found += [(row["id"], row["text"]) for row in rows]
        return found

    @cached_property
    def bm25(self) -> BM25:
        """The baseline over the same texts."""
        return BM25([text for _, text in self.rows])

    def find_nearest(self, vectors: NDArray[np.float32], k: int) -> SearchResult:
        """Scores and numbers `[Q, k]` of the nearest vectors."""
        if self.metadata["method"] == "exact":
            return search_exact(self.parts, vectors, k)
        return faiss_index.search(self.path / self.metadata["file"], self.parts, self.metadata["method"], vectors, k)

    def load_embedder(self, model: str | os.PathLike[str] | nn.Module | None = None, **options: Any) -> Embedder:
        """Its model made ready, from where it lay when the index was built or from `model`; another is refused."""
        given = self.metadata["model"] if model is None else model
        if model is None and not os.path.isdir(self.metadata["model"]):  # noqa: PTH112 (no error for any name)
            raise CheckpointError(f"{self.path}: its model was {given}, which is not there; give it with --model")
        how = self.embedding_config
        wishes: dict[str, Any] = {"pooling": "+".join(how.pooling), "layer": how.layer, "normalise": how.normalise,
                  "length": how.length, "prompt": how.prompt}  # fmt: skip
        ready = _check_embedder(build_embedder(given, **wishes, **options))
        self.check_embedder(ready)
        return ready

    def check_embedder(self, embedder: Embedder) -> None:
        """Refuse a model whose vectors are not those of this index."""
        found = compute_fingerprint(embedder)
        if found != self.metadata["fingerprint"]:
            raise CheckpointError(
                f"{self.path}: built with another model or pooling ({self.metadata['model']}, fingerprint "
                f"{self.metadata['fingerprint'][:12]}, here {found[:12]}); give that model, or build the index again"
            )
        if embedder.width != self.metadata["width"]:
            raise CheckpointError(
                f"{self.path / METADATA_FILE}: 'width' is {self.metadata['width']}, the model's {embedder.width}"
            )

    def search(
        self, queries: Sequence[str], k: int = 10, *, model: Embedder | nn.Module | None = None, words: bool = False
    ) -> list[list[Hit]]:
        """The best hits of each query; with `words` those of BM25."""
        if isinstance(queries, str):
            raise UsageError("queries are a list of texts, found one text; put it into a list")
        if k < 1:
            raise UsageError(f"k is {k}; at least 1 hit has to be asked for")
        if words:
            scores, numbers = self.bm25.search(queries, k)
        else:
            ready = model if isinstance(model, Embedder) else self.load_embedder(model)
            self.check_embedder(ready)
            scores, numbers = self.find_nearest(
                ready.with_prompt(self.metadata.get("query_prompt"))(queries).vectors, k
            )
        return [
            [self._build_hit(number, score) for score, number in zip(*row, strict=True) if number >= 0]
            for row in zip(scores, numbers, strict=True)
        ]

    def _build_hit(self, number: int, score: float) -> Hit:
        name, text = self.rows[number]
        return Hit(name, text, float(score))


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
    **options: Any,
) -> Index:
    """Embed texts and write an index of them, or `add` them to one; `embedding_config` is as `embed` takes it, cosine by default.

    `prompt` is put before every text and every query, or before these `query_prompt`; where they are not given, what
    the model's directory calls its prompts for documents and for queries, if it does.
    """
    where, names = Path(out), [str(i) for i in range(1, len(texts) + 1)] if ids is None else list(ids)
    if method not in METHODS:
        raise UsageError(f"unknown method '{method}' ({', '.join(METHODS)})")
    if not texts or len(names) != len(texts):
        raise DataError(f"{len(texts)} texts with {len(names)} ids; an index needs a text at least, and an id for each")
    _check_unique_ids(names)
    old = Index.open(where) if add else None
    if old is None and where.is_dir() and any(where.iterdir()):
        raise UsageError(f"{where}: there is something already; use --add to add to an index, or choose another --out")
    if old is not None:
        if method not in (METHODS[0], old.metadata["method"]):
            raise UsageError(f"{where}: is searched by '{old.metadata['method']}'; it cannot be added to by '{method}'")
        ready = old.load_embedder(model, device=device)
        names = names if ids is not None else [str(len(old) + i) for i in range(1, len(texts) + 1)]
        _check_unique_ids([name for name, _ in old.rows] + names)
        question = old.metadata.get("query_prompt")
    else:
        wishes = {"normalise": True, **_drop_none(options)}
        question = wishes.pop("query_prompt", None)
        ready = _check_embedder(build_embedder(model, device=device, **wishes))
        if "prompt" not in wishes:
            document, query = ready.prompts
            ready, question = ready.with_prompt(document), query if question is None else question
    found = ready(list(texts), on_progress)
    where_from = old.metadata["model"] if old else _locate_model(model)
    said = {"model": where_from, "query_prompt": question}
    return _write_index(where, old, ready, found, (names, texts), method, said)


def _write_index(
    directory: Path,
    previous: Index | None,
    embedder: Embedder,
    result: EmbeddingResult,
    rows: tuple[Any, Any],
    method: str,
    info: dict[str, str | None],
) -> Index:
    before = previous.metadata["parts"] if previous else []
    facts: dict[str, Any] = {
        "form": FORMAT_VERSION,
        **{name: value for name, value in info.items() if value is not None},
        "fingerprint": compute_fingerprint(embedder),
        "embedding": config.to_dict(embedder.encoder.config),
        "width": embedder.width,
        "method": previous.metadata["method"] if previous else method,
        "parts": [*before, len(result.vectors)],
        "cut": (previous.metadata["cut"] if previous else 0) + result.truncated_texts,
    }
    lines = (
        json.dumps({"id": name, "text": text}, ensure_ascii=True, allow_nan=False)
        for name, text in zip(*rows, strict=True)
    )
    array = memory.BytesIO()
    np.save(array, result.vectors, allow_pickle=False)
    files: dict[str, bytes] = {
        f"vectors-{len(before):05}.npy": array.getvalue(),
        f"texts-{len(before):05}.jsonl": "".join(f"{line}\n" for line in lines).encode(),
    }
    if facts["method"] != "exact":
        facts["file"] = f"graph-{len(before):05}.safetensors"
        known = None if previous is None else directory / previous.metadata["file"]
        parts = [] if previous is None else previous.parts
        files[facts["file"]] = faiss_index.extend_index(known, parts, result.vectors, facts["method"])
    entries = io.check_manifest(directory, hashes=False)["files"] if previous else {}
    stale = previous.metadata.get("file") if previous else None
    entries.pop(stale or "", None)
    with io.atomic_directory(directory, overwrite=True) as folder:
        for name, data in files.items():
            io.atomic_write(folder / name, data)
        io.write_json(folder / METADATA_FILE, facts)
        io.write_manifest(folder, [*files, METADATA_FILE])
        new = io.read_json(folder / io.MANIFEST, CheckpointError)["files"]
        io.write_json(folder / io.MANIFEST, {"files": {**entries, **new}})
    if stale:  # the graph before what was added
        io.remove(directory / stale)
    return Index.open(directory)


def search(
    index: str | os.PathLike[str],
    queries: Sequence[str],
    k: int = 10,
    *,
    model: str | os.PathLike[str] | nn.Module | None = None,
    words: bool = False,
) -> list[list[Hit]]:
    """The best hits `(id, text, score)` of each query in an index on disk; with `words` by BM25 instead of vectors.

    `model` is where the index's model lies now, or the model itself; by default where it lay when it was built.
    """
    found = Index.open(index)
    return found.search(queries, k, model=None if words or model is None else found.load_embedder(model), words=words)


def _check_embedder(embedder: Embedder) -> Embedder:
    """Refuse word vectors, which have no settings and weights to be known by."""
    if isinstance(embedder, WordEmbedder):
        raise UsageError("an index needs the directory of a model, found a file of word vectors")
    return embedder


def compute_fingerprint(embedder: Embedder) -> str:
    """What tells two ways to vectors apart: the settings, the tokenizer, and a thousand values of every weight."""
    found = hashlib.sha256(embedder.tokenizer.sha256.encode())
    found.update(
        json.dumps([config.to_dict(embedder.encoder.config), embedder.length], sort_keys=True, allow_nan=False).encode()
    )
    for name, weight in sorted(embedder.encoder.named_parameters()):
        values = weight.detach().flatten()
        picked = values[:: max(1, values.numel() // 1024)].float().cpu().numpy()
        found.update(f"{name} {tuple(weight.shape)}".encode() + picked.tobytes())
    return found.hexdigest()


def _check_unique_ids(ids: Sequence[str]) -> None:
    """Refuse ids of which one is there twice."""
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            raise DataError(f"the id '{name[:60]}' is there twice; every text needs its own")
        seen.add(name)


def _drop_none(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _locate_model(model: str | os.PathLike[str] | nn.Module) -> str:
    return "(in memory)" if isinstance(model, nn.Module) else str(resolve_path(model).resolve())
