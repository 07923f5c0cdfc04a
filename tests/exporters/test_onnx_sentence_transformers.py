"""The ONNX backend of sentence-transformers reads exported embedding models, in an environment of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune.inference.sentence_modules import build_encoder, write_modules
from pretune.models import catalog
from pretune.text.tokenizer.training import train
from tests.contracts.tiny import rough

pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
PACKAGES = "optimum optimum-onnx transformers==4.57.3 huggingface-hub<1.0 tokenizers<0.23 sentence-transformers<6"
MORE = "requests urllib3 idna certifi charset-normalizer datasets==4.4.1 httpx httpcore h11 anyio sniffio"
TEXTS = ["the cat sat on the mat", "a dog", "the dog lay on a sofa in the house"]
SCRIPT = """
import json, sys
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], backend="onnx", device="cpu")
print(json.dumps([model.encode(json.loads(sys.argv[2])).tolist(), type(model[0].auto_model).__name__]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_sentence_transformers(pooling: str, tmp_path: Path) -> None:
    """Vectors equal those of `pt.embed`. $PRETUNE_OPTIMUM is a folder of packages, or pip fills one."""
    folder = os.environ.get("PRETUNE_OPTIMUM") or str(tmp_path / "packages")
    if not Path(folder).exists():
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
        if subprocess.run([*install, *PACKAGES.split(), *MORE.split()], capture_output=True).returncode:
            pytest.skip("optimum and sentence-transformers cannot be installed here")
    tokenizer = train("wordpiece", TEXTS * 4, vocab=120, lowercase=True)
    model = rough(catalog.build("bert-tiny", width=16, depth=2, heads=2, vocab=tokenizer.vocab, positions=64)).eval()
    model.assets.files = tokenizer.build_files()
    model.assets.modules = write_modules(build_encoder(model, pooling=pooling, normalise=True))
    pt.save(model, tmp_path / "model")
    pt.export(tmp_path / "model", to="onnx", out=tmp_path / "out")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "out"), json.dumps(TEXTS)]
    result = subprocess.run(command, env={**os.environ, "PYTHONPATH": folder}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    vectors, name = json.loads(result.stdout.splitlines()[-1])
    assert name.startswith("ORTModel")
    expected = torch.as_tensor(pt.embed(pt.load(tmp_path / "model"), TEXTS))
    torch.testing.assert_close(torch.tensor(vectors), expected.float(), rtol=0, atol=1e-5)
