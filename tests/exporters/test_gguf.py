"""GGUF files: read back by the package `gguf`, run by llama.cpp, and refused where it has no such model."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.adaptation.adapted import adapt
from pretune.adaptation.heads.sequence import Classification
from pretune.adaptation.heads.token import Generation
from pretune.adaptation.peft.lora import LoRA
from pretune.cli import main
from pretune.core.errors import UsageError
from pretune.exporters.gguf import write_gguf
from pretune.models import catalog
from pretune.models.families import FAMILIES
from pretune.models.model import LanguageModel, build
from pretune.nn.positions import BandedScaling, LinearScaling, Rotary
from pretune.text.tokenizer.training import train
from tests.contracts.tiny import rough

SMALL = {"width": 64, "depth": 2, "heads": 4, "kv_heads": 2, "hidden": 96}
TEXTS = ["the cat sat on the mat", "a dog lay on 12 sofas, naïvely"] * 4
LLAMA_CPP = """
import sys, json, numpy as np, llama_cpp
model = llama_cpp.Llama(sys.argv[1], n_ctx=64, n_batch=64, logits_all=True, verbose=False, n_threads=1)
tokens = json.loads(sys.argv[2])
model.eval(tokens)
text = model.tokenize("the cat sat naïvely, 12".encode(), add_bos=False, special=False)
print(json.dumps([model.scores[: len(tokens)].tolist(), text]))
"""


def build_model(**options: Any) -> LanguageModel:
    """Return a small random model with a byte-level BPE; its vocabulary has unused rows."""
    tokenizer = train("bpe", TEXTS, vocab=300, style="endoftext")
    spec = FAMILIES.get("llama3").build_spec(**{**SMALL, "vocab": tokenizer.vocab + 3, **options})
    model = rough(build(spec)).eval()
    model.assets.files = tokenizer.build_files()
    model.assets.tokenizer = tokenizer
    return model


def read(path: Path) -> Any:
    gguf = pytest.importorskip("gguf", reason="the package 'gguf' is not installed")
    return gguf.GGUFReader(path)


def test_file(tmp_path: Path) -> None:
    """Metadata, vocabulary and every weight, with the rows of queries and keys put back by a formula of our own."""
    model = build_model()
    pt.save(model, tmp_path / "model")
    arguments = ["export", str(tmp_path / "model"), "--to", "gguf", "--out", str(tmp_path / "out"), "--json"]
    assert main(arguments) == 0
    reader = read(tmp_path / "out/model.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    expected = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.context_length": 8192,
        "llama.rope.dimension_count": 16,
        "llama.rope.freq_base": 500000.0,
        "llama.vocab_size": model.spec.vocab,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.bos_token_id": model.tokenizer.special["bos"],
        "tokenizer.ggml.add_bos_token": False,
    }
    assert {name: fields[name] for name in expected} == expected
    assert fields["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    assert len(tokens) == len(kinds) == model.spec.vocab and kinds[-3:] == [5, 5, 5]
    assert tokens[model.tokenizer.special["eos"]] == "<|endoftext|>" and kinds[model.tokenizer.special["eos"]] == 3
    assert "h e" in fields["tokenizer.ggml.merges"]
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    weights = model.state_dict()
    assert len(tensors) == len(weights)
    np.testing.assert_array_equal(tensors["token_embd.weight"], weights["tokens.weight"])
    np.testing.assert_array_equal(tensors["output.weight"], weights["head.weight"])
    np.testing.assert_array_equal(tensors["blk.1.ffn_gate.weight"], weights["decoder.1.feedforward.gate.weight"])
    for name, heads in (("q", 4), ("k", 2)):
        ours = weights[f"decoder.1.attention.{name}.weight"].numpy()
        theirs = tensors[f"blk.1.attn_{name}.weight"]
        for head in range(heads):
            for pair in range(8):  # channels 2i and 2i + 1 there are i and i + 8 here
                np.testing.assert_array_equal(theirs[16 * head + 2 * pair], ours[16 * head + pair])
                np.testing.assert_array_equal(theirs[16 * head + 2 * pair + 1], ours[16 * head + pair + 8])


def test_a_tuned_decoder_is_a_language_model(tmp_path: Path) -> None:
    """Of instructions, preferences or rewards, as an adapter; a head is refused."""
    pt.save(build_model(), tmp_path / "base")
    model = adapt(pt.load(tmp_path / "base"), Generation())
    LoRA().apply(model.model)
    pt.save(model, tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), "--to", "gguf", "--out", str(tmp_path / "run.gguf")]) == 0
    assert pt.load(tmp_path / "run.gguf").spec.head == model.model.spec.head
    pt.save(adapt(build_model(), Classification(classes=2)), tmp_path / "classifier")
    assert main(["export", str(tmp_path / "classifier"), "--to", "gguf", "--out", str(tmp_path / "x.gguf")]) == 2


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "q8_0"])
def test_types(kind: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the package 'gguf' is not installed")
    model = build_model()
    write_gguf(model, tmp_path / "out", kind=kind)
    tensors = {tensor.name: tensor for tensor in read(tmp_path / "out/model.gguf").tensors}
    for theirs, ours in (
        ("output.weight", "head.weight"),
        ("blk.0.ffn_down.weight", "decoder.0.feedforward.down.weight"),
    ):
        weight = model.state_dict()[ours].numpy()
        values = gguf.quants.dequantize(tensors[theirs].data, tensors[theirs].tensor_type)
        assert tensors[theirs].tensor_type.name == {"float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}[kind]
        error = {"float16": 1e-3, "bfloat16": 8e-3, "q8_0": 1 / 127}[kind]
        assert np.abs(values - weight).max() <= error * np.abs(weight).max()
    if kind == "q8_0":  # the same bytes as those of the package
        packed = gguf.quants.quantize(model.state_dict()["head.weight"].numpy(), gguf.GGMLQuantizationType.Q8_0)
        np.testing.assert_array_equal(tensors["output.weight"].data, packed)
    assert tensors["output_norm.weight"].tensor_type.name == "F32"


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line and exit code 2; nothing is written."""
    pt.save(catalog.build("gpt2-small", width=16, depth=1, heads=2, vocab=30), tmp_path / "gpt2")
    assert main(["export", str(tmp_path / "gpt2"), "--to", "gguf", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "rotary" in error and not (tmp_path / "out").exists()
    small = {"width": 16, "depth": 1, "heads": 2, "vocab": 30}
    refused = {"olmo-1b": "RMSNorm", "mistral-7b": "attention.window", "bert-tiny": "head", "olmo2-7b": "differs in"}
    for name, message in refused.items():
        options = {"kv_heads": 2} if name == "mistral-7b" else {}
        with pytest.raises(UsageError, match=message):
            write_gguf(catalog.build(name, **small, **options), tmp_path / "out")
    model = build_model()
    model.assets.tokenizer = train("unigram", TEXTS, vocab=400)
    with pytest.raises(UsageError, match="Unigram"):
        write_gguf(model, tmp_path / "out")
    model = build_model()
    with torch.no_grad():
        model.state_dict()["head.weight"][0, 0] = 1e6
    with pytest.raises(UsageError, match="overflows"):
        write_gguf(model, tmp_path / "out", kind="float16")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("case", ["plain", "tied", "banded", "linear", "heads", "q8_0"])
@torch.no_grad()
def test_llama_cpp(case: str, tmp_path: Path) -> None:
    """Logits and tokens of llama.cpp. $PRETUNE_LLAMA_CPP is a folder with llama-cpp-python, which compiles for long."""
    folder = os.environ.get("PRETUNE_LLAMA_CPP")
    if folder is None and importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("llama-cpp-python is not installed; PRETUNE_LLAMA_CPP names a folder that has it")
    banded = Rotary(theta=10000.0, scaling=BandedScaling(factor=8.0, low=1.0, high=4.0, original=16))
    options: dict[str, dict[str, Any]] = {
        "tied": {"tied": True},
        "banded": {"position": banded},
        "linear": {"position": replace(banded, scaling=LinearScaling(factor=4.0))},
        "heads": {"heads": 2, "kv_heads": 2},
    }
    model = build_model(**options.get(case, {}))
    write_gguf(model, tmp_path / "out", kind="q8_0" if case == "q8_0" else "float32")
    tokens = [5, 70, 3, 100, 41, 200, 7, 8, 9, 120, 64, 33]
    command = [sys.executable, "-c", LLAMA_CPP, str(tmp_path / "out/model.gguf"), str(tokens)]
    variables = {**os.environ, "PYTHONPATH": folder or ""}
    result = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    logits, text = json.loads(result.stdout.splitlines()[-1])
    ours = model(pt.batch([tokens])).logits.numpy()
    # llama.cpp keeps past keys and values in float16.
    limit = 0.1 if case == "q8_0" else 5e-3
    assert np.abs(np.array(logits) - ours).max() <= limit * np.abs(ours).max()
    assert text == model.tokenizer.encode("the cat sat naïvely, 12")
