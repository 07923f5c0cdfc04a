"""New tokens as text: all at once, or piece by piece as they come."""

from collections.abc import Callable, Sequence

from pretune.inference.stop_strings import Stops
from pretune.text.tokenizer import Tokenizer

Tell = Callable[[str], None]
BROKEN = "\ufffd"
"""What stands for bytes that are no whole character yet."""


class Continuation:
    """What new tokens add to the text of a prompt; special tokens are not shown.

    The spaces between words depend on the tokens before, so the prompt is always decoded with them. Where new tokens
    change the text of the old ones, what is said is the text of the new ones alone.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self.tokenizer, self.prompt = tokenizer, list(prompt)
        self.before = tokenizer.decode(self.prompt, special=False) if self.prompt else ""

    def __call__(self, tokens: Sequence[int]) -> str:
        whole = self.tokenizer.decode([*self.prompt, *tokens], special=False)
        if whole.startswith(self.before):
            return whole[len(self.before) :]
        return self.tokenizer.decode(list(tokens), special=False)


class Stream:
    """Tells a text as it grows: nothing twice, nothing that is later taken back."""

    def __init__(self, tell: Tell, stops: Stops) -> None:
        self.tell, self.stops, self.told = tell, stops, 0

    def grown(self, text: str) -> None:
        """The text so far. What may be the beginning of a stop, or half a character, is held back."""
        cut, over = self.stops.cut(text)
        self._show(cut, len(cut) if over else self.stops.safe(cut.rstrip(BROKEN)))

    def end(self, text: str) -> None:
        """The whole text, cut at its stop."""
        self._show(text, len(text))

    def _show(self, text: str, until: int) -> None:
        if until > self.told:
            self.tell(text[self.told : until])
            self.told = until
