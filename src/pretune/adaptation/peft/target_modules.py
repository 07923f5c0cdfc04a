"""Mapping of our linear layers to the reference's modules (transformers), derived from the family's name map.

A reference may hold queries, keys and values in one layer; then three of our layers share one module.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pretune.adaptation.peft.base import TARGETS, find_linears
from pretune.models.hf.checkpoint import NATIVE_TYPE, describe_checkpoint, iterate_weights
from pretune.models.hf.weights import (
    FusedPacking,
    IdentityPacking,
    InterleavedPacking,
    Packing,
    TransposedPacking,
    plan_moves,
)
from pretune.models.model import build_empty
from pretune.models.spec import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftLayer:
    """A linear layer of the reference: its module path, our layers in it, and the rows of each."""

    peft_path: str
    paths: tuple[str, ...]
    rows: tuple[int, ...]
    packing: Packing
    spec: Model

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        """Pack our layers, each `[rows, n]`, into the reference's `[rows of all, n]`, in its order."""
        tensor = self.packing.pack(list(parts), self.spec)
        return tensor.t() if self._is_transposed else tensor

    def unpack(self, tensor: Tensor) -> list[Tensor]:
        """Unpack a tensor of the reference into those of our layers."""
        parts = self.packing.unpack(tensor.t() if self._is_transposed else tensor, list(self.rows), self.spec)
        return [part.contiguous() for part in parts]

    @property
    def _is_transposed(self) -> bool:
        return isinstance(self.packing, TransposedPacking) or (
            isinstance(self.packing, FusedPacking) and self.packing.is_transposed
        )


def list_peft_layers(spec: Model) -> list[PeftLayer] | None:
    """Return all linear layers of the blocks; None if no reference class holds them as linear layers."""
    hf_config, rules, strip, _ = describe_checkpoint(spec)
    if hf_config["model_type"] == NATIVE_TYPE:
        return None
    model = build_empty(spec)
    ours = {f"{path}.weight" for path, _, _, _ in find_linears(model, TARGETS)}
    sizes = {name: tensor.shape[0] for name, tensor in iterate_weights(model)}
    out = []
    for move in plan_moves(sizes, rules):
        if ours.isdisjoint(move.param_names):
            continue
        if not isinstance(move.packing, IdentityPacking | TransposedPacking | FusedPacking | InterleavedPacking):
            return None
        theirs = move.tensor_name.removeprefix(strip)
        if not theirs.endswith(".weight"):
            return None
        out.append(
            PeftLayer(
                peft_path=theirs.removesuffix(".weight"),
                paths=tuple(name.removesuffix(".weight") for name in move.param_names),
                rows=tuple(sizes[name] for name in move.param_names),
                packing=move.packing,
                spec=spec,
            )
        )
    return out


def pad_columns(part: Tensor, start: int, columns: int) -> Tensor:
    """Return a zero matrix with `part` in the columns from `start` on: one block of a block diagonal."""
    out = torch.zeros(part.shape[0], columns, dtype=part.dtype, device=part.device)
    out[:, start : start + part.shape[1]] = part
    return out
