"""Text embeddings: `pt.embed` and `pretune embed`.

    pt.embed("runs/small", ["a sentence", "another"])                  # [2, width]
    pt.embed(model, texts, pooling="cls", layer=-2, normalise=True)
    pt.embed("vectors.txt", texts)                                     # word2vec's text format: mean of word vectors

Texts are sorted by length and processed in batches without padding; vectors are in the order of the texts, and equal
texts are processed once. While a batch is computed, another thread tokenizes the next texts.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.log import format_count
from pretune.core.types import Batch
from pretune.data.layout import pack_batches
from pretune.data.sequences import Ints, Sequences, spread
from pretune.inference.pooling import TextEncoder, TextEncoderOptions
from pretune.inference.sentence_modules import build_encoder, read_prompts
from pretune.inference.text_model import (
    CPU_BATCH_TOKENS,
    check_outputs,
    column_major_weights,
    eval_mode,
    get_language_model,
    get_tokenizer,
    list_linear_weights,
    map_batches,
)
from pretune.inference.word_vectors import WordVectors, is_word_vectors
from pretune.models.hf import checkpoint
from pretune.text.template import TokenTemplate
from pretune.text.tokenizer import Tokenizer

Floats = NDArray[np.float32]
ProgressCallback = Callable[[int, int], None]
"""Called with the number of finished texts and the total."""

MIN_CHARACTERS = 20_000
"""Minimum characters of input for which transposing the weights pays off."""
BATCH_TOKENS = {"cpu": CPU_BATCH_TOKENS, "cuda": 32768}
"""Tokens per batch."""
MAX_PENDING_BATCHES = 16
"""Batches whose vectors stay on a GPU until they are copied together."""


@dataclass(slots=True, kw_only=True)
class EmbeddingResult:
    """Vectors `[S, W]` of texts, their tokens and truncated tokens `[S]` (0 for word vectors), and empty texts."""

    vectors: Floats
    lengths: Ints
    lost_tokens: Ints
    empty_texts: int = 0

    @property
    def truncated_texts(self) -> int:
        """Number of truncated texts."""
        return int((self.lost_tokens > 0).sum())

    @property
    def truncated_tokens(self) -> int:
        """Number of tokens that truncation removed from all texts."""
        return int(self.lost_tokens.sum())


_IndexedBatch = tuple[Ints, Ints, Batch | Sequences]
"""Indices of texts, their cells, and their tokens: packed, or in sequence for static vectors."""


@dataclass(slots=True)
class Embedder:
    """Encoder with its tokenizer and batch size."""

    encoder: TextEncoder
    batch_tokens: int | None = None  # per batch; None: by device
    tokenizer: Any = field(init=False)
    length: int | None = field(init=False)

    def __post_init__(self) -> None:
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise UsageError(f"batch_tokens must be >= 1, got {self.batch_tokens}")
        self.tokenizer = get_tokenizer(self.encoder.model)
        model = self.encoder.model
        max_length, stacks = model.spec.max_length, [model.encoder, model.decoder]
        prefix_length = max(stack.prefix_length for stack in stacks if stack is not None)
        self.length = self.encoder.config.length
        if not self.is_static:
            limits = [self.length or self.tokenizer.length, max_length and max_length - prefix_length]
            self.length = min((limit for limit in limits if limit is not None), default=None)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.encoder.model.tokens.weight.device

    @property
    def is_static(self) -> bool:
        """True if vectors are means of token embeddings."""
        return "static" in self.encoder.config.pooling

    @property
    def width(self) -> int:
        """Width of the vectors."""
        return self.encoder.width

    @property
    def prompts(self) -> tuple[str | None, str | None]:
        """Prompts of the model's directory for documents and for queries."""
        return read_prompts(self.encoder.model)

    def with_prompt(self, prompt: str | None) -> "Embedder":
        """Return an embedder with another prompt; None returns the same one."""
        if prompt is None or prompt == self.encoder.config.prompt:
            return self
        config = replace(self.encoder.config, prompt=prompt)
        return Embedder(TextEncoder(self.encoder.model, config, self.encoder.dense), self.batch_tokens)

    def __call__(self, texts: Sequence[str], on_progress: ProgressCallback | None = None) -> EmbeddingResult:
        """Embed texts, in their order."""
        if isinstance(texts, str):
            raise UsageError("texts must be a list, got a single text; use [text]")
        unique_texts = list(dict.fromkeys(texts))
        lengths, lost_tokens = np.zeros((2, len(unique_texts)), np.int64)
        vectors = np.zeros((len(unique_texts), self.width), np.float32)
        result = EmbeddingResult(vectors=vectors, lengths=lengths, lost_tokens=lost_tokens)
        layers = list_linear_weights(self.encoder.model) if sum(map(len, unique_texts)) >= MIN_CHARACTERS else []
        pending, count = list[tuple[Ints, Tensor]](), 0
        with eval_mode(self.encoder), column_major_weights(layers):
            for ids, batch_vectors in self._iterate_vectors(unique_texts, result):
                pending.append((ids, batch_vectors))
                count += len(ids)
                if self.device.type == "cpu" or len(pending) >= MAX_PENDING_BATCHES:
                    _fetch(pending, vectors)
                if on_progress is not None:
                    on_progress(count, len(unique_texts))
            _fetch(pending, vectors)
        if len(unique_texts) < len(texts):
            index = {text: i for i, text in enumerate(unique_texts)}
            order = [index[text] for text in texts]
            result.vectors, result.lengths, result.lost_tokens = vectors[order], lengths[order], lost_tokens[order]
        result.empty_texts = sum(not text.strip() for text in texts)
        return result

    def _iterate_vectors(self, texts: list[str], result: EmbeddingResult) -> Iterator[tuple[Ints, Tensor]]:
        """Yield (indices, vectors) by batch, while the next chunk is tokenized."""
        texts = [self.encoder.config.prompt + text for text in texts]
        parts = split_into_chunks(texts)
        if len(parts) <= 1:  # a thread would only delay a query
            for part in parts:
                yield from self._compute_vectors(self._prepare_batches(texts, part, result))
            return
        with ThreadPoolExecutor(1, thread_name_prefix="texts") as pool:
            future = pool.submit(self._prepare_batches, texts, parts[0], result)
            for next_part in (*parts[1:], None):
                batches = future.result()
                if next_part is not None:
                    future = pool.submit(self._prepare_batches, texts, next_part, result)
                yield from self._compute_vectors(batches)

    def _compute_vectors(self, batches: list[_IndexedBatch]) -> Iterator[tuple[Ints, Tensor]]:
        """Yield (indices, vectors) by batch; on a CPU each thread computes batches of its own."""
        device = self.device

        def compute(part: _IndexedBatch) -> tuple[Ints, Tensor]:
            ids, cells, batch = part
            if isinstance(batch, Batch):
                vectors: Tensor = self.encoder(batch.to(device, non_blocking=True))
                return ids, vectors.index_select(0, torch.from_numpy(cells).to(device, non_blocking=True))
            tokens, offsets = (torch.from_numpy(part).to(device) for part in (batch.tokens, batch.offsets[:-1]))
            return ids, self.encoder.embed_static(tokens, offsets)

        return map_batches(compute, batches, tokens=self._get_batch_tokens(), device=device)

    def _get_batch_tokens(self) -> int:
        return self.batch_tokens or BATCH_TOKENS.get(self.device.type, BATCH_TOKENS["cuda"])

    def _prepare_batches(self, texts: list[str], indices: Ints, result: EmbeddingResult) -> list[_IndexedBatch]:
        """Tokenize and pack a chunk of the texts; static vectors need no packing."""
        encoded_texts = encode_texts(
            self.tokenizer, [texts[i] for i in indices], self.length, without_special=self.is_static
        )
        result.lengths[indices] = encoded_texts.sequences.lengths
        result.lost_tokens[indices] = encoded_texts.lost_tokens
        if self.is_static:
            return [(indices, np.arange(len(indices)), encoded_texts.sequences)]
        batches = pack_batches(encoded_texts.sequences, tokens=self._get_batch_tokens(), device=self.device.type)
        return [(indices[part.indices], part.cells, part.batch) for part in batches]


