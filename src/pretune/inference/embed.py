"""Vectors of texts: `pt.embed` and `pretune embed`.

    pt.embed("runs/small", ["a sentence", "another"])                  # [2, width]
    pt.embed(model, texts, pooling="cls", layer=-2, normalise=True)
    pt.embed("vectors.txt", texts)                                     # word2vec's text format: means of word vectors

Texts are sorted by length and read in batches without padding; vectors come in the order of the texts, and equal texts
are read once. While a batch is computed, the next texts are cut into tokens by another thread.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.format import format_count
from pretune.core.types import Batch
from pretune.data.ragged import Ints
from pretune.inference.batching import encode_texts, pack_batches, split_into_chunks
from pretune.inference.finite_check import check_outputs
from pretune.inference.pooling import TextEncoder
from pretune.inference.sentence_modules import build_encoder, read_prompts
from pretune.inference.text_model import eval_mode, get_language_model, get_tokenizer
from pretune.inference.weight_layout import column_major_weights
from pretune.inference.word_vectors import WordVectors, is_word_vectors
from pretune.models.hf import checkpoint

Floats = NDArray[np.float32]
ProgressCallback = Callable[[int, int], None]
"""Told how many texts are done, and of how many."""

BATCH_TOKENS = {"cpu": 1024, "cuda": 32768}
"""In a batch: what keeps the device busy without leaving its caches."""
ROW_TOKENS = {"cpu": 64, "cuda": 128}
"""In a row that holds several texts: attention grows with it, the filler shrinks."""
MAX_PENDING_BATCHES = 16
"""Batches whose vectors stay on a GPU until they are fetched together."""


@dataclass(slots=True, kw_only=True)
class EmbeddingResult:
    """The vectors `[S, W]` of texts, and what became of texts that are unlike the others."""

    vectors: Floats
    truncated_texts: int = 0  # too long: only their beginning was read
    truncated_tokens: int = 0  # tokens of those
    empty_texts: int = 0  # without any text


@dataclass(slots=True)
class Embedder:
    """A model made ready to be asked for vectors, any number of times."""

    encoder: TextEncoder
    batch_tokens: int | None = None  # in a batch
    tokenizer: Any = field(init=False)
    length: int | None = field(init=False)

    def __post_init__(self) -> None:
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise UsageError(f"a batch of {self.batch_tokens} tokens; it needs at least 1")
        self.tokenizer = get_tokenizer(self.encoder.model)
        limits = [self.encoder.config.length or self.tokenizer.length, self.encoder.model.spec.max_length]
        self.length = min((limit for limit in limits if limit is not None), default=None)
        if self.is_static:
            self.length = self.encoder.config.length

    @property
    def is_static(self) -> bool:
        """Whether vectors are means of the token table's rows."""
        return "static" in self.encoder.config.pooling

    @property
    def width(self) -> int:
        """Of the vectors."""
        return self.encoder.width

    @property
    def prompts(self) -> tuple[str | None, str | None]:
        """The prompts that the model's directory names for documents and for queries."""
        return read_prompts(self.encoder.model)

    def with_prompt(self, prompt: str | None) -> "Embedder":
        """The same with another prompt before every text; None changes nothing."""
        if prompt is None or prompt == self.encoder.config.prompt:
            return self
        how = replace(self.encoder.config, prompt=prompt)
        return Embedder(TextEncoder(self.encoder.model, how, self.encoder.dense), self.batch_tokens)

    def __call__(self, texts: Sequence[str], on_progress: ProgressCallback | None = None) -> EmbeddingResult:
        """The vectors of texts, in their order."""
        if isinstance(texts, str):
            raise UsageError("embed takes a list of texts, found one text; put it into a list")
        different = list(dict.fromkeys(texts))
        found = EmbeddingResult(vectors=np.zeros((len(different), self.width), dtype=np.float32))
        with eval_mode(self.encoder), column_major_weights(self.encoder.model, sum(map(len, different))):
            self._embed_batches(different, found, on_progress)
        number = {text: i for i, text in enumerate(different)}
        if len(different) < len(texts):
            found.vectors = found.vectors[[number[text] for text in texts]]
        found.empty_texts = sum(not text.strip() for text in texts)
        return found

    def _embed_batches(self, texts: list[str], result: EmbeddingResult, on_progress: ProgressCallback | None) -> None:
        held, done = list[tuple[Ints, Tensor]](), 0
        device = self.encoder.model.tokens.weight.device
        for ids, vectors in self._iterate_vectors(texts, result, device):
            held.append((ids, vectors))
            done += len(ids)
            if device.type == "cpu" or len(held) >= MAX_PENDING_BATCHES:
                _fetch(held, result.vectors)
            if on_progress is not None:
                on_progress(done, len(texts))
        _fetch(held, result.vectors)

    def _iterate_vectors(
        self, texts: list[str], result: EmbeddingResult, device: torch.device
    ) -> Iterator[tuple[Ints, Tensor]]:
        """(numbers of texts, their vectors) batch by batch, the tokens of the next chunk made meanwhile."""
        parts = split_into_chunks([self.encoder.config.prompt + text for text in texts])
        with ThreadPoolExecutor(1, thread_name_prefix="texts") as pool:
            ahead: list[Future[list[Any]]] = []
            for at in range(len(parts) + 1):
                if at < len(parts):
                    ahead.append(pool.submit(self._prepare_batches, texts, parts[at], result))
                if at:
                    for ids, cells, batch in ahead.pop(0).result():
                        yield ids, self._forward(cells, batch, device)

    def _prepare_batches(
        self, texts: list[str], indices: Ints, result: EmbeddingResult
    ) -> list[tuple[Ints, Ints, Any]]:
        """Batches of some of the texts; static vectors need no layout."""
        made = encode_texts(
            self.tokenizer,
            [self.encoder.config.prompt + texts[i] for i in indices],
            self.length,
            without_special=self.is_static,
        )
        result.truncated_texts += made.truncated_texts
        result.truncated_tokens += made.truncated_tokens
        if self.is_static:
            return [(indices, np.arange(len(indices)), made.sequences)]
        kind = self.encoder.model.tokens.weight.device.type
        tokens, row = (
            self.batch_tokens or BATCH_TOKENS.get(kind, BATCH_TOKENS["cuda"]),
            ROW_TOKENS.get(kind, ROW_TOKENS["cuda"]),
        )
        step = 1 if kind == "cpu" else 8  # NOTE: else CUDA's attention copies the mask in every layer
        laid = pack_batches(made.sequences, tokens=tokens, row=row, step=step)
        return [(indices[ids], cells, batch) for ids, cells, batch in laid]

    def _forward(self, cells: Ints, batch: Any, device: torch.device) -> Tensor:
        if isinstance(batch, Batch):
            vectors: Tensor = self.encoder(batch.to(device, non_blocking=True))
            return vectors.index_select(0, torch.from_numpy(cells).to(device, non_blocking=True))
        tokens, offsets = (torch.from_numpy(part).to(device) for part in (batch.tokens, batch.offsets[:-1]))
        return self.encoder.embed_static(tokens, offsets)


