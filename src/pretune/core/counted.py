"""How many of something, as one says it."""


def counted(count: int, things: str) -> str:
    """Return a number with its noun, which is given in the plural.

    >>> counted(2000, "documents"), counted(1, "documents"), counted(1, "queries"), counted(1, "classes")
    ('2,000 documents', '1 document', '1 query', '1 class')
    """
    if count != 1:
        return f"{count:,} {things}"
    if things.endswith("ies"):
        return f"1 {things[:-3]}y"
    return f"1 {things.removesuffix('es' if things.endswith('sses') else 's')}"
