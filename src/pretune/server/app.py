"""HTTP interface of an engine: OpenAI's completions and embeddings, and what else the models can do."""

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
from pretune.server.errors import build_error, describe_error
from pretune.server.json_schema import describe_faults, get_body_schema
from pretune.server.openai_api import add_openai_routes, get_name, list_inputs
from pretune.server.schemas import (
    AttentionRequest,
    CompareRequest,
    ErrorReply,
    ExplainRequest,
    FillRequest,
    HeadsRequest,
    ModelRequest,
    NeighborsRequest,
    PredictRequest,
    SearchRequest,
    TextsRequest,
)

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
    _add_routes(app, engine)
    _add_status_routes(app, engine)
    _add_page(app)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(PretuneError)
    async def handle_error(request: Request, error: PretuneError) -> JSONResponse:
        status, body = describe_error(error)
        return JSONResponse(body, status, {"retry-after": "1"} if status in (429, 503) else None)

    @app.exception_handler(Exception)
    async def handle_unexpected(request: Request, error: Exception) -> JSONResponse:
        status, body = describe_error(error)
        return JSONResponse(body, status)

    @app.exception_handler(RequestValidationError)
    async def handle_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        faults, openapi = error.errors(), app.openapi()
        for fault in faults:
            if fault["type"] == "json_invalid":
                text = f"the body is not valid JSON: {fault['ctx']['error']} at character {fault['loc'][-1]}"
                return JSONResponse(build_error(400, text, "invalid_request"), 400)
        schema = get_body_schema(openapi, request.scope["route"].path) or {}
        message, field = describe_faults(faults, error.body, schema, openapi)
        return JSONResponse(build_error(422, message, "invalid_request", field), 422)

    @app.exception_handler(HTTPException)
    async def handle_http(request: Request, error: HTTPException) -> JSONResponse:
        message = str(error.detail)
        if error.status_code == 404:
            message = f"no such path: {request.method} {request.url.path}; see /docs"
        return JSONResponse(build_error(error.status_code, message), error.status_code, error.headers)


def _add_routes(app: FastAPI, engine: Engine) -> None:
    def reply(name: str, results: Any) -> JSONResponse:
        return JSONResponse({"model": name, "results": results})

    @app.post("/fill")
    async def fill(body: Annotated[FillRequest, Body()]) -> Any:
        """Predict masked words, most probable first."""
        name = get_name(engine, body)
        return reply(name, await engine.fill(name, list_inputs(body.texts), k=body.k, pieces=body.pieces))

    @app.post("/predict")
    async def predict(body: Annotated[PredictRequest, Body()]) -> Any:
        """Predict labels, scores, tags or answers by a fine-tuned run."""
        name = get_name(engine, body)
        inputs = [tuple(item) if isinstance(item, list) else item for item in body.inputs]
        return reply(name, await engine.predict(name, inputs, task=body.task))

    @app.post("/explain")
    async def explain(body: Annotated[ExplainRequest, Body()]) -> Any:
        """Return the importance of every token for a prediction: gradient x input."""
        name = get_name(engine, body)
        item = tuple(body.input) if isinstance(body.input, list) else body.input
        return reply(name, await engine.explain(name, item, task=body.task, label=body.label))

    @app.post("/score")
    async def score(body: Annotated[TextsRequest, Body()]) -> Any:
        """Return the log-probabilities of texts and of their tokens."""
        name = get_name(engine, body)
        return reply(name, await engine.score(name, list_inputs(body.texts)))

    @app.post("/search")
    async def search(body: Annotated[SearchRequest, Body()]) -> Any:
        """Search an index by meaning, or by BM25."""
        name = get_name(engine, body)
        return reply(name, await engine.search(name, list_inputs(body.queries), k=body.k, words=body.bm25))

    @app.post("/neighbors")
    async def neighbors(body: Annotated[NeighborsRequest, Body()]) -> Any:
        """Return the nearest neighbors of a word in context, and of its static vector."""
        name = get_name(engine, body)
        options = {"layer": body.layer, "same_word": body.same_word}
        return reply(name, await engine.neighbors(name, body.word, body.sentence, body.texts, k=body.k, **options))

    @app.post("/compare")
    async def compare(body: Annotated[CompareRequest, Body()]) -> Any:
        """Return the similarity of two words in their sentences, at every layer and of their static vectors."""
        name = get_name(engine, body)
        first, second = ((part.word, part.sentence) for part in (body.first, body.second))
        return reply(name, await engine.compare(name, first, second))

    @app.post("/attention")
    async def attention(body: Annotated[AttentionRequest, Body()]) -> Any:
        """Return who attends to whom in a text."""
        name = get_name(engine, body)
        options = {"layer": body.layer, "head": body.head, "part": body.part}
        return reply(name, await engine.attention(name, body.text, **options))

    @app.post("/heads")
    async def heads(body: Annotated[HeadsRequest, Body()]) -> Any:
        """Return who attends to whom in a text, by all heads of a part, and the pattern of each head."""
        name = get_name(engine, body)
        return reply(name, await engine.heads(name, body.text, part=body.part))

    @app.get("/card")
    async def card(model: Annotated[str | None, Query(description="Name of the model.")] = None) -> Any:
        """Return the model card, the data card, the cost and the training curves of a model."""
        name = get_name(engine, ModelRequest(model=model))
        return reply(name, await engine.card(name))

    @app.post("/tokenize")
    async def tokenize(body: Annotated[TextsRequest, Body()]) -> Any:
        """Return the tokens of texts."""
        name = get_name(engine, body)
        return reply(name, await engine.tokenize(name, list_inputs(body.texts)))


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
