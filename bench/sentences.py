"""Sentence boundaries: our rules beside a naive split, on the test set of UD English EWT (gold: its sentences).

    PYTHONPATH=src python bench/sentences.py [--data ../shared/data/tasks/ud_ewt] [--part test]

Each document is its sentences joined by single spaces, so no line break helps; a second row keeps the paragraphs of the
original as lines. A boundary is a place where a sentence starts, the document's first not counted. The rules were made
looking at `train` and `dev` only.
"""

import argparse
import gzip
import os
import time
from collections.abc import Callable
from pathlib import Path

from pretune.text.sentences import SPLITTERS

DATA = Path(os.environ.get("PRETUNE_DATA") or Path(__file__).parents[2] / "shared" / "data") / "tasks" / "ud_ewt"


def read(path: Path, paragraphs: bool) -> list[tuple[str, set[int]]]:
    """Documents with the offsets at which their sentences start, 0 left out."""
    documents: list[tuple[str, set[int]]] = []
    text, starts, joint = "", set[int](), " "
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.startswith("# newdoc"):
                documents.append((text, starts))
                text, starts = "", set()
            elif line.startswith("# newpar") and paragraphs:
                joint = "\n"
            elif line.startswith("# text = "):
                if text:
                    text += joint
                    starts.add(len(text))
                text, joint = text + line.removeprefix("# text = ").strip(), " "
    return [*documents[1:], (text, starts)]


def score(split: Callable[[str, str], list[int]], documents: list[tuple[str, set[int]]]) -> tuple[float, float, float]:
    """Precision, recall and F1 of boundaries."""
    found = [({*split(text, "en")} - {0}, gold) for text, gold in documents]
    right = sum(len(ours & gold) for ours, gold in found)
    precision = right / sum(len(ours) for ours, _ in found)
    recall = right / sum(len(gold) for _, gold in found)
    return precision, recall, 2 * precision * recall / (precision + recall)


def main() -> None:
    """Print both rows for each splitter, and their speed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--part", choices=["train", "dev", "test"], default="test")
    options = parser.parse_args()
    path = options.data / f"en_ewt-ud-{options.part}.conllu.gz"
    if not path.exists():
        print(f"skipped: no {path}; set PRETUNE_DATA or --data")
        return
    for paragraphs in (False, True):
        documents = read(path, paragraphs)
        size = sum(len(text) for text, _ in documents)
        boundaries = sum(len(gold) for _, gold in documents)
        print(
            f"{path.name}: {len(documents)} documents, {boundaries} boundaries, {'lines' if paragraphs else 'spaces'}"
        )
        for name in ("naive", "rules"):
            split = SPLITTERS.get(name)
            times = []
            for _ in range(5):
                begin = time.process_time()
                values = score(split, documents)
                times.append(time.process_time() - begin)
            precision, recall, f1 = values
            speed = size / min(times) / 1e6
            print(f"  {name:6} precision {precision:.4f}  recall {recall:.4f}  F1 {f1:.4f}  {speed:.1f} MB/s")


if __name__ == "__main__":
    main()
