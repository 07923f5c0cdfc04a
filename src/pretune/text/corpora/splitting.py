"""Splitting of a text stream into documents at newlines, in bounded memory: per file, per block or per line.

A block ends at an empty line. A line of spaces does not end it: WikiText and the UDHR have such lines between the
paragraphs of one document.
"""

from collections.abc import Iterable, Iterator

from pretune.text.corpora.document import MAX_CHARACTERS, find_cut

SEPARATORS = {"file": "", "block": "\n\n", "line": "\n"}
"""End of a document, for each unit of plain text."""


def split_documents(
    chunks: Iterable[str], separator: str, line: int = 1, max_characters: int = MAX_CHARACTERS
) -> Iterator[tuple[str, int, bool]]:
    """Yield documents as (text, first line, whether it continues in the next one); texts may be empty or blank.

    >>> list(split_documents(["one\\ntwo", "\\n\\nthree"], "\\n\\n"))
    [('one\\ntwo', 1, False), ('three', 4, False)]

    The result does not depend on the chunks. `line` is the number of the first line.
    """
    parts: list[str] = []  # of the current document
    size = 0
    start = line  # its first line
    pending_newlines = 0  # part of it only if more of it follows
    for chunk in chunks:
        body = chunk.rstrip("\n")
        if not body:
            pending_newlines += len(chunk)
            continue
        trailing_newlines = len(chunk) - len(body)
        if pending_newlines:
            # NOTE: megabytes of newlines are truncated, or they would fill the memory.
            line += max(0, pending_newlines - max_characters)
            body = "\n" * min(pending_newlines, max_characters) + body
        pending_newlines = trailing_newlines
        texts = body.split(separator) if separator else [body]
        last = len(texts) - 1
        for index, text in enumerate(texts):
            if parts:
                if text:
                    parts.append(text)
                    size += len(text)
            else:
                document = text
                if separator != "\n":
                    document = text.lstrip("\n")
                start = line + len(text) - len(document)
                if index < last and len(document) <= max_characters:  # common case: a complete document
                    if document or separator == "\n":
                        yield document, start, False
                    line += 1 if separator == "\n" else text.count("\n") + 2
                    continue
                parts, size = [document], len(document)
            line += text.count("\n")
            while size > max_characters:
                full_text = "".join(parts)
                cut = find_cut(full_text, max_characters)
                yield full_text[:cut], start, True
                start += full_text.count("\n", 0, cut)
                parts, size = [full_text[cut:]], size - cut
            if index < last:
                line += len(separator)
                yield "".join(parts), start, False
                parts, size = [], 0
    if size:
        yield "".join(parts), start, False
