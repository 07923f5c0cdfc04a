"""Text of at most ten million words: whole documents of some files, with a share of the words for each."""

import bz2
import gzip
import lzma
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

MAX_WORDS = 10_000_000
"""Limit of BabyLM's strict-small track: words between white space, all text of a run together."""
OPENERS = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}


def parse_source(text: str) -> tuple[Path, float]:
    """Parse "FILE_OR_FOLDER=SHARE"; the share is 1 by default.

    >>> parse_source("books=0.5")
    (PosixPath('books'), 0.5)
    """
    path, _, share = text.partition("=")
    return Path(path), float(share or 1.0)


def list_files(path: Path) -> list[Path]:
    """Return a text file, or those of a folder, compressed or not; files named `valid` or `test` are left out."""
    files = [path] if path.is_file() else sorted(path.rglob("*.txt*"))
    kept_files = [file for file in files if path.is_file() or not file.name.startswith(("valid", "test", "titles"))]
    if not kept_files:
        raise SystemExit(f"{path}: no .txt files")
    return kept_files


def read_documents(files: Sequence[Path]) -> Iterator[str]:
    """Yield documents, which blank lines separate."""
    for file in files:
        with OPENERS.get(file.suffix, open)(file, "rt", encoding="utf-8") as lines:
            document: list[str] = []
            for line in lines:
                if line.strip():
                    document.append(line)
                elif document:
                    yield "".join(document)
                    document = []
            if document:
                yield "".join(document)


def count_words(text: str) -> int:
    """Count the words between white space."""
    return len(text.split())


def write_corpus(sources: Mapping[Path, float], out: Path, *, words: int = MAX_WORDS, seed: int = 0) -> dict[str, int]:
    """Write a random selection of whole documents, shuffled, to `out`; returns the words of each source.

    Every source has its share of `words`, or all of its text if that is less. The sum never exceeds `words`.
    """
    if words > MAX_WORDS:
        raise SystemExit(f"{words:,} words are above the limit of {MAX_WORDS:,}")
    total_share, draw = sum(sources.values()), random.Random(seed)
    counts: dict[str, int] = {}
    selection: list[str] = []
    for path, share in sources.items():
        documents, room = list(read_documents(list_files(path))), int(words * share / total_share)
        draw.shuffle(documents)
        counts[str(path)] = 0
        for document in documents:
            size = count_words(document)
            if counts[str(path)] + size <= room:
                selection.append(document)
                counts[str(path)] += size
    draw.shuffle(selection)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n\n".join(text.rstrip() for text in selection) + "\n", encoding="utf-8")
    written_words = count_words(out.read_text(encoding="utf-8"))
    assert written_words == sum(counts.values()) <= words
    return counts
