"""`pretune serve`: models behind an HTTP server."""

import contextlib
import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pretune.cli._inputs import check_model
from pretune.cli._options import OutputFormat
from pretune.core import log
from pretune.core.api import Options, option, option_set
from pretune.core.errors import UsageError, import_extra
from pretune.runs.options import DEVICE, SET

if TYPE_CHECKING:
    from pretune.server.engine import Engine

LOOPBACK = ("127.0.0.1", "localhost", "::1")
NO_MODEL = (
    "pretune serve needs a model: a run, a Hugging Face directory, hf:OWNER/NAME, an index or word vectors; try "
    "`pretune serve small-encoder small-decoder`, or `pretune quickstart` and then `pretune serve "
    "runs/quickstart/pretrain`; open http://127.0.0.1:8000"
)
"""Answer to a command without a model."""


@contextlib.contextmanager
def exit_on_early_signals() -> Iterator[None]:
    """End the process with exit code 0 at SIGTERM or Ctrl-C, until the server handles them.

    An exception could be lost inside the import of a library; there is nothing to clean up. Handlers of a program that
    calls `main` stay.
    """
    defaults = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}

    def stop(number: int, frame: object) -> NoReturn:
        if not log.is_quiet():
            os.write(2, f"stopped by {signal.Signals(number).name}\n".encode())
        os._exit(0)

    is_main = threading.current_thread() is threading.main_thread()  # only it can handle signals
    handlers = {number: old for number, old in defaults.items() if is_main and signal.getsignal(number) is old}
    for number in handlers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, old in handlers.items():
            signal.signal(number, old)


@option_set
class ServeOptions(Options):
    """Options of the server."""

    models: Sequence[str] = option("[NAME=]MODEL", "Run, Hugging Face directory, index or word vectors.", default=())
    port: int = option("--port N", "Port; 0: any free one.", default=8000)
    host: str = option("--host ADDRESS", "Address to listen on; 0.0.0.0: all.", default="127.0.0.1")
    token: str | None = option("--token TEXT", "Bearer token that requests need (default: $PRETUNE_TOKEN).")
    allowed_hosts: Sequence[str] = option(
        "--allow-host NAME", "Name by which clients call the server. Repeatable.", default=()
    )
    device: str | None = DEVICE.field()
    settings: Mapping[str, str] | None = SET.field(
        usage="--set NAME=VALUE", about="Change a limit, such as max_rows=64. Repeatable."
    )


@exit_on_early_signals()
def serve(options: ServeOptions, output: OutputFormat) -> None:
    """Serve models by HTTP: a page to try them, and OpenAI's API.

    The page at / writes, fills blanks, classifies, compares words, shows attention, searches, and shows model cards.
    Requests of all clients are batched. SIGTERM and Ctrl-C end the server after its running requests.

    Example: pretune serve small-encoder small-decoder runs/reviews --port 8000
    """
    if not options.models:
        raise UsageError(NO_MODEL)
    sources = parse_sources(options.models)
    for module in ("fastapi", "uvicorn"):
        import_extra(module, "serve", "`pretune serve` needs")
    if not 0 <= options.port < 2**16:
        raise UsageError(f"--port must be from 0 to 65535, got {options.port}")
    from pretune.cli._inputs import resolve_device
    from pretune.core import config as specs
    from pretune.inference.word_vectors import is_word_vectors
    from pretune.server.config import ServerConfig

    config = specs.replace(ServerConfig(), options.settings or {})
    for source in sources.values():
        if not is_word_vectors(source):
            check_model(source)
    target = str(resolve_device(options.device))
    from pretune.server import http
    from pretune.server.engine import Engine

    host, hosts = options.host, options.allowed_hosts
    token = (os.environ.get("PRETUNE_TOKEN") if options.token is None else options.token) or None
    if host not in LOOPBACK and token is None:
        log.warn(f"every machine that reaches {host} can use the models; set --token, or use --host 127.0.0.1")
    listener = http.open_socket(host, options.port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    engine = Engine(sources, device=target, config=config)

    log.info(f"loading {', '.join(sources)}; {address}/health answers 200 when it is done")
    threads = {*threading.enumerate()}
    on_ready = functools.partial(report_ready, engine, address, as_json=output.as_json)
    http.serve(engine, listener, host=host, hosts=hosts, token=token, on_ready=on_ready, on_timeout=end_process)
    if not {*threading.enumerate()} <= threads:  # NOTE: at its end the interpreter aborts if a thread is inside torch
        end_process()


def report_ready(engine: "Engine", address: str, *, as_json: bool) -> None:
    """Print where the models are served, and what they can do."""
    capabilities = {name: worker.model.capabilities for name, worker in engine.workers.items()}
    if as_json:
        log.print_result(json.dumps({"url": address, "models": capabilities}, allow_nan=False), flush=True)
        return
    for name, names in capabilities.items():
        log.info(f"{name}: {', '.join(names)}")
    log.print_result(f"serving {', '.join(capabilities)} at {address} (open it in a browser)", flush=True)


def end_process() -> None:
    """End the process without waiting for threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def parse_sources(models: Sequence[str]) -> dict[str, str]:
    """Return model directories by name: NAME of NAME=DIR, or the name of the directory.

    >>> parse_sources(["runs/gpt", "old=runs/gpt"])
    {'gpt': 'runs/gpt', 'old': 'runs/gpt'}
    """
    sources: dict[str, str] = {}
    for model in models:
        name, mark, path = model.partition("=")
        if not mark or Path(model).exists():
            path = model
            name = model.rpartition("/")[2] if model.startswith("hf:") else Path(model).absolute().name
        if not name or not path:
            raise UsageError(f"'{model[:80]}': a model is a directory, or NAME=DIRECTORY")
        if name in sources:
            raise UsageError(f"two models are called '{name}'; give one another name: NAME={path}")
        sources[name] = path
    return sources
