"""ONNX directories are read by optimum, which needs an older transformers: in an environment of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune.adaptation.adapted import add_head
from pretune.exporters.onnx.export import write_onnx
from pretune.models import catalog
from tests.contracts.tiny import rough

pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
PACKAGES = "optimum optimum-onnx transformers==4.57.3 huggingface-hub<1.0 tokenizers<0.23 requests urllib3 idna certifi"
SCRIPT = """
import json, sys, torch
from optimum.onnxruntime import ORTModelForCausalLM, ORTModelForSeq2SeqLM, ORTModelForSequenceClassification
ids = {"input_ids": torch.tensor([[4, 5, 6]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
label = ORTModelForSequenceClassification.from_pretrained(sys.argv[1] + "/bert")(**ids).logits
decoder = ORTModelForCausalLM.from_pretrained(sys.argv[1] + "/gpt2")
text = decoder.generate(**ids, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
pair = ORTModelForSeq2SeqLM.from_pretrained(sys.argv[1] + "/t5")(**ids, decoder_input_ids=torch.tensor([[0, 3]])).logits
print(json.dumps([label.tolist(), text.tolist(), pair.tolist()]))
"""


@pytest.mark.slow
@torch.no_grad()
def test_optimum(tmp_path: Path) -> None:
    """The environment is $PRETUNE_OPTIMUM, a folder of packages, or one that pip fills here."""
    folder = os.environ.get("PRETUNE_OPTIMUM") or str(tmp_path / "packages")
    if not Path(folder).exists():
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
        if subprocess.run([*install, *PACKAGES.split(), "charset-normalizer"], capture_output=True).returncode:
            pytest.skip("optimum cannot be installed here")
    small = {"width": 16, "depth": 2, "heads": 2, "vocab": 30}
    bert = add_head(rough(catalog.build("bert-tiny", **small)), "classification", labels=["a", "b"]).eval()
    gpt2, t5 = (rough(catalog.build(name, **small)).eval() for name in ("gpt2-small", "t5-small"))
    for name, model in (("bert", bert), ("gpt2", gpt2), ("t5", t5)):
        write_onnx(model, tmp_path / name)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    result = subprocess.run(command, env={**os.environ, "PYTHONPATH": folder}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    label, text, pair = json.loads(result.stdout.splitlines()[-1])
    torch.testing.assert_close(torch.tensor(label), bert(pt.batch([[4, 5, 6]])), rtol=0, atol=1e-4)
    tokens = [4, 5, 6]
    while len(tokens) < 11:
        tokens.append(int(gpt2(pt.batch([tokens])).logits[-1].argmax()))
    assert text == [tokens]
    logits = t5(pt.batch(source=[[4, 5, 6]], target=[[0, 3]])).logits
    torch.testing.assert_close(torch.tensor(pair)[0], logits, rtol=0, atol=1e-4)
