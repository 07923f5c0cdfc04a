"""Training in fp8 (`train.precision=fp8`) beside bf16: layers, training speed, and loss curves on real text.

    python -m bench.speed.fp8 layers [--out FILE]                    errors and times of single linear layers
    python -m bench.speed.fp8 speed [--only gpt2] [--kernels]        tokens per second, rounds alternated
    python -m bench.speed.fp8 curve --data DIR --work DIR --precision fp8 --seed 0 --steps 3000
    python -m bench.speed.fp8 compare --work DIR                     the curves in DIR side by side

`layers` compares forward and backward of a layer with the product in fp64, eager and compiled. `speed` runs both sides
as `pretune pretrain` does: compiled, one CUDA graph, a bf16 residual stream, AdamW. MFU is given against the bf16 rate
of the device, so that it can be compared with any other row, and against its fp8 rate. `curve` is one run of the
product on prepared data (`pretune prepare`), in the shape of GPT-2 small; several may run at once. `compare` states the
distance of each curve from that of bf16 with seed 0: that of a second seed of bf16 is the noise of seeds.
"""

import argparse
import copy
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pretune as pt
from bench import common
from bench.speed.core_throughput import (
    PEAK,
    CudaGraphSide,
    Side,
    Workload,
    build_loss,
    compute_flops_per_token,
    make_batches,
    use_bf16_residual,
)
from pretune.models.catalog import resolve
from pretune.models.model import build_empty
from pretune.nn.fp8 import Fp8Linear, convert_linears

FP8_PEAK = 1979e12  # FLOP/s: datasheet fp8 rate of an H100 or H200, dense
TINY = {"width": 64, "depth": 1, "heads": 4, "vocab": 512}
WORKLOADS = {
    "bert-base": (128, 512, 0),
    "gpt2-small": (64, 1024, 0),
    "t5-base": (128, 512, 114),
    "gpt2-medium": (32, 1024, 0),
    "llama3-1b": (16, 1024, 0),
}
"""Rows, length and target length; 16 sequences of the 1B shape are as many tokens as 16 to 32 of the others' layers."""
SHAPES = {
    "768 to 3072": (65_536, 768, 3072),
    "3072 to 768": (65_536, 3072, 768),
    "2048 to 8192": (16_384, 2048, 8192),
    "8192 to 2048": (16_384, 8192, 2048),
}
"""Tokens, inputs and outputs of a layer."""


# Layers.


def measure_layers(options: argparse.Namespace) -> dict[str, Any]:
    """Return errors and milliseconds of each shape."""
    tiny = options.device == "cpu"
    shapes = {"64 to 96": (64, 64, 96)} if tiny else SHAPES
    return {name: measure_layer(*shape, options) for name, shape in shapes.items()}


