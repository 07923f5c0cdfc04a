"""Classes of heads where the answer is known; statistics by their definition, one text at a time."""

import itertools
import json
import math
import unicodedata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.analysis import attention_inputs
from pretune.analysis.attention import analyze_attention, view_attention
from pretune.analysis.attention_patterns import (
    CLASSES,
    LETTERS,
    MEASURED_PATTERNS,
    PATTERNS,
    HeadStatistics,
    TokenRoles,
    build_patterns,
    build_visible,
    classify_heads,
)
from pretune.analysis.words import WORD_PATTERN
from pretune.cli import main
from pretune.core.errors import DataError, UsageError
from pretune.inference.text_model import get_tokenizer
from tests.analysis.models import ATTENTIVE, RECURRENT, TEXTS, model_of
from tests.selection import keep_quick

Capture = pytest.CaptureFixture[str]
ROLES = TokenRoles(
    special=np.array([True, *[False] * 8, True]),
    punctuation=np.array([False, False, False, True, False, False, False, True, False, False]),
    words=np.array([-1, 0, 1, -1, 2, 0, 1, -1, 2, -1]),
    index=np.arange(10) - 1,
)
"""[CLS] a b , c a b . c [SEP]"""


def classify(weights: torch.Tensor, *, causal: bool = False) -> str:
    statistics = HeadStatistics(1, 1)
    patterns = build_patterns(ROLES, ROLES)
    statistics.add(0, weights[None], patterns, build_visible(10, 10, causal=causal, window=None), ~ROLES.special)
    means = {name: float(values[0, 0]) for name, values in statistics.means.items()}
    uniform = {name: float(values[0]) for name, values in statistics.uniform.items()}
    return str(classify_heads(means, uniform, statistics.entropy[0, 0]))


def normalize(weights: torch.Tensor, *, causal: bool = False) -> torch.Tensor:
    weights = weights.tril() if causal else weights
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", PATTERNS)
def test_a_head_of_one_pattern_has_its_class(name: str, causal: bool) -> None:
    """Also if it attends to nothing else where the pattern is absent, as heads do, and with noise."""
    keys = torch.from_numpy(build_patterns(ROLES, ROLES)[MEASURED_PATTERNS.index(name)]).float()
    keys = keys.tril() if causal else keys
    if causal and name == "next":
        assert not keys.any()  # no token sees the next
        return
    weights = torch.where(keys.sum(-1, keepdim=True) > 0, keys, torch.ones(10, 10)) + 0.02 * torch.rand(10, 10)
    assert classify(normalize(weights, causal=causal), causal=causal) == name


@pytest.mark.parametrize("causal", [False, True])
def test_uniform_attention_is_broad(causal: bool) -> None:
    assert classify(normalize(torch.ones(10, 10), causal=causal), causal=causal) == "broad"


def test_attention_elsewhere_is_mixed() -> None:
    far = torch.zeros(10, 10)
    for query in range(10):
        far[query, (query + 2) % 10] = 1
        far[query, (query + 3) % 10] = 0.5
    far[:, [0, 3, 7, 9]] = 0
    assert classify(normalize(far + 1e-3)) == "mixed"


def test_the_first_token_and_separators_are_told_apart() -> None:
    weights = torch.full((10, 10), 1e-6)
    weights[:, 0], weights[:, 9] = 0.6, 0.4
    statistics = HeadStatistics(1, 1)
    statistics.add(
        0, normalize(weights)[None], build_patterns(ROLES, ROLES), np.ones((10, 10), dtype=bool), ~ROLES.special
    )
    means = {name: float(values[0, 0]) for name, values in statistics.means.items()}
    assert means["first"] == pytest.approx(0.6, abs=1e-4) and means["separator"] == pytest.approx(0.4, abs=1e-4)
    assert means["first/separator"] == pytest.approx(1, abs=1e-4)


