"""Text generation (`pretune.generate`): prompts in, texts out; stop strings and streaming of text."""

import os
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Literal, NamedTuple, Unpack

from torch import nn

from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.log import format_count
from pretune.inference.decode import BATCH_ROWS, DecodingCallbacks, check_can_generate, generate_tokens
from pretune.inference.decoding_state import GeneratedTokens
from pretune.inference.generation_config import (
    BeamSearch,
    GenerationConfig,
    GenerationOptions,
    GenerationTokens,
    build_generation_config,
)
from pretune.inference.prompts import encode_prompts, find_token_id, get_length_limits
from pretune.inference.text_model import get_predictive_model, get_tokenizer, load_model
from pretune.models.model import LanguageModel
from pretune.text.tokenizer import Tokenizer


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


TextCallback = Callable[[str], None]
REPLACEMENT_CHARACTER = "\ufffd"
"""Placeholder of incomplete UTF-8 bytes."""
_BYTE = re.compile("<0x[0-9A-F]{2}>")
"""Token of a byte, in vocabularies that spell unknown characters in bytes."""


class Continuation:
    """Text that new tokens add to a prompt; special tokens are not shown.

    Spaces between words depend on the previous tokens, so the prompt is always decoded together with the new tokens.
    If these change the text of the prompt, they are decoded alone.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self.tokenizer, self.prompt = tokenizer, list(prompt)
        self.prompt_text = self._decode(self.prompt) if self.prompt else ""

    def __call__(self, tokens: Sequence[int]) -> str:
        text = self._decode([*self.prompt, *tokens])
        if text.startswith(self.prompt_text):
            return text[len(self.prompt_text) :]
        return self._decode(tokens)

    def _decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens; of byte tokens, only bytes that are no UTF-8 become U+FFFD.

        NOTE: the library replaces a whole run of byte tokens if one is invalid, also characters that are complete. The
        text would then change while it grows.
        """
        raw, text = self.tokenizer.raw, self.tokenizer.decode(list(tokens), special=False)
        if REPLACEMENT_CHARACTER not in text or raw.decoder is None or raw.decoder.decode(["<0x41>"]) != "A":
            return text
        special = {token.content for token in raw.get_added_tokens_decoder().values() if token.special}
        pieces = [piece for i in tokens if (piece := raw.id_to_token(i)) is not None and piece not in special]
        decoded_pieces = list[str]()
        for is_byte, run in groupby(pieces, key=lambda piece: bool(_BYTE.fullmatch(piece))):
            run_pieces = list(run)
            data = bytes(int(piece[3:5], 16) for piece in run_pieces if is_byte)
            decoded_pieces += [data.decode(errors="replace")] if is_byte else run_pieces
        return str(raw.decoder.decode(decoded_pieces))


class TextStreamer:
    """Emits a growing text in pieces, without repetition or retraction."""

    def __init__(self, on_text: TextCallback, stops: StopStrings) -> None:
        self.on_text, self.stops, self.position = on_text, stops, 0

    def update(self, text: str) -> None:
        """Emit the new part of a text; a possible start of a stop string or an incomplete character is held back."""
        text, is_stopped = self.stops.truncate(text)
        self._emit(text, len(text) if is_stopped else self.stops.count_stable(text.rstrip(REPLACEMENT_CHARACTER)))

    def finish(self, text: str) -> None:
        """Emit the rest of the final text."""
        self._emit(text, len(text))

    def _emit(self, text: str, end: int) -> None:
        if end > self.position:
            self.on_text(text[self.position : end])
            self.position = end


DEFAULT_NEW_TOKENS = 64


class GeneratedText(NamedTuple):
    """A generated text: prompt and continuation, the continuation, why it ended, and the score of a beam."""

    text: str
    new: str
    finish_reason: Literal["end", "length", "stop"]
    tokens: int  # new tokens
    score: float | None = None


def generate(
    model: nn.Module | str | os.PathLike[str],
    prompts: Sequence[str],
    *,
    stop: Sequence[str] = (),
    start: str | None = None,
    truncate: bool = False,
    prefix: bool = False,
    batch: int = BATCH_ROWS,
    torch_compile: bool = False,
    stream: TextCallback | None = None,
    **options: Unpack[GenerationOptions],
) -> list[str]:
    """Generate from prompts: returns prompt and continuation; for an encoder-decoder, only the output.

        pt.generate(model, ["Once upon"], max_new_tokens=10, top_k=50, top_p=0.95)
        pt.generate(model, ["Once upon"], temperature=0)                 # greedy
        pt.generate("runs/gpt", ["Once upon"], beams=4, num=2)           # a directory; load it once for repeated calls

    `options`: max_new_tokens (64, or `choose_max_new_tokens`), min_new_tokens, temperature (1; 0 is greedy), top_k,
    top_p, min_p, seed, beams, length_penalty, early_stopping, num (texts per prompt, consecutive in the list),
    repetition_penalty, no_repeat_ngram, presence_penalty, frequency_penalty, logit_bias (by token id).
    A text ends before the first of the `stop` strings. `start` is the token that the decoder starts with, if it has to
    be chosen (the language of mBART). Prompts that are too long raise an error, or are truncated with `truncate`.
    With `prefix` attention is bidirectional within the prompt, as in training of a prefix language model.
    `stream` is called with pieces of a single text as they are generated. `torch_compile` compiles a decoding step.
    """
    model = load_model(model)
    options.setdefault("max_new_tokens", choose_max_new_tokens(model))
    generated_texts = generate_texts(
        model,
        prompts,
        build_generation_config(**options),
        stop=stop,
        start=start,
        truncate=truncate,
        prefix=prefix,
        batch=batch,
        torch_compile=torch_compile,
        on_text=stream,
    )
    return [text.text for texts in generated_texts for text in texts]


