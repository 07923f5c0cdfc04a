"""TASK TYPES, one file each: encoding, head, decoding, scores, baselines and users' tables; the only list of them.

A task names its type by `kind`; `task.type` is the type with the task. To add a type, write a file with a subclass of
`TaskType` and list it here.
"""

from typing import TYPE_CHECKING

from pretune.core.registry import Registry

if TYPE_CHECKING:
    from pretune.tasks.types.base import TaskType

TASK_TYPES: "Registry[type[TaskType]]" = Registry(
    "task type",
    {
        "classification": "pretune.tasks.types.classification:SequenceClassification",
        "pair": "pretune.tasks.types.classification:PairClassification",
        "multi-label": "pretune.tasks.types.multi_label:MultiLabelClassification",
        "regression": "pretune.tasks.types.regression:SequenceRegression",
        "tagging": "pretune.tasks.types.tagging:TokenTagging",
        "srl": "pretune.tasks.types.semantic_roles:SemanticRoles",
        "dependency": "pretune.tasks.types.dependency:DependencyParsing",
        "span": "pretune.tasks.types.span:SpanExtraction",
        "choice": "pretune.tasks.types.choice:MultipleChoice",
        "generation": "pretune.tasks.types.text_to_text:TextToText",
        "embedding": "pretune.tasks.types.embedding:TextEmbedding",
        "retrieval": "pretune.tasks.types.base:Retrieval",
        "pairs": "pretune.tasks.types.base:MinimalPairs",
        "cloze": "pretune.tasks.types.base:Cloze",
    },
)

_OPTIONS = {"pair": "classification", "generation": "text", **dict.fromkeys(("retrieval", "pairs", "cloze"))}
"""Names of `--type` that differ from the kind of a task; None for evaluation only."""


def get_option(kind: str) -> str | None:
    """Return the name of a kind of task on the command line (`pretune finetune --type`); None: for evaluation only.

    >>> get_option("pair"), get_option("generation"), get_option("cloze")
    ('classification', 'text', None)
    """
    return _OPTIONS.get(kind, kind)


TYPE_OPTIONS = tuple(dict.fromkeys(option for kind in TASK_TYPES if (option := get_option(kind))))
"""Types that `--type` accepts."""
