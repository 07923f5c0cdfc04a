"""Beam search: the likeliest texts, several at a time, as `transformers` finds them.

Legend: P prompts, n beams, K candidates (2 n or more, so that n remain when some end), N new tokens at most, V words.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pretune.core.errors import UsageError
from pretune.inference.decoding_state import Written, adjusted, among, fill_history, stripped
from pretune.inference.generation_config import Beam, Decoding
from pretune.inference.generation_tokens import Marks

FAR = -1.0e9
"""What a beam that may not be chosen has as its score, or as a part of it."""


class Beams:
    """The running texts of each prompt, best first, and the best that have ended. Changed in place, as `Rows` is."""

    def __init__(self, prompts: int, columns: int, decoding: Decoding, marks: Marks, device: torch.device) -> None:
        search = decoding.search
        assert isinstance(search, Beam)
        self.decoding, self.marks, self.search = decoding, marks, search
        count, size, most = prompts, search.beams, decoding.max_new_tokens

        def whole(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.history, self.known = whole(count * size, columns), whole(count * size)
        self.tokens, self.count = whole(count * size), whole()
        self.scores, self.texts = whole(count, size, dtype=torch.float32), whole(count, size, most)
        self.best_scores, self.best_texts = whole(count, size, dtype=torch.float32), whole(count, size, most)
        self.best_lengths, self.ended = whole(count, size), whole(count, size, dtype=torch.bool)
        self.finite = torch.ones((), dtype=torch.bool, device=device)  # whether all logits were
        self.open = whole(count, 1, dtype=torch.bool)  # whether a running text may yet be among the best
        lengths = torch.arange(most + 1, dtype=torch.float64).clamp(min=1) ** search.length_penalty
        self.divisors = lengths.float().to(device)
        self.first = (torch.arange(count, device=device) * size)[:, None]

    def load(self, prompts: Sequence[Sequence[int]], requests: Sequence[int], seed: int) -> None:
        """Begin with prompts: of equal beams only the first may go on. Nothing is drawn."""
        fill_history(self.history, self.known, [prompt for prompt in prompts for _ in range(self.search.beams)])
        for part in (self.count, self.texts, self.best_texts, self.best_lengths, self.ended):
            part.zero_()
        self.scores.fill_(FAR)
        self.scores[:, 0] = 0.0
        self.best_scores.fill_(FAR)
        self.open.fill_(True)
        self.finite.fill_(True)

    def choose(self, logits: Tensor) -> Tensor:
        """Go on with the best texts: the rows `[P n]` that they go on from."""
        prompts, size = self.scores.shape
        self.finite.logical_and_(torch.isfinite(logits).all())
        known = adjusted(
            logits.float().log_softmax(-1), self.history, self.known, self.count, self.decoding, self.marks
        )
        vocab = known.shape[-1]
        total = (known.view(prompts, size, vocab) + self.scores[:, :, None]).flatten(1)
        kept = max(2, 1 + len(self.marks.ends)) * size
        if kept > total.shape[1]:
            raise UsageError(f"{size} beams are too many for a vocabulary of {vocab}")
        top, index = total.topk(kept)
        parent, token = index // vocab, index % vocab  # [P, K]
        texts = _rows(self.texts, parent).scatter(2, self.count.expand(prompts, kept, 1), token[:, :, None])
        last = self.count + 1 >= self.decoding.max_new_tokens
        over = among(token, self.marks.ends) | last
        self._keep(top, texts, over)
        scores, chosen = (top + over * FAR).topk(size)
        self.scores.copy_(scores)
        self.texts.copy_(_rows(texts, chosen))
        self.tokens.copy_(token.gather(1, chosen).flatten())
        rows = (parent.gather(1, chosen) + self.first).flatten()
        self.history.copy_(self.history.index_select(0, rows))
        self.history.scatter_(1, self.known[:, None], self.tokens[:, None])
        self.known.add_(1)
        self.count.add_(1)
        self._close()
        return rows

    def _keep(self, top: Tensor, texts: Tensor, over: Tensor) -> None:
        """Put texts that have just ended among the best, if they are among the first n candidates and good enough."""
        size = self.scores.shape[1]
        just = over & (torch.arange(top.shape[1], device=top.device) < size)
        value = top / self.divisors.gather(0, (self.count + 1)[None])
        if self.search.early_stopping is True:
            value = value + self.ended.all(-1, keepdim=True) * FAR
        value = value + ~self.open * FAR + ~just * FAR
        scores, chosen = torch.cat((self.best_scores, value), 1).topk(size)
        lengths = torch.cat((self.best_lengths, (self.count + 1).expand_as(top)), 1)
        self.best_texts.copy_(_rows(torch.cat((self.best_texts, texts), 1), chosen))
        self.best_lengths.copy_(lengths.gather(1, chosen))
        self.ended.copy_(torch.cat((self.ended, just), 1).gather(1, chosen))
        self.best_scores.copy_(scores)

    def _close(self) -> None:
        """A prompt is closed when its best running text could not come among the best that have ended."""
        ahead = self.search.early_stopping == "never" and self.search.length_penalty > 0
        length = torch.full_like(self.count, self.decoding.max_new_tokens) if ahead else self.count
        possible = self.scores[:, :1] / self.divisors.gather(0, length[None])
        worst = torch.where(self.ended, self.best_scores.amin(1, keepdim=True), FAR)
        self.open.logical_and_((possible > worst).any(1, keepdim=True))

    def finished(self) -> bool:
        """Whether no prompt can improve. Waits for the device."""
        closed = ~self.open
        if self.search.early_stopping is True:
            closed = closed | self.ended.all(-1, keepdim=True)
        return bool(closed.all())

    def results(self) -> list[list[Written]]:
        """The best texts of each prompt, best first."""
        found = []
        parts = (self.best_texts.tolist(), self.best_lengths.tolist(), self.best_scores.tolist())
        for texts, lengths, scores in zip(*parts, strict=True):
            cut = [stripped(text[:n], self.marks, score) for text, n, score in zip(texts, lengths, scores, strict=True)]
            found.append(cut[: self.decoding.returns])
        return found


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Of `[P, m, N]` the rows `[P, k]` of each prompt."""
    return values.gather(1, index[:, :, None].expand(-1, -1, values.shape[2]))
