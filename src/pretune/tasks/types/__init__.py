"""TASK TYPES, one file each: inputs, outputs and scoring; the only list of them.

A task names its type by `kind`, and `--type` by the same word. To add a type, write a file with a `TaskType` and list
it here.
"""

from typing import TYPE_CHECKING

from pretune.core.registry import Registry

if TYPE_CHECKING:
    from pretune.tasks.example import Example, Examples, Prediction, Predictions
    from pretune.tasks.task import Task
    from pretune.tasks.types.base import TaskType

TYPE_ALIASES = {"text": "generation"}
"""Other words for types that `--type` accepts."""
TASK_TYPES: "Registry[TaskType]" = Registry(
    "task type",
    {
        "classification": "pretune.tasks.types.classification:CLASSIFICATION",
        "pair": "pretune.tasks.types.classification:PAIR",
        "multi-label": "pretune.tasks.types.multi_label:MULTI_LABEL",
        "regression": "pretune.tasks.types.regression:REGRESSION",
        "tagging": "pretune.tasks.types.tagging:TAGGING",
        "srl": "pretune.tasks.types.semantic_roles:SEMANTIC_ROLES",
        "dependency": "pretune.tasks.types.dependency:DEPENDENCY",
        "coreference": "pretune.tasks.types.coreference:COREFERENCE",
        "span": "pretune.tasks.types.span:SPAN",
        "choice": "pretune.tasks.types.choice:CHOICE",
        "generation": "pretune.tasks.types.text_to_text:GENERATION",
        "instruction": "pretune.tasks.types.instruction:INSTRUCTION",
        "preference": "pretune.tasks.types.preference:PREFERENCE",
        "reward": "pretune.tasks.types.reward:REWARD",
        "embedding": "pretune.tasks.types.embedding:EMBEDDING",
        "retrieval": "pretune.tasks.types.base:RETRIEVAL",
        "pairs": "pretune.tasks.types.base:MINIMAL_PAIRS",
        "cloze": "pretune.tasks.types.base:CLOZE",
        "cloze-choice": "pretune.tasks.types.base:CLOZE_CHOICE",
    },
    group="pretune.task_types",
    list_reserved=lambda: TYPE_ALIASES,
)
EVALUATION_ONLY = ("retrieval", "pairs", "cloze", "cloze-choice")
"""Types that no model is fine-tuned for."""
TYPE_OPTIONS = tuple(kind for kind in TASK_TYPES.table if kind not in EVALUATION_ONLY)
"""Types that `--type` accepts; also those that packages add (`list_type_options`)."""


def list_type_options() -> list[str]:
    """Return the types that `--type` accepts, those of packages and of `pt.register` too."""
    return [kind for kind in TASK_TYPES if kind not in EVALUATION_ONLY]


def get_type(task: "Task") -> "TaskType":
    """Return the type of a task."""
    return TASK_TYPES.get(task.kind)


def score(task: "Task", examples: "Examples", predictions: "Predictions") -> dict[str, float]:
    """Return the official scores of a task by name, the headline first; 1 is perfect."""
    return get_type(task).scoring.score(task, examples, predictions)


def has_answer(task: "Task", example: "Example") -> bool:
    """Return whether the reference answer of an example is known."""
    return get_type(task).scoring.format_gold(task, example) is not None


def has_answers(task: "Task", examples: "Examples") -> bool:
    """Return whether the reference answers of a split are known: of each example, and not all of them empty."""
    answers = [get_type(task).scoring.format_gold(task, example) for example in examples]
    return None not in answers and any(answer != [] for answer in answers)


def build_row(task: "Task", split: str, name: str, example: "Example", prediction: "Prediction") -> dict[str, object]:
    """Return a line of predictions.jsonl: prediction, reference answer and input.

    {"split": "test", "id": "7", "label": "bad", "probabilities": {…}, "gold": "good", "input": "a quiet joy"}
    """
    task_type = get_type(task)
    outputs = {**task_type.outputs.format(task, prediction), "gold": task_type.scoring.format_gold(task, example)}
    return {"split": split, "id": name, **outputs, **task_type.inputs.format(example)}
