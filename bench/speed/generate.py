"""Speed of greedy generation with GPT-2 small, compared with `transformers.generate` in the same precision.

    python -m bench.speed.generate [--batches 1,64] [--new 128] [--no-compile] [--full] [--out result.json]
    python -m bench.speed.generate --device cpu --laptop llama --batches 1,8

Both sides get prompts of 32 random tokens and generate `--new` tokens each, without an end token. The peer runs with
its default (dynamic) cache and with its static cache, for which it compiles a step. Ours has a static cache and
captures a step as a CUDA graph, optionally compiled before. The time includes the prompts; variants run one after the
other, two warm-up calls each, and the median call counts. `--laptop` takes a decoder of six layers and width 256, as
one pre-trains on a laptop. On a CPU only `--full` and `--laptop` measure anything: without them a small model checks
that the script runs.

Before timing, in fp32: each generated token must have the reference's largest logit, within 1e-3. Prints JSON: tokens
per second of each variant and the ratios.
"""

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import transformers

import pretune as pt
from bench import common
from pretune.inference.decode import generate_tokens
from pretune.inference.generation_config import GenerationConfig, GenerationTokens

PROMPT = 32
GOALS = {1: 8.0, 64: 3.0}
SMALL = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 1000}
LAPTOP_GPT2 = {"n_embd": 256, "n_layer": 6, "n_head": 4, "vocab_size": 8192}
LAPTOP_LLAMA = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 8192,
}


def main() -> None:
    parser = common.build_parser(__doc__)
    common.add_device_option(parser)
    parser.add_argument("--batches", default="1,64", help="comma-separated batch sizes")
    parser.add_argument("--new", type=int, default=128, help="tokens to generate")
    parser.add_argument("--rounds", type=int, default=3, help="timed calls; the median counts")
    parser.add_argument("--dtype", default=None, help="float32 or bfloat16; default: bfloat16 on a GPU, else float32")
    parser.add_argument("--no-compile", action="store_true", help="skip the compiled variants of both sides")
    parser.add_argument("--full", action="store_true", help="GPT-2 small on a CPU as well")
    parser.add_argument("--laptop", choices=("gpt2", "llama"), help="a small decoder of this family instead")
    options = parser.parse_args()
    gpu = options.device == "cuda"
    dtype = getattr(torch, options.dtype or ("bfloat16" if gpu else "float32"))
    reference = build(gpu or options.full, options.laptop)
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        ours = pt.load(folder, device=options.device)
        reference.to(options.device)
        worst, same = check(ours, reference, options.device, min(options.new, 64))
        reference.to(dtype)
        ours = pt.load(folder, device=options.device, dtype=dtype)
    result: dict[str, Any] = {
        "device": common.describe_device(options.device),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "model": f"{options.laptop}, laptop" if options.laptop else "gpt2",
        "dtype": str(dtype).removeprefix("torch."),
        "prompt": PROMPT,
        "new": options.new,
        "checked": {"largest gap to the maximum logit": worst, "share of texts equal token for token": same},
        "rows": [],
    }
    for size in map(int, options.batches.split(",")):
        result["rows"].append(measure_row(ours, reference, size, options, compiles=gpu and not options.no_compile))
    common.print_result(result, options.out)
    assert worst < 1e-3, f"a token is {worst} below the reference's maximum logit"


def build(is_full: bool, laptop: str | None) -> Any:
    """Build a decoder with random weights and no end token."""
    torch.manual_seed(0)
    tokens: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    if laptop == "llama":
        model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LAPTOP_LLAMA, **tokens)).eval()
    else:
        options = LAPTOP_GPT2 if laptop == "gpt2" else {} if is_full else SMALL
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**options, **tokens)).eval()
    model.generation_config = transformers.GenerationConfig(pad_token_id=0, eos_token_id=None, do_sample=False)
    return model


def make_prompts(size: int, vocab: int) -> list[list[int]]:
    """Create random prompts of `PROMPT` tokens."""
    generator = torch.Generator().manual_seed(size)
    return torch.randint(1, vocab, (size, PROMPT), generator=generator).tolist()


def generate(model: Any, prompts: list[list[int]], new: int, *, compiled: bool = False) -> list[list[int]]:
    """Generate `new` tokens per prompt with pretune."""
    config = GenerationConfig(max_new_tokens=new)
    return [
        texts[0].tokens
        for texts in generate_tokens(
            model, prompts, config, batch=len(prompts), generation_tokens=GenerationTokens(), torch_compile=compiled
        )
    ]


def generate_with_transformers(model: Any, prompts: list[list[int]], new: int, **options: Any) -> Any:
    """Generate `new` tokens per prompt with transformers."""
    ids = torch.tensor(prompts, device=model.device)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, **options)
    return out[:, PROMPT:].tolist()


@torch.no_grad()
def check(ours: Any, reference: Any, device: str, new: int) -> tuple[float, float]:
    """Return the largest gap of our tokens to the reference's maximum logit, and the share of equal texts."""
    prompts = make_prompts(8, ours.spec.vocab)
    our_texts, peer_texts = generate(ours, prompts, new), generate_with_transformers(reference, prompts, new)
    sequences = torch.tensor([a + b for a, b in zip(prompts, our_texts, strict=True)], device=device)
    logits = reference(sequences).logits[:, PROMPT - 1 : -1].float()
    logit_of_token = logits.gather(2, sequences[:, PROMPT:, None])[..., 0]
    same = sum(a == b for a, b in zip(our_texts, peer_texts, strict=True)) / len(our_texts)
    return float((logits.amax(-1) - logit_of_token).max()), same


def measure_row(ours: Any, reference: Any, size: int, options: argparse.Namespace, *, compiles: bool) -> dict[str, Any]:
    """Return the tokens per second of every variant, and the ratios."""
    prompts, new = make_prompts(size, ours.spec.vocab), options.new
    variants: dict[str, Callable[[], Any]] = {
        "theirs": lambda: generate_with_transformers(reference, prompts, new),
        "ours": lambda: generate(ours, prompts, new),
    }
    if compiles:
        variants["theirs_static"] = lambda: generate_with_transformers(
            reference, prompts, new, cache_implementation="static"
        )
        variants["ours_compiled"] = lambda: generate(ours, prompts, new, compiled=True)
    rates: dict[str, float] = {}
    first_calls: dict[str, float] = {}
    for (
        name,
        variant,
    ) in variants.items():  # NOTE: not alternated, because only one captured CUDA graph is kept at a time
        measure = partial(common.measure_seconds, variant, clock=common.wall_clock, device=options.device)
        first_calls[name] = measure()
        measure()
        rates[name] = size * new / median(measure() for _ in range(options.rounds))
    best = max(rate for name, rate in rates.items() if name.startswith("ours"))
    return {
        "batch": size,
        "tokens_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "first_call_seconds": {name: round(value, 2) for name, value in first_calls.items()},
        "ours_over_theirs": round(rates["ours"] / rates["theirs"], 2),
        "best_over_theirs": round(best / rates["theirs"], 2),
        "best_over_theirs_static": round(best / rates["theirs_static"], 2) if "theirs_static" in rates else None,
        "goal": GOALS.get(size),
    }


if __name__ == "__main__":
    main()
