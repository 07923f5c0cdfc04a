"""Errors of requests, and their JSON in the shape of OpenAI's API."""

import json

from pretune.core.errors import DataError, PretuneError, UsageError

MAX_MESSAGE = 500
"""Maximum characters of a message, which may quote a request."""
SHUT_DOWN = "the server has shut down; send the request to another one"
"""Message of requests that are still running at the end of the shutdown."""
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
HEADERS = {401: [("www-authenticate", "Bearer")], 429: [("retry-after", "1")], 503: [("retry-after", "1")]}


class RequestError(PretuneError):
    """Base of the errors of requests: their status, their code, the field at fault, and the response."""

    status = 500
    code: str | None = "model_error"
    field: str | None = None

    @property
    def body(self) -> dict[str, object]:
        """The error as plain data."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        field = None if self.field is None else _shorten(self.field)
        return {"error": {"message": _shorten(str(self)), "type": kind, "param": field, "code": self.code}}

    @property
    def content(self) -> bytes:
        """The body as JSON."""
        return json.dumps(self.body, allow_nan=False).encode()

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers, in lower case."""
        headers = [("content-type", "application/json"), ("content-length", str(len(self.content)))]
        return headers + HEADERS.get(self.status, [])


class HttpError(RequestError):
    """A request that is refused, by any status."""

    def __init__(self, status: int, message: str, code: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.field = status, code, field


class QueueFullError(RequestError):
    """The queue of a model is full."""

    status, code = 429, "queue_full"


class UnavailableError(RequestError):
    """The engine is loading its models, or shutting down."""

    status, code = 503, "unavailable"


class RequestTimeoutError(RequestError):
    """A request took too long."""

    status, code = 504, "timeout"


class ModelError(RequestError):
    """The model failed on a request."""


class UnknownModelError(RequestError, UsageError):
    """No model of this name is served."""

    status, code = 404, "model_not_found"


class CapabilityError(RequestError, UsageError):
    """The model cannot do this."""

    status, code = 400, "unsupported_capability"


def describe_error(error: Exception) -> RequestError:
    """Return the response to an error; details of unexpected ones stay on the server."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, UsageError | DataError):
        return HttpError(400, str(error), "invalid_request")
    if isinstance(error, PretuneError):
        return HttpError(500, str(error), "model_error")
    return HttpError(500, f"internal error: {type(error).__name__}", "internal_error")


def _shorten(text: str) -> str:
    """Return the start of a text that may quote a request, without lone surrogates, which no response can hold."""
    return text[:MAX_MESSAGE].encode(errors="backslashreplace").decode()[:MAX_MESSAGE]
