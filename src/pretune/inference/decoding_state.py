"""Rows that write one token after another: the likeliest, or one that is drawn.

All that changes lies in tensors of fixed shapes that are changed in place, so that a step can be captured once and
replayed. Legend: B rows, T columns, N new tokens at most.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pretune.core.seed import mix, mix_more
from pretune.data.counters import unit
from pretune.data.ragged import Ints
from pretune.inference import sampling
from pretune.inference.generation_config import Decoding, Greedy, Sample
from pretune.inference.generation_tokens import Marks


class Written(NamedTuple):
    """One text: its new tokens without the one that ended it, why it ended, and what a beam search thinks of it."""

    tokens: list[int]
    ended: Literal["end", "length", "stop"]
    score: float | None = None


class Rows:
    """What rows have read and written, and the next choice of each."""

    def __init__(self, rows: int, columns: int, decoding: Decoding, marks: Marks, device: torch.device) -> None:
        self.decoding, self.marks = decoding, marks
        self.history = torch.zeros(rows, columns, dtype=torch.long, device=device)
        self.known = torch.zeros(rows, dtype=torch.long, device=device)  # columns of the history that count
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)  # the last of them, not yet read
        self.count = torch.zeros((), dtype=torch.long, device=device)  # new tokens of each row
        self.done = torch.zeros(rows, dtype=torch.bool, device=device)
        self.finite = torch.ones((), dtype=torch.bool, device=device)  # whether all logits were
        self.chance = torch.zeros(rows, decoding.max_new_tokens, dtype=torch.float64, device=device)
        self.begun = np.zeros(rows, dtype=np.int64)

    def load(self, prompts: Sequence[Sequence[int]], requests: Sequence[int], seed: int) -> None:
        """Begin with prompts, `returns` rows for each; `requests` are their numbers, which draws depend on."""
        every = [prompt for prompt in prompts for _ in range(self.decoding.returns)]
        self.begun = fill_history(self.history, self.known, every)
        self.count.zero_()
        self.done.zero_()
        self.finite.fill_(True)
        if isinstance(self.decoding.search, Sample):
            self.chance.copy_(chances(seed, requests, *self.shape))

    @property
    def shape(self) -> tuple[int, int]:
        """Returns for each prompt, and new tokens."""
        return self.decoding.returns, self.decoding.max_new_tokens

    def choose(self, logits: Tensor) -> Tensor | None:
        """Take the next token of each row; no row goes on from another's."""
        self.finite.logical_and_(torch.isfinite(logits).all())
        logits = adjusted(logits.float(), self.history, self.known, self.count, self.decoding, self.marks)
        token = self._pick(logits)
        self.history.scatter_(1, self.known[:, None], token[:, None])
        self.known.add_(1)
        self.tokens.copy_(token)
        self.done.logical_or_(among(token, self.marks.ends))
        self.count.add_(1)
        return None

    def finished(self) -> bool:
        """Whether every row has ended. Waits for the device."""
        return bool(self.done.all())

    def halt(self, rows: Sequence[int]) -> None:
        """End rows from outside."""
        self.done[torch.tensor(rows, device=self.done.device)] = True

    def new(self) -> list[list[int]]:
        """The new tokens of every row so far, up to the one that ended it. Waits for the device."""
        history, count = self.history.cpu().numpy(), int(self.count)
        cut = []
        for row, start in zip(history, self.begun.tolist(), strict=True):
            tokens = row[start : start + count].tolist()
            last = next((i for i, token in enumerate(tokens) if token in self.marks.ends), count)
            cut.append(tokens[: last + 1])
        return cut

    def results(self) -> list[list[Written]]:
        """What was written, by prompt."""
        found = [stripped(tokens, self.marks) for tokens in self.new()]
        size = self.decoding.returns
        return [found[i : i + size] for i in range(0, len(found), size)]

    def _pick(self, logits: Tensor) -> Tensor:
        search = self.decoding.search
        if isinstance(search, Greedy):
            return logits.argmax(-1)
        assert isinstance(search, Sample)
        if search.temperature != 1:
            logits = logits / search.temperature
        if search.top_k is not None:
            logits = sampling.only_top_k(logits, search.top_k)
        if search.top_p is not None and search.top_p < 1:
            logits = sampling.only_top_p(logits, search.top_p)
        if search.min_p is not None:
            logits = sampling.only_min_p(logits, search.min_p)
        now = self.count.expand(logits.shape[0])[:, None]
        return sampling.draw(logits, self.chance.gather(1, now).squeeze(1))


def adjusted(logits: Tensor, history: Tensor, known: Tensor, count: Tensor, decoding: Decoding, marks: Marks) -> Tensor:
    """Logits `[B, V]` after what is discouraged and what is forced."""
    if decoding.repetition_penalty != 1:
        logits = sampling.penalised(logits, history, known, decoding.repetition_penalty)
    if decoding.no_repeat_ngram:
        logits = sampling.unrepeated(logits, history, known, decoding.no_repeat_ngram)
    if decoding.min_new_tokens and marks.ends:
        ended = logits.clone()
        for end in marks.ends:
            if end < logits.shape[1]:
                ended[:, end] = sampling.NEVER
        logits = torch.where(count < decoding.min_new_tokens, ended, logits)
    for token, at in ((marks.first, 0), (marks.last, decoding.max_new_tokens - 1)):
        if token is not None:
            forced = torch.full_like(logits, sampling.NEVER)
            forced[:, token] = 0.0
            logits = torch.where(count == at, forced, logits)
    return logits


def among(tokens: Tensor, ends: tuple[int, ...]) -> Tensor:
    """Which tokens end a text."""
    found = torch.zeros_like(tokens, dtype=torch.bool)
    for end in ends:
        found = found | (tokens == end)
    return found


def stripped(tokens: list[int], marks: Marks, score: float | None = None) -> Written:
    """A text without the token that ended it."""
    over = bool(tokens) and tokens[-1] in marks.ends
    return Written(tokens[:-1] if over else tokens, "end" if over else "length", score)


def fill_history(history: Tensor, known: Tensor, prompts: Sequence[Sequence[int]]) -> Ints:
    """Put prompts where a history begins; their lengths."""
    lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    block = np.zeros(tuple(history.shape), dtype=np.int64)
    for row, prompt in zip(block, prompts, strict=True):
        row[: len(prompt)] = prompt
    history.copy_(torch.from_numpy(block))
    known.copy_(torch.from_numpy(lengths))
    return lengths


def chances(seed: int, requests: Sequence[int], returns: int, size: int) -> Tensor:
    """Numbers from 0 to below 1 `[requests x returns, size]`, each a function of the seed and of its own place."""
    keys = mix_more(np.uint64(mix(seed)), np.asarray(requests, dtype=np.int64)[:, None, None])
    keys = mix_more(keys, np.arange(returns)[:, None])
    return torch.from_numpy(unit(mix_more(keys, np.arange(size))).reshape(-1, size))
