"""ADAPTATION: from a pre-trained model to a task: heads, strategies, parameter-efficient methods, static vectors."""

from typing import Any

from pretune.adapt.peft import EFFICIENT
from pretune.core.registry import Registry

METHODS: Registry[Any] = Registry(
    "method",
    {
        "full": "pretune.adapt.freeze:Full",
        "frozen": "pretune.adapt.freeze:Frozen",
        "gradual": "pretune.adapt.unfreeze:Gradual",
        **EFFICIENT.table,
    },
)
"""Name -> spec: a frozen value with defaults, and `rate`, a usual peak learning rate of it."""
