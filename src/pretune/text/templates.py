"""Templates: special tokens around one text or two, and truncation to a length.

    template.apply([7, 8], [9])                  # [CLS] 7 8 [SEP] 9 [SEP], with segments and a mask of special tokens
    template.fit(a, b, length=128)               # truncated first: the longer text loses more
    template.fit(a, b, length=384, strategy="only_second", stride=128, windows=True)   # several windows, nothing lost

A template is data, from the table of styles or from the file of a tokenizer. Truncation and windows follow
`transformers`, so that a model sees the same tokens in both.
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
    """One model input, [n] each."""

    ids: Ids
    segments: Ids
    is_special: NDArray[np.bool_]  # token of the template, not of a text


class TruncatedSequences(NamedTuple):
    """Sequences of at most the requested length, and the number of dropped tokens of the first and second text."""

    sequences: tuple[TemplatedTokens, ...]
    dropped_tokens: tuple[int, int]


class TruncationPlan(NamedTuple):
    """Tokens to keep: per window start and end in the first and second text; and the number of dropped tokens."""

    windows: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    dropped_tokens: tuple[int, int]


class PaddedSequences(NamedTuple):
    """Padded sequences, [S, L] each; `mask` is True for tokens."""

    ids: Ids
    mask: NDArray[np.bool_]


@spec
class SpecialPart:
    """Slot of a special token."""

    token: int
    segment: int = 0


@spec
class TextPart:
    """Slot of a text: the first ("a") or the second ("b")."""

    text: Literal["a", "b"]
    segment: int = 0


@spec
class TokenTemplate:
    """Templates of one text and of two.

    >>> template = TokenTemplate.from_layouts("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", {"[CLS]": 2, "[SEP]": 3})
    >>> template.apply([7, 8], [9]).ids.tolist(), template.apply([7, 8], [9]).segments.tolist()
    ([2, 7, 8, 3, 9, 3], [0, 0, 0, 0, 1, 1])
    """

    single: tuple[SpecialPart | TextPart, ...] = (TextPart(text="a"),)
    pair: tuple[SpecialPart | TextPart, ...] = (TextPart(text="a"), TextPart(text="b"))

    def __post_init__(self) -> None:
        for name, layout, texts in (("single", self.single, ["a"]), ("pair", self.pair, ["a", "b"])):
            if [part.text for part in layout if isinstance(part, TextPart)] != texts:
                raise UsageError(f"the template '{name}' must contain each text once, in order: {' and '.join(texts)}")

    @classmethod
    def from_layouts(cls, single: str, pair: str, ids: dict[str, int]) -> "TokenTemplate":
        """Parse templates written as words, as in the table of styles."""
        return cls(single=tuple(_parse_layout(single, ids)), pair=tuple(_parse_layout(pair, ids)))

    def get_layout(self, pair: bool) -> tuple[SpecialPart | TextPart, ...]:
        """Return the parts of the template for one text or for two."""
        return self.pair if pair else self.single

    def count_special_tokens(self, pair: bool) -> int:
        """Return the number of special tokens that the template adds."""
        return sum(isinstance(part, SpecialPart) for part in self.get_layout(pair))

    def apply(self, first: ArrayLike, second: ArrayLike | None = None) -> TemplatedTokens:
        """Add special tokens to the tokens of one text or two, without truncation."""
        texts = {"a": np.asarray(first, np.int64), "b": np.asarray([] if second is None else second, np.int64)}
        layout = self.get_layout(second is not None)
        ids = [np.array([part.token]) if isinstance(part, SpecialPart) else texts[part.text] for part in layout]
        sizes = [len(part) for part in ids]
        return TemplatedTokens(
            np.concatenate(ids),
            np.repeat([part.segment for part in layout], sizes),
            np.repeat([isinstance(part, SpecialPart) for part in layout], sizes),
        )

    def fit(
        self,
        first: ArrayLike,
        second: ArrayLike | None = None,
        *,
        length: int,
        strategy: Strategy = "longest_first",
        stride: int = 0,
        windows: bool = False,
        side: Side = "right",
    ) -> TruncatedSequences:
        """Truncate to `length` tokens, special ones included, and apply the template.

        With `windows` the truncated tokens follow as further sequences, each repeating `stride` tokens of the previous.
        """
        first, second = np.asarray(first, np.int64), None if second is None else np.asarray(second, np.int64)
        extra = self.count_special_tokens(second is not None)
        if length < extra:
            raise UsageError(f"a length of {length} is too short: the template has {extra} special tokens")
        sizes = len(first), None if second is None else len(second)
        plan = truncate(*sizes, length - extra, strategy=strategy, stride=stride, windows=windows, side=side)
        sequences = [
            self.apply(first[slice(*span)], None if second is None else second[slice(*second_span)])
            for span, second_span in plan.windows
        ]
        return TruncatedSequences(tuple(sequences), plan.dropped_tokens)


def truncate(
    first: int,
    second: int | None,
    room: int,
    *,
    strategy: Strategy = "longest_first",
    stride: int = 0,
    windows: bool = False,
    side: Side = "right",
) -> TruncationPlan:
    """Plan the truncation of texts of `first` and `second` tokens (None: one text alone) to `room` tokens.

    `longest_first` removes one token at a time from the longer text; `only_first` and `only_second` keep the other text
    complete, and fail if it leaves no room. With `side` "left" the ends of the texts are kept.

    >>> truncate(5, 2, 4)
    TruncationPlan(windows=(((0, 2), (0, 2)),), dropped_tokens=(3, 0))
    >>> truncate(5, None, 3, stride=1, windows=True).windows
    (((0, 3), (0, 0)), ((2, 5), (0, 0)))
    """
    if strategy not in STRATEGIES:
        raise UsageError(
            f"unknown truncation '{strategy}'{suggest(strategy, STRATEGIES)} (allowed: {', '.join(STRATEGIES)})"
        )
    if stride < 0 or room < 0:
        raise UsageError(f"room and stride must be >= 0, got {room} and {stride}")
    keep_first, keep_second = _allocate_tokens(first, second, room, strategy)
    first_spans = list(_iter_windows(first, keep_first, stride, side))
    second_spans = list(_iter_windows(second or 0, keep_second, stride, side))
    if not windows:
        return TruncationPlan(((first_spans[0], second_spans[0]),), (first - keep_first, (second or 0) - keep_second))
    dropped_tokens = (first if not keep_first else 0, (second or 0) if not keep_second else 0)
    return TruncationPlan(tuple(product(first_spans, second_spans)), dropped_tokens)


def pad_left(sequences: Sequence[ArrayLike], pad: int, *, length: int | None = None) -> PaddedSequences:
    """Pad sequences on the left, as for generation; `length` defaults to that of the longest.

    >>> pad_left([[5, 6, 7], [8]], pad=0).ids.tolist()
    [[5, 6, 7], [0, 0, 8]]
    """
    rows = [np.asarray(sequence, np.int64) for sequence in sequences]
    longest = max(map(len, rows), default=0)
    size = longest if length is None else length
    if size < longest:
        raise UsageError(f"cannot pad to {size} tokens: a sequence has {longest}; truncate it first")
    ids, mask = np.full((len(rows), size), pad, np.int64), np.zeros((len(rows), size), bool)
    for i, row in enumerate(rows):
        ids[i, size - len(row) :] = row
        mask[i, size - len(row) :] = True
    return PaddedSequences(ids, mask)


def _allocate_tokens(first: int, second: int | None, room: int, strategy: Strategy) -> tuple[int, int]:
    """Return the number of tokens to keep of each text."""
    second_size = second or 0
    if first + second_size <= room:
        return first, second_size
    if second is None:
        if strategy == "only_second":
            raise UsageError("cannot truncate 'only_second': there is only one text")
        return room, 0
    if strategy == "longest_first":
        short = min(first, second_size, room // 2)
        long = room - short
        return (short, long) if first <= second_size else (long, short)
    truncatable, fixed_size = (first, second_size) if strategy == "only_first" else (second_size, first)
    if room <= fixed_size:
        name = "second" if strategy == "only_first" else "first"
        raise DataError(f"cannot truncate '{strategy}': the {name} text has {fixed_size} tokens, the limit is {room}")
    size = min(truncatable, room - fixed_size)
    return (size, fixed_size) if strategy == "only_first" else (fixed_size, size)


def _iter_windows(n: int, max_tokens: int, stride: int, side: Side) -> Iterator[tuple[int, int]]:
    """Yield windows of at most `max_tokens` of n tokens that overlap by `stride`; the one to keep comes first."""
    if n <= max_tokens or not max_tokens:
        yield 0, min(n, max_tokens)
        return
    if stride >= max_tokens:
        raise UsageError(f"stride must be less than the window of {max_tokens} tokens, got {stride}")
    for start in range(0, n, max_tokens - stride):
        stop = min(start + max_tokens, n)
        yield (start, stop) if side == "right" else (n - stop, n - start)
        if stop == n:
            return


def _parse_layout(layout: str, ids: dict[str, int]) -> Iterator[SpecialPart | TextPart]:
    for word in layout.split():
        name, _, segment = word.rpartition(":") if word[-2:-1] == ":" else (word, "", "0")
        if name in ("$A", "$B"):
            yield TextPart(text="a" if name == "$A" else "b", segment=int(segment))
        else:
            yield SpecialPart(token=ids[name], segment=int(segment))
