"""The page and what only it asks for, without a browser: its files and policy, importance, words, heads and cards."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.analysis.importance import compute_importance
from pretune.analysis.neighbors import compare_words, compute_word_states
from pretune.cli import main
from pretune.core.errors import UsageError
from pretune.data.layout import pack_in_order
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.server.app import MEDIA_TYPES, PAGE_DIR
from pretune.server.capabilities import NeighborFinder
from pretune.server.loaded_model import LoadedModel
from pretune.server.openapi import describe, get_body_schema
from tests.conftest import ROOT
from tests.inference.speakers import bert, gpt, t5
from tests.server.models import Address, run_server
from tests.server.playground import HOSTILE, classifier, pretrained, reader, tagger, word_vectors

FILES = sorted(PAGE_DIR.iterdir())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier(tmp_path_factory.mktemp("runs") / "reviews", steps=4)


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    vectors = word_vectors(tmp_path_factory.mktemp("vectors") / "words.txt")
    with run_server({"gpt": gpt(), "bert": bert(), "t5": t5(), "reviews": run, "words": vectors}) as address:
        yield address


def test_files_of_the_page(server: Address) -> None:
    """All files are served with the strict policy, none loads or parses anything from elsewhere, none is long."""
    paths = {("/" if file.name == "index.html" else f"/page/{file.name}"): file for file in FILES}
    sources = {path: file.read_text(encoding="utf-8") for path, file in paths.items()}
    sources["/docs"] = server.call("/docs")[1]
    for path, source in sources.items():
        status, text, headers = server.call(path)
        file = paths.get(path, Path("docs.html"))
        assert status == 200 and headers["content-type"] == MEDIA_TYPES[file.suffix], file.name
        assert text == source and text.count("\n") <= 300, file.name
        text = text.replace(server.url, "")
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy and "http" not in policy
        assert "require-trusted-types-for 'script'" in policy and headers["x-content-type-options"] == "nosniff"
        addresses = re.findall(r"(?:https?:)?//[\w.-]+\.\w+\S*", text)
        assert [address for address in addresses if "www.w3.org" not in address] == [], (
            file.name
        )  # a name, never loaded
        assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval)\b|style=|<style", text)
    imported = {name for text in sources.values() for name in re.findall(r'["\'](/page/[\w.]+)["\']', text)}
    assert imported == {f"/page/{file.name}" for file in FILES if file.name != "index.html"}


def test_api_page_has_every_field(server: Address) -> None:
    """With its values, default and meaning; the example of a body is valid and can be pasted into a shell."""
    openapi, page = server.call("/openapi.json")[1], unescape(server.call("/docs")[1])
    capabilities = {model["id"]: model["capabilities"] for model in server.call("/v1/models")[1]["data"]}
    for path, item in openapi["paths"].items():
        section = page.partition(f"<code>{next(iter(item)).upper()} {path}</code>")[2].partition("</section>")[0]
        assert section, path
        schema = get_body_schema(openapi, path)
        for name, field in () if schema is None else schema["properties"].items():
            assert (
                f"<code>{name}</code>" in section
                and field.get("description", "x")
                and describe(field, openapi) in section
            )
        if schema is not None:
            command = shlex.split(re.findall(r"<pre>(curl .*?)</pre>", section)[0])
            assert command[:2] == ["curl", server.url + path] and json.loads(command[-1]) == schema["example"]
            capability = re.findall(r'data-capability="(\w+)"', section)[0]
            able = [name for name, names in capabilities.items() if capability in names]
            assert able or capability in ("search", "chat"), path
            for model in able[:1]:
                assert server.call(path, {"model": model, **schema["example"]})[0] == 200, path


@pytest.mark.parametrize("path", ["/page/none.js", "/page/../app.py", "/page/%2e%2e%2fapp.py", "/page/", "/app.py"])
def test_no_other_file_is_served(path: str, server: Address) -> None:
    assert server.call(path)[0] == 404


def test_page_needs_no_token_but_its_requests_do(run: Path) -> None:
    with run_server({"gpt": gpt()}, token="secret") as server:
        assert [server.call(path)[0] for path in ("/", "/docs", "/page/main.js", "/v1/models", "/card")] == [
            200
        ] * 3 + [401] * 2
        assert server.call("/card", authorization="Bearer secret")[0] == 200


def test_wheel_has_the_page() -> None:
    """Every kind of file of the page is package data."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["pretune"]
    package = ROOT / "src" / "pretune"
    packaged = {file for pattern in patterns for file in package.glob(pattern)}
    assert {*FILES} <= packaged and len(FILES) > 10


