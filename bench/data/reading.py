"""Speed of reading a corpus, compared with Python's own modules on the same file.

    python -m bench.data.reading [--megabytes 60] [--out result.json]

The text is wikipedia-en/valid of the shared corpora, repeated. The peer only splits or parses: it checks no encoding,
counts no lines and builds no documents. Prints MB per second of CPU time on one core (best of three alternated rounds),
the ratio, and the peak memory of a process that reads the file with pretune and keeps nothing.
"""

import csv
import gzip
import io
import json
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from bench import common
from pretune.text.corpora import open_corpus

PEAK_MEMORY = """
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


CASES: tuple[tuple[str, str, Callable[[Path], Iterable[object]]], ...] = (
    ("a.txt", "block", read_lines),
    ("a.txt", "line", read_lines),
    ("a.txt", "file", read_lines),
    ("a.jsonl", "auto", read_jsonl),
    ("a.csv", "auto", read_csv),
    ("a.txt.gz", "auto", read_gzip),
)


def write_files(folder: Path, texts: list[str]) -> None:
    """Write the texts in every format."""
    (folder / "a.txt").write_text("\n\n".join(texts))
    (folder / "a.jsonl").write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts))
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([("id", "text"), *((1, text) for text in texts)])
    (folder / "a.csv").write_text(buffer.getvalue(), newline="")
    (folder / "a.txt.gz").write_bytes(gzip.compress("\n\n".join(texts).encode(), 3))


def main() -> None:
    """Measure each file format and print a line for it."""
    parser = common.build_parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=60)
    options = parser.parse_args()
    if not common.find_data("corpora/wikipedia-en/valid.txt.xz").exists():
        print(f"skipped: needs {common.find_data('corpora/wikipedia-en/valid.txt.xz')} (set PRETUNE_DATA)")
        return
    text = common.read_corpus("wikipedia-en/valid")
    texts = text.split("\n\n") * max(1, options.megabytes * 10**6 // len(text.encode()))
    size = len("".join(texts).encode()) / 1e6
    csv.field_size_limit(2**30)
    result: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), texts)
        for name, by, read in CASES:
            path = Path(folder) / name
            seconds = {
                side: min(times)
                for side, times in common.alternate(build_measurements(path, by, read), 3, warmup=0).items()
            }
            command = [sys.executable, "-c", PEAK_MEMORY, str(path), by]
            memory = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024
            rates = {side: size / value for side, value in seconds.items()}
            ratio = rates["pretune"] / rates["python"]
            print(
                f"{name:9} by {by:5} {rates['pretune']:6.0f} MB/s   python {rates['python']:6.0f} MB/s   "
                f"ratio {ratio:.2f}   {memory:.0f} MiB",
                flush=True,
            )
            result[f"{name} by {by}"] = {
                "megabytes_per_second": rates["pretune"],
                "python": rates["python"],
                "ratio": ratio,
                "mebibytes": memory,
            }
    common.write_result(result, options.out)


def build_measurements(path: Path, by: str, read: Callable[[Path], Iterable[object]]) -> dict[str, Callable[[], float]]:
    """Return functions that read the file with pretune and with Python, and return the CPU seconds."""

    def exhaust(iterate: Callable[[], Iterable[object]]) -> None:
        deque(iterate(), maxlen=0)

    ours = partial(exhaust, lambda: open_corpus([str(path)], by=by).read_documents())  # type: ignore[arg-type]
    theirs = partial(exhaust, lambda: read(path))
    return {"pretune": partial(common.measure_seconds, ours), "python": partial(common.measure_seconds, theirs)}


if __name__ == "__main__":
    main()
