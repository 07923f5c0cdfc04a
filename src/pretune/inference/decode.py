"""Autoregressive decoding, from token ids to token ids.

    generate_tokens(model, [[5, 8, 2], [7]], GenerationConfig(max_new_tokens=20))[0][0].tokens

A decoder continues its prompt; the decoder of an encoder-decoder generates from the encoder's source.
"""

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pretune.core.errors import UsageError
from pretune.inference.decoding_state import DecodingState, GeneratedTokens, SearchShape
from pretune.inference.engine import DecodingEngine, get_engine
from pretune.inference.generation_config import GenerationConfig, GenerationTokens
from pretune.inference.prefill_graph import run_prefill
from pretune.inference.prompts import get_length_limits
from pretune.inference.text_model import (
    column_major_weights,
    eval_mode,
    get_predictive_model,
    list_linear_weights,
    make_non_finite_error,
)
from pretune.models.model import LanguageModel

Tokens = Sequence[int] | NDArray[np.integer]

BATCH_ROWS = 64
"""Default number of rows decoded together."""
CHECK_INTERVAL = 16
"""Steps between two checks for finished rows, on devices where a check synchronizes."""
MIN_TRANSPOSE_TOKENS = 512
"""New tokens from which weights are stored by columns meanwhile, on a CPU."""
CACHE_ALIGNMENT = 64
"""Capacity of caches on a GPU is a multiple of this, so that prompts of other lengths reuse a captured step."""


class TokenCallback(Protocol):
    """Receives the new tokens of a row so far; returning True ends the row."""

    def __call__(self, request: int, return_index: int, tokens: list[int]) -> bool:
        """`request` is the number of the prompt, `return_index` that of its return."""


@dataclass(frozen=True)
class DecodingCallbacks:
    """Callbacks during decoding: the tokens of every row (not of beams), and the completed fraction (0 to 1).

    They are called after every `interval` steps; by default every step, on a GPU every 16 to avoid synchronization.
    """

    on_tokens: TokenCallback | None = None
    on_progress: Callable[[float], None] | None = None
    interval: int | None = None

    def report_progress(self, fraction: float) -> None:
        """Report the completed fraction, if there is a callback."""
        if self.on_progress is not None:
            self.on_progress(fraction)

    def scale_progress(self, number: int, groups: int) -> "DecodingCallbacks":
        """Return the callbacks of one of several groups: its fraction becomes that of all."""
        return replace(self, on_progress=lambda fraction: self.report_progress((number + fraction) / groups))


