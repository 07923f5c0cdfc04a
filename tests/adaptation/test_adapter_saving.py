"""`pt.save` of a model with an adapter: a directory that `pt.load` and peft read, with the head and the right base."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.methods import METHODS
from pretune.adaptation.peft.base import PeftMethod
from pretune.core.errors import UsageError
from pretune.models import catalog
from pretune.models.verify import verify
from tests.contracts.tiny import rough

SMALL = {"width": 16, "depth": 2, "heads": 2, "vocab": 30, "dropout": 0.0}
ADAPTERS = [name for name in METHODS if isinstance(METHODS.get(name)(), PeftMethod)]
TOKENS = [[3, 9, 4], [5, 6]]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    pt.save(rough(catalog.build("bert-tiny", **SMALL)), tmp_path / "base")
    return tmp_path / "base"


def adapted(base: Path, method: str = "lora", head: str | None = "classification") -> Any:
    model: Any = pt.load(base)
    if head is not None:
        model = pt.add_head(model, head, labels=["bad", "good"])
    pt.add_adapter(model, METHODS.get(method)())
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.trainable_parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


@torch.no_grad()
def outputs(model: Any) -> torch.Tensor:
    out = model(pt.batch(TOKENS))
    return out if isinstance(model, ModelWithHead) else out.logits


@pytest.mark.parametrize("method", ADAPTERS)
def test_every_method_is_read_back(base: Path, tmp_path: Path, method: str) -> None:
    model = adapted(base, method)
    pt.save(model, tmp_path / "saved")
    loaded = pt.load(tmp_path / "saved")
    if method == "prompt":  # its batches have slots
        assert torch.equal(loaded.model.prompt.table, model.model.prompt.table)
        return
    torch.testing.assert_close(outputs(loaded), outputs(model), rtol=0, atol=1e-6)
    assert loaded.spec == model.spec
    pt.save(loaded, tmp_path / "again")
    torch.testing.assert_close(outputs(pt.load(tmp_path / "again")), outputs(model), rtol=0, atol=1e-6)


@pytest.mark.parametrize("head", ["classification", None])
def test_an_unchanged_base_is_referred_to(base: Path, tmp_path: Path, head: str | None) -> None:
    pt.save(adapted(base, head=head), tmp_path / "saved")
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= names and "base" not in names
    assert ("head.safetensors" in names) == (head is not None)
    peft_config = json.loads((tmp_path / "saved/adapter_config.json").read_text())
    assert peft_config["base_model_name_or_path"] == str(base.resolve())


@pytest.mark.parametrize("change", ["weights", "no directory"])
def test_a_base_of_no_directory_is_saved_too(base: Path, tmp_path: Path, change: str) -> None:
    model = adapted(base)
    if change == "weights":
        with torch.no_grad():
            model.model.encoder[0].attention.q.bias[0] += 1e-3  # not in the samples of a fingerprint
    else:
        model.model.assets.directory = None
    pt.save(model, tmp_path / "saved")
    verify(tmp_path / "saved/base")
    (tmp_path / "saved").rename(tmp_path / "moved")
    loaded = pt.load(tmp_path / "moved")
    torch.testing.assert_close(outputs(loaded), outputs(model), rtol=0, atol=1e-6)
    pt.save(loaded, tmp_path / "moved", overwrite=True)  # its base stays
    torch.testing.assert_close(outputs(pt.load(tmp_path / "moved")), outputs(model), rtol=0, atol=1e-6)


def test_a_merged_model_is_saved_whole(base: Path, tmp_path: Path) -> None:
    model = adapted(base)
    wanted = outputs(model)
    model.model.peft_method.merge(model.model)
    pt.save(model, tmp_path / "saved")
    assert not (tmp_path / "saved/adapter_config.json").exists()
    torch.testing.assert_close(outputs(pt.load(tmp_path / "saved")), wanted, rtol=0, atol=1e-5)


def test_over_an_earlier_model(base: Path, tmp_path: Path) -> None:
    model = adapted(base)
    pt.save(pt.load(base), tmp_path / "saved")
    with pytest.raises(UsageError):
        pt.save(model, tmp_path / "saved")
    pt.save(model, tmp_path / "saved", overwrite=True)
    assert not (tmp_path / "saved/config.json").exists()
    torch.testing.assert_close(outputs(pt.load(tmp_path / "saved")), outputs(model), rtol=0, atol=1e-6)


def test_never_over_the_base(base: Path) -> None:
    before = {path.name: path.read_bytes() for path in base.iterdir()}
    with pytest.raises(UsageError, match="base"):
        pt.save(adapted(base), base, overwrite=True)
    assert {path.name: path.read_bytes() for path in base.iterdir()} == before


@pytest.mark.parametrize("changed", [False, True])
def test_peft_reads_it(base: Path, tmp_path: Path, changed: bool) -> None:
    """The class with a head in transformers, and peft's files on top: equal logits."""
    peft, tf = pytest.importorskip("peft"), pytest.importorskip("transformers")
    model = adapted(base)
    if changed:
        with torch.no_grad():
            model.model.tokens.weight += 0.1
    pt.save(model, tmp_path / "saved")
    place = json.loads((tmp_path / "saved/adapter_config.json").read_text())["base_model_name_or_path"]
    body = tf.BertForSequenceClassification.from_pretrained(place, num_labels=2, attn_implementation="eager")
    theirs = peft.PeftModel.from_pretrained(body, tmp_path / "saved").eval()
    with torch.no_grad():
        logits = torch.cat([theirs(input_ids=torch.tensor([tokens])).logits for tokens in TOKENS])
    torch.testing.assert_close(outputs(model), logits, rtol=0, atol=1e-5)