def test_thresholds_decide() -> None:
    means, uniform = dict.fromkeys(PATTERNS, 0.1) | {"self": 0.4}, dict.fromkeys(PATTERNS, 0.1)
    assert classify_heads(means, uniform, 0.9, threshold=0.3) == "self"  # (0.4 - 0.1) / 0.9 = 0.33
    assert classify_heads(means, uniform, 0.9, threshold=0.35) == "broad"
    assert classify_heads(means, uniform, 0.9, threshold=0.35, broad_threshold=0.95) == "mixed"
    assert len({*LETTERS.values()}) == len(CLASSES)  # readable without colour


def compute_by_definition(model: Any, texts: list[str]) -> dict[str, Any]:
    """Masses and entropies of the last stack's self-attention, query by query, each text by itself."""
    tokenizer, stack = get_tokenizer(model), model.spec.last_stack
    layers = [stack.layers[i] for i in stack.layer_indices]
    sums: dict[tuple[int, str], list[np.ndarray]] = {}
    for text in texts:
        found = tokenizer.encode_batch([text])
        laid = tokenizer.template.apply(found[0])
        ids, special = laid.ids.tolist(), laid.is_special.tolist()
        words: list[str | None] = []
        for start in found.starts.tolist():
            inside = [match for match in WORD_PATTERN.finditer(text) if match.start() <= start < match.end()]
            words.append(inside[0].group().lower() if inside else None)
        word_of = dict(zip(np.flatnonzero(~laid.is_special).tolist(), words, strict=True))
        batch = pt.batch([ids])
        if model.spec.is_encoder_decoder:
            cut = ids[:-1] if tokenizer.template.suffix else ids
            batch = pt.batch(source=[ids], target=[[model.spec.special.start, *cut]])
            ids, special = [model.spec.special.start, *cut], [True, *special[: len(cut)]]
            word_of = {place + 1: word for place, word in word_of.items()}
        with torch.no_grad():
            output = model(batch, attention=True)
        for layer, spec in enumerate(layers):
            weights = output.attention[layer][0].numpy()
            window = getattr(spec.attention, "window", None)
            for i in range(len(ids)):
                seen = [
                    j
                    for j in range(len(ids))
                    if not (stack.causal and j > i) and not (window is not None and abs(i - j) >= window)
                ]
                assert np.allclose(np.delete(weights[:, i], seen, axis=1), 0)
                if special[i] or len(seen) < 2:
                    continue
                marks = {
                    "previous": [i - 1],
                    "next": [i + 1],
                    "self": [i],
                    "first": [0],
                    "separator": [j for j in seen if special[j] and j],
                    "punctuation": [
                        j
                        for j in seen
                        if j != i
                        and not special[j]
                        and (text_of := tokenizer.decode([ids[j]]).strip())
                        and all(unicodedata.category(c)[0] in "PS" for c in text_of)
                    ],
                    "same word": [j for j in seen if j != i and word_of.get(i) and word_of.get(j) == word_of[i]],
                }
                for name, places in marks.items():
                    if seen_places := [j for j in places if j in seen]:
                        sums.setdefault((layer, name), []).append(weights[:, i, seen_places].sum(-1))
                row = weights[:, i, seen].astype(np.float64)
                entropy = -(row * np.log(np.maximum(row, 1e-30))).sum(-1) / math.log(len(seen))
                sums.setdefault((layer, "entropy"), []).append(entropy)
    return {key: np.mean(values, axis=0) for key, values in sums.items()}


