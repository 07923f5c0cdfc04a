"""Masks in a text, in any spelling.

A mask is the model's mask token or one of its sentinels; in a text without those `[MASK]` or `<mask>`, and in a text
without those either a run of three or more underscores.
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
    """Text around n masks: n + 1 parts.

    >>> Blanks.find("Paris is ___.", mask_tokens=None)
    Blanks(parts=('Paris is ', '.'))
    """

    parts: tuple[str, ...]

    @classmethod
    def find(cls, text: str, *, mask_tokens: str | Sequence[str] | None) -> "Blanks":
        """Find the masks of a text, given the model's mask token or sentinels; raises a UsageError if there is none."""
        spellings = [mask_tokens] if isinstance(mask_tokens, str) else [*(mask_tokens or ())]
        patterns = ([re.compile("|".join(map(re.escape, spellings)))] if spellings else []) + [
            GENERIC_MASK,
            UNDERSCORES,
        ]
        for pattern in patterns:
            parts = pattern.split(text)
            if len(parts) > 1:
                return cls(tuple(parts))
        first = next(iter(spellings), BLANK_SPELLINGS)
        allowed_spellings = (
            BLANK_SPELLINGS if first in BLANK_SPELLINGS else f"{first} (this model's), {BLANK_SPELLINGS}"
        )
        raise UsageError(f"no mask in '{_shorten(text)}'; write it as {allowed_spellings}")

    @property
    def count(self) -> int:
        return len(self.parts) - 1

    def fill(self, words: list[str]) -> str:
        """Insert a word into each mask."""
        out = [self.parts[0]]
        for word, part in zip(words, self.parts[1:], strict=True):
            out += [word, part]
        return "".join(out)

    def follows_space(self, blank: int) -> bool:
        """Return True if whitespace precedes a mask."""
        return self.parts[blank][-1:].isspace()


def _shorten(text: str, max_length: int = 60) -> str:
    return text if len(text) <= max_length else text[: max_length - 1] + "…"
