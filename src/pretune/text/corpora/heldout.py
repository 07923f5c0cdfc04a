"""Which documents are held out for validation: a function of their content, so the cut is the same wherever it is made.

    >>> [is_held_out(text, 0.5) for text in ("one", "two", "three", "four")]
    [True, False, True, True]

Order, neighbours, machines and reading in parallel do not matter, and equal texts always land on the same side.
"""

import hashlib
from collections.abc import Iterable, Iterator

from pretune.core.errors import UsageError
from pretune.text.corpora.document import Document


def is_held_out(text: str, share: float) -> bool:
    """Whether a text belongs to the share (0 to 1) that is held out, by a 64-bit hash of its content (BLAKE2b)."""
    if not 0 <= share <= 1:
        raise UsageError(f"the share to hold out must be from 0 to 1, found {share}")
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def flag_held_out(documents: Iterable[Document], share: float) -> Iterator[tuple[Document, bool]]:
    """Every document with whether it is held out; the pieces of a long one follow their first."""
    out, more = False, False
    for document in documents:
        if not more:
            out = is_held_out(document.text, share)
        more = document.is_continued
        yield document, out