def choose_max_new_tokens(model: nn.Module) -> int:
    """Return the default of max_new_tokens: 64, or half of the positions of a shorter model."""
    max_length = get_length_limits(get_predictive_model(model))[1]
    return DEFAULT_NEW_TOKENS if max_length is None else max(min(DEFAULT_NEW_TOKENS, max_length // 2), 1)


def generate_texts(
    model: nn.Module,
    prompts: Sequence[str],
    config: GenerationConfig,
    *,
    stop: Sequence[str] | StopStrings = (),
    start: str | None = None,
    truncate: bool = False,
    prefix: bool = False,
    batch: int = BATCH_ROWS,
    torch_compile: bool = False,
    on_text: TextCallback | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> list[list[GeneratedText]]:
    """Return the texts of `generate` by prompt; `on_text` is its `stream`, `on_progress` gets the share completed."""
    if batch < 1:
        raise UsageError(f"batch must be >= 1, got {batch}")
    language_model = get_predictive_model(model)
    check_can_generate(language_model)
    tokenizer, is_decoder = get_tokenizer(language_model), not language_model.spec.is_encoder_decoder
    stops = stop if isinstance(stop, StopStrings) else StopStrings(stop)
    start_id = None if start is None else find_token_id(tokenizer, start)
    generation_tokens = GenerationTokens.from_model(language_model, start=start_id)
    prompt_ids, truncated_tokens = encode_prompts(
        language_model, tokenizer, prompts, generation_tokens, max_new_tokens=config.max_new_tokens, truncate=truncate
    )
    if truncated_tokens:
        count = format_count(truncated_tokens, "tokens")
        log.warn(f"prompts truncated by {count}: with {config.max_new_tokens} new tokens they do not fit the model")
    return continue_prompts(
        language_model,
        prompt_ids,
        config,
        generation_tokens=generation_tokens,
        shown_prompts=prompts if is_decoder else None,
        stops=stops,
        prefix=prefix,
        batch=batch,
        torch_compile=torch_compile,
        on_text=on_text,
        on_progress=on_progress,
    )


def continue_prompts(
    model: LanguageModel,
    prompt_ids: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    generation_tokens: GenerationTokens,
    shown_prompts: Sequence[str] | None = None,
    stops: StopStrings,
    prefix: bool = False,
    batch: int = BATCH_ROWS,
    torch_compile: bool = False,
    on_text: TextCallback | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> list[list[GeneratedText]]:
    """Return the texts of `generate_texts` for prompts as token ids; `shown_prompts` come before the new text."""
    tokenizer, is_decoder = get_tokenizer(model), not model.spec.is_encoder_decoder
    continuations = [Continuation(tokenizer, ids if is_decoder else ()) for ids in prompt_ids]
    streamer = _build_stream(on_text, stops, config, len(prompt_ids))
    if streamer is not None and shown_prompts is not None:
        streamer.on_text(shown_prompts[0])

    def on_tokens(request: int, return_index: int, tokens: list[int]) -> bool:
        text = continuations[request](tokens)
        if streamer is not None:
            streamer.update(text)
        return stops.truncate(text)[1]

    token_callback = None if streamer is None and not stops.texts else on_tokens
    results = generate_tokens(
        model,
        prompt_ids,
        config,
        generation_tokens=generation_tokens,
        callbacks=DecodingCallbacks(token_callback, on_progress, interval=None if streamer is None else 1),
        batch=batch,
        torch_compile=torch_compile,
        prefix=prefix,
    )
    texts = [
        [_build_text(prompt, continuation, stops, tokens) for tokens in prompt_results]
        for prompt, continuation, prompt_results in zip(
            shown_prompts or [""] * len(results), continuations, results, strict=True
        )
    ]
    if streamer is not None:
        streamer.finish(texts[0][0].new)
    return texts


def _build_text(prompt: str, continuation: Continuation, stops: StopStrings, result: GeneratedTokens) -> GeneratedText:
    new, is_stopped = stops.truncate(continuation(result.tokens))
    reason = "stop" if is_stopped else result.finish_reason
    return GeneratedText(prompt + new, new, reason, len(result.tokens), result.score)


def _build_stream(
    on_text: TextCallback | None, stops: StopStrings, config: GenerationConfig, prompts: int
) -> TextStreamer | None:
    if on_text is None:
        return None
    if prompts != 1 or config.returns != 1 or isinstance(config.search, BeamSearch):
        raise UsageError("streaming needs a single text: one prompt, num=1 and no beams")
    return TextStreamer(on_text, stops)
