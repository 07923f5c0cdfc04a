"""`pretune.generate`: texts in, texts out."""

import os
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Unpack

from torch import nn

from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.format import format_count
from pretune.inference.decode import BATCH_ROWS, DecodingCallbacks, check_can_generate, generate_tokens
from pretune.inference.decoding_state import GeneratedTokens
from pretune.inference.generation_config import BeamSearch, GenerationConfig, GenerationOptions, build_generation_config
from pretune.inference.generation_tokens import GenerationTokens
from pretune.inference.prefill import get_length_limits
from pretune.inference.prompts import encode_prompts, find_token_id
from pretune.inference.stop_strings import StopStrings
from pretune.inference.streaming import Continuation, TextCallback, TextStreamer
from pretune.inference.text_model import get_language_model, get_tokenizer, load_model

DEFAULT_NEW_TOKENS = 64


class GeneratedText(NamedTuple):
    """One text: the whole, what of it is new, why it ended, and the score where it is a beam's."""

    text: str
    new: str
    ended: Literal["end", "length", "stop"]
    tokens: int  # new ones
    score: float | None = None


class TextCallbacks(NamedTuple):
    """Who is told while it is written: pieces of the one text as they come, or the share that is done (0 to 1)."""

    on_text: TextCallback | None = None
    on_progress: Callable[[float], None] | None = None


def generate(
    model: nn.Module | str | os.PathLike[str],
    prompts: Sequence[str],
    *,
    stop: Sequence[str] = (),
    start: str | None = None,
    truncate: bool = False,
    prefix: bool = False,
    batch: int = BATCH_ROWS,
    compiled: bool = False,
    stream: TextCallback | None = None,
    **options: Unpack[GenerationOptions],
) -> list[str]:
    """Let a model write on: the prompts with what follows; of an encoder-decoder what it makes of them.

        pt.generate(model, ["Once upon"], max_new_tokens=10, top_k=50, top_p=0.95)
        pt.generate(model, ["Once upon"], temperature=0)                 # greedy
        pt.generate("runs/gpt", ["Once upon"], beams=4, num=2)           # a directory; load one that is asked often

    `wishes`: max_new_tokens (64, or what `choose_max_new_tokens` gives), min_new_tokens, temperature (1; 0 is greedy), top_k, top_p,
    min_p, seed, beams, length_penalty, early_stopping, num (texts for each prompt, one after the other in the list),
    repetition_penalty, no_repeat_ngram.
    A text ends before the first of the `stop` texts. `start` is the spelling of the token that a decoder starts with,
    where that is to be chosen (the language of mBART). Prompts that are too long are refused, or cut with `truncate`.
    With `prefix` a prompt sees all of itself, as a prefix language model was trained to read it.
    `stream` is called with pieces of the one text that is written, as they come.
    """
    model = load_model(model)
    options.setdefault("max_new_tokens", choose_max_new_tokens(model))
    found = generate_texts(
        model,
        prompts,
        build_generation_config(**options),
        stop=stop,
        start=start,
        truncate=truncate,
        prefix=prefix,
        batch=batch,
        compiled=compiled,
        callbacks=TextCallbacks(on_text=stream),
    )
    return [text.text for texts in found for text in texts]


def choose_max_new_tokens(model: nn.Module) -> int:
    """How many tokens to write where nobody says it: 64, or half of what a shorter model has positions for."""
    own = get_length_limits(get_language_model(model))[1]
    return DEFAULT_NEW_TOKENS if own is None else max(min(DEFAULT_NEW_TOKENS, own // 2), 1)


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
    compiled: bool = False,
    callbacks: TextCallbacks = TextCallbacks(),  # noqa: B008 (a frozen value)
) -> list[list[GeneratedText]]:
    """As `generate`, with all that is known of each text, by prompt."""
    found = get_language_model(model)
    check_can_generate(found)
    tokenizer, stops = get_tokenizer(found), stop if isinstance(stop, StopStrings) else StopStrings(stop)
    first = None if start is None else find_token_id(tokenizer, start)
    marks = GenerationTokens.from_model(found, start=first)
    given, cut = encode_prompts(
        found, tokenizer, prompts, marks, max_new_tokens=config.max_new_tokens, truncate=truncate
    )
    if cut:
        log.warn(
            f"{format_count(cut, 'tokens')} of prompts cut: with {config.max_new_tokens} new ones do not fit the model"
        )
    follow = [Continuation(tokenizer, () if found.spec.is_encoder_decoder else ids) for ids in given]
    stream = _build_stream(callbacks.on_text, stops, config, len(prompts))
    if stream is not None and not found.spec.is_encoder_decoder:
        stream.on_text(prompts[0])

    def grown(request: int, return_index: int, tokens: list[int]) -> bool:
        text = follow[request](tokens)
        if stream is not None:
            stream.update(text)
        return stops.truncate(text)[1]

    seen = stream is not None or stops.texts
    watch = DecodingCallbacks(grown if seen else None, callbacks.on_progress, interval=None if stream is None else 1)
    answers = generate_tokens(
        found, given, config, generation_tokens=marks, callbacks=watch, batch=batch, compiled=compiled, prefix=prefix
    )
    texts = [
        [_build_text("" if found.spec.is_encoder_decoder else prompt, tell, one, stops) for one in answer]
        for prompt, tell, answer in zip(prompts, follow, answers, strict=True)
    ]
    if stream is not None:
        stream.finish(texts[0][0].new)
    return texts


def _build_text(
    prompt: str, continuation: Continuation, generated: GeneratedTokens, stops: StopStrings
) -> GeneratedText:
    new, over = stops.truncate(continuation(generated.tokens))
    return GeneratedText(
        prompt + new, new, "stop" if over else generated.finish_reason, len(generated.tokens), generated.score
    )


def _build_stream(
    on_text: TextCallback | None, stops: StopStrings, config: GenerationConfig, prompts: int
) -> TextStreamer | None:
    if on_text is None:
        return None
    if prompts != 1 or config.returns != 1 or isinstance(config.search, BeamSearch):
        raise UsageError("only one text can be shown as it is written: one prompt, one return, no beams")
    return TextStreamer(on_text, stops)
