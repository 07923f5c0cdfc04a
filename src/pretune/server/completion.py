"""Completions: the texts of one request while they are generated, as text pieces and as a result."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast

from pretune.core.errors import UsageError
from pretune.inference.generate import Continuation, GeneratedText, StopStrings, TextStreamer
from pretune.inference.generation_config import BeamSearch, GenerationConfig
from pretune.inference.prompts import encode_prompts, get_length_limits
from pretune.server.capabilities import Completer
from pretune.server.config import ServerConfig
from pretune.server.continuous import DecodingRow
from pretune.server.logprobs import (
    CONTEXT_TOKENS,
    SpelledLogprob,
    TokenLogprob,
    find_start,
    spell_logprob,
    spell_prompt,
)
from pretune.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]
"""A text, or its token ids."""


def list_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return a list of prompts; a text, or a list of token ids, is a single one."""
    is_single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
    return cast("list[Prompt]", [prompts] if is_single else [*prompts])


class CompletionPiece(NamedTuple):
    """A piece of one of the texts of a request; the last piece of a text has the reason of its end."""

    prompt: int
    return_index: int
    text: str
    finish_reason: Literal["end", "length", "stop"] | None = None
    logprobs: Sequence[SpelledLogprob] = ()  # of the tokens that start in this piece


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOptions:
    """Settings of generation, and the other options of a request."""

    config: GenerationConfig
    has_new: bool = True  # otherwise the prompts are read only
    stop: Sequence[str] = ()
    logprobs: int | None = None  # most probable tokens at every position; None: no log-probabilities
    echo: bool = False  # pieces and log-probabilities include the prompt
    returns: int | None = None  # texts that are returned, those of the highest mean log-probability; None: all
    on_piece: "PieceCallback | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Generated texts by prompt, the log-probabilities of their tokens if requested, and the number of tokens."""

    texts: list[list[GeneratedText]]
    prompt_tokens: int
    new_tokens: int  # also of texts that are not returned
    logprobs: list[list[list[SpelledLogprob]]] | None = None


PieceCallback = Callable[[CompletionPiece], None]


@dataclass(slots=True, eq=False)
class CompletionJob:
    """Request for completions: a row for each prompt and return, and the future of the result."""

    tokenizer: Tokenizer
    prompts: list[str]  # texts before the completions; empty for an encoder-decoder
    prompt_ids: list[list[int]]  # of the model's first part: decoder or encoder
    rows: list[DecodingRow]
    continuations: list[Continuation]  # of the prompts
    stops: StopStrings
    options: CompletionOptions
    prompt_logprobs: list[list[SpelledLogprob]] = field(init=False)  # for `echo`
    future: "Future[Completion]" = field(default_factory=Future)
    states: dict[DecodingRow, "_TextState"] = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_logprobs = [[] for _ in self.prompts]
        self.states = {row: _TextState(self, row) for row in self.rows}

    def update(self, row: DecodingRow) -> None:
        """Send the new text of a row, and end it at a stop string."""
        has_logprobs = self.options.logprobs is not None
        if self.options.on_piece is None and not self.stops.texts and not has_logprobs:
            return
        text = self.continuations[row.number](row.tokens)
        state = self.states[row]
        if has_logprobs:
            state.spell(text)
        if self.stops.truncate(text)[1]:
            row.finish_reason = "stop"
        if row.is_finished:
            state.finish(self.stops.truncate(text)[0])
        else:
            state.streamer.update(text)

    @property
    def is_finished(self) -> bool:
        """True if every text has ended."""
        return all(row.is_finished for row in self.rows)

    def build_result(self) -> Completion:
        """Return the texts, as `generate` does; of more texts than requested, the most probable ones.

        Without new tokens the texts are the prompts, once for each return.
        """
        texts: list[list[GeneratedText]] = [[] for _ in self.prompts]
        logprobs: list[list[list[SpelledLogprob]]] = [[] for _ in self.prompts]
        if not self.options.has_new:
            count = self.options.returns or 1
            texts = [[GeneratedText(prompt, "", "length", 0)] * count for prompt in self.prompts]
            logprobs = [[entries] * count for entries in self.prompt_logprobs]
        for row in self._select_rows():
            new, is_stopped = self.stops.truncate(self.continuations[row.number](row.tokens))
            reason = "stop" if is_stopped else row.finish_reason or "length"
            texts[row.number].append(GeneratedText(self.prompts[row.number] + new, new, reason, len(row.tokens)))
            logprobs[row.number].append([*self.prompt_logprobs[row.number], *self.states[row].logprobs])
        return Completion(
            texts=texts,
            prompt_tokens=sum(map(len, self.prompt_ids)),
            new_tokens=sum(len(row.tokens) for row in self.rows),
            logprobs=None if self.options.logprobs is None else logprobs,
        )

    def spell_prompts(
        self, prompts: Sequence[Prompt], entries: Sequence[Sequence[TokenLogprob]]
    ) -> list[list[SpelledLogprob]]:
        """Return the log-probabilities of prompts with the texts and positions of their tokens."""
        texts = [prompt if isinstance(prompt, str) else None for prompt in prompts]
        has_top = bool(self.options.logprobs)
        parts = zip(texts, self.prompt_ids, entries, strict=True)
        return [spell_prompt(self.tokenizer, *part, has_top=has_top) for part in parts]

    def _select_rows(self) -> Sequence[DecodingRow]:
        """Return the rows whose texts are returned: by prompt all, or those of the highest mean log-probability."""
        if self.options.returns is None:
            return self.rows
        rows = sorted(self.rows, key=lambda row: (row.number, -row.mean_logprob))
        count = len(self.rows) // max(len(self.prompts), 1)
        return [row for i, row in enumerate(rows) if i % count < self.options.returns]


