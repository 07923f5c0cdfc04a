"""Log-probabilities of the tokens of completions and prompts, in the shape of OpenAI's API.

They are the model's own: before penalties, bias, temperature and filters.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pretune.core.types import IGNORE_INDEX
from pretune.data.layout import pack_in_order
from pretune.data.sequences import Sequences, compute_offsets, reserve
from pretune.inference.generate import REPLACEMENT_CHARACTER, Continuation
from pretune.inference.prompts import count_prompt_slots
from pretune.inference.scoring import BLOCK_BYTES
from pretune.inference.text_model import check_outputs
from pretune.models.model import LanguageModel
from pretune.text.tokenizer import Tokenizer

CONTEXT_TOKENS = 4
"""Tokens before a token that its text may depend on."""


class TokenLogprob(NamedTuple):
    """A token, its log-probability (None for the first of a prompt), and the most probable tokens, best first."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


class SpelledLogprob(NamedTuple):
    """The text of a token, its log-probability, those of the most probable tokens and of itself, and its start."""

    text: str
    logprob: float | None
    top: dict[str, float] | None
    start: int  # character of the prompt and its completion


def list_logprobs(logits: Tensor, tokens: Tensor, count: int) -> list[TokenLogprob]:
    """Return the log-probabilities of tokens `[n]` by their logits `[n, V]`, and of the `count` most probable ones."""
    logprobs = logits.float().log_softmax(-1)
    token_logprobs = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
    values, ids = (part.tolist() for part in logprobs.topk(min(count, logprobs.shape[1])))
    tops = [tuple(zip(*pair, strict=True)) for pair in zip(ids, values, strict=True)]
    return [*map(TokenLogprob, tokens.tolist(), token_logprobs, tops)]


@torch.no_grad()
def compute_prompt_logprobs(
    model: LanguageModel, prompts: Sequence[Sequence[int]], count: int
) -> list[list[TokenLogprob]]:
    """Return the log-probabilities of the tokens of a decoder's prompts; the head runs on a block of rows at a time."""
    tokens = np.concatenate([np.asarray(prompt, dtype=np.int64) for prompt in prompts])
    offsets = compute_offsets(np.array([len(prompt) for prompt in prompts]))
    targets = np.append(tokens[1:], IGNORE_INDEX)
    targets[offsets[1:] - 1] = IGNORE_INDEX
    sequences = Sequences(tokens=tokens, offsets=offsets, targets=targets)
    device = model.tokens.weight.device
    batch = pack_in_order(reserve(sequences, count_prompt_slots(model))).to(device)
    assert batch.targets is not None
    states, labels, index = model.states(batch), batch.targets.labels, batch.targets.index
    is_target = labels != IGNORE_INDEX
    labels, index = labels[is_target], index[is_target]
    size = max(BLOCK_BYTES.get(device.type, BLOCK_BYTES["cpu"]) // (4 * model.spec.vocab), 16)
    entries: list[TokenLogprob] = []
    for start in range(0, len(labels), size):
        logits = model.logits(states[index[start : start + size]])
        assert logits is not None
        check_outputs(logits, "logits")
        entries += list_logprobs(logits, labels[start : start + size], count)
    rest = iter(entries)
    return [[TokenLogprob(prompt[0], None), *(next(rest) for _ in prompt[1:])] for prompt in prompts]


def spell_logprob(
    tokenizer: Tokenizer, context: Sequence[int], entry: TokenLogprob, start: int, *, has_top: bool
) -> SpelledLogprob:
    """Return an entry with the texts of its tokens, which follow the tokens of the context."""
    continuation = Continuation(tokenizer, context[-CONTEXT_TOKENS:])
    text = _spell(continuation, entry.token)
    top: dict[str, float] | None = None
    if has_top and entry.logprob is not None:
        logprobs = {text: entry.logprob}
        for token, logprob in entry.top:
            if token != entry.token:
                name = _spell(continuation, token)
                # NOTE: several tokens may have the same text.
                logprobs.setdefault(_get_spelling(tokenizer, token) if name in logprobs else name, logprob)
        top = dict(sorted(logprobs.items(), key=lambda item: -item[1]))
    return SpelledLogprob(text, entry.logprob, top, start)


def spell_prompt(
    tokenizer: Tokenizer, text: str | None, tokens: Sequence[int], entries: Sequence[TokenLogprob], *, has_top: bool
) -> list[SpelledLogprob]:
    """Return the entries of a prompt with texts, and with the characters of the prompt's text at which they start.

    Without a text, the prompt was given as tokens.
    """
    if text is None:
        texts = [tokenizer.decode(list(tokens[:end]), special=False) for end in range(len(tokens) + 1)]
        lengths = [find_start(*pair) for pair in pairwise(texts)]
        starts = np.minimum.accumulate(lengths[::-1])[::-1].tolist()
    else:
        encoding = tokenizer.encode_batch([text]).starts.tolist()
        starts = [0] * (len(tokens) - len(encoding)) + encoding
    spelled_entries = []
    for i, (entry, start) in enumerate(zip(entries, starts, strict=True)):
        spelled_entry = spell_logprob(tokenizer, tokens[:i], entry, start, has_top=has_top)
        # NOTE: tokenizers count a token from after its space.
        space = spelled_entry.text[: len(spelled_entry.text) - len(spelled_entry.text.lstrip())]
        has_space = bool(space) and text is not None and text.endswith(space, 0, start)
        spelled_entries.append(spelled_entry._replace(start=start - len(space)) if has_space else spelled_entry)
    return spelled_entries


def find_start(old_text: str, text: str) -> int:
    """Return the start of a token by the texts without and with it.

    The bytes of a character may be several tokens: a later one may change the end of the text, and has the same start.

    >>> find_start("a caf", "a café"), find_start("a caf\ufffd", "a café")
    (5, 5)
    """
    if text.startswith(old_text):
        return len(old_text)
    pairs = zip(old_text, text, strict=False)
    return next((i for i, (old, new) in enumerate(pairs) if old != new), len(text))


def format_logprobs(entries: Sequence[SpelledLogprob]) -> dict[str, object]:
    """Return entries in the shape of OpenAI's API."""
    has_top = any(entry.top is not None for entry in entries)
    return {
        "tokens": [entry.text for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [entry.top for entry in entries] if has_top else None,
        "text_offset": [entry.start for entry in entries],
    }


def format_chat_logprobs(entries: Sequence[SpelledLogprob]) -> dict[str, object]:
    """Return entries in the shape of OpenAI's API for chats."""

    def build(text: str, logprob: float | None) -> dict[str, object]:
        return {"token": text, "logprob": logprob, "bytes": [*text.encode(errors="replace")]}

    content = [
        {**build(entry.text, entry.logprob), "top_logprobs": [build(*item) for item in (entry.top or {}).items()]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _spell(continuation: Continuation, token: int) -> str:
    """Return the text that a token adds, or its spelling in the vocabulary if it adds no complete character."""
    text = continuation([token])
    is_complete = bool(text) and REPLACEMENT_CHARACTER not in text
    return text if is_complete else _get_spelling(continuation.tokenizer, token)


def _get_spelling(tokenizer: Tokenizer, token: int) -> str:
    """Return the spelling of a token; the vocabulary of a model may be larger than that of its tokenizer."""
    return tokenizer.get_token(token) if token < tokenizer.vocab else f"token_id:{token}"
