"""Hashes of configs: a checkpoint of an older release has the same, and can be resumed."""

import pytest

from pretune.adaptation.peft.lora import LoRA
from pretune.models.catalog import resolve
from pretune.objectives import OBJECTIVES
from pretune.runs.config import PretrainConfig, PretrainTrainConfig
from pretune.runs.finetune.config import (
    AdaptationConfig,
    BaseConfig,
    FinetuneConfig,
    FinetuneTrainConfig,
    SequenceConfig,
    TaskConfig,
)
from pretune.runs.training_data import DataConfig

REMEDY = "a field was added to a spec: annotate it with NewField(), and let its default be the old behavior"


@pytest.mark.parametrize(
    ("model", "objective", "sha256"),
    [
        ("bert-tiny", "masked", "c3adc4d195cef91fd75a734f75f13d1c0730ee7991f4fdb6d07a6bed21c05786"),
        ("bert-tiny", "span_masked", "9cef740ae0ea2479ed77f541ee0fe95a2b4dc16edf7b82b85f3467b452709f3e"),
        ("gpt2-small", "masked", "12da627fd775f2e06bcae2e25cb515ca0058aefe486bcc8d6247a3af879a8afb"),
        ("t5-base", "masked", "2bdd04b4f6cb681ce8971bd4c7507c3003be0359c4006317bc02373b5eee5f72"),
        ("xlnet-base", "masked", "7af79c4c46f6f39334d4ed2998d75753027d43da9174018d5fbc0534ef72754c"),
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
    assert config.sha256() == "c21c8a7d352329d912d48c1e6adfadae62a9ff09b09c0fed522a399c07a0d2cd", REMEDY
