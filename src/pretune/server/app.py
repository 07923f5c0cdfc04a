"""HTTP interface of an engine: OpenAI's completions and embeddings, and what else the models can do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from pretune import __version__
from pretune.core.errors import PretuneError
from pretune.server.api_page import build_api_page
from pretune.server.engine import Engine
from pretune.server.errors import HttpError, describe_error
from pretune.server.json_schema import describe_faults, get_body_schema
from pretune.server.openai_api import add_openai_routes, get_name
from pretune.server.schemas import REQUESTS, EngineRequest, ErrorReply

PAGE_DIR = Path(__file__).with_name("page")
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
}
"""The page loads its own files only, and no text can become markup or code: the browser refuses to parse strings."""


def build_app(engine: Engine) -> FastAPI:
    """Return the application; `limits.Gate` around it checks hosts, tokens and bodies."""
    app = FastAPI(
        title="pretune",
        version=__version__,
        docs_url=None,  # FastAPI's pages load scripts from the network
        redoc_url=None,
        openapi_url="/openapi.json",
        responses={"default": {"model": ErrorReply, "description": "Error"}},
    )
    _add_error_handlers(app)
    add_openai_routes(app, engine)
    _add_model_routes(app, engine)
    _add_status_routes(app, engine)
    _add_page(app)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    def reply(error: HttpError, headers: Mapping[str, str] | None = None) -> Response:
        return Response(error.content, error.status, {**dict(error.headers), **(headers or {})})

    async def handle_error(request: Request, error: Exception) -> Response:
        return reply(describe_error(error))

    async def handle_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        faults, openapi = error.errors(), app.openapi()
        for fault in faults:
            if fault["type"] == "json_invalid":
                text = f"the body is not valid JSON: {fault['ctx']['error']} at character {fault['loc'][-1]}"
                return reply(HttpError(400, text, "invalid_request"))
        schema = get_body_schema(openapi, request.scope["route"].path) or {}
        message, field = describe_faults(faults, error.body, schema, openapi)
        return reply(HttpError(422, message, "invalid_request", field))

    async def handle_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = str(error.detail)
        if error.status_code == 404:
            message = f"no such path: {request.method} {request.url.path}; see /docs"
        return reply(HttpError(error.status_code, message), error.headers)

    app.exception_handlers |= {
        PretuneError: handle_error,
        Exception: handle_error,
        RequestValidationError: handle_invalid,
        HTTPException: handle_http,
    }


def _add_model_routes(app: FastAPI, engine: Engine) -> None:
    """Add the paths of `REQUESTS`, and that of the card."""

    def add_route(path: str, request: type[EngineRequest]) -> None:
        async def run(body: EngineRequest) -> Any:
            name = get_name(engine, body.model)
            return JSONResponse({"model": name, "results": await body.run(engine, path[1:], name)})

        run.__annotations__["body"] = Annotated[request, Body()]
        app.add_api_route(path, run, methods=["POST"], name=path[1:], description=request.__doc__)

    for path, request in REQUESTS.items():
        add_route(path, request)

    @app.get("/card")
    async def card(model: Annotated[str | None, Query(description="Name of the model.")] = None) -> Any:
        """Return the model card, the data card, the cost and the training curves of a model."""
        name = get_name(engine, model)
        return JSONResponse({"model": name, "results": await engine.card(name)})


def _add_status_routes(app: FastAPI, engine: Engine) -> None:
    @app.get("/health")
    async def health() -> Any:
        """Return 200 if all models are loaded and requests are accepted, else 503."""
        status = "ready" if engine.is_ready else "draining" if engine.is_draining else "loading"
        return JSONResponse({"status": status}, 200 if engine.is_ready else 503)

    @app.get("/metrics")
    async def metrics() -> Any:
        """Return measurements in the text format of Prometheus."""
        return PlainTextResponse(engine.format_metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    """Add the pages at / and /docs and their files; they are read once, and no other file can be asked for."""
    files = {path.name: path.read_bytes() for path in PAGE_DIR.iterdir() if path.suffix in MEDIA_TYPES}

    @app.get("/", include_in_schema=False)
    async def get_page() -> Any:
        """Return the page."""
        return Response(files["index.html"], media_type=MEDIA_TYPES[".html"], headers=PAGE_HEADERS)

    @app.get("/docs", include_in_schema=False)
    async def get_api_page(request: Request) -> Any:
        """Return the page of the API."""
        text = build_api_page(app.openapi(), str(request.base_url).rstrip("/"))
        return Response(text, media_type=MEDIA_TYPES[".html"], headers=PAGE_HEADERS)

    @app.get("/page/{name}", include_in_schema=False)
    async def get_page_file(name: str) -> Any:
        """Return a file of the page."""
        if name not in files:
            raise HTTPException(404)
        return Response(files[name], media_type=MEDIA_TYPES[name[name.rindex(".") :]], headers=PAGE_HEADERS)
