"""Held-out documents for validation, chosen by a hash of their content, so the split is the same everywhere.

    >>> [is_held_out(text, 0.5) for text in ("one", "two", "three", "four")]
    [True, False, True, True]

Order, neighbours, machine and parallel reading do not matter, and equal texts are always on the same side.
"""

import hashlib
from collections.abc import Iterable, Iterator

from pretune.core.errors import UsageError
from pretune.text.corpora.document import Document


def is_held_out(text: str, share: float) -> bool:
    """Return whether a text is in the held-out share (0 to 1), by a 64-bit hash of its content (BLAKE2b)."""
    if not 0 <= share <= 1:
        raise UsageError(f"the held-out share must be from 0 to 1, got {share}")
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def flag_held_out(documents: Iterable[Document], share: float) -> Iterator[tuple[Document, bool]]:
    """Yield every document with whether it is held out; the pieces of a long one follow the first piece."""
    held_out, is_continued = False, False
    for document in documents:
        if not is_continued:
            held_out = is_held_out(document.text, share)
        is_continued = document.is_continued
        yield document, held_out
