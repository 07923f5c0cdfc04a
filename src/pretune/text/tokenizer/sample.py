"""A sample of a corpus that fits into memory: the same blocks for the same corpus, whatever the machine.

Texts are cut into blocks, and each block draws a number that depends on the seed and its place alone. The blocks with
the smallest numbers stay, as many as the limit allows; one pass finds them, and never holds more than the limit.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator

from pretune.core.seed import mix
from pretune.text.tokenizer.units import pieces, valid

BLOCK = 8192
LONGEST_WORD = 512
"""Longer words are cut: they are data in disguise, and pairs of their parts would be counted for hours."""


class Sample:
    """Blocks of text, at most `limit` bytes of UTF-8, in the order of the corpus."""

    def __init__(
        self, texts: Iterable[str], limit: int, seed: int = 0, tell: Callable[[int], None] | None = None
    ) -> None:
        """`tell` hears how many bytes have been read so far, and once more at the end."""
        self.seen = self.kept = 0
        heap: list[tuple[int, int, bytes]] = []  # the largest number first, hence the minus
        bar = 2**64
        for place, block in enumerate(_blocks(texts)):
            data = block.encode()
            self.seen += len(data)
            key = mix(seed, place)
            if key < bar:
                heapq.heappush(heap, (-key, place, data))
                self.kept += len(data)
                while self.kept > limit:
                    out, _, gone = heapq.heappop(heap)
                    self.kept -= len(gone)
                    bar = min(bar, -out)
            if tell is not None:
                tell(self.seen)
        if tell is not None:
            tell(self.seen)
        self._blocks = [data for _, _, data in sorted(heap, key=lambda entry: entry[1])]

    def __iter__(self) -> Iterator[str]:
        return (block.decode() for block in self._blocks)


def _blocks(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for block in pieces(valid(text), BLOCK):
            if max(map(len, block.split()), default=0) > LONGEST_WORD:
                words = (
                    word[i : i + LONGEST_WORD] for word in block.split() for i in range(0, len(word), LONGEST_WORD)
                )
                yield from pieces(" ".join(words), BLOCK)
            elif not block.isspace() and block:
                yield block
