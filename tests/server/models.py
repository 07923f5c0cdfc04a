"""Tiny models for the server: a decoder, an encoder and an encoder-decoder with their tokenizers."""

from collections.abc import Awaitable, Callable
from typing import Any

from torch import nn

from pretune.server.config import ServerConfig
from pretune.server.engine import Engine
from tests.inference.speakers import bert, gpt, t5

PROMPTS = ["Once upon a time", "The cat", "A dog and a bird went", "She", "One day the old man", "They saw a big red"]


def models() -> dict[str, nn.Module]:
    """By name; shared by all tests, so never to be changed."""
    return {"gpt": gpt(), "bert": bert(), "t5": t5()}


def run_engine(
    work: Callable[[Engine], Awaitable[Any]], sources: dict[str, Any] | None = None, **limits: Any
) -> tuple[Any, Engine]:
    """What work with an engine returns, and the engine, which is closed."""
    import asyncio

    async def main() -> tuple[Any, Engine]:
        async with Engine(sources or {"gpt": gpt()}, config=ServerConfig(**limits)) as engine:
            return await work(engine), engine

    return asyncio.run(main())
