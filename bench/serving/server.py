"""`pretune serve` over HTTP on a CPU: beside plain FastAPI routes, and under a load of hostile clients.

    python -m bench.serving.server --out result.json        # both parts, under 5 minutes on 2 cores
    python -m bench.serving.server --part throughput|load

Throughput: completions and classification beside `transformers`, embeddings beside sentence-transformers, each peer
behind a FastAPI route that makes one model call per request, one at a time. All servers run at once, each in its own
process with the same number of threads; only one of them gets requests, and the rounds alternate. Every client sends
its next request, on a connection of its own, after the answer to the last; the fastest round counts. Decoder: GPT-2's
shape with 6 layers and random weights; encoder: MiniLM if installed, else random weights of its shape; the classifier
is MiniLM after one step of fine-tuning, exported for transformers. All sides must give the same texts, vectors (1e-3)
and probabilities (1e-3). Prompts have 4 to 64 words and ask for 16 to 64 tokens, greedy; texts have 4 to 80 words.
Load: see `load.py`. Prints Markdown tables, and writes JSON.
"""

import argparse
import asyncio
import csv
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import pretune as pt
from bench import common
from bench.serving import engine, load

LABELS = ("good", "bad")
LONGEST = {"data.max_length": 256}
"""Longer than every text: nothing is truncated on either side."""
UNITS = {"completions": "tokens", "embeddings": "texts", "classification": "texts"}


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("--part", choices=("throughput", "load"), help="one part only")
    parser.add_argument("--clients", type=int, default=16, help="clients of the throughput")
    parser.add_argument("--requests", type=int, default=2, help="completions of each client; 8 times as many texts")
    parser.add_argument("--rounds", type=int, default=2, help="timed rounds; the fastest counts")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of every server")
    parser.add_argument("--size", choices=(*engine.SIZES,), default="distil")
    parser.add_argument("--load-clients", type=int, default=200)
    parser.add_argument("--load-seconds", type=float, default=45.0)
    parser.add_argument("--peer", nargs=3, metavar=("KIND", "DIR", "PORT"), help="run a peer (used by the script)")
    options = parser.parse_args()
    if options.peer:
        serve_peer(*options.peer)
        return
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    result: dict[str, Any] = {
        "device": common.describe_device("cpu"),
        "torch": torch.__version__,
        "threads": options.threads,
        "size": options.size,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        decoder, encoder = engine.build_models(folder, options.size)
        if options.part in (None, "throughput"):
            result["throughput"] = measure_throughput(
                Models(decoder, encoder, *build_classifier(folder, encoder)), options
            )
            print(format_throughput(result["throughput"]), flush=True)
        if options.part in (None, "load"):
            with run_server(build_command(gpt=decoder, bert=encoder)) as server:
                result["load"] = load.measure(server, decoder, options.load_clients, options.load_seconds)
            print(load.format_markdown(result["load"]), flush=True)
    common.write_result(result, options.out)


class Models(NamedTuple):
    """Directories of the models; the classifier as a run, and as transformers reads it."""

    decoder: Path
    encoder: Path
    run: Path
    classifier: Path


def build_classifier(folder: Path, encoder: Path) -> tuple[Path, Path]:
    """Fine-tune the encoder for one step, with BERT's own pooling, which transformers has, and export it."""
    body = folder / "body"
    shutil.copytree(encoder, body, ignore=shutil.ignore_patterns("modules.json"))
    table = folder / "train.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        writer.writerows((text, LABELS[i % 2]) for i, text in enumerate(common.make_sentences(64, 12)))
    run = pt.finetune(body, out=folder / "run", train=table, steps=1, baselines="none", device="cpu", overrides=LONGEST)
    pt.export(run.path, out=folder / "classifier")
    return run.path, folder / "classifier"


class Server(NamedTuple):
    """Process and port of a server."""

    pid: int
    port: int


def build_command(**models: Path) -> list[str]:
    """Return the command of `pretune serve`, to which the port is appended."""
    names = [f"{name}={folder}" for name, folder in models.items()]
    return [sys.executable, "-m", "pretune", "serve", *names, "--device", "cpu", "--port"]


@contextmanager
def run_server(command: list[str]) -> Iterator[Server]:
    """Run a server on a free port until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = subprocess.Popen([*command, str(port)], stdout=subprocess.DEVNULL, env={**os.environ})
    try:
        for _ in range(1200):
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(command[1:5])} ended with code {process.returncode}")
            try:
                if asyncio.run(load.request(port, "/health"))[0] == 200:
                    break
            except (OSError, ValueError):
                pass
            time.sleep(0.1)
        yield Server(process.pid, port)
    finally:
        process.terminate()
        process.wait(60)


async def ask(port: int, path: str, body: Any) -> Any:
    """Return the JSON of an answer; raises a SystemExit for an error."""
    status, answer = await load.request(port, path, json.dumps(body).encode())
    if status != 200:
        raise SystemExit(f"{path} answered {status}: {answer[:300]!r}")
    return json.loads(answer)


def build_calls(options: argparse.Namespace) -> tuple[dict[str, Callable[[int, int], Any]], dict[str, int]]:
    """Return a call (port, request number) and the amount of work of all requests, for every kind of work."""
    prompts, _ = engine.make_requests(options.clients * options.requests)
    _, texts = engine.make_requests(8 * options.clients * options.requests)

    async def complete(port: int, number: int) -> Any:
        prompt, new = prompts[number]
        body = {"model": "gpt", "prompt": prompt, "max_tokens": new, "temperature": 0}
        return (await ask(port, "/v1/completions", body))["choices"][0]["text"]

    async def embed(port: int, number: int) -> Any:
        return (await ask(port, "/v1/embeddings", {"model": "bert", "input": texts[number]}))["data"][0]["embedding"]

    async def classify(port: int, number: int) -> Any:
        (prediction,) = (await ask(port, "/predict", {"model": "run", "inputs": [texts[number]]}))["results"]
        return [prediction["probabilities"][label] for label in sorted(LABELS)]

    calls = {"completions": complete, "embeddings": embed, "classification": classify}
    return calls, {
        "completions": sum(new for _, new in prompts),
        "embeddings": len(texts),
        "classification": len(texts),
    }


def measure_throughput(models: Models, options: argparse.Namespace) -> dict[str, Any]:
    """Compare every kind of work with its peer."""
    peers = {
        "completions": ("transformers", models.decoder),
        "embeddings": ("sentence-transformers", models.encoder),
        "classification": ("transformers-classifier", models.classifier),
    }
    calls, units = build_calls(options)
    result: dict[str, Any] = {"clients": options.clients}
    with ExitStack() as stack:
        ours = stack.enter_context(run_server(build_command(gpt=models.decoder, bert=models.encoder, run=models.run)))
        for kind, (name, folder) in peers.items():
            command = [sys.executable, "-m", "bench.serving.server", "--peer", name, str(folder)]
            with run_server(command) as peer:
                result[kind] = compare(kind, calls[kind], units[kind], (ours, name, peer), options)
    return result


def compare(
    kind: str,
    call: Callable[[int, int], Any],
    units: int,
    servers: tuple[Server, str, Server],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Alternate rounds of both servers; returns their rates and latencies, and how far their results agree."""
    ours, name, peer = servers
    requests = options.requests if kind == "completions" else 8 * options.requests
    ports = {"pretune": ours.port, name: peer.port}
    rounds: dict[str, list[engine.Round]] = {side: [] for side in ports}
    for number in range(options.rounds + 1):  # the first round warms up
        count = 1 if number == 0 else requests
        for side, port in ports.items():
            values = argparse.Namespace(clients=options.clients, requests=count)

            async def run(i: int, port: int = port) -> Any:
                return await call(port, i)

            played = asyncio.run(engine.run_round(run, values))
            if number:
                rounds[side].append(played)
    best = {side: min(played, key=lambda one: one.seconds) for side, played in rounds.items()}
    rows = {side: engine.summarize(played, units) for side, played in best.items()}
    ratio = round(rows["pretune"]["per_second"] / rows[name]["per_second"], 2)
    agreement = check(kind, best["pretune"].results, best[name].results)
    return {**rows, "peer": name, "ratio": ratio, "requests": len(best[name].results), **agreement}


def check(kind: str, ours: list[Any], theirs: list[Any]) -> dict[str, float]:
    """Return the share of equal texts, or the largest difference of vectors; raises a SystemExit if sides differ."""
    if kind == "completions":
        share = sum(mine == other for mine, other in zip(ours, theirs, strict=True)) / len(ours)
        if share < 0.9:
            raise SystemExit(f"only {share:.0%} of the texts are equal")
        return {"equal texts": share}
    rows = [np.asarray(side, dtype=np.float64) for side in (ours, theirs)]
    if kind == "embeddings":
        rows = [row / np.linalg.norm(row, axis=1, keepdims=True) for row in rows]
    difference = float(np.abs(rows[0] - rows[1]).max())
    if difference > 1e-3:
        raise SystemExit(f"{kind}: the results of both sides differ by {difference:.2g}")
    return {"largest difference": difference}


def format_throughput(result: dict[str, Any]) -> str:
    """Return the table of the throughput."""
    lines = [
        f"{result['clients']} clients at once",
        "",
        "| work | server | per second | p50 | p95 | p99 | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, unit in UNITS.items():
        row = result[kind]
        for side in ("pretune", row["peer"]):
            values = row[side]
            latencies = " | ".join(f"{values[f'latency_{name}']:.2f} s" for name in ("p50", "p95", "p99"))
            ratio = f"**{row['ratio']}**" if side == "pretune" else ""
            lines.append(f"| {kind} | {side} | {values['per_second']:,.1f} {unit} | {latencies} | {ratio} |")
    return "\n".join([*lines, ""])


def serve_peer(kind: str, folder: str, port: str) -> None:
    """Serve a peer: one model call for every request, one at a time."""
    import threading

    import uvicorn
    from fastapi import Body, FastAPI

    app, lock = FastAPI(), threading.Lock()
    build = {"transformers": build_completer, "transformers-classifier": build_labeler}.get(kind, build_embedder)
    path, answer = build(folder)

    @app.post(path)
    def reply(body: dict[str, Any] = Body()) -> Any:  # noqa: B008 (FastAPI's way)
        with lock, torch.inference_mode():
            return answer(body)

    @app.get("/health")
    def health() -> Any:
        return {"status": "ready"}

    uvicorn.run(app, port=int(port), log_level="warning")


def build_completer(folder: str) -> tuple[str, Callable[[Any], Any]]:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    start = pt.load(folder).spec.special.start

    def complete(body: Any) -> Any:
        ids = tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]
        inputs = torch.tensor([[*([] if start is None else [start]), *ids]])
        mask = torch.ones_like(inputs)
        new = body["max_tokens"]
        out = model.generate(inputs, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0)
        return {"choices": [{"text": tokenizer.decode(out[0, inputs.shape[1] :], skip_special_tokens=True)}]}

    return "/v1/completions", complete


def build_labeler(folder: str) -> tuple[str, Callable[[Any], Any]]:
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def classify(body: Any) -> Any:
        inputs = tokenizer(body["inputs"], return_tensors="pt", padding=True, truncation=True)
        shares = model(**inputs).logits.softmax(-1).tolist()
        names = model.config.id2label
        return {"results": [{"probabilities": {names[i]: value for i, value in enumerate(row)}} for row in shares]}

    return "/predict", classify


def build_embedder(folder: str) -> tuple[str, Callable[[Any], Any]]:
    import sentence_transformers

    encoder = sentence_transformers.SentenceTransformer(folder, device="cpu")

    def embed(body: Any) -> Any:
        return {"data": [{"embedding": encoder.encode([body["input"]], show_progress_bar=False)[0].tolist()}]}

    return "/v1/embeddings", embed


if __name__ == "__main__":
    main()
