"""Ranges of a large uncompressed file for parallel readers: split after newlines, between documents."""

import re

from pretune.text.corpora.streams import read_chunks

_ENDS = {"\n": re.compile(rb"\n"), "\n\n": re.compile(rb"\n\r?\n")}  # end of a line, and of a block
_OVERLAP_BYTES = 2  # a separator may start this many bytes before a chunk


def find_cut_points(path: str, name: str, separator: str, n_bytes: int) -> list[tuple[int, int | None, int]]:
    """Return consecutive ranges (first byte, byte to stop before, number of the first line) of at least `n_bytes` each.

    The file is read once, for the line numbers. NOTE: correct for UTF-8 only, where the newline byte is never part of
    another character.
    """
    end = _ENDS[separator]
    starts, lines = [0], [1]
    position, line, last = 0, 1, b""  # byte and line reached, and the preceding bytes
    for chunk in read_chunks(path, name, ""):
        data, counted_bytes = last + chunk, len(last)  # lines are counted up to here
        begin = position - len(last)  # file position of `data`
        while match := end.search(data, max(0, starts[-1] + n_bytes - len(separator) - begin)):
            line += _count_newlines(data[:counted_bytes], data[counted_bytes : match.end()])
            counted_bytes = match.end()
            starts.append(begin + counted_bytes)
            lines.append(line)
        line += _count_newlines(data[:counted_bytes], data[counted_bytes:])
        position += len(chunk)
        last = data[-_OVERLAP_BYTES:]
    if starts[-1] == position and position:
        starts.pop()
    return [*zip(starts, [*starts[1:], None], lines[: len(starts)], strict=True)]


def _count_newlines(previous: bytes, data: bytes) -> int:
    """Count the lines that end in `data`: at "\\n", "\\r\\n" and "\\r", as they are decoded."""
    count = data.count(b"\n")
    if b"\r" in data or previous.endswith(b"\r"):
        count += data.count(b"\r") - data.count(b"\r\n") - (previous.endswith(b"\r") and data.startswith(b"\n"))
    return count
