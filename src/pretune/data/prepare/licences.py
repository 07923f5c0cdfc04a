"""Licences of sources, as the user states them: one text for all, or `PATTERN=TEXT` for the sources it matches.

--licence "CC BY-SA 4.0"                                     # every source that states none of its own
--licence "books/*=public domain" --licence "news=own"       # patterns of the names as they were given
"""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from pretune.core.errors import UsageError, suggest


def state_licences(sources: Sequence[Mapping[str, Any]], statements: Sequence[str]) -> list[dict[str, Any]]:
    """Return descriptions of sources with the licences that are stated; a pattern goes before a text for all.

    Of several patterns that match a source the last counts. One that matches none is a UsageError.

    >>> state_licences([{"name": "a", "licence": None}, {"name": "b", "licence": None}], ["MIT", "b=own"])
    [{'name': 'a', 'licence': 'MIT'}, {'name': 'b', 'licence': 'own'}]
    """
    names = [str(source["name"]) for source in sources]
    licences = [source["licence"] for source in sources]
    for statement in sorted(statements, key=lambda text: "=" in text):  # stable: those for all first
        pattern, equals, text = statement.partition("=") if "=" in statement else ("*", "", statement)
        if not text.strip():
            raise UsageError(f"licence '{statement[:60]}' has no text; write TEXT, or PATTERN=TEXT for some sources")
        numbers = [number for number, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern)]
        if not numbers:
            hint = suggest(pattern, names) or "; write *=TEXT for all"
            raise UsageError(f"licence '{statement[:60]}': no source is called '{pattern[:60]}'{hint}")
        for number in numbers:
            if equals or sources[number]["licence"] is None:
                licences[number] = text.strip()
    return [{**source, "licence": licence} for source, licence in zip(sources, licences, strict=True)]
