"""Completions as OpenAI's API documents them: penalties, bias, log-probabilities, echo, and the best of several.

The reference is written out: the whole text through the model for every token, without cache or batch.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.inference.decoding_state import draw_uniforms
from pretune.inference.generate import generate_texts
from pretune.inference.generation_config import build_generation_config
from pretune.server.capabilities import Completer
from pretune.server.completion import CompletionOptions, CompletionPiece, build_job
from pretune.server.config import ServerConfig
from pretune.server.engine import Engine
from pretune.server.loaded_model import LoadedModel
from pretune.server.logprobs import TokenLogprob
from tests.inference.speakers import gpt
from tests.server.models import PROMPTS, Address, run_engine, run_server

NEW = 8
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "frequency_penalty": 1.5},
    {"temperature": 0, "presence_penalty": 2.0, "frequency_penalty": -0.25},
    {"temperature": 0.7, "seed": 5, "presence_penalty": -1.0, "logit_bias": {40: 4.0, 41: -100.0}},
    {"temperature": 1.3, "seed": 6, "frequency_penalty": 2.0},
    {"temperature": 0, "logit_bias": {77: 100.0}},
    {"temperature": 0, "logit_bias": {77: 6.0}, "frequency_penalty": 2.0, "presence_penalty": 1.0},
]


def prompt_ids(prompt: str) -> list[int]:
    words = gpt().tokenizer
    assert words is not None
    return [words.special["bos"], *words.encode(prompt, add_special_tokens=False)]


def reference(prompt: str, settings: dict[str, Any]) -> tuple[list[int], list[np.ndarray]]:
    """New tokens, the end token included, and the model's own log-probabilities at every step."""
    model, ids, new, logprobs = gpt(), prompt_ids(prompt), list[int](), list[np.ndarray]()
    chance = draw_uniforms(settings.get("seed", 0), [0], 1, NEW)[0].tolist()
    for step in range(NEW):
        with torch.no_grad():
            logits = np.asarray(model(pt.batch([[*ids, *new]])).logits[-1].double())
        logprobs.append(logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max())
        for token in {*new}:
            logits[token] -= new.count(token) * settings.get("frequency_penalty", 0)
            logits[token] -= settings.get("presence_penalty", 0)
        for token, bias in settings.get("logit_bias", {}).items():
            logits[token] += bias
        if settings["temperature"] == 0:
            new.append(int(logits.argmax()))
        else:
            shares = np.exp((logits - logits.max()) / settings["temperature"])
            new.append(int(np.searchsorted(np.cumsum(shares / shares.sum()), chance[step], side="right")))
        if new[-1] == model.spec.special.eos:
            break
    return new, logprobs


def test_settings_in_one_batch_are_those_of_the_reference() -> None:
    """Requests with other settings run in the same steps; tokens and log-probabilities are those written out."""
    requests = [(PROMPTS[i % 2], settings) for i, settings in enumerate(SETTINGS)]

    async def work(engine: Engine) -> Any:
        calls = (engine.complete("gpt", [p], logprobs=3, max_new_tokens=NEW, **s) for p, s in requests)
        return await asyncio.gather(*calls)

    results, engine = run_engine(work, max_rows=5)
    sizes = engine.metrics._histograms["pretune_batch_size", (("model", "gpt"), ("kind", "complete"))]
    assert sizes.counts[3] > 0, "five rows ran together"
    words = gpt().tokenizer
    assert words is not None
    texts = []
    for (prompt, settings), result in zip(requests, results, strict=True):
        tokens, logprobs = reference(prompt, settings)
        texts.append(tokens)
        if tokens[-1] == gpt().spec.special.eos:
            tokens = tokens[:-1]
        (entries,) = result.logprobs[0]
        assert result.texts[0][0].new == words.decode(tokens, special=False), settings
        ((same,),) = generate_texts(gpt(), [prompt], build_generation_config(max_new_tokens=NEW, **settings))
        assert same == result.texts[0][0], "`pretune generate` takes the same settings"
        for token, own, entry in zip(tokens, logprobs, entries, strict=False):
            best = np.sort(own)[-3:]
            assert entry.top[entry.text] == entry.logprob == pytest.approx(own[token], abs=1e-4)
            np.testing.assert_allclose(sorted(entry.top.values())[-3:], best, atol=1e-4)
            assert len(entries) == len(tokens) and len(entry.top) == 3 + (own[token] < best[0])
    assert len({tuple(tokens) for tokens in texts}) == len(SETTINGS), "all settings matter"
    assert texts[5] == [77] * NEW and 0 < texts[6].count(77) < NEW, "penalties overcome a bias"


