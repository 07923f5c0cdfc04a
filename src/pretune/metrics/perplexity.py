"""Perplexity and bits out of a summed loss. The unit is what one divides by: tokens, words or bytes of the same text.

Token perplexities of models with different vocabularies cannot be compared; those per word or byte can:

    perplexity(nats, tokens)   perplexity(nats, words)   bits(nats, bytes)
"""

import math

from pretune.core.errors import DataError


def perplexity(nats: float, units: float) -> float:
    """e to the mean loss; infinity where a float cannot hold it.

    >>> round(perplexity(2 * math.log(50), 2), 9)
    50.0
    """
    mean = _mean(nats, units)
    return math.exp(mean) if mean < 709 else math.inf


def bits(nats: float, units: float) -> float:
    """The mean loss in bits: of a text's bytes, what its compression by the model would need.

    >>> bits(8 * math.log(2), 4)
    2.0
    """
    return _mean(nats, units) / math.log(2)


def _mean(nats: float, units: float) -> float:
    if not units > 0:
        raise DataError(f"a loss over {units} units has no mean; at least one token, word or byte is needed")
    if math.isnan(nats):
        raise DataError("the summed loss is nan; find the batch that gave it")
    return nats / units
