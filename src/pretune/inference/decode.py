"""Writing on: from token ids to token ids.

    complete(model, [[5, 8, 2], [7]], Decoding(max_new_tokens=20))[0][0].tokens

A decoder goes on from what it has read; the decoder of an encoder-decoder writes what the encoder's source asks for.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pretune.core.errors import UsageError
from pretune.inference.beam import BeamSearchState
from pretune.inference.decoding_state import DecodingState, GeneratedTokens
from pretune.inference.engine import DecodingEngine, SearchState, get_engine
from pretune.inference.finite_check import make_non_finite_error
from pretune.inference.generation_config import BeamSearch, GenerationConfig, Sampling
from pretune.inference.generation_tokens import GenerationTokens
from pretune.inference.prefill import count_prompt_slots, get_length_limits, prefill, repeat_indices
from pretune.inference.text_model import eval_mode, get_language_model
from pretune.models.model import LanguageModel

Tokens = Sequence[int] | NDArray[np.integer]

BATCH_ROWS = 64
"""So many are decoded together unless asked otherwise."""
CHECK_INTERVAL = 16
"""Steps between two looks at whether all rows have ended, where a look makes a device wait."""
CACHE_ALIGNMENT = 64
"""Caches on a GPU hold a multiple of so many tokens, so that prompts of other lengths need no other capture."""


class TokenCallback(Protocol):
    """Told what a row has written so far; true ends the row."""

    def __call__(self, request: int, return_index: int, tokens: list[int]) -> bool:
        """`request` counts the prompts, `number` the returns of one."""


@dataclass(frozen=True)
class DecodingCallbacks:
    """Who is told while texts are written: of every row that is not a beam's, and of the share that is done (0 to 1).

    That is after every step, or `interval` so many; on a GPU, which would have to wait, after every 16 by default.
    """

    on_tokens: TokenCallback | None = None
    on_progress: Callable[[float], None] | None = None
    interval: int | None = None

    def report_progress(self, share: float) -> None:
        """Tell the share, if anyone asks."""
        if self.on_progress is not None:
            self.on_progress(share)


def generate_tokens(
    model: nn.Module,
    prompts: Sequence[Tokens],
    decoding: GenerationConfig = GenerationConfig(),  # noqa: B008 (a frozen value)
    *,
    batch: int = BATCH_ROWS,
    generation_tokens: GenerationTokens | None = None,
    decoder_prompts: Sequence[Tokens] | None = None,
    prefix: bool = False,
    callbacks: DecodingCallbacks = DecodingCallbacks(),  # noqa: B008 (a frozen value)
    compiled: bool = False,
) -> list[list[GeneratedTokens]]:
    """What a model writes: for each prompt `returns` texts, best first where they are beams.

    `prompts` are what a decoder has read, or the sources of an encoder-decoder, special tokens included; its decoder
    starts as its config says, or by `generation_tokens`, and has already said what is `begun`, if anything. With `prefix` a
    decoder's prompt sees all of itself, for models that learned to read so. At most `batch` rows (texts, or beams) are
    decoded together, those of similar length; answers come in the order of the prompts, and do not depend on it.
    With `compiled` a step is compiled first, which takes a minute and pays on a GPU when much is written.
    """
    found = get_language_model(model)
    check_can_generate(found)
    generation_tokens = generation_tokens or GenerationTokens.from_model(found)
    if prefix and found.spec.is_encoder_decoder:
        raise UsageError("the decoder of an encoder-decoder has no prompt that could see all of itself")
    read = _prepare_inputs(found, prompts, generation_tokens, decoder_prompts)
    _check_lengths(found, read, decoding)
    order = np.argsort([-len(one.source or one.prompt) for one in read], kind="stable").tolist()
    every = callbacks.interval or (1 if found.tokens.weight.device.type == "cpu" else CHECK_INTERVAL)
    written: list[list[GeneratedTokens]] = [[] for _ in prompts]
    groups = [*_split_groups(order, max(batch // decoding.rows_per_prompt, 1))]
    with eval_mode(found):
        for number, group in enumerate(groups):
            job = PromptGroup(found, group, [read[i] for i in group], decoding, generation_tokens, prefix)
            answers = _generate_group(
                job,
                DecodingCallbacks(callbacks.on_tokens, _scale_progress(callbacks, number, len(groups)), every),
                compiled,
            )
            for request, answer in zip(group, answers, strict=True):
                written[request] = answer
            callbacks.report_progress((number + 1) / len(groups))
    return written


def check_can_generate(model: LanguageModel) -> None:
    """Refuse what cannot write."""
    if model.spec.decoder is None:
        raise UsageError(
            f"a model of the shape '{model.spec.shape}' does not write text; fill its blanks with `pretune fill`, or "
            "take a decoder or an encoder-decoder"
        )
    if model.head is None:
        raise UsageError("this model has no vocabulary head, so it cannot write; load one that has its head")


class DecoderInput(NamedTuple):
    """What the decoder has read, and what the encoder has, if there is one."""

    prompt: list[int]
    source: list[int] | None


class PromptGroup(NamedTuple):
    """Prompts that are worked on together, with their numbers."""

    model: LanguageModel
    requests: Sequence[int]
    inputs: Sequence[DecoderInput]
    decoding: GenerationConfig
    generation_tokens: GenerationTokens
    prefix: bool


def _prepare_inputs(
    model: LanguageModel,
    prompts: Sequence[Tokens],
    generation_tokens: GenerationTokens,
    decoder_prompts: Sequence[Tokens] | None,
) -> list[DecoderInput]:
    if not model.spec.is_encoder_decoder:
        if decoder_prompts is not None:
            raise UsageError("what a decoder has begun is a part of its prompt")
        return [DecoderInput(_check_tokens(prompt, number, model), None) for number, prompt in enumerate(prompts)]
    assert generation_tokens.start is not None
    said = decoder_prompts or [()] * len(prompts)
    return [
        DecoderInput(
            [generation_tokens.start, *_check_tokens(more, number, model)], _check_tokens(prompt, number, model)
        )
        for number, (prompt, more) in enumerate(zip(prompts, said, strict=True))
    ]


def _check_tokens(tokens: Tokens, number: int, model: LanguageModel) -> list[int]:
    """Tokens as a list, all of which the model has."""
    found: list[int] = np.asarray(tokens, dtype=np.int64).tolist()
    for token in found:
        if not 0 <= token < model.spec.vocab:
            raise UsageError(
                f"prompt {number + 1} has the token {token}; this model has those from 0 to {model.spec.vocab - 1}"
            )
    return found


def _scale_progress(callbacks: DecodingCallbacks, number: int, groups: int) -> Callable[[float], None]:
    """Who is told the share of one group: what that is of all."""
    return lambda share: callbacks.report_progress((number + share) / groups)


def _generate_group(job: PromptGroup, callbacks: DecodingCallbacks, compiled: bool) -> list[list[GeneratedTokens]]:
    """One group of prompts, from reading them to their texts."""
    model, group, given, decoding, marks, prefix = job
    both, device = model.spec.is_encoder_decoder, model.tokens.weight.device
    prompts = [one.prompt for one in given]
    cache, logits = prefill(model, prompts, [one.source or () for one in given] if both else None, prefix=prefix)
    room = max(map(len, prompts)) + decoding.max_new_tokens - 1  # the last token is written, and never read
    source = cache.cross[0].keys.shape[2] if cache.cross else 0
    if device.type == "cuda":
        room, source = _round_up(room, get_length_limits(model)[1]), _round_up(source, model.spec.max_length)

    def make() -> SearchState:
        kind = BeamSearchState if isinstance(decoding.search, BeamSearch) else DecodingState
        return kind(
            len(given) * (1 if kind is BeamSearchState else decoding.returns), room + 1, decoding, marks, device
        )

    key = (len(given), _drop_seed(decoding), marks)
    slots = 0 if both else count_prompt_slots(model)
    engine = get_engine(model, make, key, room + slots, source=source, compiled=compiled)
    index = repeat_indices(len(given), decoding.rows_per_prompt, device)
    engine.load(cache, index)
    engine.search.load(prompts, group, getattr(decoding.search, "seed", 0))
    engine.search.choose(logits.index_select(0, index))
    return _run_steps(engine, group, decoding, callbacks)


def _run_steps(
    engine: DecodingEngine, group: Sequence[int], decoding: GenerationConfig, callbacks: DecodingCallbacks
) -> list[list[GeneratedTokens]]:
    """Steps, and now and then a look at what they gave."""
    search, count = engine.search, 1
    halted: dict[int, list[int]] = {}
    while True:
        if not bool(search.is_finite):
            raise make_non_finite_error("logits")
        if callbacks.on_tokens is not None and isinstance(search, DecodingState):
            _notify_rows(search, group, callbacks.on_tokens, halted)
        callbacks.report_progress(count / decoding.max_new_tokens)
        if count >= decoding.max_new_tokens or search.is_finished():
            break
        for _ in range(min(callbacks.interval or 1, decoding.max_new_tokens - count)):
            engine.advance()
            count += 1
    answers = search.collect_results()
    for row, tokens in halted.items():
        answers[row // decoding.returns][row % decoding.returns] = GeneratedTokens(tokens, "stop")
    return answers


def _notify_rows(
    search: DecodingState, group: Sequence[int], on_tokens: TokenCallback, stopped_rows: dict[int, list[int]]
) -> None:
    """Tell of every row that still writes, and end those that need no more."""
    ends, returns, over = search.generation_tokens.eos, search.decoding.returns, []
    for row, tokens in enumerate(search.read_new_tokens()):
        shown = tokens[:-1] if tokens and tokens[-1] in ends else tokens
        if row not in stopped_rows and on_tokens(group[row // returns], row % returns, shown):
            stopped_rows[row] = shown
            over.append(row)
    if over:
        search.halt(over)


def _check_lengths(model: LanguageModel, inputs: Sequence[DecoderInput], decoding: GenerationConfig) -> None:
    """Refuse prompts without tokens, and those that are longer than the model's positions."""
    (source, own), new = get_length_limits(model), decoding.max_new_tokens
    for number, one in enumerate(inputs):
        if not len(one.prompt) or (one.source is not None and not len(one.source)):
            raise UsageError(f"prompt {number + 1} has no tokens; a model needs at least one to go on from")
        if one.source is not None and source is not None and len(one.source) > source:
            raise UsageError(f"prompt {number + 1} has {len(one.source)} tokens; this model has positions for {source}")
        if own is not None and len(one.prompt) + new - 1 > own:
            raise UsageError(
                f"{len(one.prompt)} tokens of prompt {number + 1} and {new} new ones; this model has positions for "
                f"{own} in all; shorten the prompt, or ask for fewer"
            )


def _split_groups(order: Sequence[int], max_size: int) -> Iterator[list[int]]:
    """Equal groups, so that a captured step serves all of them: the last is filled up with what it ends in.

    >>> [*_split_groups([4, 2, 0, 1, 3], 3)]
    [[4, 2, 0], [1, 3, 3]]
    """
    if order:
        size = -(-len(order) // -(-len(order) // max_size))
        for first in range(0, len(order), size):
            group = list(order[first : first + size])
            yield group + group[-1:] * (size - len(group))


def _drop_seed(decoding: GenerationConfig) -> GenerationConfig:
    """What a captured step is made for: the numbers that are drawn are not in it."""
    search = decoding.search
    return replace(decoding, search=replace(search, seed=0)) if isinstance(search, Sampling) else decoding


def _round_up(size: int, longest: int | None) -> int:
    full = -(-size // CACHE_ALIGNMENT) * CACHE_ALIGNMENT
    return full if longest is None else max(min(full, longest), size)
