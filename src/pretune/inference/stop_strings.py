"""Stop strings, independent of token boundaries."""

from collections.abc import Sequence

from pretune.core.errors import UsageError


class StopStrings:
    """Strings that end a text when they occur in it.

    >>> stops = StopStrings(["\\n\\n", "END"])
    >>> stops.truncate("one\\ntwo END three"), stops.truncate("one")
    (('one\\ntwo ', True), ('one', False))
    >>> stops.count_stable("one E"), stops.count_stable("one\\n")
    (4, 3)
    >>> StopStrings("\\n", after_text=True).truncate("\\n one\\ntwo")
    ('\\n one', True)

    With `after_text` they only count after the first non-whitespace character.
    """

    def __init__(self, texts: Sequence[str] = (), *, after_text: bool = False) -> None:
        if isinstance(texts, str):
            texts = [texts]
        if any(not text for text in texts):
            raise UsageError("a stop string must not be empty")
        self.texts, self.after_text = tuple(texts), after_text

    def truncate(self, text: str) -> tuple[str, bool]:
        """Truncate a text before its first stop string; returns it, and True if there was one."""
        start = len(text) - len(text.lstrip()) if self.after_text else 0
        positions = [position for position in (text.find(stop, start) for stop in self.texts) if position >= 0]
        return (text[: min(positions)], True) if positions else (text, False)

    def count_stable(self, text: str) -> int:
        """Count the characters of an unfinished text that cannot become part of a stop string."""
        max_size = max((len(stop) - 1 for stop in self.texts), default=0)
        for size in range(min(max_size, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self.texts):
                return len(text) - size
        return len(text)
