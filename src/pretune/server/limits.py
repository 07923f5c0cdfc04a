"""Limits of HTTP requests, around the application: hosts, origins, tokens, bodies, slow and vanished clients."""

import asyncio
import contextlib
import hmac
import ipaddress
import time
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pretune.core import log
from pretune.server.config import ServerConfig
from pretune.server.engine import Engine
from pretune.server.errors import SHUT_DOWN, HttpError, RequestError, UnavailableError, describe_error

ANY_ADDRESS = "*address*"
"""Stands for all addresses among the names of a server."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
WILDCARDS = ("0.0.0.0", "::", "")
OPEN_PATHS = ("/health", "/", "/docs")
"""Paths that need no token: the status, and the pages, which have nothing of the models."""
STATUS_PATHS = (*OPEN_PATHS, "/metrics", "/openapi.json", "/v1/models")
"""Paths that answer while the engine loads or drains."""
PAGE_FILES = "/page/"
"""Start of the paths of the page's files: they need no token and always answer, as the page itself."""
SECURITY_HEADERS = (
    (b"content-security-policy", b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class DisconnectedError(Exception):
    """The client has gone, or does not read its response."""


class Gate:
    """Application that checks a request, reads its body, and cancels it if the client has gone.

    Args:
        app: The application.
        engine: The engine, with the limits.
        hosts: Names and addresses by which clients may call the server.
        paths: Paths that metrics name; others are counted together.
        token: Bearer token that requests need; None: none.
    """

    def __init__(
        self,
        app: ASGIApp,
        engine: Engine,
        *,
        hosts: Collection[str],
        paths: Collection[str],
        token: str | None = None,
    ) -> None:
        self.app, self.engine, self.config, self.paths, self.token = app, engine, engine.config, paths, token
        self.hosts = {host.lower() for host in hosts}
        self.connections: Collection[object] = ()  # the open ones

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            return
        start, response = time.monotonic(), _Response(send, self.config.write_seconds)
        try:
            try:
                self._check_headers(scope)
                body = await self._read_body(scope, receive, response)
                start = time.monotonic()
                with self.engine.track(response):
                    await self._run(scope, receive, response, body)
            except DisconnectedError:
                raise
            except asyncio.CancelledError:  # by the server, at the end of its shutdown
                if response.status is None:
                    await self._refuse(scope, receive, response, describe_error(UnavailableError(SHUT_DOWN)))
            except Exception as fault:
                if not isinstance(fault, HttpError):
                    log.warn(f"{scope['method']} {scope['path'][:80]}: {type(fault).__name__}: {fault}")
                if response.status is None:
                    await self._refuse(scope, receive, response, describe_error(fault))
                elif not response.is_complete:
                    raise DisconnectedError from None
        except DisconnectedError:
            response.status = response.status or 499
            abort = scope.get("state", {}).get("abort")
            if abort is not None:
                abort()
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.engine.metrics.observe_request(path, response.status or 499, time.monotonic() - start)

    def _check_headers(self, scope: Scope) -> None:
        """Raise an HttpError for headers beyond the limits, a foreign host or origin, a wrong token, or no engine."""
        if len(self.connections) > self.config.max_connections:
            raise HttpError(503, "too many connections", "unavailable")
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(b": ".join(pair)) + 2 for pair in headers)
        if size > self.config.max_header_bytes or len(headers) > self.config.max_headers:
            raise HttpError(431, format_header_limits(self.config), "headers_too_large")
        hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not is_allowed(hosts[0], self.hosts):
            raise HttpError(403, "the Host header names another server; see --allow-host", "forbidden_host")
        origins = [value.decode("latin-1").lower() for name, value in headers if name == b"origin"]
        if any(not _is_same_origin(origin, hosts[0]) for origin in origins):
            raise HttpError(403, "requests of other web pages are refused", "forbidden_origin")
        path = scope["path"]
        if path in OPEN_PATHS or path.startswith(PAGE_FILES):
            return
        if self.token is not None:
            values = [value for name, value in headers if name == b"authorization"]
            expected_value = b"Bearer " + self.token.encode()
            if len(values) != 1 or not hmac.compare_digest(values[0], expected_value):
                raise HttpError(401, "wrong or missing bearer token (header Authorization)", "invalid_api_key")
        if not self.engine.is_ready and path not in STATUS_PATHS:
            state = "shutting down" if self.engine.is_draining else "loading its models"
            raise HttpError(503, f"the server is {state}", "unavailable")

    async def _read_body(self, scope: Scope, receive: Receive, response: "_Response") -> bytes:
        """Return the body. Raises an HttpError if it is too large or too slow."""
        limit, parts, size = self.config.max_body, list[bytes](), 0
        too_large = HttpError(413, f"the body must have <= {limit} bytes", "body_too_large")
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if int(length) > limit:
            raise too_large
        try:
            async with asyncio.timeout(self.config.read_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise DisconnectedError
                    response.has_body = not message.get("more_body", False)
                    size += len(message.get("body", b""))
                    if size > limit:
                        raise too_large
                    parts.append(message.get("body", b""))
                    if response.has_body:
                        return b"".join(parts)
        except TimeoutError:
            seconds = f"{self.config.read_seconds:g}"
            raise HttpError(408, f"the body did not arrive within {seconds} s", "body_too_slow") from None

    async def _run(self, scope: Scope, receive: Receive, response: "_Response", body: bytes) -> None:
        """Run the application; cancel it if the client disconnects."""
        is_read = False

        async def replay() -> Message:
            nonlocal is_read
            if is_read:
                await asyncio.Event().wait()  # the watcher below sees the end of the connection
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        work = asyncio.ensure_future(self.app(scope, replay, response.send))
        watcher = asyncio.ensure_future(watch())
        try:
            await asyncio.wait({work, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not response.is_complete:
                raise DisconnectedError
            await work
        finally:
            for task in (work, watcher):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _refuse(self, scope: Scope, receive: Receive, response: "_Response", error: RequestError) -> None:
        """Send an error; then drop what the client is still sending, for a limited time: it would not see it else."""
        headers = [(name.encode(), value.encode()) for name, value in error.headers]
        names = dict(scope["headers"])
        has_body = int(names.get(b"content-length", b"0")) > 0 or b"transfer-encoding" in names
        is_sending = has_body and not response.has_body
        headers += [(b"connection", b"close")] if is_sending else []
        await response.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await response.send({"type": "http.response.body", "body": error.content, "more_body": is_sending})
        if is_sending:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.read_seconds):
                    while (await receive()).get("more_body", False):
                        pass
            await response.send({"type": "http.response.body", "body": b""})


class _Response:
    """Sends messages with security headers; a client that does not read its response raises a DisconnectedError."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send, self._seconds = send, seconds
        self.status: int | None = None
        self.has_body = False  # the body of the request has been read
        self.is_complete = False

    async def send(self, message: Message) -> None:
        """Send a message of the application."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            names = {name for name, _ in message["headers"]}
            extra = [(name, value) for name, value in SECURITY_HEADERS if name not in names]
            message = {**message, "headers": [*message["headers"], *extra]}
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_complete = True
        try:
            async with asyncio.timeout(self._seconds):
                await self._send(message)
        except TimeoutError:
            raise DisconnectedError from None


def format_header_limits(config: ServerConfig) -> str:
    """Return the message for headers beyond the limits."""
    return f"a request may have {config.max_headers} headers, and {config.max_header_bytes} bytes of headers and path"


def build_hosts(host: str, names: Iterable[str] = ()) -> set[str]:
    """Return the names by which a server at an address may be called.

    >>> sorted(build_hosts("192.0.2.7", ["models.example"]))
    ['127.0.0.1', '192.0.2.7', '::1', 'localhost', 'models.example']
    """
    return {*LOOPBACK, *names, *((ANY_ADDRESS,) if host in WILDCARDS else (host,))}


def is_allowed(host: str, hosts: Collection[str]) -> bool:
    """Return whether a Host header is one of some names.

    A server on all addresses may be called by any address, but not by a name, which a foreign page could own.

    >>> is_allowed("localhost:8000", ["localhost"]), is_allowed("[::1]", ["::1"]), is_allowed("evil.example", ["::1"])
    (True, True, False)
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return (name in hosts and name != ANY_ADDRESS) or (ANY_ADDRESS in hosts and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_same_origin(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False
