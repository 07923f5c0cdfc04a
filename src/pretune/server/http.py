"""Server process: socket, loading of models, signals."""

import asyncio
import contextlib
import json
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from pretune.core import log
from pretune.core.errors import ResourceError
from pretune.server.app import build_app
from pretune.server.config import ServerConfig
from pretune.server.engine import Engine
from pretune.server.errors import build_error
from pretune.server.limits import Gate, build_hosts, format_header_limits

KEEP_ALIVE_SECONDS = 5
POLL_SECONDS = 0.05
LAST_SECONDS = 1.0
"""Time to send the errors of requests that did not end within `drain_seconds`, and then to end."""
REFUSAL_SECONDS = 1.0
"""Time for a client without a connection to read the reason."""


def build_protocol(limits: ServerConfig) -> type[H11Protocol]:
    """Return the protocol of connections, with limits of their number, and of the time to send and to read."""
    refused_connections = set[H11Protocol]()

    class LimitedProtocol(H11Protocol):
        """HTTP/1.1 by h11. A connection without a request is closed, and so is one too many."""

        response_count = 0
        is_lingering = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.app_state = {**self.app_state, "abort": transport.abort, "linger": self.linger}
            if len(self.connections) > limits.max_connections:
                self.refuse()
            else:
                self.loop.call_later(limits.read_seconds, self.close_if_silent)

        def refuse(self) -> None:
            """Send an error to a connection too many."""
            self.connections.discard(self)
            if len(refused_connections) >= limits.max_connections:
                self.transport.abort()
                return
            refused_connections.add(self)
            self.write_error(503, "too many connections")
            self.linger(REFUSAL_SECONDS)

        def linger(self, seconds: float) -> None:
            """End the response, and drop what the client still sends, until it closes the connection.

            A connection that is closed at once would be reset, and the client could lose the response.
            """
            self.is_lingering = True
            self._unset_keepalive_if_required()
            self.flow.resume_reading()
            self.transport.write_eof()
            self.loop.call_later(seconds, self.transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            """Forget the connection."""
            refused_connections.discard(self)
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            """Handle the next request; end the connection if the client has not read the response in time."""
            super().on_response_complete()
            self.response_count += 1
            self.loop.call_later(limits.write_seconds, self.abort_if_unread, self.response_count)

        def abort_if_unread(self, response_count: int) -> None:
            """End the connection if a part of its last response still waits for the client."""
            if response_count == self.response_count and self.transport.get_write_buffer_size():
                self.transport.abort()

        def close_if_silent(self) -> None:
            """Close the connection if no request has come."""
            cycle: Any = self.cycle
            if cycle is None and not self.transport.is_closing():
                self.transport.abort()

        def timeout_keep_alive_handler(self) -> None:
            """Close a connection without another request; one whose request is incomplete as well."""
            if not self.transport.is_closing():
                self.transport.close()

        def data_received(self, data: bytes) -> None:
            """Handle data, but keep the timer of a connection that has not completed the headers of a request."""
            if self.is_lingering:
                return
            timer, cycle = self.timeout_keep_alive_task, self.cycle
            self.timeout_keep_alive_task = None
            super().data_received(data)
            if timer is not None and self.cycle is not cycle:
                timer.cancel()
            elif timer is not None and self.timeout_keep_alive_task is None:
                self.timeout_keep_alive_task = timer

        def send_400_response(self, msg: str) -> None:
            """Send an error for what is not HTTP, or for headers that are too long."""
            fault = sys.exception()
            if isinstance(fault, h11.RemoteProtocolError) and fault.error_status_hint == 431:
                self.write_error(431, format_header_limits(limits))
            else:
                self.write_error(400, "invalid HTTP request")
            self.linger(REFUSAL_SECONDS)

        def write_error(self, status: int, message: str) -> None:
            """Send an error as JSON."""
            data = json.dumps(build_error(status, message), allow_nan=False).encode()
            headers = [("content-type", "application/json"), ("content-length", str(len(data)))]
            event = h11.Response(status_code=status, headers=[*headers, ("connection", "close")])
            with contextlib.suppress(h11.LocalProtocolError):
                for part in (event, h11.Data(data=data), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(part) or b"")

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
    config = uvicorn.Config(
        Gate(build_app(engine), engine, hosts=build_hosts(host, hosts), token=token),
        http=build_protocol(limits),
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(limits.write_seconds),
        h11_max_incomplete_event_size=limits.max_header_bytes,
    )
    return DrainingServer(config, engine)


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


def get_token(token: str | None) -> str | None:
    """Return the token of an option, or that of the variable PRETUNE_TOKEN."""
    value: Any = token if token is not None else os.environ.get("PRETUNE_TOKEN")
    return value or None
