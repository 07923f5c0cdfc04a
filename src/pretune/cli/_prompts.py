"""Reading of prompts: from the command line, a file, or standard input."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pretune.core.errors import DataError, UsageError, explain_missing


def unescape(text: str) -> str:
    r"""Replace the escapes \n, \t and \\ of a shell argument by the characters they stand for.

    >>> unescape(r"one\ntwo"), unescape(r"C:\\new")
    ('one\ntwo', 'C:\\new')
    """
    return re.sub(r"\\([nt\\])", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), text)


def read_prompts(texts: Sequence[str], source: str | None, noun: str) -> list[str]:
    """Return the texts, or the lines of a file (`-`: standard input); raise where one is empty."""
    if bool(texts) == (source is not None):
        raise UsageError(f"pass a {noun} or --input FILE (- is standard input), not both")
    if source is None:
        for number, text in enumerate(texts):
            if not text:
                raise UsageError(f"{noun} {number + 1} is empty")
        return list(texts)
    name = "standard input" if source == "-" else source
    lines = _read(source, name).splitlines()
    if not lines:
        raise DataError(f"{name}: empty; expected one {noun} per line")
    for number, line in enumerate(lines):
        if not line.strip():
            raise DataError(f"{name}: line {number + 1} is empty; expected one {noun} per line")
    return lines


def _read(source: str, name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except FileNotFoundError:
        raise DataError(f"{name}: {explain_missing(source)}") from None
    except (OSError, ValueError) as fault:  # ValueError: a null byte in the name
        raise DataError(f"{name}: cannot be read: {getattr(fault, 'strerror', None) or fault}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise DataError(f"{name}: not UTF-8 at byte {fault.start}") from None