@pytest.fixture(scope="module")
def server() -> Iterator[Address]:
    with run_server({"gpt": gpt()}) as address:
        yield address


def complete(server: Address, **body: Any) -> dict[str, Any]:
    status, reply, _ = server.call("/v1/completions", {"temperature": 0, "max_tokens": 6, **body})
    assert status == 200, reply
    result: dict[str, Any] = reply
    return result


def test_echo_and_offsets(server: Address) -> None:
    """The log-probabilities of a prompt are those of `score`; tokens start where `text_offset` says."""
    prompt = PROMPTS[2]
    reply = complete(server, prompt=prompt, echo=True, logprobs=2)
    (choice,) = reply["choices"]
    parts = choice["logprobs"]
    size = reply["usage"]["prompt_tokens"]
    assert len(parts["tokens"]) == size + 6 and choice["text"].startswith(prompt)
    assert parts["token_logprobs"][0] is None and parts["top_logprobs"][0] is None and parts["text_offset"][0] == 0
    _, score, _ = server.call("/score", {"texts": [prompt]})
    np.testing.assert_allclose(parts["token_logprobs"][1:size], score["results"][0]["token_logprobs"], atol=1e-4)
    for i, (token, start) in enumerate(zip(parts["tokens"], parts["text_offset"], strict=True)):
        if i:
            rest = choice["text"][start:]
            assert rest.startswith((token, "\ufffd")) and parts["token_logprobs"][i] <= 0
            assert parts["top_logprobs"][i][token] == parts["token_logprobs"][i]
    alone = complete(server, prompt=prompt, logprobs=2)["choices"][0]["logprobs"]
    assert alone["text_offset"] == parts["text_offset"][size:] and alone["tokens"] == parts["tokens"][size:]
    np.testing.assert_allclose(alone["token_logprobs"], parts["token_logprobs"][size:], atol=1e-5)
    read = complete(server, prompt=prompt, echo=True, logprobs=2, max_tokens=0)
    assert read["choices"][0]["text"] == prompt and read["usage"]["completion_tokens"] == 0
    assert read["choices"][0]["logprobs"]["tokens"] == parts["tokens"][:size]
    ids = complete(server, prompt=prompt_ids(prompt), echo=True, logprobs=0, max_tokens=0)["choices"][0]["logprobs"]
    assert ids["text_offset"] == parts["text_offset"][:size] and ids["top_logprobs"] is None
    full = complete(server, prompt=[5] * 48, echo=True, logprobs=0, max_tokens=0)
    assert full["usage"]["prompt_tokens"] == 48, "a prompt may be as long as the model reads"
    assert complete(server, prompt=[5], echo=True, logprobs=1, max_tokens=0)["choices"][0]["logprobs"]["tokens"]


