"""The kernel of the vocabulary's loss beside torch: on a GPU as it is, elsewhere by Triton's interpreter if there."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from pretune.core.types import IGNORE
from pretune.nn.kernels import COLUMNS, row_losses
from tests.conftest import ROOT

CUDA = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
able = pytest.mark.skipif(not CUDA and not INTERPRETED, reason="done by test_by_the_interpreter, in its own process")
pytestmark = [pytest.mark.gpu] if CUDA else []
DEVICE = "cuda" if CUDA else "cpu"
SIZES = [(1, 1), (3, 64), (70, 128), (COLUMNS, COLUMNS), (COLUMNS + 5, COLUMNS + 64)]
"""Words, and columns of the logits."""


@pytest.mark.skipif(CUDA or INTERPRETED, reason="the kernel itself can run")
def test_by_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and f"{4 * len(SIZES)} passed" in done.stdout, done.stdout


def expected(logits: Tensor, labels: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    """Losses, and the gradient of their sum; columns that are no words have none."""
    leaf = logits.double().requires_grad_()
    losses = F.cross_entropy(leaf[:, :vocab], labels, ignore_index=IGNORE, reduction="none")
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
    labels = torch.tensor([vocab - 1, 0, 0, IGNORE, vocab // 2])
    losses, slope = expected(logits, labels, vocab)
    given = logits.clone().to(DEVICE)
    found = row_losses(given, labels.to(DEVICE), vocab, wanted).cpu()
    torch.testing.assert_close(found.double(), losses, rtol=1e-5, atol=1e-4)
    if not wanted:
        assert torch.equal(given.cpu(), logits)
        return
    torch.testing.assert_close(given.cpu().double(), slope, rtol=1e-3, atol=2 * torch.finfo(dtype).eps)
    assert not given[3].any() and not given[:, vocab:].any()
