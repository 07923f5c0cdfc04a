"""Load test of `pretune serve` (run by `server.py`): many clients at once, slow, vanishing and hostile ones.

Roles of the clients, each of which repeats its part until the time is over:

    completions, streams, embeddings    honest: the answers must be those of one request at a time, or 429
    disconnects                         send a request for a long text, and close the connection
    slow senders                        send the headers and then a byte now and then: 408
    deaf clients                        ask for a large answer and do not read it: the connection is closed
    oversized bodies                    twice the limit, with and without a length: 413
    hostile bodies                      broken or deep JSON, NaN, invalid UTF-8, foreign hosts, huge numbers: 4xx

The latencies are those of honest requests that were answered. Memory is the resident memory of the server.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pretune as pt
from bench import common
from bench.serving import engine
from pretune.inference.generate import generate_texts
from pretune.inference.generation_config import build_generation_config

SHARES = {
    "completions": 0.35, "streams": 0.15, "embeddings": 0.2, "disconnects": 0.1, "slow senders": 0.05,
    "deaf clients": 0.05, "oversized bodies": 0.05, "hostile bodies": 0.05,
}  # fmt: skip
HONEST = ("completions", "streams", "embeddings")
NEW_TOKENS = 12
BODY_LIMIT = 2 * 2**20
PAUSE_SECONDS = 0.5
"""Time between two rude requests of a client."""
HOSTILE: tuple[tuple[bytes, str], ...] = (
    (b"{", ""),
    (b"[" * 100_000, ""),
    (b'{"model": "gpt", "prompt": "\xff"}', ""),
    (b'{"model": "gpt", "prompt": "a", "temperature": NaN}', ""),
    (b'{"model": "gpt", "prompt": "a", "n": 1000000000}', ""),
    (b'{"model": "gpt", "prompt": "a", "max_tokens": 1000000000}', ""),
    (b'{"model": "gpt", "prompt": "' + b"a " * 100_000 + b'"}', ""),
    (b'{"model": "../../etc/passwd", "prompt": "a"}', ""),
    (b'{"model": "gpt", "prompt": "a"}', "evil.example"),
    (b'{"model": "\\u001b[31m<script>", "prompt": "a"}', ""),
)


async def request(port: int, path: str, body: bytes | None = None, host: str = "localhost") -> tuple[int, bytes]:
    """Send a request on its own connection; returns the status and the body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(format_head(path, body, host) + (body or b""))
        answer = await reader.read()
    finally:
        writer.close()
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), content


def format_head(path: str, body: bytes | None, host: str = "localhost", length: int | None = None) -> bytes:
    """Return the head of a request."""
    method, size = ("GET", 0) if body is None else ("POST", len(body) if length is None else length)
    lines = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n"
    return f"{lines}Connection: close\r\n\r\n".encode()