@pytest.mark.parametrize("family", keep_quick(ATTENTIVE, "bert"))
def test_statistics_by_definition(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed into batches, however small, they are those of each text alone; padding has no part in them."""
    model = model_of(family)
    limit = model.spec.max_length
    texts = [text for text in TEXTS if limit is None or len(get_tokenizer(model).encode(text)) < limit]
    assert len(texts) >= 3
    expected = compute_by_definition(model, texts)
    part = "decoder" if model.spec.decoder is not None else "encoder"
    for size in (attention_inputs.MAX_WEIGHT_BYTES, 1):
        monkeypatch.setattr(attention_inputs, "MAX_WEIGHT_BYTES", size)
        found = analyze_attention(model, texts)
        for (layer, name), values in expected.items():
            measured = found.entropy[part] if name == "entropy" else found.means[part][name]
            np.testing.assert_allclose(measured[layer], values, atol=1e-5, err_msg=f"{name} of layer {layer + 1}")
        assert found.texts == len(texts) and found.truncated_texts == 0
        assert {*found.classes[part].ravel()} <= {*CLASSES}
        assert sum(found.shares[part].values()) == pytest.approx(1)


def test_an_encoder_decoder_has_three_parts() -> None:
    model = model_of("t5")
    found = analyze_attention(model, TEXTS)
    assert [*found.classes] == ["encoder", "decoder", "cross"]
    view = view_attention(model, TEXTS[0], part="cross", layer=1)
    assert len(view.tokens) == len(view.keys) and view.tokens[1] == view.keys[0] != view.tokens[0]
    np.testing.assert_allclose(view.weights.sum(-1), 1, atol=1e-5)
    assert found.to_pandas().shape[0] == sum(classes.size for classes in found.classes.values())


def test_a_head_that_copies_is_seen_across() -> None:
    """In cross-attention the token itself is the same token of the text, not the same position."""
    source = TokenRoles(*(np.array(values) for values in ([False] * 3 + [True], [False] * 4, [0, 1, 2, -1], range(4))))
    target = TokenRoles(
        *(np.array(values) for values in ([True] + [False] * 3, [False] * 4, [-1, 0, 1, 2], range(-1, 3)))
    )
    patterns = dict(zip(MEASURED_PATTERNS, build_patterns(target, source), strict=True))
    assert np.argwhere(patterns["self"]).tolist() == [[1, 0], [2, 1], [3, 2]]
    assert np.argwhere(patterns["next"]).tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert not patterns["same word"].any()


def test_one_text() -> None:
    model = model_of("bert")
    ids = get_tokenizer(model).encode(TEXTS[0])
    with torch.no_grad():
        weights = model(pt.batch([ids]), attention=True).attention
    every = np.stack([layer[0].numpy() for layer in weights])
    for layer, head in itertools.product((1, 2, -1, "mean"), (None, 1, 4)):
        view = view_attention(model, TEXTS[0], layer=layer, head=head)
        rows = every.mean(0) if layer == "mean" else every[layer - 1 if layer > 0 else layer]
        np.testing.assert_allclose(view.weights, rows.mean(0) if head is None else rows[head - 1], atol=1e-6)
    assert view.tokens[0] == "[CLS]" and len(view.tokens) == len(ids) == len(view.to_rows())
    assert "mean of all layers" in repr(view) and not view.truncated
    assert view_attention(model, "the old house " * 40).truncated


@pytest.mark.parametrize("name", keep_quick(RECURRENT, "ulmfit"))
def test_recurrent_models_have_none(name: str) -> None:
    for call in (lambda model: analyze_attention(model, TEXTS), lambda model: view_attention(model, TEXTS[0])):
        with pytest.raises(UsageError, match="no attention weights"):
            call(model_of(name))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 3}, "layer must be from 1 to 2"),
        ({"layer": 0}, "layer must be from 1 to 2"),
        ({"head": 5}, "head must be from 1 to 4"),
        ({"part": "cross"}, "no attention 'cross'"),
        ({"text": "  "}, "the text is empty"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        view_attention(model_of("bert"), **({"text": "a cat"} | options))


def test_bad_texts() -> None:
    model = model_of("bert")
    with pytest.raises(UsageError, match="single text"):
        analyze_attention(model, "a text")
    with pytest.raises(DataError, match="no texts"):
        analyze_attention(model, ["", " "])
    with pytest.raises(UsageError, match="max_texts"):
        analyze_attention(model, TEXTS, max_texts=0)


@pytest.mark.slow
def test_pictures_hold_any_text(tmp_path: Path) -> None:
    """Text of data is neither markup nor mathematics, and the same data gives the same bytes."""
    view = view_attention(model_of("bert"), "a <b> & $x_1$ \x1b[31m old")
    view.draw(tmp_path / "a.svg"), view.draw(tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    tree = ET.parse(tmp_path / "a.svg")
    texts = {"".join(node.itertext()).strip() for node in tree.iter("{http://www.w3.org/2000/svg}text")}
    assert {*view.tokens} & {"<", "&", "$"} <= texts
    view.draw(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"must end in \.svg or \.png"):
        view.draw(tmp_path / "a.jpg")


@pytest.mark.slow
def test_the_picture_of_heads_has_a_letter_for_each(tmp_path: Path) -> None:
    found = analyze_attention(model_of("t5"), TEXTS)
    tree = ET.parse(found.draw(tmp_path / "heads.svg"))
    texts = ["".join(node.itertext()).strip() for node in tree.iter("{http://www.w3.org/2000/svg}text")]
    heads = [str(name) for classes in found.classes.values() for name in classes.ravel()]
    for name in {*heads}:
        assert texts.count(LETTERS[name]) == heads.count(name) + 1  # and one in the legend
    assert "cross heads" in texts


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    pt.save(model_of("bert"), folder / "model")
    pt.save(model_of("ulmfit"), folder / "recurrent")
    (folder / "texts.txt").write_text("\n".join(TEXTS))
    return folder


@pytest.mark.slow
def test_on_the_command_line(saved: Path, capsys: Capture) -> None:
    model, texts = str(saved / "model"), str(saved / "texts.txt")
    assert main(["analyze", "attention", model, "--input", texts, "--out", str(saved / "out")]) == 0
    shown = " ".join(capsys.readouterr().out.split())  # lines are broken after the width of the path
    assert "layers x heads" in shown and "at least 0.3 beyond uniform" in shown
    data = json.loads((saved / "out" / "attention.json").read_text())
    assert (saved / "out" / "attention.svg").is_file() and len(data["heads"]) == 8
    assert main(["analyze", "attention", model, "--text", TEXTS[0], "--head", "2", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["head"] == 2 and printed["layer"] == 2 and len(printed["weights"]) == len(printed["tokens"])


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["recurrent"], 2, "no attention weights"),
        (["model", "--layer", "1"], 2, "--layer needs a text"),
        (["model", "--text", "a", "--head", "1", "--mean"], 2, "exclude each other"),
        (["model", "--text", "a", "--input", "x"], 2, "exclude each other"),
        (["model", "--text", "a", "--texts", "3"], 2, "--texts"),
        (["model", "--text", "a", "--length", "9"], 2, "--length"),
        (["model", "--text", "a", "--threshold", "0.2"], 2, "--threshold"),
        (["model", "--text", "a", "--part", "top"], 2, "must be encoder, decoder or cross"),
        (["model", "--out", "a.pdf"], 2, "a directory, or a file that ends in .svg"),
        (["model", "--input", "none.txt"], 3, "no such file"),
        (["nothing"], 4, "no such directory"),
    ],
)
def test_mistakes_are_one_line(words: list[str], code: int, message: str, saved: Path, capsys: Capture) -> None:
    name, *rest = words
    assert main(["--quiet", "analyze", "attention", str(saved / name), *rest]) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.slow
def test_adapted_models_are_analyzed_with_their_adapter(tmp_path: Path) -> None:
    """A learned prefix takes attention from the text, and positions; a tuned prompt is refused."""
    import copy

    base = model_of("bert")
    model = copy.deepcopy(base)
    pt.add_adapter(model, pt.PrefixTuning(count=5))
    found = analyze_attention(model, TEXTS)
    assert found.texts == len(TEXTS) and (found.entropy["encoder"] <= 1).all()
    assert view_attention(model, "a cat").weights.sum(-1).max() < 1
    model = copy.deepcopy(base)
    pt.add_adapter(model, pt.PromptTuning(count=5))
    with pytest.raises(UsageError, match="tuned prompt"):
        analyze_attention(model, TEXTS)