class _TextState:
    """Text of a row: the part that was sent, and its tokens with texts, positions and log-probabilities."""

    def __init__(self, job: CompletionJob, row: DecodingRow) -> None:
        self.job, self.row = job, row
        self.streamer = TextStreamer(self._send, job.stops)
        self.logprobs: list[SpelledLogprob] = []
        self._start = len(job.prompts[row.number])  # characters before the new text, as counted by OpenAI's API
        self._text = ""  # new text so far
        self._sent_tokens = 0
        self._is_started = False

    def spell(self, text: str) -> None:
        """Add the new token, if there is one; `text` is the new text so far."""
        job, row, count = self.job, self.row, len(self.logprobs)
        if len(row.tokens) == count:
            return
        context = (
            job.continuations[row.number].prompt[-CONTEXT_TOKENS:] + row.tokens[max(count - CONTEXT_TOKENS, 0) : -1]
        )
        start = self._start + find_start(self._text, text)
        has_top = bool(job.options.logprobs)
        self.logprobs.append(spell_logprob(job.tokenizer, context, row.logprobs[count], start, has_top=has_top))
        while count and self.logprobs[count - 1].start > start:  # a part of the same character
            count -= 1
            self.logprobs[count] = self.logprobs[count]._replace(start=start)
        self._text = text

    def finish(self, text: str) -> None:
        """Send the rest of the final text, which ends before a stop string, and the reason of its end."""
        end = self._start + len(text)
        if self.row.finish_reason == "stop":
            self.logprobs = [entry for entry in self.logprobs if entry.start < end]
        self.streamer.finish(text)
        self._send("", is_last=True)

    def _send(self, text: str, *, is_last: bool = False) -> None:
        """Send a piece with the tokens that start in it; the first one includes the prompt, if it is echoed."""
        job, row = self.job, self.row
        if job.options.on_piece is None:
            return
        end = self._start + self.streamer.position + len(text)
        entries = self.logprobs[self._sent_tokens :]
        entries = entries if is_last else [entry for entry in entries if entry.start < end]
        self._sent_tokens += len(entries)
        if job.options.echo and not self._is_started:
            text = job.prompts[row.number] + text
            entries = [*job.prompt_logprobs[row.number], *entries]
        self._is_started = True
        reason = row.finish_reason if is_last else None
        job.options.on_piece(CompletionPiece(row.number, row.return_index, text, reason, entries))


