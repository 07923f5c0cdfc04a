"""Parameters of published sizes against the classes of `transformers`, built from the released configs."""

from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the reference library is not installed")

import transformers as tf

from pretune.models.catalog import resolve
from pretune.models.families import FAMILIES

ALBERT: dict[str, dict[str, Any]] = {
    "base": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 24},
    "xlarge": {"hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 8192, "num_hidden_layers": 24},
    "xxlarge": {},
}
DECODERS = ("qwen2", "qwen3", "smollm3", "gemma3")
PUBLISHED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    **{
        f"albert-{size}{version}": (tf.AlbertForPreTraining, tf.AlbertConfig, options)
        for size, options in ALBERT.items()
        for version in ("", "-v1")
    },
    "distilbert-base": (tf.DistilBertForMaskedLM, tf.DistilBertConfig, {}),
    "distilbert-multilingual": (tf.DistilBertForMaskedLM, tf.DistilBertConfig, {"vocab_size": 119547}),
    "spanbert-base": (tf.BertForMaskedLM, tf.BertConfig, {"vocab_size": 28996}),
    "spanbert-large": (
        tf.BertForMaskedLM,
        tf.BertConfig,
        {
            "vocab_size": 28996,
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    ),
    "tinybert-4": (
        tf.BertForPreTraining,
        tf.BertConfig,
        {"hidden_size": 312, "num_hidden_layers": 4, "intermediate_size": 1200},
    ),
    "tinybert-6": (tf.BertForPreTraining, tf.BertConfig, {"num_hidden_layers": 6}),
}
"""Class, config, and the options in which the released config differs from the defaults of the class."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name: str) -> None:
    """Of the body with its pooler, and with the heads that the class has; a family has no size that is not checked."""
    cls, config, options = PUBLISHED[name]
    with torch.device("meta"):
        reference = cls(config(**options))
    params = resolve(name, {"span": None}).params()
    assert params.body_with_pooler == reference.base_model.num_parameters()
    assert params.total == reference.num_parameters()


@pytest.mark.parametrize("name", [f"{family}-{size}" for family in DECODERS for size in FAMILIES.get(family).sizes])
def test_published_counts_of_written_configs(name: str) -> None:
    """The class that our config names has as many parameters as the released weights."""
    family, _, size = name.partition("-")
    layout = FAMILIES.get(family).layout
    assert layout is not None
    with torch.device("meta"):
        reference = tf.AutoModelForCausalLM.from_config(tf.AutoConfig.for_model(**layout.write(resolve(name))))
    assert reference.num_parameters() == FAMILIES.get(family).sizes[size].params


def test_every_size_of_these_families_is_checked() -> None:
    families = {name.partition("-")[0] for name in PUBLISHED}
    assert set(PUBLISHED) == {f"{family}-{size}" for family in families for size in FAMILIES.get(family).sizes}
