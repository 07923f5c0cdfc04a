"""Answers to requests for completions and chats, whole or as server-sent events, in the shape of OpenAI's API."""

import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from pretune.server.completion import Completion, CompletionPiece
from pretune.server.errors import describe_error
from pretune.server.logprobs import SpelledLogprob, format_chat_logprobs, format_logprobs
from pretune.server.schemas import SamplingRequest
from pretune.text.chat import ANSWER_ROLE

FINISH_REASONS = {"end": "stop", "stop": "stop", "length": "length", None: None}
OPTIONS = (
    "min_p", "top_k", "logit_bias", "repetition_penalty", "no_repeat_ngram", "presence_penalty", "frequency_penalty",
)  # fmt: skip
"""Fields of a request that are options of a completion."""


class CompletionReply:
    """The answer to a request for completions, whole or as events."""

    prefix, kind, event_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, body: SamplingRequest, *, has_logprobs: bool, echo: bool = False) -> None:
        self.model, self.body, self.has_logprobs, self.echo = model, body, has_logprobs, echo
        self.returns = body.n or 1
        self.facts = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "object": self.event_kind if body.stream else self.kind,
            "created": int(time.time()),
            "model": model,
        }

    def build(self, completion: Completion) -> dict[str, object]:
        """Return the whole answer."""
        choices = [
            self._build_choice(
                number * self.returns + i,
                self.build_text(text.text if self.echo else text.new),
                text.finish_reason,
                () if completion.logprobs is None else completion.logprobs[number][i],
            )
            for number, texts in enumerate(completion.texts)
            for i, text in enumerate(texts)
        ]
        return {**self.facts, "choices": choices, "usage": _count_usage(completion)}

    def build_text(self, text: str) -> dict[str, object]:
        """Return the field of a choice that has a text."""
        return {"text": text}

    def build_piece(self, piece: CompletionPiece, index: int) -> dict[str, object]:
        """Return the field of an event that has a piece of a text."""
        return {"text": piece.text}

    def format_logprobs(self, logprobs: Sequence[SpelledLogprob]) -> dict[str, object]:
        """Return the log-probabilities of a choice."""
        return format_logprobs(logprobs)

    async def stream(
        self,
        first: CompletionPiece | None,
        pieces: AsyncGenerator[CompletionPiece, None],
        completions: Sequence[Completion],
    ) -> AsyncIterator[str]:
        """Yield the events of pieces; after them `completions` has the result."""
        try:
            if first is not None:
                yield self._format_piece(first)
            async for piece in pieces:
                yield self._format_piece(piece)
            if completions and self.body.stream_options is not None and self.body.stream_options.include_usage:
                yield _format_event({**self.facts, "choices": [], "usage": _count_usage(completions[0])})
        except Exception as error:
            yield _format_event(describe_error(error).body)
            return
        finally:
            await pieces.aclose()
        yield "data: [DONE]\n\n"

    def _format_piece(self, piece: CompletionPiece) -> str:
        index = piece.prompt * self.returns + piece.return_index
        choice = self._build_choice(index, self.build_piece(piece, index), piece.finish_reason, piece.logprobs)
        return _format_event({**self.facts, "choices": [choice]})

    def _build_choice(
        self, index: int, text: dict[str, object], reason: str | None, logprobs: Sequence[SpelledLogprob]
    ) -> dict[str, object]:
        formatted_logprobs = self.format_logprobs(logprobs) if self.has_logprobs else None
        return {"index": index, **text, "logprobs": formatted_logprobs, "finish_reason": FINISH_REASONS[reason]}


class ChatReply(CompletionReply):
    """The answer to a chat; the first event of an answer has its role, the last one the reason of its end."""

    prefix, kind, event_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, body: SamplingRequest, *, has_logprobs: bool) -> None:
        super().__init__(model, body, has_logprobs=has_logprobs)
        self._begun_answers: set[int] = set()

    def build_text(self, text: str) -> dict[str, object]:
        return {"message": {"role": ANSWER_ROLE, "content": text, "refusal": None}}

    def build_piece(self, piece: CompletionPiece, index: int) -> dict[str, object]:
        role = {} if index in self._begun_answers else {"role": ANSWER_ROLE}
        self._begun_answers.add(index)
        return {"delta": {**role, **({"content": piece.text} if role or piece.text else {})}}

    def format_logprobs(self, logprobs: Sequence[SpelledLogprob]) -> dict[str, object]:
        return format_chat_logprobs(logprobs)


def build_options(body: SamplingRequest, **options: object) -> Any:
    """Return the options of a completion; without a seed every request draws its own."""
    temperature = 1.0 if body.temperature is None else body.temperature
    options |= {
        **{name: getattr(body, name) for name in OPTIONS},
        "min_new_tokens": body.min_tokens,
        "temperature": temperature,
        "num": body.n or 1,
        "seed": secrets.randbits(62) if body.seed is None else body.seed % 2**63,
        "top_p": None if body.top_p == 1 else body.top_p,
        "stop": [body.stop] if isinstance(body.stop, str) else body.stop,
    }
    if temperature == 0:  # as in OpenAI's API, filters have no effect then
        options |= {"top_k": None, "top_p": None, "min_p": None}
    return {name: value for name, value in options.items() if value is not None}


def _count_usage(completion: Completion) -> dict[str, int]:
    prompt, new = completion.prompt_tokens, completion.new_tokens
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def _format_event(data: dict[str, object]) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False, allow_nan=False)}\n\n"
