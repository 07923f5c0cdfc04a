"""ONNX files, run by onnxruntime: their outputs are those of the model."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead, add_head
from pretune.cli import main
from pretune.core.errors import CheckpointError, UsageError
from pretune.exporters.onnx import export as onnx_export
from pretune.exporters.onnx.export import write_onnx
from pretune.inference.sentence_modules import build_encoder, write_modules
from pretune.models import catalog
from pretune.models.model import LanguageModel
from tests.contracts.tiny import CASES, RECURRENT, model_of, rough
from tests.selection import keep_quick

Capture = pytest.CaptureFixture[str]
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
SMALL = {"width": 16, "depth": 2, "heads": 2, "vocab": 30}
SEQUENCES = [[4, 9, 2, 7, 7], [3, 8], [5, 6, 1, 2, 9, 4, 8]]


def open_session(folder: Path, name: str = "model") -> Any:
    return onnxruntime.InferenceSession(folder / "onnx" / f"{name}.onnx", providers=["CPUExecutionProvider"])


def pad(sequences: list[list[int]]) -> dict[str, Any]:
    """Rows with zeros on the right, and their mask."""
    length = max(map(len, sequences))
    rows = np.array([[*row, *[0] * (length - len(row))] for row in sequences])
    return {
        "input_ids": rows,
        "attention_mask": np.array([[1] * len(r) + [0] * (length - len(r)) for r in sequences]),
    }


def head_on(model: LanguageModel, kind: Any) -> ModelWithHead:
    """A head with rough weights, on a model that is left as it is."""
    labels = ["a", "b", "c"] if kind in ("classification", "multi_label", "tagging", "dependency") else None
    headed = add_head(model, kind, labels=labels).eval()
    assert headed.head is not None
    for parameter in headed.head.parameters():
        nn.init.normal_(parameter, std=0.3)
    return headed


@torch.no_grad()
def test_a_classifier(capsys: Capture, tmp_path: Path) -> None:
    model = head_on(rough(catalog.build("bert-tiny", **SMALL, positions=16)), "classification")
    pt.save(model, tmp_path / "run")
    out = tmp_path / "out"
    assert main(["export", str(tmp_path / "run"), "--to", "onnx", "--out", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["class"] == "BertForSequenceClassification" and facts["files"] == ["onnx/model.onnx"]
    assert 0 < facts["difference"] < 1e-5
    assert not [*out.rglob("*.safetensors")]
    assert json.loads((out / "config.json").read_text())["id2label"] == {"0": "a", "1": "b", "2": "c"}
    session = open_session(out)
    assert [entry.name for entry in session.get_inputs()] == ["input_ids", "attention_mask", "token_type_ids"]
    for sequences in (SEQUENCES, SEQUENCES[:1], [[5] * 16]):
        inputs = pad(sequences)
        (logits,) = session.run(["logits"], inputs | {"token_type_ids": np.zeros_like(inputs["input_ids"])})
        torch.testing.assert_close(torch.from_numpy(logits), model(pt.batch(sequences)), rtol=0, atol=1e-4)


@torch.no_grad()
def test_a_decoder_with_its_cache(tmp_path: Path) -> None:
    """Tokens one by one after a prompt, and two prompts of unequal length with padding on the left."""
    model = model_of("llama3-8b")
    assert write_onnx(model, tmp_path / "out").difference < 1e-5
    session = open_session(tmp_path / "out")
    layers = model.spec.depth
    _, kv_heads, head = model.spec.first_block.attention.resolve_shape(width=model.spec.width)
    rows = np.array([[0, 0, 5, 9, 4, 3], [8, 1, 7, 2, 6, 3]])
    mask = np.array([[0, 0, 1, 1, 1, 1], [1] * 6])
    positions = np.array([[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]])
    past = {
        f"past_key_values.{i}.{part}": np.zeros((2, kv_heads, 0, head), np.float32)
        for i in range(layers)
        for part in ("key", "value")
    }
    outputs, start = [], 0
    for end in (4, 5, 6):
        columns = slice(start, end)
        inputs = {"input_ids": rows[:, columns], "attention_mask": mask[:, :end], "position_ids": positions[:, columns]}
        logits, *present = session.run(None, inputs | past)
        past = dict(zip(past, present, strict=True))
        outputs.append(logits)
        start = end
    logits = torch.from_numpy(np.concatenate(outputs, axis=1))
    batch = pt.batch([rows[0, 2:].tolist(), rows[1].tolist()])
    for theirs, ours in zip((logits[0, 2:], logits[1]), batch.split(model(batch).logits), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", keep_quick([name for name in CASES if name not in RECURRENT]))
def test_families(name: str, tmp_path: Path) -> None:
    """The check of the export is passed far below its limit, padded on both sides, in steps, in other sizes."""
    files = write_onnx(model_of(name), tmp_path / "out")
    assert files.difference < 1e-5
    assert len(files.names) == (3 if CASES[name].is_encoder_decoder else 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "multi_label", "regression", "choice", "tagging", "span"])
@pytest.mark.parametrize(
    "name", ["bert-base", "modernbert-base", "gpt2-small", "bart-base", "xlnet-base", "albert-base"]
)
def test_heads(name: str, kind: Any, tmp_path: Path) -> None:
    assert write_onnx(head_on(model_of(name), kind), tmp_path / "out").difference < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last", "mean_sqrt", "weighted", "cls+max+mean"])
@torch.no_grad()
def test_embeddings(pooling: str, tmp_path: Path) -> None:
    model = rough(catalog.build("bert-tiny", **SMALL, positions=16)).eval()
    encoder = build_encoder(model, pooling=pooling, normalise=True)
    model.assets.modules = write_modules(encoder)
    pt.save(model, tmp_path / "model")
    pt.export(tmp_path / "model", to="onnx", out=tmp_path / "out")
    assert {"modules.json", "1_Pooling", "2_Normalize"} <= {path.name for path in (tmp_path / "out").iterdir()}
    inputs = pad(SEQUENCES)
    inputs["token_type_ids"] = np.zeros_like(inputs["input_ids"])
    states, vectors = open_session(tmp_path / "out").run(["last_hidden_state", "sentence_embedding"], inputs)
    batch = pt.batch(SEQUENCES)
    expected = encoder(batch).index_select(0, batch.find_sequence_cells())
    torch.testing.assert_close(torch.from_numpy(vectors), expected, rtol=0, atol=1e-5)
    assert states.shape == (3, 7, 16)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-base", "llama3-8b", "t5-base"])
def test_int8(name: str, tmp_path: Path) -> None:
    files = write_onnx(model_of(name), tmp_path / "out", quantize="int8")
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "out" / "onnx").iterdir()}
    assert all(sizes[f.replace(".onnx", "_quantized.onnx")] < size for f, size in sizes.items() if "quant" not in f)
    assert files.quantized_difference is not None and 1e-4 < files.quantized_difference < 0.3
    # Without int8, the files of the earlier export disappear.
    assert not any("quantized" in file for file in write_onnx(model_of(name), tmp_path / "out", overwrite=True).names)
    assert not [*(tmp_path / "out" / "onnx").glob("*quantized*")]


@pytest.mark.slow
@torch.no_grad()
def test_long_rows(tmp_path: Path) -> None:
    """Lengths at which the model itself computes in another way: products of q, k and v in one, windows in use."""
    model = rough(catalog.build("modernbert-base", **SMALL, hidden=20)).eval()
    write_onnx(model, tmp_path / "out")
    sequences = [torch.randint(0, 30, (n,)).tolist() for n in (700, 3)]
    (logits,) = open_session(tmp_path / "out").run(["logits"], pad(sequences))
    batch = pt.batch(sequences)
    for row, ours in zip(torch.from_numpy(logits), batch.split(model(batch).logits), strict=True):
        torch.testing.assert_close(row[: len(ours)], ours, rtol=0, atol=1e-4)


def test_a_failed_check_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_export, "_trace", lambda graph, path: path.write_bytes(b"0"))
    monkeypatch.setattr(onnx_export, "_open_sessions", lambda *arguments: {})
    for difference in (2e-4, float("nan")):
        monkeypatch.setattr(onnx_export, "measure_difference", lambda *arguments, value=difference: value)
        with pytest.raises(CheckpointError, match="nothing was written"):
            write_onnx(model_of("bert-base"), tmp_path / "new" / "out")
        assert not [*tmp_path.iterdir()]


@torch.no_grad()
def test_the_check_sees_a_wrong_graph() -> None:
    """Outputs of other weights differ by more than the check allows; sessions are those of another model."""

    class Session:
        def run(self, names: None, inputs: dict[str, Any]) -> list[Any]:
            rows = inputs["input_ids"]
            return [np.zeros((*rows.shape, CASES["roberta-base"].vocab), np.float32)]

    assert onnx_export.measure_difference(model_of("roberta-base"), {"model": Session()}) > 0.1


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("ulmfit-original", None, "recurrent"),
        ("elmo-small", None, "recurrent"),
        ("bert-base", "dependency", "'dependency'"),
        ("bert-base", "coreference", "'coreference'"),
    ],
)
def test_models_without_a_form_in_onnx(name: str, kind: Any, message: str, tmp_path: Path) -> None:
    model = model_of(name) if kind is None else head_on(model_of(name), kind)
    with pytest.raises(UsageError, match=message):
        write_onnx(model, tmp_path / "out")
    assert not [*tmp_path.iterdir()]


def test_refused_options(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pt.save(catalog.build("bert-tiny", **SMALL), tmp_path / "model")
    arguments = ["export", str(tmp_path / "model"), "--out", str(tmp_path / "out"), "--to"]

    def refuse(*more: str) -> str:
        assert main([*arguments, *more]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and not (tmp_path / "out").exists()
        return err

    assert "float16" in refuse("onnx", "--dtype", "float16")
    assert "ONNX and GGUF only" in refuse("hf", "--quantize", "int8")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "pip install 'pretune[onnx]'" in refuse("onnx")
