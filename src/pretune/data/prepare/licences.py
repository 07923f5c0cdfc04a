"""Licences of sources, as stated by the user: one text for all, or `PATTERN=TEXT` for matching sources.

--licence "CC BY-SA 4.0"                                     # every source without a known licence
--licence "books/*=public domain" --licence "news=own"       # patterns match source names as given on the command line
"""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from pretune.core.errors import UsageError, suggest


def state_licences(sources: Sequence[Mapping[str, Any]], statements: Sequence[str]) -> list[dict[str, Any]]:
    """Return the descriptions of sources with their licences set.

    A `PATTERN=TEXT` statement overrides the licence of every matching source; the last matching pattern wins. A text
    without a pattern applies only to sources without a known licence.

    Raises:
        UsageError: A statement has no text, or its pattern matches no source.

    >>> state_licences([{"name": "a", "licence": None}, {"name": "b", "licence": None}], ["MIT", "b=own"])
    [{'name': 'a', 'licence': 'MIT'}, {'name': 'b', 'licence': 'own'}]
    """
    names = [str(source["name"]) for source in sources]
    licences = [source["licence"] for source in sources]
    for statement in sorted(statements, key=lambda text: "=" in text):  # stable: first the texts without a pattern
        pattern, equals, text = statement.partition("=") if "=" in statement else ("*", "", statement)
        if not text.strip():
            raise UsageError(
                f"licence '{statement[:60]}' has no text; write TEXT, or PATTERN=TEXT for matching sources"
            )
        numbers = [number for number, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern)]
        if not numbers:
            hint = suggest(pattern, names) or "; write *=TEXT for all sources"
            raise UsageError(f"licence '{statement[:60]}': no source matches '{pattern[:60]}'{hint}")
        for number in numbers:
            if equals or sources[number]["licence"] is None:
                licences[number] = text.strip()
    return [{**source, "licence": licence} for source, licence in zip(sources, licences, strict=True)]
