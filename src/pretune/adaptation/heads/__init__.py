"""Task heads, one file each: pooling, outputs, and the summed loss.

A head is a spec: `build(model)` builds its module; training calls `counts(batch)` and `loss(model, batch)`. This table
is the only place that lists the heads.
"""

from typing import TYPE_CHECKING

from pretune.core.registry import Registry

if TYPE_CHECKING:
    from pretune.adaptation.heads.base import TaskHead

HEADS: "Registry[type[TaskHead]]" = Registry(
    "head",
    {
        "classification": "pretune.adaptation.heads.classification:Classification",
        "multi_label": "pretune.adaptation.heads.multi_label:MultiLabel",
        "regression": "pretune.adaptation.heads.regression:Regression",
        "tagging": "pretune.adaptation.heads.tagging:Tagging",
        "dependency": "pretune.adaptation.heads.dependency:Dependency",
        "span": "pretune.adaptation.heads.span:Span",
        "choice": "pretune.adaptation.heads.choice:Choice",
        "generation": "pretune.adaptation.heads.generation:Generation",
    },
)
