"""Where a text has blanks, however they are written.

A blank is the model's own mask token, or any of its sentinels, as they are spelled; in a text that has none of those it
is `[MASK]` or `<mask>`, and in one that has none of those either it is a run of three or more underscores.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pretune.core.errors import UsageError

GENERAL = re.compile(r"\[MASK\]|<mask>")
LINE = re.compile(r"_{3,}")
WAYS = "[MASK], <mask> or ___"


@dataclass(frozen=True, slots=True)
class Blanks:
    """The text around n blanks: n + 1 parts.

    >>> Blanks.find("Paris is ___.", own=None)
    Blanks(parts=('Paris is ', '.'))
    """

    parts: tuple[str, ...]

    @classmethod
    def find(cls, text: str, *, own: str | Sequence[str] | None) -> "Blanks":
        """The blanks of a text, for a model whose mask token is spelled `own`, or whose sentinels are."""
        spellings = [own] if isinstance(own, str) else [*(own or ())]
        ways = ([re.compile("|".join(map(re.escape, spellings)))] if spellings else []) + [GENERAL, LINE]
        for way in ways:
            parts = way.split(text)
            if len(parts) > 1:
                return cls(tuple(parts))
        first = next(iter(spellings), WAYS)
        spelled = WAYS if first in WAYS else f"{first} (this model's), {WAYS}"
        raise UsageError(f"no blank in '{_short(text)}'; write it as {spelled}")

    @property
    def count(self) -> int:
        return len(self.parts) - 1

    def filled(self, words: list[str]) -> str:
        """The text with a word in each blank."""
        out = [self.parts[0]]
        for word, part in zip(words, self.parts[1:], strict=True):
            out += [word, part]
        return "".join(out)

    def spaced(self, blank: int) -> bool:
        """Whether white space stands before a blank."""
        return self.parts[blank][-1:].isspace()


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
