"""State of greedy decoding and sampling, one row per text, and functions on logits: penalties, filters, sampling.

All state is in tensors of fixed shape, updated in place, so that a step can be captured once and replayed.
Nothing synchronizes. Legend: B rows, T columns, N new tokens at most, V vocabulary.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pretune.core.seed import extend_mix, mix
from pretune.data.sampling import to_uniform
from pretune.data.sequences import Ints
from pretune.inference.generation_config import GenerationConfig, GenerationTokens, Sampling


class GeneratedTokens(NamedTuple):
    """New tokens of a text without the end token, why it ended, the score of a beam search, and the end token."""

    tokens: list[int]
    finish_reason: Literal["end", "length", "stop"]
    score: float | None = None
    end: int | None = None


class SearchShape(NamedTuple):
    """Sizes and settings that a captured step depends on, besides the weights of its model."""

    prompts: int
    capacity: int  # tokens of a row that are inputs, at most
    source: int
    decoding: GenerationConfig  # without its seed
    generation_tokens: GenerationTokens
    torch_compile: bool = False


class SearchState:
    """Tokens of each row so far, and the last ones: what all searches share."""

    def __init__(self, shape: SearchShape, device: torch.device) -> None:
        self.decoding, self.generation_tokens = shape.decoding, shape.generation_tokens
        rows = shape.prompts * shape.decoding.rows_per_prompt
        self.history = torch.zeros(rows, shape.capacity + 1, dtype=torch.long, device=device)
        self.history_lengths = torch.zeros(rows, dtype=torch.long, device=device)  # valid columns of the history
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)  # the last token, the next input
        self.count = torch.zeros((), dtype=torch.long, device=device)  # new tokens of each row
        self.is_finite = torch.ones((), dtype=torch.bool, device=device)  # all logits so far were finite
        self.prompt_lengths = np.zeros(rows, dtype=np.int64)
        self.process = LogitsProcessor(shape.decoding, shape.generation_tokens, device)

    def load(self, prompts: Sequence[Sequence[int]], requests: Sequence[int], seed: int) -> None:
        """Start with prompts, with equal rows for each; random draws depend on the seed and on their numbers."""
        rows = [prompt for prompt in prompts for _ in range(self.decoding.rows_per_prompt)]
        history, self.prompt_lengths = pad_rows(rows, self.history.shape[1])
        self.history.copy_(torch.from_numpy(history))
        self.history_lengths.copy_(torch.from_numpy(self.prompt_lengths))
        self.count.zero_()
        self.is_finite.fill_(True)

    def choose(self, logits: Tensor) -> Tensor | None:
        """Choose the next token of each row; returns the rows that they continue, None if each continues itself."""
        raise NotImplementedError

    def is_finished(self) -> bool:
        """Return True if no text can continue or improve. Synchronizes with the device."""
        raise NotImplementedError

    def collect_results(self) -> list[list[GeneratedTokens]]:
        """Return the generated tokens by prompt, best first."""
        raise NotImplementedError

    def _adjust(self, logits: Tensor) -> Tensor:
        return self.process(logits, self.history, self.history_lengths, self.count)

    def _append(self, tokens: Tensor) -> None:
        """Append a token to each row."""
        self.history.scatter_(1, self.history_lengths[:, None], tokens[:, None])
        self.history_lengths.add_(1)
        self.tokens.copy_(tokens)
        self.count.add_(1)


class DecodingState(SearchState):
    """Greedy decoding or sampling: a row is a text."""

    def __init__(self, shape: SearchShape, device: torch.device) -> None:
        super().__init__(shape, device)
        rows, max_new_tokens = len(self.tokens), shape.decoding.max_new_tokens
        self.is_done = torch.zeros(rows, dtype=torch.bool, device=device)
        self.uniform_draws = torch.zeros(rows, max_new_tokens, dtype=torch.float64, device=device)

    def load(self, prompts: Sequence[Sequence[int]], requests: Sequence[int], seed: int) -> None:
        super().load(prompts, requests, seed)
        self.is_done.zero_()
        if isinstance(self.decoding.search, Sampling):
            self.uniform_draws.copy_(draw_uniforms(seed, requests, self.decoding.returns, self.decoding.max_new_tokens))

    def choose(self, logits: Tensor) -> None:
        self.is_finite.logical_and_(torch.isfinite(logits).all())
        token = self._pick(self._adjust(logits.float()))
        self.is_done.logical_or_(find_eos(token, self.generation_tokens.eos))
        self._append(token)

    def is_finished(self) -> bool:
        return bool(self.is_done.all())

    def halt(self, rows: Sequence[int]) -> None:
        """Mark rows as ended."""
        self.is_done[torch.tensor(rows, device=self.is_done.device)] = True

    def read_new_tokens(self) -> list[list[int]]:
        """Return the new tokens of every row, up to and including the end token. Synchronizes with the device."""
        history, count = self.history.cpu().numpy(), int(self.count)
        results = []
        for row, start in zip(history, self.prompt_lengths.tolist(), strict=True):
            tokens = row[start : start + count].tolist()
            last = next((i for i, token in enumerate(tokens) if token in self.generation_tokens.eos), count)
            results.append(tokens[: last + 1])
        return results

    def collect_results(self) -> list[list[GeneratedTokens]]:
        texts = [strip_eos(tokens, self.generation_tokens) for tokens in self.read_new_tokens()]
        size = self.decoding.returns
        return [texts[i : i + size] for i in range(0, len(texts), size)]

    def _pick(self, logits: Tensor) -> Tensor:
        search = self.decoding.search
        if not isinstance(search, Sampling):
            return logits.argmax(-1)
        position = self.count.expand(logits.shape[0])[:, None]
        return sample_next(logits, search, self.uniform_draws.gather(1, position).squeeze(1))


MIN_TEMPERATURE = 1e-6
"""A lower temperature acts as this one: the most probable token, where logits over a lower one would overflow."""


def sample_next(logits: Tensor, search: Sampling, uniform_draws: Tensor) -> Tensor:
    """Sample the next token `[B]` of each row of logits `[B, V]` by draws `[B]` in [0, 1)."""
    if search.temperature != 1:
        logits = logits / max(search.temperature, MIN_TEMPERATURE)
    if search.top_k is not None:
        logits = filter_top_k(logits, search.top_k)
    if search.top_p is not None and search.top_p < 1:
        logits = filter_top_p(logits, search.top_p)
    if search.min_p is not None:
        logits = filter_min_p(logits, search.min_p)
    return draw(logits, uniform_draws)


class LogitsProcessor:
    """Penalties, bias, minimum length and forced tokens, applied to logits `[B, V]` in this order."""

    def __init__(self, decoding: GenerationConfig, generation_tokens: GenerationTokens, device: torch.device) -> None:
        self.decoding, self.generation_tokens = decoding, generation_tokens
        self.biased_tokens = torch.tensor([token for token, _ in decoding.logit_bias], dtype=torch.long, device=device)
        self.bias = torch.tensor([value for _, value in decoding.logit_bias], dtype=torch.float32, device=device)

    def __call__(self, logits: Tensor, history: Tensor, history_lengths: Tensor, count: Tensor) -> Tensor:
        """Return the logits; `count` is the number of new tokens of all rows, or of each `[B, 1]`."""
        decoding, special = self.decoding, self.generation_tokens
        if decoding.repetition_penalty != 1:
            logits = apply_repetition_penalty(logits, history, history_lengths, decoding.repetition_penalty)
        if decoding.no_repeat_ngram:
            logits = ban_repeated_ngrams(logits, history, history_lengths, decoding.no_repeat_ngram)
        if decoding.presence_penalty or decoding.frequency_penalty:
            occurrences = count_new_tokens(logits, history, history_lengths, count)
            logits = logits - occurrences * decoding.frequency_penalty - (occurrences > 0) * decoding.presence_penalty
        if decoding.logit_bias:
            logits = logits.index_add(1, self.biased_tokens, self.bias.to(logits.dtype).expand(len(logits), -1))
        if decoding.min_new_tokens and special.eos:
            without_eos = logits.clone()
            for end in special.eos:
                if end < logits.shape[1]:
                    without_eos[:, end] = NEG_INF
            logits = torch.where(count < decoding.min_new_tokens, without_eos, logits)
        for token, position in ((special.forced_bos, 0), (special.forced_eos, decoding.max_new_tokens - 1)):
            if token is not None:
                forced_logits = torch.full_like(logits, NEG_INF)
                forced_logits[:, token] = 0.0
                logits = torch.where(count == position, forced_logits, logits)
        return logits


def find_eos(tokens: Tensor, eos: tuple[int, ...]) -> Tensor:
    """Return a mask of end tokens."""
    is_eos = torch.zeros_like(tokens, dtype=torch.bool)
    for end in eos:
        is_eos = is_eos | (tokens == end)
    return is_eos


def strip_eos(tokens: list[int], generation_tokens: GenerationTokens, score: float | None = None) -> GeneratedTokens:
    """Remove the end token of a text."""
    has_eos = bool(tokens) and tokens[-1] in generation_tokens.eos
    if not has_eos:
        return GeneratedTokens(tokens, "length", score)
    return GeneratedTokens(tokens[:-1], "end", score, tokens[-1])


def pad_rows(rows: Sequence[Sequence[int]], columns: int) -> tuple[Ints, Ints]:
    """Return rows of tokens as a matrix `[B, T]` with zeros behind them, and their lengths."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    block = np.zeros((len(rows), columns), dtype=np.int64)
    for line, row in zip(block, rows, strict=True):
        line[: len(row)] = row
    return block, lengths


