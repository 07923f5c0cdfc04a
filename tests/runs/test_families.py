"""Every family with a paper's way to train it is trained a little, and what it leaves is read again."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.core.errors import UsageError
from pretune.models.families import FAMILIES
from tests.runs import tasked
from tests.runs.small import FAST, Prepared, shrunk
from tests.selection import keep_quick

TRAINED = [name for name in FAMILIES if FAMILIES.get(name).training]

THEIRS = {
    "bert": "AutoModelForPreTraining",
    "roberta": "AutoModelForMaskedLM",
    "electra": "AutoModelForPreTraining",
    "albert": "AutoModelForPreTraining",
    "spanbert": "AutoModelForMaskedLM",
    "distilbert": "AutoModelForMaskedLM",
    "tinybert": "AutoModelForPreTraining",
    "gpt2": "AutoModelForCausalLM",
    "llama3": "AutoModelForCausalLM",
    "opt": "AutoModelForCausalLM",
    "t5": "AutoModelForSeq2SeqLM",
    "bart": "AutoModelForSeq2SeqLM",
}
"""With what transformers reads some of them."""


@pytest.mark.parametrize("name", keep_quick(TRAINED, "bert", "electra", "spanbert", "distilbert", "gpt2", "t5"))
def test_three_steps(name: str, prepared: Prepared, tmp_path: Path) -> None:
    paper = FAMILIES.get(name).training
    assert paper is not None
    kind, style, _ = paper.tokenizer
    run = pt.pretrain(
        name, data=prepared(kind, style), out=tmp_path / "run", steps=3, overrides={**shrunk(name), **FAST}
    )
    assert run.summary["steps"] == 3 and run.summary["skipped"] == 0
    told = json.loads((tmp_path / "run/run.json").read_text())
    assert told["objective"]["kind"] == paper.objective["kind"]
    is_short = "plan" in told["environment"]  # with settings of short runs
    assert told["train"]["optimizer"]["kind"] == ("muon" if is_short else paper.optimizer["kind"])
    model = pt.load(run)
    assert model.spec.family == name and model.tokenizer is not None
    assert all(torch.isfinite(p).all() for p in model.parameters())
    if name in THEIRS:
        agree(model, tmp_path / "run", THEIRS[name])


def agree(model: Any, run: Path, auto: str) -> None:
    """A text has the same tokens and the same logits for transformers, which is told nothing but where the run is."""
    transformers = pytest.importorskip("transformers")
    text = "Nobody knew who had lived there."
    ids = transformers.AutoTokenizer.from_pretrained(run)(text)["input_ids"]
    assert ids == model.tokenizer.encode(text)
    theirs = getattr(transformers, auto).from_pretrained(run).eval()
    model.eval()
    more: dict[str, Any] = {}
    batch = pt.batch([ids])
    if model.spec.is_encoder_decoder:
        start = theirs.config.decoder_start_token_id
        assert start is not None
        read = [start, *ids[:4]]
        batch, more = pt.batch(source=[ids], target=[read]), {"decoder_input_ids": torch.tensor([read])}
    with torch.no_grad():
        said = theirs(torch.tensor([ids]), **more)
        mine = model.detector(model.states(batch)) if model.detector is not None else model(batch).logits
    found = said.prediction_logits if hasattr(said, "prediction_logits") else said.logits
    torch.testing.assert_close(mine, found[0], rtol=1e-4, atol=1e-5)


def test_the_parts_of_a_pair(prepared: Prepared, tmp_path: Path) -> None:
    """The directory is the discriminator, with the generator inside; both are models for transformers."""
    transformers = pytest.importorskip("transformers")
    run = pt.pretrain(
        "electra-small", data=prepared(), out=tmp_path / "run", steps=2, overrides={**shrunk("electra-small"), **FAST}
    )
    inner = pt.load(tmp_path / "run/generator")
    agree(inner, tmp_path / "run/generator", "AutoModelForMaskedLM")
    whole = pt.load(run)
    assert torch.equal(whole.tokens.weight, inner.tokens.weight)
    assert type(transformers.AutoModel.from_pretrained(run)).__name__ == "ElectraModel"


@pytest.mark.parametrize(
    ("kind", "style", "pad"), [("wordpiece", "cls-sep", 0), ("bpe", "s-mask", 1), ("bpe", "endoftext", None)]
)
def test_roberta_with_tokenizers_of_other_families(kind: str, style: str, pad: int | None, tmp_path: Path) -> None:
    """Positions follow the padding id; without one, no class of transformers computes the same."""
    folder = tasked.make_base(tmp_path, "roberta", kind=kind, style=style, positions=16)
    model = pt.load(folder)
    assert (model.spec.special.pad, model.spec.max_length) == (pad, 16)
    if pad is None:
        with pytest.raises(UsageError, match=r"pad_token_id.*null"):
            pt.export(folder, out=tmp_path / "out")
        return
    pt.export(folder, out=tmp_path / "out")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "out").eval()
    tokens = [[5, 6, 7, 8], [*range(9, 25)]]
    ids = torch.tensor([row + [pad] * (16 - len(row)) for row in tokens])
    with torch.no_grad():
        logits = theirs(ids, attention_mask=(ids != pad).long()).logits
        batch = pt.batch(tokens)
        for ours, wanted, row in zip(batch.split(model(batch).logits), logits, tokens, strict=True):
            torch.testing.assert_close(ours, wanted[: len(row)], rtol=0, atol=1e-5)
