"""New tokens as text: all at once, or piece by piece as they come."""

from collections.abc import Callable, Sequence

from pretune.inference.stop_strings import StopStrings
from pretune.text.tokenizer import Tokenizer

TextCallback = Callable[[str], None]
REPLACEMENT_CHARACTER = "\ufffd"
"""What stands for bytes that are no whole character yet."""


class Continuation:
    """What new tokens add to the text of a prompt; special tokens are not shown.

    The spaces between words depend on the tokens before, so the prompt is always decoded with them. Where new tokens
    change the text of the old ones, what is said is the text of the new ones alone.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self.tokenizer, self.prompt = tokenizer, list(prompt)
        self.prompt_text = tokenizer.decode(self.prompt, special=False) if self.prompt else ""

    def __call__(self, tokens: Sequence[int]) -> str:
        whole = self.tokenizer.decode([*self.prompt, *tokens], special=False)
        if whole.startswith(self.prompt_text):
            return whole[len(self.prompt_text) :]
        return self.tokenizer.decode(list(tokens), special=False)


class TextStreamer:
    """Tells a text as it grows: nothing twice, nothing that is later taken back."""

    def __init__(self, on_text: TextCallback, stops: StopStrings) -> None:
        self.on_text, self.stops, self.position = on_text, stops, 0

    def update(self, text: str) -> None:
        """The text so far. What may be the beginning of a stop, or half a character, is held back."""
        cut, over = self.stops.truncate(text)
        self._emit(cut, len(cut) if over else self.stops.count_stable(cut.rstrip(REPLACEMENT_CHARACTER)))

    def finish(self, text: str) -> None:
        """The whole text, cut at its stop."""
        self._emit(text, len(text))

    def _emit(self, text: str, end: int) -> None:
        if end > self.position:
            self.on_text(text[self.position : end])
            self.position = end
