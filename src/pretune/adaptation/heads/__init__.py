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
        "classification": "pretune.adaptation.heads.sequence:Classification",
        "multi_label": "pretune.adaptation.heads.sequence:MultiLabel",
        "regression": "pretune.adaptation.heads.sequence:Regression",
        "tagging": "pretune.adaptation.heads.token:Tagging",
        "dependency": "pretune.adaptation.heads.dependency:Dependency",
        "coreference": "pretune.adaptation.heads.coreference:Coreference",
        "span": "pretune.adaptation.heads.token:Span",
        "choice": "pretune.adaptation.heads.sequence:Choice",
        "generation": "pretune.adaptation.heads.token:Generation",
    },
)
