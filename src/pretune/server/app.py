"""HTTP interface of an engine: OpenAI's models, completions and embeddings, and what else the models can do."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from pretune.core import __version__
from pretune.core.errors import PretuneError, UsageError
from pretune.server.completion import Completion
from pretune.server.engine import Engine
from pretune.server.errors import HttpError, RequestError, describe_error
from pretune.server.openapi import build_api_page, describe_faults, get_body_schema
from pretune.server.replies import ChatReply, CompletionReply, build_options
from pretune.server.schemas import (
    REQUESTS,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    EngineRequest,
    ErrorReply,
    SamplingRequest,
)
from pretune.server.served_model import describe_inputs

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
    _add_openai_routes(app, engine)
    _add_model_routes(app, engine)
    _add_status_routes(app, engine)
    _add_page(app)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    def reply(error: RequestError, headers: Mapping[str, str] | None = None) -> Response:
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
            name = _get_name(engine, body.model)
            return JSONResponse({"model": name, "results": await body.run(engine, path[1:], name)})

        run.__annotations__["body"] = Annotated[request, Body()]
        app.add_api_route(path, run, methods=["POST"], name=path[1:], description=request.__doc__)

    for path, request in REQUESTS.items():
        add_route(path, request)

    @app.get("/card")
    async def card(model: Annotated[str | None, Query(description="Name of the model.")] = None) -> Any:
        """Return the model card, the data card, the cost and the training curves of a model."""
        name = _get_name(engine, model)
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


def _add_openai_routes(app: FastAPI, engine: Engine) -> None:
    """Add the routes in the shape of OpenAI's API."""

    @app.get("/v1/models")
    async def list_models() -> Any:
        """List the models and what they can do."""
        return JSONResponse({"object": "list", "data": [_describe_model(engine, name) for name in engine.sources]})

    @app.get("/v1/models/{name:path}")
    async def get_model(name: str) -> Any:
        """Describe a model."""
        engine.get_model(name)
        return JSONResponse(_describe_model(engine, name))

    @app.post("/v1/completions")
    async def complete(body: Annotated[CompletionRequest, Body()]) -> Any:
        """Complete prompts; with `stream` as server-sent events."""
        _check_fields(body)
        name, prompts, echo = _get_name(engine, body.model), body.prompt, bool(body.echo)
        options = build_options(body, max_new_tokens=body.max_tokens, echo=echo, logprobs=body.logprobs)
        reply = CompletionReply(name, body, has_logprobs=body.logprobs is not None, echo=echo)
        if body.stream:
            return await _stream(engine, reply, prompts, options)
        return JSONResponse(reply.build(await engine.complete(name, prompts, best_of=body.best_of, **options)))

    @app.post("/v1/chat/completions")
    async def chat(body: Annotated[ChatRequest, Body()]) -> Any:
        """Answer a chat by the model's chat template; with `stream` as server-sent events."""
        _check_returns(body, body.n or 1)
        name, count = _get_name(engine, body.model), body.logprob_count
        prompt, new_tokens = await engine.encode_chat(name, body.list_messages(), body.new_tokens)
        options = build_options(body, max_new_tokens=new_tokens, logprobs=count)
        reply = ChatReply(name, body, has_logprobs=count is not None)
        if body.stream:
            return await _stream(engine, reply, prompt, options)
        return JSONResponse(reply.build(await engine.complete(name, prompt, **options)))

    @app.post("/v1/embeddings")
    async def embed(body: Annotated[EmbeddingRequest, Body()]) -> Any:
        """Embed texts; vectors as numbers, or as base64 of 32-bit floats."""
        name = _get_name(engine, body.model)
        embeddings = await engine.embed(name, body.input)
        width = embeddings.vectors.shape[1]
        if body.dimensions not in (None, width):
            raise UsageError(f"dimensions must be {width}, the width of model '{name}', got {body.dimensions}")
        if body.encoding_format == "base64":
            values: list[Any] = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in embeddings.vectors]
        else:
            values = embeddings.vectors.tolist()
        data = [{"object": "embedding", "index": i, "embedding": value} for i, value in enumerate(values)]
        usage = {"prompt_tokens": embeddings.tokens, "total_tokens": embeddings.tokens}
        return JSONResponse({"object": "list", "data": data, "model": name, "usage": usage})


def _describe_model(engine: Engine, name: str) -> dict[str, object]:
    """Return a model with what it can do, the reasons for what it cannot, and facts about its inputs."""
    about: dict[str, object] = {"id": name, "object": "model", "created": engine.created, "owned_by": "pretune"}
    if name not in engine.workers:
        return {**about, "capabilities": [], "missing": {}, "inputs": {}}
    model = engine.workers[name].model
    inputs = describe_inputs(model)
    return {**about, "capabilities": model.capabilities, "missing": model.reasons, "inputs": inputs}


def _get_name(engine: Engine, model: str | None) -> str:
    """Return the name of the requested model, by default the only one."""
    if model is not None:
        return model
    if len(engine.sources) > 1:
        raise UsageError(f"several models are served: name one in 'model' ({', '.join(engine.sources)})")
    return next(iter(engine.sources))


def _check_fields(body: CompletionRequest) -> None:
    """Raise an HttpError for what is not supported, or not together."""

    def refuse(field: str, message: str) -> HttpError:
        return HttpError(400, f"{field}: {message}", "invalid_request", field)

    texts = max(body.n or 1, body.best_of or 1)
    if body.suffix:
        raise refuse("suffix", "not supported; fill masks with /fill")
    if body.max_tokens == 0 and (body.stream or not body.echo):
        raise refuse("max_tokens", "0 needs echo, and no stream")
    if body.best_of is not None and body.best_of < (body.n or 1):
        raise refuse("best_of", f"must be >= n ({body.n}), got {body.best_of}")
    if body.best_of is not None and body.best_of > 1 and body.stream:
        raise refuse("best_of", "not supported with stream; the best text is known at the end only")
    _check_returns(body, texts, "n" if (body.n or 1) > 1 else "best_of")


def _check_returns(body: SamplingRequest, texts: int, field: str = "n") -> None:
    if body.temperature == 0 and texts > 1:
        message = f"{field}: must be 1 with temperature 0, where all texts are equal, got {texts}"
        raise HttpError(400, message, "invalid_request", field)


async def _stream(engine: Engine, reply: CompletionReply, prompts: Any, options: Any) -> Response:
    completions: list[Completion] = []
    pieces = engine.stream(reply.model, prompts, on_end=completions.append, **options)
    first = await anext(pieces, None)  # errors of the request are raised here, before the response starts
    return StreamingResponse(reply.stream(first, pieces, completions), media_type="text/event-stream")
