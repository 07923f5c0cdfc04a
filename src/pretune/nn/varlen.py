"""FlashAttention over flat tokens with offsets, for all supported torch releases.

A separate module because its import takes as long as that of torch; CPU code never needs it.
"""

import inspect
from typing import Any

from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

OPTIONS = frozenset(inspect.signature(varlen_attn).parameters)
SUPPORTS_GQA = "enable_gqa" in OPTIONS


def attend_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: tuple[Tensor, Tensor],
    lengths: tuple[int, int],
    *,
    causal: bool,
    window: int | None,
    scale: float,
) -> Tensor:
    """Attend from queries `[N, H, D]` to the keys of their cell; `lengths` are the maximum cell lengths."""
    extra: dict[str, Any] = {"enable_gqa": True} if k.shape[1] != q.shape[1] else {}
    if "window_size" in OPTIONS:
        reach = -1 if window is None else window - 1
        extra["window_size"] = (reach, 0 if causal else reach)
    else:
        assert window is None, "this torch has no window in varlen attention"
        extra["is_causal"] = causal
    out: Tensor = varlen_attn(q, k, v, *offsets, *lengths, scale=scale, **extra)  # type: ignore[assignment]
    return out
