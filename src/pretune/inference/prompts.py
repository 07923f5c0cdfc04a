"""From texts to what a model reads before it writes."""

from collections.abc import Sequence
from typing import NamedTuple

from pretune.core import log
from pretune.core.errors import UsageError
from pretune.inference.generation_tokens import GenerationTokens
from pretune.inference.prefill import get_length_limits
from pretune.models.model import LanguageModel
from pretune.text.templates import SpecialPart
from pretune.text.tokenizer import Tokenizer


class EncodedPrompts(NamedTuple):
    """The ids of prompts, special tokens included, and how many tokens were cut from them in all."""

    ids: list[list[int]]
    truncated_tokens: int


def encode_prompts(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    generation_tokens: GenerationTokens,
    *,
    max_new_tokens: int,
    truncate: bool,
) -> EncodedPrompts:
    """Texts as a model reads them, with room for `new` tokens.

    A decoder's prompt begins as the tokenizer's layout does or, where that has nothing there, with the token that the
    model was trained to start with; nothing is put behind it. A source is laid out as a text of its own. Special tokens
    that are spelled out are those tokens. What is too long is refused or, with `truncate`, cut: a decoder loses the
    beginning of its prompt, an encoder the end of its source.
    """
    if isinstance(texts, str):
        raise UsageError("prompts are a list of texts, found one text; put it into a list")
    both = model.spec.is_encoder_decoder
    before, after = _get_special_tokens(tokenizer, generation_tokens, is_encoder_decoder=both)
    room = _compute_room(model, max_new_tokens, len(before) + len(after))
    ids, cut = [], 0
    found = tokenizer.encode_batch(texts)
    for number, text in enumerate(texts):
        tokens = found[number].tolist()
        if not tokens:
            what = "is empty" if not text else "has no tokens"
            raise UsageError(f"prompt {number + 1} {what}; write something for the model to go on from")
        if room is not None and len(tokens) > room:
            if not truncate:
                raise UsageError(_describe_too_long(number, len(tokens), max_new_tokens, room, model))
            cut += len(tokens) - room
            tokens = tokens[:room] if both else tokens[-room:]
        ids.append([*before, *tokens, *after])
    context = model.spec.context
    longest = max(map(len, ids), default=0) + (0 if both else max_new_tokens)
    if context is not None and longest > context:
        log.warn(f"up to {longest} tokens; this model was made for {context}, and may write nonsense beyond")
    return EncodedPrompts(ids, cut)


def _get_special_tokens(
    tokenizer: Tokenizer, generation_tokens: GenerationTokens, *, is_encoder_decoder: bool
) -> tuple[list[int], list[int]]:
    """The special tokens before and behind a text."""
    parts = tokenizer.template.single
    text = next(i for i, part in enumerate(parts) if not isinstance(part, SpecialPart))
    before = [part.token for part in parts[:text] if isinstance(part, SpecialPart)]
    after = [part.token for part in parts[text + 1 :] if isinstance(part, SpecialPart)]
    if is_encoder_decoder:
        return before, after
    return before or ([] if generation_tokens.start is None else [generation_tokens.start]), []


def _compute_room(model: LanguageModel, max_new_tokens: int, special_count: int) -> int | None:
    """How many tokens of a text the model's positions leave; None: any number."""
    source, own = get_length_limits(model)
    if own is not None and max_new_tokens >= own:
        raise UsageError(f"{max_new_tokens} new tokens; this model has positions for {own} in all; ask for fewer")
    if model.spec.is_encoder_decoder:
        return None if source is None else max(source - special_count, 1)
    return None if own is None else max(own - max_new_tokens - special_count, 1)


def _describe_too_long(number: int, tokens: int, max_new_tokens: int, room: int, model: LanguageModel) -> str:
    beside = "" if model.spec.is_encoder_decoder else f" beside {max_new_tokens} new ones"
    what = f"prompt {number + 1} has {tokens} tokens; this model has positions for {room}{beside}"
    fewer = (
        "" if model.spec.is_encoder_decoder or max_new_tokens == 1 else "ask for fewer new ones (--max-new-tokens), "
    )
    return f"{what}; {fewer}shorten it, or have it cut (--truncate)"


def find_token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that is given by its spelling."""
    found = tokenizer.raw.token_to_id(token)
    if found is None:
        raise UsageError(f"no token of this model is spelled '{token}'")
    return int(found)