class Load:
    """Counts of outcomes by role, and latencies of honest requests."""

    def __init__(self, port: int, texts: dict[str, str], seconds: float) -> None:
        self.port, self.texts, self.deadline = port, texts, time.monotonic() + seconds
        self.prompts = [*texts]
        self.outcomes: dict[str, Counter[str]] = {role: Counter() for role in SHARES}
        self.latencies: dict[str, list[float]] = {role: [] for role in HONEST}

    async def run_client(self, role: str, number: int) -> None:
        """Repeat the part of a role until the deadline."""
        act: Callable[[int], Awaitable[str]] = getattr(self, f"_send_{role.replace(' ', '_')}")
        while time.monotonic() < self.deadline:
            start = time.perf_counter()
            try:
                outcome = await act(number)
            except (OSError, ValueError, IndexError) as error:
                outcome = type(error).__name__
            self.outcomes[role][outcome] += 1
            if outcome == "200":
                self.latencies[role].append(time.perf_counter() - start)
            if role not in HONEST:
                await asyncio.sleep(PAUSE_SECONDS)
            number += 1

    def _build_completion(self, number: int, **fields: Any) -> tuple[str, bytes]:
        prompt = self.prompts[number % len(self.prompts)]
        body = {"model": "gpt", "prompt": prompt, "temperature": 0, "max_tokens": NEW_TOKENS, **fields}
        return prompt, json.dumps(body).encode()

    async def _send_completions(self, number: int) -> str:
        prompt, body = self._build_completion(number)
        status, answer = await request(self.port, "/v1/completions", body)
        is_right = status != 200 or json.loads(answer)["choices"][0]["text"] == self.texts[prompt]
        return str(status) if is_right else "wrong text"

    async def _send_streams(self, number: int) -> str:
        prompt, body = self._build_completion(number, stream=True)
        status, answer = await request(self.port, "/v1/completions", body)
        if status != 200:
            return str(status)
        lines = [line for line in answer.decode().splitlines() if line.startswith("data: {")]
        text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines)
        return "200" if text == self.texts[prompt] and b"data: [DONE]" in answer else "wrong text"

    async def _send_embeddings(self, number: int) -> str:
        texts = [self.prompts[(number + i) % len(self.prompts)] for i in range(4)]
        body = json.dumps({"model": "bert", "input": texts}).encode()
        status, answer = await request(self.port, "/v1/embeddings", body)
        return str(status) if status != 200 or len(json.loads(answer)["data"]) == 4 else "wrong vectors"

    async def _send_disconnects(self, number: int) -> str:
        _, body = self._build_completion(number, max_tokens=200, min_tokens=200, stream=bool(number % 2))
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(format_head("/v1/completions", body) + body)
        await writer.drain()
        await asyncio.sleep(0.2)
        writer.close()
        return "gone"

    async def _send_slow_senders(self, number: int) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(format_head("/v1/completions", b"", length=1000))
        answer = asyncio.create_task(reader.read())
        try:
            with contextlib.suppress(ConnectionError):
                while not answer.done():
                    writer.write(b" ")
                    await asyncio.wait({answer}, timeout=1.0)
            return (await answer).split()[1].decode()
        finally:
            answer.cancel()
            writer.close()

    async def _send_deaf_clients(self, number: int) -> str:
        body = json.dumps({"model": "gpt", "texts": ["a b c d e f g h i j k l m n o p " * 20] * 250}).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1024)
        start = time.monotonic()
        try:
            writer.write(format_head("/tokenize", body) + body)
            await writer.drain()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            while time.monotonic() - start < 20:
                await asyncio.sleep(1)
                writer.write(b"\r\n")  # fails when the server has closed the connection
                await writer.drain()
            return "still connected"
        except OSError:
            return "closed"
        finally:
            writer.transport.abort()

    async def _send_oversized_bodies(self, number: int) -> str:
        data = b"a" * (2 * BODY_LIMIT)
        if number % 2:
            status, _ = await request(self.port, "/v1/embeddings", data)
            return str(status)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = format_head("/v1/embeddings", b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        writer.write(head)
        try:
            for start in range(0, len(data), 2**16):
                writer.write(b"10000\r\n" + data[start : start + 2**16] + b"\r\n")
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            return (await reader.read()).split()[1].decode()
        finally:
            writer.close()

    async def _send_hostile_bodies(self, number: int) -> str:
        body, host = HOSTILE[number % len(HOSTILE)]
        return str((await request(self.port, "/v1/completions", body, host or "localhost"))[0])


def measure(server: Any, decoder: Path, clients: int, seconds: float) -> dict[str, Any]:
    """Run the load against a server with the models `gpt` (from `decoder`) and `bert`; returns counts and sizes."""
    prompts = [" ".join(text.split()[:8]) for text in common.make_sentences(16, 12)]
    model, config = pt.load(decoder).eval(), build_generation_config(max_new_tokens=NEW_TOKENS, temperature=0)
    texts = {prompt: generate_texts(model, [prompt], config)[0][0].new for prompt in prompts}

    async def run() -> tuple[Load, list[int]]:
        await asyncio.gather(*(request(server.port, path, body) for path, body in build_warmup(prompts)))
        sizes = [read_memory(server.pid)]
        load = Load(server.port, texts, seconds)
        tasks = [asyncio.create_task(load.run_client(role, i)) for i, role in enumerate(list_roles(clients))]
        while not all(task.done() for task in tasks):
            await asyncio.wait(tasks, timeout=0.5)
            sizes.append(read_memory(server.pid))
        await asyncio.gather(*tasks)
        return load, sizes

    load, sizes = asyncio.run(run())
    health, _ = asyncio.run(request(server.port, "/health"))
    wait_until_idle(server.port)
    return {
        "clients": clients,
        "seconds": seconds,
        "outcomes": {role: dict(counts.most_common()) for role, counts in load.outcomes.items()},
        "latencies": {role: engine.compute_latencies(values) for role, values in load.latencies.items() if values},
        "memory_before_mb": sizes[0],
        "memory_peak_mb": max(sizes),
        "memory_after_mb": read_memory(server.pid),
        "health_after": health,
    }


def list_roles(clients: int) -> Iterator[str]:
    """Yield the role of every client, at least one of each."""
    for role, share in SHARES.items():
        yield from [role] * max(round(share * clients), 1)


def build_warmup(prompts: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield a request of every kind for each of a batch."""
    for prompt in prompts * 2:
        body = {"model": "gpt", "prompt": prompt, "temperature": 0, "max_tokens": NEW_TOKENS}
        yield "/v1/completions", json.dumps(body).encode()
        yield "/v1/embeddings", json.dumps({"model": "bert", "input": prompt}).encode()


def read_memory(pid: int) -> int:
    """Return the resident memory of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1000


def wait_until_idle(port: int, seconds: float = 30.0) -> None:
    """Wait until no request runs; raises a SystemExit if one does not end."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        _, text = asyncio.run(request(port, "/metrics"))
        values = [line.rsplit(b" ", 1)[1] for line in text.splitlines() if line.startswith(b"pretune_running_texts{")]
        waiting = [line.rsplit(b" ", 1)[1] for line in text.splitlines() if line.startswith(b"pretune_queue_length{")]
        if all(float(value) == 0 for value in (*values, *waiting)):
            return
        time.sleep(0.2)
    raise SystemExit("requests still run after the load")


def format_markdown(result: dict[str, Any]) -> str:
    """Return the table of the load."""
    memory = {part: result[f"memory_{part}_mb"] for part in ("before", "peak", "after")}
    lines = [
        f"{result['clients']} clients for {result['seconds']:g} s; memory {memory['before']} MB before, at most "
        f"{memory['peak']} MB, {memory['after']} MB after; /health then answers {result['health_after']}",
        "",
        "| clients | outcomes | p50 | p95 | p99 |",
        "|---|---|---|---|---|",
    ]
    for role, outcomes in result["outcomes"].items():
        counts = ", ".join(f"{outcome}: {count:,}" for outcome, count in outcomes.items())
        latencies = result["latencies"].get(role)
        cells = [f"{latencies[f'latency_{name}']:.2f} s" if latencies else "" for name in ("p50", "p95", "p99")]
        lines.append(f"| {role} | {counts} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
