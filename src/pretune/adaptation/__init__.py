"""ADAPTATION: from a pre-trained model to a task: heads, strategies, parameter-efficient methods, static vectors."""

from typing import Any

from pretune.adaptation.peft import PEFT_METHODS
from pretune.core.registry import Registry

METHODS: Registry[Any] = Registry(
    "method",
    {
        "full": "pretune.adaptation.freeze:Full",
        "frozen": "pretune.adaptation.freeze:Frozen",
        "gradual": "pretune.adaptation.freeze:Gradual",
        **PEFT_METHODS.table,
    },
    group="pretune.methods",
    list_reserved=lambda: METHOD_PRESETS,
)
"""Name -> spec: a frozen value with defaults, and `rate`, its default peak learning rate."""

METHOD_PRESETS: dict[str, str] = {
    "freeze-first": "Freeze the embeddings and the lower half of the blocks",
    "last-only": "Train only the last block and the head",
    "extra-layers": "Train two new blocks on top of the frozen model, and the head",
    "ulmfit": "Gradual unfreezing, discriminative and slanted triangular learning rates (Howard and Ruder, 2018)",
    "scalar-mix": "Train a BiLSTM over a scalar mix of all layers of the frozen model (Peters et al., 2018)",
    "from-scratch": "Train all weights from random initialization: the same model without pre-training",
}
"""Further names that `--method` accepts; each stands for settings of a fine-tuning run (`pretune.runs.finetune`)."""
