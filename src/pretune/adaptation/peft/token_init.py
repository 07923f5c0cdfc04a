"""Initialization of virtual tokens from real ones."""

import torch
from torch import Tensor

from pretune.core.errors import UsageError
from pretune.models.model import LanguageModel

NUM_COMMON_TOKENS = 5000
"""Tokens are sampled from this many first ids of the vocabulary, which are the frequent ones."""


def choose_tokens(model: LanguageModel, count: int, tokens: tuple[int, ...] | None, seed: int) -> Tensor:
    """Return the ids of `count` tokens: those given, repeated as needed, or sampled ones that are not special."""
    if tokens is None:
        special = model.spec.special
        special_ids = {special.pad, special.bos, special.start, *special.eos}
        candidates = [token for token in range(min(model.spec.vocab, NUM_COMMON_TOKENS)) if token not in special_ids]
        indices = torch.randint(len(candidates), (count,), generator=torch.Generator().manual_seed(seed))
        ids = [candidates[number] for number in indices.tolist()]
    else:
        ids = [tokens[i % len(tokens)] for i in range(count)]
        if any(not 0 <= token < model.spec.vocab for token in ids):
            raise UsageError(f"tokens must be ids from 0 to {model.spec.vocab - 1}, got {ids}")
    return torch.tensor(ids, dtype=torch.long, device=model.tokens.weight.device)
