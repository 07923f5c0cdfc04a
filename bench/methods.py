"""Cost of LoRA, QLoRA and prefix tuning on a device, compared with full fine-tuning of the same model.

    PYTHONPATH=src python bench/methods.py [--model bert-base] [--rows 64] [--length 128] [--compile] [--out FILE]

Before timing: 4-bit weights must be the same on the device as on the CPU; a 4-bit model must give the same states as
one with the dequantized weights; a prefix must give the same states in every attention backend that supports it. Prints
JSON: median milliseconds and tokens per second of forward and backward (bfloat16 on a GPU), bytes of the weights, and
peak memory on a GPU. On a CPU a small model only checks that the script runs.
"""

import argparse
import copy
from statistics import median
from typing import Any

import common
import torch

import pretune as pt
from pretune.adaptation.peft import qlora
from pretune.adaptation.peft.base import TARGETS, PeftMethod, find_linears
from pretune.adaptation.peft.lora import LoRA
from pretune.adaptation.peft.prefix import PrefixTuning
from pretune.adaptation.peft.qlora import QLoRA, Weight4bit
from pretune.core.errors import UsageError
from pretune.models.model import LanguageModel

SMALL = {"width": 64, "depth": 2, "heads": 4, "hidden": 128, "vocab": 1000}
VOCAB = 900
WARMUP_STEPS = 3


def main() -> None:
    parser = common.build_parser(__doc__)
    common.add_device_option(parser)
    parser.add_argument("--model", default="bert-base")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    gpu = options.device == "cuda"
    base = pt.build(options.model, **({} if gpu else SMALL)).to(options.device).eval()
    result: dict[str, Any] = {
        "device": common.describe_device(options.device),
        "torch": torch.__version__,
        "model": options.model if gpu else "small",
        "compiled": options.compile,
        "checks": {
            "quantization": compare_quantization(base),
            "dequantized": compare_dequantized(base),
            "backends": compare_backends(base, gpu),
        },
    }
    rows, length = (options.rows, options.length) if gpu else (4, 32)
    batch = make_batch(base, rows, length).to(options.device)
    methods = {
        "full": None,
        "lora": LoRA(targets=TARGETS),
        "qlora": QLoRA(),
        "prefix": PrefixTuning(count=20),
    }
    result["rows"] = {}
    for name, method in methods.items():
        result["rows"][name] = measure_method(base, method, batch, options)
    common.print_result(result, options.out)


def compare_quantization(base: LanguageModel) -> float:
    """Return the largest difference between a matrix quantized on the device and on the CPU."""
    _, _, _, layer = find_linears(base, ("up",))[0]
    difference = 0.0
    for device in {base.tokens.weight.device, torch.device("cpu")}:
        weight = layer.weight.detach().to(device)  # type: ignore[union-attr]
        on_device, on_cpu = (
            qlora.dequantize(
                qlora.quantize(weight.to(place)),
                torch.float32,
                qlora.build_value_table(place),
                qlora.build_scale_table(place),
            ).cpu()
            for place in (device, torch.device("cpu"))
        )
        difference = max(difference, float((on_device - on_cpu).abs().max()))
    assert difference < 1e-2, f"quantized weights differ: {difference}"  # a scale may round differently
    return difference


@torch.no_grad()
def compare_dequantized(base: LanguageModel) -> float:
    """Return the largest difference between a 4-bit model and one with the dequantized weights, in fp32."""
    method = QLoRA()
    quantized_model, dequantized_model = copy.deepcopy(base), copy.deepcopy(base)
    method.apply(quantized_model)
    method.apply(dequantized_model)
    method.merge(dequantized_model)
    batch = make_batch(base, 2, 16).to(base.tokens.weight.device)
    difference = float((quantized_model.states(batch) - dequantized_model.states(batch)).abs().max())
    assert difference < 1e-3, f"the 4-bit model differs by {difference} from the dequantized one"
    return difference


@torch.no_grad()
def compare_backends(base: LanguageModel, gpu: bool) -> dict[str, float]:
    """Return the largest difference of each backend to `eager` with a prefix, in fp32, for short and long rows."""
    model = copy.deepcopy(base)
    for name in PrefixTuning(count=5).apply(model):
        model.get_parameter(name).add_(0.1 * torch.randn_like(model.get_parameter(name)))
    differences: dict[str, float] = {}
    longest = model.spec.max_length or 1024
    for length in (24, min(512, longest) - 8):
        batch = make_batch(base, 2, length).to(base.tokens.weight.device)
        model.attention_backend = "eager"
        reference = model.states(batch)
        for backend in ("rows", "flex", "sdpa"):
            model.attention_backend = backend  # type: ignore[assignment]
            try:
                difference = float((model.states(batch) - reference).abs().max())
            except UsageError:
                continue
            differences[f"{backend} {length}"] = difference
            assert difference < 1e-2, f"'{backend}' differs by {difference} at length {length}"
    return differences


def make_batch(model: LanguageModel, rows: int, length: int) -> pt.Batch:
    """Create rows of two sequences each (the last row has one), with a label at every seventh token."""
    generator = torch.Generator().manual_seed(0)
    short = length // 3
    lengths = [n for _ in range(rows - 1) for n in (short, length - short)] + [length]
    tokens = [torch.randint(5, VOCAB, (n,), generator=generator).tolist() for n in lengths]
    labels = [[token if i % 7 == 0 else -100 for i, token in enumerate(sequence)] for sequence in tokens]
    if model.spec.is_encoder_decoder:
        return pt.batch(source=tokens, target=tokens, row=length, labels=labels)
    return pt.batch(tokens, row=length, labels=labels)


def measure_method(
    base: LanguageModel, method: PeftMethod | None, batch: pt.Batch, options: argparse.Namespace
) -> dict[str, Any]:
    """Return time and memory of forward and backward passes with a method (None: full fine-tuning)."""
    gpu = options.device == "cuda"
    model = copy.deepcopy(base)
    if method is not None:
        method.apply(model)
    if gpu:
        model.to(torch.bfloat16)
    if options.compile:
        model.compile()
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    times, losses = [], []

    def run_forward_backward() -> None:
        losses.append(model.loss(model.states(batch), batch).mean())
        losses[-1].backward()

    for _ in range(WARMUP_STEPS + options.steps):
        times.append(common.measure_seconds(run_forward_backward, clock=common.wall_clock, device=options.device))
        model.zero_grad()
    seconds = median(times[WARMUP_STEPS:])
    weight_bytes, full_bytes = measure_weights(model)
    trained_count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {
        "loss": losses[-1].item(),
        "ms": 1000 * seconds,
        "tokens/s": len(batch.tokens) / seconds,
        "trained": trained_count,
        "frozen weights, bytes": weight_bytes,
        "share of 16-bit weights": weight_bytes / full_bytes,
        "peak, bytes": torch.cuda.max_memory_allocated() if gpu else None,
    }


def measure_weights(model: torch.nn.Module) -> tuple[int, int]:
    """Return the bytes of a model's weights that are not trained, and their bytes without 4-bit quantization."""
    weights4 = [module for module in model.modules() if isinstance(module, Weight4bit)]
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad] or [*model.parameters()]
    size, frozen_bytes = max(parameter.element_size() for parameter in frozen), sum(p.nbytes for p in frozen)
    bytes4 = sum(tensor.nbytes for module in weights4 for tensor in module.buffers())
    return bytes4 + frozen_bytes, size * sum(module.shape[0] * module.shape[1] for module in weights4) + frozen_bytes


if __name__ == "__main__":
    main()
