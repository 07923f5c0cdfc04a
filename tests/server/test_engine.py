"""The engine: batches of many clients give the results of one at a time; limits, errors, cancellation, drain."""

import asyncio
import copy
import time
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.core.errors import NonFiniteError, UsageError
from pretune.inference import prefill_graph
from pretune.inference.decode import generate_tokens
from pretune.inference.engine import PREFILL_GRAPHS
from pretune.inference.generate import generate_texts
from pretune.inference.generation_config import GenerationTokens, build_generation_config
from pretune.inference.index import build
from pretune.inference.prompts import encode_prompts
from pretune.models.model import LanguageModel
from pretune.server import continuous
from pretune.server.capabilities import Completer
from pretune.server.completion import CompletionOptions, build_job
from pretune.server.config import ServerConfig
from pretune.server.engine import Engine
from pretune.server.errors import (
    CapabilityError,
    ModelError,
    QueueFullError,
    RequestTimeoutError,
    UnavailableError,
    UnknownModelError,
)
from pretune.server.loaded_model import LoadedModel
from tests.inference.speakers import bert, gpt, t5
from tests.server.models import PROMPTS, models, run_engine
from tests.server.playground import classifier

OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.3, "no_repeat_ngram": 2},
    {"seed": 3, "top_k": 9},
    {"seed": 4, "top_p": 0.8, "temperature": 0.7, "num": 3},
    {"seed": 5, "min_p": 0.1, "min_new_tokens": 4},
]


def alone(model: LanguageModel, prompts: list[str], options: dict[str, Any], stop: tuple[str, ...] = ()) -> Any:
    """What `generate` gives for these prompts, without others."""
    return generate_texts(model, prompts, build_generation_config(**options), stop=stop)


