"""Beam search, with the same results as `transformers`.

Legend: P prompts, n beams, K candidates (2 n or more, so that n remain when some end), N new tokens at most, V words.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pretune.core.errors import UsageError
from pretune.inference.decoding_state import GeneratedTokens, adjust_logits, fill_history, find_eos, strip_eos
from pretune.inference.generation_config import BeamSearch, GenerationConfig, GenerationTokens

EXCLUDED_SCORE = -1.0e9
"""Score, or summand of a score, that excludes a beam."""


class BeamSearchState:
    """Running texts of each prompt, best first, and the best finished ones. Updated in place, like `DecodingState`."""

    def __init__(
        self,
        prompts: int,
        columns: int,
        decoding: GenerationConfig,
        generation_tokens: GenerationTokens,
        device: torch.device,
    ) -> None:
        search = decoding.search
        assert isinstance(search, BeamSearch)
        self.decoding, self.generation_tokens, self.search = decoding, generation_tokens, search
        prompt_count, beams, max_new_tokens = prompts, search.beams, decoding.max_new_tokens

        def allocate(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.history, self.history_lengths = allocate(prompt_count * beams, columns), allocate(prompt_count * beams)
        self.tokens, self.count = allocate(prompt_count * beams), allocate()
        self.scores = allocate(prompt_count, beams, dtype=torch.float32)
        self.texts = allocate(prompt_count, beams, max_new_tokens)
        self.best_scores = allocate(prompt_count, beams, dtype=torch.float32)
        self.best_texts = allocate(prompt_count, beams, max_new_tokens)
        self.best_lengths = allocate(prompt_count, beams)
        self.is_complete = allocate(prompt_count, beams, dtype=torch.bool)
        self.is_finite = torch.ones((), dtype=torch.bool, device=device)  # all logits so far were finite
        self.is_open = allocate(prompt_count, 1, dtype=torch.bool)  # a running text may still become one of the best
        lengths = torch.arange(max_new_tokens + 1, dtype=torch.float64).clamp(min=1) ** search.length_penalty
        self.divisors = lengths.float().to(device)
        self.row_offsets = (torch.arange(prompt_count, device=device) * beams)[:, None]

    def load(self, prompts: Sequence[Sequence[int]], requests: Sequence[int], seed: int) -> None:
        """Start with prompts: of the equal beams only the first may continue. No randomness is used."""
        fill_history(
            self.history, self.history_lengths, [prompt for prompt in prompts for _ in range(self.search.beams)]
        )
        for part in (self.count, self.texts, self.best_texts, self.best_lengths, self.is_complete):
            part.zero_()
        self.scores.fill_(EXCLUDED_SCORE)
        self.scores[:, 0] = 0.0
        self.best_scores.fill_(EXCLUDED_SCORE)
        self.is_open.fill_(True)
        self.is_finite.fill_(True)

    def choose(self, logits: Tensor) -> Tensor:
        """Extend the best texts; returns the rows `[P n]` that they continue."""
        prompts, size = self.scores.shape
        self.is_finite.logical_and_(torch.isfinite(logits).all())
        logprobs = adjust_logits(
            logits.float().log_softmax(-1),
            self.history,
            self.history_lengths,
            self.count,
            self.decoding,
            self.generation_tokens,
        )
        vocab = logprobs.shape[-1]
        total = (logprobs.view(prompts, size, vocab) + self.scores[:, :, None]).flatten(1)
        candidates = max(2, 1 + len(self.generation_tokens.eos)) * size
        if candidates > total.shape[1]:
            raise UsageError(f"too many beams for a vocabulary of {vocab}: {size}")
        top, index = total.topk(candidates)
        parent, token = index // vocab, index % vocab  # [P, K]
        texts = _gather_rows(self.texts, parent).scatter(
            2, self.count.expand(prompts, candidates, 1), token[:, :, None]
        )
        is_last = self.count + 1 >= self.decoding.max_new_tokens
        is_final = find_eos(token, self.generation_tokens.eos) | is_last
        self._store_complete(top, texts, is_final)
        scores, indices = (top + is_final * EXCLUDED_SCORE).topk(size)
        self.scores.copy_(scores)
        self.texts.copy_(_gather_rows(texts, indices))
        self.tokens.copy_(token.gather(1, indices).flatten())
        rows = (parent.gather(1, indices) + self.row_offsets).flatten()
        self.history.copy_(self.history.index_select(0, rows))
        self.history.scatter_(1, self.history_lengths[:, None], self.tokens[:, None])
        self.history_lengths.add_(1)
        self.count.add_(1)
        self._close_prompts()
        return rows

    def _store_complete(self, candidate_scores: Tensor, texts: Tensor, is_final: Tensor) -> None:
        """Store newly finished texts that are among the first n candidates and better than the stored ones."""
        size = self.scores.shape[1]
        is_new = is_final & (torch.arange(candidate_scores.shape[1], device=candidate_scores.device) < size)
        value = candidate_scores / self.divisors.gather(0, (self.count + 1)[None])
        if self.search.early_stopping is True:
            value = value + self.is_complete.all(-1, keepdim=True) * EXCLUDED_SCORE
        value = value + ~self.is_open * EXCLUDED_SCORE + ~is_new * EXCLUDED_SCORE
        scores, indices = torch.cat((self.best_scores, value), 1).topk(size)
        lengths = torch.cat((self.best_lengths, (self.count + 1).expand_as(candidate_scores)), 1)
        self.best_texts.copy_(_gather_rows(torch.cat((self.best_texts, texts), 1), indices))
        self.best_lengths.copy_(lengths.gather(1, indices))
        self.is_complete.copy_(torch.cat((self.is_complete, is_new), 1).gather(1, indices))
        self.best_scores.copy_(scores)

    def _close_prompts(self) -> None:
        """Close prompts whose best running text cannot beat the finished ones."""
        uses_max_length = self.search.early_stopping == "never" and self.search.length_penalty > 0
        length = torch.full_like(self.count, self.decoding.max_new_tokens) if uses_max_length else self.count
        best_possible = self.scores[:, :1] / self.divisors.gather(0, length[None])
        worst = torch.where(self.is_complete, self.best_scores.amin(1, keepdim=True), EXCLUDED_SCORE)
        self.is_open.logical_and_((best_possible > worst).any(1, keepdim=True))

    def is_finished(self) -> bool:
        """Return True if no prompt can improve. Synchronizes with the device."""
        is_closed = ~self.is_open
        if self.search.early_stopping is True:
            is_closed = is_closed | self.is_complete.all(-1, keepdim=True)
        return bool(is_closed.all())

    def collect_results(self) -> list[list[GeneratedTokens]]:
        """Return the best texts of each prompt, best first."""
        results = []
        parts = (self.best_texts.tolist(), self.best_lengths.tolist(), self.best_scores.tolist())
        for texts, lengths, scores in zip(*parts, strict=True):
            texts_of_prompt = [
                strip_eos(text[:n], self.generation_tokens, score)
                for text, n, score in zip(texts, lengths, scores, strict=True)
            ]
            results.append(texts_of_prompt[: self.decoding.returns])
        return results


def _gather_rows(values: Tensor, index: Tensor) -> Tensor:
    """Gather the rows `[P, k]` of `[P, m, N]` for each prompt."""
    return values.gather(1, index[:, :, None].expand(-1, -1, values.shape[2]))
