"""Ragged arrays, and `Sequences`: many sequences as flat arrays, the format between shards, corruption and layout."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.text.template import SequencePieces

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def spread(starts: Ints, lengths: Ints) -> Ints:
    """Concatenate ranges of integers, given their starts and lengths.

    >>> spread(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    return np.repeat(starts - compute_starts(lengths), lengths) + np.arange(int(lengths.sum()))


def compute_starts(lengths: Ints) -> Ints:
    """Return the start of each range when ranges of these lengths are concatenated.

    >>> compute_starts(np.array([2, 3, 1])).tolist()
    [0, 2, 5]
    """
    return np.asarray(np.cumsum(lengths) - lengths)


def compute_offsets(lengths: Ints) -> Ints:
    """Return the starts of concatenated ranges and the end of the last: n + 1 offsets."""
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)))


def split_windows(starts: Ints, lengths: Ints, limit: int) -> tuple[Ints, Ints, Ints]:
    """Split ranges into windows of length `limit`; the last window of a range may be shorter.

    Return start, length and index of the range of each window.

    >>> [part.tolist() for part in split_windows(np.array([0, 10]), np.array([5, 2]), 2)]
    [[0, 2, 4, 10], [2, 2, 1, 2], [0, 0, 0, 1]]
    """
    counts = -(-lengths // limit)
    owners = np.repeat(np.arange(len(lengths)), counts)
    window_starts = spread(np.zeros_like(counts), counts) * limit
    return starts[owners] + window_starts, np.minimum(lengths[owners] - window_starts, limit), owners


PER_TOKEN = (
    *("tokens", "special", "words", "sentences", "segments", "targets", "order", "blanks"),
    *("token_logits", "token_features"),
)
PER_SEQUENCE = (
    *("samples", "epochs", "sources", "sides", "chunks", "prefix", "view", "parents", "labels"),
    *("sequence_logits", "sequence_features"),
)
"""Fields of `Sequences` with one value per token, and with one value per sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """S sequences with T tokens in total, and optional fields per token and per sequence (None: not available).

    `words` and `sentences` mark first tokens. A special token, and the first token of a text, starts a word and a
    sentence. So `np.cumsum` of either gives group indices, and no group crosses a special token or the end of a
    sequence.
    """

    tokens: Ints  # [T]
    offsets: Ints  # [S + 1]
    special: Bools | None = None  # [T] special token, never corrupted
    words: Bools | None = None  # [T] first token of a word
    sentences: Bools | None = None  # [T] first token of a sentence
    segments: Ints | None = None  # [T]
    targets: Ints | None = None  # [T] label of the vocabulary head, IGNORE_INDEX for none
    order: Ints | None = None  # [T] factorisation rank
    blanks: Ints | None = None  # [T] index of the masked span in its sequence, -1 outside
    samples: Ints | None = None  # [S] index of the sample; with the epoch, the key of its random numbers
    epochs: Ints | None = None  # [S] earlier reads of the sample
    sources: Ints | None = None  # [S] index of the source
    sides: Ints | None = None  # [S] start of the second side, 0 if there is none
    chunks: Ints | None = None  # [S] index of the sequence among those of its document
    prefix: Ints | None = None  # [S] length of the prefix with bidirectional attention
    view: Ints | None = None  # [S] mask kind
    parents: Ints | None = None  # [S] number of sequences back to the one that it continues, 0 for none
    labels: Ints | None = None  # [S] label of the sequence, IGNORE_INDEX for none; [S, K] for several
    token_logits: NDArray[np.float32] | None = None  # [T, K] of a teacher
    sequence_logits: NDArray[np.float32] | None = None  # [S, K] of a teacher
    token_features: NDArray[np.float32] | None = None  # [T, W] of a frozen body
    sequence_features: NDArray[np.float32] | None = None  # [S, W] of a frozen body, pooled
    source: "Sequences | None" = None  # S sequences of the encoder side

    @classmethod
    def from_pieces(cls, pieces: SequencePieces, text_tokens: NDArray[np.integer], *, segments: bool) -> "Sequences":
        """Return the sequences of the pieces of a template; `text_tokens` are the tokens of all texts, in order."""
        special, tokens = np.repeat(pieces.special, pieces.length), np.repeat(pieces.start, pieces.length)
        tokens[~special] = text_tokens
        return cls(
            tokens=tokens,
            offsets=compute_offsets(pieces.length)[compute_offsets(pieces.counts)],
            special=special,
            segments=np.repeat(pieces.segment, pieces.length) if segments else None,
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        """[S] Tokens of each sequence."""
        return np.diff(self.offsets)

    def find_owners(self) -> Ints:
        """Return the index of the sequence of each token [T]."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def compute_positions(self) -> Ints:
        """Return the position of each token in its sequence [T]."""
        return np.arange(len(self.tokens)) - np.repeat(self.offsets[:-1], self.lengths)

    def take(self, selection: Ints) -> "Sequences":
        """Return the selected sequences, in the order of the selection."""
        return self.cut(selection, np.zeros_like(selection), self.lengths[selection])

    def cut(self, selection: Ints, starts: Ints, lengths: Ints) -> "Sequences":
        """Return a part of each selected sequence, from a token on; only whole ones may have a source."""
        index = spread(self.offsets[:-1][selection] + starts, lengths)
        parts: dict[str, Any] = {"offsets": compute_offsets(lengths)}
        for name, rows in [*((name, index) for name in PER_TOKEN), *((name, selection) for name in PER_SEQUENCE)]:
            value: NDArray[Any] | None = getattr(self, name)
            parts[name] = None if value is None else value[rows]
        return Sequences(**parts, source=None if self.source is None else self.source.take(selection))

    def cut_ends(self, lengths: Ints) -> "Sequences":
        """Return the first tokens of every sequence, as many as `lengths` [S] says; without a source."""
        index = spread(self.offsets[:-1], lengths)
        values = {name: getattr(self, name) for name in PER_TOKEN}
        parts: dict[str, Any] = {name: None if value is None else value[index] for name, value in values.items()}
        return replace(self, offsets=compute_offsets(lengths), **parts)


PROMPT = -1
"""Mark of a part that others continue."""


def share_prompts(sequences: Sequences, group: int) -> tuple[Sequences, Ints]:
    """Return groups of sequences as one more sequence each, what all read before the first target, and what is left.

        a b c D E | a b c F          share_prompts(…, 2)          a b | c D E | c F          targets of c, D: D, E

    The last token before the answers stays with each, since its targets differ. Positions go on from the prompt. Also
    return the sequence that each is a part of.
    """
    assert sequences.targets is not None
    rows, offsets = list[tuple[int, int, int, int]](), sequences.offsets.tolist()
    for first in range(0, len(sequences), group):
        spans = [slice(*offsets[row : row + 2]) for row in range(first, first + group)]
        size = min(span.stop - span.start for span in spans) - 1
        tokens, targets = (
            np.stack([part[span][:size] for span in spans]) for part in (sequences.tokens, sequences.targets)
        )
        is_shared = (tokens == tokens[0]).all(0) & (targets == IGNORE_INDEX).all(0)
        size = int(np.append(is_shared, False).argmin())
        rows += [(first, 0, size, PROMPT)] if size else []
        rows += [(first + i, size, span.stop - span.start - size, (i + 1) * bool(size)) for i, span in enumerate(spans)]
    owners, starts, lengths, parents = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    parts, is_prompt = sequences.cut(owners, starts, lengths), parents == PROMPT
    for values, fill in ((parts.labels, IGNORE_INDEX), (parts.sequence_logits, 0)):
        if values is not None:
            values[is_prompt] = fill
    parts = replace(parts, parents=np.where(is_prompt, 0, parents))
    return parts, owners


def join(parts: Sequence[Sequences]) -> Sequences:
    """Concatenate sequences; a field that is None in one of the parts is None in the result."""
    columns: dict[str, Any] = {}
    for field in fields(Sequences):
        values = [getattr(part, field.name) for part in parts]
        if field.name == "offsets":
            shifts = compute_starts(np.array([len(part.tokens) for part in parts]))
            shifted_offsets = [part.offsets[1:] + shift for part, shift in zip(parts, shifts, strict=True)]
            columns["offsets"] = np.concatenate([np.zeros(1, dtype=np.int64), *shifted_offsets])
        elif any(value is None for value in values):
            columns[field.name] = None
        else:
            columns[field.name] = join(values) if field.name == "source" else np.concatenate(values)
    return Sequences(**columns)


SLOT_VALUES: dict[str, int] = dict.fromkeys(PER_TOKEN, 0) | {
    **dict.fromkeys(("special", "words", "sentences"), True),
    "targets": IGNORE_INDEX,
    "blanks": -1,
}
"""Field values of a slot: a valid token id that is never used, rank 0 (context), outside of masked spans."""


def reserve(sequences: Sequences, count: int) -> Sequences:
    """Return the sequences with `count` slots before each, or before each source if there is an encoder side.

        a b c | d e          reserve(…, 2)          . . a b c | . . d e

    Slots are for vectors that the model inserts (prompt tuning). Attention and layout treat them as ordinary positions.
    They count as special tokens: they are never corrupted and have no targets.

    Raises `UsageError` if `count` is negative.
    """
    if count < 0:
        raise UsageError(f"number of slots must be >= 0, got {count}")
    if count == 0:
        return sequences
    if sequences.source is not None:
        return replace(sequences, source=reserve(sequences.source, count))
    lengths = sequences.lengths + count
    offsets = compute_offsets(lengths)
    is_text = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) >= count
    fields: dict[str, Any] = {"offsets": offsets}
    for name in PER_TOKEN:
        values: NDArray[Any] | None = getattr(sequences, name)
        if values is not None:
            fields[name] = np.full((len(is_text), *values.shape[1:]), SLOT_VALUES[name], dtype=values.dtype)
            fields[name][is_text] = values
    for name in ("prefix", "sides"):
        places: NDArray[Any] | None = getattr(sequences, name)
        if places is not None:
            fields[name] = np.where(places > 0, places + count, 0)
    return replace(sequences, **fields)
