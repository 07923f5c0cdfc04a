"""A stream of text into documents at newlines, in bounded memory: one per file, per block or per line.

A block ends at an empty line, one with nothing in it. A line of spaces does not end it: WikiText and the UDHR put such
lines between the paragraphs of one document.
"""

from collections.abc import Iterable, Iterator

from pretune.text.corpora.document import MAX_CHARACTERS, find_cut

SEPARATORS = {"file": "", "block": "\n\n", "line": "\n"}
"""What ends a document, for each way to cut plain text."""


def split_documents(
    chunks: Iterable[str], separator: str, line: int = 1, max_characters: int = MAX_CHARACTERS
) -> Iterator[tuple[str, int, bool]]:
    """Documents as (text, line it starts on, whether it goes on in the next one); texts may be empty or blank.

    >>> list(split_documents(["one\\ntwo", "\\n\\nthree"], "\\n\\n"))
    [('one\\ntwo', 1, False), ('three', 4, False)]

    The result does not depend on how the text is cut into chunks. `line` is the number of the first line.
    """
    parts: list[str] = []  # the document that is open
    size = 0
    start = line  # the line it starts on
    held = 0  # newlines after it: they are part of it only if more of it follows
    for chunk in chunks:
        body = chunk.rstrip("\n")
        if not body:
            held += len(chunk)
            continue
        after = len(chunk) - len(body)
        if held:
            line += max(
                0, held - max_characters
            )  # NOTE: megabytes of newlines are cut short, or they would fill the memory
            body = "\n" * min(held, max_characters) + body
        held = after
        texts = body.split(separator) if separator else [body]
        last = len(texts) - 1
        for index, text in enumerate(texts):
            if parts:
                if text:
                    parts.append(text)
                    size += len(text)
            else:
                whole = text
                if separator != "\n":
                    whole = text.lstrip("\n")
                start = line + len(text) - len(whole)
                if index < last and len(whole) <= max_characters:  # the common case: all of a document at once
                    if whole or separator == "\n":
                        yield whole, start, False
                    line += 1 if separator == "\n" else text.count("\n") + 2
                    continue
                parts, size = [whole], len(whole)
            line += text.count("\n")
            while size > max_characters:
                joined = "".join(parts)
                at = find_cut(joined, max_characters)
                yield joined[:at], start, True
                start += joined.count("\n", 0, at)
                parts, size = [joined[at:]], size - at
            if index < last:
                line += len(separator)
                yield "".join(parts), start, False
                parts, size = [], 0
    if size:
        yield "".join(parts), start, False
