"""Throughput of the engine of the server under many clients, compared with one model call per request.

    python -m bench.serving.engine [--clients 32] [--requests 4] [--size small] [--out result.json]

In process, over HTTP see `server.py`: asynchronous clients of `Engine`, beside a loop of one `generate` or
`embed` call per request, in the same precision and on the same requests. Decoder: GPT-2's shape with random weights;
encoder: MiniLM if installed, else random weights of its shape. Prompts have 4 to 64 words and ask for 16 to 64 tokens,
greedy; texts to embed have 4 to 80 words, one per request. Every client sends its next request after the answer to the
last. The best of `--rounds` counts; the generated texts of both sides and their vectors are compared.
Prints JSON: tokens or texts per second, latency, and the ratios.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pretune as pt
from bench import common
from pretune.inference.generate import generate_texts
from pretune.inference.generation_config import build_generation_config
from pretune.models.catalog import resolve
from pretune.models.model import build
from pretune.runs.defaults import set_special_tokens
from pretune.server.config import ServerConfig
from pretune.server.engine import Engine

SIZES: dict[str, dict[str, Any]] = {
    "small": {},
    "distil": {"depth": 6},
    "mini": {"width": 256, "depth": 4, "heads": 4, "positions": 512},
    "tiny": {"width": 32, "depth": 2, "heads": 2, "positions": 512},
}
ENCODERS: dict[str, dict[str, Any]] = {
    "small": {"width": 384, "depth": 6, "heads": 12, "hidden": 1536},
    "distil": {"width": 384, "depth": 6, "heads": 12, "hidden": 1536},
    "mini": {"width": 384, "depth": 6, "heads": 12, "hidden": 1536},
    "tiny": {"width": 32, "depth": 2, "heads": 2, "hidden": 64},
}
NEW_TOKENS = (16, 32, 64, 24, 48)
Call = Callable[[int], Awaitable[Any]]


def main() -> None:
    parser = common.build_parser(__doc__)
    common.add_device_option(parser)
    parser.add_argument("--clients", type=int, default=32, help="clients at once")
    parser.add_argument("--requests", type=int, default=4, help="requests of each client")
    parser.add_argument("--rounds", type=int, default=2, help="timed rounds; the best counts")
    parser.add_argument("--size", choices=(*SIZES,), default=None, help="default: small on a GPU, else mini")
    parser.add_argument("--dtype", default=None, help="float32 or bfloat16; default: bfloat16 on a GPU, else float32")
    options = parser.parse_args()
    gpu = options.device == "cuda"
    options.size = options.size or ("small" if gpu else "mini")
    options.dtype = options.dtype or ("bfloat16" if gpu else "float32")
    with tempfile.TemporaryDirectory() as folder:
        decoder, encoder = build_models(Path(folder), options.size)
        result = {
            "device": common.describe_device(options.device),
            "torch": torch.__version__,
            "size": options.size,
            "dtype": options.dtype,
            "clients": options.clients,
            "requests": options.clients * options.requests,
            **run_in_process(decoder, encoder, options),
        }
    common.print_result(result, options.out)


def build_models(folder: Path, size: str) -> tuple[Path, Path]:
    """Write the directories of a decoder and an encoder."""
    corpus = folder / "text.txt"
    corpus.write_text("\n\n".join(common.make_sentences(3000, 12)), encoding="utf-8")
    decoder, encoder = folder / "decoder", common.find_minilm() if size != "tiny" else None
    words = pt.train_tokenizer("bpe", [corpus], vocab=8000, style="endoftext")
    spec = set_special_tokens(resolve("gpt2-small", {"vocab": words.vocab, **SIZES[size]}), words)
    save(build(spec), words, decoder)
    if encoder is None:
        encoder, pieces = folder / "encoder", pt.train_tokenizer("wordpiece", [corpus], vocab=8000)
        save(
            build(set_special_tokens(resolve("bert-base", {"vocab": pieces.vocab, **ENCODERS[size]}), pieces)),
            pieces,
            encoder,
        )
    return decoder, encoder


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    model.assets.tokenizer, model.assets.files = tokenizer.raw, tokenizer.build_files()
    pt.save(model, folder)


def make_requests(count: int) -> tuple[list[tuple[str, int]], list[str]]:
    """Return prompts with the numbers of new tokens, and texts to embed."""
    sentences = list(common.make_sentences(2 * count, 20))
    prompts = [" ".join(text.split()[:64]) for text in sentences[:count]]
    return [(text, NEW_TOKENS[i % len(NEW_TOKENS)]) for i, text in enumerate(prompts)], sentences[count:]


def run_in_process(decoder: Path, encoder: Path, options: argparse.Namespace) -> dict[str, Any]:
    dtype = getattr(torch, options.dtype)
    gpt = pt.load(decoder, device=options.device, dtype=dtype).eval()
    bert = pt.load(encoder, device=options.device, dtype=dtype).eval()
    prompts, texts = make_requests(options.clients * options.requests)

    def generate(number: int) -> str:
        prompt, new = prompts[number]
        config = build_generation_config(max_new_tokens=new, temperature=0)
        return generate_texts(gpt, [prompt], config)[0][0].new

    def embed(number: int) -> Any:
        return pt.embed(bert, [texts[number]])[0]

    async def measure() -> dict[str, Any]:
        config = ServerConfig(max_rows=max(options.clients, 1))
        async with Engine({"gpt": gpt, "bert": bert}, config=config) as engine:

            async def complete(number: int) -> str:
                prompt, new = prompts[number]
                return (await engine.complete("gpt", [prompt], max_new_tokens=new, temperature=0)).texts[0][0].new

            async def embed_text(number: int) -> Any:
                return (await engine.embed("bert", [texts[number]])).vectors[0]

            engine_texts = await run_clients(complete, options, 1)
            vectors = await run_clients(embed_text, options, 1)
            rows = {
                "completions": await time_clients(complete, options, sum(new for _, new in prompts)),
                "embeddings": await time_clients(embed_text, options, len(texts)),
            }
        return {"rows": rows, "texts": engine_texts.results, "vectors": vectors.results}

    ours = asyncio.run(measure())
    loops = {
        "completions": time_loop(generate, options, sum(new for _, new in prompts)),
        "embeddings": time_loop(embed, options, len(texts)),
    }
    checked = check(
        ours, [generate(i) for i in range(min(len(prompts), 16))], [embed(i) for i in range(min(len(texts), 16))]
    )
    return {
        "checked": checked,
        **{kind: compare(ours["rows"][kind], {"one call per request": loops[kind]}) for kind in loops},
    }


def check(ours: dict[str, Any], texts: list[str], vectors: list[Any]) -> dict[str, float]:
    """Return the share of equal texts, and the largest difference of unit vectors."""
    equal = [mine == theirs for mine, theirs in zip(ours["texts"], texts, strict=False)]
    pairs = [(unit(mine), unit(theirs)) for mine, theirs in zip(ours["vectors"], vectors, strict=False)]
    return {
        "share of equal texts": sum(equal) / len(equal),
        "largest difference of vectors": max(float(np.abs(left - right).max()) for left, right in pairs),
    }


def unit(vector: Any) -> Any:
    array = np.asarray(vector, dtype=np.float32)
    return array / np.linalg.norm(array)


class Round:
    """Results by request, and the latency of each."""

    def __init__(self, results: list[Any], latencies: list[float], seconds: float) -> None:
        self.results, self.latencies, self.seconds = results, latencies, seconds


async def run_clients(call: Call, options: argparse.Namespace, rounds: int | None = None) -> Round:
    """Run all clients; each sends its requests one after the other. Returns the fastest round."""
    played_rounds = [await run_round(call, options) for _ in range(rounds or options.rounds)]
    return min(played_rounds, key=lambda played: played.seconds)


async def run_round(call: Call, options: argparse.Namespace) -> Round:
    total = options.clients * options.requests
    results: list[Any] = [None] * total
    latencies: list[float] = [0.0] * total

    async def client(first: int) -> None:
        for number in range(first, total, options.clients):
            begin = time.perf_counter()
            results[number] = await call(number)
            latencies[number] = time.perf_counter() - begin

    start = time.perf_counter()
    await asyncio.gather(*(client(i) for i in range(options.clients)))
    return Round(results, latencies, time.perf_counter() - start)


async def time_clients(call: Call, options: argparse.Namespace, units: int) -> dict[str, float]:
    return summarize(await run_clients(call, options), units)


def time_loop(call: Callable[[int], Any], options: argparse.Namespace, units: int) -> dict[str, float]:
    """Time one request after the other."""
    total, best = options.clients * options.requests, None
    call(0)
    for _ in range(options.rounds):
        latencies = [common.measure_seconds(lambda i=i: call(i), clock=time.perf_counter) for i in range(total)]
        best = min(best or latencies, latencies, key=sum)
    assert best is not None
    return summarize(Round([], best, sum(best)), units)


def summarize(best: Round, units: int) -> dict[str, float]:
    return {
        "per_second": round(units / best.seconds, 1),
        "seconds": round(best.seconds, 3),
        **compute_latencies(best.latencies),
    }


def compute_latencies(seconds: Sequence[float]) -> dict[str, float]:
    """Return quantiles of latencies."""
    quantiles = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {f"latency_{name}": round(float(np.quantile(seconds, share)), 4) for name, share in quantiles.items()}


def compare(ours: dict[str, float], peers: dict[str, dict[str, float]]) -> dict[str, Any]:
    ratios = {f"over {name}": round(ours["per_second"] / peer["per_second"], 2) for name, peer in peers.items()}
    return {"pretune": ours, **peers, "ratio": ratios}


if __name__ == "__main__":
    main()
