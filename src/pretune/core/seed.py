"""Counter-based randomness: each draw is a function of (seed, epoch, sample, …), never of earlier draws.

Workers hold no random state, so they can be killed, moved or multiplied without changing the draws:

    rng = make_generator(seed, epoch, sample)       # the same three numbers give the same draws on any machine
    keys = mix_array((seed, epoch), samples)        # mix(seed, epoch, sample) for a whole array at once
    extend_mix(keys, positions)                     # mix(seed, epoch, sample, position) for arrays of both

The hash is a chain of SplitMix64 steps (Steele, Lea and Flood, 2014), as in java.util.SplittableRandom. For fixed
leading parts it is a bijection of the last part, so the samples of an epoch never share a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pretune.core.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_INCREMENT = (
    0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd: the increment of SplitMix64, and the initial state of a chain
)
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9  # the two multipliers of Stafford's "Mix13" finaliser
_MULTIPLIER_2 = 0x94D049BB133111EB
_MASK = 2**64 - 1


def mix(*parts: int) -> int:
    """Hash integers of 0 to 2**64 - 1 into one of the same range; order and number of the parts matter."""
    state = _INCREMENT
    for part in parts:
        if not 0 <= part <= _MASK:
            raise UsageError(f"a seed must be from 0 to 2**64 - 1, got {part if abs(part) < 10**40 else '…'}")
        state = ((state ^ int(part)) + _INCREMENT) & _MASK
        state = ((state ^ (state >> 30)) * _MULTIPLIER_1) & _MASK
        state = ((state ^ (state >> 27)) * _MULTIPLIER_2) & _MASK
        state ^= state >> 31
    return state


def mix_array(parts: Sequence[int], samples: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Compute `mix(*parts, sample)` for every sample of an array."""
    import numpy as np

    return extend_mix(np.uint64(mix(*parts)), samples)


def extend_mix(states: NDArray[np.uint64] | np.uint64, parts: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Extend many chains by one part: for `states` = `mix(*a)` return `mix(*a, part)`; the two arrays broadcast."""
    import numpy as np

    if parts.dtype.kind not in "ui" or (parts.dtype.kind == "i" and parts.size and parts.min() < 0):
        raise UsageError(f"samples must be integers >= 0, got {parts.dtype}")
    with np.errstate(over="ignore"):  # wrap-around is intended; numpy warns about it for 0-d arrays
        state = (parts.astype(np.uint64) ^ states) + np.uint64(_INCREMENT)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(_MULTIPLIER_1)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(_MULTIPLIER_2)
        return np.asarray(state ^ (state >> np.uint64(31)))


def make_generator(*parts: int) -> np.random.Generator:
    """Return a numpy generator (Philox, itself counter-based) keyed by these parts."""
    import numpy as np

    return np.random.Generator(np.random.Philox(key=mix(*parts)))
