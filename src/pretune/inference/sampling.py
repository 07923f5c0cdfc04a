"""Pure functions on logits: what is discouraged, what is cut, and the draw. Shapes are static; nothing waits.

Legend: B rows, V vocabulary, T columns of what has been read and written.
"""

import torch
from torch import Tensor

NEG_INF = float("-inf")


def apply_repetition_penalty(logits: Tensor, history: Tensor, history_lengths: Tensor, penalty: float) -> Tensor:
    """Logits `[B, V]` with those of tokens in `history[:, :known]` made less likely (more, with a penalty below 1)."""
    there = _mark_tokens(
        logits, history, torch.arange(history.shape[1], device=history.device) < history_lengths[:, None]
    )
    return torch.where(there, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def ban_repeated_ngrams(logits: Tensor, history: Tensor, history_lengths: Tensor, size: int) -> Tensor:
    """Logits `[B, V]` without the tokens that would complete a run of `size` tokens that is already there."""
    columns = history.shape[1]
    if columns < size:
        return logits
    runs = history.unfold(1, size, 1)  # [B, T - size + 1, size]
    ends = torch.arange(size - 1, columns, device=history.device)  # the column each run ends in
    same = ends < history_lengths[:, None]
    if size > 1:
        back = torch.arange(size - 1, device=history.device)
        last = history.gather(
            1, (history_lengths[:, None] - (size - 1) + back).clamp(min=0)
        )  # [B, size - 1] the latest tokens
        same = same & (runs[..., :-1] == last[:, None]).all(-1)
    return logits.masked_fill(_mark_tokens(logits, runs[..., -1], same), NEG_INF)


def filter_top_k(logits: Tensor, k: int) -> Tensor:
    """The k largest, and those that equal the last of them."""
    least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < least, NEG_INF)


def filter_top_p(logits: Tensor, p: float) -> Tensor:
    """The fewest tokens that have a share of `p` together, the likeliest first; at least one."""
    ordered, index = logits.sort(descending=True)
    share = ordered.softmax(-1)
    out = (share.cumsum(-1) - share) >= p
    out[:, 0] = False
    return logits.masked_fill(torch.zeros_like(out).scatter(1, index, out), NEG_INF)


def filter_min_p(logits: Tensor, p: float) -> Tensor:
    """The tokens that are at least `p` times as likely as the likeliest."""
    share = logits.softmax(-1)
    return logits.masked_fill(share < p * share.amax(-1, keepdim=True), NEG_INF)


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """A token `[B]` for each row: the first whose share, added to those before it, exceeds `chance` (0 to below 1)."""
    # NOTE: whole numbers, for on a GPU their sums always come out the same, in order, and those of others not.
    sums = (logits.softmax(-1).double() * 2.0**40).long().cumsum(-1)
    total = sums[:, -1:]
    aim = (uniform.double()[:, None] * total).long().minimum(total - 1)
    return torch.searchsorted(sums, aim, right=True).squeeze(1)


def _mark_tokens(logits: Tensor, tokens: Tensor, condition: Tensor) -> Tensor:
    """Bool `[B, V]`: the tokens `[B, n]` of each row for which `where` is true."""
    vocab = logits.shape[-1]
    marks = torch.zeros(logits.shape[0], vocab + 1, dtype=torch.bool, device=logits.device)  # the last: for the rest
    return marks.scatter(1, tokens.where(condition, vocab), True)[:, :vocab]
