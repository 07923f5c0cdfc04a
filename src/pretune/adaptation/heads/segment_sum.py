"""Sums over groups of rows that lie in one flat tensor, with static shapes."""

import torch
from torch import Tensor


def segment_logsumexp(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """`[R, D]` to the logarithm of the sum of exponentials in each group `[groups, D]`; 0 for a group without rows."""
    where = group[:, None].expand_as(values)
    tops = values.new_full((groups, values.shape[1]), -torch.inf).scatter_reduce(0, where, values.detach(), "amax")
    tops = tops.where(tops.isfinite(), 0.0)
    sums = torch.zeros_like(tops).index_add(0, group, (values - tops[group]).exp())
    return sums.where(sums > 0, 1.0).log() + tops
