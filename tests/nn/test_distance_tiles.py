"""The tiled kernels of disentangled attention beside it spelled out: on a GPU, elsewhere by Triton's interpreter."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.nn.interpreted import CUDA, DEVICE, MARKS, able, elsewhere, passes  # isort: split

from pretune.nn import distance_tiles as module
from pretune.nn.tiles import build_layout
from tests.nn.test_tiles import _bits

pytestmark = MARKS
DTYPE = torch.bfloat16 if CUDA else torch.float32  # NOTE: the interpreter multiplies the bits of bf16
SCALE = 0.2


class Case(NamedTuple):
    rows: int
    length: int
    heads: int = 2
    width: int = 16
    terms: tuple[str, ...] = ("c2p", "p2c")
    dropout: float = 0.0
    kept: int = module.MAX_SCORE_BYTES  # bytes of the scores' gradients


CASES = {
    "two blocks": Case(2, 70),
    "content to position": Case(1, 150, heads=1, terms=("c2p",)),
    "position to content, odd width": Case(1, 40, width=24, terms=("p2c",)),
    "whole blocks, a row at a time": Case(3, 64, heads=1, kept=1),
    "dropout": Case(2, 70, dropout=0.3),
    "one token": Case(2, 1),
}


class Inputs:
    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.case = case
        self.sequence = torch.sort(torch.randint(-1, 3, (case.rows, case.length)), -1)[0]
        tokens = case.rows * case.length
        sizes = {"q": tokens, "k": tokens, "v": tokens} | dict.fromkeys(case.terms, 2 * case.length)
        self.leaves = {
            name: torch.randn(n, case.heads, case.width).to(DEVICE, DTYPE).requires_grad_() for name, n in sizes.items()
        }
        self.seed = torch.tensor((123456789, 987654321), dtype=torch.int32, device=DEVICE)
        self.weights = torch.randn(tokens, case.heads, case.width).to(DEVICE, DTYPE)

    def found(self) -> tuple[Tensor, ...]:
        case, leaves = self.case, self.leaves
        layout = build_layout(self.sequence.flatten().to(DEVICE), None, case.rows)
        spans = module.find_spans(layout.q_sequence, module.BLOCK)
        out, _ = module._attend(
            leaves["q"], leaves["k"], leaves["v"], leaves.get("c2p"), leaves.get("p2c"), layout.q_sequence, spans,
            self.seed if case.dropout else None, SCALE, case.dropout,
        )  # fmt: skip
        return out, *torch.autograd.grad(out, [*leaves.values()], self.weights)

    def truth(self) -> tuple[Tensor, ...]:
        leaves = {name: leaf.detach().cpu().double().requires_grad_() for name, leaf in self.leaves.items()}
        out = self._spelled_out(leaves)
        return out, *torch.autograd.grad(out, [*leaves.values()], self.weights.cpu().double())

    def _spelled_out(self, leaves: dict[str, Tensor]) -> Tensor:
        case, n = self.case, self.case.length
        q, k, v = (leaves[name].view(case.rows, n, case.heads, case.width).transpose(1, 2) for name in "qkv")
        row = n - 1 - torch.arange(n)[:, None] + torch.arange(n)  # of the distance of query i and key j
        scores = q @ k.transpose(-1, -2)
        if "c2p" in leaves:
            scores = scores + torch.einsum("rhid,ijhd->rhij", q, leaves["c2p"][row])
        if "p2c" in leaves:
            scores = scores + torch.einsum("rhjd,ijhd->rhij", k, leaves["p2c"][row])
        seen = self.sequence[:, None, :, None] == self.sequence[:, None, None, :]
        chances = (scores * SCALE).masked_fill(~seen, -1e30).softmax(-1)
        if case.dropout:
            chances = chances * self._kept() / (1 - case.dropout)
        return (chances @ v).transpose(1, 2).flatten(0, 1)

    def _kept(self) -> Tensor:
        """The kernel's own draw, in whole numbers."""
        case, most = self.case, 2**32 - 1
        place = torch.arange(case.rows * case.heads).view(case.rows, case.heads, 1, 1)
        first, second = (int(seed) & most for seed in self.seed.cpu())
        mixed = ((place + first) & most) * 0x9E3779B1 & most
        one = mixed ^ (mixed >> 15)
        two = ((second ^ mixed) * 0x85EBCA6B) & most
        two = two ^ (two >> 13)
        mine, theirs = (_bits(torch.arange(case.length), s) for s in (one, two))
        x = ((mine[..., :, None] ^ theirs[..., None, :]) * 0x9E3779B1) & most
        x = ((x ^ (x >> 15)) * 0x846CA68B) & most
        return x >= round(case.dropout * 2**32)


@elsewhere
def test_by_the_interpreter() -> None:
    passes(__file__, len(CASES))


@able
@pytest.mark.parametrize("name", CASES)
def test_output_and_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    monkeypatch.setattr(module, "MAX_SCORE_BYTES", case.kept)
    inputs = Inputs(case)
    close = 1e-2 if CUDA else 2e-6
    for found, expected in zip(inputs.found(), inputs.truth(), strict=True):
        error = (found.cpu().double() - expected).abs().max() / expected.abs().max().clamp(min=1e-9)
        assert error < close or not expected.any()
