"""Speed of the attention of one layer, forward and backward, on a GPU: `nn/tiles.py` compared with torch's kernels.

    PYTHONPATH=src python bench/attention.py [--only t5,sentences] [--dropout 0.1] [--out result.json]

65,536 tokens in bf16, twelve heads of 64, in the row layouts of pre-training: one sequence per row, causal, several
sentences or documents per row, T5's learned bias, and T5's cross-attention. Each kernel is first compared with an fp32
reference without dropout. Prints milliseconds per pass, the best of three rounds of twelve passes. A kernel that does
not support a case (a mask, a learned bias) reports its error instead.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import common
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, WIDTH, SCALE = 12, 64, 0.125
TORCH = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


@dataclass(frozen=True)
class Case:
    """Shape of the rows and their mask."""

    rows: int
    queries: int
    keys: int
    causal: bool = False
    bias: bool = False
    sequence_length: int = 0  # where a row holds several sequences


CASES = {
    "whole 128 x 512": Case(128, 512, 512),
    "causal 64 x 1024": Case(64, 1024, 1024, causal=True),
    "sentences 512 x 128": Case(512, 128, 128, sequence_length=26),
    "documents 128 x 512": Case(128, 512, 512, sequence_length=200),
    "t5 encoder 128 x 512": Case(128, 512, 512, bias=True),
    "t5 decoder 128 x 114": Case(128, 114, 114, causal=True, bias=True),
    "t5 decoder to encoder": Case(128, 114, 512),
}


class AttentionBenchmark:
    """Inputs of a case and the kernels to run on them."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.case = case
        lengths = (case.queries, case.keys, case.keys, case.queries)
        tensors = [torch.randn(case.rows * length, HEADS, WIDTH) for length in lengths]
        *inputs, self.output_grad = (tensor.to("cuda", torch.bfloat16) for tensor in tensors)
        if case.bias:
            inputs.append(torch.randn(HEADS, case.queries, case.keys).to("cuda", torch.bfloat16))
        self.inputs = [tensor.requires_grad_() for tensor in inputs]
        columns = torch.arange(max(case.queries, case.keys), device="cuda")
        sequence = columns // case.sequence_length if case.sequence_length else torch.zeros_like(columns)
        self.query_sequence, self.key_sequence = sequence[: case.queries], sequence[: case.keys]
        self.mask = self.query_sequence[:, None] == self.key_sequence
        if case.causal:
            self.mask = self.mask & (columns[: case.keys] <= columns[: case.queries, None])

    def build_tiles(self, dropout: float) -> Callable[[], Tensor]:
        """Return a forward pass with the kernels of pretune."""
        from pretune.nn.tiles import attend_tiles, build_layout

        case, (q, k, v, *bias) = self.case, self.inputs
        keys = None if case.queries == case.keys else self.key_sequence.repeat(case.rows)
        layout = build_layout(self.query_sequence.repeat(case.rows), keys, case.rows)
        return lambda: attend_tiles(q, k, v, layout, *bias, causal=case.causal, scale=SCALE, dropout=dropout)

    def build_torch(self, kind: SDPBackend, dropout: float) -> Callable[[], Tensor]:
        """Return a forward pass with a kernel of torch."""
        case, (q, k, v, *bias) = self.case, self.inputs

        def run() -> Tensor:
            mask: Tensor | None = self.mask if case.sequence_length else None
            if bias:
                mask = bias[0].masked_fill(~self.mask, float("-inf"))[None]
            causal = case.causal and mask is None
            rows = [x.view(case.rows, -1, HEADS, WIDTH).transpose(1, 2) for x in (q, k, v)]
            with sdpa_kernel(kind):
                out = F.scaled_dot_product_attention(
                    *rows, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=SCALE
                )
            return out.transpose(1, 2).flatten(0, 1)

        return run

    def compute_reference(self) -> Tensor:
        """Compute attention in fp32 with plain matrix products."""
        q, k, v, *bias = (tensor.detach().float() for tensor in self.inputs)
        q, k, v = (x.view(self.case.rows, -1, HEADS, WIDTH).transpose(1, 2) for x in (q, k, v))
        scores = q @ k.transpose(-1, -2) * SCALE + (bias[0] if bias else 0)
        return (scores.masked_fill(~self.mask, float("-inf")).softmax(-1) @ v).transpose(1, 2).flatten(0, 1)

    def measure_times(self, run: Callable[[], Tensor]) -> dict[str, float]:
        """Return the milliseconds of the forward and of the backward pass."""
        with torch.no_grad():
            forward = measure_best_time(run)
        total = measure_best_time(lambda: torch.autograd.grad(run(), self.inputs, self.output_grad))
        return {"forward": forward, "backward": round(total - forward, 4)}


def measure_best_time(work: Callable[[], Any], rounds: int = 3, count: int = 12) -> float:
    """Return the milliseconds of one call, the best of the rounds."""
    for _ in range(3):
        work()
    seconds = [common.measure_seconds(work, count=count, clock=common.wall_clock, device="cuda") for _ in range(rounds)]
    return round(1e3 * min(seconds), 4)


def main() -> None:
    """Measure sequence_length case with sequence_length kernel."""
    parser = common.build_parser(__doc__)
    parser.add_argument("--only", default="", help="comma-separated parts of case names")
    parser.add_argument("--dropout", type=float, default=0.1)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("these kernels need a CUDA GPU")
    results: dict[str, Any] = {}
    for name, case in CASES.items():
        if not any(part in name for part in options.only.split(",")):
            continue
        inputs, times = AttentionBenchmark(case), {}
        kernels = {"pretune": inputs.build_tiles}
        kernels |= {kernel: partial(inputs.build_torch, backend) for kernel, backend in TORCH.items()}
        reference = inputs.compute_reference()
        for kernel, build in kernels.items():
            try:
                difference = (build(0.0)().float() - reference).norm() / reference.norm()
                assert difference < 0.01, f"{name}, {kernel}: differs by {difference:.3f}"
                times[kernel] = inputs.measure_times(build(options.dropout))
            except RuntimeError as error:
                times[kernel] = {"unsupported": str(error).splitlines()[0][:80]}
        results[name] = times
        print(name, json.dumps(times), flush=True)
    common.write_result(results, options.out)


if __name__ == "__main__":
    main()
