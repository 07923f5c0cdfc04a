"""Decoding of new tokens to text, at once or as a stream."""

from collections.abc import Callable, Sequence

from pretune.inference.stop_strings import StopStrings
from pretune.text.tokenizer import Tokenizer

TextCallback = Callable[[str], None]
REPLACEMENT_CHARACTER = "\ufffd"
"""Placeholder of incomplete UTF-8 bytes."""


class Continuation:
    """Text that new tokens add to a prompt; special tokens are not shown.

    Spaces between words depend on the previous tokens, so the prompt is always decoded together with the new tokens.
    If these change the text of the prompt, they are decoded alone.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self.tokenizer, self.prompt = tokenizer, list(prompt)
        self.prompt_text = tokenizer.decode(self.prompt, special=False) if self.prompt else ""

    def __call__(self, tokens: Sequence[int]) -> str:
        text = self.tokenizer.decode([*self.prompt, *tokens], special=False)
        if text.startswith(self.prompt_text):
            return text[len(self.prompt_text) :]
        return self.tokenizer.decode(list(tokens), special=False)


class TextStreamer:
    """Emits a growing text in pieces, without repetition or retraction."""

    def __init__(self, on_text: TextCallback, stops: StopStrings) -> None:
        self.on_text, self.stops, self.position = on_text, stops, 0

    def update(self, text: str) -> None:
        """Emit the new part of a text; a possible start of a stop string or an incomplete character is held back."""
        truncated_text, is_stopped = self.stops.truncate(text)
        self._emit(
            truncated_text,
            len(truncated_text)
            if is_stopped
            else self.stops.count_stable(truncated_text.rstrip(REPLACEMENT_CHARACTER)),
        )

    def finish(self, text: str) -> None:
        """Emit the rest of the final text."""
        self._emit(text, len(text))

    def _emit(self, text: str, end: int) -> None:
        if end > self.position:
            self.on_text(text[self.position : end])
            self.position = end
