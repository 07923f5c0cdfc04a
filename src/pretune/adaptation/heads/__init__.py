"""Heads for tasks, one file each: how they read, what they say, and the summed loss they learn from.

A head is a spec: `build(model)` makes its module, `counts(batch)` and `loss(model, batch)` are what training asks for.
This table is the only place that lists them.
"""

from typing import TYPE_CHECKING

from pretune.core.registry import Registry

if TYPE_CHECKING:
    from pretune.adaptation.heads.base import TaskHead

HEADS: "Registry[type[TaskHead]]" = Registry(
    "head",
    {
        "classification": "pretune.adaptation.heads.classification:Classification",
        "regression": "pretune.adaptation.heads.regression:Regression",
        "tagging": "pretune.adaptation.heads.tagging:Tagging",
        "span": "pretune.adaptation.heads.span:Span",
        "choice": "pretune.adaptation.heads.choice:Choice",
        "generation": "pretune.adaptation.heads.generation:Generation",
    },
)
