"""Probes where the answer is known: what is in the states is read, what is random is only memorized."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.analysis import layer_probes
from pretune.analysis.layer_probes import analyze_layers, extract_features, fit_mix
from pretune.analysis.probe_tasks import (
    ProbeData,
    ProbeItem,
    _build_pairs,
    build_probe_data,
    draw_control_labels,
)
from pretune.cli import main
from pretune.core.errors import DataError, UsageError
from pretune.inference.text_model import get_tokenizer
from pretune.tasks.example import Example
from tests.analysis.models import SHAPES, TEXTS, model_of
from tests.selection import keep_quick

Capture = pytest.CaptureFixture[str]
WORDS = ["old", "house", "river", "cat", "wind", "sea", "boat", "song", "birds", "late"]


def write_conllu(folder: Path, sentences: int = 60) -> Path:
    """Sentences in which a word's tag is known from its spelling."""
    rng = np.random.default_rng(0)
    tags = ("NOUN", "VERB", "ADJ")
    (folder / "ud_ewt").mkdir(parents=True)
    for split in ("train", "dev", "test"):
        blocks = []
        for _ in range(sentences):
            words = [WORDS[i] for i in rng.integers(0, len(WORDS), rng.integers(2, 5))]
            cells = [(word, tags[WORDS.index(word) % 3]) for word in words]
            lines = [f"{n}\t{word}\t_\t{tag}\t_\t_\t0\t_\t_\t_" for n, (word, tag) in enumerate(cells, 1)]
            blocks.append("\n".join(lines))
        (folder / "ud_ewt" / f"en_ewt-ud-{split}.conllu").write_text("\n\n".join(blocks) + "\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("family", SHAPES)
def test_a_property_of_words_is_read_at_every_layer(family: str, tmp_path: Path) -> None:
    found = analyze_layers(model_of(family), ["pos", "length"], data=write_conllu(tmp_path), examples=150, seeds=2)
    depth = (model_of(family).spec.encoder or model_of(family).spec.decoder).depth
    pos, length = found.tasks
    assert [score.layer for score in pos.layers] == [*range(depth + 1)] and pos.labels == ["ADJ", "NOUN", "VERB"]
    assert pos.layers[0].accuracy > 0.9 > 0.6 > pos.majority  # a word has one tag
    assert all(score.accuracy_std is not None for score in pos.layers)
    for probe in found.tasks:
        for score in probe.layers:
            assert score.selectivity == pytest.approx(score.accuracy - score.control)
        assert probe.mix is None or sum(probe.mix.weights) == pytest.approx(1)
    assert 30 <= length.train <= 40 and abs(length.train - 2 * length.test) <= 2  # a third is for testing
    assert found.to_rows()[0]["task"] == "pos"


def test_selectivity_is_that_of_known_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """States that are the label have high selectivity; states that are the word's identity have none."""
    rng = np.random.default_rng(0)
    types = [f"w{i}" for i in range(40)]
    label_of = {kind: str(i % 4) for i, kind in enumerate(types)}
    drawn = [types[i] for i in rng.integers(0, 40, 900)]
    items = [ProbeItem(((0, (0, 1)),), label_of[kind], kind) for kind in drawn]
    data = ProbeData("pos", ["x"], items[:600], items[600:], "made")
    labels = np.eye(4)[[int(item.label) for item in items]] + 0.1 * rng.normal(size=(900, 4))
    identity = np.eye(40)[[types.index(item.type) for item in items]]
    features = [np.hstack([labels, np.zeros((900, 36))]).astype(np.float32), identity.astype(np.float32)]
    monkeypatch.setattr(layer_probes, "build_probe_data", lambda *_, **__: data)
    monkeypatch.setattr(layer_probes, "extract_features", lambda *_: (features, data.train, data.test))
    probe = layer_probes._probe_task(None, "pos", 600, 1, None, None, lambda *_: None)  # type: ignore[arg-type]
    by_label, by_identity = probe.layers
    assert by_label.accuracy > 0.98 and by_label.selectivity > 0.4
    assert by_identity.accuracy > 0.98 and abs(by_identity.selectivity) < 0.03  # the control is as easy to memorize


def test_control_labels_belong_to_types() -> None:
    items = [ProbeItem((), "a", f"w{i % 200}") for i in range(1000)]
    labels = np.array([0] * 700 + [1] * 300)
    first, again, other = (draw_control_labels(items, labels, seed) for seed in (0, 0, 1))
    assert first == again != other and len(first) == 200
    assert np.mean([*first.values()]) == pytest.approx(0.3, abs=0.1)


def test_the_mix_finds_the_layer_of_the_label() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    layers = [rng.normal(size=(300, 8)).astype(np.float32) for _ in range(4)]
    layers[2][:, :3] += 3 * np.eye(3, dtype=np.float32)[labels]
    mix = fit_mix(layers, labels[:200], labels[200:], 3, 0)
    assert int(np.argmax(mix.weights)) == 2 and mix.weights[2] > 0.6 and mix.accuracy > 0.9


@pytest.mark.parametrize("family", keep_quick(SHAPES, "bert"))
def test_states_by_definition(family: str) -> None:
    """The mean over the tokens of a span, each text read by itself."""
    model = model_of(family)
    tokenizer = get_tokenizer(model)
    texts = ["The old house.", "A cat!", "a very old river", "no", "It was late"]  # none is truncated
    spans = [[(0, 3), (4, 7)], [(0, 5)], [(7, 10)], [], [(0, 2), (7, 11)]]
    items = [ProbeItem(((text, span),), "a", "") for text, inner in enumerate(spans) for span in inner]
    features, train, test = extract_features(model, ProbeData("pos", texts, items[:4], items[4:], ""))
    assert len(train) == 4 and len(test) == 2
    for row, item in enumerate(items):
        ((text, (start, end)),) = item.spans
        found = tokenizer.encode_batch([texts[text]])
        laid = tokenizer.template.apply(found[0])
        places = np.flatnonzero(~laid.is_special)[(found.starts >= start) & (found.starts < end)]
        batch = pt.batch([laid.ids])
        if model.spec.is_encoder_decoder:
            batch = pt.batch(source=[laid.ids], target=[[0]])
        with torch.no_grad():
            output = model(batch, hidden=True)
        for layer, hidden in enumerate((output.source or output).hidden):
            np.testing.assert_allclose(features[layer][row], hidden[places].mean(0), atol=1e-5)


def test_the_sense_of_a_word_is_of_its_two_states() -> None:
    texts: list[str] = []
    example = Example(text="the *bank* of it", pair="a *bank*.", label=1, facts={"word": "Bank"}, id="1")
    (item,) = _build_pairs("sense", [example], texts, 5, 0)
    assert texts == ["the bank of it", "a bank."] and item.type == "bank" and item.label == "1"
    assert [texts[text][slice(*span)] for text, span in item.spans] == ["bank", "bank"]
    texts += ["the sea, the sea."]
    items = [item, ProbeItem(((2, (0, 3)), (2, (9, 12))), "0", "the")]
    model = model_of("bert")
    features, _, _ = extract_features(model, ProbeData("sense", texts, items[:1], items[1:], ""))
    assert features[0].shape == (2, 2 * model.spec.width)
    np.testing.assert_array_less(-1e-6, features[0][:, : model.spec.width])  # |u - v|


def test_missing_data_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.delenv("PRETUNE_DATA", raising=False)
    pt.save(model_of("bert"), tmp_path / "model")
    command = ["--quiet", "analyze", "layers", str(tmp_path / "model")]
    for task, name in (("pos", "ud_ewt"), ("entity", "conll2003"), ("sense", "wic")):
        assert main([*command, "--task", task, "--data", str(tmp_path / "none")]) == 3
        error = capsys.readouterr().err
        assert f"task '{name}'" in error and str(tmp_path / "none" / name) in error and error.count("\n") == 1
    assert main([*command, "--task", "poss"]) == 2
    assert "did you mean 'pos'" in capsys.readouterr().err
    with pytest.raises(UsageError, match="examples must be >= 10"):
        analyze_layers(model_of("bert"), ["length"], texts=TEXTS, examples=3)
    with pytest.raises(DataError, match="too few examples"):
        analyze_layers(model_of("bert"), ["length"], texts=TEXTS[:2], examples=10)
    with pytest.raises(DataError, match="too few examples"):
        build_probe_data("length", 10, seed=0, texts=[])


@pytest.mark.slow
def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.delenv("PRETUNE_DATA", raising=False)
    data: Any = write_conllu(tmp_path / "data")
    pt.save(model_of("bert"), tmp_path / "model")
    command = ["--quiet", "analyze", "layers", str(tmp_path / "model"), "--data", str(data), "--examples", "60"]
    assert main([*command, "--out", str(tmp_path / "layers.svg")]) == 0
    shown = capsys.readouterr().out
    assert "pos (60 training and 30 test items of ud_ewt" in shown and "selectivity" in shown and "entity" not in shown
    assert main([*command, "--task", "pos", "--json"]) == 0
    first = capsys.readouterr().out
    assert main([*command, "--task", "pos", "--json"]) == 0
    assert capsys.readouterr().out == first and len(json.loads(first)["tasks"]) == 1
