"""Products with quantized weights beside torch: on a GPU as they are, elsewhere by Triton's interpreter if there."""

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.nn.interpreted import CUDA, DEVICE, MARKS, able, elsewhere, passes  # isort: split

from pretune.adaptation.peft.qlora import Linear4bit, Weight4bit, view_floats
from pretune.adaptation.quantized import Linear8bit
from pretune.nn.quantized_products import MAX_ROWS, dequantize_nf4, is_supported, multiply_int8, multiply_nf4

pytestmark = MARKS
SHAPES = [(1, 40, 64), (1, 9, 192), (1, 17, 2112), (2, 33, 128), (16, 64, 320), (40, 24, 1088), (MAX_ROWS, 5, 64)]
"""Rows, outputs and inputs."""
BLOCKS = [(64, 256), (64, None), (32, 16), (16, 4)]
"""Weights that share a scale, and scales that share one."""


@elsewhere
def test_by_the_interpreter() -> None:
    passes(__file__, len(SHAPES) * (1 + len(BLOCKS)) + 4 * len(BLOCKS))


def make_operands(rows: int, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(rows)
    return torch.randn(rows, inputs).half().to(DEVICE), (0.05 * torch.randn(outputs, inputs)).to(DEVICE)


def check(actual: Tensor, x: Tensor, weight: Tensor) -> None:
    expected = x.double() @ weight.double().T
    assert actual.dtype == x.dtype and actual.shape == expected.shape
    assert (actual.double() - expected).norm() < 1e-3 * expected.norm()


@able
@pytest.mark.parametrize(("rows", "outputs", "inputs"), SHAPES)
def test_int8(rows: int, outputs: int, inputs: int) -> None:
    x, weight = make_operands(rows, outputs, inputs)
    scales = weight.abs().amax(1) / 127
    codes = torch.round(weight / scales[:, None]).to(torch.int8)
    check(multiply_int8(x, codes, scales), x, codes * scales[:, None])


@able
@pytest.mark.parametrize(("block", "group"), BLOCKS)
@pytest.mark.parametrize(("rows", "outputs", "inputs"), SHAPES)
def test_nf4(rows: int, outputs: int, inputs: int, block: int, group: int | None) -> None:
    x, weight = make_operands(rows, outputs, inputs)
    small = Weight4bit(weight, block=block, group=group)
    y = multiply_nf4(x, *view_floats(*small.get_buffers()), outputs, block, group or 1)
    check(y, x, small.dequantize(torch.float32))


@able
@pytest.mark.parametrize(("block", "group"), BLOCKS)
@pytest.mark.parametrize("shape", [(1, 64), (33, 128), (24, 1088), (5, 1000)])
def test_matrices_of_nf4(shape: tuple[int, int], block: int, group: int | None) -> None:
    small = Weight4bit(make_operands(1, *shape)[1], block=block, group=group)
    expected = copy.deepcopy(small).cpu().dequantize(torch.float32)  # by plain torch
    for dtype, tolerance in ((torch.bfloat16, 2**-7), (torch.float32, 1e-6)):
        weight = dequantize_nf4(*view_floats(*small.get_buffers()), *shape, block, group or 1, dtype)
        assert weight.dtype == dtype and weight.shape == shape
        torch.testing.assert_close(weight.float().cpu(), expected, rtol=tolerance, atol=0)


@pytest.mark.skipif(not CUDA, reason="needs CUDA")
@pytest.mark.parametrize("kind", [Linear8bit, Linear4bit])
def test_layers_use_them_for_few_rows(kind: type[nn.Module]) -> None:
    layer = kind(nn.Linear(128, 96, device="cuda"))
    x = torch.randn(MAX_ROWS + 1, 128, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        many, few = layer.bfloat16()(x), layer(x[None, :5])
    assert is_supported(x[:5], 128, 64) and not is_supported(x, 128, 64)
    torch.testing.assert_close(few[0], many[:5], rtol=0.02, atol=0.02)
