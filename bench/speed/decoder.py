"""Inference of a decoder of 1B parameters (Llama-3.2-1B's shape, random weights): prefill, decode, quantized weights.

    python -m bench.speed.decoder speed [--batches 1,16] [--prompt 1024] [--new 128] [--only bf16] [--out FILE]
    python -m bench.speed.decoder perplexity --text FILE [--seconds 90] [--out FILE]

`speed`: greedy generation in bf16, the same weights and prompts of random tokens on both sides, without an end token.
Prefill is the time until the first token; decode is that of `--new` further ones, without it. Ours has a static cache
and captures a step as a CUDA graph, as it is or compiled before; int8 and nf4 are our weight-only quantization. The
peer is transformers, by default and with its static cache, for which it compiles the step with CUDA graphs; its prefill
is also measured compiled, alone. Before timing, in fp32: each token of ours must have the peer's largest logit, within
1e-3. Variants run one after the other, since each keeps its graph; one that takes longer than `--limit` seconds is left
out. The median of `--rounds` calls counts. Memory: bytes of the weights, and the peak of the device, with them, in the
largest call.

`perplexity`: a smaller decoder of the same kind is trained on a text for `--seconds`, all but its last 2 %, and its
perplexity on these is computed with each kind of weights. On a CPU both parts only check that the script runs.
"""

import argparse
import json
import lzma
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

import pretune as pt
from bench import common
from bench.speed.lora import LLAMA_1B, TINY
from pretune.adaptation.quantized import count_bytes
from pretune.inference.decode import generate_tokens
from pretune.inference.generation_config import GenerationConfig, GenerationTokens

KINDS = (None, "int8", "nf4")
Generate = Callable[[int], list[list[int]]]
"""Returns so many new tokens for each prompt."""


def make_prompts(batch: int, length: int, vocab: int) -> list[list[int]]:
    """Create random prompts."""
    return torch.randint(5, vocab, (batch, length), generator=torch.Generator().manual_seed(batch)).tolist()


def build_ours(model: Any, prompts: list[list[int]], *, compiled: bool) -> Generate:
    """Return greedy generation with our model as a function of the number of tokens."""

    def generate(new: int) -> list[list[int]]:
        results = generate_tokens(
            model,
            prompts,
            GenerationConfig(max_new_tokens=new),
            batch=len(prompts),
            generation_tokens=GenerationTokens(),
            torch_compile=compiled,
        )
        return [texts[0].tokens for texts in results]

    return generate


def build_peer(model: Any, prompts: list[list[int]], *, static: bool) -> Generate:
    """Return greedy generation of transformers as a function of the number of tokens."""
    ids = torch.tensor(prompts, device=model.device)
    options = {"cache_implementation": "static"} if static else {}

    def generate(new: int) -> list[list[int]]:
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, **options)
        tokens: list[list[int]] = out[:, ids.shape[1] :].tolist()
        return tokens

    return generate


def build_compiled_prefill(model: Any, prompts: list[list[int]]) -> Callable[[], Any]:
    """Return the compiled forward pass of transformers over the prompts, which fills a static cache."""
    from transformers import StaticCache

    ids = torch.tensor(prompts, device=model.device)
    forward = torch.compile(model.forward, dynamic=False)

    @torch.no_grad()
    def prefill() -> Any:
        cache = StaticCache(config=model.config, max_cache_len=ids.shape[1] + 1)
        return forward(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits.argmax(-1)

    return prefill


def save_model(folder: str, shape: dict[str, Any], device: str) -> None:
    """Save a model of transformers with random weights in fp32, without an end token."""
    from transformers import GenerationConfig as PeerConfig
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(**shape, bos_token_id=None, eos_token_id=None, pad_token_id=0))
    model.generation_config = PeerConfig(pad_token_id=0, eos_token_id=None, do_sample=False)
    model.save_pretrained(folder)


def load_peer(folder: str, device: str, dtype: torch.dtype) -> Any:
    """Load the model of transformers."""
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").to(device).eval()


