"""HTTP interface of an engine: OpenAI's completions and embeddings, and what else the models can do."""

import base64
import html
import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException

from pretune import __version__
from pretune.core.errors import PretuneError, UsageError
from pretune.server.completion import Completion, CompletionPiece
from pretune.server.engine import Engine
from pretune.server.errors import build_error, describe_error
from pretune.server.schemas import (
    AttentionRequest,
    CompletionRequest,
    EmbeddingRequest,
    FillRequest,
    ModelRequest,
    NeighborsRequest,
    PredictRequest,
    SearchRequest,
    TextsRequest,
)

FINISH_REASONS = {"end": "stop", "stop": "stop", "length": "length"}
PATHS = {
    "complete": "/v1/completions",
    "embed": "/v1/embeddings",
    **{name: f"/{name}" for name in ("fill", "predict", "score", "search", "neighbors", "attention", "tokenize")},
}
"""Path of each capability."""


def build_app(engine: Engine) -> FastAPI:
    """Return the application; `limits.Gate` around it checks hosts, tokens and bodies."""
    app = FastAPI(
        title="pretune",
        version=__version__,
        docs_url=None,  # these pages would load scripts from the network
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    _add_error_handlers(app)
    _add_openai_routes(app, engine)
    _add_routes(app, engine)
    _add_status_routes(app, engine)
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
        faults = error.errors()
        is_malformed = any(fault["type"] == "json_invalid" for fault in faults)
        paths = [".".join(map(str, fault["loc"][1:])) for fault in faults]
        pairs = zip(paths, faults, strict=True)
        message = "; ".join(f"{path}: {fault['msg']}" if path else fault["msg"] for path, fault in pairs)
        status = 400 if is_malformed else 422
        text = f"the body is not valid JSON: {message}" if is_malformed else message
        return JSONResponse(build_error(status, text, "invalid_request", None if is_malformed else paths[0]), status)

    @app.exception_handler(HTTPException)
    async def handle_http(request: Request, error: HTTPException) -> JSONResponse:
        message = str(error.detail)
        if error.status_code == 404:
            message = f"no such path: {request.method} {request.url.path}; see /openapi.json"
        return JSONResponse(build_error(error.status_code, message), error.status_code, error.headers)


def _add_openai_routes(app: FastAPI, engine: Engine) -> None:
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
        name, prompts, options = _get_name(engine, body), _list_prompts(body.prompt), _build_options(body)
        stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
        reply = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time())}
        reply |= {"model": name}
        returns = body.n or 1
        if not body.stream:
            completion = await engine.complete(name, prompts, stop=stop, **options)
            choices = [
                _build_choice(number * returns + i, text.text if body.echo else text.new, text.finish_reason)
                for number, texts in enumerate(completion.texts)
                for i, text in enumerate(texts)
            ]
            return JSONResponse({**reply, "choices": choices, "usage": _count_usage(completion)})
        if body.echo:
            raise UsageError("echo is not supported with stream; remove one of them")
        usage: list[Completion] = []
        pieces = engine.stream(name, prompts, stop=stop, on_end=usage.append, **options)
        first = await anext(pieces, None)  # errors of the request are raised here, before the response starts
        wants_usage = body.stream_options is not None and body.stream_options.include_usage

        async def stream_events() -> AsyncIterator[str]:
            try:
                if first is not None:
                    yield _format_event({**reply, "choices": [_build_piece_choice(first, returns)]})
                async for piece in pieces:
                    yield _format_event({**reply, "choices": [_build_piece_choice(piece, returns)]})
                if wants_usage and usage:
                    yield _format_event({**reply, "choices": [], "usage": _count_usage(usage[0])})
            except Exception as error:
                yield _format_event(describe_error(error)[1])
                return
            finally:
                await pieces.aclose()
            yield "data: [DONE]\n\n"

        return StreamingResponse(stream_events(), media_type="text/event-stream")

    @app.post("/v1/embeddings")
    async def embed(body: Annotated[EmbeddingRequest, Body()]) -> Any:
        """Embed texts; vectors as numbers, or as base64 of 32-bit floats."""
        name = _get_name(engine, body)
        embeddings = await engine.embed(name, _list_texts(body.input))
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