@pytest.mark.parametrize(
    ("name", "is_padded"), [("gpt", False), ("gpt", True), pytest.param("t5", False, marks=pytest.mark.slow)]
)
def test_texts_are_those_of_one_at_a_time(name: str, is_padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients with other prompts, lengths and settings join and leave the batch; no text depends on the others.

    Nor on padded prompts, as the graphs of a GPU have them, which may be longer than the cache.
    """
    model = {"gpt": gpt, "t5": t5}[name]()
    if is_padded:
        monkeypatch.setattr(prefill_graph, "DEVICE", "cpu")
        monkeypatch.setattr(prefill_graph, "MIN_CALLS", 1)
        monkeypatch.setattr(prefill_graph, "LENGTH_STEP", 48)
        monkeypatch.setattr(prefill_graph.PaddedPrefill, "capture", lambda self, pool=None: pool)
        monkeypatch.setattr(continuous, "MIN_COLUMNS", 1)
    requests = [
        (prompt, {**OPTIONS[i % len(OPTIONS)], "max_new_tokens": 1 + 5 * i % 13})
        for i, prompt in enumerate([*PROMPTS, *PROMPTS[:4]])
    ]

    async def work(engine: Engine) -> Any:
        return await asyncio.gather(*(engine.complete(name, [prompt], **options) for prompt, options in requests))

    results, engine = run_engine(work, {name: model}, max_rows=4, max_prefill=16)
    assert bool(PREFILL_GRAPHS.pop(model, None)) == is_padded
    monkeypatch.setattr(prefill_graph, "DEVICE", "cuda")
    for (prompt, options), result in zip(requests, results, strict=True):
        assert result.texts == alone(model, [prompt], options), options
    steps = engine.metrics.format({})
    assert f'pretune_batch_size_bucket{{model="{name}",kind="complete",le="4"}}' in steps
    sizes = engine.metrics._histograms["pretune_batch_size", (("model", name), ("kind", "complete"))]
    assert sizes.counts[2] > sizes.counts[0]  # most steps ran three or four rows: free rows were filled at once


def test_several_prompts_stop_strings_and_pieces() -> None:
    options: dict[str, Any] = {"max_new_tokens": 12, "seed": 1, "num": 2}

    async def work(engine: Engine) -> Any:
        pieces = [piece async for piece in engine.stream("gpt", PROMPTS[:3], stop=["e"], **options)]
        return pieces, await engine.complete("gpt", PROMPTS[:3], stop=["e"], **options)

    (pieces, completion), _ = run_engine(work)
    assert completion.texts == alone(gpt(), PROMPTS[:3], options, ("e",))
    for number, texts in enumerate(completion.texts):
        for return_index, text in enumerate(texts):
            parts = [piece for piece in pieces if (piece.prompt, piece.return_index) == (number, return_index)]
            assert "".join(piece.text for piece in parts) == text.new and "e" not in text.new
            assert [piece.finish_reason for piece in parts if piece.finish_reason] == [text.finish_reason]


def test_pieces_are_whole_characters() -> None:
    """A character of several byte tokens is sent when it is complete."""
    model, pieces = gpt(), list[str]()
    tokenizer = model.tokenizer
    assert tokenizer is not None
    job = build_job(
        Completer(LoadedModel(model=model)),
        ["Once"],
        CompletionOptions(
            config=build_generation_config(max_new_tokens=30), on_piece=lambda piece: pieces.append(piece.text)
        ),
        ServerConfig(),
    )
    (row,) = job.rows
    tokens = tokenizer.encode(" naïve – 日本", add_special_tokens=False)
    for token in tokens:
        row.append(token, ())
        job.update(row)
    assert len(pieces) < len(tokens) and "\ufffd" not in "".join(pieces)
    assert "".join(pieces) == " naïve – 日本" == job.build_result().texts[0][0].new


def test_embeddings_of_many_clients() -> None:
    texts = [f"{prompt} {number}" for number in range(5) for prompt in PROMPTS]

    async def work(engine: Engine) -> Any:
        parts = await asyncio.gather(*(engine.embed("bert", texts[i : i + 3]) for i in range(0, len(texts), 3)))
        return np.concatenate([part.vectors for part in parts]), sum(part.tokens for part in parts)

    (vectors, tokens), engine = run_engine(work, {"bert": bert()})
    np.testing.assert_allclose(vectors, np.stack([pt.embed(bert(), [text])[0] for text in texts]), atol=1e-5)
    words = bert().tokenizer
    assert words is not None and tokens == sum(len(words.encode(text)) for text in texts)
    sizes = engine.metrics._histograms["pretune_batch_size", (("model", "bert"), ("kind", "embed"))]
    assert sizes.counts.total() < 10  # requests shared batches


def test_fillers_of_several_tokens_run_text_by_text() -> None:
    """So that a cancelled request ends after a text, and other requests run in between."""

    async def work(engine: Engine) -> Any:
        texts = ["The [MASK] went."] * 6
        return await engine.fill("bert", texts, k=2), await engine.fill("bert", texts, k=2, pieces=2)

    (single_tokens, words), engine = run_engine(work, {"bert": bert()})
    assert len(single_tokens) == len(words) == 6
    sizes = engine.metrics._histograms["pretune_batch_size", (("model", "bert"), ("kind", "fill"))]
    assert sizes.counts.total() == 1 + 6
    assert [row["blanks"][0][0]["word"] for row in words] == [
        pt.fill(bert(), "The [MASK] went.", pieces=2, k=2)[0][0].word
    ] * 6


def test_every_capability(tmp_path: Any) -> None:
    reviews = classifier(tmp_path / "reviews", steps=2)
    pt.save(bert(), tmp_path / "bert")
    build(tmp_path / "bert", PROMPTS, out=tmp_path / "library", device="cpu")

    async def work(engine: Engine) -> dict[str, Any]:
        return {
            "fill": await engine.fill("bert", ["The [MASK] went.", "A [MASK] and a [MASK]."], k=3),
            "score": await engine.score("gpt", PROMPTS),
            "search": await engine.search("library", [PROMPTS[2]], k=2),
            "bm25": await engine.search("library", ["cat"], k=2, bm25=True),
            "neighbors": await engine.neighbors("bert", "cat", "The cat sat.", PROMPTS, k=2),
            "attention": await engine.attention("bert", "The cat", layer=1, head=2),
            "labels": await engine.predict("reviews", ["a fine film", "dull"]),
            "tokens": await engine.tokenize("bert", ["The cat"]),
        }

    results, engine = run_engine(work, {**models(), "library": tmp_path / "library", "reviews": reviews})
    assert [[len(blank) for blank in text["blanks"]] for text in results["fill"]] == [[3], [3, 3]]
    assert results["fill"][0]["blanks"][0][0]["word"] == pt.fill(bert(), "The [MASK] went.")[0][0].word
    assert [row["logprob"] for row in results["score"]] == pytest.approx(pt.score(gpt(), PROMPTS))
    assert results["search"][0][0]["text"] == PROMPTS[2] and results["bm25"][0][0]["text"] == PROMPTS[1]
    assert len(results["neighbors"]["context"]) == 2 and len(results["neighbors"]["static"]) == 2
    weights = pt.view_attention(bert(), "The cat", layer=1, head=2).weights
    np.testing.assert_allclose(results["attention"]["weights"], weights, atol=1e-5)
    assert results["tokens"][0][0]["start"] is None and results["tokens"][0][1]["start"] == 0
    assert results["labels"] == pt.predict(reviews, ["a fine film", "dull"])
    can = {name: worker.model.capabilities for name, worker in engine.workers.items()}
    assert can["gpt"] == ["complete", "embed", "score", "neighbors", "compare", "attention", "tokenize"]
    assert can["bert"] == ["embed", "fill", "score", "neighbors", "compare", "attention", "tokenize"]
    assert "predict" in can["reviews"] and "complete" not in can["reviews"]
    assert {"complete", "fill"} <= {*can["t5"]} and "search" in can["library"]


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (UnknownModelError, lambda engine: engine.complete("gtp", ["a"])),
        (CapabilityError, lambda engine: engine.fill("gpt", ["a [MASK]"])),
        (UsageError, lambda engine: engine.embed("gpt", [])),
        (UsageError, lambda engine: engine.embed("gpt", ["a"] * 9)),
        (UsageError, lambda engine: engine.embed("gpt", ["a" * 101])),
        (UsageError, lambda engine: engine.complete("gpt", ["a" * 101])),
        (UsageError, lambda engine: engine.complete("gpt", ["a"], max_new_tokens=40)),
        (UsageError, lambda engine: engine.complete("gpt", ["a " * 45], max_new_tokens=20)),
        (UsageError, lambda engine: engine.complete("gpt", ["a"] * 3, num=3)),
        (UsageError, lambda engine: engine.complete("gpt", [[5, 9999]])),
        (UsageError, lambda engine: engine.complete("gpt", [[]])),
        (UsageError, lambda engine: engine.complete("gpt", ["a"], beams=2)),
        (UsageError, lambda engine: engine.search("gpt", ["a"])),
    ],
)
def test_limits(kind: type[Exception], call: Any, engine_of_limits: Engine) -> None:
    with pytest.raises(kind):
        asyncio.run(call(engine_of_limits))


@pytest.fixture(scope="module")
def engine_of_limits() -> Any:
    engine = Engine({"gpt": gpt()}, config=ServerConfig(max_texts=8, max_characters=100, max_new_tokens=30))
    engine.load()
    yield engine
    assert engine.drain(5)


def slow_gpt(seconds: float = 0.0, bad: int | None = None) -> LanguageModel:
    """A decoder whose steps wait, and which fails for a batch with a token, in a step as in the prefill of a retry."""
    model = copy.deepcopy(gpt())
    step = model.step

    def slow_step(tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        time.sleep(seconds)
        return step(tokens, cache)

    def fail(module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        if bad is not None and bad in inputs[0].tolist():
            raise RuntimeError("kernel failure")

    model.step = slow_step  # type: ignore[method-assign]
    model.tokens.register_forward_pre_hook(fail)
    return model


def test_queue_is_bounded_and_requests_time_out() -> None:
    async def work(engine: Engine) -> Any:
        calls = [engine.complete("gpt", ["a"], temperature=0, max_new_tokens=40) for _ in range(8)]
        return await asyncio.gather(*calls, return_exceptions=True)

    results, _ = run_engine(work, {"gpt": slow_gpt(0.05)}, max_queue=2, max_rows=1, request_seconds=0.4)
    kinds = {type(result) for result in results}
    assert kinds == {QueueFullError, RequestTimeoutError}


def test_cancelled_request_leaves_its_batch() -> None:
    async def work(engine: Engine) -> Any:
        gone = asyncio.create_task(engine.complete("gpt", ["a"], temperature=0, max_new_tokens=40))
        while not engine.workers["gpt"].running_rows:
            await asyncio.sleep(0.01)
        gone.cancel()
        result = await engine.complete("gpt", ["The cat"], temperature=0, max_new_tokens=3)
        return result, engine.workers["gpt"].running_rows, engine.running_requests

    (result, rows, requests), _ = run_engine(work, {"gpt": slow_gpt(0.02)}, max_rows=1)
    assert result.texts == alone(gpt(), ["The cat"], {"temperature": 0, "max_new_tokens": 3})
    assert rows == 0 and requests == 0


def test_model_error_fails_its_request_only() -> None:
    """A failed step is repeated row by row: the others get the texts they would have without it."""
    options: dict[str, Any] = {"temperature": 0, "max_new_tokens": 8}
    model = gpt()
    assert model.tokenizer is not None
    config, tokens = build_generation_config(**options), GenerationTokens.from_model(model)
    ids = encode_prompts(model, model.tokenizer, PROMPTS, tokens, max_new_tokens=8, truncate=False).ids
    inputs = [texts[0].tokens[:-1] for texts in generate_tokens(model, ids, config)]  # the last token is no input
    prompts = {0, *(int(token) for prompt in ids for token in prompt)}  # 0 fills rows
    poison = next(
        token
        for row in inputs
        for token in row
        if token not in prompts and sum(token in other for other in inputs) < len(inputs)
    )

    async def work(engine: Engine) -> Any:
        calls = [engine.complete("gpt", [prompt], **options) for prompt in PROMPTS]
        return await asyncio.gather(*calls, return_exceptions=True)

    results, _ = run_engine(work, {"gpt": slow_gpt(0, poison)})
    for prompt, row, result in zip(PROMPTS, inputs, results, strict=True):
        if poison in row:
            assert isinstance(result, ModelError)
        else:
            assert result.texts == alone(model, [prompt], options)


def test_broken_weights_fail_and_the_engine_lives() -> None:
    broken = copy.deepcopy(gpt())
    with torch.no_grad():
        broken.tokens.weight[:] = float("nan")

    async def work(engine: Engine) -> Any:
        with pytest.raises(NonFiniteError):
            await engine.complete("broken", ["a"])
        with pytest.raises(NonFiniteError):
            await engine.embed("broken", ["a"])
        return await engine.complete("gpt", ["a"], temperature=0, max_new_tokens=2)

    result, _ = run_engine(work, {"broken": broken, "gpt": gpt()})
    assert len(result.texts) == 1


def test_drain_finishes_running_requests() -> None:
    async def main() -> Any:
        engine = Engine({"gpt": slow_gpt(0.02)})
        with pytest.raises(UnavailableError):
            await engine.complete("gpt", ["a"])
        async with engine:
            running = asyncio.create_task(engine.complete("gpt", ["a"], temperature=0, max_new_tokens=10))
            while not engine.workers["gpt"].running_rows:
                await asyncio.sleep(0.01)
            engine.stop_accepting()
            with pytest.raises(UnavailableError):
                await engine.complete("gpt", ["a"])
            assert not engine.is_ready
            is_drained = await asyncio.to_thread(engine.drain, 5)
            return is_drained, await running

    is_drained, result = asyncio.run(main())
    assert is_drained and result.texts[0][0].tokens == 10
