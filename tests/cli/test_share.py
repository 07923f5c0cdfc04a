"""Fine-tuned runs are shared whole: `pretune export` keeps heads and merges adapters, `pretune verify` checks these."""

import json
from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune.adaptation import METHODS
from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.heads.sequence import Classification
from pretune.adaptation.methods import apply_method, save
from pretune.cli import main
from tests.conftest import Capture, run_command
from tests.runs import tasked

LABELS = ("bad", "good")
TEXTS = ["a lovely old sea.", "the dreadful wind"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.make_base(tmp_path_factory.mktemp("base"))


def tuned(base: Path, out: Path, name: str) -> Path:
    """A fine-tuned model as `pretune finetune` leaves it; its weights are stirred instead of trained."""
    model = adapt(pt.load(base), Classification(classes=2, labels=LABELS))
    method = METHODS.get(name)()
    names = apply_method(model, method)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path in names:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.1)
    save(model.eval(), method, out, base=base)
    return out


def answers(directory: Path) -> torch.Tensor:
    model = pt.load(directory)
    assert isinstance(model, ModelWithHead)
    ids = [model.tokenizer.encode(text) for text in TEXTS]
    with torch.no_grad():
        return model(pt.batch(ids))


@pytest.mark.parametrize("name", ["full", "lora", "bitfit"])
def test_an_export_answers_as_the_run_does(base: Path, tmp_path: Path, capsys: Capture, name: str) -> None:
    run, out = tuned(base, tmp_path / "run", name), tmp_path / "out"
    assert main(["export", str(run), "--to", "hf", "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: BertForSequenceClassification, ")
    assert json.loads((out / "config.json").read_text())["id2label"] == {"0": "bad", "1": "good"}
    torch.testing.assert_close(answers(out), answers(run), rtol=1e-5, atol=1e-5)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
    ids = pt.load(out).tokenizer.encode(TEXTS[0])
    with torch.no_grad():
        torch.testing.assert_close(theirs(torch.tensor([ids])).logits[0], answers(out)[0], rtol=1e-4, atol=1e-4)


def test_what_cannot_be_merged_is_told(base: Path, tmp_path: Path, capsys: Capture) -> None:
    run = tuned(base, tmp_path / "run", "prompt")
    assert main(["export", str(run), "--to", "hf", "--out", str(tmp_path / "out")]) == 2
    assert str(run) in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_an_adapter_is_verified(base: Path, tmp_path: Path, capsys: Capture) -> None:
    run = tuned(base, tmp_path / "run", "lora")
    lines = run_command(capsys, ["verify", str(run)]).out.splitlines()
    assert any("adapter.json" in line and "lora" in line and "'bert'" in line for line in lines)
    assert any(line.startswith("ok  values: ") for line in lines)
    file = run / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    for verb in (["verify", str(run)], ["export", str(run), "--to", "hf", "--out", str(tmp_path / "out")]):
        assert "adapter_model.safetensors" in run_command(capsys, verb, code=4).err
