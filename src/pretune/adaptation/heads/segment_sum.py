"""Segment reductions over the rows of a flat tensor, with static shapes."""

import torch
from torch import Tensor


def segment_logsumexp(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """Return the log-sum-exp of the rows `[R, D]` of each group `[groups, D]`; 0 for an empty group."""
    index = group[:, None].expand_as(values)
    tops = values.new_full((groups, values.shape[1]), -torch.inf).scatter_reduce(0, index, values.detach(), "amax")
    tops = tops.where(tops.isfinite(), 0.0)
    sums = torch.zeros_like(tops).index_add(0, group, (values - tops[group]).exp())
    return sums.where(sums > 0, 1.0).log() + tops
