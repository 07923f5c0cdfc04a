"""Where our linear layers lie in the reference's modules, told by the family's own name map.

A reference may hold queries, keys and values in one layer; then three of our layers share one place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pretune.adaptation.peft.base import TARGETS, linears
from pretune.models.hf.checkpoint import NATIVE, describe, weights_of
from pretune.models.hf.weights import Fused, Interleaved, Packing, Same, Turned, plan
from pretune.models.model import empty
from pretune.models.spec import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A linear layer of the reference: its module's path, our layers in it, and how many rows each has there."""

    theirs: str
    ours: tuple[str, ...]
    rows: tuple[int, ...]
    packing: Packing
    spec: Model

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        """`[rows of each, n]` of our layers as `[rows of all, n]` of theirs, in their order."""
        packed = self.packing.pack(list(parts), self.spec)
        return packed.t() if self._turned else packed

    def unpack(self, whole: Tensor) -> list[Tensor]:
        """The other way."""
        parts = self.packing.unpack(whole.t() if self._turned else whole, list(self.rows), self.spec)
        return [part.contiguous() for part in parts]

    @property
    def _turned(self) -> bool:
        return isinstance(self.packing, Turned) or (isinstance(self.packing, Fused) and self.packing.turned)


def places(spec: Model) -> list[Place] | None:
    """The place of every linear layer of the blocks; None where no reference class holds them as such."""
    found, rules, strip, _ = describe(spec)
    if found["model_type"] == NATIVE:
        return None
    model = empty(spec)
    ours = {f"{path}.weight" for path, _, _, _ in linears(model, TARGETS)}
    sizes = {name: tensor.shape[0] for name, tensor in weights_of(model)}
    out = []
    for move in plan(sizes, rules):
        if ours.isdisjoint(move.ours):
            continue
        if not isinstance(move.packing, Same | Turned | Fused | Interleaved):
            return None
        theirs = move.theirs.removeprefix(strip)
        if not theirs.endswith(".weight"):
            return None
        out.append(
            Place(
                theirs=theirs.removesuffix(".weight"),
                ours=tuple(name.removesuffix(".weight") for name in move.ours),
                rows=tuple(sizes[name] for name in move.ours),
                packing=move.packing,
                spec=spec,
            )
        )
    return out


def spread(part: Tensor, start: int, columns: int) -> Tensor:
    """A matrix as the columns from `start` on of a wider one that is zero elsewhere: one block of a block diagonal."""
    out = torch.zeros(part.shape[0], columns, dtype=part.dtype, device=part.device)
    out[:, start : start + part.shape[1]] = part
    return out