def test_models_say_what_they_lack(server: Address) -> None:
    models = {model["id"]: model for model in server.call("/v1/models")[1]["data"]}
    assert "does not see the text after a mask" in models["gpt"]["missing"]["fill"]
    assert models["reviews"]["inputs"]["tasks"][0]["labels"] == [HOSTILE, "good"]
    assert models["bert"]["inputs"]["attention"] == {"encoder": {"layers": 2, "heads": 4}}
    assert set(models["t5"]["inputs"]["attention"]) == {"encoder", "decoder", "cross"}
    assert models["words"]["capabilities"] == ["embed", "neighbors", "compare"]
    for model in models.values():
        assert not {*model["capabilities"]} & {*model["missing"]}


def test_explain(server: Address, run: Path) -> None:
    """Scores are gradient x input: those of a numeric derivative along the embedding of each token."""
    status, reply, _ = server.call("/explain", {"model": "reviews", "input": "the old film", "label": "good"})
    assert status == 200, reply
    result, tuned = reply["results"], FinetunedRun.open(run, device="cpu")
    predictor = tuned.load_predictor()
    assert result["name"] == "good" and len(result["tokens"]) == len(result["scores"]) == len(result["special"])
    items = predictor.encoder.encode([tuned.saved_task.build_example("the old film", "")], training=False)
    batch, table = pack_in_order(items.sequences), predictor.model.model.tokens
    rows = table.weight[items.sequences.tokens]

    def compute_logit(scale: torch.Tensor) -> float:
        """The logit of the label if the embeddings are scaled token by token."""
        handle = table.register_forward_hook(lambda *_: rows * scale[:, None])
        try:
            with torch.no_grad():
                return float(predictor.model(batch)[0, 1])
        finally:
            handle.remove()

    ones = torch.ones(len(rows))
    step = 1e-2 * torch.eye(len(rows))
    slopes = [(compute_logit(ones + row) - compute_logit(ones - row)) / 2e-2 for row in step]
    assert np.allclose(result["scores"], slopes, rtol=0.05, atol=2e-3)
    assert np.abs(slopes).max() > 0.01
    for body in ({"label": "none"}, {"task": "none"}, {"input": ["a", "b"], "label": "x"}):
        assert server.call("/explain", {"model": "reviews", "input": "a", **body})[0] == 400
    assert server.call("/explain", {"model": "gpt", "input": "a"})[0] == 400


@pytest.mark.slow
def test_explain_other_types(tmp_path: Path) -> None:
    """Tags and spans are explained by the logits of their tokens; a parser's trees are not."""
    for path, text, name in (
        (tagger(tmp_path / "tags"), "Tom met Sue", "all tags"),
        (reader(tmp_path / "answers"), ("Who met Sue?", "Tom met Sue in the big park."), "answer"),
    ):
        tuned = FinetunedRun.open(path, device="cpu")
        predictor, example = tuned.load_predictor(), tuned.saved_task.build_example(text, "")
        result = compute_importance(predictor.model, predictor.encoder, example)
        assert result.name == name and len(result.scores) == len(result.tokens) and np.abs(result.scores).max() > 0
    only = compute_importance(predictor.model, predictor.encoder, example)
    assert only == result  # nothing of the model has changed


def test_blank_texts(server: Address) -> None:
    """A prediction for each input; a blank one has a reason instead of a label, and nothing to explain."""
    status, reply, _ = server.call("/predict", {"model": "reviews", "inputs": ["", "the old film", "  "]})
    assert status == 200 and [result["label"] is None for result in reply["results"]] == [True, False, True]
    assert ["reason" in result for result in reply["results"]] == [True, False, True]
    assert server.call("/explain", {"model": "reviews", "input": " "})[0] == 400


def test_compare(server: Address) -> None:
    """The last layer is that of neighbors, and a word has one static vector in all sentences."""
    first, second = ({"word": "house", "sentence": sentence} for sentence in ("The old house.", "A house!"))
    sides = {"first": first, "second": second}
    result = server.call("/compare", {"model": "bert", **sides})[1]["results"]
    assert len(result["layers"]) == 3 and result["static"] == pytest.approx(1.0, abs=1e-5)
    found = pt.neighbors(bert(), "house", "The old house.", ["A house!"], k=1, same_word=True)
    assert result["layers"][-1] == pytest.approx(found.context[0].score, abs=1e-5)
    same = compare_words(bert(), ("old", "The old house."), ("old", "The old house."))
    assert same.layers == pytest.approx([1.0] * 3, abs=1e-5)
    assert server.call("/compare", {"model": "words", "first": {"word": "Cat"}, "second": {"word": "cat"}})[1] == {
        "model": "words", "results": {"layers": [], "static": pytest.approx(1.0)},
    }  # fmt: skip
    with pytest.raises(UsageError, match="does not contain the word 'none'"):
        compare_words(bert(), ("none", "The old house."), ("old", "The old house."))
    bad = {"first": {"word": "none", "sentence": "a"}, "second": {"word": "a", "sentence": "a"}}
    for model, status in (("bert", 400), ("words", 400), ("reviews", 400)):
        assert server.call("/compare", {"model": model, **bad})[0] == status
    assert server.call("/compare", {"model": "bert", "first": {"word": "a" * 201}, "second": {"word": "a"}})[0] == 422


