"""The kernel of the vocabulary's loss beside torch: on a GPU as it is, elsewhere by Triton's interpreter if there."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.nn.interpreted import DEVICE, MARKS, able, elsewhere, passes  # isort: split

from pretune.core.types import IGNORE_INDEX
from pretune.nn.loss_kernel import BLOCK_COLUMNS, compute_row_losses

pytestmark = MARKS
SIZES = [(1, 1), (3, 64), (70, 128), (BLOCK_COLUMNS, BLOCK_COLUMNS), (BLOCK_COLUMNS + 5, BLOCK_COLUMNS + 64)]
"""Words, and columns of the logits."""


@elsewhere
def test_by_the_interpreter() -> None:
    passes(__file__, 4 * len(SIZES))


def expected(logits: Tensor, labels: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    """Losses, and the gradient of their sum; columns that are no words have none."""
    leaf = logits.double().requires_grad_()
    losses = F.cross_entropy(leaf[:, :vocab], labels, ignore_index=IGNORE_INDEX, reduction="none")
    (slope,) = torch.autograd.grad(losses.sum(), leaf)
    return losses.detach(), slope


@able
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("vocab", "width"), SIZES)
def test_as_torch_has_it(vocab: int, width: int, dtype: torch.dtype, wanted: bool) -> None:
    torch.manual_seed(0)
    logits = (4 * torch.randn(5, width)).to(dtype)
    logits[1] = 300.0  # all alike
    logits[2, 0] = -6e4
    logits[:, vocab:] = 5e4  # no words: whatever stands there is not looked at
    labels = torch.tensor([vocab - 1, 0, 0, IGNORE_INDEX, vocab // 2])
    losses, slope = expected(logits, labels, vocab)
    given = logits.clone().to(DEVICE)
    actual = compute_row_losses(given, labels.to(DEVICE), vocab, wanted).cpu()
    torch.testing.assert_close(actual.double(), losses, rtol=1e-5, atol=1e-4)
    if not wanted:
        assert torch.equal(given.cpu(), logits)
        return
    torch.testing.assert_close(given.cpu().double(), slope, rtol=1e-3, atol=2 * torch.finfo(dtype).eps)
    assert not given[3].any() and not given[:, vocab:].any()
