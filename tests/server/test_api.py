"""The HTTP interface on a real socket: OpenAI's client, streams, encodings, and every path."""

import base64
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pretune as pt
from pretune.server.openapi import get_body_schema
from tests.inference.speakers import bert, gpt
from tests.server.models import PROMPTS, Address, models, run_server
from tests.server.test_engine import alone

CODE = re.compile(
    r"function|valid(ator|ation)|Input should|Value error|constrained|check_|\w+\[\w|<|None|True|dict|str\b"
)
"""Parts of the messages of pydantic."""
GREEDY = {"model": "gpt", "temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def server() -> Iterator[Address]:
    with run_server(models()) as address:
        yield address


def new_text(prompt: str, **options: Any) -> str:
    text: str = alone(gpt(), [prompt], {"temperature": 0, "max_new_tokens": 6, **options})[0][0].new
    return text


def test_openai_client_completes_streams_and_embeds(server: Address) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["gpt", "bert", "t5"]
    reply = client.completions.create(model="gpt", prompt=PROMPTS[:2], temperature=0, max_tokens=6)
    assert [choice.text for choice in reply.choices] == [new_text(prompt) for prompt in PROMPTS[:2]]
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.usage.completion_tokens == 12 and reply.choices[0].finish_reason == "length"
    sample = {"model": "gpt", "prompt": PROMPTS[0], "seed": 3, "max_tokens": 6, "n": 2, "top_p": 0.9}
    events = [*client.completions.create(**sample, stream=True, stream_options={"include_usage": True})]
    texts = ["", ""]
    for event in events[:-1]:
        texts[event.choices[0].index] += event.choices[0].text
    options = {"seed": 3, "max_new_tokens": 6, "num": 2, "top_p": 0.9}
    assert texts == [text.new for text in alone(gpt(), [PROMPTS[0]], options)[0]]
    assert events[-1].usage.completion_tokens == 12
    vectors = [row.embedding for row in client.embeddings.create(model="bert", input=PROMPTS).data]  # asks for base64
    np.testing.assert_allclose(vectors, pt.embed(bert(), PROMPTS), atol=1e-5)
    with pytest.raises(openai.NotFoundError, match="gtp"):
        client.completions.create(model="gtp", prompt="a")


def test_stream_is_server_sent_events(server: Address) -> None:
    status, text, headers = server.call("/v1/completions", {**GREEDY, "prompt": PROMPTS[0], "stream": True})
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    *events, last, rest = text.split("\n\n")
    assert last == "data: [DONE]" and rest == ""
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    assert "".join(choice["text"] for choice in choices) == new_text(PROMPTS[0])
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    status, reply, _ = server.call("/v1/completions", {**GREEDY, "model": "bert", "prompt": "a", "stream": True})
    assert status == 400 and "it can embed" in reply["error"]["message"]  # before the stream starts


def test_embeddings_in_both_encodings(server: Address) -> None:
    body = {"model": "bert", "input": PROMPTS[0]}
    _, numbers, _ = server.call("/v1/embeddings", body)
    _, encoded, _ = server.call("/v1/embeddings", {**body, "encoding_format": "base64"})
    vector = np.frombuffer(base64.b64decode(encoded["data"][0]["embedding"]), "<f4")
    np.testing.assert_array_equal(vector, np.float32(numbers["data"][0]["embedding"]))
    assert numbers["usage"]["prompt_tokens"] == len(bert().tokenizer.encode(PROMPTS[0]))  # type: ignore[union-attr]
    assert server.call("/v1/embeddings", {**body, "dimensions": 5})[0] == 400


def test_other_paths(server: Address) -> None:
    calls: dict[str, dict[str, Any]] = {
        "/fill": {"model": "bert", "texts": "The [MASK] sat.", "k": 2},
        "/score": {"model": "gpt", "texts": PROMPTS[:2]},
        "/neighbors": {"model": "bert", "word": "cat", "sentence": "The cat sat.", "texts": PROMPTS, "k": 2},
        "/attention": {"model": "bert", "text": "The cat", "layer": "mean"},
        "/tokenize": {"model": "gpt", "texts": "The cat"},
    }
    for path, body in calls.items():
        status, reply, headers = server.call(path, body)
        assert status == 200 and reply["results"], (path, reply)
        assert headers["x-content-type-options"] == "nosniff"
    status, reply, _ = server.call("/score", {"model": "gpt", "texts": [PROMPTS[0], "The cat sat. " * 200]})
    assert [result["truncated"] for result in reply["results"]] == [False, True]
    status, text, _ = server.call("/metrics")
    assert (
        'pretune_requests_total{path="/fill",status="200"} 1' in text and 'pretune_queue_length{model="gpt"} 0' in text
    )
    paths = server.call("/openapi.json")[1]["paths"]
    assert {*calls, "/v1/completions", "/v1/embeddings", "/predict", "/search", "/health"} <= {*paths}
    assert server.call("/health")[:2] == (200, {"status": "ready"})


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", b"{", 400),
        ("/v1/completions", b"", 422),
        ("/v1/completions", b"[1]", 422),
        ("/v1/completions", b"[" * 100_000, 400),
        ("/v1/completions", b'{"model": "gpt", "prompt": "\\ud800"}', 422),
        ("/v1/completions", b'{"model": "gpt", "prompt": "a", "temperature": NaN}', 422),
        ("/v1/completions", b'{"model": "gpt", "prompt": "\xff"}', 400),
        ("/v1/completions", {**GREEDY, "prompt": ""}, 400),
        ("/v1/completions", {**GREEDY, "prompt": []}, 400),
        ("/v1/completions", {**GREEDY, "prompt": "a", "max_tokens": 10**6}, 400),
        ("/v1/completions", {**GREEDY, "prompt": "a", "temperature": 1, "n": 10**6}, 400),
        ("/v1/completions", {**GREEDY, "prompt": "a", "logprobs": 21}, 400),
        ("/v1/completions", {**GREEDY, "prompt": "a", "logit_bias": {"9999": 1}}, 400),
        ("/v1/completions", {**GREEDY, "prompt": "a", "logit_bias": {"the": 1}}, 422),
        ("/v1/completions", {**GREEDY, "prompt": "a", "logit_bias": {"5": 101}}, 422),
        ("/v1/completions", {**GREEDY, "prompt": "a", "presence_penalty": 2.1}, 422),
        ("/v1/completions", {**GREEDY, "prompt": "a", "beam": 3}, 422),
        ("/v1/completions", {"prompt": "a"}, 400),  # several models, none named
        ("/v1/embeddings", {"model": "bert", "input": ["a"] * 257}, 400),
        ("/v1/embeddings", {"model": "bert", "input": "a" * 70_000}, 400),
        ("/fill", {"model": "gpt", "texts": "a [MASK]"}, 400),
        ("/fill", {"model": "bert", "texts": "no mask"}, 400),
        ("/fill", {"model": "bert", "texts": "a [MASK]", "k": 10**9}, 400),
        ("/fill", {"model": "bert", "texts": "[MASK] " * 40}, 400),
        ("/fill", {"model": "bert", "texts": "[MASK] " * 32, "k": 100, "pieces": 16}, 400),
        ("/fill", {"model": "t5", "texts": "[MASK] a " * 32, "k": 100, "pieces": 16}, 400),
        ("/predict", b'{"model": "gpt", "inputs": [{"text": ' + b"[" * 500 + b"]" * 500 + b"}]}", 422),
        ("/explain", b'{"model": "gpt", "input": {"text": ' + b'{"a":' * 500 + b"1" + b"}" * 500 + b"}}", 422),
        ("/predict", b'{"model": "gpt", "inputs": [{"text": ["\\ud800"]}]}', 422),
        ("/v1/embeddings", {"model": "t5", "input": "a b " * 2000}, 400),
        ("/score", {"model": "t5", "texts": ["a b " * 2000]}, 400),
        ("/predict", {"model": "gpt", "inputs": ["a"]}, 400),
        ("/search", {"model": "gpt", "queries": "a"}, 400),
        ("/attention", {"model": "bert", "text": "a", "layer": 99}, 400),
        ("/fill", {"model": "\x1b[31m<script>", "texts": "a"}, 404),
        ("/nothing", {}, 404),
    ],
)
def test_bad_requests(path: str, body: Any, status: int, server: Address) -> None:
    found, reply, headers = server.call(path, body)
    assert found == status, reply
    assert set(reply["error"]) == {"message", "type", "param", "code"} and len(reply["error"]["message"]) <= 500
    assert headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "body", "field", "parts"),
    [
        ("/v1/completions", {"prompt": 5}, "prompt", ["text, list of texts", "got 5"]),
        ("/v1/completions", {"prompt": ["a", 5]}, "prompt", ['got ["a", 5]']),
        ("/v1/completions", {"prompt": ["a", "\ud800"]}, "prompt.1", ["Unicode"]),
        ("/v1/completions", {}, "prompt", ["missing"]),
        ("/v1/completions", {"prompt": "a", "temprature": 1}, "temprature", ["did you mean 'temperature'?"]),
        ("/v1/completions", {"prompt": "a", "\ud800": 1}, None, ["Unicode"]),
        ("/v1/completions", {"prompt": "a", "temperature": 101}, "temperature", ["from 0 to 100", "got 101"]),
        ("/v1/completions", {"prompt": "a", "stop": ["", 5]}, "stop", ["at most 16 texts of 1 to 256 characters"]),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"the": 1}}, "logit_bias", ["from -100 to 100", '"the"']),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias.5", ["got 101"]),
        ("/v1/embeddings", {"input": "a", "encoding_format": "x"}, "encoding_format", ['"base64"', 'got "x"']),
        ("/predict", {"inputs": ["a", ["b"]]}, "inputs.1", ["list of 2 texts", 'got ["b"]']),
        ("/predict", {"inputs": [{"text": [[[[[[[[[1]]]]]]]]]}]}, "inputs.0", ["nested"]),
        ("/compare", {"first": {"word": ""}, "second": 3}, "first.word", ["1 to 200 characters", "second", "got 3"]),
        ("/attention", {"text": "a", "layer": "x"}, "layer", ['integer or "mean"', 'got "x"']),
        ("/tokenize", [1], None, ["JSON object"]),
    ],
)
def test_invalid_fields(path: str, body: Any, field: str | None, parts: list[str], server: Address) -> None:
    status, reply, _ = server.call(path, body)
    error = reply["error"]
    assert status == 422 and error["param"] == field, reply
    assert all(part in error["message"] for part in [*parts, field or ""]), reply


