"""Counts and lists of names in messages."""

import itertools
from collections.abc import Collection


def format_count(count: int, plural_noun: str) -> str:
    """Return a number with its noun, which is given in the plural.

    >>> format_count(2000, "documents"), format_count(1, "documents"), format_count(1, "queries"), format_count(1, "classes")
    ('2,000 documents', '1 document', '1 query', '1 class')
    """
    if count != 1:
        return f"{count:,} {plural_noun}"
    if plural_noun.endswith("ies"):
        return f"1 {plural_noun[:-3]}y"
    return f"1 {plural_noun.removesuffix('es' if plural_noun.endswith('sses') else 's')}"


def join_names(names: Collection[object], limit: int = 20) -> str:
    """Join names with commas; beyond `limit` give only their number.

    >>> join_names(["a", "b"]), join_names(range(200), limit=3)
    ('a, b', '0, 1, 2 … and 197 more')
    """
    shown = ", ".join(str(name) for name in itertools.islice(names, limit))
    return shown if len(names) <= limit else f"{shown} … and {len(names) - limit:,} more"
