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
from pretune.data.ragged import Ints, bounds, spread
from pretune.data.sequence_template import A, B, Frame, Pieces
from pretune.data.sequences import Sequences
from pretune.models.spec import Model
from pretune.text.tokenizer import Tokenizer


class Laid(NamedTuple):
    """Sequences, and where each of their tokens is in the pool; -1 for the special ones."""

    sequences: Sequences
    places: Ints  # [T]


@dataclass(frozen=True, slots=True)
class Pool:
    """The tokens of D texts, T in all."""

    ids: Ints  # [T]
    offsets: Ints  # [D + 1]
    starts: Ints  # [T] the character of its text at which a token starts
    blank: int  # what stands for a text of nothing where a frame has nothing either

    @classmethod
    def of(cls, tokenizer: Tokenizer, texts: Sequence[str]) -> "Pool":
        """The tokens of texts."""
        found = tokenizer.encode_batch(texts, literal=True)
        blank = next((tokenizer.special[role] for role in ("unk", "pad", "eos") if role in tokenizer.special), 0)
        ids, starts = (np.asarray(column, dtype=np.int64) for column in (found.ids, found.starts))
        return cls(ids=ids, offsets=found.offsets, starts=starts, blank=blank)

    @property
    def lengths(self) -> Ints:
        """[D]"""
        return np.diff(self.offsets)

    def lay(
        self, frame: Frame, start: Ints, length: Ints, second: Ints | None = None, more: Ints | None = None
    ) -> Laid:
        """Stretches of the pool in a frame, or pairs of them; a pair without a second text stands as one text."""
        if second is None or more is None:
            pieces = frame.around(start, length)
        else:
            pieces = frame.around_two(start, length, second, more)
        return self._read(pieces)

    def _read(self, pieces: Pieces) -> Laid:
        size = pieces.length
        special = np.repeat(pieces.special, size)
        index = np.where(special, -1, spread(pieces.start, size))
        tokens = np.repeat(pieces.start, size)
        tokens[~special] = self.ids[index[~special]]
        ends = bounds(size)[bounds(pieces.counts)]
        made = Sequences(
            tokens=tokens, offsets=ends, special=special, segments=np.repeat(pieces.segment, size)
        )  # fmt: skip
        return self._filled(Laid(made, index))

    def _filled(self, laid: Laid) -> Laid:
        """With one token in every sequence that would have none."""
        lengths = laid.sequences.lengths
        if (lengths > 0).all():
            return laid
        at = laid.sequences.offsets[:-1][lengths == 0]
        tokens = np.insert(laid.sequences.tokens, at, self.blank)
        made = Sequences(
            tokens=tokens,
            offsets=bounds(np.maximum(lengths, 1)),
            special=np.insert(cast(NDArray[np.bool_], laid.sequences.special), at, True),
            segments=np.insert(cast(Ints, laid.sequences.segments), at, 0),
        )
        return Laid(made, np.insert(laid.places, at, -1))


def distinct(texts: Sequence[str]) -> tuple[list[str], Ints]:
    """Each text once, and which of them each is: passages come with many questions.

    >>> distinct(["a", "b", "a"])
    (['a', 'b'], array([0, 1, 0]))
    """
    numbers: dict[str, int] = {}
    found = [numbers.setdefault(text, len(numbers)) for text in texts]
    return [*numbers], np.array(found, dtype=np.int64)


def frame_of(tokenizer: Tokenizer, spec: Model) -> Frame:
    """What stands around texts: the tokenizer's layout; for a decoder start, delimiter and end (Radford et al., 2018).

    The end is what a decoder is read at: a `cls` token that is not the start, or else the token that ends documents,
    which also stands where a vocabulary has no token of its own for the others.
    """
    found = Frame.of(tokenizer.template)
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
    return Frame(single=(*before, (A, 0), *after), pair=(*before, (A, 0), *middle, (B, 0), *after))


def room(frame: Frame, length: int, *, pair: bool) -> int:
    """How many tokens of text fit into a sequence of `length`."""
    taken = frame.pair_room if pair else frame.room
    if length <= taken:
        raise UsageError(f"max_length {length} leaves no room for text: the special tokens alone are {taken}; raise it")
    return length - taken


def shares(a: Ints, b: Ints, room: int) -> tuple[Ints, Ints]:
    """How many tokens to keep of the first and the second of each pair: one after the other goes from the longer.

    >>> [part.tolist() for part in shares(np.array([5, 3]), np.array([2, 9]), 6)]
    [[4, 3], [2, 3]]
    """
    short = np.minimum(np.minimum(a, b), room // 2)
    over = a + b > room
    first = np.where(over, np.where(a <= b, short, np.minimum(room - short, a)), a)
    return first, np.where(over, np.minimum(room - first, b), b)
