"""Chats (`pretune.chat`): the answer of a decoder to messages, written as text by its chat template."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Unpack

from torch import nn

from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.log import format_count
from pretune.inference.decode import check_can_generate
from pretune.inference.generate import GeneratedText, StopStrings, TextCallback, continue_prompts
from pretune.inference.generation_config import (
    GenerationConfig,
    GenerationOptions,
    GenerationTokens,
    build_generation_config,
)
from pretune.inference.prompts import get_length_limits
from pretune.inference.text_model import get_predictive_model, get_tokenizer, load_model
from pretune.models.model import LanguageModel
from pretune.text.chat import ChatTemplate, Message, check_messages, encode_prompt, find_turn_end
from pretune.text.tokenizer import Tokenizer

MAX_ANSWER_TOKENS = 512
"""Default of max_new_tokens, for a model that reads twice as many."""
SYSTEM_ROLE, USER_ROLE = "system", "user"


class FittedChat(NamedTuple):
    """The prompt of a chat as token ids, and the number of its oldest messages that were left out."""

    ids: list[int]
    dropped_messages: int


class ChatModel:
    """A decoder with its chat template. Raises UsageError for a model without one."""

    def __init__(self, model: nn.Module) -> None:
        self.model: LanguageModel = get_predictive_model(model)
        check_can_generate(self.model)
        if self.model.spec.is_encoder_decoder:
            raise UsageError("a chat needs a decoder; this model is an encoder-decoder")
        self.tokenizer: Tokenizer = get_tokenizer(self.model)
        self.template = ChatTemplate.from_tokenizer(self.tokenizer)
        tokens, turn_end = GenerationTokens.from_model(self.model), find_turn_end(self.tokenizer, self.template)
        self.tokens = replace(tokens, eos=tuple(dict.fromkeys((*tokens.eos, *turn_end))))

    @property
    def default_new_tokens(self) -> int:
        """The default of max_new_tokens: 512, or half of the positions of a shorter model."""
        limit = get_length_limits(self.model)[1] or self.model.spec.context
        return MAX_ANSWER_TOKENS if limit is None else max(min(MAX_ANSWER_TOKENS, limit // 2), 1)

    def fit(self, messages: Sequence[Message], new_tokens: int) -> FittedChat:
        """Encode messages with room for an answer: of a chat that is too long, the oldest turns are left out.

        Raises UsageError if the last message alone is too long.
        """
        limit = get_length_limits(self.model)[1] or self.model.spec.context
        first = sum(message["role"] == SYSTEM_ROLE for message in messages[:1])
        starts = [i for i, message in enumerate(messages) if message["role"] == USER_ROLE and i > first]
        for start in (first, *starts):
            ids = encode_prompt(self.tokenizer, self.template, [*messages[:first], *messages[start:]])
            if limit is None or len(ids) + new_tokens <= limit:
                return FittedChat(ids, start - first)
        raise UsageError(
            f"the message has {len(ids)} tokens with its template, and {new_tokens} new ones are asked for; the limit "
            f"of the model is {limit}: shorten it, or lower --max-new-tokens"
        )

    def answer(
        self,
        messages: Sequence[Message],
        config: GenerationConfig,
        *,
        stop: Sequence[str] = (),
        on_text: TextCallback | None = None,
    ) -> list[GeneratedText]:
        """Return answers to messages, one for each of `config.returns`; a warning tells what did not fit."""
        ids, dropped_messages = self.fit(messages, config.max_new_tokens)
        if dropped_messages:
            count = format_count(dropped_messages, "messages")
            log.warn(f"the chat is longer than the model reads: without its oldest {count}")
        (texts,) = continue_prompts(
            self.model, [ids], config, generation_tokens=self.tokens, stops=StopStrings(stop), on_text=on_text
        )
        return texts


def chat(
    model: nn.Module | str | os.PathLike[str],
    messages: str | Sequence[Message],
    *,
    stop: Sequence[str] = (),
    stream: TextCallback | None = None,
    **options: Unpack[GenerationOptions],
) -> str:
    """Answer a chat by the model's chat template: returns the text of the answer.

        pt.chat("smollm2", "What is the capital of France?", temperature=0)
        pt.chat(model, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])

    `options` are those of `pt.generate`, with max_new_tokens 512 or half of the positions of a shorter model. A chat
    that is too long loses its oldest turns, with a warning. `stream` is called with pieces of the answer.
    """
    chat_model = ChatModel(load_model(model))
    options.setdefault("max_new_tokens", chat_model.default_new_tokens)
    config = build_generation_config(**options)
    if config.returns != 1:
        raise UsageError(f"a chat has one answer, got num={config.returns}")
    message_list = [{"role": USER_ROLE, "content": messages}] if isinstance(messages, str) else list(messages)
    return chat_model.answer(check_messages(message_list), config, stop=stop, on_text=stream)[0].new
