"""Texts at which writing stops, wherever token borders lie in them."""

from collections.abc import Sequence

from pretune.core.errors import UsageError


class StopStrings:
    """What is looked for, and what of an unfinished text may yet turn out to be it.

    >>> stops = StopStrings(["\\n\\n", "END"])
    >>> stops.truncate("one\\ntwo END three"), stops.truncate("one")
    (('one\\ntwo ', True), ('one', False))
    >>> stops.count_stable("one E"), stops.count_stable("one\\n")
    (4, 3)
    >>> StopStrings("\\n", after=True).truncate("\\n one\\ntwo")
    ('\\n one', True)

    With `after_text` they stop only once something but white space has been said.
    """

    def __init__(self, texts: Sequence[str] = (), *, after_text: bool = False) -> None:
        if isinstance(texts, str):
            texts = [texts]
        if any(not text for text in texts):
            raise UsageError("a stop text is empty; it would stop before the first token")
        self.texts, self.after_text = tuple(texts), after_text

    def truncate(self, text: str) -> tuple[str, bool]:
        """A text up to the first of them that is in it, and whether there is one."""
        start = len(text) - len(text.lstrip()) if self.after_text else 0
        places = [place for place in (text.find(stop, start) for stop in self.texts) if place >= 0]
        return (text[: min(places)], True) if places else (text, False)

    def count_stable(self, text: str) -> int:
        """How many characters of an unfinished text will stay, whatever comes."""
        most = max((len(stop) - 1 for stop in self.texts), default=0)
        for size in range(min(most, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self.texts):
                return len(text) - size
        return len(text)