def test_invalid_values_of_every_field(server: Address) -> None:
    """A message names the field and nothing of the code: no class, validator or type of Python."""
    openapi = server.call("/openapi.json")[1]
    count = 0
    for path in openapi["paths"]:
        schema = get_body_schema(openapi, path)
        for field in () if schema is None else schema["properties"]:
            for value in (5.5, "\ud800", [[{}]], {"a": {}}, [""] * 99, True, 10**30):
                status, reply, _ = server.call(path, {field: value})
                if status == 422 and reply["error"]["param"].startswith(field):
                    count += 1
                    assert not CODE.search(reply["error"]["message"]), reply
    assert count > 100


def test_many_clients_at_once(server: Address) -> None:
    """20 clients mix completions and embeddings; each gets its own answer."""
    results: dict[int, Any] = {}

    def ask(number: int) -> None:
        prompt = PROMPTS[number % len(PROMPTS)]
        if number % 2:
            results[number] = server.call("/v1/embeddings", {"model": "bert", "input": prompt})[1]
        else:
            results[number] = server.call("/v1/completions", {**GREEDY, "prompt": prompt})[1]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts, vectors = [new_text(prompt) for prompt in PROMPTS], pt.embed(bert(), PROMPTS)
    for number in range(20):
        which = number % len(PROMPTS)
        if number % 2:
            np.testing.assert_allclose(results[number]["data"][0]["embedding"], vectors[which], atol=1e-5)
        else:
            assert results[number]["choices"][0]["text"] == texts[which]
