"""Greedy generation with GPT-2 small beside `transformers.generate`, the same weights in the same precision.

    PYTHONPATH=src python bench/generate.py [--batches 1,64] [--new 128] [--no-compile] [--out result.json]

Both sides read prompts of 32 random tokens and write `--new` tokens each; nothing ends early. The peer runs as it is
(a cache that grows) and with its static cache, for which it compiles a step. Ours is a static cache whose step is
captured as a CUDA graph, and with `compiled` is compiled before. What is timed includes reading the prompts and holds
from the third call on: one way after the other, the median call counts. On a CPU a small model shows that it runs.

Checked first, in fp32: every token we wrote is the reference's likeliest given all before it, within 1e-3 of its logit.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import pretune as pt
from pretune.inference.decode import generate_tokens
from pretune.inference.generation_config import GenerationConfig
from pretune.inference.generation_tokens import GenerationTokens

PROMPT = 32
GOALS = {1: 8.0, 64: 3.0}
SMALL = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 1000}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", default="1,64")
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default=None, help="float32 or bfloat16; bfloat16 on a GPU")
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled rows of both sides out")
    parser.add_argument("--out", default=None)
    options = parser.parse_args()
    gpu = options.device == "cuda"
    dtype = getattr(torch, options.dtype or ("bfloat16" if gpu else "float32"))
    reference = build({} if gpu else SMALL)
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        ours = pt.load(folder, device=options.device)
        reference.to(options.device)
        worst, same = check(ours, reference, options.device, min(options.new, 64))
        reference.to(dtype)
        ours = pt.load(folder, device=options.device, dtype=dtype)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if gpu else platform.processor() or "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "prompt": PROMPT,
        "new": options.new,
        "checked": {"furthest from the likeliest logit": worst, "share of texts equal token for token": same},
        "rows": [],
    }
    for size in map(int, options.batches.split(",")):
        found["rows"].append(measure_row(ours, reference, size, options, compiles=gpu and not options.no_compile))
    text = json.dumps(found, indent=2)
    print(text)
    if options.out:
        Path(options.out).write_text(text + "\n")
    assert worst < 1e-3, f"a token is {worst} below the reference's likeliest"


def build(options: dict[str, int]) -> Any:
    """GPT-2 with random weights; nothing ends a text."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(**options, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.generation_config = transformers.GenerationConfig(pad_token_id=0, eos_token_id=None, do_sample=False)
    return model


def make_prompts(size: int, vocab: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(size)
    return torch.randint(1, vocab, (size, PROMPT), generator=generator).tolist()


def write(model: Any, given: list[list[int]], new: int, *, compiled: bool = False) -> list[list[int]]:
    how = GenerationConfig(max_new_tokens=new)
    return [
        one[0].tokens
        for one in generate_tokens(
            model, given, how, batch=len(given), generation_tokens=GenerationTokens(), torch_compile=compiled
        )
    ]


def write_theirs(model: Any, given: list[list[int]], new: int, **options: Any) -> Any:
    ids = torch.tensor(given, device=model.device)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, **options)
    return out[:, PROMPT:].tolist()


@torch.no_grad()
def check(ours: Any, reference: Any, device: str, new: int) -> tuple[float, float]:
    """In fp32: gap between the logits of our tokens and the reference's maximum, and the share of equal texts."""
    given = make_prompts(8, ours.spec.vocab)
    mine, theirs = write(ours, given, new), write_theirs(reference, given, new)
    whole = torch.tensor([a + b for a, b in zip(given, mine, strict=True)], device=device)
    logits = reference(whole).logits[:, PROMPT - 1 : -1].float()
    chosen = logits.gather(2, whole[:, PROMPT:, None])[..., 0]
    same = sum(a == b for a, b in zip(mine, theirs, strict=True)) / len(mine)
    return float((logits.amax(-1) - chosen).max()), same


def measure_row(ours: Any, reference: Any, size: int, options: Any, *, compiles: bool) -> dict[str, Any]:
    """Tokens a second of every way, and ours over the peer's."""
    given, new = make_prompts(size, ours.spec.vocab), options.new
    ways: dict[str, Callable[[], Any]] = {
        "theirs": lambda: write_theirs(reference, given, new),
        "ours": lambda: write(ours, given, new),
    }
    if compiles:
        ways["theirs_static"] = lambda: write_theirs(reference, given, new, cache_implementation="static")
        ways["ours_compiled"] = lambda: write(ours, given, new, compiled=True)
    rates: dict[str, float] = {}
    warm: dict[str, float] = {}
    for name, way in ways.items():  # NOTE: one after the other: we keep one captured step at a time
        warm[name] = measure_seconds(way, options.device)
        measure_seconds(way, options.device)
        seconds = [measure_seconds(way, options.device) for _ in range(options.rounds)]
        rates[name] = size * new / statistics.median(seconds)
    best = max(rate for name, rate in rates.items() if name.startswith("ours"))
    return {
        "batch": size,
        "tokens_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "first_call_seconds": {name: round(value, 2) for name, value in warm.items()},
        "ours_over_theirs": round(rates["ours"] / rates["theirs"], 2),
        "best_over_theirs": round(best / rates["theirs"], 2),
        "best_over_theirs_static": round(best / rates["theirs_static"], 2) if "theirs_static" in rates else None,
        "goal": GOALS.get(size),
    }


def measure_seconds(way: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    way()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