def generate_tokens(
    model: nn.Module,
    prompts: Sequence[Tokens],
    decoding: GenerationConfig | None = None,
    *,
    batch: int = BATCH_ROWS,
    generation_tokens: GenerationTokens | None = None,
    decoder_prompts: Sequence[Tokens] | None = None,
    prefix: bool = False,
    callbacks: DecodingCallbacks = DecodingCallbacks(),  # noqa: B008 (a frozen value)
    torch_compile: bool = False,
    numbers: Sequence[int] | None = None,
    capacity: int = 0,
) -> list[list[GeneratedTokens]]:
    """Generate `returns` texts for each prompt, best first for a beam search.

    `prompts` are the prompts of a decoder or the sources of an encoder-decoder, including special tokens. Its decoder
    starts by its config, or by `generation_tokens`, followed by `decoder_prompts` if given. With `prefix` attention is
    bidirectional within a decoder's prompt, for models trained so. At most `batch` rows (texts or beams) of similar
    length are decoded together; results are in the order of the prompts, and independent of it. `torch_compile`
    compiles prefill (on a GPU) and step first, which takes a minute and pays off for much text on a GPU. Random draws
    depend on the `numbers` of the prompts, by default their places. `capacity` is the least number of tokens for which
    a step is captured on a GPU, so that calls with other prompts share it.
    """
    language_model = get_predictive_model(model)
    check_can_generate(language_model)
    decoding = decoding or GenerationConfig()
    decoding.check_vocabulary(language_model.spec.vocab)
    generation_tokens = generation_tokens or GenerationTokens.from_model(language_model)
    if prefix and language_model.spec.is_encoder_decoder:
        raise UsageError("prefix=True needs a decoder, got an encoder-decoder")
    inputs, sources = _prepare_inputs(language_model, prompts, decoder_prompts, generation_tokens.start)
    job = GenerationJob(
        language_model, decoding, generation_tokens, prefix, torch_compile, inputs, sources, numbers, capacity
    )
    _check_lengths(job)
    order = np.argsort([-len(tokens) for tokens in job.sources or job.prompts], kind="stable").tolist()
    groups = [*_split_groups(order, max(batch // decoding.rows_per_prompt, 1))]
    rows = len(groups[0]) * decoding.rows_per_prompt if groups else 0
    weights = _list_product_weights(language_model, rows, len(groups) * rows * decoding.max_new_tokens)
    results: list[list[GeneratedTokens]] = [[] for _ in prompts]
    with eval_mode(language_model), column_major_weights(weights), _reduce_overhead(language_model):
        for number, group in enumerate(groups):
            group_results = _generate_group(job, group, callbacks.scale_progress(number, len(groups)))
            for request, group_result in zip(group, group_results, strict=True):
                results[request] = group_result
            callbacks.report_progress((number + 1) / len(groups))
    return results


def _reduce_overhead(model: LanguageModel) -> AbstractContextManager[Any]:
    """Return inference mode on a CPU: without the views and versions of autograd, 9 % of a small model's time.

    NOTE: on a GPU a captured step would keep buffers that cannot be changed outside of inference mode.
    """
    is_cpu = model.tokens.weight.device.type == "cpu"
    return torch.inference_mode() if is_cpu else nullcontext()


def _list_product_weights(model: LanguageModel, rows: int, tokens: int) -> list[Tensor]:
    """Return the weights that should be stored by columns while so many rows and tokens are generated.

    NOTE: measured on Neoverse-N1 with torch 2.13. Transposing takes 0.3 s for GPT-2 small, and pays off at 256 tokens.
    """
    if platform.machine() != "aarch64" or rows < 2 or tokens < MIN_TRANSPOSE_TOKENS:
        return []
    table = None if model.head is None else model.head.weight
    return [*list_linear_weights(model), model.tokens.weight if table is None else table]


def check_can_generate(model: LanguageModel) -> None:
    """Raise a UsageError if a model cannot generate."""
    if model.spec.decoder is None:
        raise UsageError(
            f"a model of shape '{model.spec.shape}' cannot generate text; fill masks with `pretune fill`, or use a "
            "decoder or an encoder-decoder"
        )
    if model.spec.reads_backward:
        raise UsageError("cannot generate: the model reads texts from their end; use the model of the other direction")
    if model.head is None:
        raise UsageError("cannot generate: the model has no vocabulary head; load one with its head")


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """Prompts of the decoder, sources of the encoder if there is one, and how to continue them."""

    model: LanguageModel
    decoding: GenerationConfig
    generation_tokens: GenerationTokens
    prefix: bool
    torch_compile: bool
    prompts: Sequence[list[int]]
    sources: Sequence[list[int]] | None
    numbers: Sequence[int] | None = None
    capacity: int = 0


def _prepare_inputs(
    model: LanguageModel, prompts: Sequence[Tokens], decoder_prompts: Sequence[Tokens] | None, start: int | None
) -> tuple[list[list[int]], list[list[int]] | None]:
    """Return the checked tokens of the decoder's prompts, and of the encoder's sources if there is one."""
    inputs = [_check_tokens(prompt, number, model) for number, prompt in enumerate(prompts)]
    if not model.spec.is_encoder_decoder:
        if decoder_prompts is not None:
            raise UsageError("decoder_prompts needs an encoder-decoder; extend the prompts of a decoder instead")
        return inputs, None
    assert start is not None
    prefixes = zip(decoder_prompts or [()] * len(prompts), inputs, strict=True)
    return [[start, *_check_tokens(prefix, number, model)] for number, (prefix, _) in enumerate(prefixes)], inputs


def _check_tokens(tokens: Tokens, number: int, model: LanguageModel) -> list[int]:
    """Convert tokens to a list; raises a UsageError for ids outside the vocabulary."""
    ids = np.asarray(tokens, dtype=np.int64)
    unknown_ids = ids[(ids < 0) | (ids >= model.spec.vocab)]
    if len(unknown_ids):
        raise UsageError(
            f"prompt {number + 1}: token ids must be from 0 to {model.spec.vocab - 1}, got {unknown_ids[0]}"
        )
    return [*ids.tolist()]


def _generate_group(
    job: GenerationJob, group: Sequence[int], callbacks: DecodingCallbacks
) -> list[list[GeneratedTokens]]:
    """Generate for the prompts of these numbers together."""
    model, decoding, device = job.model, job.decoding, job.model.tokens.weight.device
    prompts = [job.prompts[i] for i in group]
    sources = None if job.sources is None else [job.sources[i] for i in group]
    is_cuda, rows = device.type == "cuda", decoding.rows_per_prompt
    cache, logits = run_prefill(model, prompts, sources, prefix=job.prefix, torch_compile=job.torch_compile and is_cuda)
    capacity = max(map(len, prompts)) + decoding.max_new_tokens - 1  # the last token is never an input
    source_capacity = cache.cross[0].keys.shape[2] if cache.cross else 0
    if is_cuda:
        capacity = _round_up(max(capacity, job.capacity), get_length_limits(model)[1])
        source_capacity = _round_up(source_capacity, model.spec.max_length)
    shape = SearchShape(
        len(group), capacity, source_capacity, decoding.without_seed(), job.generation_tokens, job.torch_compile
    )
    engine = get_engine(model, shape)
    index = None if rows == 1 else torch.arange(len(group), device=device).repeat_interleave(rows)
    engine.load(cache, index)
    numbers = group if job.numbers is None else [job.numbers[i] for i in group]
    engine.search.load(prompts, numbers, getattr(decoding.search, "seed", 0))
    engine.search.choose(logits if index is None else logits.index_select(0, index))
    return _run_steps(engine, group, decoding, callbacks)


def _run_steps(
    engine: DecodingEngine, group: Sequence[int], decoding: GenerationConfig, callbacks: DecodingCallbacks
) -> list[list[GeneratedTokens]]:
    """Run decoding steps, calling back at intervals."""
    search, count = engine.search, 1
    default_interval = 1 if search.tokens.device.type == "cpu" else CHECK_INTERVAL
    stopped_rows: dict[int, list[int]] = {}
    while True:
        if not bool(search.is_finite):
            raise make_non_finite_error("logits")
        if callbacks.on_tokens is not None and isinstance(search, DecodingState):
            _notify_rows(search, group, callbacks.on_tokens, stopped_rows)
        callbacks.report_progress(count / decoding.max_new_tokens)
        if count >= decoding.max_new_tokens or search.is_finished():
            break
        for _ in range(min(callbacks.interval or default_interval, decoding.max_new_tokens - count)):
            engine.advance()
            count += 1
    results = search.collect_results()
    for row, tokens in stopped_rows.items():
        results[row // decoding.returns][row % decoding.returns] = GeneratedTokens(tokens, "stop")
    return results


def _notify_rows(
    search: DecodingState, group: Sequence[int], on_tokens: TokenCallback, stopped_rows: dict[int, list[int]]
) -> None:
    """Report the tokens of every running row, and stop the rows whose callback returns True."""
    ends, returns, newly_stopped = search.generation_tokens.eos, search.decoding.returns, []
    for row, tokens in enumerate(search.read_new_tokens()):
        text_tokens = tokens[:-1] if tokens and tokens[-1] in ends else tokens
        if row not in stopped_rows and on_tokens(group[row // returns], row % returns, text_tokens):
            stopped_rows[row] = text_tokens
            newly_stopped.append(row)
    if newly_stopped:
        search.halt(newly_stopped)


def _check_lengths(job: GenerationJob) -> None:
    """Raise a UsageError for empty prompts, and for prompts longer than the model's positions."""
    (source_limit, decoder_limit), new = get_length_limits(job.model), job.decoding.max_new_tokens
    for number, (prompt, source) in enumerate(zip(job.prompts, job.sources or job.prompts, strict=True), 1):
        if not prompt or not source:
            raise UsageError(f"prompt {number} has no tokens; a model needs at least one")
        if job.sources is not None and source_limit is not None and len(source) > source_limit:
            raise UsageError(f"prompt {number} has {len(source)} tokens; the model's limit is {source_limit}")
        if decoder_limit is not None and len(prompt) + new - 1 > decoder_limit:
            raise UsageError(
                f"prompt {number} has {len(prompt)} tokens, plus {new} new ones; the limit is {decoder_limit}; shorten "
                "the prompt, or lower max_new_tokens"
            )


def _split_groups(order: Sequence[int], max_size: int) -> Iterator[list[int]]:
    """Yield groups of equal size, so that one captured step serves all; the last is padded by repeating its last item.

    >>> [*_split_groups([4, 2, 0, 1, 3], 3)]
    [[4, 2, 0], [1, 3, 3]]
    """
    if order:
        size = -(-len(order) // -(-len(order) // max_size))
        for first in range(0, len(order), size):
            group = list(order[first : first + size])
            yield group + group[-1:] * (size - len(group))


def _round_up(size: int, max_length: int | None) -> int:
    aligned_size = -(-size // CACHE_ALIGNMENT) * CACHE_ALIGNMENT
    return aligned_size if max_length is None else max(min(aligned_size, max_length), size)
