"""Cost of LoRA, QLoRA and prefix tuning on a device, compared with full fine-tuning of the same model.

    PYTHONPATH=src python bench/methods.py [--model bert-base] [--rows 64] [--length 128] [--compile] [--out FILE]

Before timing: 4-bit weights must be the same on the device as on the CPU (with bitsandbytes' kernel if installed, and
without); a 4-bit model must give the same states as one with the dequantized weights; a prefix must give the same
states in every attention backend that supports it. Prints JSON: median milliseconds and tokens per second of forward
and backward (bfloat16 on a GPU), bytes of the weights, and peak memory on a GPU. On a CPU a small model only checks
that the script runs.
"""

import argparse
import copy
import importlib.util
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import pretune as pt
from pretune.adaptation.peft import nf4
from pretune.adaptation.peft.base import TARGETS, PeftMethod, find_linears
from pretune.adaptation.peft.lora import LoRA
from pretune.adaptation.peft.prefix import PrefixTuning
from pretune.adaptation.peft.qlora import QLoRA, compute_footprint
from pretune.core.errors import UsageError
from pretune.models.model import LanguageModel

SMALL = {"width": 64, "depth": 2, "heads": 4, "hidden": 128, "vocab": 1000}
VOCAB = 900


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="bert-base")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", default=None, help="write the result as JSON")
    options = parser.parse_args()
    gpu = options.device == "cuda"
    base = pt.build(options.model, **({} if gpu else SMALL)).to(options.device).eval()
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if gpu else platform.processor() or "cpu",
        "torch": torch.__version__,
        "bitsandbytes": importlib.util.find_spec("bitsandbytes") is not None,
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
    every = {
        "full": None,
        "lora": LoRA(targets=TARGETS),
        "qlora": QLoRA(),
        "qlora, without bitsandbytes": QLoRA(),
        "prefix": PrefixTuning(count=20),
    }
    found["rows"] = {}
    for name, method in every.items():
        if name == "qlora, without bitsandbytes":
            if not (gpu and found["bitsandbytes"]):
                continue
            nf4._has_bitsandbytes = lambda: False  # type: ignore[assignment]
        found["rows"][name] = measure_method(base, method, batch, options)
    text = json.dumps(found, indent=2)
    print(text)
    if options.out:
        Path(options.out).write_text(text)


def compare_quantization(base: LanguageModel) -> float:
    """Return the largest difference between a matrix quantized on the device and on the CPU."""
    _, _, _, layer = find_linears(base, ("up",))[0]
    difference = 0.0
    for device in {base.tokens.weight.device, torch.device("cpu")}:
        weight = layer.weight.detach().to(device)  # type: ignore[union-attr]
        made = nf4.quantize(weight)
        tables = nf4.build_value_table(device), nf4.build_scale_table(device)
        again = nf4.dequantize(made, torch.float32, *tables).cpu()
        here = nf4.dequantize(
            nf4.quantize(weight.cpu()), torch.float32, nf4.build_value_table("cpu"), nf4.build_scale_table("cpu")
        )
        difference = max(difference, float((again - here).abs().max()))
    assert difference < 1e-2, f"quantized weights differ: {difference}"  # a scale may round differently
    return difference


@torch.no_grad()
def compare_dequantized(base: LanguageModel) -> float:
    """Return the largest difference between a 4-bit model and one with the dequantized weights, in fp32."""
    method = QLoRA()
    small, plain = copy.deepcopy(base), copy.deepcopy(base)
    method.apply(small)
    method.apply(plain)
    method.merge(plain)
    batch = make_batch(base, 2, 16).to(base.tokens.weight.device)
    difference = float((small.states(batch) - plain.states(batch)).abs().max())
    assert difference < 1e-3, f"the 4-bit model differs by {difference} from the dequantized one"
    return difference


@torch.no_grad()
def compare_backends(base: LanguageModel, gpu: bool) -> dict[str, float]:
    """Return the largest difference of each backend to `eager` with a prefix, in fp32, for short and long rows."""
    model = copy.deepcopy(base)
    for name in PrefixTuning(count=5).apply(model):
        model.get_parameter(name).add_(0.1 * torch.randn_like(model.get_parameter(name)))
    found: dict[str, float] = {}
    longest = model.spec.max_length or 1024
    for length in (24, min(512, longest) - 8):
        batch = make_batch(base, 2, length).to(base.tokens.weight.device)
        model.attention_backend = "eager"
        expected = model.states(batch)
        for backend in ("rows", "flex", "sdpa"):
            model.attention_backend = backend  # type: ignore[assignment]
            try:
                difference = float((model.states(batch) - expected).abs().max())
            except UsageError:
                continue
            found[f"{backend} {length}"] = difference
            assert difference < 1e-2, f"'{backend}' differs by {difference} at length {length}"
    return found


def make_batch(model: LanguageModel, rows: int, length: int) -> pt.Batch:
    """Create rows of two sequences each (the last row has one), with a label at every seventh token."""
    generator = torch.Generator().manual_seed(0)
    short = length // 3
    lengths = [n for _ in range(rows - 1) for n in (short, length - short)] + [length]
    tokens = [torch.randint(5, VOCAB, (n,), generator=generator).tolist() for n in lengths]
    labels = [[token if i % 7 == 0 else -100 for i, token in enumerate(one)] for one in tokens]
    if model.spec.is_encoder_decoder:
        return pt.batch(source=tokens, target=tokens, row=length, labels=labels)
    return pt.batch(tokens, row=length, labels=labels)


def measure_method(
    base: LanguageModel, method: PeftMethod | None, batch: pt.Batch, options: argparse.Namespace
) -> dict[str, Any]:
    gpu = options.device == "cuda"
    model = copy.deepcopy(base)
    if method is not None:
        method.apply(model)
    if gpu:
        model.to(torch.bfloat16)
    if options.compile:
        model.compile()
    times = []
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(options.steps + 3):
        wait(gpu)
        start = time.perf_counter()
        loss = model.loss(model.states(batch), batch).mean()
        loss.backward()
        wait(gpu)
        times.append(time.perf_counter() - start)
        model.zero_grad()
    weights, half = compute_footprint(model) if method is not None else (sum(p.nbytes for p in model.parameters()),) * 2
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {
        "loss": loss.item(),
        "ms": 1000 * statistics.median(times[3:]),
        "tokens/s": len(batch.tokens) / statistics.median(times[3:]),
        "trained": trained,
        "frozen weights, bytes": weights,
        "share of 16-bit weights": weights / half,
        "peak, bytes": torch.cuda.max_memory_allocated() if gpu else None,
    }


def wait(gpu: bool) -> None:
    if gpu:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
