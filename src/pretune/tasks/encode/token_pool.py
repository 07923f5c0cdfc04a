"""Texts as tokens, end to end in one array, and the special tokens that a model wants around them.

    pool = Pool.of(tokenizer, ["a fine film", "not really"])
    laid = pool.lay(frame, first, first_length, second, second_length)   # [CLS] a fine film [SEP] not really [SEP]

Everything is done for all texts at once. A special token spelled out in a text is text: nobody's data decides what is
special.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import UsageError
from pretune.data.ragged import Ints, compute_offsets, spread
from pretune.data.sequence_template import A, B, SequencePieces, SequenceTemplate
from pretune.data.sequences import Sequences
from pretune.models.spec import Model
from pretune.text.tokenizer import Tokenizer


class PooledSequences(NamedTuple):
    """Sequences, and where each of their tokens is in the pool; -1 for the special ones."""

    sequences: Sequences
    pool_index: Ints  # [T]


@dataclass(frozen=True, slots=True)
class TokenPool:
    """The tokens of D texts, T in all."""

    ids: Ints  # [T]
    offsets: Ints  # [D + 1]
    starts: Ints  # [T] the character of its text at which a token starts
    blank_token: int  # what stands for a text of nothing where a frame has nothing either

    @classmethod
    def from_texts(cls, tokenizer: Tokenizer, texts: Sequence[str]) -> "TokenPool":
        """The tokens of texts."""
        found = tokenizer.encode_batch(texts, literal=True)
        blank = next((tokenizer.special[role] for role in ("unk", "pad", "eos") if role in tokenizer.special), 0)
        ids, starts = (np.asarray(column, dtype=np.int64) for column in (found.ids, found.starts))
        return cls(ids=ids, offsets=found.offsets, starts=starts, blank_token=blank)

    @property
    def lengths(self) -> Ints:
        """[D]"""
        return np.diff(self.offsets)

    def lay_out(
        self,
        frame: SequenceTemplate,
        start: Ints,
        length: Ints,
        second: Ints | None = None,
        second_length: Ints | None = None,
    ) -> PooledSequences:
        """Stretches of the pool in a frame, or pairs of them; a pair without a second text stands as one text."""
        if second is None or second_length is None:
            pieces = frame.wrap(start, length)
        else:
            pieces = frame.wrap_pair(start, length, second, second_length)
        return self._gather(pieces)

    def _gather(self, pieces: SequencePieces) -> PooledSequences:
        size = pieces.length
        special = np.repeat(pieces.special, size)
        index = np.where(special, -1, spread(pieces.start, size))
        tokens = np.repeat(pieces.start, size)
        tokens[~special] = self.ids[index[~special]]
        ends = compute_offsets(size)[compute_offsets(pieces.counts)]
        made = Sequences(
            tokens=tokens, offsets=ends, special=special, segments=np.repeat(pieces.segment, size)
        )  # fmt: skip
        return self._fill_empty(PooledSequences(made, index))

    def _fill_empty(self, layout: PooledSequences) -> PooledSequences:
        """With one token in every sequence that would have none."""
        lengths = layout.sequences.lengths
        if (lengths > 0).all():
            return layout
        at = layout.sequences.offsets[:-1][lengths == 0]
        tokens = np.insert(layout.sequences.tokens, at, self.blank_token)
        made = Sequences(
            tokens=tokens,
            offsets=compute_offsets(np.maximum(lengths, 1)),
            special=np.insert(cast(NDArray[np.bool_], layout.sequences.special), at, True),
            segments=np.insert(cast(Ints, layout.sequences.segments), at, 0),
        )
        return PooledSequences(made, np.insert(layout.pool_index, at, -1))


def deduplicate(texts: Sequence[str]) -> tuple[list[str], Ints]:
    """Each text once, and which of them each is: passages come with many questions.

    >>> deduplicate(["a", "b", "a"])
    (['a', 'b'], array([0, 1, 0]))
    """
    numbers: dict[str, int] = {}
    found = [numbers.setdefault(text, len(numbers)) for text in texts]
    return [*numbers], np.array(found, dtype=np.int64)


def build_frame(tokenizer: Tokenizer, spec: Model) -> SequenceTemplate:
    """What stands around texts: the tokenizer's layout; for a decoder start, delimiter and end (Radford et al., 2018).

    The end is what a decoder is read at: a `cls` token that is not the start, or else the token that ends documents,
    which also stands where a vocabulary has no token of its own for the others.
    """
    found = SequenceTemplate.from_template(tokenizer.template)
    if spec.shape != "decoder":
        return found
    known = tokenizer.special
    place = [token for token, _ in found.single].index(A)
    before, after = list(found.single[:place]), list(found.single[place + 1 :])
    start = next((known[role] for role in ("bos", "cls", "eos") if role in known), None)
    ends = [known[role] for role in ("cls", "eos", "sep") if role in known]
    end = next((token for token in ends if token != start), ends[0] if ends else None)
    between = next((known[role] for role in ("sep", "eos", "bos") if role in known), None)
    if not before and start is not None:
        before = [(start, 0)]
    if not after and end is not None:
        after = [(end, 0)]
    middle = [] if between is None else [(between, 0)]
    before, after = [(token, 0) for token, _ in before], [(token, 0) for token, _ in after]
    return SequenceTemplate(single=(*before, (A, 0), *after), pair=(*before, (A, 0), *middle, (B, 0), *after))


def compute_room(frame: SequenceTemplate, length: int, *, pair: bool) -> int:
    """How many tokens of text fit into a sequence of `length`."""
    taken = frame.pair_special_count if pair else frame.special_count
    if length <= taken:
        raise UsageError(f"max_length {length} leaves no room for text: the special tokens alone are {taken}; raise it")
    return length - taken


def split_room(a: Ints, b: Ints, room: int) -> tuple[Ints, Ints]:
    """How many tokens to keep of the first and the second of each pair: one after the other goes from the longer.

    >>> [part.tolist() for part in split_room(np.array([5, 3]), np.array([2, 9]), 6)]
    [[4, 3], [2, 3]]
    """
    short = np.minimum(np.minimum(a, b), room // 2)
    over = a + b > room
    first = np.where(over, np.where(a <= b, short, np.minimum(room - short, a)), a)
    return first, np.where(over, np.minimum(room - first, b), b)