def draw_uniforms(seed: int, requests: Sequence[int], returns: int, size: int) -> Tensor:
    """Return uniforms in [0, 1) `[requests x returns, size]`, each a function of the seed and its position only."""
    keys = extend_mix(np.uint64(mix(seed)), np.asarray(requests, dtype=np.int64)[:, None, None])
    keys = extend_mix(keys, np.arange(returns)[:, None])
    return torch.from_numpy(to_uniform(extend_mix(keys, np.arange(size))).reshape(-1, size))


NEG_INF = float("-inf")


def apply_repetition_penalty(logits: Tensor, history: Tensor, history_lengths: Tensor, penalty: float) -> Tensor:
    """Penalize the logits `[B, V]` of tokens in the history (with a penalty below 1: favor them)."""
    is_repeated = _mark_tokens(
        logits, history, torch.arange(history.shape[1], device=history.device) < history_lengths[:, None]
    )
    return torch.where(is_repeated, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def count_new_tokens(logits: Tensor, history: Tensor, history_lengths: Tensor, count: Tensor) -> Tensor:
    """Return the occurrences `[B, V]` of each token among the last `count` tokens of the history (`[]` or `[B, 1]`)."""
    columns, lengths = torch.arange(history.shape[1], device=history.device), history_lengths[:, None]
    is_new = (columns >= lengths - count) & (columns < lengths)
    return torch.zeros_like(logits).scatter_add(1, history.where(is_new, 0), is_new.to(logits.dtype))


def ban_repeated_ngrams(logits: Tensor, history: Tensor, history_lengths: Tensor, size: int) -> Tensor:
    """Ban tokens that would complete an n-gram of `size` tokens already in the history."""
    columns = history.shape[1]
    if columns < size:
        return logits
    runs = history.unfold(1, size, 1)  # [B, T - size + 1, size]
    ends = torch.arange(size - 1, columns, device=history.device)  # last column of each run
    is_match = ends < history_lengths[:, None]
    if size > 1:
        steps = torch.arange(size - 1, device=history.device)
        latest = history.gather(
            1, (history_lengths[:, None] - (size - 1) + steps).clamp(min=0)
        )  # [B, size - 1] latest tokens
        is_match = is_match & (runs[..., :-1] == latest[:, None]).all(-1)
    return logits.masked_fill(_mark_tokens(logits, runs[..., -1], is_match), NEG_INF)


def filter_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k largest logits, and ties with the last of them."""
    threshold = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < threshold, NEG_INF)


def filter_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of most probable tokens with a total probability of at least `p`; at least one."""
    sorted_logits, index = logits.sort(descending=True)
    probabilities = sorted_logits.softmax(-1)
    is_removed = (probabilities.cumsum(-1) - probabilities) >= p
    is_removed[:, 0] = False
    return logits.masked_fill(torch.zeros_like(is_removed).scatter(1, index, is_removed), NEG_INF)


def filter_min_p(logits: Tensor, p: float) -> Tensor:
    """Keep the tokens at least `p` times as probable as the most probable one."""
    probabilities = logits.softmax(-1)
    return logits.masked_fill(probabilities < p * probabilities.amax(-1, keepdim=True), NEG_INF)


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """Sample a token `[B]` per row: the first whose cumulative probability exceeds `uniform` (in [0, 1))."""
    # NOTE: integers: on a GPU their sums are deterministic and monotonic, unlike floating-point sums.
    sums = (logits.softmax(-1).double() * 2.0**40).long().cumsum(-1)
    total = sums[:, -1:]
    thresholds = (uniform.double()[:, None] * total).long().minimum(total - 1)
    return torch.searchsorted(sums, thresholds, right=True).squeeze(1)


def _mark_tokens(logits: Tensor, tokens: Tensor, condition: Tensor) -> Tensor:
    """Return a mask `[B, V]` of the tokens `[B, n]` for which `condition` is true."""
    vocab = logits.shape[-1]
    # The last column collects tokens for which it is false.
    is_marked = torch.zeros(logits.shape[0], vocab + 1, dtype=torch.bool, device=logits.device)
    return is_marked.scatter(1, tokens.where(condition, vocab), True)[:, :vocab]
