"""Speed of gelu and dropout on a CPU, forward and backward, compared with torch's functions.

    PYTHONPATH=src python bench/activations.py [--elements 524288] [--repeats 30] [--out result.json]

One thread, fp32. Prints the median milliseconds of CPU time of alternated repeats after three warm-up repeats, and the
ratio. Before timing, values and gradients of gelu are compared with torch's, and the dropout rate is checked.
"""

from collections.abc import Callable
from functools import partial

import common
import torch
import torch.nn.functional as F
from torch import Tensor

from pretune.nn.layers import dropout, gelu

WARMUP_ROUNDS = 3
P = 0.1
Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, dict[str, Activation]] = {
    "gelu": {"pretune": gelu, "torch": F.gelu},
    "dropout": {"pretune": lambda x: dropout(x, P), "torch": lambda x: F.dropout(x, P)},
}


def run_forward_backward(function: Activation, x: Tensor, output_grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output and the gradient of the input."""
    output = function(x)
    (input_grad,) = torch.autograd.grad(output, x, output_grad)
    return output, input_grad


def check_equality(x: Tensor, output_grad: Tensor) -> None:
    """Compare gelu with torch's, and check the dropout rate."""
    ours, theirs = (run_forward_backward(function, x, output_grad) for function in ACTIVATIONS["gelu"].values())
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    share = (ACTIVATIONS["dropout"]["pretune"](torch.ones_like(x)) == 0).double().mean().item()
    assert abs(share - P) < 5 * (P * (1 - P) / x.numel()) ** 0.5 + 2**-16, share


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("--elements", type=int, default=524_288)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, output_grad = torch.randn(options.elements, requires_grad=True), torch.randn(options.elements)
    check_equality(x, output_grad)
    result: dict[str, dict[str, float]] = {}
    for name, sides in ACTIVATIONS.items():
        measurements = {
            side: partial(common.measure_seconds, partial(run_forward_backward, function, x, output_grad))
            for side, function in sides.items()
        }
        seconds = common.compute_medians(common.alternate(measurements, options.repeats, warmup=WARMUP_ROUNDS))
        result[name] = {f"{side}, ms": round(1e3 * value, 3) for side, value in seconds.items()}
        result[name]["ratio"] = round(seconds["torch"] / seconds["pretune"], 2)
    common.print_result(result, options.out)


if __name__ == "__main__":
    main()