def build_job(
    completer: Completer, prompts: Sequence[Prompt], options: CompletionOptions, limits: ServerConfig
) -> CompletionJob:
    """Encode prompts and check every limit. Raises a UsageError that names the limit."""
    tokenizer, spec, config = completer.tokenizer, completer.decoder.spec, options.config
    if isinstance(config.search, BeamSearch):
        raise UsageError("beam search is not served; use `pretune generate --beams`")
    if config.max_new_tokens > limits.max_new_tokens:
        raise UsageError(f"max_tokens must be <= {limits.max_new_tokens}, got {config.max_new_tokens}")
    if not prompts or len(prompts) * config.returns > limits.max_texts:
        raise UsageError(f"prompts x samples must be from 1 to {limits.max_texts}, got {len(prompts) * config.returns}")
    if options.logprobs is not None and not 0 <= options.logprobs <= limits.max_logprobs:
        raise UsageError(f"logprobs must be from 0 to {limits.max_logprobs}, got {options.logprobs}")
    config.check_vocabulary(spec.vocab)
    new_tokens = config.max_new_tokens if options.has_new else 0
    ids = [_encode(completer, prompt, new_tokens, limits) for prompt in prompts]
    start = [] if completer.tokens.start is None else [completer.tokens.start]
    rows = [
        DecodingRow(
            start if spec.is_encoder_decoder else tokens,
            config,
            tokens if spec.is_encoder_decoder else None,
            number,
            return_index,
            # NOTE: the best of several texts are chosen by log-probability.
            logprob_count=0 if options.logprobs is None and options.returns is not None else options.logprobs,
        )
        for number, tokens in enumerate(ids if options.has_new else [])
        for return_index in range(config.returns)
    ]
    texts = [prompt if isinstance(prompt, str) else tokenizer.decode(list(prompt), special=False) for prompt in prompts]
    return CompletionJob(
        tokenizer=tokenizer,
        prompts=[""] * len(prompts) if spec.is_encoder_decoder else texts,
        prompt_ids=ids,
        rows=rows,
        continuations=[Continuation(tokenizer, () if spec.is_encoder_decoder else tokens) for tokens in ids],
        stops=StopStrings(options.stop),
        options=options,
    )


def _encode(completer: Completer, prompt: Prompt, new_tokens: int, limits: ServerConfig) -> list[int]:
    """Return the ids of a prompt with its special tokens, and check its length."""
    model = completer.decoder
    source_limit, decoder_limit = get_length_limits(model)
    new_limit = limits.max_length if decoder_limit is None else min(decoder_limit, limits.max_length)
    if isinstance(prompt, str):
        if len(prompt) > limits.max_characters:
            raise UsageError(f"a prompt must have <= {limits.max_characters} characters, got {len(prompt)}")
        new = min(new_tokens, new_limit - 1)
        (tokens,), excess = encode_prompts(
            model, completer.tokenizer, [prompt], completer.tokens, max_new_tokens=new, truncate=True
        )
        size = len(tokens) + excess
    else:
        tokens, size = [int(token) for token in prompt], len(prompt)
        if not size or not all(0 <= token < model.spec.vocab for token in tokens):
            raise UsageError(f"a prompt of tokens needs at least one id, from 0 to {model.spec.vocab - 1}")
    is_encoder_decoder = model.spec.is_encoder_decoder
    if is_encoder_decoder and new_tokens > new_limit:
        raise UsageError(f"max_tokens must be <= {new_limit}, the model's limit, got {new_tokens}")
    source_limit = limits.max_length if source_limit is None else source_limit
    if is_encoder_decoder and size > source_limit:
        raise UsageError(f"the prompt has {size} tokens; the limit of the model is {source_limit}; shorten it")
    if not is_encoder_decoder and size + new_tokens > new_limit:
        raise UsageError(
            f"the prompt has {size} tokens and {new_tokens} new ones were requested; the limit of the model is "
            f"{new_limit}; shorten it, or lower max_tokens"
        )
    return tokens