def measure_layer(tokens: int, inputs: int, outputs: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the relative errors of a layer's output and gradients, and its milliseconds."""
    torch.manual_seed(0)
    linear = nn.Linear(inputs, outputs, device=options.device)
    x = torch.randn(tokens, inputs, device=options.device, dtype=torch.bfloat16).requires_grad_()
    gradient = 1e-6 * torch.randn(tokens, outputs, device=options.device, dtype=torch.bfloat16)
    weight, bias = (parameter.detach().double() for parameter in (linear.weight, linear.bias))
    rows, slope = x.detach()[:4096].double(), gradient[:4096].double()
    expected = {"output": rows @ weight.t() + bias, "input gradient": slope @ weight}
    expected["weight gradient"] = gradient.float().t().double() @ x.detach().float().double()
    result: dict[str, Any] = {}
    layer = Fp8Linear.from_linear(linear)
    variants: dict[str, Callable[[Tensor], Tensor]] = {"bf16": autocast(linear, options.device), "fp8": layer}
    if options.compile:
        variants |= {
            "bf16, compiled": torch.compile(autocast(linear, options.device), dynamic=False),
            "fp8, compiled": torch.compile(layer, dynamic=False),
        }
    for name, run in variants.items():
        step = build_layer_step(run, linear, x, gradient)
        y, input_gradient, weight_gradient = step()
        values = {"output": y[:4096], "input gradient": input_gradient[:4096], "weight gradient": weight_gradient}
        step()
        seconds = common.measure_seconds(step, count=options.steps, clock=common.wall_clock, device=options.device)
        result[name] = {
            "errors": {
                part: round(float((values[part].double() - value).norm() / value.norm()), 5)
                for part, value in expected.items()
            },
            "ms": round(1000 * seconds, 4),
        }
    return {**result, "products": measure_products(tokens, inputs, outputs, options)}


def autocast(layer: nn.Module, device: str) -> Callable[[Tensor], Tensor]:
    """Return a layer as a function under autocast."""

    def run(x: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            y: Tensor = layer(x)
        return y

    return run


def build_layer_step(
    run: Callable[[Tensor], Tensor], linear: nn.Linear, x: Tensor, gradient: Tensor
) -> Callable[[], tuple[Tensor, ...]]:
    """Return forward and backward of a layer as a function, which returns its output and gradients."""

    def step() -> tuple[Tensor, ...]:
        linear.weight.grad = linear.bias.grad = x.grad = None
        y = run(x)
        y.backward(gradient)
        assert x.grad is not None and linear.weight.grad is not None
        return y.detach(), x.grad, linear.weight.grad

    return step


def measure_products(tokens: int, inputs: int, outputs: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return milliseconds and TFLOP/s of the bare product of the forward pass: a bound of what fp8 can gain."""
    x, weight = torch.randn(tokens, inputs), torch.randn(outputs, inputs)
    one = torch.ones((), device=options.device)
    half = [part.to(options.device, torch.bfloat16) for part in (x, weight)]
    eight = [part.to(torch.float8_e4m3fn) for part in half]
    e5m2 = half[0].to(torch.float8_e5m2)

    def multiply(first: Tensor, fast: bool) -> Tensor:
        return torch._scaled_mm(first, eight[1].t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=fast)

    variants: dict[str, Callable[[], Tensor]] = {
        "bf16": lambda: F.linear(half[0], half[1]),
        "e4m3, fast sums": lambda: multiply(eight[0], True),
        "e4m3": lambda: multiply(eight[0], False),
        "e5m2": lambda: multiply(e5m2, False),
    }
    result = {}
    for name, run in variants.items():
        run()
        seconds = common.measure_seconds(run, count=options.steps, clock=common.wall_clock, device=options.device)
        result[name] = {"ms": round(1000 * seconds, 4), "tflops": round(2e-12 * tokens * inputs * outputs / seconds, 1)}
    return result


# Training speed.


def measure_speed(options: argparse.Namespace) -> dict[str, Any]:
    """Return a row for each model; rounds of both precisions alternate."""
    rows = {}
    for name, (count, length, target) in WORKLOADS.items():
        if options.only and not any(part in name for part in options.only.split(",")):
            continue
        try:
            rows[name] = measure_model(name, count, length, target, options)
        except torch.OutOfMemoryError:
            rows[name] = {"error": "out of memory"}
        print(json.dumps({name: rows[name]}), flush=True)
        torch._dynamo.reset()
        if options.device == "cuda":
            torch.cuda.empty_cache()
    return rows


def measure_model(name: str, rows: int, length: int, target: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return tokens per second and MFU of a model in bf16 and fp8."""
    device, is_tiny = options.device, options.device == "cpu"
    rows, length, target = (2, 32, 16 if target else 0) if is_tiny else (rows, length, target)
    settings = {**TINY, **({"kv_heads": 2, "hidden": 128} if "llama" in name else {})} if is_tiny else {}
    spec = resolve(name, settings)
    work = Workload(f"{name} {rows} x {length}", rows, length, "bert" in name, lambda dropout: None, target)
    batches, _ = make_batches(work, spec.vocab, device)
    model = draw_weights(build_empty(spec).to_empty(device=device))
    sides: list[Side] = []
    for precision in ("bf16", "fp8"):
        own = copy.deepcopy(model) if precision == "bf16" else model
        if precision == "fp8":
            convert_linears(own)
        if not is_tiny:
            use_bf16_residual(own)
        if options.compile:
            own.compile(dynamic=False)
        kind = Side(precision, own, build_loss(own), device) if is_tiny else CudaGraphSide(precision, own, device)
        sides.append(kind)
    for side in sides:
        side.first_step_seconds = side.run(batches, 1)
        side.run(batches, 4)
    measurements = {side.name: (lambda side=side: side.run(batches, options.steps)) for side in sides}
    seconds = common.alternate(measurements, options.rounds, warmup=0)
    flops = compute_flops_per_token(work, spec)
    row: dict[str, Any] = {"work": work.name, "parameters": spec.params().total}
    for side in sides:
        rates = [work.tokens / value for value in seconds[side.name]]
        rate = statistics.median(rates)
        row[side.name] = {
            "tokens_per_second": round(rate),
            "rounds": [round(value) for value in rates],
            "first_step_seconds": round(side.first_step_seconds, 1),
            "mfu": round(rate * flops / PEAK, 4),
        }
        if side.name == "fp8":
            row[side.name]["mfu_of_fp8_rate"] = round(rate * flops / FP8_PEAK, 4)
        if options.kernels:
            row[side.name]["kernels"] = common.list_kernels(
                lambda steps, side=side: side.run(batches, steps), device, 16
            )
    row["fp8 / bf16"] = round(row["fp8"]["tokens_per_second"] / row["bf16"]["tokens_per_second"], 3)
    return row


@torch.no_grad()
def draw_weights(model: nn.Module) -> nn.Module:
    """Draw weights on the device: large models are built in seconds."""
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if weight.dim() > 1:
            weight.normal_(0, 0.02)
        else:
            weight.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    return model


# Loss curves.


def train_curve(options: argparse.Namespace) -> dict[str, Any]:
    """Train the shape of GPT-2 small on prepared data; return the validation losses."""
    out = options.work / f"{options.precision}-{options.seed}"
    settings = {
        "data.max_length": 512,
        "train.batch_tokens": options.batch_tokens,
        "train.precision": options.precision,
        "train.seed": options.seed,
        "train.eval_every": max(1, options.steps // 15),
        "train.eval_tokens": options.eval_tokens,
        "train.samples_every": 0,
        "train.log_every": 10,
        **json.loads(options.set),
    }
    run = pt.pretrain(
        options.model,
        data=options.data,
        steps=options.steps,
        paper=True,
        out=out,
        overrides=settings,
        device=options.device,
    )
    return {"loss": run.loss, "seconds": run.summary["elapsed"], "mfu": run.summary["cost"]["mfu"]}


def compare_curves(options: argparse.Namespace) -> dict[str, Any]:
    """Return all curves of a folder, finished or not, and their distances from that of bf16 with seed 0."""
    curves: dict[str, dict[int, float]] = {}
    training: dict[str, list[float]] = {}
    for path in sorted(options.work.glob("*/metrics.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        curves[path.parent.name] = {line["step"]: line["held_out"]["loss"] for line in lines if "held_out" in line}
        training[path.parent.name] = [line["loss"] for line in lines if isinstance(line.get("loss"), float)]
    result: dict[str, Any] = {"validation": curves, "distance from bf16-0": {}}
    reference = curves.get("bf16-0", {})
    for name, curve in curves.items():
        steps = [step for step in curve if step in reference and step > 0]
        if name == "bf16-0" or not steps:
            continue
        gaps = [curve[step] - reference[step] for step in steps]
        count = min(len(training[name]), len(training["bf16-0"]))
        late = slice(count - count // 5, count)
        result["distance from bf16-0"][name] = {
            "last": round(gaps[-1], 5),
            "mean": round(statistics.mean(gaps), 5),
            "mean absolute": round(statistics.mean(map(abs, gaps)), 5),
            "largest": round(max(map(abs, gaps)), 5),
            "training, last fifth": round(
                statistics.mean(training[name][late]) - statistics.mean(training["bf16-0"][late]), 5
            )
            if count >= 5
            else None,
            "last step": steps[-1],
        }
    return result


def main() -> None:
    parser = common.build_parser(__doc__)
    common.add_device_option(parser)
    parser.add_argument("part", choices=("layers", "speed", "curve", "compare"))
    parser.add_argument("--only", default="", help="speed: comma-separated parts of model names")
    parser.add_argument("--rounds", type=int, default=5, help="speed: alternated rounds; the median counts")
    parser.add_argument("--steps", type=int, default=10, help="steps of a round, calls of a layer, or steps of a curve")
    parser.add_argument("--kernels", action="store_true", help="speed: list the longest kernels of both sides")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--data", type=Path, help="curve: prepared data")
    parser.add_argument("--work", type=Path, help="curve, compare: folder of the runs")
    parser.add_argument("--model", default="gpt2-small", help="curve: family and size")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp8"), default="bf16", help="curve: precision")
    parser.add_argument("--seed", type=int, default=0, help="curve: seed")
    parser.add_argument("--batch-tokens", type=int, default=16_384, help="curve: tokens of a step")
    parser.add_argument("--eval-tokens", type=int, default=250_000, help="curve: validation tokens")
    parser.add_argument("--set", default="{}", help="curve: other settings, as JSON")
    options = parser.parse_args()
    options.compile = options.compile and options.device == "cuda"
    torch.set_float32_matmul_precision("high")
    parts = {"layers": measure_layers, "speed": measure_speed, "curve": train_curve, "compare": compare_curves}
    result = {"part": options.part, "device": common.describe_device(options.device), "torch": torch.__version__}
    common.print_result({**result, "result": parts[options.part](options)}, options.out)


if __name__ == "__main__":
    main()