def _add_routes(app: FastAPI, engine: Engine) -> None:
    def reply(name: str, results: Any) -> JSONResponse:
        return JSONResponse({"model": name, "results": results})

    @app.post("/fill")
    async def fill(body: Annotated[FillRequest, Body()]) -> Any:
        """Predict masked words, most probable first."""
        name = _get_name(engine, body)
        return reply(name, await engine.fill(name, _list_texts(body.texts), k=body.k, pieces=body.pieces))

    @app.post("/predict")
    async def predict(body: Annotated[PredictRequest, Body()]) -> Any:
        """Predict labels, scores, tags or answers by a fine-tuned run."""
        name = _get_name(engine, body)
        inputs = [tuple(item) if isinstance(item, list) else item for item in body.inputs]
        return reply(name, await engine.predict(name, inputs, task=body.task))

    @app.post("/score")
    async def score(body: Annotated[TextsRequest, Body()]) -> Any:
        """Return the log-probabilities of texts and of their tokens."""
        name = _get_name(engine, body)
        return reply(name, await engine.score(name, _list_texts(body.texts)))

    @app.post("/search")
    async def search(body: Annotated[SearchRequest, Body()]) -> Any:
        """Search an index by meaning, or by BM25."""
        name = _get_name(engine, body)
        return reply(name, await engine.search(name, _list_texts(body.queries), k=body.k, words=body.bm25))

    @app.post("/neighbors")
    async def neighbors(body: Annotated[NeighborsRequest, Body()]) -> Any:
        """Return the nearest neighbors of a word in context, and of its static vector."""
        name = _get_name(engine, body)
        options = {"layer": body.layer, "same_word": body.same_word}
        return reply(name, await engine.neighbors(name, body.word, body.sentence, body.texts, k=body.k, **options))

    @app.post("/attention")
    async def attention(body: Annotated[AttentionRequest, Body()]) -> Any:
        """Return who attends to whom in a text."""
        name = _get_name(engine, body)
        options = {"layer": body.layer, "head": body.head, "part": body.part}
        return reply(name, await engine.attention(name, body.text, **options))

    @app.post("/tokenize")
    async def tokenize(body: Annotated[TextsRequest, Body()]) -> Any:
        """Return the tokens of texts."""
        name = _get_name(engine, body)
        return reply(name, await engine.tokenize(name, _list_texts(body.texts)))


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

    @app.get("/", include_in_schema=False)
    async def index() -> Any:
        """Return a page that lists models and paths."""
        rows = "".join(
            f"<li><b>{html.escape(name)}</b>: {html.escape(', '.join(_list_paths(engine, name)))}</li>"
            for name in engine.sources
        )
        page = (
            f"<!doctype html><html lang=en><meta charset=utf-8><title>pretune</title><h1>pretune {__version__}</h1>"
            f"<ul>{rows}</ul><p>/v1/models, /health, /metrics; every path and its fields: "
            "<a href=/openapi.json>/openapi.json</a></p></html>"
        )
        return HTMLResponse(page)


def _describe_model(engine: Engine, name: str) -> dict[str, Any]:
    capabilities = engine.workers[name].model.capabilities if name in engine.workers else []
    return {
        "id": name, "object": "model", "created": engine.created, "owned_by": "pretune", "capabilities": capabilities,
    }  # fmt: skip


def _list_paths(engine: Engine, name: str) -> list[str]:
    if name not in engine.workers:
        return ["loading"]
    return [PATHS[capability] for capability in engine.workers[name].model.capabilities]


def _get_name(engine: Engine, body: ModelRequest) -> str:
    """Return the name of the requested model, by default the only one."""
    if body.model is not None:
        return body.model
    if len(engine.sources) > 1:
        raise UsageError(f"several models are served: name one in 'model' ({', '.join(engine.sources)})")
    return next(iter(engine.sources))


def _list_texts(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _list_prompts(prompt: Any) -> list[Any]:
    """Return a list of prompts, each a text or a list of token ids."""
    is_single = isinstance(prompt, str) or (prompt and isinstance(prompt[0], int))
    return [prompt] if is_single else prompt


def _build_options(body: CompletionRequest) -> Any:
    """Return the options of generation; without a seed every request draws its own."""
    temperature = 1.0 if body.temperature is None else body.temperature
    options: dict[str, Any] = {
        "max_new_tokens": body.max_tokens, "min_new_tokens": body.min_tokens, "temperature": temperature,
        "num": body.n or 1, "repetition_penalty": body.repetition_penalty, "no_repeat_ngram": body.no_repeat_ngram,
        "seed": secrets.randbits(62) if body.seed is None else body.seed, "top_k": body.top_k, "min_p": body.min_p,
        "top_p": None if body.top_p == 1 else body.top_p,
    }  # fmt: skip
    if temperature == 0:  # as in OpenAI's API, filters have no effect then
        options |= {"top_k": None, "top_p": None, "min_p": None}
    return {name: value for name, value in options.items() if value is not None}


def _build_choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {
        "index": index, "text": text, "logprobs": None,
        "finish_reason": None if reason is None else FINISH_REASONS[reason],
    }  # fmt: skip


def _build_piece_choice(piece: CompletionPiece, returns: int) -> dict[str, Any]:
    return _build_choice(piece.prompt * returns + piece.return_index, piece.text, piece.finish_reason)


def _count_usage(completion: Completion) -> dict[str, int]:
    prompt, new = completion.prompt_tokens, completion.new_tokens
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def _format_event(data: dict[str, Any]) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False, allow_nan=False)}\n\n"
