"""Completions: the texts of one request while they are generated, as text pieces and as a result."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pretune.core.errors import UsageError
from pretune.inference.generate import Continuation, GeneratedText, StopStrings, TextStreamer
from pretune.inference.generation_config import BeamSearch, GenerationConfig, GenerationTokens
from pretune.inference.prompts import encode_prompts, get_length_limits
from pretune.models.model import LanguageModel
from pretune.server.config import ServerConfig
from pretune.server.continuous import DecodingRow
from pretune.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]
"""A text, or its token ids."""


class CompletionPiece(NamedTuple):
    """A piece of one of the texts of a request; the last piece of a text has the reason of its end."""

    prompt: int
    return_index: int
    text: str
    finish_reason: Literal["end", "length", "stop"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Generated texts by prompt, and the number of tokens."""

    texts: list[list[GeneratedText]]
    prompt_tokens: int

    @property
    def new_tokens(self) -> int:
        """Number of generated tokens."""
        return sum(text.tokens for texts in self.texts for text in texts)


PieceCallback = Callable[[CompletionPiece], None]


@dataclass(slots=True, eq=False)
class CompletionJob:
    """Request for completions: a row for each prompt and return, and the future of the result."""

    prompts: list[str]  # texts before the completions; empty for an encoder-decoder
    rows: list[DecodingRow]
    continuations: list[Continuation]  # of the prompts
    stops: StopStrings
    prompt_tokens: int
    on_piece: PieceCallback | None = None
    future: "Future[Completion]" = field(default_factory=Future)
    streamers: list[TextStreamer] = field(init=False)

    def __post_init__(self) -> None:
        self.streamers = [TextStreamer(self._build_callback(row), self.stops) for row in self.rows]

    def _build_callback(self, row: DecodingRow) -> Callable[[str], None]:
        return lambda text: self._send(CompletionPiece(row.number, row.return_index, text))

    def _send(self, piece: CompletionPiece) -> None:
        if self.on_piece is not None:
            self.on_piece(piece)

    def update(self, row: DecodingRow) -> None:
        """Send the new text of a row, and end it at a stop string."""
        if self.on_piece is None and not self.stops.texts:
            return
        text = self.continuations[row.number](row.tokens)
        streamer = self.streamers[self.rows.index(row)]
        if self.stops.truncate(text)[1]:
            row.finish_reason = "stop"
        if row.is_finished:
            streamer.finish(self.stops.truncate(text)[0])
            self._send(CompletionPiece(row.number, row.return_index, "", row.finish_reason))
        else:
            streamer.update(text)

    @property
    def is_finished(self) -> bool:
        """True if every text has ended."""
        return all(row.is_finished for row in self.rows)

    def build_result(self) -> Completion:
        """Return the texts, as `generate` does."""
        texts: list[list[GeneratedText]] = [[] for _ in self.prompts]
        for row in self.rows:
            new, is_stopped = self.stops.truncate(self.continuations[row.number](row.tokens))
            reason = "stop" if is_stopped else row.finish_reason or "length"
            texts[row.number].append(GeneratedText(self.prompts[row.number] + new, new, reason, len(row.tokens)))
        return Completion(texts=texts, prompt_tokens=self.prompt_tokens)


def build_job(
    model: LanguageModel,
    tokenizer: Tokenizer,
    generation_tokens: GenerationTokens,
    prompts: Sequence[Prompt],
    config: GenerationConfig,
    limits: ServerConfig,
    *,
    stop: Sequence[str] = (),
    on_piece: PieceCallback | None = None,
) -> CompletionJob:
    """Encode prompts and check every limit. Raises a UsageError that names the limit."""
    if isinstance(config.search, BeamSearch):
        raise UsageError("beam search is not served; use `pretune generate --beams`")
    if config.max_new_tokens > limits.max_new_tokens:
        raise UsageError(f"max_tokens must be <= {limits.max_new_tokens}, got {config.max_new_tokens}")
    if not prompts or len(prompts) * config.returns > limits.max_texts:
        raise UsageError(f"prompts x samples must be from 1 to {limits.max_texts}, got {len(prompts) * config.returns}")
    ids = [_encode(model, tokenizer, generation_tokens, prompt, config, limits) for prompt in prompts]
    is_encoder_decoder = model.spec.is_encoder_decoder
    start = [] if generation_tokens.start is None else [generation_tokens.start]
    rows = [
        DecodingRow(
            start if is_encoder_decoder else tokens,
            config,
            tokens if is_encoder_decoder else None,
            number,
            return_index,
        )
        for number, tokens in enumerate(ids)
        for return_index in range(config.returns)
    ]
    texts = [prompt if isinstance(prompt, str) else tokenizer.decode(list(prompt), special=False) for prompt in prompts]
    return CompletionJob(
        prompts=[""] * len(prompts) if is_encoder_decoder else texts,
        rows=rows,
        continuations=[Continuation(tokenizer, () if is_encoder_decoder else tokens) for tokens in ids],
        stops=StopStrings(stop),
        prompt_tokens=sum(map(len, ids)),
        on_piece=on_piece,
    )


def _encode(
    model: LanguageModel,
    tokenizer: Tokenizer,
    generation_tokens: GenerationTokens,
    prompt: Prompt,
    config: GenerationConfig,
    limits: ServerConfig,
) -> list[int]:
    """Return the ids of a prompt with its special tokens, and check its length."""
    if isinstance(prompt, str):
        if len(prompt) > limits.max_characters:
            raise UsageError(f"a prompt must have <= {limits.max_characters} characters, got {len(prompt)}")
        new = min(config.max_new_tokens, _get_limit(model, limits) - 1)
        tokens, excess = encode_prompts(
            model, tokenizer, [prompt], generation_tokens, max_new_tokens=max(new, 1), truncate=True
        )
        size, tokens_of_prompt = len(tokens[0]) + excess, tokens[0]
    else:
        tokens_of_prompt, size = [int(token) for token in prompt], len(prompt)
        if not size or not all(0 <= token < model.spec.vocab for token in tokens_of_prompt):
            raise UsageError(f"a prompt of tokens needs at least one id, from 0 to {model.spec.vocab - 1}")
    source_limit = get_length_limits(model)[0]
    if model.spec.is_encoder_decoder:
        total, limit = size, limits.max_length if source_limit is None else source_limit
        new_limit = _get_limit(model, limits)
        if config.max_new_tokens > new_limit:
            raise UsageError(f"max_tokens must be <= {new_limit}, the model's limit, got {config.max_new_tokens}")
    else:
        total, limit = size + config.max_new_tokens, _get_limit(model, limits)
    if total > limit:
        extra = "" if model.spec.is_encoder_decoder else f" and {config.max_new_tokens} new ones were requested"
        remedy = "shorten it" if model.spec.is_encoder_decoder else "shorten it, or lower max_tokens"
        raise UsageError(f"the prompt has {size} tokens{extra}; the limit of the model is {limit}; {remedy}")
    return tokens_of_prompt


def _get_limit(model: LanguageModel, limits: ServerConfig) -> int:
    """Return the maximum tokens of the decoder: the model's, but at most the server's."""
    limit = get_length_limits(model)[1]
    return limits.max_length if limit is None else min(limit, limits.max_length)
