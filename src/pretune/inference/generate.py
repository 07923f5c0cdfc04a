"""`pretune.generate`: texts in, texts out."""

import os
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Unpack

from torch import nn

from pretune.core import log
from pretune.core.counted import counted
from pretune.core.errors import UsageError
from pretune.inference.decode import ROWS, Watch, check, complete
from pretune.inference.decoding_state import Written
from pretune.inference.generation_config import Beam, Decoding, Wishes, decoding
from pretune.inference.generation_tokens import Marks
from pretune.inference.prefill import limits
from pretune.inference.prompts import encode, spelled
from pretune.inference.stop_strings import Stops
from pretune.inference.streaming import Continuation, Stream, Tell
from pretune.inference.text_model import body, load_model, tokenizer_of

NEW = 64


class Text(NamedTuple):
    """One text: the whole, what of it is new, why it ended, and the score where it is a beam's."""

    text: str
    new: str
    ended: Literal["end", "length", "stop"]
    tokens: int  # new ones
    score: float | None = None


class Told(NamedTuple):
    """Who is told while it is written: pieces of the one text as they come, or the share that is done (0 to 1)."""

    pieces: Tell | None = None
    share: Callable[[float], None] | None = None


def generate(
    model: nn.Module | str | os.PathLike[str],
    prompts: Sequence[str],
    *,
    stop: Sequence[str] = (),
    start: str | None = None,
    truncate: bool = False,
    prefix: bool = False,
    batch: int = ROWS,
    compiled: bool = False,
    stream: Tell | None = None,
    **wishes: Unpack[Wishes],
) -> list[str]:
    """Let a model write on: the prompts with what follows; of an encoder-decoder what it makes of them.

        pt.generate(model, ["Once upon"], max_new_tokens=10, top_k=50, top_p=0.95)
        pt.generate(model, ["Once upon"], temperature=0)                 # greedy
        pt.generate("runs/gpt", ["Once upon"], beams=4, num=2)           # a directory; load one that is asked often

    `wishes`: max_new_tokens (64, or what `usual` gives), min_new_tokens, temperature (1; 0 is greedy), top_k, top_p,
    min_p, seed, beams, length_penalty, early_stopping, num (texts for each prompt, one after the other in the list),
    repetition_penalty, no_repeat_ngram.
    A text ends before the first of the `stop` texts. `start` is the spelling of the token that a decoder starts with,
    where that is to be chosen (the language of mBART). Prompts that are too long are refused, or cut with `truncate`.
    With `prefix` a prompt sees all of itself, as a prefix language model was trained to read it.
    `stream` is called with pieces of the one text that is written, as they come.
    """
    model = load_model(model)
    wishes.setdefault("max_new_tokens", usual(model))
    found = write(
        model,
        prompts,
        decoding(**wishes),
        stop=stop,
        start=start,
        truncate=truncate,
        prefix=prefix,
        batch=batch,
        compiled=compiled,
        told=Told(pieces=stream),
    )
    return [text.text for texts in found for text in texts]


def usual(model: nn.Module) -> int:
    """How many tokens to write where nobody says it: 64, or half of what a shorter model has positions for."""
    own = limits(body(model))[1]
    return NEW if own is None else max(min(NEW, own // 2), 1)


def write(
    model: nn.Module,
    prompts: Sequence[str],
    how: Decoding,
    *,
    stop: Sequence[str] | Stops = (),
    start: str | None = None,
    truncate: bool = False,
    prefix: bool = False,
    batch: int = ROWS,
    compiled: bool = False,
    told: Told = Told(),  # noqa: B008 (a frozen value)
) -> list[list[Text]]:
    """As `generate`, with all that is known of each text, by prompt."""
    found = body(model)
    check(found)
    tokenizer, stops = tokenizer_of(found), stop if isinstance(stop, Stops) else Stops(stop)
    first = None if start is None else spelled(tokenizer, start)
    marks = Marks.of(found, start=first)
    given, cut = encode(found, tokenizer, prompts, marks, new=how.max_new_tokens, truncate=truncate)
    if cut:
        log.warn(f"{counted(cut, 'tokens')} of prompts cut: with {how.max_new_tokens} new ones do not fit the model")
    follow = [Continuation(tokenizer, () if found.spec.both else ids) for ids in given]
    stream = _stream(told.pieces, stops, how, len(prompts))
    if stream is not None and not found.spec.both:
        stream.tell(prompts[0])

    def grown(request: int, number: int, tokens: list[int]) -> bool:
        text = follow[request](tokens)
        if stream is not None:
            stream.grown(text)
        return stops.cut(text)[1]

    seen = stream is not None or stops.texts
    watch = Watch(grown if seen else None, told.share, every=None if stream is None else 1)
    answers = complete(found, given, how, marks=marks, watch=watch, batch=batch, compiled=compiled, prefix=prefix)
    texts = [
        [_text("" if found.spec.both else prompt, tell, one, stops) for one in answer]
        for prompt, tell, answer in zip(prompts, follow, answers, strict=True)
    ]
    if stream is not None:
        stream.end(texts[0][0].new)
    return texts


def _text(prompt: str, tell: Continuation, one: Written, stops: Stops) -> Text:
    new, over = stops.cut(tell(one.tokens))
    return Text(prompt + new, new, "stop" if over else one.ended, len(one.tokens), one.score)


def _stream(tell: Tell | None, stops: Stops, how: Decoding, prompts: int) -> Stream | None:
    if tell is None:
        return None
    if prompts != 1 or how.returns != 1 or isinstance(how.search, Beam):
        raise UsageError("only one text can be shown as it is written: one prompt, one return, no beams")
    return Stream(tell, stops)
