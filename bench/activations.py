"""Speed of gelu and dropout on a CPU, forward and backward, compared with torch's functions.

    PYTHONPATH=src python bench/activations.py [--elements 524288] [--repeats 30] [--out result.json]

One thread, fp32. Prints the median milliseconds of CPU time of alternated repeats after three warm-up repeats, and the
ratio. Before timing, values and gradients of gelu are compared with torch's, and the dropout rate is checked.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from pretune.nn.activations import dropout, gelu

WARMUP_STEPS = 3
P = 0.1
Way = Callable[[Tensor], Tensor]
WAYS: dict[str, dict[str, Way]] = {
    "gelu": {"pretune": gelu, "torch": F.gelu},
    "dropout": {"pretune": lambda x: dropout(x, P), "torch": lambda x: F.dropout(x, P)},
}


def run_forward_backward(way: Way, x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output and the gradient of the input."""
    out = way(x)
    (found,) = torch.autograd.grad(out, x, slope)
    return out, found


def check_equality(x: Tensor, slope: Tensor) -> None:
    for mine, theirs in zip(*(run_forward_backward(way, x, slope) for way in WAYS["gelu"].values()), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    share = (WAYS["dropout"]["pretune"](torch.ones_like(x)) == 0).double().mean().item()
    assert abs(share - P) < 5 * (P * (1 - P) / x.numel()) ** 0.5 + 2**-16, share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=524_288)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, slope = torch.randn(options.elements, requires_grad=True), torch.randn(options.elements)
    check_equality(x, slope)
    result: dict[str, dict[str, float]] = {}
    for name, ways in WAYS.items():
        times: dict[str, list[float]] = {side: [] for side in ways}
        for _ in range(WARMUP_STEPS + options.repeats):
            for side, way in ways.items():
                begun = time.process_time()
                run_forward_backward(way, x, slope)
                times[side].append(1e3 * (time.process_time() - begun))
        middle = {side: statistics.median(found[WARMUP_STEPS:]) for side, found in times.items()}
        result[name] = {f"{side}, ms": round(found, 3) for side, found in middle.items()}
        result[name]["ratio"] = round(middle["torch"] / middle["pretune"], 2)
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
