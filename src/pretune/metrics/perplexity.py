"""Perplexity and bits from a summed loss, per token, word or byte.

Token perplexities of models with different vocabularies are not comparable; those per word or byte are:

    perplexity(nats, tokens)   perplexity(nats, words)   bits(nats, bytes)
"""

import math

from pretune.core.errors import DataError


def perplexity(nats: float, units: float) -> float:
    """Exponential of the mean loss; infinity if a float overflows.

    >>> round(perplexity(2 * math.log(50), 2), 9)
    50.0
    """
    mean = _mean(nats, units)
    return math.exp(mean) if mean < 709 else math.inf


def bits(nats: float, units: float) -> float:
    """Mean loss in bits; per byte, the size of the text compressed by the model.

    >>> bits(8 * math.log(2), 4)
    2.0
    """
    return _mean(nats, units) / math.log(2)


def _mean(nats: float, units: float) -> float:
    if not units > 0:
        raise DataError(f"units must be > 0 for a mean loss, got {units}")
    if math.isnan(nats):
        raise DataError("the summed loss is nan; check the batch it comes from")
    return nats / units
