"""Server process: socket, loading of models, signals."""

import asyncio
import contextlib
import math
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

import h11
import uvicorn
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from pretune.core import log
from pretune.core.errors import ResourceError
from pretune.server.app import build_app
from pretune.server.config import ServerConfig
from pretune.server.engine import Engine
from pretune.server.errors import HttpError
from pretune.server.limits import Gate, build_hosts, format_header_limits

POLL_SECONDS = 0.05
LAST_SECONDS = 1.0
"""Time to send the errors of requests that did not end within `drain_seconds`, and then to end."""
REFUSAL_SECONDS = 1.0
"""Time for a client to read why its request is no request."""


def build_protocol(limits: ServerConfig) -> type[H11Protocol]:
    """Return the protocol of connections: it ends those whose clients neither send nor read, and explains errors."""

    class LimitedProtocol(H11Protocol):
        """HTTP/1.1 by h11, with the limits of time that uvicorn lacks."""

        is_refused = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.app_state = {**self.app_state, "abort": transport.abort}
            self.loop.call_later(limits.read_seconds, self.abort_if_silent, self.cycle)

        def on_response_complete(self) -> None:
            """Handle the next request, for which the client has limited time, as for reading the response."""
            cycle = self.cycle
            super().on_response_complete()
            self.loop.call_later(limits.read_seconds, self.abort_if_silent, cycle)
            self.loop.call_later(limits.write_seconds, self.abort_if_unread, cycle)

        def abort_if_silent(self, last_cycle: RequestResponseCycle | None) -> None:
            """End the connection if no request has come since the last one."""
            if self.cycle is last_cycle and not self.transport.get_write_buffer_size():
                self.transport.abort()

        def abort_if_unread(self, last_cycle: RequestResponseCycle) -> None:
            """End the connection if a part of its last response still waits for the client."""
            if self.cycle is last_cycle and self.transport.get_write_buffer_size():
                self.transport.abort()

        def data_received(self, data: bytes) -> None:
            """Handle data; after an error drop what the client still sends.

            A connection that is closed at once would be reset, and the client could lose the response.
            """
            if not self.is_refused:
                super().data_received(data)

        def send_400_response(self, msg: str) -> None:
            """Send an error for what is not HTTP, or for headers that are too long."""
            fault, error = sys.exception(), HttpError(400, "invalid HTTP request")
            if isinstance(fault, h11.RemoteProtocolError) and fault.error_status_hint == 431:
                error = HttpError(431, format_header_limits(limits))
            response = h11.Response(status_code=error.status, headers=[*error.headers, ("connection", "close")])
            with contextlib.suppress(h11.LocalProtocolError):
                for event in (response, h11.Data(data=error.content), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(event) or b"")
            self.is_refused = True
            self.transport.write_eof()
            self.loop.call_later(REFUSAL_SECONDS, self.transport.abort)

    return LimitedProtocol


class DrainingServer(uvicorn.Server):
    """Server that ends after its running requests, when it gets SIGTERM or SIGINT; at once after a second signal.

    Requests that still run after `drain_seconds` get an error. `on_timeout` is called if threads of the models or of
    the event loop still do not let it end then.
    """

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self.engine = engine
        self.on_timeout: Callable[[], None] | None = None
        self._stop_signal: int | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Refuse new requests, and wait for the running ones."""
        if self._stop_signal is not None:
            self.should_exit = self.force_exit = True
            return
        self._stop_signal = sig
        self.engine.stop_accepting()
        threading.Thread(target=self._exit_when_idle, args=(sig,), name="drain", daemon=True).start()

    def _exit_when_idle(self, sig: int) -> None:
        limits = self.engine.config
        deadline = time.monotonic() + limits.drain_seconds
        log.info(f"stopping after {signal.Signals(sig).name}; running requests have {limits.drain_seconds:g} s")
        while self.engine.running_requests and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        self.engine.drain(0.0)
        seconds = max(min(deadline - time.monotonic(), limits.write_seconds), LAST_SECONDS)
        self.config.timeout_graceful_shutdown = math.ceil(seconds)
        self.should_exit = True
        if self.on_timeout is not None:
            time.sleep(math.ceil(seconds) + LAST_SECONDS)
            self.on_timeout()


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 is any free one. Raises a ResourceError if the address is not free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        raise ResourceError(f"cannot listen on {host}:{port}: {reason}; choose another --port or --host") from None


def build_server(engine: Engine, *, host: str, hosts: Sequence[str] = (), token: str | None = None) -> DrainingServer:
    """Return the server of an engine at an address; `hosts` are more names by which clients may call it."""
    limits = engine.config
    app = build_app(engine)
    paths = {route.path for route in app.routes if isinstance(route, Route)}
    gate = Gate(app, engine, hosts=build_hosts(host, hosts), paths=paths, token=token)
    config = uvicorn.Config(
        gate,
        http=build_protocol(limits),
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(limits.write_seconds),
        h11_max_incomplete_event_size=limits.max_header_bytes,
    )
    server = DrainingServer(config, engine)
    gate.connections = server.server_state.connections
    return server


def serve(
    engine: Engine,
    listener: socket.socket,
    *,
    host: str,
    hosts: Sequence[str] = (),
    token: str | None = None,
    on_ready: Callable[[], None] | None = None,
    on_timeout: Callable[[], None] | None = None,
) -> None:
    """Serve an engine until a signal. The models are loaded meanwhile; an error of loading ends the server.

    Args:
        engine: The engine, not loaded yet.
        listener: A listening socket.
        host: The address of the socket.
        hosts: More names by which clients may call the server.
        token: Bearer token that requests need.
        on_ready: Called when the models are loaded.
        on_timeout: Called when the server has not ended 2 s after `drain_seconds`.
    """
    server, errors = build_server(engine, host=host, hosts=hosts, token=token), list[BaseException]()
    server.on_timeout = on_timeout

    def load() -> None:
        try:
            engine.load()
            if on_ready is not None and not engine.is_draining:
                on_ready()
        except BaseException as error:
            errors.append(error)
            server.should_exit = True

    threading.Thread(target=load, name="load", daemon=True).start()
    server.run(sockets=[listener])
    engine.drain(0.0 if server.force_exit else 1.0)
    if errors:
        raise errors[0]
