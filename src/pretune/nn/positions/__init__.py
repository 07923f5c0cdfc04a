"""How a stack knows where a token stands. One slot, filled by one of these or by nothing.

Each kind acts in one place, its `mechanism`: on the `input` (a vector added to the embedding), by `rotation` of queries and
keys, or as a `bias` on attention scores. All modules are stateless but for learned tables.
"""

from pretune.nn.positions.alibi import Alibi
from pretune.nn.positions.learned import Learned
from pretune.nn.positions.relative import RelativeBias
from pretune.nn.positions.rotary import Banded, LinearScaling, Rotary
from pretune.nn.positions.sinusoidal import Sinusoidal

Position = Learned | Sinusoidal | Rotary | Alibi | RelativeBias

__all__ = ["Alibi", "Banded", "Learned", "LinearScaling", "Position", "RelativeBias", "Rotary", "Sinusoidal"]
