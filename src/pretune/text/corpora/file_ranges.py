"""Where a large plain file may be cut so that several processes can read it: after newlines, between documents."""

import re

from pretune.text.corpora.streams import read_chunks

_ENDS = {"\n": re.compile(rb"\n"), "\n\n": re.compile(rb"\n\r?\n")}  # what ends a line, and a block
_OVERLAP_BYTES = 2  # a separator may begin this many bytes before the chunk that ends it


def find_cut_points(path: str, name: str, separator: str, n_bytes: int) -> list[tuple[int, int | None, int]]:
    """Consecutive stretches (first byte, byte to stop before, number of the first line) of at least `n_bytes` each.

    The file is read through once, for the line numbers. NOTE: right for UTF-8 only, where the byte of a newline is
    never part of another character.
    """
    end = _ENDS[separator]
    starts, lines = [0], [1]
    at, line, last = 0, 1, b""  # the byte and the line reached, and the bytes just before them
    for chunk in read_chunks(path, name, ""):
        data, done = last + chunk, len(last)  # lines are counted up to `done`
        begin = at - len(last)  # where in the file `data` lies
        while found := end.search(data, max(0, starts[-1] + n_bytes - len(separator) - begin)):
            line += _count_newlines(data[:done], data[done : found.end()])
            done = found.end()
            starts.append(begin + done)
            lines.append(line)
        line += _count_newlines(data[:done], data[done:])
        at += len(chunk)
        last = data[-_OVERLAP_BYTES:]
    if starts[-1] == at and at:
        starts.pop()
    return [*zip(starts, [*starts[1:], None], lines[: len(starts)], strict=True)]


def _count_newlines(previous: bytes, data: bytes) -> int:
    """How many lines end in `data`: at "\\n", "\\r\\n" and "\\r", as they are decoded."""
    count = data.count(b"\n")
    if b"\r" in data or previous.endswith(b"\r"):
        count += data.count(b"\r") - data.count(b"\r\n") - (previous.endswith(b"\r") and data.startswith(b"\n"))
    return count
