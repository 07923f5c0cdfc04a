"""Hashes of configs: a checkpoint of an older release has the same, and can be resumed."""

import pytest

from pretune.adaptation.peft.lora import LoRA
from pretune.models.catalog import resolve
from pretune.objectives import OBJECTIVES
from pretune.runs.config import DataConfig, PretrainConfig, PretrainTrainConfig
from pretune.runs.finetune.config import (
    AdaptationConfig,
    BaseConfig,
    FinetuneConfig,
    FinetuneTrainConfig,
    SequenceConfig,
    TaskConfig,
)

REMEDY = "a field was added to a spec: let its default be the old behavior"


@pytest.mark.parametrize(
    ("model", "objective", "sha256"),
    [
        ("bert-tiny", "masked", "cef671eed328a2b4542cc419aa4f56b0c755679cc6a8ad91cec45273fa939224"),
        ("bert-tiny", "span_masked", "b2c05da7bb437f9a33c6fc788b52d10000c61893c16af779d82af11a77c11a72"),
        ("gpt2-small", "masked", "77b2e994a2a8b0195d7998418413d850bd13fab89f772fb0827a653c059b06d3"),
        ("t5-base", "masked", "9f30c5e4ba1e472018c44cf8280fb38e0a5d3859b3e6d8e7251686796e7a7aea"),
        ("xlnet-base", "masked", "9770184f67a77b98377a807eea818dd30c6e4d4324d896c8f04b32c816585f7e"),
    ],
)
def test_pretraining_runs_keep_their_hash(model: str, objective: str, sha256: str) -> None:
    config = PretrainConfig(
        model=resolve(model),
        objective=OBJECTIVES.get(objective)(),
        data=DataConfig(path="data"),
        train=PretrainTrainConfig(lr=1e-4, steps=10),
    )
    assert config.sha256() == sha256, REMEDY


def test_finetuning_runs_keep_their_hash() -> None:
    config = FinetuneConfig(
        base=BaseConfig(path="base"), task=TaskConfig(name="sst2"), method=LoRA(), tune=AdaptationConfig(),
        data=SequenceConfig(), train=FinetuneTrainConfig(lr=1e-3),
    )  # fmt: skip
    assert config.sha256() == "38f632ff4281194cb36140ecc89298d8b5ab12db39cb77373e273113ad62f177", REMEDY
