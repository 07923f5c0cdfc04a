"""Texts that a verb is given: on the command line, in a file, or through a pipe."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pretune.core.errors import DataError, UsageError, explain_missing


def unescape(text: str) -> str:
    r"""A text as it is meant: \n is the end of a line and \t a tab, which a shell gives as they are typed; \\ is \.

    >>> unescape(r"one\ntwo"), unescape(r"C:\\new")
    ('one\ntwo', 'C:\\new')
    """
    return re.sub(r"\\([nt\\])", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), text)


def read_prompts(texts: Sequence[str], source: str | None, noun: str) -> list[str]:
    """The texts, or the lines of a file (`-`: standard input); none may be empty."""
    if bool(texts) == (source is not None):
        raise UsageError(f"give a {noun}, or --input with a file of them (- is standard input); not both")
    if source is None:
        for number, text in enumerate(texts):
            if not text:
                raise UsageError(f"{noun} {number + 1} is empty; write something")
        return list(texts)
    name = "standard input" if source == "-" else source
    lines = _read(source, name).splitlines()
    if not lines:
        raise DataError(f"{name}: nothing in it; there should be one {noun} in each line")
    for number, line in enumerate(lines):
        if not line.strip():
            raise DataError(f"{name}: line {number + 1} is empty; there should be one {noun} in each line")
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
