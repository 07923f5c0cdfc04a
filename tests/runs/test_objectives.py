"""Every objective trains a little, on every shape of model that it names, and what it leaves is read again."""

import json
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.core.errors import UsageError
from pretune.models.families import FAMILIES
from pretune.objectives import OBJECTIVES
from tests.runs.configs import build_pretrain_config
from tests.runs.small import FAST, Prepared, shrunk
from tests.selection import keep_quick

MODELS = {
    "encoder": "bert-tiny",
    "decoder": "gpt2",
    "encoder-decoder": "t5-small",
    "two-way": "gpt2",
    "two-stream": "xlnet",
    "generator-discriminator": "bert-tiny",
}
"""A model of each shape, or of the one that it is made of."""
STYLES = {
    "masked_seq2seq": ("wordpiece", "cls-sep"), "denoising": ("bpe", "s-mask"), "masked_next": ("bpe", "s-mask"),
}  # fmt: skip
"""Tokenizers of objectives that need another one than the family's."""
WHAT = {"translation": "pairs", "supervised": "pairs", "mixture": "both"}
"""What is read, where it is not plain documents."""
PAIRS = [(name, shape) for name in OBJECTIVES.list_names() for shape in OBJECTIVES.get(name)().shapes]
QUICK = [
    ("causal", "decoder"),
    ("bidirectional", "two-way"),
    ("masked", "encoder"),
    ("next_sentence", "encoder"),
    ("replaced_token", "generator-discriminator"),
    ("span_corruption", "encoder-decoder"),
    ("permuted", "two-stream"),
    ("distill", "encoder"),
    ("autoencoder", "decoder"),
]
"""One objective of each shape and kind of rows."""


def choose_model(name: str, shape: str) -> str:
    return "ulmfit-small" if name == "autoencoder" and shape == "decoder" else MODELS[shape]


@pytest.mark.parametrize(("name", "shape"), keep_quick(PAIRS, *QUICK))
def test_two_steps(name: str, shape: str, prepared: Prepared, tmp_path: Path) -> None:
    model = choose_model(name, shape)
    paper = FAMILIES.get(model.split("-")[0]).training
    assert paper is not None
    usual = ("unigram", "sentinels") if name in ("span_corruption", "mixture") else paper.tokenizer[:2]
    data = prepared(*STYLES.get(name, usual), WHAT.get(name, "stories"))
    changes = {
        **shrunk(model),
        **FAST,
        "data.length_schedule": None,
        "data.samples": "documents",
        "train.samples_every": 1,
    }
    options: dict[str, Any] = {"data": data, "steps": 2, "overrides": changes}
    if name == "distill":
        options["teacher"] = pt.pretrain(model, objective="masked", out=tmp_path / "teacher", **options)
    run = pt.pretrain(model, objective=name, out=tmp_path / "run", **options)
    assert run.summary["steps"] == 2 and run.summary["skipped"] == 0 and run.loss is not None
    assert json.loads((tmp_path / "run/run.json").read_text())["objective"]["kind"] == name
    assert any(term.endswith("accuracy") for term in run.summary["held_out"])
    assert pt.load(run).spec.vocab == pt.load(run).tokenizer.vocab_size


def test_a_decoder_with_attention_would_copy_the_text(prepared: Prepared) -> None:
    data = prepared("words", "plain")
    assert build_pretrain_config("ulmfit-small", data=data, objective="autoencoder", steps=1).data.samples == "blocks"
    with pytest.raises(UsageError, match=r"autoencoder.*recurrent.*gpt2"):
        build_pretrain_config("gpt2-small", data=data, objective="autoencoder", steps=1)
