"""Rows that write one token after another: the likeliest, or one that is drawn.

All that changes lies in tensors of fixed shapes that are changed in place, so that a step can be captured once and
replayed. Legend: B rows, T columns, N new tokens at most.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pretune.core.seed import extend_mix, mix
from pretune.data.counters import to_uniform
from pretune.data.ragged import Ints
from pretune.inference import sampling
from pretune.inference.generation_config import GenerationConfig, GreedySearch, Sampling
from pretune.inference.generation_tokens import GenerationTokens


class GeneratedTokens(NamedTuple):
    """One text: its new tokens without the one that ended it, why it ended, and what a beam search thinks of it."""

    tokens: list[int]
    finish_reason: Literal["end", "length", "stop"]
    score: float | None = None


class DecodingState:
    """What rows have read and written, and the next choice of each."""

    def __init__(
        self,
        rows: int,
        columns: int,
        decoding: GenerationConfig,
        generation_tokens: GenerationTokens,
        device: torch.device,
    ) -> None:
        self.decoding, self.generation_tokens = decoding, generation_tokens
        self.history = torch.zeros(rows, columns, dtype=torch.long, device=device)
        self.history_lengths = torch.zeros(rows, dtype=torch.long, device=device)  # columns of the history that count
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)  # the last of them, not yet read
        self.count = torch.zeros((), dtype=torch.long, device=device)  # new tokens of each row
        self.is_done = torch.zeros(rows, dtype=torch.bool, device=device)
        self.is_finite = torch.ones((), dtype=torch.bool, device=device)  # whether all logits were
        self.uniform_draws = torch.zeros(rows, decoding.max_new_tokens, dtype=torch.float64, device=device)
        self.prompt_lengths = np.zeros(rows, dtype=np.int64)

    def load(self, prompts: Sequence[Sequence[int]], requests: Sequence[int], seed: int) -> None:
        """Begin with prompts, `returns` rows for each; `requests` are their numbers, which draws depend on."""
        every = [prompt for prompt in prompts for _ in range(self.decoding.returns)]
        self.prompt_lengths = fill_history(self.history, self.history_lengths, every)
        self.count.zero_()
        self.is_done.zero_()
        self.is_finite.fill_(True)
        if isinstance(self.decoding.search, Sampling):
            self.uniform_draws.copy_(draw_uniforms(seed, requests, *self.shape))

    @property
    def shape(self) -> tuple[int, int]:
        """Returns for each prompt, and new tokens."""
        return self.decoding.returns, self.decoding.max_new_tokens

    def choose(self, logits: Tensor) -> Tensor | None:
        """Take the next token of each row; no row goes on from another's."""
        self.is_finite.logical_and_(torch.isfinite(logits).all())
        logits = adjust_logits(
            logits.float(), self.history, self.history_lengths, self.count, self.decoding, self.generation_tokens
        )
        token = self._pick(logits)
        self.history.scatter_(1, self.history_lengths[:, None], token[:, None])
        self.history_lengths.add_(1)
        self.tokens.copy_(token)
        self.is_done.logical_or_(find_eos(token, self.generation_tokens.eos))
        self.count.add_(1)
        return None

    def is_finished(self) -> bool:
        """Whether every row has ended. Waits for the device."""
        return bool(self.is_done.all())

    def halt(self, rows: Sequence[int]) -> None:
        """End rows from outside."""
        self.is_done[torch.tensor(rows, device=self.is_done.device)] = True

    def read_new_tokens(self) -> list[list[int]]:
        """The new tokens of every row so far, up to the one that ended it. Waits for the device."""
        history, count = self.history.cpu().numpy(), int(self.count)
        cut = []
        for row, start in zip(history, self.prompt_lengths.tolist(), strict=True):
            tokens = row[start : start + count].tolist()
            last = next((i for i, token in enumerate(tokens) if token in self.generation_tokens.eos), count)
            cut.append(tokens[: last + 1])
        return cut

    def collect_results(self) -> list[list[GeneratedTokens]]:
        """What was written, by prompt."""
        found = [strip_eos(tokens, self.generation_tokens) for tokens in self.read_new_tokens()]
        size = self.decoding.returns
        return [found[i : i + size] for i in range(0, len(found), size)]

    def _pick(self, logits: Tensor) -> Tensor:
        search = self.decoding.search
        if isinstance(search, GreedySearch):
            return logits.argmax(-1)
        assert isinstance(search, Sampling)
        if search.temperature != 1:
            logits = logits / search.temperature
        if search.top_k is not None:
            logits = sampling.filter_top_k(logits, search.top_k)
        if search.top_p is not None and search.top_p < 1:
            logits = sampling.filter_top_p(logits, search.top_p)
        if search.min_p is not None:
            logits = sampling.filter_min_p(logits, search.min_p)
        now = self.count.expand(logits.shape[0])[:, None]
        return sampling.draw(logits, self.uniform_draws.gather(1, now).squeeze(1))


