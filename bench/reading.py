"""Speed of reading a corpus, compared with Python's own modules on the same file.

    PYTHONPATH=src python bench/reading.py [--megabytes 60] [--out result.json]

The text is wikipedia-en/valid of the shared corpora, repeated. The peer only splits or parses: it checks no encoding,
counts no lines and builds no documents. Prints MB per second of CPU time on one core (best of three alternated rounds),
the ratio, and the peak memory of a process that reads the file with pretune and keeps nothing.
"""

import argparse
import csv
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from pretune.text.corpora import open_corpus

DATA = Path(os.environ.get("PRETUNE_DATA") or Path(__file__).parents[2] / "shared" / "data")
MEMORY = """
import sys
from pretune.text.corpora import open_corpus
for document in open_corpus([sys.argv[1]], by=sys.argv[2]).read_documents():
    pass
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def read_lines(path: Path) -> Iterable[object]:
    """Read lines with `open`."""
    with path.open(encoding="utf-8") as file:
        yield from file


def read_jsonl(path: Path) -> Iterable[object]:
    """Read JSONL with `json`."""
    with path.open(encoding="utf-8") as file:
        yield from (json.loads(line) for line in file)


def read_csv(path: Path) -> Iterable[object]:
    """Read CSV with `csv`."""
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.reader(file)


def read_gzip(path: Path) -> Iterable[object]:
    """Read lines with `gzip`."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from file


def measure_seconds(*runs: Callable[[], Iterable[object]]) -> list[float]:
    """Return the best CPU seconds of three alternated rounds of each iterator."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(3):
        for run, found in zip(runs, times, strict=True):
            begin = time.process_time()
            for _ in run():
                pass
            found.append(time.process_time() - begin)
    return [min(found) for found in times]


def main() -> None:
    """Measure each file format and print a line for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    source = DATA / "corpora/wikipedia-en/valid.txt.xz"
    if not source.exists():
        print(f"skipped: needs {source} (set PRETUNE_DATA)")
        return
    with lzma.open(source, "rt", encoding="utf-8") as packed:
        text = packed.read()
    texts = text.split("\n\n") * max(1, options.megabytes * 10**6 // len(text.encode()))
    result: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "a.txt").write_text("\n\n".join(texts))
        (here / "a.jsonl").write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts))
        buffer = io.StringIO(newline="")
        csv.writer(buffer).writerows([("id", "text"), *((1, text) for text in texts)])
        (here / "a.csv").write_text(buffer.getvalue(), newline="")
        (here / "a.txt.gz").write_bytes(gzip.compress("\n\n".join(texts).encode(), 3))
        csv.field_size_limit(2**30)
        size = len("".join(texts).encode()) / 1e6
        cases = [("a.txt", "block", read_lines), ("a.txt", "line", read_lines), ("a.txt", "file", read_lines)]
        for name, by, other in [
            *cases,
            ("a.jsonl", "auto", read_jsonl),
            ("a.csv", "auto", read_csv),
            ("a.txt.gz", "auto", read_gzip),
        ]:
            path = here / name
            ours, theirs = measure_seconds(
                lambda: open_corpus([str(path)], by=by).read_documents(),  # type: ignore[arg-type]  # noqa: B023
                lambda: other(path),  # noqa: B023
            )
            command = [sys.executable, "-c", MEMORY, str(path), by]
            memory = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024
            print(
                f"{name:9} by {by:5} {size / ours:6.0f} MB/s   python {size / theirs:6.0f} MB/s   "
                f"ratio {theirs / ours:.2f}   {memory:.0f} MiB",
                flush=True,
            )
            rates = {"megabytes_per_second": size / ours, "python": size / theirs, "ratio": theirs / ours}
            result[f"{name} by {by}"] = {**rates, "mebibytes": memory}
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
