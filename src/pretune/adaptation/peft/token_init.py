"""Real tokens that virtual ones start from."""

import torch
from torch import Tensor

from pretune.core.errors import UsageError
from pretune.models.model import LanguageModel

NUM_COMMON_TOKENS = 5000
"""They are taken among so many first ones of the vocabulary, which are the frequent ones."""


def choose_tokens(model: LanguageModel, count: int, tokens: tuple[int, ...] | None, seed: int) -> Tensor:
    """The ids of `count` tokens: those that are given, in turn, or some that are drawn, none of them special."""
    if tokens is None:
        special = model.spec.special
        kept = {special.pad, special.bos, special.start, *special.eos}
        known = [token for token in range(min(model.spec.vocab, NUM_COMMON_TOKENS)) if token not in kept]
        drawn = torch.randint(len(known), (count,), generator=torch.Generator().manual_seed(seed))
        chosen = [known[number] for number in drawn.tolist()]
    else:
        chosen = [tokens[i % len(tokens)] for i in range(count)]
        if any(not 0 <= token < model.spec.vocab for token in chosen):
            raise UsageError(f"tokens {chosen}: the vocabulary has the ids 0 to {model.spec.vocab - 1}")
    return torch.tensor(chosen, dtype=torch.long, device=model.tokens.weight.device)
