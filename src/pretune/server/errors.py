"""Errors of requests as JSON, in the shape of OpenAI's API."""

from typing import Any

from pretune.core.errors import DataError, PretuneError, UsageError
from pretune.server.config import (
    CapabilityError,
    QueueFullError,
    RequestFieldError,
    RequestTimeoutError,
    UnavailableError,
    UnknownModelError,
)

MAX_MESSAGE = 500
"""Maximum characters of a message, which may quote a request."""

STATUSES: tuple[tuple[type[Exception], int, str], ...] = (
    (UnknownModelError, 404, "model_not_found"),
    (CapabilityError, 400, "unsupported_capability"),
    (QueueFullError, 429, "queue_full"),
    (UnavailableError, 503, "unavailable"),
    (RequestTimeoutError, 504, "timeout"),
    (UsageError, 400, "invalid_request"),
    (DataError, 400, "invalid_request"),
)
"""Status and code by class; the first that fits."""

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


def build_error(status: int, message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """Return the body of an error."""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    message, param = _shorten(message), None if param is None else _shorten(param)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _shorten(text: str) -> str:
    """Return the start of a text that may quote a request, without lone surrogates, which no response can hold."""
    return text[:MAX_MESSAGE].encode(errors="backslashreplace").decode()[:MAX_MESSAGE]


def describe_error(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of an error; details of unexpected ones stay on the server."""
    for kind, status, code in STATUSES:
        if isinstance(error, kind):
            return status, build_error(
                status, str(error), code, error.field if isinstance(error, RequestFieldError) else None
            )
    if isinstance(error, PretuneError):
        return 500, build_error(500, str(error), "model_error")
    return 500, build_error(500, f"internal error: {type(error).__name__}", "internal_error")
