"""Chats as OpenAI's API documents them, on a real socket, by its client and by hand."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import pretune as pt
from tests.inference.speakers import chatter, gpt
from tests.server.models import Address, run_server
from tests.text.chat_templates import chat

PATH = "/v1/chat/completions"
MESSAGES = chat("The cat", "A dog", "She")
GREEDY: dict[str, Any] = {"model": "chatter", "messages": MESSAGES, "temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def server() -> Iterator[Address]:
    with run_server({"chatter": chatter(), "gpt": gpt()}) as address:
        yield address


def answer(**options: Any) -> str:
    return pt.chat(chatter(), MESSAGES, **{"temperature": 0, "max_new_tokens": 6, **options})


def test_openai_client(server: Address) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    reply = client.chat.completions.create(**GREEDY)
    (choice,) = reply.choices
    assert choice.message.content == answer() and choice.message.role == "assistant"
    assert choice.finish_reason == "length" and reply.object == "chat.completion"
    ids = chatter().tokenizer.encode(
        "<|endoftext|>uThe cat<|endoftext|>aA dog<|endoftext|>uShe<|endoftext|>a", add_special_tokens=False
    )  # type: ignore[union-attr]
    usage = reply.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (len(ids), 6, len(ids) + 6)
    again = [*MESSAGES, choice.message, {"role": "user", "content": [{"type": "text", "text": "He"}]}]
    assert client.chat.completions.create(model="chatter", messages=again, max_completion_tokens=1).choices
    sample = {"model": "chatter", "messages": MESSAGES, "seed": 3, "max_tokens": 6, "n": 2, "top_p": 0.9}
    whole = [choice.message.content for choice in client.chat.completions.create(**sample).choices]
    assert len({*whole}) == 2 and whole[0] == answer(temperature=1.0, seed=3, top_p=0.9)
    events = [*client.chat.completions.create(**sample, stream=True, stream_options={"include_usage": True})]
    texts, roles, ends = ["", ""], [0, 0], [None, None]
    for event in events[:-1]:
        (choice,) = event.choices
        texts[choice.index] += choice.delta.content or ""
        roles[choice.index] += choice.delta.role == "assistant"
        ends[choice.index] = choice.finish_reason
    assert texts == whole and roles == [1, 1] and ends == ["length"] * 2
    assert events[-1].usage.completion_tokens == 12 and {event.object for event in events} == {"chat.completion.chunk"}
    stop = answer()[-1]
    with client.chat.completions.stream(**GREEDY, stop=stop) as parts:  # the client's own way to add events up
        assert parts.get_final_completion().choices[0].message.content == answer(stop=[stop])


def test_wire_format(server: Address) -> None:
    status, reply, _ = server.call(PATH, {**GREEDY, "logprobs": True, "top_logprobs": 2})
    assert status == 200 and reply["id"].startswith("chatcmpl-")
    (choice,) = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": answer(), "refusal": None}
    assert len(choice["logprobs"]["content"]) == 6
    for entry in choice["logprobs"]["content"]:
        assert entry["logprob"] <= 0 and bytes(entry["bytes"]).decode() == entry["token"]
        assert entry["top_logprobs"][0] == {key: entry[key] for key in ("token", "logprob", "bytes")}
    status, text, headers = server.call(PATH, {**GREEDY, "stream": True})
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    *events, last, rest = text.split("\n\n")
    assert last == "data: [DONE]" and rest == ""
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    assert choices[0]["delta"]["role"] == "assistant" and choices[0]["finish_reason"] is None
    assert choices[-1]["delta"] == {} and choices[-1]["finish_reason"] == "length"
    assert all(choice["logprobs"] is None for choice in choices)
    stop = answer()[-1]
    stopped = server.call(PATH, {**GREEDY, "stop": stop})[1]["choices"][0]
    assert stopped["message"]["content"] == answer(stop=[stop]) and stopped["finish_reason"] == "stop"
    free = server.call(PATH, {**GREEDY, "max_tokens": None})[1]
    assert free["choices"][0]["message"]["content"] == answer(max_new_tokens=free["usage"]["completion_tokens"])


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ({"messages": []}, 422, "messages"),
        ({"messages": None}, 422, "messages"),
        ({"messages": [{"role": "user"}]}, 422, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            422,
            "messages.0.content",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "no tools"),
        ({"messages": [{"role": "user", "content": "a " * 90}]}, 400, "limit of the model"),
        ({"messages": [{"role": "user", "content": "a" * 70_000}]}, 400, "characters"),
        ({"n": 2}, 400, "n: must be 1"),
        ({"tools": []}, 422, "unknown field"),
        ({"max_tokens": 0}, 422, "max_tokens"),
        ({"model": "gpt"}, 400, "no chat template"),
        ({"model": "gtp"}, 404, "gtp"),
    ],
)
def test_faults(body: dict[str, Any], status: int, problem: str, server: Address) -> None:
    for stream in (False, True):
        code, reply, _ = server.call(PATH, {**GREEDY, **body, "stream": stream})
        assert code == status and problem in reply["error"]["message"], reply


def test_models_say_whether_they_chat(server: Address) -> None:
    models = {model["id"]: model for model in server.call("/v1/models")[1]["data"]}
    assert "chat" in models["chatter"]["capabilities"] and "chat template" in models["gpt"]["missing"]["chat"]
