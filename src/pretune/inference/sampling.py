"""Pure functions on logits: penalties, filters and sampling. Shapes are static; nothing synchronizes.

Legend: B rows, V vocabulary, T columns of the token history.
"""

import torch
from torch import Tensor

NEG_INF = float("-inf")


def apply_repetition_penalty(logits: Tensor, history: Tensor, history_lengths: Tensor, penalty: float) -> Tensor:
    """Penalize the logits `[B, V]` of tokens in the history (with a penalty below 1: favor them)."""
    is_repeated = _mark_tokens(
        logits, history, torch.arange(history.shape[1], device=history.device) < history_lengths[:, None]
    )
    return torch.where(is_repeated, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


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
