"""Tokenized texts for inference, in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pretune.core.errors import UsageError
from pretune.data.sequences import Ints, Sequences, spread
from pretune.text.template import TokenTemplate
from pretune.text.tokenizer import Tokenizer

CHUNK_CHARACTERS = 2**19
"""Maximum characters of a chunk, which is tokenized while the previous one is processed."""
CHUNK_TEXTS = 8192
"""Maximum texts of a chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTexts:
    """Tokenized texts, and how much was truncated."""

    sequences: Sequences  # with special tokens; a text may have no tokens at all
    truncated_texts: int
    truncated_tokens: int


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
        truncated_texts=int((counts > kept_counts).sum()),
        truncated_tokens=int((counts - kept_counts).sum()),
    )
