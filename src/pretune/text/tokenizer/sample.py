"""Sample of a corpus that fits into memory: the same blocks for the same corpus on any machine.

Texts are split into blocks, and each block draws a number that depends only on the seed and its position. The blocks
with the smallest numbers stay, up to the limit; one pass finds them and never holds more than the limit.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator

from pretune.core.seed import mix
from pretune.text.tokenizer.units import replace_surrogates, split_pieces

BLOCK_CHARACTERS = 8192
MAX_WORD_LENGTH = 512
"""Longer words are split: they are data rather than words, and counting pairs of their parts would take hours."""


class TextSample:
    """Blocks of text, at most `limit` bytes of UTF-8, in the order of the corpus."""

    def __init__(
        self, texts: Iterable[str], limit: int, seed: int = 0, progress: Callable[[int], None] | None = None
    ) -> None:
        """Read texts and sample blocks; `progress` is called with the number of bytes read so far."""
        self.total_bytes = self.sample_bytes = 0
        heap: list[tuple[int, int, bytes]] = []  # negative keys: the largest is popped first
        threshold = 2**64
        for position, block in enumerate(_iter_blocks(texts)):
            data = block.encode()
            self.total_bytes += len(data)
            key = mix(seed, position)
            if key < threshold:
                heapq.heappush(heap, (-key, position, data))
                self.sample_bytes += len(data)
                while self.sample_bytes > limit:
                    negative_key, _, dropped_block = heapq.heappop(heap)
                    self.sample_bytes -= len(dropped_block)
                    threshold = min(threshold, -negative_key)
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
