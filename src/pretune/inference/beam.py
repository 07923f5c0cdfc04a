"""Beam search: the likeliest texts, several at a time, as `transformers` finds them.

Legend: P prompts, n beams, K candidates (2 n or more, so that n remain when some end), N new tokens at most, V words.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pretune.core.errors import UsageError
from pretune.inference.decoding_state import GeneratedTokens, adjust_logits, fill_history, find_eos, strip_eos
from pretune.inference.generation_config import BeamSearch, GenerationConfig
from pretune.inference.generation_tokens import GenerationTokens

EXCLUDED_SCORE = -1.0e9
"""What a beam that may not be chosen has as its score, or as a part of it."""


class BeamSearchState:
    """The running texts of each prompt, best first, and the best that have ended. Changed in place, as `Rows` is."""

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
        count, size, most = prompts, search.beams, decoding.max_new_tokens

        def whole(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.history, self.history_lengths = whole(count * size, columns), whole(count * size)
        self.tokens, self.count = whole(count * size), whole()
        self.scores, self.texts = whole(count, size, dtype=torch.float32), whole(count, size, most)
        self.best_scores, self.best_texts = whole(count, size, dtype=torch.float32), whole(count, size, most)
        self.best_lengths, self.is_complete = whole(count, size), whole(count, size, dtype=torch.bool)
        self.is_finite = torch.ones((), dtype=torch.bool, device=device)  # whether all logits were
        self.is_open = whole(count, 1, dtype=torch.bool)  # whether a running text may yet be among the best
        lengths = torch.arange(most + 1, dtype=torch.float64).clamp(min=1) ** search.length_penalty
        self.divisors = lengths.float().to(device)
        self.row_offsets = (torch.arange(count, device=device) * size)[:, None]

    def load(self, prompts: Sequence[Sequence[int]], requests: Sequence[int], seed: int) -> None:
        """Begin with prompts: of equal beams only the first may go on. Nothing is drawn."""
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
        """Go on with the best texts: the rows `[P n]` that they go on from."""
        prompts, size = self.scores.shape
        self.is_finite.logical_and_(torch.isfinite(logits).all())
        known = adjust_logits(
            logits.float().log_softmax(-1),
            self.history,
            self.history_lengths,
            self.count,
            self.decoding,
            self.generation_tokens,
        )
        vocab = known.shape[-1]
        total = (known.view(prompts, size, vocab) + self.scores[:, :, None]).flatten(1)
        kept = max(2, 1 + len(self.generation_tokens.eos)) * size
        if kept > total.shape[1]:
            raise UsageError(f"{size} beams are too many for a vocabulary of {vocab}")
        top, index = total.topk(kept)
        parent, token = index // vocab, index % vocab  # [P, K]
        texts = _gather_rows(self.texts, parent).scatter(2, self.count.expand(prompts, kept, 1), token[:, :, None])
        last = self.count + 1 >= self.decoding.max_new_tokens
        over = find_eos(token, self.generation_tokens.eos) | last
        self._store_complete(top, texts, over)
        scores, chosen = (top + over * EXCLUDED_SCORE).topk(size)
        self.scores.copy_(scores)
        self.texts.copy_(_gather_rows(texts, chosen))
        self.tokens.copy_(token.gather(1, chosen).flatten())
        rows = (parent.gather(1, chosen) + self.row_offsets).flatten()
        self.history.copy_(self.history.index_select(0, rows))
        self.history.scatter_(1, self.history_lengths[:, None], self.tokens[:, None])
        self.history_lengths.add_(1)
        self.count.add_(1)
        self._close_prompts()
        return rows

    def _store_complete(self, candidate_scores: Tensor, texts: Tensor, is_final: Tensor) -> None:
        """Put texts that have just ended among the best, if they are among the first n candidates and good enough."""
        size = self.scores.shape[1]
        just = is_final & (torch.arange(candidate_scores.shape[1], device=candidate_scores.device) < size)
        value = candidate_scores / self.divisors.gather(0, (self.count + 1)[None])
        if self.search.early_stopping is True:
            value = value + self.is_complete.all(-1, keepdim=True) * EXCLUDED_SCORE
        value = value + ~self.is_open * EXCLUDED_SCORE + ~just * EXCLUDED_SCORE
        scores, chosen = torch.cat((self.best_scores, value), 1).topk(size)
        lengths = torch.cat((self.best_lengths, (self.count + 1).expand_as(candidate_scores)), 1)
        self.best_texts.copy_(_gather_rows(torch.cat((self.best_texts, texts), 1), chosen))
        self.best_lengths.copy_(lengths.gather(1, chosen))
        self.is_complete.copy_(torch.cat((self.is_complete, just), 1).gather(1, chosen))
        self.best_scores.copy_(scores)

    def _close_prompts(self) -> None:
        """A prompt is closed when its best running text could not come among the best that have ended."""
        ahead = self.search.early_stopping == "never" and self.search.length_penalty > 0
        length = torch.full_like(self.count, self.decoding.max_new_tokens) if ahead else self.count
        possible = self.scores[:, :1] / self.divisors.gather(0, length[None])
        worst = torch.where(self.is_complete, self.best_scores.amin(1, keepdim=True), EXCLUDED_SCORE)
        self.is_open.logical_and_((possible > worst).any(1, keepdim=True))

    def is_finished(self) -> bool:
        """Whether no prompt can improve. Waits for the device."""
        closed = ~self.is_open
        if self.search.early_stopping is True:
            closed = closed | self.is_complete.all(-1, keepdim=True)
        return bool(closed.all())

    def collect_results(self) -> list[list[GeneratedTokens]]:
        """The best texts of each prompt, best first."""
        found = []
        parts = (self.best_texts.tolist(), self.best_lengths.tolist(), self.best_scores.tolist())
        for texts, lengths, scores in zip(*parts, strict=True):
            cut = [
                strip_eos(text[:n], self.generation_tokens, score)
                for text, n, score in zip(texts, lengths, scores, strict=True)
            ]
            found.append(cut[: self.decoding.returns])
        return found


def _gather_rows(values: Tensor, index: Tensor) -> Tensor:
    """Of `[P, m, N]` the rows `[P, k]` of each prompt."""
    return values.gather(1, index[:, :, None].expand(-1, -1, values.shape[2]))