def test_stream_adds_up_to_the_response(server: Address) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    body = {"model": "gpt", "prompt": PROMPTS[:2], "seed": -3, "n": 2, "max_tokens": 12, "logprobs": 2, "echo": True}
    body |= {"stop": ["e"], "presence_penalty": 0.5, "logit_bias": {"50": -100}}
    response = client.completions.create(**body)
    texts, parts = (
        [""] * 4,
        [{"tokens": [], "token_logprobs": [], "text_offset": [], "top_logprobs": []} for _ in "1234"],
    )
    for event in client.completions.create(**body, stream=True):
        (choice,) = event.choices
        texts[choice.index] += choice.text
        for name, values in parts[choice.index].items():
            values += getattr(choice.logprobs, name) or []
    assert texts == [choice.text for choice in response.choices]
    for choice, part in zip(response.choices, parts, strict=True):
        assert "e" not in choice.text.removeprefix(PROMPTS[choice.index // 2])
        assert part["tokens"] == choice.logprobs.tokens and part["text_offset"] == choice.logprobs.text_offset
        assert part["text_offset"][-1] < len(choice.text)
        for name in ("token_logprobs", "top_logprobs"):
            both = [part[name][1:], getattr(choice.logprobs, name)[1:]]
            if name == "top_logprobs":
                both = [[value for top in tops for value in top.values()] for tops in both]
            np.testing.assert_allclose(*both, atol=1e-5)


def test_tokens_of_parts_of_characters() -> None:
    """The tokens of a character start where it does, and are sent with it; they are named by their spelling."""
    words, model, pieces = gpt().tokenizer, gpt(), list[CompletionPiece]()
    assert words is not None
    config = build_generation_config(max_new_tokens=40, temperature=0)
    wants = CompletionOptions(config=config, logprobs=1, on_piece=pieces.append)
    job = build_job(Completer(LoadedModel(model=model)), ["Once"], wants, ServerConfig())
    (row,) = job.rows
    for token in (tokens := words.encode(" naïve 日本 e", add_special_tokens=False)):
        row.logprobs.append(TokenLogprob(token, -1.0, ((token, -1.0), (5, -2.0))))
        row.append(token, ())
        job.update(row)
    row.finish_reason = "length"
    job.update(row)
    (entries,) = job.build_result().logprobs[0]  # type: ignore[index]
    assert [entry for piece in pieces for entry in piece.logprobs] == entries and len(entries) == len(tokens)
    text = "Once naïve 日本 e"
    for token, entry in zip(tokens, entries, strict=True):
        assert text.startswith(entry.text, entry.start) or entry.text == words.get_token(token)
        assert entry.top is not None and entry.top[entry.text] == -1.0 and len(entry.top) == 2
    starts = [entry.start for entry in entries]
    assert starts == sorted(starts) and starts.count(text.index("日")) == 3 and starts[-1] <= len(text) - 1


def test_best_of(server: Address) -> None:
    """The texts of the highest mean log-probability, of those that `n` alone would return."""
    body = {"prompt": PROMPTS[:2], "temperature": 1.0, "seed": 9, "max_tokens": 8, "logprobs": 0}
    every = complete(server, **body, n=5)["choices"]
    best = complete(server, **body, n=2, best_of=5)
    for number in range(2):
        ranked = sorted(
            every[5 * number : 5 * number + 5], key=lambda choice: -np.mean(choice["logprobs"]["token_logprobs"])
        )
        found = best["choices"][2 * number : 2 * number + 2]
        assert [choice["text"] for choice in found] == [choice["text"] for choice in ranked[:2]]
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]
    assert best["usage"]["completion_tokens"] > sum(len(choice["logprobs"]["tokens"]) for choice in best["choices"])
    assert (
        complete(server, **{**body, "logprobs": None}, n=1, best_of=5)["choices"][0]["text"]
        == best["choices"][0]["text"]
    )


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("suffix", {"suffix": "the end"}),
        ("best_of", {"n": 3, "best_of": 2, "temperature": 1}),
        ("best_of", {"best_of": 2, "stream": True, "temperature": 1}),
        ("n", {"n": 2}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": 0, "echo": True, "stream": True}),
    ],
)
def test_unsupported_fields_are_named(field: str, body: dict[str, Any], server: Address) -> None:
    status, reply, _ = server.call("/v1/completions", {"prompt": "a", "temperature": 0, **body})
    error = reply["error"]
    assert status == 400 and error["param"] == field and error["message"].startswith(f"{field}: ")
    assert "\n" not in error["message"]
