"""A sample of a corpus that fits into memory: the same blocks for the same corpus, whatever the machine.

Texts are cut into blocks, and each block draws a number that depends on the seed and its place alone. The blocks with
the smallest numbers stay, as many as the limit allows; one pass finds them, and never holds more than the limit.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator

from pretune.core.seed import mix
from pretune.text.tokenizer.units import replace_surrogates, split_pieces

BLOCK_CHARACTERS = 8192
MAX_WORD_LENGTH = 512
"""Longer words are cut: they are data in disguise, and pairs of their parts would be counted for hours."""


class TextSample:
    """Blocks of text, at most `limit` bytes of UTF-8, in the order of the corpus."""

    def __init__(
        self, texts: Iterable[str], limit: int, seed: int = 0, progress: Callable[[int], None] | None = None
    ) -> None:
        """`tell` hears how many bytes have been read so far, and once more at the end."""
        self.total_bytes = self.sample_bytes = 0
        heap: list[tuple[int, int, bytes]] = []  # the largest number first, hence the minus
        bar = 2**64
        for place, block in enumerate(_iter_blocks(texts)):
            data = block.encode()
            self.total_bytes += len(data)
            key = mix(seed, place)
            if key < bar:
                heapq.heappush(heap, (-key, place, data))
                self.sample_bytes += len(data)
                while self.sample_bytes > limit:
                    out, _, gone = heapq.heappop(heap)
                    self.sample_bytes -= len(gone)
                    bar = min(bar, -out)
            if progress is not None:
                progress(self.total_bytes)
        if progress is not None:
            progress(self.total_bytes)
        self._blocks = [data for _, _, data in sorted(heap, key=lambda entry: entry[1])]

    def __iter__(self) -> Iterator[str]:
        return (block.decode() for block in self._blocks)


def _iter_blocks(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for block in split_pieces(replace_surrogates(text), BLOCK_CHARACTERS):
            if max(map(len, block.split()), default=0) > MAX_WORD_LENGTH:
                words = (
                    word[i : i + MAX_WORD_LENGTH]
                    for word in block.split()
                    for i in range(0, len(word), MAX_WORD_LENGTH)
                )
                yield from split_pieces(" ".join(words), BLOCK_CHARACTERS)
            elif not block.isspace() and block:
                yield block
