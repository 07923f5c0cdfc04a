"""Counts of words and characters in a sample: what all kinds but byte pairs are learned from."""

from collections import Counter
from collections.abc import Iterable, Mapping, Set

from tokenizers import Tokenizer as Raw

MAX_WORDS = 2_000_000
"""Distinct words kept while counting; when there are more, those seen once so far are forgotten."""
ALPHABET_COVERAGE = 0.9999
"""The share of all characters that the alphabet covers, unless its size is given."""


def count_words(blocks: Iterable[str], raw: Raw) -> Counter[str]:
    """How often each word occurs, as the tokenizer's normaliser and pre-tokenizer give them."""
    rough: Counter[str] = Counter()
    for block in blocks:
        rough.update(block.split())
        if len(rough) > MAX_WORDS:
            rough = Counter({word: count for word, count in rough.items() if count > 1})
    found: Counter[str] = Counter()
    for word, count in rough.items():
        normal = raw.normalizer.normalize_str(word) if raw.normalizer is not None else word
        for part, _ in raw.pre_tokenizer.pre_tokenize_str(normal):
            found[part] += count
    return found


def count_characters(blocks: Iterable[str], raw: Raw) -> Counter[str]:
    """How often each character occurs, white space included."""
    found: Counter[str] = Counter()
    for block in blocks:
        found.update(raw.normalizer.normalize_str(block) if raw.normalizer is not None else block)
    return found


def rank_by_count(counts: Mapping[str, int], min_count: int = 1) -> list[str]:
    """The most frequent first, and equally frequent ones in the order of their characters."""
    return [key for key, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])) if count >= min_count]


def choose_alphabet(
    counts: Mapping[str, int], room: int, size: int | None, prices: Mapping[str, int] | None = None
) -> list[str]:
    """The characters to have pieces for, most frequent first: `size` of them, or enough to cover nearly all text.

    Their prices (1 by default), the number of pieces that a character needs, add up to `room` at most.
    """
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        for letter in word:
            letters[letter] += count
    total, covered = sum(letters.values()), 0
    found: list[str] = []
    for letter in rank_by_count(letters):
        price = 1 if prices is None else prices.get(letter, 1)
        if price > room or (covered >= ALPHABET_COVERAGE * total if size is None else len(found) >= size):
            break
        found.append(letter)
        room -= price
        covered += letters[letter]
    return found


def find_inner_characters(counts: Iterable[str]) -> Set[str]:
    """The characters that occur other than first in a word."""
    return {letter for word in counts for letter in word[1:]}