class WordEmbedder(Embedder):
    """Embedder by static word vectors: the vector of a text is the mean of its known words."""

    def __init__(self, vectors: WordVectors, **options: Unpack[TextEncoderOptions]) -> None:
        self.vectors, self.normalise = vectors, bool(options.pop("normalise", False))
        for name, value in options.items():
            if value is not None and (name, value) != ("pooling", "static"):
                raise UsageError(f"static word vectors do not support {name}; remove it")
        self.batch_tokens = self.length = self.tokenizer = None

    @property
    def width(self) -> int:
        """Width of the vectors."""
        return self.vectors.width

    @property
    def prompts(self) -> tuple[str | None, str | None]:
        """None: a prompt would only shift every mean."""
        return None, None

    def with_prompt(self, prompt: str | None) -> "WordEmbedder":
        """Return itself; raises a UsageError for a prompt."""
        return self if prompt is None else WordEmbedder(self.vectors, prompt=prompt)

    def __call__(self, texts: Sequence[str], on_progress: ProgressCallback | None = None) -> EmbeddingResult:
        """Embed texts, in their order; a text without known words gets zeros."""
        if isinstance(texts, str):
            raise UsageError("texts must be a list, got a single text; use [text]")
        vectors = self.vectors.average(texts)
        if self.normalise:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        if on_progress is not None:
            on_progress(len(texts), len(texts))
        lengths, lost_tokens = np.zeros((2, len(texts)), np.int64)
        empty_texts = sum(not text.strip() for text in texts)
        return EmbeddingResult(vectors=vectors, lengths=lengths, lost_tokens=lost_tokens, empty_texts=empty_texts)


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
    """Return the vectors of texts `[n, width]`, in their order.

    `pooling` is one of mean, cls, max, last, mean_sqrt, weighted and static, or several joined by "+". Options that are
    None follow the model's directory (files of sentence-transformers), or default to the mean over the last layer.
    Texts longer than the model's maximum are truncated, with a warning; one without tokens gets zeros. `model` may be a
    file of word vectors (text format of word2vec or GloVe).
    """
    embedder = build_embedder(model, device=device, batch_tokens=batch_tokens, pooling=pooling, layer=layer,
                              normalise=normalise, length=length, prompt=prompt)  # fmt: skip
    result = embedder(texts, on_progress)
    if result.truncated_texts:
        log.warn(
            f"{result.truncated_texts:,} of {format_count(len(texts), 'texts')} truncated to "
            f"{embedder.length} tokens ({format_count(result.truncated_tokens, 'tokens')} lost)"
        )
    return result.vectors


