"""Tiny models for the server: a decoder, an encoder and an encoder-decoder with their tokenizers."""

import asyncio
import contextlib
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from pretune.server.config import ServerConfig
from pretune.server.engine import Engine
from pretune.server.http import DrainingServer, build_server, open_socket
from tests.inference.speakers import bert, gpt, t5

PROMPTS = ["Once upon a time", "The cat", "A dog and a bird went", "She", "One day the old man", "They saw a big red"]


def models() -> dict[str, nn.Module]:
    """By name; shared by all tests, so never to be changed."""
    return {"gpt": gpt(), "bert": bert(), "t5": t5()}


def run_engine(
    work: Callable[[Engine], Awaitable[Any]], sources: dict[str, Any] | None = None, **limits: Any
) -> tuple[Any, Engine]:
    """What work with an engine returns, and the engine, which is closed."""

    async def main() -> tuple[Any, Engine]:
        async with Engine(sources or {"gpt": gpt()}, config=ServerConfig(**limits)) as engine:
            return await work(engine), engine

    return asyncio.run(main())


@contextlib.contextmanager
def run_server(sources: dict[str, Any], *, token: str | None = None, **limits: Any) -> Iterator["Address"]:
    """A server in a thread, on a free port."""
    engine = Engine(sources, config=ServerConfig(**limits))
    engine.load()
    listener = open_socket("127.0.0.1", 0)
    server = build_server(engine, host="127.0.0.1", token=token)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield Address(listener.getsockname()[1], engine, server)
    finally:
        server.should_exit = True
        thread.join(10)
        assert engine.drain(5) and not thread.is_alive()


@dataclass(frozen=True)
class Address:
    """Where a server listens, and its parts."""

    port: int
    engine: Engine
    server: DrainingServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Status, JSON (or text) and headers; a body that is no bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json", **headers})
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:
                status, raw, names = reply.status, reply.read(), reply.headers
        except urllib.error.HTTPError as error:
            status, raw, names = error.code, error.read(), error.headers
        text = raw.decode()
        is_json = names.get("content-type", "").startswith("application/json")
        return status, json.loads(text) if is_json else text, {name.lower(): value for name, value in names.items()}

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)