def test_neighbors_of_the_same_texts_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts and layers that fit are kept, the latest ones; results are those without a cache."""
    computed = list[Any]()

    def compute(model: Any, texts: Any, *, layer: Any) -> Any:
        computed.append((texts, layer))
        return compute_word_states(model, texts, layer=layer)

    monkeypatch.setattr("pretune.server.capabilities.compute_word_states", compute)
    texts, others = ("An old house stood.", "A bird and a house!"), ("They went home.",)
    size = compute_word_states(bert(), texts).nbytes
    finder, question = NeighborFinder(LoadedModel(model=bert()), size), ("house", "The house.")
    expected = pt.neighbors(bert(), *question, texts, k=3)

    def find(texts: tuple[str, ...], same_word: bool = False) -> Any:
        return finder.find([(*question, texts)], k=3, layer=None, same_word=same_word)[0]["context"]

    for same_word in (True, False, False, True):
        found = find(texts, same_word)
    assert computed == [(texts, None)] and {one["word"] for one in found} == {"house"}
    assert [[*one.values()][:4] for one in find(texts)] == [[*one[:4]] for one in expected.context]
    find(others)  # no room for both
    find(texts)
    find(texts * 2)  # too large: is not kept, and the others stay
    find(texts)
    assert computed == [(texts, None), (others, None), (texts, None), (texts * 2, None)]


@pytest.mark.parametrize(("name", "part"), [("gpt", None), ("t5", "cross")])
def test_heads(name: str, part: Any, server: Address) -> None:
    """All heads at once are the single ones, each with the name of its pattern."""
    text, model = "The old house was quiet", {"gpt": gpt, "t5": t5}[name]()
    result = server.call("/heads", {"model": name, "text": text, "part": part})[1]["results"]
    for layer, head in ((1, 1), (2, 3)):
        view = pt.view_attention(model, text, layer=layer, head=head, part=part)
        np.testing.assert_allclose(result["weights"][layer - 1][head - 1], view.weights, atol=6e-4)
        assert result["tokens"] == view.tokens and result["keys"] == view.keys
    assert np.shape(result["patterns"]) == (2, 4) and all(map(all, result["patterns"]))
    long = server.call("/heads", {"model": name, "text": text * 40, "part": part})[1]["results"]
    assert long["truncated"] and len(long["tokens"]) <= 60
    assert server.call("/heads", {"model": name, "text": " ", "part": part})[0] == 400
    assert server.call("/heads", {"model": "gpt", "text": "a", "part": "cross"})[0] == 400


def test_card(server: Address, tmp_path: Path) -> None:
    card = server.call("/card?model=reviews")[1]["results"]
    assert [row[0] for row in card["scores"]] == ["", "this run (accuracy, test)"]
    assert {"device", "energy", "CO2e", "price"} <= {name for name, _ in card["cost"]}
    assert card["card"].startswith("# reviews") and card["curves"] and card["notes"] == []
    assert dict(server.call("/card?model=bert")[1]["results"]["facts"])["size"].startswith("width 32, 2 layers")
    assert server.call("/card?model=words")[1]["results"]["facts"] == [["word vectors", "5 words of width 4"]]
    assert [server.call(path)[0] for path in ("/card?model=none", "/card")] == [404, 400]


@pytest.mark.slow
def test_card_of_a_pretraining_run(tmp_path: Path) -> None:
    """Curves and the data card are those of the report; a damaged file is a note."""
    run = pretrained(tmp_path / "books")
    with run_server({"books": run}) as server:
        card = server.call("/card")[1]["results"]
        assert [curve["name"] for curve in card["curves"]] == ["pre-training loss", "validation accuracy"]
        points = card["curves"][0]["lines"][-1]["points"]
        assert [step for step, _ in points] == [0, 2, 4, 6] and points[0][1] > points[-1][1]
        assert card["data"]["splits"][0].startswith("train: ") and card["data"]["sources"][1][0].endswith("corpus.txt")
        (run / "run.json").write_text("{")
        damaged = server.call("/card")[1]["results"]
        assert damaged["curves"] == [] and "run.json" in damaged["notes"][0] and damaged["card"] == card["card"]


def test_command_without_a_model_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    output = capsys.readouterr()
    assert output.out == "" and "pretune serve needs a model" in output.err
    parts = ("pretune quickstart", "pretune serve runs/", "pretune serve small-encoder", "http://127.0.0.1:8000")
    assert all(part in output.err for part in parts)