class WordEmbedder(Embedder):
    """Static word vectors in the place of a model: the vector of a text is the mean of those of its known words."""

    def __init__(self, vectors: WordVectors, *, normalise: bool | None = None, **options: Any) -> None:
        unread = [
            name for name, value in options.items() if value is not None and (name, value) != ("pooling", "static")
        ]
        if unread:
            raise UsageError(f"static word vectors have no {unread[0]}: a text's vector is the mean of its words'")
        self.vectors, self.normalise = vectors, bool(normalise)
        self.batch_tokens = self.length = self.tokenizer = None

    @property
    def is_static(self) -> bool:
        """True: there is no context."""
        return True

    @property
    def width(self) -> int:
        """Of the vectors."""
        return self.vectors.width

    @property
    def prompts(self) -> tuple[str | None, str | None]:
        """None: words of a prompt would only move every mean."""
        return None, None

    def with_prompt(self, prompt: str | None) -> "WordEmbedder":
        """Itself; a prompt is refused."""
        return self if prompt is None else WordEmbedder(self.vectors, prompt=prompt)

    def __call__(self, texts: Sequence[str], on_progress: ProgressCallback | None = None) -> EmbeddingResult:
        """The vectors of texts, in their order; a text without any known word has zeros."""
        if isinstance(texts, str):
            raise UsageError("embed takes a list of texts, found one text; put it into a list")
        vectors = self.vectors.average(texts)
        if self.normalise:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        if on_progress is not None:
            on_progress(len(texts), len(texts))
        return EmbeddingResult(vectors=vectors, empty_texts=sum(not text.strip() for text in texts))


def embed(
    model: str | os.PathLike[str] | nn.Module,
    texts: Sequence[str],
    *,
    pooling: str | None = None,
    layer: int | None = None,
    normalise: bool | None = None,
    length: int | None = None,
    prompt: str | None = None,
    batch_tokens: int | None = None,
    device: str | None = None,
    on_progress: ProgressCallback | None = None,
) -> Floats:
    """The vectors of texts `[n, width]`, in their order.

    `pooling` is one of mean, cls, max, last, mean_sqrt, weighted and static, or several joined by "+". What is None is
    as the model's directory says (the files of sentence-transformers), or the mean over the last layer. A text longer
    than the model reads is cut, which is told; one without any token has zeros. A file of word vectors (word2vec's or
    GloVe's text format) may stand in the place of a model.
    """
    ask = build_embedder(model, device=device, batch_tokens=batch_tokens, pooling=pooling, layer=layer, normalise=normalise,
                   length=length, prompt=prompt)  # fmt: skip
    found = ask(texts, on_progress)
    if found.truncated_texts:
        log.warn(
            f"{found.truncated_texts:,} of {format_count(len(texts), 'texts')} cut to "
            f"{ask.length} tokens ({format_count(found.truncated_tokens, 'tokens')} lost)"
        )
    return found.vectors


def build_embedder(
    model: str | os.PathLike[str] | nn.Module,
    *,
    device: str | None = None,
    batch_tokens: int | None = None,
    **options: Any,
) -> Embedder:
    """A model, or the directory of one, made ready; it is read onto a GPU where there is one and nothing is said."""
    if isinstance(model, TextEncoder):
        return Embedder(model, batch_tokens)
    if not isinstance(model, nn.Module) and is_word_vectors(model):
        return WordEmbedder(WordVectors.load(model), **options)
    if isinstance(model, nn.Module):
        found = get_language_model(model)
        return Embedder(build_encoder(found if device is None else found.to(device), **options), batch_tokens)
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return Embedder(build_encoder(checkpoint.load(Path(model), device=place), **options), batch_tokens)


def _fetch(pending: list[tuple[Ints, Tensor]], output: Floats) -> None:
    """Bring vectors to where they belong, all in one copy."""
    if pending:
        vectors = torch.cat([part for _, part in pending]).float().cpu().numpy()
        check_outputs(vectors, "vectors")
        output[np.concatenate([ids for ids, _ in pending])] = vectors
        pending.clear()
