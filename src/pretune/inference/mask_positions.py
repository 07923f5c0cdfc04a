"""Where a text has blanks, however they are written.

A blank is the model's own mask token, or any of its sentinels, as they are spelled; in a text that has none of those it
is `[MASK]` or `<mask>`, and in one that has none of those either it is a run of three or more underscores.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pretune.core.errors import UsageError

GENERIC_MASK = re.compile(r"\[MASK\]|<mask>")
UNDERSCORES = re.compile(r"_{3,}")
BLANK_SPELLINGS = "[MASK], <mask> or ___"


@dataclass(frozen=True, slots=True)
class Blanks:
    """The text around n blanks: n + 1 parts.

    >>> Blanks.find("Paris is ___.", own=None)
    Blanks(parts=('Paris is ', '.'))
    """

    parts: tuple[str, ...]

    @classmethod
    def find(cls, text: str, *, mask_tokens: str | Sequence[str] | None) -> "Blanks":
        """The blanks of a text, for a model whose mask token is spelled `own`, or whose sentinels are."""
        spellings = [mask_tokens] if isinstance(mask_tokens, str) else [*(mask_tokens or ())]
        ways = ([re.compile("|".join(map(re.escape, spellings)))] if spellings else []) + [GENERIC_MASK, UNDERSCORES]
        for way in ways:
            parts = way.split(text)
            if len(parts) > 1:
                return cls(tuple(parts))
        first = next(iter(spellings), BLANK_SPELLINGS)
        spelled = BLANK_SPELLINGS if first in BLANK_SPELLINGS else f"{first} (this model's), {BLANK_SPELLINGS}"
        raise UsageError(f"no blank in '{_shorten(text)}'; write it as {spelled}")

    @property
    def count(self) -> int:
        return len(self.parts) - 1

    def fill(self, words: list[str]) -> str:
        """The text with a word in each blank."""
        out = [self.parts[0]]
        for word, part in zip(words, self.parts[1:], strict=True):
            out += [word, part]
        return "".join(out)

    def follows_space(self, blank: int) -> bool:
        """Whether white space stands before a blank."""
        return self.parts[blank][-1:].isspace()


def _shorten(text: str, max_length: int = 60) -> str:
    return text if len(text) <= max_length else text[: max_length - 1] + "…"
