"""Templates: how special tokens are laid around one text or two, and what is cut when they are too long.

    template.apply([7, 8], [9])                  # [CLS] 7 8 [SEP] 9 [SEP], with segments and where the specials are
    template.fit(a, b, length=128)               # cut first: the longer text loses more
    template.fit(a, b, length=384, strategy="only_second", stride=128, windows=True)   # nothing lost: several windows

A template is data: it comes from the table of styles or from the file of a tokenizer, whoever wrote it. What is cut,
and where windows start, is what `transformers` does, so that a model sees the same tokens here and there.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError, suggest

Ids = NDArray[np.int64]
Side = Literal["right", "left"]
Strategy = Literal["longest_first", "only_first", "only_second"]
STRATEGIES: tuple[Strategy, ...] = ("longest_first", "only_first", "only_second")


class TemplatedTokens(NamedTuple):
    """One sequence as a model reads it, [n] each."""

    ids: Ids
    segments: Ids
    is_special: NDArray[np.bool_]  # a token of the template, not of a text


class TruncatedSequences(NamedTuple):
    """Sequences of at most the length asked for, and how many tokens of the first and second text are in none."""

    sequences: tuple[TemplatedTokens, ...]
    dropped_tokens: tuple[int, int]


class TruncationPlan(NamedTuple):
    """Which tokens to keep: per window the start and end in the first and in the second text; and how many are lost."""

    windows: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    dropped_tokens: tuple[int, int]


class PaddedSequences(NamedTuple):
    """Sequences in a block, [S, L] each; `mask` is True where there is a token."""

    ids: Ids
    mask: NDArray[np.bool_]


@spec
class SpecialPart:
    """A place for a special token."""

    token: int
    segment: int = 0


@spec
class TextPart:
    """A place for a text: the first ("a") or the second ("b")."""

    which: Literal["a", "b"]
    segment: int = 0


@spec
class TokenTemplate:
    """The layout of one text and of two.

    >>> template = TokenTemplate.from_layouts("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", {"[CLS]": 2, "[SEP]": 3})
    >>> template.apply([7, 8], [9]).ids.tolist(), template.apply([7, 8], [9]).segments.tolist()
    ([2, 7, 8, 3, 9, 3], [0, 0, 0, 0, 1, 1])
    """

    single: tuple[SpecialPart | TextPart, ...] = (TextPart(which="a"),)
    pair: tuple[SpecialPart | TextPart, ...] = (TextPart(which="a"), TextPart(which="b"))

    def __post_init__(self) -> None:
        for name, layout, texts in (("single", self.single, ["a"]), ("pair", self.pair, ["a", "b"])):
            if [part.which for part in layout if isinstance(part, TextPart)] != texts:
                raise UsageError(f"a template's '{name}' must hold each text once, in order: {' and '.join(texts)}")

    @classmethod
    def from_layouts(cls, single: str, pair: str, ids: dict[str, int]) -> "TokenTemplate":
        """From layouts written as words, as in the table of styles."""
        return cls(single=tuple(_parse_layout(single, ids)), pair=tuple(_parse_layout(pair, ids)))

    def get_layout(self, pair: bool) -> tuple[SpecialPart | TextPart, ...]:
        """The parts for one text or for two."""
        return self.pair if pair else self.single

    def count_special_tokens(self, pair: bool) -> int:
        """How many special tokens are added."""
        return sum(isinstance(part, SpecialPart) for part in self.get_layout(pair))

    def apply(self, a: ArrayLike, b: ArrayLike | None = None) -> TemplatedTokens:
        """Lay the special tokens around the tokens of one text or two; nothing is cut."""
        texts = {"a": np.asarray(a, np.int64), "b": np.asarray([] if b is None else b, np.int64)}
        layout = self.get_layout(b is not None)
        ids = [np.array([part.token]) if isinstance(part, SpecialPart) else texts[part.which] for part in layout]
        sizes = [len(part) for part in ids]
        return TemplatedTokens(
            np.concatenate(ids),
            np.repeat([part.segment for part in layout], sizes),
            np.repeat([isinstance(part, SpecialPart) for part in layout], sizes),
        )

    def fit(
        self,
        a: ArrayLike,
        b: ArrayLike | None = None,
        *,
        length: int,
        strategy: Strategy = "longest_first",
        stride: int = 0,
        windows: bool = False,
        side: Side = "right",
    ) -> TruncatedSequences:
        """Cut what does not fit into `length` tokens, special ones included, and lay out the rest.

        With `windows` what was cut comes as further sequences, each of which repeats `stride` tokens of the one before.
        """
        first, second = np.asarray(a, np.int64), None if b is None else np.asarray(b, np.int64)
        extra = self.count_special_tokens(second is not None)
        if length < extra:
            raise UsageError(f"a length of {length} leaves no room: the template alone has {extra} tokens")
        sizes = len(first), None if second is None else len(second)
        cut = truncate(*sizes, length - extra, strategy=strategy, stride=stride, windows=windows, side=side)
        laid = [
            self.apply(first[slice(*one)], None if second is None else second[slice(*two)]) for one, two in cut.windows
        ]
        return TruncatedSequences(tuple(laid), cut.dropped_tokens)


def truncate(
    a: int,
    b: int | None,
    room: int,
    *,
    strategy: Strategy = "longest_first",
    stride: int = 0,
    windows: bool = False,
    side: Side = "right",
) -> TruncationPlan:
    """What to keep of texts of `a` and `b` tokens (b is None: one text alone) in `room` tokens.

    `longest_first` takes one token after the other from the longer text; `only_first` and `only_second` leave the other
    text whole, and fail where it leaves no room. With `side` "left" the ends of the texts are kept.

    >>> truncate(5, 2, 4)
    Cut(windows=(((0, 2), (0, 2)),), lost=(3, 0))
    >>> truncate(5, None, 3, stride=1, windows=True).windows
    (((0, 3), (0, 0)), ((2, 5), (0, 0)))
    """
    if strategy not in STRATEGIES:
        raise UsageError(f"unknown truncation '{strategy}'{suggest(strategy, STRATEGIES)} ({', '.join(STRATEGIES)})")
    if stride < 0 or room < 0:
        raise UsageError(f"room and stride must be 0 or more, found {room} and {stride}")
    keep_a, keep_b = _allocate_tokens(a, b, room, strategy)
    spans_a = list(_iter_windows(a, keep_a, stride, side))
    spans_b = list(_iter_windows(b or 0, keep_b, stride, side))
    if not windows:
        return TruncationPlan(((spans_a[0], spans_b[0]),), (a - keep_a, (b or 0) - keep_b))
    lost = (a if not keep_a else 0, (b or 0) if not keep_b else 0)
    return TruncationPlan(tuple(product(spans_a, spans_b)), lost)


def pad_left(sequences: Sequence[ArrayLike], pad: int, *, length: int | None = None) -> PaddedSequences:
    """Sequences in a block that ends where they end, as generation wants it; `length` of the longest by default.

    >>> pad_left([[5, 6, 7], [8]], pad=0).ids.tolist()
    [[5, 6, 7], [0, 0, 8]]
    """
    rows = [np.asarray(sequence, np.int64) for sequence in sequences]
    longest = max(map(len, rows), default=0)
    size = longest if length is None else length
    if size < longest:
        raise UsageError(f"cannot pad to {size} tokens: a sequence has {longest}; cut it first")
    ids, mask = np.full((len(rows), size), pad, np.int64), np.zeros((len(rows), size), bool)
    for i, row in enumerate(rows):
        ids[i, size - len(row) :] = row
        mask[i, size - len(row) :] = True
    return PaddedSequences(ids, mask)


def _allocate_tokens(a: int, b: int | None, room: int, strategy: Strategy) -> tuple[int, int]:
    """How many tokens of each text remain."""
    other = b or 0
    if a + other <= room:
        return a, other
    if b is None:
        if strategy == "only_second":
            raise UsageError("cannot truncate 'only_second': there is one text alone")
        return room, 0
    if strategy == "longest_first":
        short = min(a, other, room // 2)
        long = room - short
        return (short, long) if a <= other else (long, short)
    cut, whole = (a, other) if strategy == "only_first" else (other, a)
    if room <= whole:
        name = "second" if strategy == "only_first" else "first"
        raise DataError(
            f"cannot truncate '{strategy}': the {name} text has {whole} tokens and there is room for {room}"
        )
    kept = min(cut, room - whole)
    return (kept, whole) if strategy == "only_first" else (whole, kept)


def _iter_windows(n: int, max_tokens: int, stride: int, side: Side) -> Iterator[tuple[int, int]]:
    """Stretches of at most `most` out of n tokens that overlap by `stride`; the one to keep comes first."""
    if n <= max_tokens or not max_tokens:
        yield 0, min(n, max_tokens)
        return
    if stride >= max_tokens:
        raise UsageError(f"a stride of {stride} must be less than the {max_tokens} tokens that a window holds")
    for start in range(0, n, max_tokens - stride):
        stop = min(start + max_tokens, n)
        yield (start, stop) if side == "right" else (n - stop, n - start)
        if stop == n:
            return


def _parse_layout(layout: str, ids: dict[str, int]) -> Iterator[SpecialPart | TextPart]:
    for word in layout.split():
        name, _, segment = word.rpartition(":") if word[-2:-1] == ":" else (word, "", "0")
        if name in ("$A", "$B"):
            yield TextPart(which="a" if name == "$A" else "b", segment=int(segment))
        else:
            yield SpecialPart(token=ids[name], segment=int(segment))