@torch.no_grad()
def check(folder: str, device: str, vocab: int, new: int) -> float:
    """Return the largest gap of our tokens to the peer's largest logit, in fp32."""
    prompts = make_prompts(4, 16, vocab)
    ours, peer = pt.load(folder, device=device), load_peer(folder, device, torch.float32)
    texts = build_ours(ours, prompts, compiled=False)(new)
    sequences = torch.tensor([a + b for a, b in zip(prompts, texts, strict=True)], device=device)
    logits = peer(sequences).logits[:, 15:-1].float()
    return float((logits.amax(-1) - logits.gather(2, sequences[:, 16:, None])[..., 0]).max())


def measure(generate: Generate, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return tokens per second of prefill and decode, and the peak of the memory."""
    is_cuda = options.device == "cuda"

    def time_calls(new: int) -> tuple[float, float]:
        seconds = [
            common.time_call(lambda: generate(new), clock=common.wall_clock, device=options.device)[0]
            for _ in range(options.rounds + 2)
        ]
        return median(seconds[2:]), seconds[0]

    prefill, _ = time_calls(1)
    if is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    total, first = time_calls(1 + options.new)
    return {
        "prefill_tokens_per_second": round(batch * options.prompt / prefill),
        "first_token_ms": round(1000 * prefill, 2),
        "decode_tokens_per_second": round(batch * options.new / max(total - prefill, 1e-9), 1),
        "first_call_seconds": round(first, 1),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if is_cuda else None,
    }


def measure_speed(options: argparse.Namespace) -> dict[str, Any]:
    """Return rows by batch size and variant, and the ratios of ours to the peer and to bf16."""
    device, is_tiny = options.device, options.device == "cpu"
    shape, dtype = (TINY, torch.float32) if is_tiny else (LLAMA_1B, torch.bfloat16)
    result: dict[str, Any] = {"shape": shape, "prompt": options.prompt, "new": options.new, "rows": {}}
    prompts = {size: make_prompts(size, options.prompt, shape["vocab_size"]) for size in options.batches}
    compiles = (False,) if is_tiny or options.no_compile else (False, True)
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, shape, device)
        result["largest gap to the maximum logit"] = gap = check(folder, device, shape["vocab_size"], 8)
        assert gap < 1e-3, f"a token is {gap} below the peer's largest logit"

        def record(name: str, batch: int, run: Callable[[], dict[str, Any]], **facts: Any) -> None:
            if options.only and not any(part in name for part in options.only):
                return
            try:
                with common.time_limit(options.limit):
                    row = {**run(), **facts}
            except (RuntimeError, TypeError, TimeoutError, torch._dynamo.exc.TorchDynamoException) as error:
                row = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            result["rows"].setdefault(str(batch), {})[name] = row
            print(json.dumps({"batch": batch, "name": name, **row}), flush=True)
            common.write_result(result, options.out)
            torch._dynamo.reset()

        for kind in KINDS:
            model = pt.load(folder, device=device, dtype=dtype, quantize=kind)
            size = round(count_bytes(model) / 1e9, 3)
            for batch in options.batches:
                for compiled in compiles:
                    name = f"pretune {kind or 'bf16'}{', compiled' if compiled else ''}"
                    generate = build_ours(model, prompts[batch], compiled=compiled)
                    record(name, batch, lambda run=generate, batch=batch: measure(run, batch, options), weights_gb=size)
            del model
            free(device)
        peer = load_peer(folder, device, dtype)
        size = round(count_bytes(peer) / 1e9, 3)
        for batch in options.batches:
            for static in (False,) if is_tiny else (False, True):
                generate = build_peer(peer, prompts[batch], static=static)
                name = f"transformers bf16{', static cache, compiled' if static else ''}"
                record(name, batch, lambda run=generate, batch=batch: measure(run, batch, options), weights_gb=size)
            if not is_tiny:
                run = build_compiled_prefill(peer, prompts[batch])
                record(
                    "transformers bf16, compiled prefill",
                    batch,
                    lambda run=run, batch=batch: measure_prefill(run, batch, options),
                )
    return {**result, "ratios": {batch: compute_ratios(rows) for batch, rows in result["rows"].items()}}


def measure_prefill(prefill: Callable[[], Any], batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the tokens per second of a prefill alone."""
    seconds = [
        common.time_call(prefill, clock=common.wall_clock, device=options.device)[0] for _ in range(options.rounds + 2)
    ]
    value = median(seconds[2:])
    return {
        "prefill_tokens_per_second": round(batch * options.prompt / value),
        "first_token_ms": round(1000 * value, 2),
        "first_call_seconds": round(seconds[0], 1),
    }


def compute_ratios(rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return our best bf16 variant over the peer's best, and each kind of weights over bf16."""

    def best(prefix: str, key: str) -> float:
        return max((row[key] for name, row in rows.items() if name.startswith(prefix) and key in row), default=0.0)

    ratios = {}
    for key in ("prefill_tokens_per_second", "decode_tokens_per_second"):
        ours = best("pretune bf16", key)
        others = {"transformers": best("transformers", key)} | {k: best(f"pretune {k}", key) for k in KINDS if k}
        stage = key.partition("_")[0]
        if ours and others["transformers"]:
            ratios[f"{stage}: bf16 over transformers"] = round(ours / others.pop("transformers"), 3)
        ratios |= {f"{stage}: {k} over bf16": round(rate / ours, 3) for k, rate in others.items() if ours and rate}
    return ratios


def free(device: str) -> None:
    """Free the memory of models that are gone."""
    if device == "cuda":
        torch.cuda.empty_cache()


def measure_perplexity(options: argparse.Namespace) -> dict[str, Any]:
    """Train a decoder on a text, and return its perplexity on the end of the text with each kind of weights."""
    is_tiny = options.device == "cpu"
    text = options.text.read_bytes()
    text = (lzma.decompress(text) if options.text.suffix == ".xz" else text).decode("utf-8")
    end = len(text) - len(text) // 50
    size = {"width": 64, "depth": 1, "heads": 4, "kv_heads": 2, "hidden": 128}
    if not is_tiny:
        size = {"width": 768, "depth": 12, "heads": 12, "kv_heads": 4, "hidden": 2048}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.txt").write_text(text[:end], encoding="utf-8")
        (folder / "test.txt").write_text(text[end:], encoding="utf-8")
        vocab = 400 if is_tiny else 16_384
        tokenizer = pt.train_tokenizer("bpe", [folder / "train.txt"], vocab=vocab, style="endoftext")
        workers = {"workers": 0} if is_tiny else {}
        data = pt.prepare([folder / "train.txt"], tokenizer=tokenizer, out=folder / "data", holdout="1%", **workers)
        settings = {f"model.{key}": value for key, value in size.items()} | {"train.samples_every": 0}
        settings |= {"data.max_length": 64, "train.batch_tokens": 256} if is_tiny else {"data.max_length": 512}
        length: dict[str, Any] = {"steps": 4} if is_tiny else {"budget": options.seconds}
        run = pt.pretrain(
            "llama3-1b", data=data, out=folder / "run", paper=True, overrides=settings, device=options.device, **length
        )
        rows = {}
        for kind in KINDS:
            (result,) = pt.evaluate(run.path, text=[folder / "test.txt"], quantize=kind, device=options.device)
            model = pt.load(run.path, quantize=kind)
            rows[kind or "unquantized"] = {"scores": dict(result.scores), "megabytes": count_bytes(model) / 1e6}
        first = rows["unquantized"]["scores"]["perplexity"]
        for row in rows.values():
            row["change"] = row["scores"]["perplexity"] / first - 1
        return {"tokens": run.summary["tokens"], "parameters": run.summary["parameters"], "rows": rows}


def main() -> None:
    parser = common.build_parser(__doc__)
    common.add_device_option(parser)
    parser.add_argument("part", choices=("speed", "perplexity"))
    parser.add_argument("--batches", type=lambda text: [int(size) for size in text.split(",")], default=[1, 16])
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens to generate after the first")
    parser.add_argument("--rounds", type=int, default=3, help="timed calls; the median counts")
    parser.add_argument("--only", nargs="*", help="parts of names of variants; default: all")
    parser.add_argument("--limit", type=int, default=90, help="seconds of a variant, compiling included")
    parser.add_argument("--no-compile", action="store_true", help="leave out our compiled variants")
    parser.add_argument("--text", type=Path, help="perplexity: a text, maybe compressed with xz")
    parser.add_argument("--seconds", type=float, default=90, help="perplexity: training time")
    options = parser.parse_args()
    parts = {"speed": measure_speed, "perplexity": measure_perplexity}
    facts = {"device": common.describe_device(options.device), "torch": torch.__version__}
    common.print_result({**facts, **parts[options.part](options)}, options.out)


if __name__ == "__main__":
    main()
