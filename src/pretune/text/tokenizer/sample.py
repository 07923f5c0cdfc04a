"""Sample of a corpus that fits into memory, and the counts of its words and characters, from which kinds are trained.

The sample has the same blocks for the same corpus on any machine. Texts are split into blocks, and each block draws a
number that depends only on the seed and its position. The blocks with the smallest numbers stay, up to the limit; one
pass finds them and never holds more than the limit.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from tokenizers import Tokenizer as Raw

from pretune.core.seed import mix
from pretune.text.tokenizer.cache import replace_surrogates, split_pieces

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


MAX_WORDS = 2_000_000
"""Maximum number of distinct words while counting; beyond it, words seen only once are dropped."""
ALPHABET_COVERAGE = 0.9999
"""Share of all characters that the alphabet covers, unless its size is given."""


def count_words(blocks: Iterable[str], raw: Raw) -> Counter[str]:
    """Count words as produced by the tokenizer's normalizer and pre-tokenizer."""
    rough: Counter[str] = Counter()
    for block in blocks:
        rough.update(block.split())
        if len(rough) > MAX_WORDS:
            rough = Counter({word: count for word, count in rough.items() if count > 1})
    counts: Counter[str] = Counter()
    for word, count in rough.items():
        normal = raw.normalizer.normalize_str(word) if raw.normalizer is not None else word
        for part, _ in raw.pre_tokenizer.pre_tokenize_str(normal):
            counts[part] += count
    return counts


def count_characters(blocks: Iterable[str], raw: Raw) -> Counter[str]:
    """Count characters, including white space."""
    counts: Counter[str] = Counter()
    for block in blocks:
        counts.update(raw.normalizer.normalize_str(block) if raw.normalizer is not None else block)
    return counts


def rank_by_count(counts: Mapping[str, int], min_count: int = 1) -> list[str]:
    """Return keys by descending count; ties in lexicographic order."""
    return [key for key, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])) if count >= min_count]


def choose_alphabet(
    counts: Mapping[str, int], room: int, size: int | None, prices: Mapping[str, int] | None = None
) -> list[str]:
    """Choose the characters of the alphabet, most frequent first: `size` of them, or enough to cover nearly all text.

    Their prices (1 by default), the number of pieces that a character needs, sum to at most `room`.
    """
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        for letter in word:
            letters[letter] += count
    total, covered_count = sum(letters.values()), 0
    alphabet: list[str] = []
    for letter in rank_by_count(letters):
        price = 1 if prices is None else prices.get(letter, 1)
        if price > room or (covered_count >= ALPHABET_COVERAGE * total if size is None else len(alphabet) >= size):
            break
        alphabet.append(letter)
        room -= price
        covered_count += letters[letter]
    return alphabet
