"""Frozen weights of PEFT methods, which are stored in the precision of autocast."""

from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.adaptation.freeze import Full
from pretune.adaptation.methods import round_frozen_weights
from pretune.models.model import LanguageModel
from pretune.runs.finetune import trial
from tests.runs import tasked
from tests.selection import keep_quick

BASES: dict[str, tuple[str, str]] = {
    "bert-tiny": ("wordpiece", "cls-sep"), "gpt2-small": ("bpe", "endoftext"), "t5-small": ("unigram", "sentinels"),
    "bart-base": ("bpe", "s-mask"), "deberta-v3-small": ("unigram", "cls-sep"), "xlnet-base": ("unigram", "cls-sep"),
    "modernbert-base": ("bpe", "cls-sep"), "llama2-7b": ("bpe", "endoftext"), "bloom-560m": ("bpe", "endoftext"),
}  # fmt: skip
CASES = [
    *((method, "bert-tiny") for method in ("lora", "qlora", "adapter", "ia3", "bitfit", "prefix", "prompt")),
    *(("lora", base) for base in BASES if base != "bert-tiny"),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:mkldnn")  # a CPU without bf16 says that it falls back
@pytest.mark.parametrize(("method", "family"), keep_quick(CASES, ("lora", "bert-tiny"), ("lora", "t5-small")))
def test_trained_weights_are_those_of_a_base_in_fp32(
    method: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, with the same answers, generated ones too: autocast rounds the weights before every product."""
    base, table = tasked.make_base(tmp_path, family, *BASES[family]), tasked.classes(tmp_path / "own.csv", 40)
    stored: list[set[torch.dtype]] = []

    def tune(name: str) -> Path:
        overrides: dict[str, Any] = {"train.precision": "bf16", "train.batch": 8, "train.workers": 0}
        if family == "gpt2-small":
            overrides["tune.text_to_text"] = True
        arguments = {"method": method, "steps": 3, "baselines": "none", "device": "cpu", "overrides": overrides}
        return pt.finetune(base, train=table, out=tmp_path / name, **arguments).path  # type: ignore[no-any-return]

    def observe(model: LanguageModel, *arguments: object) -> None:
        round_frozen_weights(model, *arguments)  # type: ignore[arg-type]
        stored.append({weight.dtype for name, weight in model.named_parameters() if name.endswith("up.weight")})

    monkeypatch.setattr(trial, "round_frozen_weights", observe)
    rounded = tune("rounded")
    monkeypatch.setattr(trial, "round_frozen_weights", lambda *arguments: None)
    plain = tune("plain")
    assert all(dtypes <= {torch.bfloat16} for dtypes in stored) and any(stored) == (method != "qlora")
    files = [path.name for path in plain.glob("*.safetensors")]
    assert "adapter_model.safetensors" in files
    for file in (*files, "predictions.jsonl"):
        assert (rounded / file).read_bytes() == (plain / file).read_bytes(), file


def test_weights_that_are_saved_or_compared_stay_in_fp32() -> None:
    model = pt.build("bert-tiny", vocab=50, width=16, depth=1, heads=2)
    for method, precision in ((pt.LoRA(), None), (Full(), torch.bfloat16)):
        round_frozen_weights(model, method, precision)
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
