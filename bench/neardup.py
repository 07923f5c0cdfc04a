"""Near-duplicate detection: recall by Jaccard similarity, speed and memory.

    PYTHONPATH=src python bench/neardup.py [--copies 300] [--threshold 0.8]

Copies of 400 words of wikipedia-en/valid with random words replaced; similarity is the Jaccard similarity of 5-grams of
words. Speed is in CPU time and includes signatures. Also counts the duplicates among `builtin:reviews` as
`pretune prepare --near` does. Prints JSON.
"""

import argparse
import json
import lzma
import os
import random
import time
from collections import defaultdict
from pathlib import Path

from pretune.text.corpora.builtin import Reviews
from pretune.text.neardup import NearDuplicates

DATA = Path(os.environ.get("PRETUNE_DATA") or Path(__file__).parents[2] / "shared" / "data")
WORDS = 400


def compute_jaccard(one: list[str], other: list[str]) -> float:
    """Return the Jaccard similarity of the 5-grams of two word lists."""
    first, second = ({tuple(words[at : at + 5]) for at in range(len(words) - 4)} for words in (one, other))
    return len(first & second) / len(first | second)


def measure_recall(text: str, copies: int, threshold: float) -> dict[str, dict[str, float]]:
    """Return the share of copies found, by similarity in steps of 0.05."""
    words, rng = text.split(), random.Random(0)
    found: dict[float, list[bool]] = defaultdict(list)
    for _ in range(copies):
        at = rng.randrange(len(words) - WORDS)
        page, rate = words[at : at + WORDS], rng.uniform(0, 0.08)
        other = [f"changed{rng.randrange(10**9)}" if rng.random() < rate else word for word in page]
        near = NearDuplicates(threshold)
        near.add(near.compute_signature(" ".join(page)))
        found[round(compute_jaccard(page, other) * 20) / 20].append(near.add(near.compute_signature(" ".join(other))))
    return {f"{at:.2f}": {"found": sum(hits) / len(hits), "copies": len(hits)} for at, hits in sorted(found.items())}


def measure_deduplication(texts: list[str], threshold: float) -> dict[str, float]:
    """Return duplicates, speed and memory of deduplicating the texts."""
    near, begun = NearDuplicates(threshold), time.process_time()
    dropped = sum(near.add(near.compute_signature(text)) for text in texts)
    seconds, size = time.process_time() - begun, sum(len(text.encode()) for text in texts)
    return {
        "texts": len(texts),
        "bytes_each": round(size / len(texts)),
        "duplicates": dropped,
        "mb_per_second": round(size / 1e6 / seconds, 2),
        "memory_each": round(near.bytes / (len(texts) - dropped)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=300)
    parser.add_argument("--threshold", type=float, default=0.8)
    given = parser.parse_args()
    with lzma.open(next((DATA / "corpora/wikipedia-en").glob("valid*.xz")), "rt", encoding="utf-8") as file:
        text = file.read()
    reviews = [text for text, _ in Reviews().read_examples()]
    distinct = [*dict.fromkeys(" ".join(text.split()) for text in reviews)]
    size = 16_000  # characters, about a long page of Wikipedia
    pages = [text[at : at + size] for at in range(0, len(text), size)]
    result = {
        "threshold": given.threshold,
        "recall": measure_recall(text, given.copies, given.threshold),
        "wikipedia": measure_deduplication(pages, given.threshold),
        "reviews": {"exact": len(reviews) - len(distinct), **measure_deduplication(distinct, given.threshold)},
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
