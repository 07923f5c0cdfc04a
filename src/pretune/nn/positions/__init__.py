"""Position encodings. A stack has one or none.

Each acts in one place, its `mechanism`: `input` (a vector added to the embedding), `rotation` of queries and keys, or a
`bias` on attention scores. All modules are stateless except for learned tables.
"""

from pretune.nn.positions.alibi import Alibi
from pretune.nn.positions.learned import LearnedEmbedding
from pretune.nn.positions.relative import RelativeBias
from pretune.nn.positions.rotary import BandedScaling, LinearScaling, Rotary
from pretune.nn.positions.sinusoidal import Sinusoidal

Position = LearnedEmbedding | Sinusoidal | Rotary | Alibi | RelativeBias

__all__ = [
    "Alibi",
    "BandedScaling",
    "LearnedEmbedding",
    "LinearScaling",
    "Position",
    "RelativeBias",
    "Rotary",
    "Sinusoidal",
]
