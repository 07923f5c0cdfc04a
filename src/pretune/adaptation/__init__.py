"""ADAPTATION: from a pre-trained model to a task: heads, strategies, parameter-efficient methods, static vectors."""

from typing import Any

from pretune.adaptation.peft import PEFT_METHODS
from pretune.core.registry import Registry

METHODS: Registry[Any] = Registry(
    "method",
    {
        "full": "pretune.adaptation.freeze:Full",
        "frozen": "pretune.adaptation.freeze:Frozen",
        "gradual": "pretune.adaptation.gradual_unfreezing:Gradual",
        **PEFT_METHODS.table,
    },
)
"""Name -> spec: a frozen value with defaults, and `rate`, a usual peak learning rate of it."""

METHOD_PRESETS: dict[str, str] = {
    "first": "The embeddings and the lower half of the blocks are frozen",
    "last": "The topmost block and the head alone are trained",
    "extra": "Two new blocks on top of the frozen model, and the head",
    "ulmfit": "Gradual unfreezing, discriminative rates, slanted triangles (Howard and Ruder, 2018)",
    "mix": "A BiLSTM over a learned mix of all layers of the frozen model, as ELMo was used (Peters et al., 2018)",
    "random": "Everything, from new weights: the same model without pre-training",
}
"""What `--method` takes beside the methods: each stands for settings, which `recipes.finetune.choose` knows."""
