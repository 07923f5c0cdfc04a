"""How many of something, as one says it."""


def counted(count: int, things: str) -> str:
    """A number with its noun, which is given in the plural and loses its s where there is one.

    >>> counted(2000, "documents"), counted(1, "documents")
    ('2,000 documents', '1 document')
    """
    return f"{count:,} {things.removesuffix('s') if count == 1 else things}"