def build_embedder(
    model: str | os.PathLike[str] | nn.Module,
    *,
    device: str | None = None,
    batch_tokens: int | None = None,
    **options: Unpack[TextEncoderOptions],
) -> Embedder:
    """Build an embedder of a model or its directory; the default device is a GPU if available."""
    if isinstance(model, TextEncoder):
        return Embedder(model, batch_tokens)
    if not isinstance(model, nn.Module) and is_word_vectors(model):
        return WordEmbedder(WordVectors.load(model), **options)
    if isinstance(model, nn.Module):
        language_model = get_language_model(model)
        language_model = language_model if device is None else language_model.to(device)
        return Embedder(build_encoder(language_model, **options), batch_tokens)
    target_device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    encoder = build_encoder(checkpoint.load(Path(model), device=target_device), **options)
    return Embedder(encoder.eval(), batch_tokens)


def _fetch(pending: list[tuple[Ints, Tensor]], output: Floats) -> None:
    """Copy pending vectors to the output, in one transfer."""
    if pending:
        vectors = torch.cat([part for _, part in pending]).float().cpu().numpy()
        check_outputs(vectors, "vectors")
        output[np.concatenate([ids for ids, _ in pending])] = vectors
        pending.clear()


CHUNK_CHARACTERS = 2**19
"""Maximum characters of a chunk, which is tokenized while the previous one is processed."""
CHUNK_TEXTS = 8192
"""Maximum texts of a chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTexts:
    """Tokenized texts, and how much was truncated."""

    sequences: Sequences  # with special tokens; a text may have no tokens at all
    lost_tokens: Ints  # by truncation, of each text

    @property
    def truncated_texts(self) -> int:
        """Number of truncated texts."""
        return int((self.lost_tokens > 0).sum())


def split_into_chunks(
    texts: Sequence[str], characters: int = CHUNK_CHARACTERS, max_texts: int = CHUNK_TEXTS
) -> list[Ints]:
    """Split texts into chunks of indices, the longest texts first."""
    sizes = np.array([len(text) for text in texts], dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    ends = np.cumsum(sizes[order] + 16) // characters
    parts = np.split(order, np.flatnonzero(np.diff(ends)) + 1) if len(order) else []
    return [part[i : i + max_texts] for part in parts for i in range(0, len(part), max_texts)]


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], length: int | None, *, without_special: bool = False
) -> EncodedTexts:
    """Tokenize texts with special tokens (unless `without_special`), truncated at the end to `length`."""
    encoding = tokenizer.encode_batch(texts)
    template = TokenTemplate() if without_special else tokenizer.template
    counts = np.diff(encoding.offsets)
    if length is not None and length <= template.special_count:
        raise UsageError(f"length must be > {template.special_count}, the special tokens, got {length}")
    kept_counts = counts if length is None else np.minimum(counts, length - template.special_count)
    starts = encoding.offsets[:-1]
    pieces, text_tokens = template.wrap(starts, kept_counts), encoding.ids[spread(starts, kept_counts)]
    return EncodedTexts(
        sequences=Sequences.from_pieces(pieces, text_tokens, segments=template.has_segments),
        lost_tokens=counts - kept_counts,
    )