def adjust_logits(
    logits: Tensor,
    history: Tensor,
    history_lengths: Tensor,
    count: Tensor,
    decoding: GenerationConfig,
    generation_tokens: GenerationTokens,
) -> Tensor:
    """Logits `[B, V]` after what is discouraged and what is forced."""
    if decoding.repetition_penalty != 1:
        logits = sampling.apply_repetition_penalty(logits, history, history_lengths, decoding.repetition_penalty)
    if decoding.no_repeat_ngram:
        logits = sampling.ban_repeated_ngrams(logits, history, history_lengths, decoding.no_repeat_ngram)
    if decoding.min_new_tokens and generation_tokens.eos:
        ended = logits.clone()
        for end in generation_tokens.eos:
            if end < logits.shape[1]:
                ended[:, end] = sampling.NEG_INF
        logits = torch.where(count < decoding.min_new_tokens, ended, logits)
    for token, at in ((generation_tokens.forced_bos, 0), (generation_tokens.forced_eos, decoding.max_new_tokens - 1)):
        if token is not None:
            forced = torch.full_like(logits, sampling.NEG_INF)
            forced[:, token] = 0.0
            logits = torch.where(count == at, forced, logits)
    return logits


def find_eos(tokens: Tensor, eos: tuple[int, ...]) -> Tensor:
    """Which tokens end a text."""
    found = torch.zeros_like(tokens, dtype=torch.bool)
    for end in eos:
        found = found | (tokens == end)
    return found


def strip_eos(tokens: list[int], generation_tokens: GenerationTokens, score: float | None = None) -> GeneratedTokens:
    """A text without the token that ended it."""
    over = bool(tokens) and tokens[-1] in generation_tokens.eos
    return GeneratedTokens(tokens[:-1] if over else tokens, "end" if over else "length", score)


def fill_history(history: Tensor, history_lengths: Tensor, prompts: Sequence[Sequence[int]]) -> Ints:
    """Put prompts where a history begins; their lengths."""
    lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    block = np.zeros(tuple(history.shape), dtype=np.int64)
    for row, prompt in zip(block, prompts, strict=True):
        row[: len(prompt)] = prompt
    history.copy_(torch.from_numpy(block))
    history_lengths.copy_(torch.from_numpy(lengths))
    return lengths


def draw_uniforms(seed: int, requests: Sequence[int], returns: int, size: int) -> Tensor:
    """Numbers from 0 to below 1 `[requests x returns, size]`, each a function of the seed and of its own place."""
    keys = extend_mix(np.uint64(mix(seed)), np.asarray(requests, dtype=np.int64)[:, None, None])
    keys = extend_mix(keys, np.arange(returns)[:, None])
    return torch.from_numpy(to_uniform(extend_mix(keys, np.arange(size))).reshape(-1, size))
